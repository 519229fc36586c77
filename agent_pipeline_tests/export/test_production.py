"""The comparison of the champion with the agent that it replaces, in the sessions of production."""

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.governance.forgetting import forget
from agent_pipeline.promotion.decision import Decision
from agent_pipeline.promotion.ledger import EXPORT, LedgerEntry, open_ledger
from agent_pipeline.promotion.own_models import OwnModels
from agent_pipeline.promotion.probation import is_first_self_promotion, roll_back_worse_champion
from agent_pipeline.promotion.production import (
    ASSET,
    PAIRS_FILE,
    ProductionOptions,
    ProductionReport,
    measure_production,
    read_production_report,
)
from agent_pipeline.promotion.production_page import (
    describe_comparison,
    describe_limits,
    describe_report,
    make_production_page,
)
from agent_pipeline.promotion.production_pairs import (
    WeeklyTask,
    extend_pairs,
    list_drops,
)
from agent_pipeline.reports.page import render
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.lakes import artifact
from agent_pipeline_tests.pages.sites import KEY, judged_row, put_judged

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
OWN = "openai/shop/support"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def promote_export(lake: Lake, name: str) -> Artifact:
    """Make a new export the champion, as a person does."""
    export = artifact(lake, EXPORT, KEY, {"adapter": f"{name:0<16}"})
    lake.set_champion(export)
    return export


def row(name: str, model: str | None, good: bool | None, day: float, **fields: Any) -> dict:
    """A session that begins `day` days after now, judged by a judge unless `verdict_by` is given."""
    verdict = None if good is None else ("acceptable" if good else "unacceptable")
    return judged_row(
        name,
        MESSAGES,
        model_id=model,
        created_at=datetime.now(UTC) + timedelta(days=day, seconds=5),
        task_key=fields.pop("task_key", f"task {name}"),
        verdict=verdict,
        verdict_by=fields.pop("verdict_by", None if good is None else "llm"),
        **fields,
    )


def many(model: str, good: int, bad: int, first_day: float, prefix: str) -> list[dict]:
    """Sessions of one model, the good and the bad ones mixed evenly."""
    total = good + bad
    return [
        row(f"{prefix}{index}", model, index * bad % total >= bad, first_day + index / total)
        for index in range(total)
    ]


def measure(lake: Lake, **options: Any) -> ProductionReport:
    made = measure_production(lake, KEY, OwnModels(lake), ProductionOptions(**options))
    lake.set_latest(made)
    return read_production_report(made)


def read_pairs(lake: Lake) -> list[dict[str, Any]]:
    pairs: list[dict[str, Any]] = json.loads(lake.latest(ASSET, KEY).read(PAIRS_FILE))
    return pairs


def test_figures(lake: Lake) -> None:
    promote_export(lake, "a")
    usage = {"prompt_tokens": 1000, "completion_tokens": 100}
    put_judged(
        lake,
        [
            row("old 1", "gpt-5", True, -2, usage=usage, verdict_by="label"),
            row("old 2", "gpt-5", False, -2, usage=usage),
            row("old 3", "gpt-5", None, -2, error="timeout"),
            row("new 1", OWN, True, 1, context={"answering_models": ["gpt-5", OWN]}),
            row("new 2", OWN, True, 1, verdict_by="unverified"),
            row("played-x-1", "champion", True, 1),
            row("other", None, True, 1),
            row("timeless", "gpt-5", True, 1) | {"created_at": None},
            row("gone", "gpt-5", True, 1, archived=True),
        ],
    )
    report = measure(lake, input_price=2.0, output_price=10.0, serving_price=30.0)
    totals = {total.server: total for total in report.totals}
    assert set(totals) == {"champion", "agent"}
    agent, champion = totals["agent"], totals["champion"]
    assert (agent.sessions, agent.with_help, champion.sessions, champion.with_help) == (3, 0, 2, 1)
    assert (agent.good.value, agent.good.count, agent.good_by_people.count) == (0.5, 2, 1)
    assert agent.failed.value == pytest.approx(1 / 3)
    assert agent.cost_usd.value == pytest.approx(0.003)
    assert champion.good.count == 1, "an unverified session is not judged"
    assert champion.cost_usd.value == pytest.approx(30 * 7 / 30 / 2)
    assert (report.without_time, report.without_model) == (1, 1)
    assert any("2 of the 5 sessions" in sentence for sentence in describe_limits(report))
    assert [week.server for week in report.weeks] == ["champion", "agent"]


def test_refused_turns(lake: Lake) -> None:
    """A session for which a gateway chose the champion is the champion's, whoever answered."""
    promote_export(lake, "a")
    put_judged(
        lake,
        [
            row("old", "gpt-5", True, -2),
            row("refused", "gpt-5", False, 1, context={"chosen_model": OWN}),
        ],
    )
    report = measure(lake)
    agent, champion = sorted(report.totals, key=lambda total: total.server)
    assert (agent.sessions, champion.sessions, champion.with_help) == (1, 1, 1)
    assert champion.good.value == 0


