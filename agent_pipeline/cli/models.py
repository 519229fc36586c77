"""The commands about the models of the agents: list and show."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column, Table

from agent_pipeline.cli.running import print_outcome
from agent_pipeline.cli.words import AS_JSON, shorten
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.datasets.verdicts import describe_verdicts
from agent_pipeline.errors import DataError, PartitionError
from agent_pipeline.evaluation.intervals import shown
from agent_pipeline.governance.champion_moves import complete_interrupted_moves
from agent_pipeline.governance.model_list import (
    ModelList,
    summarize_history,
    summarize_models,
)
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.promotion import champions as champion_history
from agent_pipeline.promotion.decision_wording import clip_interval, make_markdown, summarize
from agent_pipeline.promotion.ledger import EXPORT, open_ledger
from agent_pipeline.storage.lake import Lake

console = Console()


def list_models(as_json: Annotated[bool, AS_JSON] = False) -> str | None:
    """Show the champion, the latest export and its decision for every partition."""
    settings = load_settings()
    lake = settings.open_lake()
    exported = dict(champion_history.champions(lake))
    if not exported:
        raise _no_export(lake, "", [])
    keys = list(exported)
    _report_interrupted_moves(settings, lake, keys)
    summaries = [summarize_models(lake, key, entry) for key, entry in exported.items()]
    if as_json:
        typer.echo(msgspec.json.encode(ModelList(summaries)))
        return None
    names = ("champion", "latest", "decision on the latest", "verified verdicts", "moved", "when")
    table = Table(
        Column("partition", no_wrap=True), *(Column(name, overflow="fold") for name in names)
    )
    for model in summaries:
        known = model.verdicts is not None
        table.add_row(
            model.partition,
            shorten(model.champion),
            shorten(model.latest),
            "promote: waits for you"
            if model.waits
            else f"{model.decision}, and a person holds it back"
            if model.held and model.decision != "hold"
            else model.decision,
            f"{model.verified} of {model.verdicts}" if known else "not known",
            model.moved,
            model.moved_at,
        )
    console.print(table)
    _complete_moves(lake, keys)
    waiting = next((model.partition for model in summaries if model.waits), None)
    return f"report {waiting}" if waiting else f"models show {summaries[0].partition}"


def show(
    model: Annotated[
        str,
        typer.Argument(
            help=(
                "Partition, as project/agent, to show its history. To show the origin of a "
                "model, give its folder, a file in the folder, or at least the first eight "
                "characters of its identity."
            )
        ),
    ],
    lineage: Annotated[
        bool,
        typer.Option(
            "--lineage",
            help="Show what the champion of a partition was made from, instead of its history.",
        ),
    ] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> str | None:
    """Show the history and the decisions of an agent's models, or what one model was made from.

    The origin of a model is its sessions, rows, settings, base model, code and tables.
    """
    from agent_pipeline.cli.report import print_model_lineage
    from agent_pipeline.governance.lineage import model_lineage

    settings = load_settings()
    lake = settings.open_lake()
    key = _find_partition(lake, model)
    if key is None or lineage:
        identity = model if key is None else _champion_identity(lake, key)
        origin = model_lineage(lake, identity)
        if as_json:
            typer.echo(msgspec.json.encode(origin))
        else:
            print_model_lineage(console, origin)
        return None
    _report_interrupted_moves(settings, lake, [key])
    if as_json:
        typer.echo(msgspec.json.encode(summarize_history(lake, key)))
        return None
    _print_history(lake, key)
    print_outcome(key)
    _complete_moves(lake, [key])
    return ""


def _find_partition(lake: Lake, model: str) -> PartitionKey | None:
    """Return the partition that a text names, or None if it names a model.

    Raises:
        DataError: the text can only be a partition, and this partition has no export.
    """
    try:
        key = parse_key(model)
    except PartitionError:
        return None
    exported = [known for known, _ in champion_history.champions(lake)]
    if key in exported:
        return key
    if Path(model).exists():
        return None
    raise _no_export(lake, model, exported)


def _no_export(lake: Lake, partition: str, exported: list[PartitionKey]) -> DataError:
    others = f", only of {', '.join(map(str, exported))}" if exported else ""
    return DataError(
        f"The lake {lake.root} contains no exported model of {partition or 'any agent'}{others}: "
        f"run `agent-pipeline materialize {partition or 'PARTITION'}` first.",
        partition=partition or None,
    )


def _champion_identity(lake: Lake, key: PartitionKey) -> str:
    champion = lake.pointers(EXPORT, key).champion
    if champion is None:
        raise DataError(
            f"{key} has no champion: run `agent-pipeline promote {key}`, or give the identity of "
            "a model.",
            partition=key,
        )
    return champion


def _report_interrupted_moves(settings: Settings, lake: Lake, keys: list[PartitionKey]) -> None:
    """Complete moves of champions that were interrupted, and say so on standard error."""
    for sentence in complete_interrupted_moves(settings, lake, keys):
        Console(stderr=True).print(
            sentence, style="bold red", markup=False, soft_wrap=True, highlight=False
        )


def _complete_moves(lake: Lake, keys: list[PartitionKey]) -> None:
    """Note that a user has now seen the result of each rollback that was interrupted."""
    for key in keys:
        if champion_history.interrupted_rollback(
            lake, key
        ) and not champion_history.serving_difference(lake, key):
            champion_history.complete_move(lake, key)


def _print_history(lake: Lake, key: PartitionKey) -> None:
    console.print("[bold]history[/bold]")
    for entry in lake.history(EXPORT, key):
        moved = shorten(entry.champion if entry.moved == "champion" else entry.latest)
        _print_entry(
            entry.generation, entry.when, f"{entry.moved} {moved}, by {entry.who}", entry.why
        )
    console.print("[bold]decisions[/bold]")
    for record in (records := open_ledger(lake, key).records()):
        decision = record.decision
        gains = [
            figure for figure in decision.figures if figure.name == "gain" and figure.tasks > 1
        ]
        gain = "".join(f"; gain {shown(gain.difference, *clip_interval(gain))}" for gain in gains)
        chance = (
            ""
            if decision.p_value is None
            else f", p = {decision.p_value:.2g} of {decision.allowed_error:.2g} allowed"
        )
        rival = shorten(record.champion) if record.champion else "its base"
        what = f"{shorten(record.candidate)} against {rival}{gain}{chance}"
        verdicts = f"; {describe_verdicts(record.verdicts)}" if record.verdicts else ""
        _print_entry(record.number, record.when, what + verdicts, record.why or summarize(decision))
    if records:
        last = records[-1]
        console.print(
            Markdown(
                make_markdown(last.decision, last.test, "champion" if last.champion else "base")
            )
        )


def _print_entry(number: int, when: str, what: str, why: str) -> None:
    console.print(f"{number:>3}  {when}  {what}", markup=False, highlight=False, soft_wrap=True)
    console.print(Padding(escape(why), (0, 0, 0, 5)), highlight=False)
