"""The command `agent-pipeline`: discover, materialize, review, status, lineage, forget, demo, dev. Exit code 0 only on success."""

import os
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent_pipeline.cli.play import play
from agent_pipeline.errors import PipelineError, SettingsError, disk_sentence
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.progress import duration

if TYPE_CHECKING:
    from agent_pipeline.ingestion.discovery import Discovery, PartitionReport
    from agent_pipeline.storage.lake import Lake

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
lineage = typer.Typer(no_args_is_help=True, help="Where a session went, and what a model was made of.")
app.add_typer(lineage, name="lineage")
app.command()(play)
console = Console()

DATA_ASSETS = "group:traces or group:datasets or group:coresets"


def main() -> None:
    """Run the command; what the user can mend ends in one line on standard error and exit code 1."""
    try:
        app()
    except PipelineError as error:
        sys.exit(f"agent-pipeline: {error}")
    except OSError as error:
        if (sentence := disk_sentence(error)) is None:
            raise
        sys.exit(f"agent-pipeline: {sentence}")


@app.command()
def discover(
    path: Annotated[
        str | None, typer.Argument(help="A store (a file, a folder, a URL), or a folder of several; without it, the settings'.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; its fields are those of agent_pipeline.ingestion.discovery.")
    ] = False,
) -> None:
    """Say what a session store is and what it holds; the agents of the settings' stores become known to Dagster.

    Exit code 1 if a part of a store could not be read. What was left out of a store that could be (a line that is no JSON, say) is noted.
    """
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.ingestion.discovery import discover as look
    from agent_pipeline.ingestion.forgotten import BlockList
    from agent_pipeline.sources import parse_location, readers

    settings = load_settings()
    blocked = BlockList.read(_lake())
    found = look([parse_location(path)] if path else settings.stores, readers(settings.sources), blocked)
    if path is None:
        _make_known(sorted({parse_key(each.partition) for store in found.stores for each in store.partitions}))
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        _show(found)
    if not found.readable:
        raise typer.Exit(1)


def _show(found: "Discovery") -> None:
    for store in found.stores:
        totals = f"{store.projects} projects, {store.agents} agents, {store.sessions} sessions"
        table = Table(title=escape(f"{store.path}: {store.source or 'could not be read'}, {totals}"), title_justify="left")
        rows = [(each.partition, _counted(each)) for each in store.partitions]
        shown = dict.fromkeys(name for _, counts in rows for name, count in counts.items() if count)
        table.add_column("partition", overflow="fold")
        for name in shown:
            table.add_column(escape(name), justify="right")
        for partition, counts in rows:
            table.add_row(partition, *(str(counts.get(name, 0)) for name in shown))
        console.print(table)
        for note in store.notes:
            console.print(f"note: {note}", markup=False, soft_wrap=True)
        for error in store.errors:
            console.print(f"error: {error}", markup=False, soft_wrap=True)
    if found.unknown:
        console.print(f"No reader knows {len(found.unknown)} files: {', '.join(found.unknown[:20])}", markup=False, soft_wrap=True)


def _counted(each: "PartitionReport") -> dict[str, int]:
    judged = {f"judged {judgment}": count for judgment, count in each.judgments.items()}
    others = {
        "forgotten": each.forgotten,
        "not judged": each.unjudged,
        "scored": each.scored,
        "failed": each.failed,
        "side chains": each.side_chains,
    }
    return {"sessions": each.sessions, **judged, **others, "damaged": each.damaged}


@app.command()
def materialize(
    partition: Annotated[str | None, typer.Argument(help="project/agent; none with --select multi_task_dataset, which pools all.")] = None,
    select: Annotated[
        str, typer.Option(help="Assets, in Dagster's selection syntax: 'sft_adapter', '+sft_dataset', 'group:exports'.")
    ] = "*",
    settings: Annotated[list[str] | None, typer.Option("--set", help="asset.field=value or field=value; repeatable.")] = None,
) -> None:
    """Materialize a partition's assets: the same graph, in the same Dagster instance, as from the UI."""
    if partition is None and select == "*":
        raise SettingsError("Nothing says what to materialize: name a partition (project/agent), or --select multi_task_dataset.")
    _materialize(parse_key(partition) if partition else None, select, settings or [])


