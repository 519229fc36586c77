"""Renamed definitions work as before, and Dagster still cannot rename them itself."""

from collections.abc import Iterator
from types import SimpleNamespace

import dagster as dg
import pytest

from agent_pipeline._compat.dagster_prefix import Renaming

RENAMING = Renaming(lambda name: f"team__{name}", ["shelf", "tables"])
KEYS = {"team__shelf", "team__tables"}


class Shelf(dg.ConfigurableResource):
    """A resource of the definitions below."""

    label: str = "ours"


class Kept(dg.IOManager):
    """An IO manager that keeps the outputs."""

    def __init__(self) -> None:
        self.outputs: dict[str, object] = {}

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        self.outputs[context.asset_key.to_user_string()] = obj

    def load_input(self, context: dg.InputContext) -> object:
        return self.outputs[context.asset_key.to_user_string()]


@dg.asset(
    pool="gpu",
    config_schema={"size": dg.Field(int, default_value=1)},
    check_specs=[dg.AssetCheckSpec("full", asset="a")],
    io_manager_key="tables",
)
def a(
    context: dg.AssetExecutionContext, shelf: dg.ResourceParam[Shelf]
) -> Iterator[dg.MaterializeResult]:
    yield dg.MaterializeResult(
        value=f"{shelf.label} {context.op_execution_context.op_config['size']}",
        check_results=[dg.AssetCheckResult(passed=True)],
    )


@dg.asset(io_manager_key="tables")
def b(a: str) -> str:
    return f"b of {a}"


@dg.asset_check(asset="a")
def sound(shelf: dg.ResourceParam[Shelf]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=shelf.label == "ours")


@dg.op(config_schema={"why": str})
def move(context: dg.OpExecutionContext, shelf: dg.ResourceParam[Shelf]) -> None:
    context.log.info(f"{shelf.label}: {context.op_config['why']}")


@dg.job(description="Moves something.")
def move_all() -> None:
    move()


every = dg.define_asset_job("every", selection=["a", "b"], tags={"color": "red"})


@dg.schedule(job=every, cron_schedule="0 2 * * *", execution_timezone="Europe/Berlin")
def daily(
    context: dg.ScheduleEvaluationContext, shelf: dg.ResourceParam[Shelf]
) -> Iterator[dg.RunRequest]:
    yield dg.RunRequest(tags={"shelf": shelf.label})


@dg.sensor(minimum_interval_seconds=77)
def watch(context: dg.SensorEvaluationContext, shelf: dg.ResourceParam[Shelf]) -> dg.SkipReason:
    return dg.SkipReason(shelf.label)


eager = dg.AutomationConditionSensorDefinition("eager", target=[a])


@pytest.fixture
def renamed() -> dg.Definitions:
    definitions = dg.Definitions(
        assets=[a, b],
        asset_checks=[sound],
        jobs=[every, move_all],
        schedules=[daily],
        sensors=[watch, eager],
        resources={"shelf": Shelf(), "tables": Kept()},
    )
    return RENAMING.rename(definitions)


def test_names(renamed: dg.Definitions) -> None:
    """Every name is new, and keys, checks, pools, tags and times are the old ones."""
    repository = renamed.get_repository_def()
    assert {name for name in repository.job_names if "ASSET_JOB" not in name} == {
        "team__every",
        "team__move_all",
    }
    assert [schedule.name for schedule in repository.schedule_defs] == ["team__daily"]
    assert {sensor.name for sensor in repository.sensor_defs} == {"team__watch", "team__eager"}
    assert set(repository.get_top_level_resources()) == KEYS
    assert set(renamed.resolve_all_asset_keys()) == {dg.AssetKey("a"), dg.AssetKey("b")}
    asset = renamed.resolve_asset_graph().get(dg.AssetKey("a")).assets_def
    assert asset.op.name == "team__a" and asset.op.pool == "gpu"
    assert asset.check_keys == a.check_keys
    job = renamed.resolve_job_def("team__every")
    assert job.tags["color"] == "red"
    schedule = renamed.resolve_schedule_def("team__daily")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 2 * * *", "Europe/Berlin")
    assert schedule.job_name == "team__every"
    assert renamed.resolve_sensor_def("team__watch").minimum_interval_seconds == 77


def test_originals(renamed: dg.Definitions) -> None:
    """The definitions of the modules stay as they are, since other prefixes may follow."""
    assert a.op.name == "a" and a.required_resource_keys >= {"shelf", "tables"}
    assert (daily.name, watch.name, every.name, move_all.name) == (
        "daily",
        "watch",
        "every",
        "move_all",
    )


def test_runs(renamed: dg.Definitions) -> None:
    """Assets, checks and ops get their resources and their config."""
    config = {"ops": {"team__a": {"config": {"size": 3}}}}
    result = renamed.resolve_job_def("team__every").execute_in_process(run_config=config)
    assert result.success and result.output_for_node("team__b") == "b of ours 3"
    moved = renamed.resolve_job_def("team__move_all")
    assert moved.description == "Moves something."
    assert moved.execute_in_process(
        run_config={"ops": {"move": {"config": {"why": "dust"}}}}
    ).success


def test_ticks(renamed: dg.Definitions) -> None:
    """The functions of the schedule and of the sensor get the resources by their new keys."""
    resources = {"team__shelf": Shelf(label="new")}
    with dg.build_schedule_context(resources=resources) as schedule_context:
        schedule = renamed.resolve_schedule_def("team__daily")
        (request,) = schedule.evaluate_tick(schedule_context).run_requests or []
    assert request.tags["shelf"] == "new"
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance, resources=resources)
        tick = renamed.resolve_sensor_def("team__watch").evaluate_tick(context)
    assert tick.skip_message == "new"


def test_prefix_in_dagster() -> None:
    """The hook is needed as long as Dagster gives the prefix to keys only."""
    module = SimpleNamespace(__name__="m", a=a)
    (prefixed,) = dg.load_assets_from_modules([module], key_prefix="p")  # type: ignore[list-item]
    assert isinstance(prefixed, dg.AssetsDefinition)
    assert prefixed.key.path == ["p", "a"] and prefixed.op.name == "a"
