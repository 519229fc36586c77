"""Short reports for a terminal on the data that the lake holds for a partition."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent_pipeline.cli.words import with_noun
from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.evaluation_report import (
    EvaluationReport,
    read_evaluation_report,
)
from agent_pipeline.evaluation.intervals import shown as with_interval
from agent_pipeline.governance.agent_status import count_splits, describe_training
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision_wording import describe_hold, summarize
from agent_pipeline.promotion.episodes_in_force import (
    DecidingWorld,
    LastEpisodes,
    find_latest_episodes,
)
from agent_pipeline.promotion.ledger import EXPORT, find_last_decision
from agent_pipeline.reports.episode_report import (
    FIGURE_LABELS,
    EpisodeReport,
    find_variant_warnings,
    read_episode_report,
    shown,
)
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline.training.chain import STEPS, describe_used_template, name_adapter_asset
from agent_pipeline.training.report import read_step_report

if TYPE_CHECKING:
    from agent_pipeline.governance.forgetting import Forgotten
    from agent_pipeline.governance.lineage import ModelLineage, ModelUse, SessionLineage
    from agent_pipeline.governance.pruning import Pruned

MODEL_ASSETS = (*map(name_adapter_asset, STEPS), "evaluation", "gguf_export", "serving")


def count_values(lake: Lake, asset: str, column: str, key: PartitionKey) -> Counter[str]:
    """Count how often each value of a table's column occurs.

    Return an empty result without a table.

    A null drop reason counts as `kept`.
    """
    if not lake.has(asset, key):
        return Counter()
    with lake.open(asset, key) as table:
        return Counter(
            "kept" if value is None else value for value in table.read([column])[column].to_pylist()
        )


def latest(lake: Lake, asset: str, key: PartitionKey) -> Artifact | None:
    """Return the latest complete artifact of an asset, or None."""
    try:
        return lake.latest(asset, key)
    except DataError:
        return None


def print_report(
    console: Console, lake: Lake, worlds: Mapping[PartitionKey, DecidingWorld]
) -> None:
    """Print the report of a demo.

    It ends with what matters most: tasks done, harm and the decision, and then the files.

    Args:
        console: The terminal.
        lake: The lake.
        worlds: The partitions to print, each with its world of today.
    """
    for key, deciding_world in worlds.items():
        counts, splits = (
            count_values(lake, "curated_sessions", "drop_reason", key),
            count_splits(lake, key),
        )
        dropped = ", ".join(
            f"{name} {count}" for name, count in counts.most_common() if name != "kept"
        )
        console.print(f"\n[bold]{key}[/bold]")
        console.print(
            f"  sessions   {counts.total()} in = {counts['kept']} kept + "
            f"{counts.total() - counts['kept']} dropped ({dropped})",
            soft_wrap=True,
        )
        console.print(
            f"  SFT rows   {splits.total()}: "
            + ", ".join(f"{splits[name]} {name}" for name in ("train", "select", "test"))
        )
        models = {
            asset: artifact for asset in MODEL_ASSETS if (artifact := latest(lake, asset, key))
        }
        for step in STEPS:
            if adapter := models.get(name_adapter_asset(step)):
                console.print(
                    f"  {step:<10} {describe_training(read_step_report(adapter))}", soft_wrap=True
                )
        if "sft_adapter" in models:
            console.print(
                f"  template   {escape(describe_used_template([models['sft_adapter']]))}",
                soft_wrap=True,
                highlight=False,
            )
        if evaluated := models.get("evaluation"):
            for line in _comparison(read_evaluation_report(evaluated)):
                console.print(f"  {line}", soft_wrap=True)
        last = None
        with suppress(DataError):
            last = find_latest_episodes(lake, key, deciding_world)
        for line in _last_episodes(last) if last else ():
            console.print(f"  {line}", soft_wrap=True)
        if (exported := models.get(EXPORT)) and (
            decided := find_last_decision(lake, key, exported.identity)
        ):
            hold = describe_hold(lake, key, exported.identity)
            held = f"; {hold}" if hold and not decided.is_hold_of_person else ""
            console.print(
                f"  decision   {escape(summarize(decided.decision) + held)}",
                soft_wrap=True,
                highlight=False,
            )
        if exported:
            console.print(
                f"  model      {_from_here(exported.path)}", soft_wrap=True, highlight=False
            )


def _from_here(path: Path) -> Path:
    """Return a path relative to the working directory if the path is inside this directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _last_episodes(last: LastEpisodes) -> list[str]:
    """Return the figures of episodes that are in force, or why they are not."""
    if last.in_force is None:
        return [f"[yellow]The last episodes do not count, because {escape(last.why_not)}.[/yellow]"]
    return _episodes(read_episode_report(last.in_force))