def test_worse_champion(lake: Lake) -> None:
    promote_export(lake, "a")
    sessions = many("gpt-5", 570, 30, -20, "old ") + many(OWN, 120, 80, 1, "new ")
    put_judged(lake, sessions)
    report = measure(lake)
    (comparison,) = report.worse_than
    assert comparison.rival == "agent" and comparison.pairs == 200
    assert comparison.drop.low is not None and 0 < comparison.drop.low < 0.35
    assert "worse than the agent" in describe_report(report)
    assert "was shown to be worse after" in describe_comparison(comparison)
    assert "60.0 %" in render(make_production_page(lake, KEY, report))


def test_equal_champion(lake: Lake) -> None:
    promote_export(lake, "a")
    put_judged(lake, many("gpt-5", 180, 20, -20, "old ") + many(OWN, 90, 10, 1, "new "))
    report = measure(lake)
    assert report.comparisons[0].pairs == 100 and not report.worse_than
    assert "at most" in describe_comparison(report.comparisons[0])


def test_nothing_to_compare(lake: Lake) -> None:
    put_judged(lake, many("gpt-5", 5, 0, -2, "old "))
    report = measure(lake)
    assert not report.comparisons and report.totals[0].sessions == 5
    assert describe_report(report) == "No model of this agent is served yet."
    promote_export(lake, "a")
    report = measure(lake)
    assert not report.worse_than and "not known" in describe_report(report)
    render(make_production_page(lake, KEY, report))


def test_same_tasks(lake: Lake) -> None:
    """Hard tasks went to the champion only: the same tasks are paired with each other."""
    promote_export(lake, "a")
    tasks = [f"t{number}" for number in range(40)]
    old = [row(f"old {task}", "gpt-5", task > "t2", -3, task_key=task) for task in tasks]
    easy = many("gpt-5", 400, 0, -3, "easy ")
    new = [row(f"new {task}", OWN, task > "t2", 1, task_key=task) for task in tasks]
    put_judged(lake, old + easy + new)
    report = measure(lake)
    same = report.comparisons[0].same_tasks
    assert same is not None and same.difference.count == 40 and same.difference.value == 0
    assert report.comparisons[0].drop.value == 0
    assert report.comparisons[0].rival_share.value == pytest.approx(1 - 13 / 440)


def test_previous_champion(lake: Lake) -> None:
    """Sessions under the agent's name belong to the export that was served at that time."""
    before = promote_export(lake, "a")
    named = f"adapter-{before.identity[:16]}.gguf"
    put_judged(lake, [*many(named, 50, 0, 1, "before "), *many(OWN, 10, 40, 2, "new ")])
    promote_export(lake, "b")
    report = measure(lake)
    totals = {total.server: total.sessions for total in report.totals}
    assert totals == {"previous champion": 50, "champion": 50}
    assert [comparison.rival for comparison in report.worse_than] == ["previous champion"]
    assert {comparison.allowed_error for comparison in report.comparisons} == {0.025}


def test_pairs_stay(lake: Lake) -> None:
    """Sessions that are judged late are appended, and a corrected verdict counts as corrected."""
    promote_export(lake, "a")
    old = many("gpt-5", 50, 0, -20, "old ")
    new = [row(f"new {day}", OWN, True, day) for day in range(1, 9)]
    late = new[2] | {"verdict": None, "verdict_by": None}
    put_judged(lake, [*old, *new[:2], late, *new[3:6]])
    measure(lake)
    (first,) = read_pairs(lake)
    put_judged(lake, [*old, *new])
    measure(lake)
    (second,) = read_pairs(lake)
    assert len(first["pairs"]) == 5 and len(second["pairs"]) == 8
    assert second["pairs"][:5] == first["pairs"]
    corrected = new[0] | {"verdict": "unacceptable", "verdict_by": "label"}
    put_judged(lake, [*old, corrected, *new[1:]])
    assert measure(lake).comparisons[0].drop.value == pytest.approx(1 / 8)
    assert measure(lake) == measure(lake), "nothing new changes nothing"


def test_forgotten_session(lake: Lake) -> None:
    promote_export(lake, "a")
    sessions = many("gpt-5", 50, 0, -20, "old ") + many(OWN, 20, 0, 1, "new ")
    put_judged(lake, sessions)
    measure(lake)
    report = forget(lake, "new 3")
    assert not report.to_retrain, "its model was measured, and not trained on it"
    assert '"new 3"' not in lake.latest(ASSET, KEY).read(PAIRS_FILE).decode()
    assert len(read_pairs(lake)[0]["pairs"]) == 20, "the other pairs stay"
    assert measure(lake).comparisons[0].pairs == 19


def test_damaged_pairs(lake: Lake) -> None:
    promote_export(lake, "a")
    put_judged(lake, many("gpt-5", 50, 0, -20, "old ") + many(OWN, 20, 0, 1, "new "))
    measure(lake)
    (lake.latest(ASSET, KEY).path / PAIRS_FILE).write_text("[]", encoding="utf-8")
    report = measure(lake)
    assert report.notes and report.comparisons[0].pairs == 20


