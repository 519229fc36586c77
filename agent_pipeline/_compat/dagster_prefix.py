"""Other names for Dagster definitions, for the ops in them and for the resources that they need.

Dagster 1.13 can give a prefix to the keys of assets, and to nothing else. Two projects in one code
location therefore clash as soon as both have a job or a resource of the same name. Which prefix is
used belongs to `defs.asset_keys`.
"""

import copy
import inspect
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import dagster as dg
from dagster._core.definitions.decorators.op_decorator import DecoratedOpFunction
from dagster._core.definitions.dependency import NodeInvocation
from dagster._core.definitions.sensor_definition import wrap_sensor_evaluation
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster_shared.record import replace

Job = dg.JobDefinition | UnresolvedAssetJobDefinition
Asset = TypeVar("Asset", bound=dg.AssetsDefinition)


class Renaming:
    """New names for definitions that belong together.

    `rename` returns copies. The original definitions are not changed.

    Args:
        rename: A function that returns the new name of a definition, an op or a resource.
        resources: The keys of the resources that get a new name, too.
    """

    def __init__(self, rename: Callable[[str], str], resources: Collection[str]) -> None:
        self._rename = rename
        self._keys = {key: rename(key) for key in resources}

    def rename(self, definitions: dg.Definitions) -> dg.Definitions:
        """Return definitions in which all ops, jobs, schedules, sensors and resources are renamed.

        The executor and the loggers stay, and so do the keys of the assets.
        """
        jobs = [self._rename_job(job) for job in definitions.jobs or ()]
        resources = definitions.resources or {}
        return dg.Definitions(
            assets=[self._rename_asset(asset) for asset in definitions.assets or ()],
            asset_checks=[self._rename_ops(checks) for checks in definitions.asset_checks or ()],
            jobs=jobs,
            schedules=[
                self._rename_schedule(schedule, jobs) for schedule in definitions.schedules or ()
            ],
            sensors=[self._rename_sensor(sensor) for sensor in definitions.sensors or ()],
            resources={self._keys.get(key, key): resource for key, resource in resources.items()},
            executor=definitions.executor,
            loggers=definitions.loggers,
        )

    def _rename_asset(self, asset: Any) -> Any:
        """Return an asset with a renamed op."""
        if isinstance(asset, dg.AssetsDefinition):
            return self._rename_ops(asset)
        return self._rename_source(asset) if isinstance(asset, dg.SourceAsset) else asset

    def _rename_ops(self, definition: Asset) -> Asset:
        """Return an asset, several assets of one op, or asset checks, with a renamed op."""
        if not definition.is_executable:
            return definition
        attributes = {
            **definition.get_attributes_dict(),
            "node_def": self._rename_op(definition.op),
        }
        renamed: Any = type(definition).dagster_internal_init(**attributes)
        return cast(Asset, renamed)

    def _rename_source(self, asset: dg.SourceAsset) -> dg.SourceAsset:
        """Return an observable source asset whose function gets its resources by the new keys.

        The op has the key of the asset as its name, and so it has the prefix already.
        """
        copied = copy.copy(asset)
        if asset.observe_fn is not None:
            copied.observe_fn = self._rename_parameters(asset.observe_fn)
            vars(copied)["_required_resource_keys"] = {
                self._keys.get(key, key) for key in vars(asset)["_required_resource_keys"]
            }
        return copied

    def _rename_job(self, job: Job) -> Job:
        """Return a job with a new name, whose ops have new names, too.

        In the run config of a job that consists of ops, the ops keep their original names.
        """
        if isinstance(job, UnresolvedAssetJobDefinition):
            return replace(job, name=self._rename(job.name))
        nodes = [self._rename_op(_check_op(node)) for node in job.graph.node_defs]
        dependencies = {
            NodeInvocation(self._rename(node.name), alias=node.alias or node.name): inputs
            for node, inputs in job.graph.dependencies.items()
        }
        name = self._rename(job.name)
        graph = dg.GraphDefinition(name=name, node_defs=nodes, dependencies=dependencies)
        return job._copy(graph_def=graph, name=name, asset_layer=None)

    def _rename_schedule(self, schedule: object, jobs: Sequence[Job]) -> dg.ScheduleDefinition:
        """Return a schedule with a new name.

        Args:
            schedule: The schedule, which was made by the decorator `dg.schedule`.
            jobs: The renamed jobs, one of which the schedule starts.
        """
        assert isinstance(schedule, dg.ScheduleDefinition), f"{schedule} was made otherwise"
        (job,) = [job for job in jobs if job.name == self._rename(schedule.job_name)]
        function = vars(schedule)["_execution_fn"].decorated_fn
        return dg.schedule(
            name=self._rename(schedule.name),
            job=job,
            cron_schedule=schedule.cron_schedule,
            execution_timezone=schedule.execution_timezone,
            description=schedule.description,
            default_status=schedule.default_status,
            tags=schedule.tags,
            metadata=schedule.metadata,
        )(self._rename_parameters(function))

    def _rename_sensor(self, sensor: dg.SensorDefinition) -> dg.SensorDefinition:
        """Return a sensor with a new name. The sensor must not start a job."""
        assert not sensor.has_jobs, f"the sensor {sensor.name} starts jobs"
        copied = sensor.with_attributes()
        parts = vars(copied)
        parts["_name"] = self._rename(sensor.name)
        function = parts["_raw_fn"]
        if self._keys.keys() & inspect.signature(function).parameters.keys():
            renamed = self._rename_parameters(function)
            parts["_raw_fn"] = renamed
            parts["_evaluation_fn"] = wrap_sensor_evaluation(copied.name, renamed)
            parts["_required_resource_keys"] = {
                self._keys.get(key, key) for key in sensor.required_resource_keys
            }
        return copied

    def _rename_op(self, op: dg.OpDefinition) -> dg.OpDefinition:
        """Return an op with a new name, which needs the resources by their new keys."""
        outs = {
            name: out._replace(
                io_manager_key=self._keys.get(out.io_manager_key, out.io_manager_key)
            )
            for name, out in op.outs.items()
        }
        renamed = op.with_replaced_properties(name=self._rename(op.name), outs=outs)
        function = op.compute_fn
        if isinstance(function, DecoratedOpFunction):
            parts = vars(renamed)
            parts["_compute_fn"] = DecoratedOpFunction(
                self._rename_parameters(function.decorated_fn)
            )
            parts["_required_resource_keys"] = frozenset(
                self._keys.get(key, key) for key in op.required_resource_keys
            )
        return renamed

    def _rename_parameters(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose parameters have the new keys of the resources as their names.

        Dagster passes a resource to the parameter that has the name of its key.
        """
        names = {new: old for old, new in self._keys.items()}

        @wraps(function)
        def renamed(*positional: Any, **arguments: Any) -> Any:
            return function(
                *positional, **{names.get(name, name): value for name, value in arguments.items()}
            )

        signature = inspect.signature(function)
        parameters = [
            parameter.replace(name=self._keys.get(name, name))
            for name, parameter in signature.parameters.items()
        ]
        vars(renamed)["__signature__"] = signature.replace(parameters=parameters)
        renamed.__annotations__ = {
            self._keys.get(name, name): annotation
            for name, annotation in inspect.get_annotations(function).items()
        }
        return renamed


def _check_op(node: object) -> dg.OpDefinition:
    """Return a node of a job, which must be an op and not a graph."""
    assert isinstance(node, dg.OpDefinition), f"{node} is not an op"
    return node
