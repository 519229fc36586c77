"""The page of the episodes of a model: its transcripts next to those of its base model.

The figures belong to `episode_report`.
"""

import json
from collections import defaultdict

import msgspec

from agent_pipeline.evaluation.stored_entries import Transcript
from agent_pipeline.reports.episode_report import (
    TRANSCRIPTS,
    EpisodeReport,
    figure_rows,
    find_variant_warnings,
    read_episode_report,
    variant_rows,
)
from agent_pipeline.reports.page import MOST_EPISODES, Page
from agent_pipeline.reports.page_items import (
    PageItem,
    bounded,
    compare_outcomes,
    episode_items,
    show_transcript,
    summarize_episode,
    variant_items,
)
from agent_pipeline.reports.replay_report import (
    HEAD_TO_RECORD,
    describe_replayed_page,
    list_tasks_to_record,
)
from agent_pipeline.storage.artifacts import Artifact


def make_episode_page(episodes: Artifact, why_not: str = "") -> Page:
    """Return the page of an artifact `episodes`. Episodes with harm come first.

    Args:
        episodes: The artifact.
        why_not: Why the episodes are not in force; empty if they are.

    Raises:
        DataError: An older version wrote the report.
    """
    report = read_episode_report(episodes)
    path = episodes.path / TRANSCRIPTS
    played: defaultdict[str, list[Transcript]] = defaultdict(list)
    varied: list[Transcript] = []
    # A text may contain characters that `splitlines` takes for line ends.
    for line in filter(None, path.read_text(encoding="utf-8").split("\n")):
        transcript: Transcript = json.loads(line)
        if transcript.get("variant"):
            varied.append(transcript)
        else:
            played[transcript["player"]].append(transcript)
    if played["base"]:
        both = {"base": played["base"], "model": played["model"]}
        both |= {name: played[name] for name in played if name not in both and played[name]}
        items = episode_items(both, str(path))
    else:
        items = [_make_item(transcript, str(path)) for transcript in played["model"]]
    shown, notes = bounded(items, MOST_EPISODES, "episodes", str(path))
    in_variants = variant_items(played["model"], varied, str(path))
    shown_variants, variant_notes = bounded(in_variants, MOST_EPISODES, "episodes", str(path))
    tables = [("", figure_rows(report.players))]
    if report.variants or report.unmeasured_variants:
        tables.append(("The model in variants of the tasks", variant_rows(report)))
    if report.model.replay and report.model.replay.to_record:
        to_record = [HEAD_TO_RECORD, *list_tasks_to_record(report.model.replay)]
        tables.append(("Tasks for which one more recording would settle most", to_record))
    return Page(
        title=f"Episodes of {episodes.key}",
        headline=describe_episodes(report),
        summary=[f"These episodes do not count now, because {why_not}."] if why_not else [],
        reasons=[*report.against, *find_variant_warnings(report)],
        reasons_title="Reasons against serving the model",
        items_title="Transcripts",
        tables=tables,
        items=shown_variants + shown,
        notes=variant_notes + notes,
        facts={"world": report.world, "tasks": str(report.tasks), "transcripts": str(path)},
    )


def describe_episodes(report: EpisodeReport) -> str:
    """Return one sentence about the tasks that the model did, and about its harm."""
    model, base = report.model, report.base
    if model.replay:
        return describe_replayed_page(model.replay, base.replay if base else None)
    sentence = f"The model did {model.done} tasks"
    sentence += f", its base model {base.done}." if base else "."
    if model.harm is None:
        return f"{sentence} The world does not report harm."
    return f"{sentence} It did harm in {model.harm} episodes."


def _make_item(transcript: Transcript, path: str) -> PageItem:
    """Return an episode that no other model played."""
    outcome = compare_outcomes(transcript, transcript)
    harm = transcript["wrong_changes"] or []
    seed = "" if transcript["seed"] is None else f", seed {transcript['seed']}"
    where = f"task {transcript['task_key']}, trial {transcript['trial']}{seed}"
    return msgspec.structs.replace(
        PageItem(kind="episode", outcome=outcome),
        harm=bool(harm),
        where=where,
        line=summarize_episode(transcript, path),
        anchor=f"episode-{transcript['task_key']}-{transcript['seed']}-{transcript['trial']}",
        transcripts=[show_transcript("model", transcript, path)],
    )
