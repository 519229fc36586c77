"""The decision on a candidate with its evidence: what is compared, the entry in the ledger, and the page, an artifact of `champion`."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from agent_pipeline.evaluation.evaluate import SAMPLES
from agent_pipeline.evaluation.scores import Policy
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decide import (
    Approve,
    Comparison,
    comparison,
    decide_on,
    read_entries,
    read_transcripts,
    to_compare,
)
from agent_pipeline.promotion.ledger import EXPORT, Record
from agent_pipeline.promotion.mlflow_runs import Written, write_run
from agent_pipeline.promotion.probation import look
from agent_pipeline.promotion.report import figure_rows, headline, sentences
from agent_pipeline.promotion.sanity_questions import OTHERS
from agent_pipeline.redaction.surrogates import with_surrogates
from agent_pipeline.reports import episode_report
from agent_pipeline.reports.episode_report import TRANSCRIPTS
from agent_pipeline.reports.page import (
    MADE_UP,
    MOST_EPISODES,
    MOST_TURNS,
    PAGE,
    Page,
    Split,
    bounded,
    differing_turns,
    episode_items,
    render,
    split_tables,
    training_curves,
)
from agent_pipeline.selection.tables import DATASET, read_dataset_rows
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.chain import describe_used_template, find_trained_adapters

ASSET = "champion"


class Decided(NamedTuple):
    """A decision, its page, and the champion after it."""

    record: Record
    page: Artifact
    champion: str | None

    @property
    def waits(self) -> bool:
        """Whether the candidate won and a person has to promote it."""
        return self.record.decision.outcome == "promote" and self.champion != self.record.candidate


class NightDecision(NamedTuple):
    """What a night says of a champion on probation, and of the candidate; `failed`: the candidate was that champion and is rolled back.
    `mlflow`: what became of its run there, where there is an MLflow."""

    probation: Record | None
    decided: Decided | None
    failed: bool
    mlflow: Written | None


def decide_night(
    lake: Lake,
    key: PartitionKey,
    evaluation: Artifact,
    candidate: Artifact,
    world: str,
    compare: Callable[[dict[str, Any]], dict[str, Any]],
    policy: Policy,
    approve: Approve,
    nights: int,
    who: str,
) -> NightDecision:
    """Look at a champion that is on probation for so many `nights`; then compare the candidate with the champion by the task `compare`,
    decide, write the page, and the run of MLflow. Nothing is decided where the candidate is the champion, or failed its probation now.

    Raises:
        DataError: as `look`, `to_compare` and `decide_on`.
    """
    seen = look(lake, key, evaluation, compare, policy, nights, who) if approve == "auto" else None
    failed = bool(
        seen and seen.decision.outcome == "roll back" and seen.candidate == candidate.identity
    )
    champion, decided = lake.champion(EXPORT, key), None
    if not failed and not (champion and champion.identity == candidate.identity):
        compared = comparison(
            lake,
            key,
            evaluation,
            candidate,
            compare(to_compare(lake, key, evaluation, candidate, champion, world)),
        )
        record = decide_on(lake, key, candidate, champion, compared, policy, approve, who)
        page = write_decision(lake, key, candidate, champion, compared, record)
        decided = Decided(record, page, lake.pointers(EXPORT, key).champion)
    return NightDecision(seen, decided, failed, write_run(lake, key, candidate))


def write_decision(
    lake: Lake,
    key: PartitionKey,
    candidate: Artifact,
    champion: Artifact | None,
    seen: Comparison,
    record: Record,
) -> Artifact:
    """Write the page of a decision. Its manifest names the sessions that it shows, so that `forget` finds it.

    Raises:
        DataError: a file of what was compared is gone.
    """
    shown = [each for pair in (seen.select, seen.test, seen.episodes) for each in pair if each]
    made_from = {
        "adapter": candidate.manifest["made_from"]["adapter"],
        EXPORT: candidate.identity,
        "decision": record.number,
        "shown": [each.identity for each in shown],
        "sessions": sorted(
            {
                session
                for each in shown
                for session in each.manifest["made_from"].get("sessions", ())
            }
        ),
    }
    identity = hash_json(made_from)
    building = lake.building(ASSET, key, identity)
    (building / PAGE).write_text(
        render(_page(lake, key, candidate, champion, seen, record)), encoding="utf-8"
    )
    report = {"decision": headline(record.decision), "number": record.number}
    return lake.finish(
        ASSET,
        key,
        identity,
        building,
        made_from,
        report,
        parents=[candidate.identity, *made_from["shown"]],
    )


def _page(
    lake: Lake,
    key: PartitionKey,
    candidate: Artifact,
    champion: Artifact | None,
    seen: Comparison,
    record: Record,
) -> Page:
    decision, rival = record.decision, "champion" if champion else "base"
    tables = [("Split select, which decides", figure_rows(decision.figures, rival))]
    tables += (
        [("Split test, which is only reported", figure_rows(record.test, rival))]
        if record.test
        else []
    )
    splits = [
        split
        for name, pair in (("select", seen.select), ("test", seen.test))
        if (split := _split(name, *pair))
    ]
    tables += [table for split in splits for table in split_tables(split)]
    stored = read_dataset_rows(lake, key, ("select", "test")) if lake.has(DATASET, key) else ()
    with_values = any(
        each and each.manifest["made_from"].get("surrogates_sha256")
        for each in (*seen.select, *seen.test)
    )
    rows = {row["row_id"]: row for row in (with_surrogates(stored) if with_values else stored)}
    where = ", ".join(split.path for split in splits)
    turns, notes = bounded(
        (turn for split in splits for turn in differing_turns(split, rows)),
        MOST_TURNS,
        "turns",
        where,
    )
    played, path = (
        _played(seen),
        str(seen.episodes[0].path / TRANSCRIPTS) if seen.episodes[0] else "",
    )
    episodes, more = bounded(
        episode_items(played, path) if path else (), MOST_EPISODES, "episodes", path
    )
    if path:
        tables.append(("Episodes", episode_report.figure_rows(_players(seen))))
    if seen.canaries:
        answers = [
            ((each.base, each.base_answer), (each.candidate, each.candidate_answer))
            for each in seen.canaries
        ]
        shown = [
            [f"{'good' if good else 'not good'}{': ' * bool(text)}{text}" for good, text in both]
            for both in answers
        ]
        asked = [
            [each.question, each.group, *both]
            for each, both in zip(seen.canaries, shown, strict=True)
        ]
        tables.append(("Canaries", [["question", "of", "base", "candidate"], *asked]))
    asked_of = Counter(each.group.removeprefix("canary: ") for each in seen.canaries)
    counted = [f"{count} {group}" for group, count in asked_of.items()]
    if not any(each.group == OTHERS for each in seen.canaries):
        counted.append(
            "none of other partitions: the project has no other with held-out rows, or canary_rows is 0"
        )
    adapters = find_trained_adapters(lake, key, candidate.manifest["made_from"]["adapter"])
    facts = {
        "partition": str(key),
        "candidate": f"{candidate.identity}, {candidate.manifest['report'].get('ollama', {}).get('gguf', 'of an older version')}",
        "chat template": describe_used_template(adapters),
        "rival": f"champion {champion.identity}"
        if champion
        else "the base model: there is no champion yet",
        "canaries": ", ".join(counted),
        "decided": f"{record.when}, by {record.who}, number {record.number}",
        "chance": f"{decision.p:.2g}; {decision.error:.2g} is allowed"
        if decision.p is not None
        else "not known",
    }
    facts |= MADE_UP if with_values else {}
    reasons = sentences(decision) + ([f"a person says: {record.why}"] if record.why else [])
    title = f"Decision {record.number} on {key}"
    return Page(
        title,
        facts,
        headline(decision),
        reasons,
        tables,
        turns + episodes,
        training_curves(adapters),
        notes + more,
    )


def _split(name: str, new: Artifact | None, old: Artifact | None) -> Split | None:
    if new is None:
        return None
    champion = old.manifest["report"] if old else None
    return Split(
        name,
        new.manifest["report"],
        read_entries(new, SAMPLES),
        str(new.path / SAMPLES),
        champion,
        read_entries(old, SAMPLES),
    )


def _played(seen: Comparison) -> dict[str, list[dict[str, Any]]]:
    """The episodes by player: the rival's, the candidate's, then the others'."""
    lines = [read_transcripts(each) for each in seen.episodes]
    new, old = (
        {
            name: [each for each in side if each["player"] == name]
            for name in ("model", "base", "recorded")
        }
        for side in lines
    )
    players = (
        {"champion": old["model"], "candidate": new["model"], "base": new["base"]}
        if old["model"]
        else {"base": new["base"], "candidate": new["model"]}
    )
    return players | ({"recorded": new["recorded"]} if new["recorded"] else {})


def _players(seen: Comparison) -> Mapping[str, Mapping[str, Any]]:
    new, old = (each.manifest["report"]["players"] if each else {} for each in seen.episodes)
    named = {"candidate": new["model"], **({"champion": old["model"]} if old else {})}
    return named | {name: figures for name, figures in new.items() if name != "model"}