def _episodes(report: EpisodeReport) -> list[str]:
    """Return the model's figures on tasks done and harm, compared with the other players.

    The lines are red if the model is not fit to act.
    """
    # A manifest's keys are in alphabetical order, so the model is not the first player.
    others = {name: figures for name, figures in report.players.items() if name != "model"}
    colour = "red" if report.against else "green"
    lines = []
    for name, label in FIGURE_LABELS.items():
        compared = ", ".join(
            f"{other} {shown(figures.part(name))}" for other, figures in others.items()
        )
        model = shown(report.model.part(name))
        lines.append(f"[{colour}]{label}: {model}[/{colour}] ({compared})")
    lines += [f"[yellow]{sentence}[/yellow]" for sentence in find_variant_warnings(report)]
    if report.against:
        lines.append(
            f"[bold red]This model is not fit to act: {'; '.join(report.against)}.[/bold red]"
        )
    return lines


COMPARED = {
    "heldout_loss": "held-out loss",
    "call_recall": "tool calls at turns that need a tool call",
    "over_call": "tool calls at turns that need no tool call",
    "exact_call_accuracy": "exact tool calls (name and arguments)",
    "answer_accuracy": "right answers, questions and refusals",
}


def _comparison(report: EvaluationReport) -> list[str]:
    lines = []
    for name, label in COMPARED.items():
        difference, base, adapter = (
            report.differences.get(name),
            report.base.figure(name),
            report.adapter.figure(name),
        )
        if difference is None or base is None or adapter is None:
            continue
        form = ".3f" if name == "heldout_loss" else ".1%"
        text = f"{label}: base {base:{form}} → adapter {adapter:{form}}"
        if difference.low is not None:
            interval = with_interval(
                difference.difference, difference.low, difference.high, f"+{form}"
            )
            text += f", difference {interval} (95 %)"
        lines.append(
            f"{text}, {difference.samples} {'rows' if name == 'heldout_loss' else 'turns'} of "
            f"{difference.tasks} tasks"
        )
    return lines


def print_session_lineage(console: Console, lineage: "SessionLineage") -> None:
    """Print where a session is (one line per row that names it), and the affected models."""
    if lineage.forgotten_in:
        where = (
            "all partitions" if lineage.forgotten_in == ["*"] else ", ".join(lineage.forgotten_in)
        )
        _print(
            console,
            f"{lineage.session_id} was forgotten in {where}: it is no longer read from the store.",
        )
    table = Table(
        title=escape(printable(f"{lineage.session_id}: rows that mention it")), title_justify="left"
    )
    for column in ("table", "partition", "as", "values in the table"):
        table.add_column(column, overflow="fold")
    for row in lineage.rows:
        facts = ", ".join(
            f"{name} {_short(value)}" for name, value in row.facts.items() if name != "row_id"
        )
        table.add_row(
            *(
                escape(printable(text))
                for text in (row.asset, row.partition or "all", row.role, facts)
            )
        )
    if lineage.rows:
        console.print(table)
    else:
        _print(console, f"No table mentions {lineage.session_id}.")
    for path in lineage.files:
        _print(console, f"its rows are also in {path}")
    _print_uses(console, lineage.models)


def print_model_lineage(console: Console, lineage: "ModelLineage", indent: str = "") -> None:
    """Print what a model was made from, followed by what its parent artifacts were made from."""
    is_latest = " (latest)" if lineage.latest else ""
    _print(
        console,
        f"{indent}{lineage.asset} {lineage.identity[:16]} of {lineage.partition}{is_latest}: "
        f"{lineage.path}",
    )
    indent += "  "
    if lineage.base_model:
        _print(console, f"{indent}base model  {lineage.base_model} at {lineage.base_revision}")
    for name, values in (
        ("settings", lineage.settings),
        ("code", lineage.code),
        ("tables", lineage.tables),
    ):
        if values:
            _print(
                console,
                f"{indent}{name:<11} "
                + ", ".join(f"{key} {_short(value)}" for key, value in values.items()),
            )
    if lineage.rows is not None:
        same = {
            True: "the lake has the same rows",
            False: "the lake now has other versions of these rows",
            None: "some of these rows are no longer in the lake",
        }
        facts = [
            f"{lineage.rows} rows of {len(lineage.sessions) + lineage.forgotten} sessions",
            same[lineage.rows_unchanged],
        ]
        facts += [
            f"{count} {what}"
            for count, what in (
                (lineage.forgotten, "forgotten since"),
                (lineage.gone, "no longer in the lake"),
            )
            if count
        ]
        _print(console, f"{indent}made of     {', '.join(facts)}")
    for name, counts in lineage.sessions_by.items():
        _print(
            console,
            f"{indent}by {name:<10} "
            + ", ".join(f"{key} {count}" for key, count in counts.items()),
        )
    if lineage.sessions:
        more = (
            f" and {len(lineage.sessions) - 10} more (--json has all)"
            if len(lineage.sessions) > 10
            else ""
        )
        _print(console, f"{indent}sessions    {', '.join(lineage.sessions[:10])}{more}")
    for origin in lineage.made_from:
        _print(console, f"{indent}made from")
        print_model_lineage(console, origin, indent + "  ")


