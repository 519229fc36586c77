"""The decision on a partition's candidate, and what follows from it.

A decision is written into the ledger before the champion moves, so that a run that is killed between the two spends nothing twice.
"""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.episodes import UNSEEN
from agent_pipeline.evaluation.evaluate import ROW_LOSSES, SAMPLES
from agent_pipeline.evaluation.scores import (
    Canary,
    Decision,
    Facts,
    Played,
    Policy,
    Reason,
    RowLoss,
    Scores,
    TurnScore,
)
from agent_pipeline.ingestion.volume import MIN_COUNT_TO_COMPARE
from agent_pipeline.judging.decisions import SessionUse
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import export_named, own_episodes
from agent_pipeline.promotion.ledger import (
    EXPORT,
    Record,
    is_held,
    last_decision,
    ledger,
    spent_in_year,
)
from agent_pipeline.promotion.report import summary
from agent_pipeline.promotion.rules import decide
from agent_pipeline.promotion.sanity_questions import FILE as CANARIES
from agent_pipeline.promotion.verification import (
    is_verified,
    unverified_held_out_tasks,
    verdicts_on_training,
)
from agent_pipeline.reports.episode_report import TRANSCRIPTS, does_less, unended
from agent_pipeline.selection.tables import DATASET, read_dataset_rows
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sessions.tables import read_batches
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.pointers import now, user_name
from agent_pipeline.training.chain import find_trained_adapters

USES = pa.schema([("session_id", pa.string()), ("use", pa.string())])
Approve = Literal["auto", "person"]
Pair = tuple[Artifact | None, Artifact | None]


class Comparison(msgspec.Struct, frozen=True):
    """What a decision is made from, each as a pair of the candidate's and the champion's: evaluations on the splits `select` and `test`,
    and episodes. Without a champion its part is `None`, and the rival is the base model. `same_base`: both were trained from one base."""

    select: Pair
    test: Pair
    episodes: Pair
    canaries: tuple[Canary, ...] = ()
    same_base: bool = True


def to_compare(
    lake: Lake,
    key: PartitionKey,
    evaluation: Artifact,
    candidate: Artifact,
    champion: Artifact | None,
    world: str = "",
) -> dict[str, Any]:
    """What the task `compare` is asked for: the candidate's evaluation says on what the champion is scored, its episodes what it plays.

    Raises:
        DataError: the evaluation is of another adapter than the candidate or of an older version, the candidate has not played in the
            agent's `world`, or the champion's adapter is gone.
    """
    read_text(evaluation, ROW_LOSSES)
    adapter = evaluation.manifest["made_from"]["adapter"]
    if adapter != candidate.manifest["made_from"]["adapter"]:
        raise DataError(
            f"The evaluation of {key} is of another adapter than its export: materialize evaluation and gguf_export again."
        )
    played = own_episodes(lake, key, candidate.identity)
    made_from = played.manifest["made_from"] if played else {}
    if world and made_from.get("world") != world:
        raise DataError(
            f"The export {candidate.identity[:16]} of {key} has not played in {world}: materialize episodes again."
        )
    play = (
        {
            "world": made_from["world"],
            "config": made_from["config"],
            "gguf_export": champion.reference,
        }
        if played and champion
        else None
    )
    return {
        "candidate": _adapter(lake, key, adapter).reference,
        "champion": adapter_of_export(lake, key, champion).reference if champion else None,
        "evaluation": evaluation.manifest["made_from"]["config"],
        "play": play,
    }


def comparison(
    lake: Lake, key: PartitionKey, evaluation: Artifact, candidate: Artifact, result: dict[str, Any]
) -> Comparison:
    """What the task `compare` made, beside what is there of the candidate.

    Raises:
        DataError: it is gone.
    """

    def made(asset: str, identity: str | None) -> Artifact | None:
        artifact = identity and lake.find_undamaged(asset, key, identity)
        if identity and not artifact:
            raise DataError(
                f"The {asset} {identity[:16]} of {key} vanished after it was made: materialize champion again."
            )
        return artifact or None

    return Comparison(
        (made("evaluation", result["candidate"]), made("evaluation", result["champion"])),
        (evaluation, made("evaluation", result["champion_on_test"])),
        (
            own_episodes(lake, key, candidate.identity),
            made("episodes", result["champion_episodes"]),
        ),
        canaries=tuple(
            msgspec.convert(
                read_entries(made("canaries", result["canaries"]), CANARIES), list[Canary]
            )
        ),
        same_base=result["same_base"],
    )


def adapter_of_export(lake: Lake, key: PartitionKey, export: Artifact) -> Artifact:
    """The adapter that an export was made of. Raises DataError where it is gone."""
    return _adapter(lake, key, export.manifest["made_from"]["adapter"])


