"""The commands lineage session, lineage model, forget and prune."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from agent_pipeline.cli.instance import open_instance
from agent_pipeline.config.settings import load_settings
from agent_pipeline.keys import parse_key

console = Console()
lineage = typer.Typer(
    no_args_is_help=True, help="Where a session went, and what a model was made of."
)

AS_JSON = typer.Option(
    "--json",
    help="Print JSON; its fields are those of agent_pipeline.governance.lineage, forgetting and "
    "pruning.",
)


@lineage.command("session")
def lineage_session(
    session_id: Annotated[str, typer.Argument(help="The session's id.")],
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """List every table, file and model that a session reached.

    The exit code is 1 if the session reached none.
    """
    from agent_pipeline.cli.report import print_session_lineage
    from agent_pipeline.governance.lineage import session_lineage

    found = session_lineage(load_settings().open_lake(), session_id)
    _show(found, as_json, print_session_lineage)
    if not (found.rows or found.models or found.forgotten_in):
        raise typer.Exit(1)


@lineage.command("model")
def lineage_model(
    model: Annotated[
        str,
        typer.Argument(
            help="A model's folder, a file in it, or its identity (eight or more digits)."
        ),
    ],
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Show what a model was made of: sessions, rows, settings, base model, code and tables."""
    from agent_pipeline.cli.report import print_model_lineage
    from agent_pipeline.governance.lineage import model_lineage

    _show(model_lineage(load_settings().open_lake(), model), as_json, print_model_lineage)


def forget(
    session_id: Annotated[str, typer.Argument(help="The session's id.")],
    partition: Annotated[
        str,
        typer.Option(
            help="project/agent; without it, every partition that has a session of this id."
        ),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also while Dagster says that a run goes on (one that was killed, say)."
        ),
    ] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Remove a session from the whole lake, keep it out, and name the models to train again.

    This cannot be undone.
    """
    from agent_pipeline.cli.report import print_forgotten, printable
    from agent_pipeline.governance.forgetting import forget as take_out
    from agent_pipeline.governance.lineage import session_lineage

    key = parse_key(partition) if partition else None
    lake = load_settings().open_lake()
    if not force:
        _refuse_beside_runs()
    if not yes:
        found = session_lineage(lake, session_id)
        has = sorted({row.partition or "all" for row in found.rows})
        rows = (
            f"in {len(found.rows)} rows of {', '.join(has)}" if has else "in no table of the lake"
        )
        console.print(f"{printable(session_id)} is {rows}.", soft_wrap=True, highlight=False)
        where = (
            str(key)
            if key
            else f"every partition ({', '.join(has)})"
            if len(has) > 1
            else "".join(has)
        )
        typer.confirm(
            f"Remove it from {where} for good, and keep it out?"
            if where
            else "Keep it out of every later run?",
            abort=True,
        )
    _show(
        take_out(lake, session_id, key, load_settings().cache_path / "judge.sqlite"),
        as_json,
        print_forgotten,
    )


def prune(
    partition: Annotated[
        str, typer.Argument(help="project/agent; without it, every partition.")
    ] = "",
    keep: Annotated[
        int | None,
        typer.Option(
            min=0, help="Exports of the history that stay; default: the setting keep_exports."
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete them; without it, they are only shown.")
    ] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Show the models and exports that nothing names any more, and delete them with --delete."""
    from agent_pipeline.cli.report import print_pruned
    from agent_pipeline.governance.pruning import prune as find

    settings, key = load_settings(), parse_key(partition) if partition else None
    _show(
        find(settings.open_lake(), settings.keep_exports if keep is None else keep, key, delete),
        as_json,
        print_pruned,
    )


def _show(found: Any, as_json: bool, in_words: Callable[[Console, Any], None]) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        in_words(console, found)


def _refuse_beside_runs() -> None:
    """Refuse to forget while a run has rows in memory, which it would write again."""
    import dagster as dg

    from agent_pipeline.errors import DataError

    going = [
        dg.DagsterRunStatus.STARTING,
        dg.DagsterRunStatus.STARTED,
        dg.DagsterRunStatus.CANCELING,
    ]
    with open_instance() as instance:
        runs = instance.get_runs(dg.RunsFilter(statuses=going), limit=5)
    if runs:
        names = ", ".join(run.run_id for run in runs)
        raise DataError(
            f"A run goes on ({names}) and could write the session again: let it end or cancel it, "
            f"or use --force if it was killed."
        )