WEEKLY = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])),
    max_size=25,
    unique_by=lambda drawn: drawn[:2],
)


def make_tasks(drawn: Iterable[tuple[int, int, float]], name: str) -> list[WeeklyTask]:
    monday = date(2026, 11, 2)
    return [
        WeeklyTask(f"t{task}", monday + timedelta(weeks=week), [f"{name}{task}-{week}"], share)
        for task, week, share in drawn
    ]


@given(WEEKLY, WEEKLY, st.integers(0, 25))
@settings(max_examples=60, deadline=None)
def test_pairing(champion: list, rival: list, known: int) -> None:
    """Every task of a week is used at most once, verdicts change nothing, earlier pairs stay."""
    own, others = make_tasks(champion, "c"), make_tasks(rival, "r")
    earlier = extend_pairs([], own[:known], others)
    pairs = extend_pairs(earlier, own, others)
    assert pairs[: len(earlier)] == earlier
    used = [name for pair in pairs for name in pair.sessions]
    assert len(used) == len(set(used))
    turned = [WeeklyTask(t.task_key, t.week, t.sessions, 1 - t.share) for t in own]
    assert extend_pairs(earlier, turned, others) == pairs
    drops = list_drops(pairs, own, others)
    assert len(drops) == len(pairs) and all(-1 <= drop <= 1 for drop in drops)
    if own and others:
        assert pairs, "what can be compared is compared"


def promote_by_decision(lake: Lake) -> tuple[Artifact, Artifact]:
    """A champion that a decision promoted, and the champion before it."""
    before = artifact(lake, EXPORT, KEY, {"adapter": "a" * 16})
    lake.set_champion(before)
    export = artifact(lake, EXPORT, KEY, {"adapter": "b" * 16})
    promoted = Decision(
        outcome="promote", p_value=0.001, allowed_error=0.01, more_tasks=0, figures=(), reasons=()
    )
    open_ledger(lake, KEY).append(
        lambda number: LedgerEntry(
            number=number,
            when="2026-11-01T00:00:00+00:00",
            who="run 1",
            candidate=export.identity,
            champion=before.identity,
            evaluator="e",
            decision=promoted,
        )
    )
    lake.set_champion(export, who="run 1")
    return export, before


def test_first_champion(lake: Lake) -> None:
    """Only a first champion that a decision promoted loses its traffic: a person's does not."""
    export = artifact(lake, EXPORT, KEY, {"adapter": "a" * 16})
    assert not is_first_self_promotion(lake, KEY)
    promoted = Decision(
        outcome="promote", p_value=0.001, allowed_error=0.01, more_tasks=0, figures=(), reasons=()
    )

    def make_entry(number: int) -> LedgerEntry:
        return LedgerEntry(
            number=number,
            when="2026-11-01T00:00:00+00:00",
            who="run 1",
            candidate=export.identity,
            champion=None,
            evaluator="e",
            decision=promoted,
        )

    open_ledger(lake, KEY).append(make_entry)
    lake.set_champion(export, who="run 1")
    assert is_first_self_promotion(lake, KEY)
    promote_export(lake, "b")
    assert not is_first_self_promotion(lake, KEY)


def test_rollback(lake: Lake) -> None:
    """A champion that a decision promoted is rolled back, once, also after a killed run."""
    _, before = promote_by_decision(lake)
    put_judged(lake, many("gpt-5", 570, 30, -20, "old ") + many(OWN, 120, 80, 1, "new "))
    report = measure(lake)
    entry = roll_back_worse_champion(lake, KEY, report, "run 2")
    assert entry is not None and entry.decision.outcome == "roll back"
    assert lake.pointers(EXPORT, KEY).champion == before.identity
    assert "in production" in lake.history(EXPORT, KEY)[-1].why
    assert roll_back_worse_champion(lake, KEY, report, "run 3") is None


def test_rollback_of_a_killed_run(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was killed after the ledger was written is completed, without a second entry."""
    _, before = promote_by_decision(lake)
    put_judged(lake, many("gpt-5", 570, 30, -20, "old ") + many(OWN, 120, 80, 1, "new "))
    report = measure(lake)
    with monkeypatch.context() as patch:
        patch.setattr(
            lake, "set_champion", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            roll_back_worse_champion(lake, KEY, report, "run 2")
    entries = len(open_ledger(lake, KEY).records())
    roll_back_worse_champion(lake, KEY, report, "run 3")
    assert lake.pointers(EXPORT, KEY).champion == before.identity
    assert len(open_ledger(lake, KEY).records()) == entries


def test_no_rollback(lake: Lake) -> None:
    """A person's promotion is not undone, and neither is that of a champion that is no worse."""
    promote_export(lake, "a")
    export = promote_export(lake, "b")
    put_judged(lake, many("gpt-5", 570, 30, -20, "old ") + many(OWN, 120, 80, 1, "new "))
    report = measure(lake)
    assert report.worse_than and roll_back_worse_champion(lake, KEY, report, "run 2") is None
    assert lake.pointers(EXPORT, KEY).champion == export.identity
