"""A hundred real airline conversations, in both stores, against the file that they were made from."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.datasets.preferences import pair_sessions
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Message, Session
from agent_pipeline.sources import open_source

AIRLINE = PartitionKey("tau", "airline")
OPTIONS = ReadingOptions(
    task_pattern=r"task(\d+)-trial\d+", redaction=RedactionOptions(enabled=False)
)  # word for word


@pytest.fixture(scope="module")
def airline(real_traces: Path) -> list[Session]:
    return list(
        read_sessions(open_source(real_traces / "stores" / "omniagents_home"), AIRLINE, OPTIONS)
    )


@pytest.fixture(scope="module")
def played(real_traces: Path) -> dict[str, dict[str, Any]]:
    runs = json.loads(
        (real_traces / "tau-bench" / "gpt-4o-airline_tasks00-24.json").read_text(encoding="utf-8")
    )
    return {f"task{run['task_id']:03d}-trial{run['trial']}": run for run in runs}


def plain(messages: list[Message]) -> list[tuple[Any, ...]]:
    """A chat without system prompt, empty messages and call ids: what was said, called and answered, in order."""
    lines: list[tuple[Any, ...]] = []
    for message in messages:
        text = message.get("content") or ""
        if message["role"] == "tool":
            lines.append(("tool", text))
        elif message["role"] != "system":
            lines += [(message["role"], text)] if text.strip() else []
            lines += [
                ("call", call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in message.get("tool_calls") or ()
            ]
    return lines


def test_a_hundred_sessions_of_25_tasks_are_read_and_94_are_judged(airline):
    assert len(airline) == 100
    assert Counter(session.judgment for session in airline) == {
        "acceptable": 30,
        "unacceptable": 64,
        None: 6,
    }
    assert set(Counter(session.task_key for session in airline).values()) == {4}
    assert len({SplitSizes().find_split(session.task_key) for session in airline}) == 3


def test_no_call_is_mispaired_though_ids_are_used_again(airline, played):
    for session in airline:
        theirs = plain(played[session.session_id]["traj"])
        ours = plain(session.messages)
        # The replay ended where the agent did: without the user's last word, or with a placeholder where a tool had the last word. Six
        # conversations it cut short, the last call's result being its own; they have no verdict.
        if ours[-1] == ("assistant", "(end)"):
            assert theirs[len(ours) - 2][0] == "tool"
            ours.pop()
        if session.judgment is None:
            ours, theirs = ours[:-2], theirs[: len(ours) - 2]
        assert ours == theirs[: len(ours)] and len(theirs) - len(ours) <= 1, session.session_id
        assert not set(session.damage) - {"reused_call_id", "trailing_user", "trailing_tool"}, (
            session.session_id
        )
    assert sum(session.damage.get("reused_call_id", 0) for session in airline) > 0
    calls = sum(
        len(message.get("tool_calls", ())) for session in airline for message in session.messages
    )
    results = sum(message["role"] == "tool" for session in airline for message in session.messages)
    assert calls == results > 500


def test_ids_are_unique_and_each_result_follows_its_own_call(airline):
    for session in airline:
        ids = [call["id"] for message in session.messages for call in message.get("tool_calls", ())]
        assert len(set(ids)) == len(ids)
        assert [
            message["tool_call_id"] for message in session.messages if message["role"] == "tool"
        ] == ids


def test_verdicts_are_those_of_the_benchmark(airline, played):
    for session in airline:
        if session.judgment:
            assert session.judgment == (
                "acceptable" if played[session.session_id]["reward"] == 1 else "unacceptable"
            )


def test_the_agents_sdk_file_gives_the_same_conversations(airline, real_traces):
    source = open_source(real_traces / "stores" / "openai_agents_sessions.db")
    found = list(read_sessions(source, source.partitions()[0], OPTIONS))
    assert [(session.session_id, session.task_key, session.messages) for session in found] == [
        (session.session_id, session.task_key, session.messages) for session in airline
    ]
    assert [session.judgment for session in found] == [session.judgment for session in airline], (
        "verdicts lie beside the file"
    )


def test_the_trace_export_of_the_same_runs_has_the_same_calls_results_and_verdicts_without_the_words(
    airline, real_traces
):
    source = open_source(real_traces / "stores" / "openai_agents_traces.jsonl")
    found = list(read_sessions(source, source.partitions()[0], OPTIONS))
    assert [str(key) for key in source.partitions()] == ["tau-airline/airline_agent"]
    assert [(session.session_id, session.judgment) for session in found] == [
        (session.session_id, session.judgment) for session in airline
    ]
    for theirs, ours in zip(airline, found, strict=True):
        assert plain(ours.messages) == [
            line for line in plain(theirs.messages) if line[0] in ("call", "tool")
        ]
        assert (ours.task_id, ours.trial) == (str(int(ours.session_id[4:7])), ours.session_id[-1])
        assert ours.skipped, (
            "that the words were not recorded is counted, also where nothing else was recorded"
        )
    assert sum(session.usage["input_tokens"] for session in found) == 1365


def test_trials_whose_users_began_differently_are_no_pairs_and_are_counted(airline):
    good, bad = (
        [session for session in airline if session.judgment == judgment]
        for judgment in ("acceptable", "unacceptable")
    )
    counts: Counter[str] = Counter()
    assert not list(pair_sessions(good, bad, SplitSizes(), counts))
    assert counts["sessions_without_a_partner"] == 94
    assert (
        counts["no_partner_with_the_same_prompt"]
        + counts["no_negative_of_the_task"]
        + counts["no_positive_of_the_task"]
        == 94
    )
