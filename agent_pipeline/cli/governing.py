"""The commands that remove something from the lake: forget and prune."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from agent_pipeline.cli.instance import open_instance
from agent_pipeline.cli.words import AS_JSON
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import SettingsError
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.storage.lake import Lake

console = Console()


def forget(
    session_ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of the sessions, separated by spaces.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Text file with more ids, one id per line.")
    ] = None,
    partition: Annotated[
        str,
        typer.Option(
            help="Partition, as project/agent. Default: every partition that has a session "
            "with one of these ids."
        ),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help=(
                "Continue even if Dagster reports a run in progress, for example a run that was "
                "killed."
            ),
        ),
    ] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Remove sessions from the whole lake, and list the models to train again.

    Later runs do not read the sessions again. The removal cannot be undone. All ids are removed in
    one pass over the lake. The exit code is 1 if the lake does not have one of the ids.
    """
    from agent_pipeline.cli.report import print_forgotten
    from agent_pipeline.governance.forgetting import forget_sessions

    ids = [*(session_ids or []), *(_read_ids(file) if file else [])]
    if not ids:
        raise SettingsError("No session is given: give session ids, or a file of ids with --file.")
    key = parse_key(partition) if partition else None
    lake = load_settings().open_lake()
    if not force:
        _refuse_beside_runs()
    if not yes:
        _confirm(lake, list(dict.fromkeys(ids)), key)
    forgotten = forget_sessions(lake, ids, key, load_settings().cache_path / "judge.sqlite")
    _show(forgotten, as_json, print_forgotten)
    if forgotten.unknown:
        raise typer.Exit(1)


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


def _read_ids(file: Path) -> list[str]:
    """Return the lines of a file that are not empty."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{file} cannot be read ({error}): give a text file with one id per line."
        ) from error
    return [line.strip() for line in lines if line.strip()]


def _confirm(lake: Lake, ids: list[str], key: PartitionKey | None) -> None:
    """Ask whether to forget sessions. For one session, show first where it is."""
    from agent_pipeline.cli.report import printable
    from agent_pipeline.governance.lineage import session_lineage

    if len(ids) > 1:
        where = str(key) if key else "every partition"
        typer.confirm(
            f"Remove {len(ids)} sessions from {where} permanently, and never read them again?",
            abort=True,
        )
        return
    lineage = session_lineage(lake, ids[0])
    having = sorted({row.partition or "all" for row in lineage.rows})
    rows = f"in {len(lineage.rows)} rows of {', '.join(having)}" if having else "in no table"
    console.print(f"{printable(ids[0])} is {rows}.", soft_wrap=True, highlight=False)
    where = "".join(having)
    if key:
        where = str(key)
    elif len(having) > 1:
        where = f"every partition ({', '.join(having)})"
    question = "Never read the session again?"
    if where:
        question = f"Remove the session from {where} permanently, and never read it again?"
    typer.confirm(question, abort=True)


def _refuse_beside_runs() -> None:
    """Refuse to forget sessions while a run is active, which could write their rows again."""
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
            f"A run is in progress ({names}) and could write the sessions again. Wait until it "
            "ends, or cancel it. If it was killed, use --force."
        )
