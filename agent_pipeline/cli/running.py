"""The commands that run the graph: materialize, demo, dev and service."""

import json
import os
import socket
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from agent_pipeline.cli.instance import WORKSPACE, dagster_home, make_known, open_instance
from agent_pipeline.cli.registry import name_program
from agent_pipeline.cli.words import with_noun
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.errors import LakeError, SettingsError, StoreError
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.progress import duration

if TYPE_CHECKING:
    from agent_pipeline.config.resolution import RunValues

console = Console()

INTERRUPTED = 130
"""Exit code of a command that was ended by Ctrl-C, as shells define it."""

DATA_ASSETS = "group:traces or group:datasets or group:coresets"
DEMO_AGENT = PartitionKey("shop", "support")
DEMO_SETTINGS = ["sft_coreset.target_size=1000"]


def materialize(
    partition: Annotated[
        str | None,
        typer.Argument(
            help=(
                "Partition, as project/agent. Leave it out if you use --select "
                "multi_task_dataset, which has the rows of several agents."
            )
        ),
    ] = None,
    select: Annotated[
        str,
        typer.Option(
            help="Assets to run, in Dagster's selection syntax, such as 'adapter', "
            "'+sft_dataset' or 'group:exports'."
        ),
    ] = "*",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help=(
                "A setting for this run: asset.setting=value, or setting=value. You can use the "
                "option several times. docs/reference/settings.md lists the settings."
            ),
        ),
    ] = None,
    save: Annotated[
        bool,
        typer.Option(
            "--save",
            help="If the run succeeds, write the values of --set into pipeline.toml for this "
            "agent.",
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Make every model again, even if nothing has changed.")
    ] = False,
) -> None:
    """Run the assets of one agent, with the same graph, instance and settings as the UI."""
    if partition is None and select == "*":
        raise SettingsError(
            "No partition is given: give a partition (project/agent), or use --select "
            "multi_task_dataset."
        )
    if save and not settings:
        raise SettingsError(
            "--save writes the settings of --set, but there is no --set: add --set "
            "asset.setting=value."
        )
    key = parse_key(partition) if partition else None
    values, materialized = run(key, select, settings or [], fresh=fresh)
    if save:
        from agent_pipeline.config.saving import save as write

        path = write(values, key)
        named = ", ".join(
            f"{asset}.{name} = {value}"
            for asset, group in values.items()
            for name, value in group.items()
        )
        console.print(
            f"{path}: {named} for {key or 'all agents'}.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    elif settings:
        console.print(
            "Nightly runs do not use these settings: to write them into pipeline.toml, add --save.",
            highlight=False,
            soft_wrap=True,
        )
    if key and "champion" in materialized:
        print_outcome(key)


def demo(
    every: Annotated[
        bool, typer.Option("--all", help="Train all three sample agents instead of one.")
    ] = False,
) -> None:
    """Run the whole graph on the sample sessions, to a trained and verified GGUF model."""
    from agent_pipeline.cli.report import print_report
    from agent_pipeline.defs.resources import Workspace
    from agent_pipeline.governance.played_world import find_world_in_force

    began = time.monotonic()
    os.environ["AGENT_PIPELINE_STORE"] = str(_sample_store())
    workspace = Workspace()
    keys = workspace.open_store().partitions()
    trained = keys if every else [DEMO_AGENT]
    for number, key in enumerate(keys, 1):
        console.rule(f"{number}/{len(keys)}  {key}: sessions to datasets", align="left")
        run(key, DATA_ASSETS, DEMO_SETTINGS)
    for key in trained:
        console.rule(
            f"{key}: training, evaluation, export (this takes ten minutes to half an hour on two "
            "cores)",
            align="left",
        )
        run(key, "group:models or group:exports", [])
    console.rule("report", align="left")
    settings, lake = workspace.settings(), workspace.open_lake()
    print_report(console, lake, {key: find_world_in_force(settings, lake, key) for key in keys})
    console.print(
        f"\nDone in {duration(time.monotonic() - began)}. The UI, with the same runs and assets: "
        f"[bold]make dev[/bold]"
    )
    for key in trained:
        print_outcome(key)
    serve = f"{name_program()} serve {trained[0]}"
    console.print(
        f"To serve a model that you promoted: `{serve}`.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def dev(
    port: Annotated[int, typer.Option(help="Port of the web server.")] = 3000,
    host: Annotated[
        str, typer.Option(help="Address on which the web server listens.")
    ] = "127.0.0.1",
) -> None:
    """Start Dagster's web server and daemon, and show the address of the UI."""
    from agent_pipeline.defs.resources import Workspace

    check_port(host, port)
    home = dagster_home()
    try:
        keys = Workspace().open_store().partitions()
    except (StoreError, LakeError) as error:
        keys = []
        console.print(
            f"note: {error} The UI opens without its agents.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    make_known(keys)
    console.print(
        f"{with_noun(len(keys), 'partition')}: {', '.join(map(str, keys))}\n"
        f"Dagster home: {home}\nUI: http://{host}:{port}",
        highlight=False,
    )
    # `dg dev`, which is to replace this command, belongs to a package for developers that a user
    # need not have.
    quiet = ["-W", "ignore:Function `dev_command` is superseded"]
    os.execv(
        sys.executable,
        [
            sys.executable,
            *quiet,
            "-m",
            "agent_pipeline.cli.dev",
            "-w",
            WORKSPACE,
            "--host",
            host,
            "--port",
            str(port),
        ],
    )


def webserver(
    port: Annotated[int, typer.Option(help="Port of the web server.")] = 3000,
    host: Annotated[
        str, typer.Option(help="Address on which the web server listens.")
    ] = "127.0.0.1",
) -> None:
    """Run Dagster's web server as a service. `dev` runs the web server and the daemon.

    docs/how-to/operate.md shows how to set up both services.
    """
    check_port(host, port)
    _run_service("agent_pipeline.cli.webserver", "--host", host, "--port", str(port))


def daemon(
    port: Annotated[int, typer.Option(hidden=True, help="Port, which the daemon ignores.")] = 3000,
    host: Annotated[
        str, typer.Option(hidden=True, help="Address, which the daemon ignores.")
    ] = "127.0.0.1",
) -> None:
    """Run Dagster's daemon as a service. The daemon starts nightly runs and all other runs.

    docs/how-to/operate.md shows how to set up both services.
    """
    from agent_pipeline._compat.dagster import DAEMON_MODULE

    del port, host  # `serve daemon` took them, so that a service file may have them
    _run_service(DAEMON_MODULE, "run")


def _run_service(*module: str) -> None:
    """Run a module of Dagster in place of this process."""
    with (
        open_instance()
    ):  # Dagster itself takes a home without a dagster.yaml for one in SQLite, without limits
        pass
    os.execv(sys.executable, [sys.executable, "-m", *module, "-w", WORKSPACE])


def check_port(host: str, port: int) -> None:
    """Check that the web server can listen on its port before other processes are started.

    Raises:
        SettingsError: another program listens there, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(
            f"The web server cannot listen at {host}:{port} ({reason}): choose another --port or "
            "--host, or end the program that uses this port."
        ) from error


def print_outcome(key: PartitionKey) -> None:
    """Print the decision on an agent's latest export, the served model, and the next step."""
    from agent_pipeline.config.assets import ChampionConfig
    from agent_pipeline.config.resolution import resolve
    from agent_pipeline.promotion.next_steps import outcome_lines

    settings = load_settings()
    select_turns = resolve(settings, ChampionConfig, key).options.select_turns
    for line in outcome_lines(settings.open_lake(), key, settings.split_sizes, select_turns):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


class Ran(NamedTuple):
    """The outcome of a run: the settings that it set, by asset, and the materialized assets."""

    values: "RunValues"
    made: set[str]


def run(key: PartitionKey | None, select: str, settings: list[str], **options: Any) -> Ran:
    """Run assets with the `options` of `runs.materialize`.

    If the run fails, exit with one sentence.
    """
    from agent_pipeline.cli.runs import materialize
    from agent_pipeline.definitions import defs
    from agent_pipeline.defs.console import is_interruption
    from agent_pipeline.defs.run_config import config_by_group

    with open_instance() as instance:
        result = materialize(defs, instance, key, select, settings, **options)
    if any(is_interruption(event) for event in result.all_events):
        sys.stderr.write(
            f"agent-pipeline: the run {result.run_id} of {key or 'all agents'} was interrupted. "
            "Repeat the command to resume the run.\n"
        )
        raise typer.Exit(INTERRUPTED)
    if not result.success:
        what = (
            f"the run {result.run_id} of {key or 'all agents'} failed; the reason is above, and in "
            f"the UI"
        )
        sys.exit(f"agent-pipeline: {what}. Repeat the command to resume the run.")
    ops: Any = result.dagster_run.run_config["ops"]
    materialized = {
        event.asset_key.path[-1]
        for event in result.get_asset_materialization_events()
        if event.asset_key
    }
    return Ran(config_by_group(ops), materialized)


def require_judged_sessions(settings: Settings, key: PartitionKey) -> None:
    """Read and judge an agent's sessions if the lake does not have them yet.

    A new user can then judge sessions right after `init`. A language model is not asked, because it
    may cost money.
    """
    from agent_pipeline.config.resolution import resolve
    from agent_pipeline.judging.options import JudgingOptions

    if settings.open_lake().has("judged_sessions", key):
        return
    policy = resolve(settings, JudgingOptions, key).options.policy
    values = []
    if policy.has_judge("llm"):
        free = ["+".join(group) for group in policy.groups if "llm" not in group]
        values = [f"judged_sessions.decided_by={json.dumps(free)}"]
        console.print(
            f"note: The language model does not judge now. `{name_program()} materialize {key}` "
            "asks it.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    run(key, "+judged_sessions", values)


def _sample_store() -> Path:
    """Return the sample in the repository, or a copy of the sample in the cache."""
    from agent_pipeline.sample import write_sample

    committed = Path(str(files("agent_pipeline"))).parent / "data" / "sample"
    if committed.is_dir():
        return committed
    sample_folder = load_settings().cache_path / "sample"
    if not sample_folder.is_dir():
        write_sample(sample_folder)
    return sample_folder
