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
    no_args_is_help=True, help="Show what was made from a session, or what a model was made from."
)

AS_JSON = typer.Option(
    "--json",
    help="Print JSON. docs/reference/cli.md lists the fields.",
)


@lineage.command("session", epilog="Example: agent-pipeline lineage session SESSION_ID")
def lineage_session(
    session_id: Annotated[str, typer.Argument(help="The session's id.")],
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """List every table, file and model that was made from a session.

    The exit code is 1 if the lake has nothing of the session.
    """
    from agent_pipeline.cli.report import print_session_lineage
    from agent_pipeline.governance.lineage import session_lineage

    reached = session_lineage(load_settings().open_lake(), session_id)
    _show(reached, as_json, print_session_lineage)
    if not (reached.rows or reached.models or reached.forgotten_in):
        raise typer.Exit(1)


@lineage.command("model", epilog="Example: agent-pipeline lineage model 3f2a91c04b7d")
def lineage_model(
    model: Annotated[
        str,
        typer.Argument(
            help="Folder of a model, a file in the folder, or the first eight or more characters "
            "of the model's identity."
        ),
    ],
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Show what a model was made from: sessions, rows, settings, base model, code and tables."""
    from agent_pipeline.cli.report import print_model_lineage
    from agent_pipeline.governance.lineage import model_lineage

    _show(model_lineage(load_settings().open_lake(), model), as_json, print_model_lineage)


def forget(
    session_id: Annotated[str, typer.Argument(help="The session's id.")],
    partition: Annotated[
        str,
        typer.Option(
            help="Partition, as project/agent. Default: every partition that has a session "
            "with this id."
        ),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Continue although Dagster reports a run in progress, for example a run that "
            "was killed.",
        ),
    ] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Remove a session from the whole lake, and list the models to train again.

    Later runs do not read the session again. The removal cannot be undone.
    """
    from agent_pipeline.cli.report import print_forgotten, printable
    from agent_pipeline.governance.forgetting import forget as take_out
    from agent_pipeline.governance.lineage import session_lineage

    key = parse_key(partition) if partition else None
    lake = load_settings().open_lake()
    if not force:
        _refuse_beside_runs()
    if not yes:
        lineage = session_lineage(lake, session_id)
        has = sorted({row.partition or "all" for row in lineage.rows})
        rows = (
            f"in {len(lineage.rows)} rows of {', '.join(has)}" if has else "in no table of the lake"
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
        str, typer.Argument(help="Partition, as project/agent. Default: every partition.")
    ] = "",
    keep: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of exports of the history to keep. Default: keep_exports."
        ),
    ] = None,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete", help="Delete the models and exports, instead of only showing them."
        ),
    ] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Show the models and exports that are no longer used, and delete them with --delete."""
    from agent_pipeline.cli.report import print_pruned
    from agent_pipeline.governance.pruning import prune as find

    settings, key = load_settings(), parse_key(partition) if partition else None
    _show(
        find(settings.open_lake(), settings.keep_exports if keep is None else keep, key, delete),
        as_json,
        print_pruned,
    )


def _show(lineage: object, as_json: bool, in_words: Callable[[Console, Any], None]) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(lineage).decode())
    else:
        in_words(console, lineage)


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
