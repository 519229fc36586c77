"""An adapter against its base."""

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trl

from agent_pipeline.compute import tasks
from agent_pipeline.compute.params import TaskParams
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.errors import DataError, ModelError
from agent_pipeline.evaluation.base_measurements import MemoryStore
from agent_pipeline.evaluation.evaluate import (
    EvaluationOptions,
    _measure_verified_calls,
)
from agent_pipeline.evaluation.evaluate import evaluate as evaluate_models
from agent_pipeline.evaluation.greedy import greedy
from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.evaluation.turns import TurnAnswerer
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.promotion import sanity_questions
from agent_pipeline.promotion.sanity_groups import NO_REFUSAL
from agent_pipeline.promotion.sanity_questions import (
    NO_TOOL_NEEDED,
    OTHER_AGENTS_TURNS,
    PLAIN_QUESTIONS,
    ask_sanity_questions,
    choose_other_turns,
    is_good_answer,
)
from agent_pipeline.sessions.tables import to_table
from agent_pipeline.storage.lake import Lake
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training import rehearsal
from agent_pipeline_tests.lakes import artifact
from agent_pipeline_tests.task_params import task_values
from agent_pipeline_tests.training.world import row

pytestmark = pytest.mark.slow

HELDOUT = [row(number, "test") for number in (25, 31, 38, 40)]


