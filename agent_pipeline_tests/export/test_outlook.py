"""What a person reads at the end of a run: how many held-out tasks a decision needs, and what to do next."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.datasets.ledger import read_ledger, record_tasks
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.promotion.approval import hold_back
from agent_pipeline.promotion.champions import promote
from agent_pipeline.promotion.next_steps import (
    RECENT_DAYS,
    HeldOutTasks,
    outcome_lines,
    outlook,
    share_that_suffices,
    tasks_per_day,
)
from agent_pipeline.sessions.tables import to_table
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.export.test_deciding import CALLS, FAIR, GOOD, KEY, Night
from agent_pipeline_tests.training.world import row

TODAY = datetime(2026, 11, 26, tzinfo=UTC)
SIZES = SplitSizes()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def put_tasks(lake: Lake, count: int, per_day: float = 5.0) -> None:
    """Tasks that came at a rate until today, each in the split of its hash."""
    rows = [
        row(number, SIZES.find_split(f"t{number}"))
        | {
            "row_id": f"r{number}",
            "task_key": f"t{number}",
            "created_at": TODAY - timedelta(days=number / per_day),
        }
        for number in range(count)
    ]
    lake.stage("sft_dataset", KEY, to_table(rows, SFT).to_batches(), SFT).commit()


def test_rate_counts_the_recent_days():
    ages = (1, 2, RECENT_DAYS - 1, RECENT_DAYS + 1, 200)
    days = [TODAY - timedelta(days=age) for age in ages]
    assert tasks_per_day([*days, None], TODAY) == pytest.approx(3 / RECENT_DAYS)
    recent = [TODAY - timedelta(days=age) for age in (1, 2, 4)]
    assert tasks_per_day(recent, TODAY) == pytest.approx(3 / 4), "the store is four days old"
    assert tasks_per_day(days[3:], TODAY) == tasks_per_day([], TODAY) == 0.0


@given(
    age=st.floats(0, 29),
    hours=st.lists(st.floats(0, 47), max_size=20),
)
def test_an_export_that_was_written_at_once_has_no_rate(age, hours):
    """The last lines of a run once promised "2.3 new tasks per day" for such an export."""
    first = TODAY - timedelta(days=age)
    times = [first, *(first + timedelta(hours=each) for each in hours)]
    assert tasks_per_day([each for each in times if each <= TODAY], TODAY) == 0.0


@given(st.integers(0, 300), st.integers(1, 150), st.sampled_from([0.05, 0.1, 0.2]))
def test_proposed_share_is_the_smallest_that_holds_out_enough(count, needed, select):
    names = [f"task {number}" for number in range(count)]
    share = share_that_suffices(
        HeldOutTasks(dict.fromkeys(names), set()), needed, SplitSizes(0.2, select)
    )

    def held_out(share: float) -> int:
        return sum(SplitSizes(0.2, share).find_split(name) == "select" for name in names)

    if share is None:
        assert held_out(0.5) < needed
    else:
        assert held_out(share) >= needed and share <= 0.5
        assert share - 0.05 < select - 1e-9 or held_out(round(share - 0.05, 2)) < needed


def test_outlook_names_tasks_date_and_setting(lake: Lake):
    """When a model will be promoted was never said."""
    put_tasks(lake, 200)
    decision = msgspec.structs.replace(
        Night(lake, FAIR).decide().decision, tasks=20, needed_tasks=60
    )
    said = outlook(lake, KEY, decision, SIZES, 400, TODAY)
    there = sum(SIZES.find_split(f"t{number}") == "select" for number in range(200))
    assert f"{there} of 200 tasks are held out" in said and " 60 are needed" in said
    date = (TODAY + timedelta(days=-(-(60 - there) // 0.5))).date()
    assert f"around {date}" in said and "5.0 new tasks per day" in said
    share = share_that_suffices(
        HeldOutTasks({f"t{number}": None for number in range(200)}, set()), 60, SIZES
    )
    assert (
        f"With `split.select = {share:g}`, there are enough tasks now" in said
        and "split_ledger" in said
    )


def test_setting_that_outlook_proposes_gets_there(lake: Lake):
    """A task keeps its split, so the setting alone would change nothing for today's tasks."""
    put_tasks(lake, 200)
    tasks = pa.array([f"t{number}" for number in range(200)])
    record_tasks(lake, KEY, tasks, SIZES)
    share = share_that_suffices(
        HeldOutTasks({f"t{number}": None for number in range(200)}, set()), 60, SIZES
    )
    assert share is not None
    wider = SplitSizes(0.2, share)
    assert (
        sum(
            read_ledger(lake, KEY, wider).find_split(f"t{number}") == "select"
            for number in range(200)
        )
        < 60
    )
    lake.table("split_ledger", KEY).unlink()
    assert (
        sum(
            read_ledger(lake, KEY, wider).find_split(f"t{number}") == "select"
            for number in range(200)
        )
        >= 60
    )


def test_outlook_says_when_no_setting_and_no_waiting_helps(lake: Lake):
    put_tasks(lake, 40)
    decision = msgspec.structs.replace(
        Night(lake, FAIR).decide().decision, tasks=4, needed_tasks=60
    )
    said = outlook(lake, KEY, decision, SIZES, 400, TODAY + timedelta(days=90))
    assert (
        f"No new task came in the last {RECENT_DAYS} days" in said
        and "A larger `split.select` does not help" in said
    )


def test_outlook_of_a_gain_that_was_seen(lake: Lake):
    """A model that is held for another reason does not wait for tasks."""
    put_tasks(lake, 200)
    decision = Night(lake, GOOD, unverified=1).decide().decision
    assert decision.outcome == "hold" and decision.p_value <= decision.allowed_error
    assert "enough to see a gain" in outlook(lake, KEY, decision, SIZES, 400, TODAY)


def test_outlook_names_select_turns_if_they_are_what_is_short(lake: Lake):
    put_tasks(lake, 700)
    decision = msgspec.structs.replace(
        Night(lake, FAIR).decide().decision, tasks=40, needed_tasks=60
    )
    assert "champion.select_turns` above 80" in outlook(lake, KEY, decision, SIZES, 80, TODAY)


def lines(lake: Lake) -> str:
    return "\n".join(outcome_lines(lake, KEY, SIZES, 400, TODAY))


@pytest.mark.parametrize("kind", [GOOD, FAIR, CALLS, "not decided on"])
def test_run_ends_with_what_to_do_next(lake: Lake, kind: str):
    """A run whose model was held ended green, without a word."""
    night = Night(lake, kind if kind != "not decided on" else GOOD)
    outcome = night.decide().decision.outcome if kind != "not decided on" else ""
    said = lines(lake)
    assert night.export.identity[:16] in said and "nothing is served" in said
    assert ("agent-pipeline promote shop/support" in said) == (outcome != "reject")
    assert {
        "promote": "waits for you",
        "hold": "not promoted (hold: ",
        "reject": "is rejected (",
        "": "there is no decision",
    }[outcome] in said


def test_run_whose_candidate_is_the_champion_or_was_held_by_a_person(lake: Lake):
    assert outcome_lines(lake, KEY, SIZES, 400) == []
    champion = Night(lake, FAIR)
    promote(lake, KEY)
    assert "is the champion" in lines(lake)
    Night(lake, GOOD, champion.export).decide()
    hold_back(lake, KEY)
    assert "a person holds the new model back" in lines(
        lake
    ) and f"{champion.export.identity[:16]} is still served" in lines(lake)
