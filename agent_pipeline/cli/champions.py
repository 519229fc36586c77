"""The commands that choose what is served: promote, rollback, champions."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

console = Console()

PARTITION = Annotated[str, typer.Argument(help="project/agent")]
WHY = Annotated[str, typer.Option(help="The reason, for the history.")]


def promote(
    partition: PARTITION,
    identity: Annotated[str, typer.Argument(help="First digits of an export's identity, or its adapter's; without it, the latest.")] = "",
    why: WHY = "",
) -> None:
    """Make an export the partition's champion: the model that is served until another is promoted."""
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.export.serving import promote as move
    from agent_pipeline.keys import parse_key

    entry = move(load_settings().open_lake(), parse_key(partition), identity, why)
    _say(partition, entry.champion, entry.against if entry.moved == "champion" else None)


def rollback(
    partition: PARTITION,
    to: Annotated[int | None, typer.Option(help="A number of the history; without it, the champion before.")] = None,
    why: WHY = "",
) -> None:
    """Make an earlier champion the champion again."""
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.export.serving import rollback as move
    from agent_pipeline.keys import parse_key

    entry = move(load_settings().open_lake(), parse_key(partition), to, why)
    _say(partition, entry.champion, entry.against)


def champions(
    partition: Annotated[str | None, typer.Argument(help="project/agent, for its history.")] = None,
) -> None:
    """Show the champion and the latest export of every partition, or the history of one."""
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.export.serving import EXPORT
    from agent_pipeline.export.serving import champions as every
    from agent_pipeline.keys import parse_key

    lake = load_settings().open_lake()
    first = "no." if partition else "partition"
    table = Table(first, "champion", "latest", "moved", "when", "who", "why")
    entries = (
        [(str(entry.generation), entry) for entry in lake.history(EXPORT, parse_key(partition))]
        if partition
        else [(str(key), entry) for key, entry in every(lake)]
    )
    for name, entry in entries:
        table.add_row(name, _short(entry.champion), _short(entry.latest), entry.moved, entry.when, entry.who, entry.why)
    console.print(table)


def _say(partition: str, champion: str | None, against: str | None) -> None:
    instead = f", instead of {_short(against)}" if against else ""
    console.print(
        f"{_short(champion)} is the champion of {partition}{instead}. To serve it now: "
        f"agent-pipeline materialize {partition} --select ollama_model",
        soft_wrap=True,
        highlight=False,
    )


def _short(identity: str | None) -> str:
    return identity[:16] if identity else "none"
