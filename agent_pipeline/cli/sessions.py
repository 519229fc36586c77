"""The commands about sessions of the lake: list and show."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console

from agent_pipeline.cli.words import AS_JSON
from agent_pipeline.config.settings import load_settings
from agent_pipeline.keys import parse_key

console = Console()


def show(
    session_id: Annotated[str, typer.Argument(help="The session's id.")],
    partition: Annotated[
        str,
        typer.Option(
            help="Partition, as project/agent. Default: search every partition of the lake."
        ),
    ] = "",
    lineage: Annotated[
        bool,
        typer.Option(
            "--lineage",
            help="List every table, file and model that was made from the session, instead. The "
            "exit code is 1 if the lake does not contain the session.",
        ),
    ] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Show what happened to a session: source, damage, task, verdict, measures, use and rows."""
    from agent_pipeline.cli.report import print_session_lineage, printable
    from agent_pipeline.governance.explain import SessionStory
    from agent_pipeline.governance.explain import explain as lines_about
    from agent_pipeline.governance.lineage import session_lineage

    lake = load_settings().open_lake()
    if lineage:
        reached = session_lineage(lake, session_id)
        if as_json:
            typer.echo(msgspec.json.encode(reached))
        else:
            print_session_lineage(console, reached)
        if not (reached.rows or reached.models or reached.forgotten_in):
            raise typer.Exit(1)
        return
    lines = lines_about(lake, session_id, parse_key(partition) if partition else None)
    if as_json:
        typer.echo(msgspec.json.encode(SessionStory(session_id, lines)))
        return
    for line in lines:
        typer.echo(printable(line))