@app.command()
def review(
    partition: Annotated[str, typer.Argument(help="project/agent")],
    out: Annotated[Path, typer.Option(help="What to write: .csv or .jsonl to fill in, .html for a page with buttons.")] = Path(
        "review.csv"
    ),
    sample: Annotated[int, typer.Option(min=1, help="How many sessions.")] = 50,
    seed: Annotated[int, typer.Option(help="Another seed chooses others.")] = 0,
    first: Annotated[str, typer.Option(help="unjudged, or disagreement (of people with another judge).")] = "unjudged",
) -> None:
    """Write a sample of judged sessions for a person to judge; the filled file joins the next run from where the setting labels points."""
    from agent_pipeline.defs.resources import Workspace
    from agent_pipeline.judging.review import sample as choose
    from agent_pipeline.judging.review import write_review
    from agent_pipeline.sessions.tables import stored_batches, to_rows

    key = parse_key(partition)
    judged = Workspace().open_lake().open("judged_sessions", key)
    rows, counts = choose(to_rows(stored_batches(judged)), sample, seed, first)
    write_review(out, rows)
    found = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    console.print(f"{len(rows)} sessions of {key} are in {out} (of {counts.total()}: {found}).", soft_wrap=True, highlight=False)


@app.command()
def status() -> None:
    """Show what the lake holds of every partition."""
    from agent_pipeline.cli.report import status_table
    from agent_pipeline.defs.resources import Workspace

    workspace = Workspace()
    console.print(status_table(workspace.open_lake(), workspace.open_store().partitions()))


AS_JSON = typer.Option(
    "--json", help="Print JSON; its fields are those of agent_pipeline.governance.lineage and agent_pipeline.governance.forgetting."
)


@lineage.command("session")
def lineage_session(
    session_id: Annotated[str, typer.Argument(help="The session's id.")], as_json: Annotated[bool, AS_JSON] = False
) -> None:
    """Every table, file and model that a session reached, over all partitions of the lake; exit code 1 if it reached none."""
    from agent_pipeline.cli.report import print_session_lineage
    from agent_pipeline.governance.lineage import session_lineage

    found = session_lineage(_lake(), session_id)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        print_session_lineage(console, found)
    if not (found.rows or found.models or found.forgotten_in):
        raise typer.Exit(1)