def _adapter(lake: Lake, key: PartitionKey, identity: str) -> Artifact:
    if adapters := find_trained_adapters(lake, key, identity):
        return adapters[-1]
    raise DataError(
        f"The adapter {identity[:16]} of {key} is gone, so nothing can be compared with it; if it is the champion's, "
        f"`agent-pipeline promote {key}` makes the latest export the champion."
    )


def decide_on(
    lake: Lake,
    key: PartitionKey,
    candidate: Artifact,
    champion: Artifact | None,
    compared: Comparison,
    policy: Policy,
    approve: Approve,
    who: str = "",
) -> Record:
    """Decide on a candidate, write the decision into the ledger, and promote the candidate where it wins and no person has to approve.

    A candidate that was decided on already, against the same champion by the same evaluator, is not decided on again. Only a person can
    promote a candidate that a person holds back, that was the champion before (a rollback must not be undone by the next run), or that
    played no episode in a world (its harm was never measured).

    Raises:
        DataError: the champion moved meanwhile, or the evaluations do not compare.
    """
    candidate_scores, rival_scores = scores(compared.select, compared.episodes, compared.same_base)
    before = lake.pointers(EXPORT, key)
    against = champion.identity if champion else None
    if before.champion != against:
        raise DataError(
            f"The champion of {key} was moved by {before.who} at {before.when}: materialize champion again."
        )
    facts = facts_since(lake, key, champion)
    played = compared.episodes[0].manifest["report"] if compared.episodes[0] else None
    against_it = {"unfit": does_less(played), "unended": unended(played)} if played else {}
    verdicts = verdicts_on_training(lake, key, candidate)
    verified = None if is_verified(verdicts) else (verdicts["verified"], verdicts["verdicts"])
    unverified_tasks = unverified_held_out_tasks(lake, key)
    evaluator = hash_json([candidate_scores.evaluator, candidate_scores.world, policy.rules()])

    def decision_before(records: list[Record]) -> Record | None:
        same = (candidate.identity, against, evaluator)
        return next(
            (
                each
                for each in reversed(records)
                if (each.candidate, each.champion, each.evaluator) == same
            ),
            None,
        )

    def record(number: int) -> Record | None:
        records = ledger(lake, key).records()
        if decision_before(records):
            return None
        seen = msgspec.structs.replace(
            facts,
            earlier=spent_in_year(records, now()),
            canaries=compared.canaries,
            verified=verified,
            unverified_tasks=unverified_tasks,
            **against_it,
        )
        return Record(
            number=number,
            when=now(),
            who=who or user_name(),
            candidate=candidate.identity,
            champion=against,
            evaluator=evaluator,
            decision=decide(candidate_scores, rival_scores, policy, seen),
            test=decide(
                *scores(compared.test, (None, None), compared.same_base), policy, Facts()
            ).figures,
            verdicts=verdicts,
        )

    decided = ledger(lake, key).append(record) or decision_before(ledger(lake, key).records())
    assert decided is not None
    was_champion = any(entry.champion == candidate.identity for entry in lake.history(EXPORT, key))
    # A decision that an older version wrote into the ledger did not look at verdicts.
    needs_a_person = (
        verified is not None
        or was_champion
        or is_held(lake, key, candidate.identity)
        or not candidate_scores.episodes
    )
    by_itself = approve == "auto" and not needs_a_person
    if decided.decision.outcome == "promote" and by_itself:
        lake.set_champion(
            candidate, why=summary(decided.decision), who=decided.who, expected=before.generation
        )
    return decided


def facts_since(lake: Lake, key: PartitionKey, champion: Artifact | None) -> Facts:
    """What became of verdicts and tasks since the adapter of a champion was trained. Of its sessions only those count that are still in the
    store (`turned` is 0 of fewer than `MIN_COUNT_TO_COMPARE`); newer is a task whose sessions all began later, of the split `select`.

    Raises:
        DataError: a table is damaged or of an older version.
    """
    if champion is None:
        return Facts(first=True)
    adapters = find_trained_adapters(lake, key, champion.manifest["made_from"]["adapter"])
    sessions = pa.array(
        {
            session
            for adapter in adapters
            for session in adapter.manifest["made_from"].get("sessions", ())
        },
        pa.string(),
    )
    uses: Counter[str] = Counter()
    if len(sessions) and lake.has("curated_sessions", key):
        for batch in read_batches(lake.open("curated_sessions", key, USES), USES.names):
            uses.update(batch.filter(pc.is_in(batch["session_id"], sessions))["use"].to_pylist())
    trained = [
        each.when
        for a in adapters[-1:]
        for each in lake.history(a.asset, key)
        if each.latest == a.identity and each.when
    ]
    tasks: dict[bool, set[str]] = {True: set(), False: set()}
    if trained and lake.has(DATASET, key):
        began = datetime.fromisoformat(min(trained))
        for row in read_dataset_rows(lake, key, ("select",), columns=["task_key", "created_at"]):
            tasks[row["created_at"] is not None and row["created_at"] > began].add(row["task_key"])
    return Facts(
        turned=uses[SessionUse.NEGATIVE] / uses.total()
        if uses.total() >= MIN_COUNT_TO_COMPARE
        else 0.0,
        newer=tasks[True] - tasks[False],
    )


