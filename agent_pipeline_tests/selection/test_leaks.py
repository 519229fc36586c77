"""Trials of one task in several splits, although nobody names their tasks."""

import re
from pathlib import Path

import pytest

from agent_pipeline.datasets.build import build_sft
from agent_pipeline.datasets.sft_tables import read_sft_columns
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.judging import JudgingRun
from agent_pipeline.judging.curation import CurationBounds
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.tables import curate_sessions, judge_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.selection.leaks import find_leaks, refuse_leaks
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import SESSIONS, make_session_row, to_batches
from agent_pipeline.sources import open_source
from agent_pipeline.storage.lake import Lake

AIRLINE, KEY = PartitionKey("tau", "airline"), PartitionKey("p", "a")


def dataset(folder: Path, key: PartitionKey, sessions: list[Session]) -> Lake:
    """A lake in which all sessions are SFT rows, whoever judged them."""
    lake = Lake(str(folder))
    lake.stage(
        "sessions", key, to_batches(map(make_session_row, sessions), SESSIONS), SESSIONS
    ).commit()
    judge_sessions(
        lake,
        key,
        JudgingRun.from_options(JudgingOptions(decided_by=["label"], when_unjudged="acceptable")),
    ).commit()
    curate_sessions(lake, key, [], CurationBounds(), []).table.commit()
    build_sft(lake, key, SplitSizes())
    return lake


def airline(real_traces: Path, pattern: str) -> list[Session]:
    options = ReadingOptions(task_pattern=pattern, redaction=RedactionOptions(enabled=False))
    return list(
        read_sessions(open_source(real_traces / "stores" / "omniagents_home"), AIRLINE, options)
    )


def test_trials_in_several_splits_are_refused_with_the_line_that_ends_it(real_traces, tmp_path):
    """Of real sessions without `task_pattern`, nearly every held-out one had another trial of its task in train."""
    lake = dataset(tmp_path / "without", AIRLINE, airline(real_traces, ""))
    found = find_leaks(lake, AIRLINE)
    assert len(found.leaks) > 0.8 * found.held_out > 10
    with pytest.raises(DataError, match=r"split\.leaks") as error:
        refuse_leaks(lake, AIRLINE)
    pattern = re.search(r"task_pattern = '(.*)'", str(error.value))[1]
    assert '[agents."tau/airline"]' in str(error.value)
    named = dataset(tmp_path / "with", AIRLINE, airline(real_traces, pattern))
    assert find_leaks(named, AIRLINE).leaks == []
    refuse_leaks(named, AIRLINE)


def talk(name: str, asked: str, task_key: str) -> Session:
    texts = ("user", asked), ("assistant", f"Answer to {name}.")
    messages = [{"role": role, "content": text} for role, text in texts]
    return Session(
        session_id=name, project="p", agent="a", source="test", messages=messages, task_key=task_key
    )


WORDS = "please book the flight from oslo to rome for two adults and a child on the first day of may with one bag and a window seat"


def test_unnamed_tasks_that_ask_nearly_the_same_are_in_one_split(tmp_path):
    """Trials that differ in a word or two were tasks of their own, and lay in all splits."""
    sessions = [
        talk(f"{name}x", f"{WORDS} {name}", f"text:{name}") for name in "abcdefghijklmnopqrstuvw"
    ]
    lake = dataset(tmp_path, KEY, sessions)
    assert len(set(read_sft_columns(lake, KEY, ["split"])["split"].to_pylist())) == 1
    refuse_leaks(lake, KEY)


def test_named_tasks_stay_where_their_hash_puts_them(tmp_path):
    sessions = [
        talk(f"{name}x", f"{WORDS} {name}", f"task {name}") for name in "abcdefghijklmnopqrstuvw"
    ]
    lake = dataset(tmp_path, KEY, sessions)
    rows = read_sft_columns(lake, KEY, ["task_key", "split"]).to_pylist()
    assert {row["task_key"]: row["split"] for row in rows} == {
        each.task_key: SplitSizes().find_split(each.task_key) for each in sessions
    }
    refuse_leaks(lake, KEY)


def test_different_requests_are_no_leaks(tmp_path):
    sessions = [
        talk(
            f"session-{number}",
            f"{' '.join(str(number * 7 + each) for each in range(9))}",
            f"text:{number}",
        )
        for number in range(40)
    ]
    lake = dataset(tmp_path, KEY, sessions)
    assert find_leaks(lake, KEY).leaks == []
