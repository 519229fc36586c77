"""Distillation: evaluation runs that passed, as a data set."""

from collections import Counter
from types import SimpleNamespace

import pytest

from agent_pipeline.compat.omniagents.distillation import DISTILLATION, eval_results_to_sft_dataset
from agent_pipeline.datasets.ledger import Ledger
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.reading import find_task_key
from agent_pipeline.sessions.session import Session

HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is the spade? Mail jane.doe@example.com"},
    {"type": "function_call", "name": "find", "arguments": '{"what": "spade"}', "call_id": "c1"},
    {"type": "function_call_output", "call_id": "c1", "output": {"place": "shed"}},
    {"role": "assistant", "content": "In the shed.", "type": "message"},
    {"role": "user", "content": "Bye"},
]


def result(passed, history=HISTORY, **more):
    return {"passed": passed, "history": history, **more}


def test_what_passed_teaches_and_what_did_not_is_counted() -> None:
    counts: Counter[str] = Counter()
    found = [
        result(True, task_id="t1", model="big", id="r1"),
        result(False),
        result(None),
        result(True, history=[]),
        result(True, history=HISTORY[:3]),
        result(True, error="gone"),
    ]
    made = eval_results_to_sft_dataset(
        {"results": found}, teacher="other", student="small", counts=counts
    )
    assert made.column_names == DISTILLATION.names and made.num_rows == 1
    row = made[0]
    assert (row["session_id"], row["task_key"], row["teacher"], row["student"]) == (
        "r1",
        "t1",
        "big",
        "small",
    )
    assert [message["role"] for message in row["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert set(row["messages"][0]) == {"role", "content"}, "no key is filled with null"
    assert row["messages"][2]["tool_calls"][0]["function"] == {
        "name": "find",
        "arguments": '{"what": "spade"}',
    }
    assert row["messages"][3]["content"] == '{"place": "shed"}' and "jane.doe" not in str(row)
    assert counts == {
        "results": 6,
        "rows": 1,
        "not_passed": 1,
        "passed_unknown": 1,
        "no_assistant_message": 1,
        "broken:unanswered_call": 1,
        "infrastructure_error": 1,
    }


def test_results_may_be_objects_and_name_their_model_together() -> None:
    results = SimpleNamespace(results=[SimpleNamespace(passed=True, history=HISTORY)], model="big")
    assert eval_results_to_sft_dataset(results)[0]["teacher"] == "big"
    (row,) = eval_results_to_sft_dataset([result(True)])
    assert row["teacher"] is None and row["student"] is None, "nobody said"


def test_system_and_calls_can_be_left_out() -> None:
    (row,) = eval_results_to_sft_dataset(
        [result(True)], include_system=False, include_tool_calls=False
    )
    assert [(message["role"], set(message)) for message in row["messages"]] == [
        ("user", {"role", "content"}),
        ("assistant", {"role", "content"}),
    ]


def test_a_predicate_chooses_and_one_that_raises_costs_its_own_result() -> None:
    counts: Counter[str] = Counter()
    made = eval_results_to_sft_dataset(
        [result(True, rank=1), result(True, rank=9), result(True), result(False, rank=0)],
        filter_passed=False,
        filter_fn=lambda each: each["rank"] < 5,
        counts=counts,
    )
    assert made.num_rows == 2
    assert counts == {"results": 4, "rows": 2, "filtered": 1, "filter_raised: KeyError: 'rank'": 1}


def test_a_task_that_the_students_ledger_holds_out_is_held_out_here_whatever_its_hash_says() -> (
    None
):
    asked = find_task_key(
        Session(
            session_id="s", project="p", agent="a", source="x", messages=[HISTORY[0], HISTORY[1]]
        ),
        None,
        "",
    )
    for sides in (("test", "train", "select"), ("train", "test", "train")):
        ledger = Ledger.from_splits(
            SplitSizes(), dict(zip(("t1", "t2", asked), sides, strict=True))
        )
        made = eval_results_to_sft_dataset(
            [result(True, task_id="t1"), result(True, task_id="t2"), result(True)], split=ledger
        )
        assert made.column_names == [*DISTILLATION.names, "split"] and tuple(made["split"]) == sides


def test_nothing_to_learn_is_an_error_that_says_why() -> None:
    with pytest.raises(DataError, match=r"\(not_passed 1, results 1\)"):
        eval_results_to_sft_dataset([result(False)])
    with pytest.raises(DataError, match="there are no results"):
        eval_results_to_sft_dataset([])
    with pytest.raises(DataError, match="contain no list `results`"):
        eval_results_to_sft_dataset({"passed": True})