@lineage.command("model")
def lineage_model(
    model: Annotated[str, typer.Argument(help="A model's folder, a file in it, or its identity (eight or more digits).")],
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """What a model was made of: sessions, rows, settings, base model and revision, code, versions of tables."""
    from agent_pipeline.cli.report import print_model_lineage
    from agent_pipeline.governance.lineage import model_lineage

    found = model_lineage(_lake(), model)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        print_model_lineage(console, found)


@app.command()
def forget(
    session_id: Annotated[str, typer.Argument(help="The session's id.")],
    partition: Annotated[str, typer.Option(help="project/agent; without it, every partition that has a session of this id.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also while Dagster says that a run goes on (one that was killed, say).")] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Take a session out of everything that the lake holds, keep it out, and name the models to train again. It cannot be undone."""
    from agent_pipeline.cli.report import print_forgotten
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.governance.forgetting import forget as take_out
    from agent_pipeline.governance.lineage import session_lineage

    key = parse_key(partition) if partition else None
    lake = _lake()
    if not force:
        _refuse_beside_runs()
    if not yes:
        found = session_lineage(lake, session_id)
        has = sorted({row.partition or "all" for row in found.rows})
        where = str(key) if key else f"every partition ({', '.join(has)})" if len(has) > 1 else ", ".join(has) or "no table"
        console.print(f"{session_id} is in {len(found.rows)} rows of {', '.join(has) or 'no table'}.", soft_wrap=True, highlight=False)
        typer.confirm(f"Remove it from {where} for good, and keep it out?", abort=True)
    gone = take_out(lake, session_id, key, load_settings().cache_path / "judge.sqlite")
    if as_json:
        typer.echo(msgspec.json.encode(gone).decode())
    else:
        print_forgotten(console, gone)


@app.command()
def demo(
    every: Annotated[bool, typer.Option("--all", help="Train all sample agents, not just one.")] = False,
) -> None:
    """Take the simulated sample sessions through the whole graph, to a trained, evaluated, verified GGUF model."""
    from agent_pipeline.cli.report import print_report
    from agent_pipeline.defs.resources import Workspace

    began = time.monotonic()
    os.environ["AGENT_PIPELINE_STORE"] = str(_sample_store())
    workspace = Workspace()
    keys = workspace.open_store().partitions()
    trained = keys if every else [DEMO_AGENT]
    for number, key in enumerate(keys, 1):
        console.rule(f"{number}/{len(keys)}  {key}: sessions to datasets", align="left")
        _materialize(key, DATA_ASSETS, DEMO_SETTINGS[:1])
    for key in trained:
        console.rule(f"{key}: training, evaluation, export (the long part: about ten minutes on two cores)", align="left")
        _materialize(key, "group:models or group:exports", DEMO_SETTINGS[1:])
    console.rule("report", align="left")
    print_report(console, workspace.open_lake(), keys)
    console.print(f"\nDone in {duration(time.monotonic() - began)}. The UI, with the same runs and assets: [bold]make dev[/bold]")


DEMO_AGENT = PartitionKey("shop", "support")
DEMO_SETTINGS = ["sft_coreset.target_size=1000"]


@app.command()
def dev(
    port: Annotated[int, typer.Option(help="Port of the web server.")] = 3000,
    host: Annotated[str, typer.Option(help="Address that it listens on.")] = "127.0.0.1",
) -> None:
    """Open Dagster's UI and its daemon on the project's own instance."""
    from agent_pipeline.cli.instance import dagster_home
    from agent_pipeline.defs.resources import Workspace

    home = dagster_home()
    keys = Workspace().open_store().partitions()
    _make_known(keys)
    console.print(f"{len(keys)} partitions: {', '.join(map(str, keys))}\nDagster home: {home}\nUI: http://{host}:{port}", highlight=False)
    command = [sys.executable, "-m", "dagster", "dev", "-m", "agent_pipeline.definitions", "--host", host, "--port", str(port)]
    os.execv(sys.executable, command)


def _lake() -> "Lake":
    from agent_pipeline.config.settings import load_settings

    return load_settings().open_lake()


def _refuse_beside_runs() -> None:
    """A run has rows in memory, and would write them after they were forgotten."""
    import dagster as dg

    from agent_pipeline.cli.instance import open_instance
    from agent_pipeline.errors import DataError

    going = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    with open_instance() as instance:
        runs = instance.get_runs(dg.RunsFilter(statuses=going), limit=5)
    if runs:
        names = ", ".join(run.run_id for run in runs)
        raise DataError(
            f"A run goes on ({names}) and could write the session again: let it end or cancel it, or use --force if it was killed."
        )


def _materialize(key: PartitionKey | None, select: str, settings: list[str]) -> None:
    from agent_pipeline.cli.instance import open_instance
    from agent_pipeline.cli.runs import materialize as run
    from agent_pipeline.definitions import defs

    with open_instance() as instance:
        result = run(defs, instance, key, select, settings)
    if not result.success:
        sys.exit(f"agent-pipeline: the run {result.run_id} of {key or 'all agents'} failed; what failed is said above, and in the UI.")


def _make_known(keys: list[PartitionKey]) -> None:
    from agent_pipeline.cli.instance import open_instance
    from agent_pipeline.defs.partitions import AGENTS

    with open_instance() as instance:
        instance.add_dynamic_partitions(AGENTS.name or "", [str(key) for key in keys])


def _sample_store() -> Path:
    """The committed sample, or (installed without the repository) one made anew in the cache."""
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.sample import write_sample

    committed = Path(str(files("agent_pipeline"))).parent / "data" / "sample"
    if committed.is_dir():
        return committed
    made = load_settings().cache_path / "sample"
    if not made.is_dir():
        write_sample(made)
    return made


if __name__ == "__main__":
    main()
