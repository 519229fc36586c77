"""The commands about the sessions of the lake: list and show."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from agent_pipeline.cli.words import AS_JSON
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import DataError
from agent_pipeline.keys import parse_key

console = Console()


def list_sessions(
    agent: Annotated[
        str, typer.Option(help="Partition, as project/agent. Default: every partition of the lake.")
    ] = "",
    dropped: Annotated[
        str,
        typer.Option(help="Only sessions that were dropped for this reason, such as unjudged."),
    ] = "",
    damage: Annotated[
        str, typer.Option(help="Only sessions with this kind of damage, such as orphan_output.")
    ] = "",
    verdict: Annotated[
        str,
        typer.Option(help="Only sessions with this verdict: acceptable, unacceptable or none."),
    ] = "",
    limit: Annotated[
        int, typer.Option(min=1, help="Maximum number of sessions to list, the newest first.")
    ] = 20,
    as_json: Annotated[bool, AS_JSON] = False,
) -> str | None:
    """List the sessions of the lake, the newest first."""
    from agent_pipeline.cli.report import printable
    from agent_pipeline.governance.session_list import SessionFilter
    from agent_pipeline.governance.session_list import list_sessions as find

    lake = load_settings().open_lake()
    keys = [parse_key(agent)] if agent else sorted(lake.partitions("tables", "sessions"))
    if not any(lake.has("sessions", key) for key in keys):
        raise DataError(
            f"The lake {lake.root} has no sessions of {agent or 'any agent'}: run "
            f"`agent-pipeline materialize {agent or 'PARTITION'} --select '+curated_sessions'`.",
            partition=agent or None,
        )
    listed = find(lake, keys, SessionFilter(dropped, damage, verdict), limit)
    if as_json:
        typer.echo(msgspec.json.encode(listed))
        return None
    names = ("began", "verdict", "use")
    columns = [Column(name, overflow="fold") for name in names]
    table = Table(Column("session", no_wrap=True), *columns, box=None, pad_edge=False)
    for session in listed.sessions:
        reason = ": ".join(filter(None, [session.drop_reason, session.drop_detail]))
        head = [] if agent else [session.partition]
        cells = (
            (session.created_at or "not known")[:10],
            session.verdict or "none",
            reason or session.use or "not curated",
        )
        session_id = "\n".join(map(printable, [*head, session.session_id]))
        table.add_row(escape(session_id), *(escape(printable(cell)) for cell in cells))
    if listed.sessions:
        console.print(table)
    console.print(
        f"{len(listed.sessions)} of {listed.matching:,} matching sessions ({listed.total:,} in "
        "all).",
        highlight=False,
    )
    return f"sessions show {listed.sessions[0].session_id}" if listed.sessions else "status"


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
            help=(
                "List every table, file and model that was made from the session, instead of "
                "what happened to it. The exit code is 1 if the lake does not contain the "
                "session."
            ),
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
