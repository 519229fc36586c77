"""What follows from a decision: the ledger, the champion, and what is not spent twice."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.datasets.verdicts import count_verdicts
from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.answer_scoring import AnswerScore
from agent_pipeline.evaluation.evaluation_report import EvaluationReport, ModelFigures
from agent_pipeline.evaluation.model_comparison import compare_answers, measure_answers
from agent_pipeline.evaluation.stored_kinds import ACTING, NOT_ACTING, NOT_RECORDED, describe_kind
from agent_pipeline.evaluation.worlds import REPLAYED
from agent_pipeline.export.serving_folder import read_folder
from agent_pipeline.governance.model_list import summarize_models
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.approval import hold_back
from agent_pipeline.promotion.champions import how_to_promote, promote, rollback, serve
from agent_pipeline.promotion.comparison import (
    Comparison,
    make_compare_params,
    read_comparison,
)
from agent_pipeline.promotion.decision_facts import collect_facts_since
from agent_pipeline.promotion.decision_page import write_decision_page
from agent_pipeline.promotion.decision_wording import describe_hold, make_markdown, summarize
from agent_pipeline.promotion.episodes_in_force import DecidingWorld
from agent_pipeline.promotion.error_budget import error_of_next_decision
from agent_pipeline.promotion.ledger import (
    EXPORT,
    find_hold,
    find_last_decision,
    is_held_back,
    open_ledger,
)
from agent_pipeline.promotion.next_steps import outcome_lines
from agent_pipeline.promotion.nightly_decision import (
    CandidateDecision,
    PromotionSettings,
    decide_and_promote,
)
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.verified_verdicts import (
    count_training_verdicts,
    count_unverified_tasks,
    is_verified,
)
from agent_pipeline.reports.episode_report import count_true, find_faults, parse_episode_report
from agent_pipeline.reports.page import PAGE
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sessions.tables import to_table
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests import lakes
from agent_pipeline_tests.training.world import row

KEY = PartitionKey("shop", "support")
GOOD, FAIR, CALLS = "good", "fair", "always calls"
SPLIT = {"select": {"split": "select"}, "test": {}}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def artifact(lake: Lake, asset: str, *made: Any, **more: Any) -> Artifact:
    return lakes.artifact(lake, asset, KEY, *made, **more)


EXPORTED = {"Modelfile": "FROM ./model.gguf\n", "model.gguf": "GGUF"}
SERVED = {"ollama": {"gguf": "model.gguf", "num_ctx": 2048}}


def samples(**models: str) -> list[dict[str, Any]]:
    """Turns of 60 tasks: a fair model gets half of the calls right, a good one nearly all."""
    entries = []
    for task in range(60):
        for turn, due in enumerate((True, False)):
            expected = "call" if due else "answer"
            entry = {
                "row_id": f"r{task}",
                "session_id": f"s{task}",
                "task_key": f"t{task}",
                "turn_index": turn,
                "prompt_tail": "user: Where?",
            }
            entry |= {
                "expected": f"{expected} {task}",
                "expected_class": expected,
                "expected_tool": "find" if due else None,
            }
            for name, kind in models.items():
                called = due or kind == CALLS
                right = (kind != FAIR or task % 2 == 0) if due else not called
                call = right if due else None
                scored = AnswerScore(
                    expected,
                    "call" if called else "answer",
                    called,
                    right,
                    *[call] * 4,
                    None if due else right,
                    False,
                    False,
                )
                entry |= {name: asdict(scored) | {"right": right, "call_probability": None}}
                entry[f"{name}_answer"] = entry["expected"] if right else f"{name} errs"
            entries.append(entry)
    return entries


def report_on(entries: list[dict[str, Any]]) -> EvaluationReport:
    tasks = [each["task_key"] for each in entries]
    scored = [
        [
            AnswerScore(**{field.name: each[model][field.name] for field in fields(AnswerScore)})
            for each in entries
        ]
        for model in ("base", "adapter")
    ]
    models = [
        ModelFigures(heldout_loss=1.0, **msgspec.structs.asdict(measure_answers(tasks, scores)))
        for scores in scored
    ]
    return EvaluationReport(
        base=models[0], adapter=models[1], differences=compare_answers(tasks, *scored)
    )


OWN_WORLD = DecidingWorld("w:W")


class Night:
    """A candidate of a kind beside a champion of another, as far as the decision."""

    def __init__(
        self,
        lake: Lake,
        kind: str,
        champion: Artifact | None = None,
        sessions: Sequence[str] = (),
        played: bool = True,
        unverified: int = 0,
        unmeasured: int = 0,
    ) -> None:
        self.lake, self.champion = lake, champion
        made_from = {
            "name": kind,
            "number": len(lake.history("sft_adapter", KEY)),
            "base_model": "b",
            "base_revision": "",
        }
        verdicts = count_verdicts(
            {"label": 8 - unverified, "unverified": unverified} if unverified else {"label": 8}
        )
        made_from |= {"sessions": sessions, "config": {"lora_r": 8}}
        self.adapter = artifact(lake, "sft_adapter", made_from, report={"verdicts": verdicts})
        self.evaluation = self.evaluated(self.adapter, kind, "test")
        self.export = artifact(lake, EXPORT, {"adapter": self.adapter.identity}, EXPORTED, SERVED)
        self.result: dict[str, Any] = {
            "candidate": self.evaluated(self.adapter, kind, "select").identity,
            "same_base": True,
        }
        self.result |= dict.fromkeys(
            ("champion", "champion_on_test", "champion_episodes", "sanity_questions")
        )
        if champion:
            adapter = lake.find("sft_adapter", KEY, champion.manifest["made_from"]["adapter"])
            assert adapter
            name = adapter.manifest["made_from"]["name"]
            self.result["champion"] = self.evaluated(adapter, name, "select").identity
            self.result["champion_on_test"] = self.evaluated(adapter, name, "test").identity
            self.result["champion_episodes"] = (
                self.played(champion, adapter, "rival", unmeasured=unmeasured).identity
                if played
                else None
            )
        if played:
            self.played(self.export, self.adapter, unmeasured=unmeasured)
        lake.set_latest(self.evaluation)

    def evaluated(self, adapter: Artifact, kind: str, split: str) -> Artifact:
        losses = [
            {"row_id": f"r{i}", "task_key": f"t{i}", "tokens": 9, "base": 1.0, "adapter": 0.5}
            for i in range(60)
        ]
        entries = samples(base=FAIR, adapter=kind)
        files = {"samples.json": json.dumps(entries), "row_losses.json": json.dumps(losses)}
        made_from = {
            "adapter": adapter.identity,
            "config": SPLIT[split],
            "sessions": [f"s{task}" for task in range(60)],
        }
        return artifact(
            self.lake, "evaluation", made_from, files, msgspec.to_builtins(report_on(entries))
        )

    def played(
        self,
        export: Artifact,
        adapter: Artifact,
        by: str = "",
        harmed: int = 0,
        cut: int = 0,
        unmeasured: int = 0,
        **more: Any,
    ) -> Artifact:
        """Eighty episodes of an export and of its base, of which the export harms in some, and some of its answers are cut off.

        In the last `unmeasured` episodes, the world does not tell whether there was harm.
        """
        lines = [
            {
                "player": player,
                "task_key": f"t{i}",
                "trial": 0,
                "seed": None,
                "done": True,
                "wrong_changes": ["x"] * (i < count) if i < 80 - unmeasured else None,
            }
            | {
                "end": "cut off" if i < cut else "answered",
                "messages": [],
                "complaint": "an end of a line: \u2028",
            }
            for player, count in (("model", harmed), ("base", 0))
            for i in range(80)
        ]
        players = {
            name: dict.fromkeys(["must_act", "must_not"])
            | {
                "done": count_true([True] * 80),
                "harm": count_true([i < count for i in range(80)]),
                "ends": {"cut off": cut},
                "kinds": {},
            }
            | {"harm_where_no_change_was_due": None, "pass_hat": {}, "turns": 2.0, "tokens": 9}
            for name, count in (("model", harmed), ("base", 0))
        }
        text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        made_from = {
            "adapter": adapter.identity,
            EXPORT: export.identity,
            "world": "w:W",
            "config": {},
            **more,
        }
        players = msgspec.to_builtins(players)
        faults = find_faults(parse_episode_report({"players": players}))
        report = {"players": players, "against": faults}
        identity = hash_json(["episodes", made_from, by, harmed, cut, unmeasured])
        return artifact(
            self.lake, "episodes", made_from, {"episodes.jsonl": text + "\n"}, report, identity
        )

    def compared(self, world: DecidingWorld = OWN_WORLD) -> Comparison:
        return read_comparison(self.lake, KEY, self.evaluation, self.export, self.result, world)

    def decide(self, approve: Any = "person", world: DecidingWorld = OWN_WORLD) -> Any:
        return decide_and_promote(
            self.lake,
            KEY,
            self.export,
            self.champion,
            self.compared(world),
            PromotionSettings(PromotionPolicy(), approve, 14),
            "run 1",
        )


def put_uses(lake: Lake, bad: int) -> None:
    """Thirty sessions, of which the first are judged bad."""
    table = pa.Table.from_pylist(
        [
            {"session_id": f"s{number}", "use": "negative" if number < bad else "positive"}
            for number in range(30)
        ]
    )
    lake.stage("curated_sessions", KEY, table.to_batches(), table.schema).commit()


def champion_of(lake: Lake) -> str | None:
    return lake.pointers(EXPORT, KEY).champion


def test_a_winner_waits_for_a_person(lake: Lake) -> None:
    night = Night(lake, GOOD)
    record = night.decide("person")
    assert record.decision.outcome == "promote" and champion_of(lake) is None
    promote(lake, KEY)
    assert champion_of(lake) == night.export.identity


def test_a_winner_becomes_the_champion_by_itself_where_nobody_has_to_approve(lake: Lake) -> None:
    first = Night(lake, FAIR)
    promote(lake, KEY)
    night = Night(lake, GOOD, first.export)
    record = night.decide("auto")
    entry = lake.pointers(EXPORT, KEY)
    assert (entry.champion, entry.against, entry.who) == (
        night.export.identity,
        first.export.identity,
        "run 1",
    )
    assert entry.why == summarize(record.decision) and record.champion == first.export.identity
    assert record.test and "gain" in make_markdown(record.decision, record.test, "champion")


def test_only_a_winner_is_promoted(lake: Lake) -> None:
    good = Night(lake, GOOD)
    promote(lake, KEY)
    for kind, outcome in ((FAIR, "reject"), (CALLS, "reject"), (GOOD, "hold")):
        assert Night(lake, kind, good.export).decide("auto").decision.outcome == outcome
    assert champion_of(lake) == good.export.identity


@pytest.mark.parametrize(
    ("bad", "outcome"), [(0, "promote"), (4, "promote"), (5, "hold"), (20, "hold")]
)
def test_a_win_by_verdicts_that_turned_against_the_champions_own_sessions_waits_for_a_person(
    lake: Lake, bad: int, outcome: str
) -> None:
    first = Night(lake, FAIR, sessions=[f"s{number}" for number in range(20)])
    promote(lake, KEY)
    put_uses(lake, bad)
    night = Night(lake, GOOD, first.export)
    assert night.decide("auto").decision.outcome == outcome
    assert champion_of(lake) == (night if outcome == "promote" else first).export.identity


def test_a_repeated_run_decides_nothing_anew_and_ends_what_a_killed_one_began(lake: Lake) -> None:
    night = Night(lake, GOOD)
    first = night.decide("person")  # the ledger is written, the champion did not move
    assert night.decide("auto") == first and len(open_ledger(lake, KEY).records()) == 1
    assert champion_of(lake) == night.export.identity


def test_each_decision_spends_its_part_of_the_years_budget(lake: Lake) -> None:
    good = Night(lake, GOOD)
    promote(lake, KEY)
    errors = [Night(lake, FAIR, good.export).decide().decision.allowed_error for _ in range(3)]
    assert errors == [error_of_next_decision(number, 0.05) for number in range(3)]
    assert [record.number for record in open_ledger(lake, KEY).records()] == [1, 2, 3]


def test_a_new_year_has_a_budget_of_its_own(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Night(lake, GOOD)
    promote(lake, KEY)
    errors = []
    for day in ("2025-12-30", "2025-12-31", "2026-01-01"):
        monkeypatch.setattr(
            "agent_pipeline.promotion.nightly_decision.now", lambda day=day: f"{day}T02:00:00+00:00"
        )
        errors.append(Night(lake, FAIR, good.export).decide().decision.allowed_error)
    assert errors == [
        error_of_next_decision(0, 0.05),
        error_of_next_decision(1, 0.05),
        error_of_next_decision(0, 0.05),
    ]


def test_what_a_person_holds_back_is_not_promoted_by_itself(lake: Lake) -> None:
    night = Night(lake, GOOD)
    night.decide("person")
    hold_back(lake, KEY, why="a bad feeling")
    assert night.decide("auto").decision.outcome == "promote" and champion_of(lake) is None
    assert "a bad feeling" in describe_hold(lake, KEY, night.export.identity)


def ask(night: Night, *answers: dict[str, Any]) -> None:
    """Give a night these answers to sanity questions."""
    questions = [
        {"question": "other/agent r1:0", "group": "canary: x", "base": True, "candidate": True}
        | answer
        for answer in answers
    ]
    night.result["sanity_questions"] = artifact(
        night.lake, "canaries", {"asked": questions}, {"canaries.json": json.dumps(questions)}
    ).identity


def put_unverified_tasks(lake: Lake, count: int) -> None:
    """Twenty rows of the split `select`, of which the first are not verified."""
    rows = [
        row(task, "select")
        | {"row_id": f"r{task}", "task_key": f"t{task}"}
        | {"verdict_by": "unverified" if task < count else "label"}
        for task in range(20)
    ]
    lake.stage("sft_dataset", KEY, to_table(rows, SFT).to_batches(), SFT).commit()


def test_other_words_of_sanity_questions_are_not_decided_again(lake: Lake) -> None:
    night = Night(lake, GOOD)
    for answer in (
        {},
        {"question": "other/agent r2:0"},
        {"base_answer": "a text "},
        {"candidate_answer": "a text "},
    ):
        ask(night, answer)
        night.decide()
    assert len(open_ledger(lake, KEY).records()) == 1


def test_reviewing_sessions_does_not_lower_the_chance_of_promotion(lake: Lake) -> None:
    """Each review made a decision that was stricter, for one unchanged test."""
    Night(lake, FAIR).decide()
    night = Night(lake, GOOD)
    for count in (20, 15, 10, 5, 0):
        put_unverified_tasks(lake, count)
        night.decide()
    reviewed = open_ledger(lake, KEY).records()[1:]
    assert [entry.decision.outcome for entry in reviewed] == ["hold"] * 4 + ["promote"]
    assert {entry.decision.allowed_error for entry in reviewed} == {error_of_next_decision(1, 0.05)}
    assert Night(lake, FAIR).decide().decision.allowed_error == error_of_next_decision(2, 0.05)


def test_win_stays_a_win_when_other_facts_change(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gain's p-value was below the first error, and above the second one."""
    monkeypatch.setattr("agent_pipeline.evaluation.paired.sign_flip", lambda values: 0.0089)
    night = Night(lake, GOOD)
    outcomes = []
    for count in (1, 2):
        ask(night, *[{"question": str(number)} for number in range(count)])
        outcomes.append(night.decide().decision.outcome)
    assert outcomes == ["promote"] * 2 and len(open_ledger(lake, KEY).records()) == 2