def hold(lake: Lake, key: PartitionKey, identity: str = "", why: str = "") -> Record:
    """Write into the ledger that a person holds an export back: it is not promoted by itself.

    Raises:
        DataError: there is no such export.
    """
    export = export_named(lake, key, identity) if identity else lake.latest(EXPORT, key)
    last = last_decision(lake, key, export.identity)
    held = Decision(
        outcome="hold",
        p=None,
        error=0.0,
        more_tasks=0,
        figures=(),
        reasons=(Reason("held", "person", "hold"),),
    )

    def record(number: int) -> Record:
        return Record(
            number=number,
            when=now(),
            who=user_name(),
            candidate=export.identity,
            champion=last.champion if last else None,
            evaluator=last.evaluator if last else "",
            decision=held,
            why=why,
        )

    return ledger(lake, key).append(record) or record(0)


def scores(evaluations: Pair, played: Pair, same_base: bool) -> tuple[Scores, Scores]:
    """The scores of the candidate and of its rival (the champion, or without one the base model) on the turns that both were asked. Losses
    are of tokens, and compare only between models of the same base."""
    new, champion = evaluations
    models = [(new, "adapter"), (champion, "adapter") if champion else (new, "base")]
    turns = [_turns(evaluation, model) for evaluation, model in models]
    losses = [_losses(evaluation, model) if same_base else {} for evaluation, model in models]
    players = [(played[0], "model"), (played[1], "model") if champion else (played[0], "base")]
    candidate, rival = (
        Scores(
            _fingerprint(models[place][0]),
            tuple(turn for name, turn in turns[place].items() if name in turns[1 - place]),
            tuple(loss for name, loss in losses[place].items() if name in losses[1 - place]),
            _fingerprint(players[place][0]),
            tuple(_episodes(*players[place])),
        )
        for place in (0, 1)
    )
    return candidate, rival


def _fingerprint(artifact: Artifact | None) -> str:
    """How scores came about: rows, settings, versions; everything that an artifact was made from but the model."""
    made_from = artifact.manifest["made_from"] if artifact else {}
    return hash_json(
        {name: value for name, value in made_from.items() if name not in ("adapter", EXPORT)}
    )


def _turns(evaluation: Artifact | None, model: str) -> dict[str, TurnScore]:
    """The turns that a model was asked, by their names."""
    return {
        (name := f"{each['row_id']}:{each['turn_index']}"): TurnScore(
            name,
            each["task_key"],
            each["expected_tool"] or each["expected_class"],
            each["expected_class"] == "call",
            each[model]["called"],
            bool(
                each[model]["right"]
            ),  # None in evaluations of older versions: a call that the limit ended
        )
        for each in read_entries(evaluation, SAMPLES)
    }


def _losses(evaluation: Artifact | None, model: str) -> dict[str, RowLoss]:
    return {
        row["row_id"]: RowLoss(row["row_id"], row["task_key"], row[model], row["tokens"])
        for row in read_entries(evaluation, ROW_LOSSES)
        if row[model] is not None
    }


def _episodes(played: Artifact | None, player: str) -> Iterator[Played]:
    for each in read_transcripts(played):
        if each["player"] == player:
            # A message that was cut off may have been a wrong change.
            unseen = each["wrong_changes"] == [] and each.get("end") in UNSEEN
            harmed = (
                None if unseen or each["wrong_changes"] is None else bool(each["wrong_changes"])
            )
            yield Played(
                each["task_key"],
                each["trial"],
                each["seed"],
                each["done"],
                harmed,
                each.get("must_act"),
                unseen,
            )


def read_entries(artifact: Artifact | None, file: str) -> list[dict[str, Any]]:
    """The JSON list in an artifact's file; empty without an artifact. Raises DataError where the file is gone."""
    result: list[dict[str, Any]] = json.loads(read_text(artifact, file) or "[]")
    return result


def read_transcripts(played: Artifact | None) -> list[dict[str, Any]]:
    """Every episode of every player; none without an artifact. Raises DataError where the file is gone."""
    # Not splitlines: what was said may hold other ends of lines, such as U+2028.
    return [json.loads(line) for line in read_text(played, TRANSCRIPTS).split("\n") if line]


def read_text(artifact: Artifact | None, file: str) -> str:
    """Return the text of an artifact's file, or an empty text without an artifact.

    Raises:
        DataError: the file is gone.
        DamageError: the file is damaged.
    """
    if artifact is None:
        return ""
    try:
        return artifact.read(file).decode("utf-8")
    except FileNotFoundError as error:
        raise DataError(
            f"The {artifact.asset} of {artifact.key} has no {file}: a session of it was forgotten, or it is of an older version. "
            "Materialize it again."
        ) from error