@pytest.mark.parametrize("heldout", [HELDOUT[:1], HELDOUT], ids=["a task", "four tasks"])
def test_an_adapter_without_a_finite_loss_is_an_error_and_no_figure(
    heldout, tiny_base, adapter_dir, tmp_path
):
    from safetensors.torch import load_file, save_file

    broken = shutil.copytree(adapter_dir, tmp_path / "broken")
    weights = broken / "adapter_model.safetensors"
    save_file({name: tensor * math.nan for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(ModelError):
        evaluate(heldout, tiny_base, broken, max_samples=0)


def evaluate(*args: Any, base_store: MemoryStore | None = None, **options: Any) -> dict[str, Any]:
    """Return everything that an evaluation makes, as JSON."""
    evaluation_options = EvaluationOptions(**options)
    result = evaluate_models(*args, evaluation_options, base_store=base_store)
    files = {"samples": result.samples, "row_losses": result.row_losses}
    return msgspec.to_builtins(result.report) | files


@pytest.fixture(scope="module")
def report(tiny_base, adapter_dir):
    return evaluate([row(0), *HELDOUT], tiny_base, adapter_dir, max_new_tokens=96)


def test_the_adapter_is_compared_with_its_base_on_the_same_turns(report):
    assert report["n"] == 8 and report["n_calls"] == 4 and report["tasks"] == 4
    assert report["adapter"]["heldout_loss"] < report["base"]["heldout_loss"] / 2
    loss = report["differences"]["heldout_loss"]
    assert loss["difference"] == pytest.approx(
        report["adapter"]["heldout_loss"] - report["base"]["heldout_loss"]
    )
    assert loss["low"] <= loss["difference"] <= loss["high"] < 0
    for name, interval in report["differences"].items():
        assert interval, name
        assert interval["difference"] == pytest.approx(
            report["adapter"][name] - report["base"][name]
        )
    assert report["by_tool"]["weather"]["n"] == 4
    for name in ("base", "adapter"):
        assert (
            sum(count for said in report[name]["decisions"].values() for count in said.values())
            == report["n"]
        )
        assert (
            report[name]["call_recall_interval"][0]
            <= report[name]["call_recall"]
            <= report[name]["call_recall_interval"][1]
        )
    assert report["adapter"]["decision_auc"] == 1


def test_every_turn_is_listed_with_what_was_expected_and_said(report):
    assert len(report["samples"]) == 8
    first = report["samples"][0]
    assert first["expected"] == '{"name": "weather", "arguments": {"city": "Rome", "days": 1}}'
    assert first["prompt_tail"] == "user: How is Rome for 1 days?"
    assert first["base"].keys() == first["adapter"].keys() and report["examples"]
    json.dumps(report)


def test_where_a_row_is_a_turn_the_loss_of_a_row_is_that_of_all_its_turns(
    tiny_base, adapter_dir, tmp_path
):
    """The decision's check of the loss reads them by their rows: it saw the last turn alone."""
    qwen3 = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text(
        encoding="utf-8"
    )
    renderer = load_renderer(tiny_base.path)
    tokenizer = renderer.tokenizer
    tokenizer.chat_template = qwen3
    tokenizer.save_pretrained(shutil.copytree(adapter_dir, tmp_path / "turns"))
    asked = evaluate(HELDOUT[:2], tiny_base, tmp_path / "turns", max_samples=0)
    turns = load_renderer(tmp_path / "turns")
    tokens = [
        sum(sum(turn.encoded.trained) for turn in encode_rows(turns, [each], 2048).rows)
        for each in HELDOUT[:2]
    ]
    assert [(each["row_id"], each["tokens"]) for each in asked["row_losses"]] == [
        ("row-25", tokens[0]),
        ("row-31", tokens[1]),
    ]
    for name in ("base", "adapter"):
        mean = sum(each[name] * each["tokens"] for each in asked["row_losses"]) / sum(tokens)
        assert mean == pytest.approx(asked[name]["heldout_loss"])


def test_every_row_of_an_evaluation_names_its_session_so_that_it_can_be_forgotten(report):
    assert report["row_losses"] and all(
        each["session_id"] for name in ("samples", "row_losses") for each in report[name]
    )


def test_the_same_evaluation_gives_the_same_report(report, tiny_base, adapter_dir):
    assert (
        evaluate(HELDOUT, tiny_base, adapter_dir, max_new_tokens=96)["samples"] == report["samples"]
    )


def test_adapters_that_are_evaluated_on_the_same_turns_ask_their_base_once(
    tiny_base, adapter_dir, monkeypatch
):
    asked, forward = [], TurnAnswerer.forward
    monkeypatch.setattr(
        TurnAnswerer, "forward", lambda *given: asked.append(given) or forward(*given)
    )
    store = MemoryStore()
    first, again = (
        evaluate(HELDOUT[:2], tiny_base, adapter_dir, max_samples=2, base_store=store)
        for _ in range(2)
    )
    assert len(asked) == 3 and again == first == evaluate(
        HELDOUT[:2], tiny_base, adapter_dir, max_samples=2
    )
    asked.clear()
    evaluate(HELDOUT[:2], tiny_base, adapter_dir, max_samples=3, base_store=store)
    assert len(asked) == 2


def test_without_answers_loss_and_decisions_are_those_of_all_turns(report, tiny_base, adapter_dir):
    quick = evaluate(HELDOUT, tiny_base, adapter_dir, max_samples=0)
    assert (
        quick["n"] == 0
        and quick["samples"] == []
        and quick["adapter"]["exact_call_accuracy"] is None
    )
    for name in ("heldout_loss", "decision_auc", "verified_calls"):
        assert quick["differences"][name] == report["differences"][name]


@pytest.mark.usefixtures("in_float32")
def test_the_pass_says_which_turns_plain_greedy_decoding_writes_as_expected_and_calls_are_counted(
    tiny_base, adapter_dir
):
    answering = TurnAnswerer.of(tiny_base, adapter_dir)
    questions = [answering.question(sample, 96) for sample in turn_samples(HELDOUT)[0]]
    stops = answering.renderer.answer_end_ids
    written = greedy(
        answering.model, [each.prompt for each in questions], [96] * len(questions), stops
    )
    as_written = []
    for number, (question, own) in enumerate(zip(questions, written, strict=True)):
        end = (
            question.expected[-1:] if number % 2 else []
        )  # expected is what the model writes, to its end or without it
        ids = [*question.prompt, *own.tokens, *end]
        row = Encoded(
            ids,
            [at >= len(question.prompt) for at in range(len(ids))],
            [(len(question.prompt), len(ids))],
        )
        as_written.append(replace(question, row=row))
    found = answering.forward([], as_written, [])
    assert found.verified == [
        number % 2 == 1 and not each.cut for number, each in enumerate(written)
    ] and any(found.verified)
    with answering.model.disable_adapter():
        base = answering.forward([], as_written, [])
    assert not any(base.verified)
    calls = [
        verified
        for verified, question in zip(found.verified, questions, strict=True)
        if question.sample.calls
    ]
    counted = _measure_verified_calls(as_written, {"base": base, "adapter": found})
    assert (counted.base, counted.adapter) == (0, sum(calls) / len(calls)) and len(calls) == 4


def test_no_held_out_turn_is_one_sentence(tiny_base, adapter_dir):
    with pytest.raises(DataError, match=r"no held-out turns.*collect at least 10 tasks"):
        evaluate([row(0), row(1)], tiny_base, adapter_dir)


def test_an_adapter_that_is_not_there_is_one_sentence(tiny_base, tmp_path):
    with pytest.raises(ModelError):
        evaluate(HELDOUT, tiny_base, tmp_path)


def test_sanity_questions_ask_base_and_candidate_plain_questions_with_and_without_tools(
    tiny_base, adapter_dir
):
    asked = ask_sanity_questions(tiny_base, adapter_dir, row(0)["tools"])
    assert Counter(each.group for each in asked) == {PLAIN_QUESTIONS: 64, NO_TOOL_NEEDED: 16}
    assert ask_sanity_questions(tiny_base, adapter_dir, []) == [
        each for each in asked if each.group == PLAIN_QUESTIONS
    ], "greedy answers, and none with tools without tools"


def test_no_sanity_question_is_rehearsed():
    """A rehearsed question is known by heart, so it would hide what the model forgets."""
    assert not set(sanity_questions.QUESTIONS) & set(rehearsal.QUESTIONS)


def test_sanity_questions_with_long_tools_are_asked_in_the_evaluations_length_and_never_left_out(
    tiny_base, adapter_dir
):
    (tool,) = row(0)["tools"][:1]
    long = [tool | {"function": tool["function"] | {"description": "Finds an order. " * 600}}]
    with pytest.raises(
        DataError, match=r"16 sanity questions do not fit into 2048 tokens.*evaluation\.max_length"
    ):
        ask_sanity_questions(tiny_base, adapter_dir, long)


OWN, SISTER, COUSIN, STRANGER = (
    PartitionKey(*each.split("/"))
    for each in ("shop/own", "shop/sister", "shop/cousin", "office/rooms")
)


@pytest.fixture
def lake(tmp_path):
    lake = Lake(str(tmp_path))
    for key, rows in {
        OWN: HELDOUT,
        SISTER: [row(1), *HELDOUT],
        COUSIN: [row(7, "test")],
        STRANGER: [row(9, "test")],
    }.items():
        lake.stage("sft_dataset", key, to_table(rows, SFT).to_batches(), SFT).commit()
    return lake


def test_sanity_questions_are_few_held_out_turns_of_other_partitions_of_the_same_project(lake):
    def asked(*given):
        return {
            name.split()[0]: sample.task_key
            for name, sample in choose_other_turns(lake, OWN, *given).items()
        }

    assert asked(8).keys() == {"shop/sister", "shop/cousin"} == asked(2).keys()
    assert asked(8, True).keys() == {"shop/sister", "shop/cousin", "office/rooms"}
    turns = choose_other_turns(lake, OWN, 8)
    assert len(turns) == 5 and {sample.task_key for sample in turns.values()} == {
        "task-7",
        *(each["task_key"] for each in HELDOUT),
    }
    assert turns == choose_other_turns(lake, OWN, 8) and len(choose_other_turns(lake, OWN, 3)) == 3
    assert choose_other_turns(lake, OWN, 0) == choose_other_turns(lake, STRANGER, 8) == {}
    lake.table("sft_dataset", COUSIN).write_bytes(b"damaged")
    assert asked(8).keys() == {"shop/sister"}


def test_the_task_asks_sanity_questions_in_the_length_of_the_evaluation(lake, monkeypatch):
    lengths = []
    monkeypatch.setattr(
        "agent_pipeline.promotion.sanity_questions.ask_sanity_questions",
        lambda *given: lengths.append(given[5]) or [],
    )
    monkeypatch.setattr(TaskParams, "base_of", lambda *given: BaseModel("b", Path("absent"), ""))
    params = {
        **task_values(lake.root, OWN, lake.fs.cache),
        "sanity_question_rows": 0,
        "sanity_questions_beyond_project": False,
    }
    params["adapter"] = artifact(lake, "sft_adapter", OWN).reference
    for length in (2048, 8192):
        tasks.sanity_questions.run(params | {"evaluation": {"max_length": length}})
    assert lengths == [2048, 8192]


def test_sanity_questions_show_tools_as_in_training(lake, monkeypatch):
    """The model was trained on made-up values, and was asked with the pseudonyms of the table."""
    shown = []
    monkeypatch.setattr(
        "agent_pipeline.promotion.sanity_questions.ask_sanity_questions",
        lambda *given: shown.append(given[2]) or [],
    )
    monkeypatch.setattr(TaskParams, "base_of", lambda *given: BaseModel("b", Path("absent"), ""))
    tool = {"type": "function", "function": {"name": "mail", "description": "To <EMAIL_1>."}}
    stored = {**row(1), "tools": [tool]}
    monkeypatch.setattr(tasks, "read_dataset_rows", lambda *given: iter([stored]))
    params = {
        **task_values(lake.root, OWN, lake.fs.cache),
        "sanity_question_rows": 0,
        "sanity_questions_beyond_project": False,
        "surrogates": True,
        "evaluation": {"max_length": 2048},
    }
    tasks.sanity_questions.run(params | {"adapter": artifact(lake, "sft_adapter", OWN).reference})
    [[shown_tool]] = shown
    assert "@" in shown_tool["function"]["description"]


def test_what_other_partitions_say_is_answered_and_scored_and_not_kept(
    lake, tiny_base, adapter_dir
):
    turns = choose_other_turns(lake, OWN, 8)
    asked = [
        each
        for each in ask_sanity_questions(tiny_base, adapter_dir, [], others=turns)
        if each.group in (OTHER_AGENTS_TURNS, NO_REFUSAL)
    ]
    assert Counter(each.group for each in asked) == {
        OTHER_AGENTS_TURNS: len(turns),
        NO_REFUSAL: len(turns),
    }
    assert sum(each.candidate for each in asked) > sum(each.base for each in asked), (
        "the adapter learned these tasks"
    )
    assert not any(each.base_answer or each.candidate_answer for each in asked)
    words = [
        word
        for sample in turns.values()
        for message in sample.prompt
        for word in (message["content"] or "").split()
    ]
    assert not any(word in each.question for each in asked for word in words if len(word) > 3)


@pytest.mark.parametrize(
    ("text", "plain", "no_tool"),
    [
        ("Paris.", True, True),
        ("It is Rome.", False, True),
        ("I'm sorry, I can't help with that.", False, False),
        ("Which country do you mean?", False, False),
        (
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
            False,
            False,
        ),
        ("", False, False),
    ],
)
def test_a_good_canary_answers_calls_nothing_and_refuses_nothing(text, plain, no_tool):
    question = "What is the capital of France?"
    assert (
        is_good_answer(PLAIN_QUESTIONS, question, [], text),
        is_good_answer(NO_TOOL_NEEDED, question, [], text),
    ) == (
        plain,
        no_tool,
    )


@pytest.mark.parametrize(
    ("question", "text", "good"),
    [
        ("How many days are in a week?", "A week is equal to 7 days.", True),
        ("How many days are in a week?", "A week is equal to 720 days.", False),
        ("Which animal says meow?", "Cats say it.", True),
        ("Which animal says meow?", "It depends on the location.", False),
        ("What is frozen water called?", "That is at your choice.", False),
        ("What gas do plants take in from the air?", "Carbon dioxide (CO2).", True),
    ],
)
def test_a_canary_is_good_by_whole_words_only(question, text, good):
    assert is_good_answer(PLAIN_QUESTIONS, question, [], text) == good