@pytest.mark.parametrize("is_same", [True, False])
def test_entry_of_an_older_version_with_the_same_p_value(lake: Lake, is_same: bool) -> None:
    """The first decision after an upgrade is not stricter, because its test is not new."""
    night = Night(lake, GOOD)
    decided = night.decide()
    older_lake = Lake(f"{lake.root}/older")
    older_night = Night(older_lake, GOOD)
    p_value = decided.decision.p_value + (0 if is_same else 1e-9)
    older = msgspec.structs.replace(
        decided,
        evaluator="older",
        tested_scores="",
        decision=msgspec.structs.replace(decided.decision, p_value=p_value),
    )
    assert older.candidate == older_night.export.identity
    for number in (1, 2):
        open_ledger(older_lake, KEY).append(
            lambda _, number=number: msgspec.structs.replace(older, number=number)
        )
    expected = error_of_next_decision(0 if is_same else 2, 0.05)
    assert older_night.decide().decision.allowed_error == expected
    later = Night(older_lake, FAIR).decide().decision.allowed_error
    assert later == error_of_next_decision(2 if is_same else 3, 0.05)


@pytest.mark.parametrize("approve", ["auto", "person"])
def test_hold_of_a_person_stays_when_inputs_change(
    lake: Lake, approve: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next decision hid the hold, and said that the model waits to be promoted."""
    clock = itertools.count()
    for module in ("promotion.approval", "promotion.nightly_decision", "storage.pointers"):
        monkeypatch.setattr(
            f"agent_pipeline.{module}.now", lambda: f"2026-01-01T00:00:{next(clock):02}+00:00"
        )
    night = Night(lake, GOOD)
    assert night.decide("person").decision.outcome == "promote"
    assert summarize_models(lake, KEY, lake.pointers(EXPORT, KEY)).waits
    hold_back(lake, KEY, why="tone")
    ask(night, {})
    held = night.decide(approve)
    assert open_ledger(lake, KEY).records()[-1].decision.outcome == "promote"
    hold = describe_hold(lake, KEY, night.export.identity)
    decided = CandidateDecision(held, night.evaluation, champion_of(lake), hold)
    summary = summarize_models(lake, KEY, lake.pointers(EXPORT, KEY))
    assert "tone" in summary.reason and champion_of(lake) is None
    assert not decided.waits_for_a_person and not summary.waits
    assert summary.held and summary.decision == "promote"
    assert find_last_decision(lake, KEY, night.export.identity) == held
    promote(lake, KEY)
    assert find_hold(lake, KEY, night.export.identity) is None
    last = find_last_decision(lake, KEY, night.export.identity)
    assert last is not None and last.decision.outcome == "promote"
    hold_back(lake, KEY, why="again")
    assert is_held_back(lake, KEY, night.export.identity)


@pytest.mark.parametrize("is_champion", [True, False])
def test_promote_lifts_a_hold(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, is_champion: bool
) -> None:
    """A hold and a promotion may be in the same second, and the export may be the champion."""
    for module in ("promotion.approval", "promotion.ledger", "storage.pointers"):
        monkeypatch.setattr(f"agent_pipeline.{module}.now", lambda: "2026-01-01T00:00:00+00:00")
    night = Night(lake, GOOD)
    if is_champion:
        promote(lake, KEY)
    hold_back(lake, KEY)
    assert is_held_back(lake, KEY, night.export.identity)
    promote(lake, KEY)
    assert not is_held_back(lake, KEY, night.export.identity)
    hold_back(lake, KEY)
    assert is_held_back(lake, KEY, night.export.identity)


def test_rejection_of_a_held_export(lake: Lake) -> None:
    """The hold hid that the next decision rejected the export for harm."""
    night = Night(lake, GOOD)
    night.decide("person")
    hold_back(lake, KEY, why="tone")
    night.played(night.export, night.adapter, "again", harmed=40)
    entry = night.decide("auto")
    assert entry.decision.outcome == "reject" and entry.decision.figures
    assert entry == find_last_decision(lake, KEY, night.export.identity)
    for text in (how_to_promote(lake, KEY), outcome_lines(lake, KEY, SplitSizes(), 400)[0]):
        assert "reject" in text and "tone" in text
    summary = summarize_models(lake, KEY, lake.pointers(EXPORT, KEY))
    assert (summary.decision, summary.held, summary.waits) == ("reject", True, False)
    page = write_decision_page(lake, KEY, night.export, None, night.compared(), entry)
    text = (page.path / PAGE).read_text(encoding="utf-8")
    assert page.manifest["report"] == {"decision": "reject", "number": entry.number}
    assert "tone" in text
    promote(lake, KEY)
    lifted = write_decision_page(lake, KEY, night.export, None, night.compared(), entry)
    assert "tone" not in (lifted.path / PAGE).read_text(encoding="utf-8")


def put_tasks(lake: Lake, newer: int) -> None:
    """The rows of the split `select`, of which the last tasks have only sessions of tomorrow."""
    day = timedelta(days=1)
    rows = [
        row(task, "select")
        | {"row_id": f"r{task}-{trial}", "task_key": f"t{task}", "created_at": when}
        for task in range(60)
        for trial, when in enumerate(
            [datetime.now(UTC) + (day if task >= 60 - newer else -day), datetime.now(UTC) + day]
        )
    ]
    rows.append(row(61, "select") | {"created_at": None})
    lake.stage("sft_dataset", KEY, to_table(rows, SFT).to_batches(), SFT).commit()


def test_a_win_is_confirmed_on_the_tasks_whose_sessions_began_after_the_champion_was_trained(
    lake: Lake,
) -> None:
    first = Night(lake, FAIR)
    promote(lake, KEY)
    assert collect_facts_since(lake, KEY, first.export).newer_tasks == set()
    put_tasks(lake, newer=25)
    assert collect_facts_since(lake, KEY, first.export).newer_tasks == {
        f"t{task}" for task in range(35, 60)
    }
    decision = Night(lake, GOOD, first.export).decide().decision
    assert decision.outcome == "promote" and "confirmed" in {
        reason.kind for reason in decision.reasons
    }


def test_a_rollback_is_not_undone_by_the_next_run(lake: Lake) -> None:
    first = Night(lake, FAIR)
    promote(lake, KEY)
    night = Night(lake, GOOD, first.export)
    night.decide("auto")
    rollback(lake, KEY, why="a complaint")
    assert (
        night.decide("auto").decision.outcome == "promote"
        and champion_of(lake) == first.export.identity
    )


def test_what_was_held_back_before_any_decision_is_decided_on_and_not_promoted_by_itself(
    lake: Lake,
) -> None:
    night = Night(lake, GOOD)
    hold_back(lake, KEY)
    assert find_last_decision(lake, KEY, night.export.identity) == find_hold(
        lake, KEY, night.export.identity
    )
    assert night.decide("auto").decision.outcome == "promote" and champion_of(lake) is None
    assert open_ledger(lake, KEY).records()[-1].decision.outcome == "promote"
    assert serve(lake, KEY).champion is None


def test_a_win_over_another_champion_does_not_count(lake: Lake) -> None:
    good, fair = Night(lake, GOOD), Night(lake, FAIR)
    night, again = (Night(lake, GOOD, champion.export) for champion in (good, fair))
    again.export, again.adapter, again.evaluation = night.export, night.adapter, night.evaluation
    again.result["candidate"] = night.result["candidate"]
    for champion, each, outcome in ((good, night, "hold"), (fair, again, "promote")):
        promote(lake, KEY, champion.export.identity)
        assert each.decide("person").decision.outcome == outcome
    promote(lake, KEY, good.export.identity)
    assert (
        night.decide("auto").decision.outcome == "hold"
        and champion_of(lake) == good.export.identity
    )


def test_a_champion_that_moves_while_the_models_are_scored_ends_the_run(lake: Lake) -> None:
    night = Night(lake, GOOD)
    promote(lake, KEY, night.export.identity)
    with pytest.raises(DataError):
        night.decide("auto")


def test_without_tasks_to_decide_on_nothing_is_decided(lake: Lake) -> None:
    night = Night(lake, GOOD)
    night.result["candidate"] = None
    decision = night.decide("auto").decision
    assert (
        decision.outcome == "cannot decide"
        and decision.more_tasks > 0
        and champion_of(lake) is None
    )


def test_scores_of_another_evaluator_end_the_run(lake: Lake) -> None:
    first = Night(lake, FAIR)
    promote(lake, KEY)
    night = Night(lake, GOOD, first.export)
    night.result["champion"] = night.result["champion_on_test"]
    with pytest.raises(DataError):
        night.decide("auto")


def test_the_champion_is_scored_as_the_candidate_was_and_plays_its_episodes(lake: Lake) -> None:
    first = Night(lake, FAIR)
    promote(lake, KEY)
    night = Night(lake, GOOD, first.export)
    made_from = {
        "adapter": night.adapter.identity,
        EXPORT: night.export.identity,
        "world": "w:W",
        "config": {"trials": 1},
    }
    artifact(lake, "episodes", made_from, report={"against": []})
    asked = make_compare_params(lake, KEY, night.evaluation, night.export, first.export, OWN_WORLD)
    assert (asked["candidate"], asked["champion"]) == (
        night.adapter.reference,
        first.adapter.reference,
    )
    assert asked["play"] == {
        "world": "w:W",
        "config": {"trials": 1},
        EXPORT: first.export.reference,
        "alone": False,
        "held_out": "test",
        "preconditions": {},
        "task_kinds": [],
    }
    assert asked["evaluation"] == night.evaluation.manifest["made_from"]["config"]


def test_without_episodes_of_its_own_in_the_agents_world_a_candidate_is_not_compared(
    lake: Lake,
) -> None:
    first = Night(lake, FAIR, played=False)
    artifact(
        lake,
        "episodes",
        {
            "adapter": first.adapter.identity,
            EXPORT: first.export.identity,
            "world": "w:W",
            "config": {},
        },
    )
    make_compare_params(lake, KEY, first.evaluation, first.export, None, OWN_WORLD)
    night = Night(lake, GOOD, played=False)
    for world, of in (("w:W", night), ("w:Other", first)):
        with pytest.raises(DataError):
            make_compare_params(lake, KEY, of.evaluation, of.export, None, DecidingWorld(world))
    artifact(
        lake,
        "episodes",
        {"adapter": night.adapter.identity, EXPORT: None, "world": "w:W", "config": {}},
    )
    with pytest.raises(DataError, match="has no episodes"):  # its adapter in memory did
        make_compare_params(lake, KEY, night.evaluation, night.export, None, OWN_WORLD)


@pytest.mark.parametrize(
    ("harmed", "cut", "outcome"),
    [(5, 0, "reject"), (2, 0, "hold"), (0, 10, "hold"), (0, 0, "promote")],
)
def test_harm_in_a_first_candidates_episodes_or_harm_unseen_keeps_it_from_acting_until_a_person_promotes_it(
    lake: Lake, harmed: int, cut: int, outcome: str
) -> None:
    night = Night(lake, GOOD)
    report = night.played(night.export, night.adapter, harmed=harmed, cut=cut).manifest["report"]
    decision = night.decide("auto").decision
    assert decision.outcome == outcome and bool(harmed or cut) == bool(report["against"])
    assert champion_of(lake) == (None if harmed or cut else night.export.identity)
    assert bool(serve(lake, KEY).champion) == (not harmed and not cut)
    promote(lake, KEY, why="I have seen it")
    served = serve(lake, KEY, deciding_world=OWN_WORLD)
    assert served.champion == night.export and set(report["against"]) <= set(served.unfit)


def test_episodes_whose_transcripts_were_forgotten_end_the_run_with_a_sentence(lake: Lake) -> None:
    night = Night(lake, GOOD)
    artifact(
        lake,
        "episodes",
        {"adapter": night.adapter.identity, EXPORT: night.export.identity, "world": "w:W"},
        report={"against": []},
    )
    with pytest.raises(DataError, match="forgotten"):
        night.decide()


def test_a_candidate_that_lost_a_canary_waits_for_a_person(lake: Lake) -> None:
    night = Night(lake, GOOD)
    asked = [
        {"question": str(i), "group": "canary: plain questions", "base": True, "candidate": i > 5}
        for i in range(16)
    ]
    night.result["sanity_questions"] = artifact(
        lake, "canaries", {"adapter": "x"}, {"canaries.json": json.dumps(asked)}
    ).identity
    decision = night.decide("auto").decision
    assert decision.outcome == "hold" and "canary: plain questions" in {
        reason.name for reason in decision.reasons
    }
    assert champion_of(lake) is None


def test_other_sanity_questions_make_another_decision(lake: Lake) -> None:
    """A decision with 16 questions stood after there were 64, which saw what the model forgot."""
    night = Night(lake, GOOD)
    outcomes = []
    for count in (16, 64, 64):
        answers = [
            {"question": str(i), "group": "plain", "base": True, "candidate": i < 16}
            for i in range(count)
        ]
        night.result["sanity_questions"] = artifact(
            lake, "canaries", {"count": count}, {"canaries.json": json.dumps(answers)}
        ).identity
        outcomes.append(night.decide().decision.outcome)
    assert outcomes == ["promote", "hold", "hold"]
    assert len(open_ledger(lake, KEY).records()) == 2


def test_a_first_export_that_was_rejected_is_not_served(lake: Lake) -> None:
    night = Night(lake, CALLS)
    assert night.decide("auto").decision.outcome == "reject"
    assert serve(lake, KEY).champion is None
    Night(lake, GOOD)
    promote(lake, KEY, night.export.identity, why="I know better")
    known = serve(lake, KEY)
    assert known.champion == night.export and known.unfit == [
        summarize(open_ledger(lake, KEY).records()[0].decision)
    ]


def test_what_was_rejected_stays_unfit_when_a_person_holds_it_back(lake: Lake) -> None:
    night = Night(lake, CALLS)
    night.decide("auto")
    hold_back(lake, KEY)
    promote(lake, KEY)
    assert len(serve(lake, KEY).unfit) == 1


FIRST_OUTCOMES = {
    GOOD: "promote",
    FAIR: "hold",
    CALLS: "reject",
    "nothing to decide on": "cannot decide",
    "not decided on": None,
}


@pytest.mark.parametrize("with_champion", [False, True])
@pytest.mark.parametrize("played", [True, False], ids=["played in a world", "has no world"])
@pytest.mark.parametrize("approve", ["auto", "person"])
@pytest.mark.parametrize("kind", FIRST_OUTCOMES)
def test_served_after_each_outcome(
    lake: Lake, kind: str, approve: str, played: bool, with_champion: bool
) -> None:
    """A first export was served unasked, whatever the decision said. Only a champion is served."""
    champion = None
    if with_champion:
        champion = Night(lake, FAIR, played=played).export
        promote(lake, KEY)
        serve(lake, KEY)
    night = Night(lake, kind if kind in (GOOD, FAIR, CALLS) else GOOD, champion, played=played)
    if kind == "nothing to decide on":
        night.result |= {"candidate": None, "champion": None}
    expected = FIRST_OUTCOMES[kind]
    if expected:
        decision = night.decide(approve).decision
        assert decision.outcome == expected
        assert (expected == "promote" and not played) == (
            "no world" in {reason.kind for reason in decision.reasons}
        )
        assert played or expected != "promote" or "agent-pipeline promote" in summarize(decision)
    by_itself = expected == "promote" and approve == "auto" and played
    should_be = night.export if by_itself else champion
    served = serve(lake, KEY)
    assert served.champion == should_be and read_folder(lake, KEY).identity == (
        should_be.identity[:16] if should_be else ""
    )
    assert read_folder(lake, KEY).files == bool(should_be)
    assert should_be or "agent-pipeline promote shop/support" in served.messages[0]


@pytest.mark.parametrize("with_champion", [False, True])
@pytest.mark.parametrize("unmeasured", [80, 1])
def test_harm_not_measured(lake: Lake, unmeasured: int, with_champion: bool) -> None:
    """A candidate whose world does not tell harm wins, and waits for a person with a reason."""
    champion = None
    if with_champion:
        champion = Night(lake, FAIR).export
        promote(lake, KEY)
    night = Night(lake, GOOD, champion, unmeasured=unmeasured)
    decision = night.decide("auto").decision
    assert decision.outcome == "promote"
    reasons = [reason for reason in decision.reasons if reason.kind == "harm not measured"]
    assert [(reason.candidate, reason.limit) for reason in reasons] == [(unmeasured, 80)]
    assert champion_of(lake) == (champion.identity if champion else None)
    promote(lake, KEY)
    assert champion_of(lake) == night.export.identity


@pytest.mark.parametrize("not_played", [{}, {ACTING: 7, NOT_RECORDED: 1}])
def test_tasks_not_played(lake: Lake, not_played: dict[str, int]) -> None:
    """All played episodes are free of harm. Nobody knows what it does in the other tasks."""
    night = Night(lake, GOOD, played=False)
    night.played(night.export, night.adapter, not_played=not_played)
    decision = night.decide("auto").decision
    assert decision.outcome == "promote"
    reasons = [reason for reason in decision.reasons if reason.kind == "tasks not played"]
    assert {reason.name: reason.candidate for reason in reasons} == not_played
    assert ("7 held-out tasks" in summarize(decision)) == bool(not_played)
    assert (describe_kind(ACTING) in summarize(decision)) == bool(not_played)
    assert champion_of(lake) == (None if not_played else night.export.identity)


@pytest.mark.parametrize("with_champion", [False, True])
@pytest.mark.parametrize(
    ("world", "is_used"),
    [
        (DecidingWorld(REPLAYED, (ACTING,)), True),
        (DecidingWorld(REPLAYED, (ACTING, NOT_ACTING)), False),
        (DecidingWorld(REPLAYED), False),
        (DecidingWorld(REPLAYED, (ACTING,), world_sha256="new"), False),
        (DecidingWorld(), False),
    ],
)
def test_episodes_of_another_night(
    lake: Lake, world: DecidingWorld, is_used: bool, with_champion: bool
) -> None:
    """Episodes whose proof does not hold any more decide nothing: a person does.

    If the replayed world has changed and its proof holds, the candidate has to play again.
    """
    champion = None
    if with_champion:
        champion = Night(lake, FAIR, played=False).export
        promote(lake, KEY)
    night = Night(lake, GOOD, champion, played=False)
    replayed = {
        "world": REPLAYED,
        "task_kinds": [ACTING],
        "not_played": {},
        "world_sha256": "old",
    }
    night.played(night.export, night.adapter, **replayed)
    if world.world and not is_used:
        with pytest.raises(DataError, match="episodes"):
            make_compare_params(lake, KEY, night.evaluation, night.export, champion, world)
    else:
        params = make_compare_params(lake, KEY, night.evaluation, night.export, champion, world)
        assert bool(params["play"]) == (is_used and with_champion)
    if champion and is_used:
        rival = night.played(champion, night.adapter, "rival", **replayed)
        night.result["champion_episodes"] = rival.identity
    decision = night.decide("auto", world).decision
    assert decision.outcome == "promote"
    assert ("no world" in {reason.kind for reason in decision.reasons}) != is_used
    assert (champion_of(lake) == night.export.identity) == is_used


@pytest.mark.parametrize("approve", ["auto", "person"])
def test_model_of_unverified_sessions_waits_for_a_person(lake: Lake, approve: str) -> None:
    """A model that was trained on failures looked good on failures that were held out."""
    night = Night(lake, GOOD, unverified=3)
    record = night.decide(approve)
    assert (
        record.decision.outcome == "hold"
        and champion_of(lake) is None
        and serve(lake, KEY).champion is None
    )
    assert record.verdicts == {"verdicts": 8, "verified": 5, "by": {"label": 5, "unverified": 3}}
    assert record.verdicts == open_ledger(lake, KEY).records()[-1].verdicts


@pytest.mark.parametrize(
    ("judge", "use", "verified"),
    [
        ("label", "positive", True),
        ("measures", "positive", False),
        (None, "positive", False),
        ("measures", "negative", True),
    ],
)
def test_verdicts_of_an_older_adapter_are_looked_up(
    lake: Lake, judge: str | None, use: str, verified: bool
) -> None:
    """Adapters of older versions do not say who judged their sessions."""
    made_from = {"name": GOOD, "sessions": ["s1"]}
    adapter = artifact(lake, "sft_adapter", made_from)
    export = artifact(lake, EXPORT, {"adapter": adapter.identity})
    assert not is_verified(count_training_verdicts(lake, KEY, export))
    table = pa.Table.from_pylist([{"session_id": "s1", "verdict_by": judge, "use": use}])
    schema = pa.schema([(name, pa.string()) for name in table.schema.names])
    lake.stage("curated_sessions", KEY, table.cast(schema).to_batches(), schema).commit()
    assert is_verified(count_training_verdicts(lake, KEY, export)) == verified


def test_held_out_tasks_that_nobody_verified_are_counted(lake: Lake) -> None:
    judges = {"a": "label", "b": "unverified", "c": "llm"}
    rows = [
        row(i, "select") | {"row_id": task, "task_key": task, "verdict_by": by}
        for i, (task, by) in enumerate(judges.items())
    ]
    rows.append(row(9, "train") | {"row_id": "d", "task_key": "d", "verdict_by": "unverified"})
    lake.stage("sft_dataset", KEY, to_table(rows, SFT).to_batches(), SFT).commit()
    assert count_unverified_tasks(lake, KEY) == 1
