"""Materialize assets from a shell or a notebook: the same graph, job and instance as the UI, in this process."""

import difflib
import json
import re
from collections.abc import Sequence
from typing import Any

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from agent_pipeline.config.assets import ASSETS
from agent_pipeline.config.resolution import fingerprint
from agent_pipeline.defs.jobs import MIX, RETRAIN
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.runs import version_tags
from agent_pipeline.errors import PartitionError, SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.options import Options

# A comma between the parameters of a measure separates no list.
_COMMA = re.compile(r",(?![^(]*\))")


def materialize(
    defs: dg.Definitions, instance: dg.DagsterInstance, key: PartitionKey | None, select: str = "*", settings: Sequence[str] = ()
) -> dg.ExecuteInProcessResult:
    """Run the selected assets (Dagster's selection syntax) of a partition, with `asset.field=value` (or `field=value`) settings.

    The partition becomes known to the instance if the store has it. Without one (null), the assets that have none are run, and every
    partition of the store becomes known.

    Raises:
        PartitionError: the store has no such partition.
        SettingsError: the selection or a setting names what does not exist.
    """
    workspace = Workspace()
    source = workspace.open_store()
    partitions = source.partitions()
    if key and key not in partitions:
        known = ", ".join(map(str, partitions)) or "none"
        where = ", ".join(map(str, workspace.settings().stores))
        raise PartitionError(f"The store {where} has no partition {key}: it has {known}.")
    instance.add_dynamic_partitions(AGENTS.name or "", [str(each) for each in ([key] if key else partitions)])
    job = defs.resolve_job_def(RETRAIN if key else MIX)
    selected = _selected(defs, job, select)
    whole = selected == {asset.to_user_string() for asset in job.asset_layer.executable_asset_keys}
    return job.execute_in_process(
        instance=instance,
        partition_key=str(key) if key else None,
        asset_selection=[dg.AssetKey(name) for name in sorted(selected)],
        run_config={"loggers": {"console": {}}, "ops": _ops(settings, selected)},
        tags=version_tags(workspace.fingerprint(source, key)[0], fingerprint(workspace.settings(), key)) if key and whole else {},
        raise_on_error=False,
    )


def _selected(defs: dg.Definitions, job: dg.JobDefinition, select: str) -> set[str]:
    """Names of the selected assets; a bare name or a comma is allowed where the UI wants `key:name` or `or`."""
    graph = defs.resolve_asset_graph()
    every = "|".join(sorted(key.to_user_string() for key in graph.get_all_asset_keys()))
    select = re.sub(rf'(?<![\w:"])({every})(?!\w)', r"key:\1", select).replace(",", " or ")
    try:
        keys = set(dg.AssetSelection.from_string(select).resolve(graph))
    except dg.DagsterError as error:
        raise SettingsError(f"The selection {select!r} cannot be resolved ({str(error).splitlines()[0]}).") from error
    names = {key.to_user_string() for key in keys & set(job.asset_layer.executable_asset_keys)}
    if not names:
        having = "without" if job.name == MIX else "with"
        known = ", ".join(sorted(key.to_user_string() for key in job.asset_layer.executable_asset_keys))
        raise SettingsError(f"The selection {select!r} names no asset that can be materialized {having} a partition: there are {known}.")
    return names


def _ops(settings: Sequence[str], selected: set[str]) -> dict[str, Any]:
    """Run config from `asset.field=value` texts; a bare field belongs to every selected asset that has it."""
    ops: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"{text!r} is no setting: write asset.field=value, or field=value.")
        asset, _, field = name.rpartition(".")
        owners = [each for each in ([asset] if asset else sorted(ASSETS)) if each in ASSETS and field in ASSETS[each].model_fields]
        if not owners:
            fields = {f"{each}.{one}" for each, config in ASSETS.items() for one in config.model_fields}
            close = difflib.get_close_matches(name if asset else field, sorted(fields | {one.split(".")[1] for one in fields}), n=1)
            raise SettingsError(f"No asset has a setting {name!r}{f': did you mean {close[0]}?' if close else '; see the README.'}")
        if not (owners := [owner for owner in owners if owner in selected]):
            raise SettingsError(f"{name!r} is a setting of an asset that is not selected: select it too, or leave the setting out.")
        for owner in owners:
            ops.setdefault(owner, {"config": {}})["config"][field] = _value(ASSETS[owner], field, value, text)
    return ops


def _value(config: type[Options], field: str, value: str, text: str) -> Any:
    """The value as the field's type: JSON where it is that, else the text itself, else a list with commas between."""
    kind: Any = config.model_fields[field].annotation
    candidates: list[Any] = [value]
    try:
        candidates.insert(0, json.loads(value))
    except ValueError:
        candidates.append([part.strip() for part in _COMMA.split(value)])
    for candidate in candidates:
        try:
            TypeAdapter(kind).validate_python(candidate, strict=isinstance(candidate, str))
            config.model_validate({field: candidate} | _required(config, field))
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
        else:
            return candidate
    raise SettingsError(f"The setting {text!r} has a wrong value ({reason}).")


def _required(config: type[Options], field: str) -> dict[str, Any]:
    return {name: one.get_default() for name, one in config.model_fields.items() if name != field}
