"""The base model, asked otherwise."""

import shutil

import pytest

from agent_pipeline.evaluation.evaluate import evaluate
from agent_pipeline.evaluation.rivals import nearest_sessions, rivals, with_sessions
from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.evaluation.turns import Answering
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.loading import read_tokenizer
from agent_pipeline_tests.training.world import row

STOCK = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_the_nearest_sessions_are_those_that_begin_alike():
    rows = [row(number) for number in range(12)]
    nearest = nearest_sessions(rows)("How is Lima for 4 days?", 2)
    assert nearest[-1] == row(3)["messages"] and len(nearest) == 2


@pytest.mark.slow
def test_sessions_stand_between_the_system_message_and_the_conversation_as_many_as_fit(
    tiny_base, adapter_dir
):
    answering = Answering.of(tiny_base, adapter_dir)
    question = answering.question(turn_samples([row(25, "test")])[0][0], 96)
    sessions = [row(1)["messages"], row(2)["messages"]]
    text = answering.text(with_sessions(answering, question, sessions))
    assert text.count("You report the weather.") == 1
    assert text.index("How is Rome for 2 days?") < text.index("How is Bonn for 3 days?")
    assert text.rstrip().endswith("<|im_start|>assistant") and text.index("Bonn") < text.rindex(
        "How is Rome for 1 days?"
    )
    answering.max_length = len(with_sessions(answering, question, sessions)) + question.limit - 1
    assert "Rome for 2" not in answering.text(with_sessions(answering, question, sessions))
    answering.max_length = len(question.prompt)
    assert with_sessions(answering, question, sessions) is None


@pytest.mark.slow
def test_the_base_is_asked_in_its_own_template_and_with_sessions(tiny_base, adapter_dir, tmp_path):
    own = shutil.copytree(tiny_base.path, tmp_path / "base")
    tokenizer = read_tokenizer(own)
    tokenizer.chat_template = STOCK
    tokenizer.save_pretrained(own)
    base = BaseModel("tiny-llama", own, tiny_base.revision)
    heldout = [row(number, "test") for number in (25, 31)]
    sessions = [row(number) for number in range(6)]
    report = evaluate(
        heldout, base, adapter_dir, own_template=True, sessions_in_prompt=2, sessions=sessions
    )
    assert report["rivals"].keys() == {"own_template", "sessions"}
    for name, figures in report["rivals"].items():
        assert figures["asked"] == 4 and figures["differences"]["call_recall"] is not None
        assert all(sample[f"base_{name}"]["text"] for sample in report["samples"])
    answering = Answering.of(base, adapter_dir)
    assert rivals(answering, tiny_base, True, sessions, 0) == {}  # it came without a template
