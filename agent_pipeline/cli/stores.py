"""The command discover, which shows the contents of a session store."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent_pipeline.cli.instance import make_known
from agent_pipeline.cli.words import AS_JSON, with_noun
from agent_pipeline.config.sections import AgentSettings
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import without_credentials
from agent_pipeline.keys import PartitionKey, parse_key

if TYPE_CHECKING:
    from agent_pipeline.ingestion.discovery import Discovery, PartitionReport

console = Console()


def discover(
    path: Annotated[
        str | None,
        typer.Argument(
            help="A store (a file, a folder or a URL), or a folder that contains several stores. "
            "Default: the stores of the settings."
        ),
    ] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Show what a session store contains.

    If you do not give a path, the command reads the stores of the settings, and Dagster gets a
    partition for each agent in these stores. The exit code is 1 if a part of a store could not be
    read. Records that were left out are counted.
    """
    from agent_pipeline.ingestion.block_list import BlockList
    from agent_pipeline.ingestion.discovery import discover as look
    from agent_pipeline.sources import parse_location, readers

    settings = load_settings()
    blocked = BlockList.read(settings.open_lake())

    def has_tasks(key: PartitionKey) -> bool:
        agent = settings.agents.get(str(key), AgentSettings())
        return bool(
            agent.task_pattern or agent.task_field or settings.task_pattern or settings.task_field
        )

    discovery = look(
        [parse_location(path)] if path else settings.stores,
        readers(settings.sources),
        blocked,
        has_tasks,
    )
    if path is None:
        make_known(
            sorted(
                {
                    parse_key(partition.partition)
                    for store in discovery.stores
                    for partition in store.partitions
                }
            )
        )
    if as_json:
        typer.echo(without_credentials(msgspec.json.encode(discovery).decode()))
    else:
        _show(discovery)
    if not discovery.readable:
        raise typer.Exit(1)


def _show(discovery: "Discovery") -> None:
    for store in discovery.stores:
        totals = (
            f"{store.source}, {with_noun(store.projects, 'project')}, "
            f"{with_noun(store.agents, 'agent')}, {with_noun(store.sessions, 'session')}"
        )
        path = without_credentials(store.path)
        console.print(
            f"{path}: {totals if store.source else 'could not be read'}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        table = Table()
        rows = [(partition.partition, _counted(partition)) for partition in store.partitions]
        shown = dict.fromkeys(name for _, counts in rows for name, count in counts.items() if count)
        table.add_column("partition", overflow="fold")
        for name in shown:
            table.add_column(escape(name), justify="right")
        for partition, counts in rows:
            table.add_row(partition, *(str(counts.get(name, 0)) for name in shown))
        if rows:
            console.print(table)
        for part in store.partitions:
            if part.damage:
                kinds = ", ".join(f"{kind} {count}" for kind, count in part.damage.items())
                console.print(
                    f"damage: {part.partition}: sessions by kind: {kinds}",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
        for note in store.notes:
            console.print(f"note: {without_credentials(note)}", markup=False, soft_wrap=True)
        for error in store.errors:
            console.print(f"error: {without_credentials(error)}", markup=False, soft_wrap=True)
    if discovery.unknown:
        console.print(
            f"No reader recognizes {with_noun(len(discovery.unknown), 'file')}: "
            f"{', '.join(discovery.unknown[:20])}",
            markup=False,
            soft_wrap=True,
        )


def _counted(report: "PartitionReport") -> dict[str, int]:
    judged = {f"judged {judgment}": count for judgment, count in report.judgments.items()}
    others = {
        "forgotten": report.forgotten,
        "not judged": report.unjudged,
        "scored": report.scored,
        "failed": report.failed,
        "side chains": report.side_chains,
    }
    return {"sessions": report.sessions, **judged, **others, "damaged": report.damaged}
