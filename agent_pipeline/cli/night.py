"""The command night, which shows what the next nightly run would do."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from agent_pipeline.cli.instance import find_home, open_instance
from agent_pipeline.cli.words import AS_JSON, with_noun
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.errors import SettingsError

if TYPE_CHECKING:
    from agent_pipeline.governance.agent_status import NightStatus

console = Console()


class PlannedAgent(msgspec.Struct, frozen=True):
    """An agent in the plan of the next night.

    Attributes:
        partition: The agent's partition.
        runs: Whether the night runs the agent.
        reason: What is new, or why the night skips the agent.
    """

    partition: str
    runs: bool
    reason: str


class PlannedNight(msgspec.Struct, frozen=True):
    """The plan of the next night.

    Attributes:
        begins: The time at which the night begins.
        agents: The agents that the night runs, in the order of the runs, and then the other agents.
        note: The action that is needed so that the night begins; empty if none is needed.
    """

    begins: str
    agents: list[PlannedAgent]
    note: str


def night(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the next night would do.")
    ] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> str | None:
    """Show which agents the next night would run or skip, and why.

    The command does not start a run. Only the daemon starts nightly runs (`agent-pipeline service
    daemon`).
    """
    from agent_pipeline.defs.automation.nightly import plan_night
    from agent_pipeline.defs.partitions import AGENTS
    from agent_pipeline.defs.resources import Workspace

    if not dry_run:
        raise SettingsError(
            "Only the daemon starts nights (`agent-pipeline service daemon`): add --dry-run to see "
            "what the next night would do, or run one agent now with `agent-pipeline materialize`."
        )
    settings = load_settings()
    status = read_night_status(settings)
    if status.begins is None:
        raise SettingsError(status.note, setting="night.cron")
    with open_instance() as instance:
        names = sorted(instance.get_dynamic_partitions(AGENTS.name or ""))
        plan = plan_night(
            Workspace(), instance, names, datetime.fromisoformat(status.begins).astimezone(UTC)
        )
    agents = [PlannedAgent(agent.partition, True, agent.reason) for agent in plan.runs]
    agents += [PlannedAgent(agent.partition, False, agent.reason) for agent in plan.skipped]
    if as_json:
        typer.echo(msgspec.json.encode(PlannedNight(status.begins, agents, status.note)))
        return None
    _print(f"The next night begins at {status.begins}.")
    if status.note:
        _print(f"note: {status.note}")
    for agent in agents:
        _print(f"{'run ' if agent.runs else 'skip'}  {agent.partition}: {agent.reason}")
    _print(
        f"{with_noun(len(plan.runs), 'run')}, {with_noun(len(plan.skipped), 'agent')} skipped."
        if names
        else "No agent is known yet."
    )
    if plan.runs:
        return f"materialize {plan.runs[0].partition}"
    return "status" if names else "discover"


def read_night_status(settings: Settings) -> "NightStatus":
    """Return when the next night begins, and whether something prevents it.

    A Dagster home that does not exist is not created. If Dagster's database cannot be opened, the
    note says why.
    """
    from agent_pipeline.defs.asset_keys import add_prefix
    from agent_pipeline.defs.automation.nightly import cron_problems, is_schedule_on, next_night
    from agent_pipeline.governance.agent_status import NightStatus

    if problems := cron_problems(settings):
        return NightStatus(begins=None, is_on=None, note=" ".join(problems))
    begins = next_night(settings.night, datetime.now(UTC)).isoformat()
    schedule = add_prefix("nightly")
    off = f"the schedule `{schedule}` is switched off: switch it on in the UI, under Automation"
    if find_home() is None:
        return NightStatus(begins=begins, is_on=False, note=off)
    try:
        with open_instance() as instance:
            is_on = is_schedule_on(instance)
    except SettingsError as error:
        return NightStatus(begins=begins, is_on=None, note=str(error))
    return NightStatus(begins=begins, is_on=is_on, note="" if is_on else off)


def _print(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
