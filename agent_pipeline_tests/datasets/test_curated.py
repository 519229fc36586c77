"""Curated sessions as data sets read them: the rows that sessions in memory would give, whatever the order of the table."""

import subprocess
import sys
import tracemalloc
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from agent_pipeline.datasets.curated import CURATED_TABLE, CuratedSessions
from agent_pipeline.datasets.kto import make_kto_rows
from agent_pipeline.datasets.preferences import (
    TRIALS_IN_MEMORY,
    TaskTrials,
    pair_sessions,
    pair_trials,
)
from agent_pipeline.datasets.sft import SFT, make_sft_rows
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import (
    CURATED,
    make_session_row,
    read_batches,
    to_batches,
    to_rows,
    to_table,
)
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.datasets.chats import calls, chats, kto_rows, rows_of, says, session, user

KEY = PartitionKey("p", "a")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

Decided = list[tuple[Session, str | None]]


def stored(lake: Lake, decided: Decided, **fields) -> CuratedSessions:
    """A lake's curated sessions, each with the reason why it was dropped."""
    rows = [
        make_session_row(each)
        | {"kept": reason is None, "drop_reason": reason, "verdict_score": each.score}
        | _use(reason)
        | fields
        for each, reason in decided
    ]
    lake.stage(CURATED_TABLE, KEY, to_batches(rows, CURATED, size=3), CURATED).commit()
    return CuratedSessions.open(lake, KEY, SplitSizes())


def _use(reason: str | None) -> dict:
    return {
        "use": {None: "positive", "unacceptable": "negative"}.get(reason, "neither"),
        "missed_measures": [],
    }


REASONS = st.sampled_from([None, None, "unacceptable", "measure", "unjudged", "broken"])


@st.composite
def decided(draw: st.DrawFn) -> Decided:
    """Sessions of a few tasks, judged and not, some of them forks of others."""
    made: Decided = []
    for number in range(draw(st.integers(0, 9))):
        fields = {
            "task_key": draw(st.sampled_from("tuv")),
            "score": draw(st.sampled_from([None, 0.0, 0.5, 1.0])),
        }
        if made and draw(st.integers(0, 5)) == 0:
            fields["parent_session_id"] = draw(st.sampled_from(made))[0].session_id
        made.append(
            (
                session(
                    f"s{number}", draw(chats()), created_at=NOON + timedelta(hours=number), **fields
                ),
                draw(REASONS),
            )
        )
    return made


NUMBERS = count()


