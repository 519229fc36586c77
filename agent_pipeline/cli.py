"""The command `agent-pipeline`: discover, materialize, status, demo, dev. Exit code 0 only on success."""

import json
import os
import sys
import time
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agent_pipeline.errors import PipelineError, disk_sentence
from agent_pipeline.progress import duration
from agent_pipeline.traces.partitions import PartitionKey, parse_key

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
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
    path: Annotated[Path | None, typer.Argument(help="A store; without it, the one that the settings name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a session store is and which partitions it has; those of the settings' store become known to Dagster."""
    from agent_pipeline.settings import load_settings
    from agent_pipeline.traces.sources import open_source

    settings = load_settings()
    source = open_source(path or settings.store_path)
    found: list[dict[str, Any]] = []
    for key in source.partitions():
        judged: Counter[str] = Counter()
        for session in source.sessions(key):
            judged.update(["sessions", f"judged {session.judgment}" if session.judgment else "not judged"])
        found.append({"partition": str(key), **judged})
    if path is None:
        _make_known([parse_key(each["partition"]) for each in found])
    if as_json:
        typer.echo(
            json.dumps({"source": source.name, "path": str(path or settings.store_path), "partitions": found, "notes": source.notes})
        )
        return
    table = Table(title=f"{path or settings.store_path}: {source.name}", title_justify="left")
    names = ("partition", "sessions", "judged acceptable", "judged unacceptable", "not judged")
    for name in names:
        table.add_column(name, justify="left" if name == "partition" else "right")
    for each in found:
        table.add_row(*(str(each.get(name, 0)) for name in names))
    console.print(table)
    for note in source.notes:
        console.print(f"note: {note}")


@app.command()
def materialize(
    partition: Annotated[str, typer.Argument(help="project/agent")],
    select: Annotated[
        str, typer.Option(help="Assets, in Dagster's selection syntax: 'sft_adapter', '+sft_dataset', 'group:exports'.")
    ] = "*",
    settings: Annotated[list[str] | None, typer.Option("--set", help="asset.field=value or field=value; repeatable.")] = None,
) -> None:
    """Materialize a partition's assets: the same graph, in the same Dagster instance, as from the UI."""
    _materialize(parse_key(partition), select, settings or [])


@app.command()
def status() -> None:
    """Show what the lake holds of every partition."""
    from agent_pipeline.defs.resources import Workspace
    from agent_pipeline.report import status_table

    workspace = Workspace()
    console.print(status_table(workspace.open_lake(), workspace.open_store().partitions()))


@app.command()
def demo(
    every: Annotated[bool, typer.Option("--all", help="Train all sample agents, not just one.")] = False,
) -> None:
    """Take the simulated sample sessions through the whole graph, to a trained, evaluated, verified GGUF model."""
    from agent_pipeline.defs.resources import Workspace
    from agent_pipeline.report import print_report

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
    from agent_pipeline.defs.resources import Workspace
    from agent_pipeline.instance import dagster_home

    home = dagster_home()
    keys = Workspace().open_store().partitions()
    _make_known(keys)
    console.print(f"{len(keys)} partitions: {', '.join(map(str, keys))}\nDagster home: {home}\nUI: http://{host}:{port}", highlight=False)
    command = [sys.executable, "-m", "dagster", "dev", "-m", "agent_pipeline.definitions", "--host", host, "--port", str(port)]
    os.execv(sys.executable, command)


def _materialize(key: PartitionKey, select: str, settings: list[str]) -> None:
    from agent_pipeline.definitions import defs
    from agent_pipeline.instance import open_instance
    from agent_pipeline.runs import materialize as run

    with open_instance() as instance:
        result = run(defs, instance, key, select, settings)
    if not result.success:
        sys.exit(f"agent-pipeline: the run {result.run_id} of {key} failed; what failed is said above, and in the UI.")


def _make_known(keys: list[PartitionKey]) -> None:
    from agent_pipeline.defs.partitions import AGENTS
    from agent_pipeline.instance import open_instance

    with open_instance() as instance:
        instance.add_dynamic_partitions(AGENTS.name or "", [str(key) for key in keys])


def _sample_store() -> Path:
    """The committed sample, or (installed without the repository) one made anew in the cache."""
    from agent_pipeline.sample import write_sample
    from agent_pipeline.settings import load_settings

    committed = Path(str(files("agent_pipeline"))).parent / "data" / "sample"
    if committed.is_dir():
        return committed
    made = load_settings().cache_path / "sample"
    if not made.is_dir():
        write_sample(made)
    return made


if __name__ == "__main__":
    main()
