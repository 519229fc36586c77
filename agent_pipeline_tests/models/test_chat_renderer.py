"""The renderer: a tokenizer with its chat template."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from agent_pipeline.errors import ModelError
from agent_pipeline.models import chat_renderer
from agent_pipeline.models.chat_renderer import load_renderer, read_renderer, wrap_tokenizer
from agent_pipeline.training.provenance import SftInput
from agent_pipeline.training.sft import train_adapter
from agent_pipeline_tests.families.subjects import SUBJECTS, Subject, make_tokenizer
from agent_pipeline_tests.training.world import TOOL, TRAINING, row

SOME_SUBJECTS = [
    subject
    for subject in SUBJECTS
    if subject.name in ("Qwen2.5", "Qwen3, thinking or not", "Llama 3.1", "SmolLM2", "gpt-oss")
]


@pytest.mark.parametrize("subject", SOME_SUBJECTS, ids=lambda subject: subject.name)
def test_saved_renderer(subject: Subject, tmp_path: Path) -> None:
    """A saved tokenizer brings its template along, and the probe finds the same facts again.

    No fact about the template is saved beside it, so none can contradict it.
    """
    make_tokenizer(subject).save_pretrained(tmp_path / "base")
    chosen = load_renderer(tmp_path / "base")
    chosen.tokenizer.save_pretrained(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "tokenizer_config.json").read_text())
    assert not {"arguments_as", "rows", "reasoning"} & config.keys()
    messages = row(1)["messages"]
    for again in (load_renderer(tmp_path / "adapter"), read_renderer(tmp_path / "adapter")):
        facts, expected = again.template.to_report(), chosen.template.to_report()
        for name in ("arguments_as", "stops", "rows", "reasoning"):
            assert facts[name] == expected[name]
        assert again.template.jinja == chosen.template.jinja
        assert again.prompt_ids(messages, [TOOL]) == chosen.prompt_ids(messages, [TOOL])
        assert again.stop_ids == chosen.stop_ids


def test_tokenizer_without_template(tiny_base) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_base.path)
    assert tokenizer.chat_template is None and wrap_tokenizer(tokenizer) is None
    with pytest.raises(ModelError):
        read_renderer(tiny_base.path)


@pytest.mark.slow
def test_template_is_chosen_once_per_training(tiny_base, tmp_path, monkeypatch) -> None:
    """The provenance of a training and the training itself share one renderer."""
    chosen = []
    choose_template = chat_renderer.choose_template

    def count_choice(*arguments):
        chosen.append(choose_template(*arguments))
        return chosen[-1]

    monkeypatch.setattr(chat_renderer, "choose_template", count_choice)
    sft_input = SftInput([row(0), row(1)], tiny_base, TRAINING.changed(max_steps=1))
    assert sft_input.renderer.template.jinja
    train_adapter(sft_input, tmp_path)
    assert len(chosen) == 1
