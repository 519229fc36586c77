"""The commands that choose what is served: promote, rollback, champions."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from agent_pipeline.config.settings import load_settings
from agent_pipeline.export import serving
from agent_pipeline.keys import parse_key
from agent_pipeline.storage.pointers import Entry

console = Console()

PARTITION = Annotated[str, typer.Argument(help="project/agent")]
WHY = Annotated[str, typer.Option(help="The reason, for the history.")]


def promote(
    partition: PARTITION,
    identity: Annotated[str, typer.Argument(help="First digits of an export's identity, or its adapter's; without it, the latest.")] = "",
    why: WHY = "",
) -> None:
    """Make an export the partition's champion: the model that is served until another is promoted."""
    _print_champion(partition, serving.promote(load_settings().open_lake(), parse_key(partition), identity, why))


def rollback(
    partition: PARTITION,
    to: Annotated[int | None, typer.Option(help="A number of the history; without it, the champion before.")] = None,
    why: WHY = "",
) -> None:
    """Make an earlier champion the champion again."""
    _print_champion(partition, serving.rollback(load_settings().open_lake(), parse_key(partition), to, why))


def champions(
    partition: Annotated[str | None, typer.Argument(help="project/agent, for its history.")] = None,
) -> None:
    """Show the champion and the latest export of every partition, or the history of one."""
    lake = load_settings().open_lake()
    if partition:
        entries = [(str(entry.generation), entry) for entry in lake.history(serving.EXPORT, parse_key(partition))]
    else:
        entries = [(str(key), entry) for key, entry in serving.champions(lake)]
    table = Table("no." if partition else "partition", "champion", "latest", "moved", "when", "who", "why")
    for name, entry in entries:
        table.add_row(name, _short(entry.champion), _short(entry.latest), entry.moved, entry.when, entry.who, entry.why)
    console.print(table)


def _print_champion(partition: str, entry: Entry) -> None:
    instead = f", instead of {_short(entry.against)}" if entry.against and entry.moved == "champion" else ""
    console.print(
        f"{_short(entry.champion)} is the champion of {partition}{instead}. To serve it now: "
        f"agent-pipeline materialize {partition} --select ollama_model",
        soft_wrap=True,
        highlight=False,
    )


def _short(identity: str | None) -> str:
    return identity[:16] if identity else "none"