def print_forgotten(console: Console, report: "Forgotten") -> None:
    """Print what was removed from which file, and which models must be trained again."""
    for change in report.changes:
        counts = [
            f"{count} {what}"
            for count, what in (
                (change.rows, "rows removed"),
                (change.mentions, "mentions replaced"),
            )
            if count
        ]
        what = (
            "deleted, the next run makes it again"
            if change.deleted
            else "made again"
            if change.rebuilt
            else ", ".join(counts)
        )
        _print(console, f"{change.path}: {what}")
    rows, mentions = (
        sum(change.rows for change in report.changes),
        sum(change.mentions for change in report.changes),
    )
    where = "all partitions" if report.partitions == ["*"] else ", ".join(report.partitions)
    files = len(report.changes)
    one = len(report.session_ids) == 1
    who = f"{report.session_ids[0]} is" if one else f"{len(report.session_ids)} sessions are"
    _print(
        console,
        f"{who} forgotten: {with_noun(rows, 'row')} and {with_noun(mentions, 'mention')} in "
        f"{with_noun(files, 'file')}; later runs in {where} never read {'it' if one else 'them'} "
        "again.",
    )
    if report.judge_answers:
        _print(
            console,
            f"{report.judge_answers} answers of the language model about "
            f"{'it' if one else 'them'} were removed from the judge's cache.",
        )
    if report.unclear_answers:
        _print(
            console,
            f"{report.unclear_answers} answers in the judge's cache do not name their session: "
            "delete judge.sqlite.",
        )
    if report.same_content:
        _print(
            console,
            f"{', '.join(report.same_content)} has the same conversation: forget this session too "
            "if the conversation must be removed.",
        )
    if report.side_chains:
        _print(
            console,
            f"{'The session' if one else 'A forgotten session'} began "
            f"{', '.join(report.side_chains)}: forget these side chains too if they must be "
            "removed.",
        )
    for message in report.messages:
        _print(console, message)
    if report.to_retrain:
        _print(
            console,
            f"These models cannot forget {'it' if one else 'them'}. Train, evaluate and export "
            "the models again, and delete these folders:",
        )
    _print_uses(console, report.models)
    if report.unknown:
        _print(
            console,
            f"The lake does not have {', '.join(report.unknown)}: nothing was changed for "
            f"{'this id' if len(report.unknown) == 1 else 'these ids'}.",
        )


def print_pruned(console: Console, report: "Pruned") -> None:
    """Print the unused artifacts, one line per partition and asset, and how to delete them."""
    for (partition, asset), group in groupby(
        report.unnamed, key=lambda model: (model.partition, model.asset)
    ):
        sizes = [model.bytes for model in group]
        _print(console, f"{partition} {asset}: {len(sizes)}, {sum(sizes) / 1e6:,.1f} MB")
    count, size = len(report.unnamed), sum(model.bytes for model in report.unnamed) / 1e9
    what = (
        "were deleted"
        if report.deleted
        else "would be deleted by --delete"
        if count
        else "would be deleted"
    )
    _print(
        console,
        f"{count} artifacts ({size:,.2f} GB) {what}; {report.kept} stay, because a pointer, the "
        "history or another artifact refers to them.",
    )


def _print_uses(console: Console, models: "list[ModelUse]") -> None:
    for model in models:
        is_latest = ", latest" if model.latest else ""
        _print(
            console,
            f"{model.asset} {model.identity[:16]} of {model.partition} ({', '.join(model.roles)} "
            f"it{is_latest}): {model.path}",
        )


def printable(text: str) -> str:
    """Return a text with escaped control characters, so that a terminal can show it safely."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _print(console: Console, text: str) -> None:
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _short(value: object) -> str:
    """Return a value for one line, with hashes shortened to their first digits."""
    text = str(value)
    return text[:12] if len(text) == 64 and not set(text) - set("0123456789abcdef") else text
