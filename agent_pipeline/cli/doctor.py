"""The command doctor: whether the sessions of an agent can be trained on, and why."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from agent_pipeline.cli.registry import print_next
from agent_pipeline.cli.words import AS_JSON
from agent_pipeline.errors import PipelineError, without_credentials
from agent_pipeline.keys import PartitionKey, parse_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_pipeline.readiness.doctor import Doctor
    from agent_pipeline.readiness.report import Readiness

NOT_YET, BAD_INPUT = 1, 2
"""Exit codes: no agent can be trained yet; a store or a setting cannot be read."""

progress = Console(stderr=True)


def doctor(
    path: Annotated[
        str | None,
        typer.Argument(
            help=(
                "A store (a file, a folder or a URL), or a folder that contains several stores. "
                "Default: the stores of the settings. You can also give only AGENT here."
            )
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Argument(help="The agent that is shown in full. Default: a summary of all agents."),
    ] = None,
    as_json: Annotated[bool, AS_JSON] = False,
    input_price: Annotated[
        float,
        typer.Option(
            min=0,
            help=(
                "Price of the model that the agent uses today, in US dollars per million input "
                "tokens."
            ),
        ),
    ] = 0.0,
    output_price: Annotated[
        float,
        typer.Option(
            min=0,
            help=(
                "Price of the model that the agent uses today, in US dollars per million output "
                "tokens."
            ),
        ),
    ] = 0.0,
    serving_price: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Price of the machine that would serve your own model, in US dollars per month.",
        ),
    ] = None,
) -> str:
    """Show what the sessions contain, who judged them, and whether a model can be trained on them.

    If there are several agents, the command shows the agents for which a model can be trained
    soonest, and counts the other agents. The command writes nothing, and sends nothing to a
    language model. The exit code is 0 if at least one agent can be trained, 1 if no agent can be
    trained yet, and 2 if a store or a setting cannot be read.
    """
    from agent_pipeline.readiness.screen import describe_readiness
    from agent_pipeline.sessions.cost import Prices

    try:
        if path and not agent and is_agent(path):
            path, agent = None, path
        examiner = make_doctor(path)
        examiner.prices = Prices(input_price, output_price, serving_price)
        report = examiner.report(note_progress, parse_key(agent) if agent else None)
    except PipelineError as error:
        typer.echo(f"agent-pipeline: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    if as_json:
        typer.echo(without_credentials(msgspec.json.encode(report).decode()))
    else:
        for line in describe_readiness(report, path or ""):
            typer.echo(line)
    next_step = propose_next(report)
    if path is not None and next_step and not are_set(report.stores):
        next_step = f"init {shlex.quote(path)}"
    if exit_code := find_exit_code(report):
        if not as_json:
            print_next(next_step)
        raise typer.Exit(exit_code)
    return next_step


def are_set(stores: "Sequence[str]") -> bool:
    """Return whether the settings name all of the stores, so that other commands read them."""
    from agent_pipeline.config.settings import load_settings

    return set(stores) <= {without_credentials(str(store)) for store in load_settings().stores}


def propose_next(report: "Readiness") -> str:
    """Return the next command: to train the agent that is nearest to a model, or to judge."""
    from agent_pipeline.readiness.screen import measure_distance

    agents = sorted(report.agents, key=measure_distance)
    if agents and agents[0].is_ready:
        return f"materialize {agents[0].partition}"
    for agent in agents:
        kinds = {blocker.kind for blocker in agent.blockers}
        if "unread_metrics" in kinds:
            return f"doctor {agent.partition}"
        if "unjudged" in kinds:
            return f"review {agent.partition}"
    return ""


def is_agent(word: str) -> bool:
    """Return whether a word names an agent of the settings' stores, and no path."""
    from agent_pipeline.config.settings import load_settings

    if "://" in word or Path(word).expanduser().exists():
        return False
    try:
        return parse_key(word) in load_settings().open_store().partitions()
    except PipelineError:
        return False


def make_doctor(path: str | None) -> "Doctor":
    """Return the examiner of the stores of the settings, or of the stores at a path.

    Raises:
        PipelineError: There is no store at the path, or a setting is wrong.
    """
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.defs.resources import Workspace, read_labels_of_agent
    from agent_pipeline.readiness.doctor import Doctor
    from agent_pipeline.sources import list_stores, readers

    settings = load_settings()
    unknown: list[str] = []
    if path is not None:
        stores, unknown = list_stores(path, readers(settings.sources))
        settings = load_settings(store=stores)
    return Doctor(
        settings, partial(read_labels_of_agent, settings), Workspace().open_judge, unknown=unknown
    )


def note_progress(key: PartitionKey) -> None:
    """Show on a terminal which agent is read."""
    if progress.is_terminal:
        progress.print(f"reading {key} …", highlight=False, markup=False)


def find_exit_code(report: "Readiness") -> int:
    """Return the exit code for a report."""
    if report.is_ready:
        return 0
    return BAD_INPUT if report.errors else NOT_YET