@given(decided(), st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_rows_are_those_of_sessions_in_memory_whatever_the_order_of_the_table(
    tmp_path_factory, everyone, order
):
    lake = Lake(str(tmp_path_factory.getbasetemp() / f"lake{next(NUMBERS)}"))
    found = stored(lake, everyone)
    tasks = {
        each.session_id: found.root_tasks.get(each.session_id, each.task_key)
        for each, _ in everyone
    }
    memory = [
        (structs.replace(each, task_key=tasks[each.session_id]), reason)
        for each, reason in everyone
    ]
    good = [each for each, reason in memory if reason is None]
    bad = [each for each, reason in memory if reason == "unacceptable"]
    shuffled = list(everyone)
    order.shuffle(shuffled)
    for table in (everyone, shuffled):
        found = stored(lake, table)
        counts: tuple[Counter[str], ...] = (Counter(), Counter())
        assert list(pair_trials(found.read_trials(counts[0]), SplitSizes(), counts[0])) == list(
            pair_sessions(good, bad, SplitSizes(), counts[1])
        )
        # Where all of a task are good, or bad, nothing is compared: only that no partner was found is counted.
        assert counts[0] == counts[1]
        assert list(make_kto_rows(found.read_labelled(), SplitSizes())) == list(
            kto_rows(good, bad, SplitSizes())
        )
        rows = to_table(make_sft_rows(found.read_kept(), SplitSizes()), SFT)
        assert rows.equals(to_table(make_sft_rows(rows_of(*good), SplitSizes()), SFT))
    assert not [
        path for path in Path(lake.root.path).rglob(".*") if path.is_file() and path.name != ".lock"
    ], "the store of rows left a file"


@pytest.mark.parametrize("facts", [(), ("repeated_call",)])
def test_rows_of_a_table_and_of_memory_are_the_same_whatever_the_text(tmp_path, facts):
    traps = [
        says("x"),
        says('"role":"assistant"}]'),
        user('"role":"assistant"}]'),
        calls(("1", "f", {"x": '"role":"assistant"}]'})),
        says("ü\n\\"),
        {"role": "assistant", "content": "", "weight": 0},
    ]
    sessions = [
        session(f"s{number}", [user("x"), says("y"), last], score=0.5, created_at=NOON)
        for number, last in enumerate(traps)
    ]
    found = stored(Lake(str(tmp_path)), [(each, None) for each in sessions])
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    table = to_table(make_sft_rows(found.read_kept(), SplitSizes(), counts[0], facts), SFT)
    assert table.equals(
        to_table(make_sft_rows(rows_of(*sessions), SplitSizes(), counts[1], facts), SFT)
    )
    assert counts[0] == counts[1] and counts[0]["trailing_messages_cut"] == 2
    rows = list(to_rows(table))
    assert {(row["score"], row["created_at"]) for row in rows} == {(0.5, NOON)}
    assert [len(row["messages"]) for row in rows] == [3, 3, 2, 3, 3, 2], (
        "what follows the last trained message is cut"
    )


def test_a_case_of_more_trials_than_memory_should_hold_is_read_a_few_at_a_time():
    alive = Counter()

    class Watched(Session):
        def __del__(self) -> None:
            alive["now"] -= 1

    def trial(side: str, number: int):
        def read() -> Session:
            alive["now"] += 1
            alive["most"] = max(alive["most"], alive["now"])
            messages = [user("x"), says(f"{side} {number % 5}")]
            return Watched(
                session_id=f"{side}{number:04d}",
                project="p",
                agent="a",
                source="test",
                messages=messages,
                task_key="t",
            )

        return read

    good, bad = ([trial(side, number) for number in range(2000)] for side in "gb")
    counts: Counter[str] = Counter()
    tracemalloc.start()
    rows = list(pair_trials([TaskTrials("t", good, bad)], SplitSizes(), counts))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows) == 8 and alive["most"] <= TRIALS_IN_MEMORY + 2
    assert counts["pairings_over_the_limit"] == (2000 - 8) ** 2 and peak < 8 << 20, (
        "four million pairings are not held in memory"
    )


def test_a_stored_table_is_read_a_row_group_at_a_time(tmp_path):
    found = stored(
        Lake(str(tmp_path)),
        [(session(f"s{number}", [user("x"), says("y")]), None) for number in range(10)],
    )
    file = found.lake.open(CURATED_TABLE, KEY)
    assert [batch.num_rows for batch in read_batches(file, ["session_id"])] == [3, 3, 3, 1]


def test_data_sets_are_built_and_read_without_pandas(tmp_path):
    lake = Lake(tmp_path / "lake", tmp_path / "cache")
    trials = [
        session(str(number), [user("hello"), says(f"answer {number}")], task_key="greet")
        for number in range(4)
    ]
    stored(
        lake, [(each, None if number % 2 else "unacceptable") for number, each in enumerate(trials)]
    )
    program = f"""
import sys
from agent_pipeline.datasets.build import build_kto, build_preferences, build_sft
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.storage.lake import Lake
lake, key = Lake({str(lake.root)!r}, {str(tmp_path / "cache")!r}), PartitionKey(*{tuple(KEY)!r})
for build in (build_sft, build_preferences, build_kto):
    build(lake, key, SplitSizes()).table.commit()
list(read_dataset_rows(lake, key))
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
