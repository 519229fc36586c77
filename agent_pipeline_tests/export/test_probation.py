"""A champion that promoted itself is rolled back where newer tasks contradict it; killed at any moment there is one champion."""

from datetime import timedelta
from typing import Any

import pytest

from agent_pipeline.promotion import probation
from agent_pipeline.promotion.champions import promote
from agent_pipeline.promotion.ledger import EXPORT, open_ledger
from agent_pipeline.promotion.nightly_decision import PromotionSettings, decide_and_promote
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.probation import run_probation_check
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.export.test_deciding import (
    CALLS,
    FAIR,
    GOOD,
    KEY,
    SPLIT,
    Night,
    champion_of,
    put_tasks,
    put_uses,
)


class Probation:
    """A fair champion, and a good one that replaced it; what both say on the nights after it is `later`, champion first."""

    def __init__(
        self, lake: Lake, monkeypatch: pytest.MonkeyPatch, later: tuple[str, str], newer: int = 30
    ) -> None:
        monkeypatch.setitem(SPLIT, "later", {"split": "select", "later": True})
        self.lake, self.later, self.compared = lake, later, 0
        self.before = Night(lake, FAIR)
        promote(lake, KEY)
        self.night = Night(
            lake, GOOD, self.before.export, sessions=[f"s{number}" for number in range(20)]
        )
        put_tasks(lake, newer)

    def compare(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.compared += 1
        assert asked["watch"] and (asked["candidate"], asked["champion"]) == (
            self.night.adapter.reference,
            self.before.adapter.reference,
        )
        nights = zip(("candidate", "champion"), (self.night, self.before), self.later, strict=True)
        return {
            name: night.evaluated(night.adapter, kind, "later").identity
            for name, night, kind in nights
        } | {"same_base": True}

    def look(self, nights: int = 14) -> str | None:
        record = run_probation_check(
            self.lake, KEY, self.night.evaluation, self.compare, PromotionPolicy(), nights, "run 2"
        )
        return record.decision.outcome if record else None


@pytest.fixture
def lake(tmp_path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def contradicted(lake, monkeypatch) -> Probation:
    found = Probation(lake, monkeypatch, (CALLS, GOOD))
    found.night.decide("auto")
    assert champion_of(lake) == found.night.export.identity
    return found


def test_a_champion_that_newer_tasks_contradict_is_rolled_back_and_history_and_ledger_say_so(
    lake, contradicted
):
    assert (
        contradicted.look() == "roll back"
        and champion_of(lake) == contradicted.before.export.identity
    )
    entry, record = lake.history(EXPORT, KEY)[-1], open_ledger(lake, KEY).records()[-1]
    assert (entry.against, entry.who) == (
        contradicted.night.export.identity,
        "run 2",
    ) and "roll back" in entry.why
    assert (record.candidate, record.champion) == (
        contradicted.night.export.identity,
        contradicted.before.export.identity,
    )
    assert (
        record.decision.p_value
        <= record.decision.allowed_error
        < open_ledger(lake, KEY).records()[0].decision.allowed_error
    ), "it spends of the same budget"
    assert contradicted.look() is None and champion_of(lake) == contradicted.before.export.identity
    again = (
        contradicted.night.export,
        contradicted.before.export,
        contradicted.night.compared(),
        PromotionSettings(PromotionPolicy(), "auto", 14),
    )
    decide_and_promote(lake, KEY, *again)
    assert champion_of(lake) == contradicted.before.export.identity, (
        "the next run does not promote it again"
    )


def test_newer_tasks_by_verdicts_that_turned_contradict_no_champion(lake, contradicted):
    put_uses(lake, bad=20)
    assert contradicted.look() is None and contradicted.compared == 0
    assert champion_of(lake) == contradicted.night.export.identity
    put_uses(lake, bad=0)
    assert contradicted.look() == "roll back", "once they are mended, it is looked at again"


@pytest.mark.parametrize("step", ["compare", "ledger", "champion"])
def test_a_look_that_is_killed_leaves_one_champion_and_the_next_run_ends_it(
    lake, contradicted, monkeypatch, step
):
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if step == "compare":
            patched.setattr(contradicted, "compare", killed)
        else:
            patched.setattr(
                *{
                    "ledger": (probation, "check_probation", killed),
                    "champion": (Lake, "set_champion", killed),
                }[step]
            )
        with pytest.raises(KeyboardInterrupt):
            contradicted.look()
    assert champion_of(lake) == contradicted.night.export.identity
    # What the ledger says is carried out also after the probation.
    assert contradicted.look(nights=-1 if step == "champion" else 14) == "roll back"
    assert champion_of(lake) == contradicted.before.export.identity
    assert [each.decision.outcome for each in open_ledger(lake, KEY).records()] == [
        "promote",
        "roll back",
    ]
    history = lake.history(EXPORT, KEY)
    assert [entry.generation for entry in history] == list(range(1, len(history) + 1))


def test_a_champion_that_is_not_contradicted_stays_and_the_same_tasks_are_looked_at_once(
    lake, monkeypatch
):
    good = Probation(lake, monkeypatch, (GOOD, FAIR))
    good.night.decide("auto")
    assert (
        good.look() == "keep" and good.look() is None and len(open_ledger(lake, KEY).records()) == 2
    )
    put_tasks(lake, newer=40)
    assert good.look() == "keep" and champion_of(lake) == good.night.export.identity


def test_whom_a_person_promoted_and_whom_too_few_newer_tasks_followed_is_not_looked_at(
    lake, monkeypatch
):
    few = Probation(lake, monkeypatch, (CALLS, GOOD), newer=19)
    few.night.decide("auto")
    assert few.look() is None
    put_tasks(lake, newer=30)
    late = few.night.lake.history(EXPORT, KEY)[-1].when
    monkeypatch.setattr(
        probation, "now", lambda: str(probation.datetime.fromisoformat(late) + timedelta(days=15))
    )
    assert few.look() is None, "the probation is over"
    monkeypatch.undo()
    promote(lake, KEY, few.before.export.identity)
    promote(lake, KEY, few.night.export.identity)
    assert (
        few.look() is None and few.compared == 0 and champion_of(lake) == few.night.export.identity
    )
