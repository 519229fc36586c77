"""Templates that are not prefix-preserving: each turn is a row, and its prompt is that of serving."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest
import trl

from agent_pipeline.engine.scoring import average_losses, compute_losses, compute_sft_losses
from agent_pipeline.evaluation.answer_scoring import score
from agent_pipeline.evaluation.call_probability import call_branches
from agent_pipeline.evaluation.rollouts import world_rollouts
from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.evaluation.turns import TurnAnswerer
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import EXACT
from agent_pipeline.models.loading import load_model
from agent_pipeline.models.rendering import with_plain_ids
from agent_pipeline.sessions.session import add_thoughts
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.training.decision_probes import find_probes
from agent_pipeline.training.preference_examples import encode_pairs, encode_sessions
from agent_pipeline_tests.families.templates import mistral
from agent_pipeline_tests.training.test_on_policy_steps import HEARD, Asking
from agent_pipeline_tests.training.world import TOOL, call, row

TEMPLATES = Path(trl.__file__).parent / "chat_templates"


def with_template(base, folder: Path, jinja: str):
    tokenizer = load_renderer(base.path).tokenizer
    tokenizer.chat_template = jinja
    tokenizer.save_pretrained(folder)
    return load_renderer(folder)


@pytest.fixture(scope="module")
def qwen3(tiny_base, tmp_path_factory):
    """A tokenizer with Qwen 3's own template, which shows no thoughts of the past."""
    renderer = with_template(
        tiny_base, tmp_path_factory.mktemp("qwen3"), (TEMPLATES / "qwen3.jinja").read_text()
    )
    assert renderer.template.origin == "model" and not renderer.template.prefix_preserving
    return renderer


def test_each_trained_turn_is_a_row_that_begins_with_the_prompt_of_serving(qwen3):
    messages = [
        *row(1)["messages"],
        {"role": "user", "content": "And you?"},
        {"role": "assistant", "content": "Fine.", "weight": 0},
    ]
    messages += [{"role": "user", "content": "Thanks."}, {"role": "assistant", "content": "Bye."}]
    encoded, counts, _ = encode_rows(qwen3, [row(1) | {"messages": messages}], 2048)
    assert counts["in"] == counts["trained"] == len(encoded) == 3
    for each, at in zip(encoded, (2, 4, 8), strict=True):
        (start, end) = each.encoded.turns[-1]
        assert each.encoded.input_ids[:start] == qwen3.prompt_ids(messages[:at], [TOOL])
        assert each.encoded.trained == [
            start <= position < end for position in range(len(each.encoded.trained))
        ]


def test_the_loss_of_a_row_is_that_of_its_turns(qwen3, tiny_base):
    model, rows = load_model(tiny_base, EXACT), [row(1), row(2)]
    turns = compute_losses(model, [each.encoded for each in encode_rows(qwen3, rows, 2048).rows])
    found = compute_sft_losses(model, qwen3, rows, 2048)
    assert [each.trained_tokens for each in found] == [
        sum(t.trained_tokens for t in turns[i : i + 2]) for i in (0, 2)
    ]
    assert found[1].loss == pytest.approx(average_losses(turns[2:]))


def test_judged_rows_train_turn_by_turn(qwen3):
    messages = row(1)["messages"]
    judged = {"row_id": "a", "session_id": "s", "prompt": messages[:2], "tools": [TOOL]}
    examples = encode_sessions(
        qwen3, [judged | {"completion": messages[2:], "label": True}], 2048
    ).rows
    assert len(examples) == 2 and all(sum(example.rows[0].trained) for example in examples)
    pairs = encode_pairs(
        qwen3,
        [judged | {"chosen": messages[2:], "rejected": [{"role": "assistant", "content": "No."}]}],
        2048,
    )
    assert len(pairs.rows) == 1 and not pairs.first_dropped


def test_an_episode_of_rewards_hears_all_that_tools_and_users_say(qwen3):
    """Qwen 3 takes a turn's empty thought back once others follow: the first words after it were lost."""
    written = iter(
        [
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
            "It is sunny.",
            "Take a hat.",
        ]
    )

    def sample(prompts):
        return [
            qwen3.tokenizer(f"<think>\n\n</think>\n\n{next(written)}<|im_end|>").input_ids
            for _ in prompts
        ]

    (rollout,) = world_rollouts(Asking, 5, 64, 1024, 1.0)(qwen3, [row(0)], sample)
    heard = [token for token, own in zip(rollout.completion, rollout.own, strict=True) if not own]
    said = (f"<tool_response>\n{HEARD}\n</tool_response>", "A USER SAYS MORE")
    assert qwen3.decode(heard) == "".join(
        f"\n<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n" for words in said
    )


def test_what_every_turn_begins_with_decides_nothing(qwen3):
    """An empty thought: at it, calls and answers are equally likely."""
    branches = call_branches(qwen3, row(1)["messages"][:2], [TOOL], "")
    (opened,) = [
        qwen3.decode([token for token, on in zip(b.input_ids, b.trained, strict=True) if on])
        for b in branches
    ]
    assert "<tool_call>" in opened and "think" not in opened
    for probe in find_probes(qwen3, [row(number) for number in range(4)], 2048, 4):
        assert (
            qwen3.decode(probe.encoded.input_ids)
            .rpartition("<|im_start|>assistant")[2]
            .startswith("\n<think>\n\n</think>\n\n")
        )


SECRET = "the secret thought"


