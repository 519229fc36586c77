"""The commands about people's judgments in files: export and import."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from agent_pipeline.cli.running import require_judged_sessions
from agent_pipeline.config.settings import load_settings
from agent_pipeline.keys import PartitionKey, parse_key

if TYPE_CHECKING:
    from agent_pipeline.config.settings import Settings
    from agent_pipeline.judging.judge_checks import JudgeCheck
    from agent_pipeline.judging.rows import JudgedRow
    from agent_pipeline.storage.lake import Lake

console = Console()

SAMPLE = Annotated[int, typer.Option(min=1, help="Number of sessions.")]
SEED = Annotated[int, typer.Option(help="Seed of the sample. Another seed picks other sessions.")]
FIRST = Annotated[
    str,
    typer.Option(
        help="Sessions that come first: unjudged, or disagreement (a person and another "
        "judge disagree). Default: random sessions, sessions on which judges disagree, and "
        "typical requests."
    ),
]
"""Options that choose the sessions to judge, for files here and for the page of `review`."""


def export(
    partition: Annotated[str, typer.Argument(help="Partition, as project/agent.")],
    out: Annotated[
        Path,
        typer.Option(
            help="File to write: .csv or .jsonl to fill in, or .html for a page with buttons."
        ),
    ] = Path("review.csv"),
    sample: SAMPLE = 50,
    seed: SEED = 0,
    first: FIRST = "",
) -> None:
    """Write a sample of sessions to a file in which a person judges them.

    The next run uses the judgments if the setting `labels` names the file or its folder. Sessions
    that were never read are read first.
    """
    from agent_pipeline.config.resolution import resolve
    from agent_pipeline.judging.options import JudgingOptions
    from agent_pipeline.judging.review import write_review
    from agent_pipeline.selection.label_proposals import choose_sessions
    from agent_pipeline.sessions.tables import read_batches, to_rows

    key, settings = parse_key(partition), load_settings()
    require_judged_sessions(settings, key)
    lake = settings.open_lake()
    judged_rows = cast(
        "Iterator[JudgedRow]", to_rows(read_batches(lake.open("judged_sessions", key)))
    )
    policy = resolve(settings, JudgingOptions, key).options.policy
    rows, counts = choose_sessions(judged_rows, sample, policy, seed, first)
    write_review(out, rows)
    counted = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    console.print(
        f"{len(rows)} sessions of {key} are in {out} (of {counts.total()}: {counted}).",
        soft_wrap=True,
        highlight=False,
    )
    for check in read_checks(settings, lake, key):
        console.print(f"Judge {check.describe()}.", soft_wrap=True, highlight=False, markup=False)


def read_checks(settings: "Settings", lake: "Lake", key: PartitionKey) -> "list[JudgeCheck]":
    """Return the checks of an agent's machine judges against people's labels."""
    from agent_pipeline.config.resolution import resolve
    from agent_pipeline.judging.labels import Labels, read_labels
    from agent_pipeline.judging.options import JudgingOptions
    from agent_pipeline.judging.tables import read_judge_checks

    policy = resolve(settings, JudgingOptions, key).options.policy
    if not policy.machine_groups:
        return []
    path, agent = settings.labels_path(key), settings.agents.get(str(key))
    is_own_file = bool(agent and agent.labels)
    labels = read_labels(path, key, is_own_file) if path else Labels()
    return read_judge_checks(lake, key, policy, labels, settings.judge.least_precision)


def import_file(
    file: Annotated[Path, typer.Argument(help="CSV or JSONL file with judgments.")],
    partition: Annotated[str, typer.Argument(help="Partition, as project/agent.")],
) -> None:
    """Copy a file of judgments into the folder of the setting `labels`, and check the judgments.

    The next run uses the judgments.
    """
    from agent_pipeline.judging.label_import import import_labels

    settings, key = load_settings(), parse_key(partition)
    imported = import_labels(file, key, settings.labels_path(key))
    unknown = imported.labels.describe_unknown(
        imported.labels.by_id.keys() - _session_ids(settings.open_lake(), key)
    )
    for note in filter(None, [*imported.labels.notes, unknown, imported.describe_overridden()]):
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{len(imported.labels.by_id)} judgments of {key} are in {imported.path}.",
        highlight=False,
        soft_wrap=True,
    )


def _session_ids(lake: "Lake", key: PartitionKey) -> set[str]:
    """Return the ids of an agent's sessions in the lake, or no ids if the agent was never read."""
    if not lake.has("sessions", key):
        return set()
    with lake.open("sessions", key) as table:
        return set(table.read(["session_id"])["session_id"].to_pylist())