def thinking(number: int, thought: str = SECRET) -> dict:
    """A row in which the agent thinks before it calls, and before it answers."""
    messages = add_thoughts(
        row(number)["messages"], [{"message": at, "text": f"{thought} {at}"} for at in (2, 4)]
    )
    return row(number) | {"messages": messages}


@pytest.fixture(scope="module", params=["qwen3", "gptoss"])
def thinker(request, tiny_base, tmp_path_factory):
    """The tokenizers with a template that shows thoughts: before the turn, or on a channel of their own."""
    jinja = (TEMPLATES / f"{request.param}.jinja").read_text()
    for other, stop in (("<|return|>", "<|im_end|>"), ("<|call|>", "<|im_end|>")):
        jinja = jinja.replace(other, stop)
    return with_template(tiny_base, tmp_path_factory.mktemp(request.param), jinja)


def test_a_recorded_thought_is_trained_with_its_turn_and_stands_in_no_prompt(thinker):
    encoded, counts, first_dropped = encode_rows(thinker, [thinking(1)], 2048)
    assert counts["trained"] == counts["reasoning_trained"] == 2, first_dropped
    for each, at in zip(encoded, (2, 4), strict=True):
        start, end = each.encoded.turns[0]
        prompt, said = (
            thinker.decode(ids)
            for ids in (each.encoded.input_ids[:start], each.encoded.input_ids[start:end])
        )
        assert (
            SECRET not in prompt
            and f"{SECRET} {at}" in said
            and all(each.encoded.trained[start:end])
        )
        assert each.encoded.input_ids[:start] == thinker.prompt_ids(
            thinking(1)["messages"][:at], [TOOL]
        )
        assert start < each.encoded.words[0]
        assert SECRET not in thinker.decode(each.encoded.input_ids[each.encoded.words[0] : end])


def test_a_thought_that_is_not_shown_is_counted_and_changes_no_token(tiny_renderer):
    plain, thought = (encode_rows(tiny_renderer, [each], 2048) for each in (row(1), thinking(1)))
    assert [each.encoded for each in thought.rows] == [each.encoded for each in plain.rows]
    assert thought.counts == plain.counts | {"reasoning_not_rendered": 2}


def test_a_decision_is_looked_at_after_the_thought(thinker):
    branch = call_branches(thinker, row(1)["messages"][:2], [TOOL], "", f"{SECRET} weather")[0]
    begins = branch.trained.index(True)
    assert f"{SECRET} weather" in thinker.decode(branch.input_ids[:begins])
    asked = find_probes(
        thinker, [thinking(number, f"{SECRET} weather") for number in range(4)], 2048, 4
    )
    assert Counter(probe.refuted for probe in asked) == {False: 4, True: 4}
    openers = {probe.encoded.input_ids[probe.encoded.trained.index(True)] for probe in asked}
    assert openers == {branch.input_ids[begins]}
    for probe in asked:
        before = thinker.decode(probe.encoded.input_ids[: probe.encoded.trained.index(True)])
        assert before.count(SECRET) == 1 and "tool_call" not in before.partition(SECRET)[2]


def test_the_loss_and_the_questions_of_a_row_with_thoughts_are_of_the_trained_tokens(
    thinker, tiny_base
):
    model = load_model(tiny_base, EXACT)
    model.resize_token_embeddings(len(thinker.tokenizer))
    answering = TurnAnswerer(model, thinker)
    for sample, each in zip(
        turn_samples([thinking(1)], split="train")[0],
        encode_rows(thinker, [thinking(1)], 2048).rows,
        strict=True,
    ):
        question = answering.question(sample, 200)
        assert (
            question.prompt + question.expected
            == each.encoded.input_ids[: each.encoded.turns[0][1]]
            and question.branches
        )
        assert score(
            sample, thinker.decode(question.expected).removesuffix("<|im_end|>"), False
        ).right


@pytest.mark.parametrize("name", ["llama3_1", "llama3_2"])
def test_dates_are_pinned_in_the_template_that_is_saved_and_what_it_refuses_is_counted(
    tiny_base, tmp_path, monkeypatch, name
):
    jinja = (TEMPLATES / f"{name}.jinja").read_text().replace("<|eot_id|>", "<|im_end|>")
    renderer = with_template(tiny_base, tmp_path, jinja)
    assert "always 26 Jul 2024" in renderer.template.why
    assert "Today Date: 26 Jul 2024" in renderer.render(row(1)["messages"], [TOOL])
    assert time.strftime("%Y") != "2024"
    assert load_renderer(tmp_path).template.jinja == renderer.template.jinja
    twice = row(2)
    twice["messages"][2]["tool_calls"] *= 2
    assert encode_rows(renderer, [row(1), twice], 2048).counts["dropped_not_rendered"] == 1


def test_ids_of_calls_are_counted_for_templates_that_take_no_others(tiny_base, tmp_path):
    renderer = with_template(tiny_base, tmp_path, mistral("", v7=False))
    assert renderer.template.origin == "model" and not renderer.template.prefix_preserving
    messages = json.loads(json.dumps(row(1)["messages"]).replace("call00001", "toolu_01AbCdEf"))
    assert renderer.render(messages, [TOOL]) == renderer.render(row(1)["messages"], [TOOL])
    two = [
        {"role": "assistant", "tool_calls": [call("a", {}, "x"), call("b", {}, "y")]},
        {"role": "tool", "tool_call_id": "y"},
    ]
    assert [message.get("tool_call_id") for message in with_plain_ids(two)] == [None, "call00002"]
