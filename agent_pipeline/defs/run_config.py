"""Run config of the assets, derived from their options: the schema that the launchpad shows, and the values that hold in a run.

A run config need not say anything: what it leaves out is taken from the settings when the asset runs, the agent's own included. So the
night, a backfill, the shell and the UI agree.
"""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import dagster as dg
from pydantic import Field, create_model

from agent_pipeline.config.assets import ASSETS, ComparisonConfig
from agent_pipeline.config.resolution import (
    NOT_NIGHTLY,
    POOLED,
    asset_of,
    preset_sentences,
    resolve,
    shared,
)
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.config.trust import check_texts, check_trusted, typed
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.errors import SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.options import Options

Group = TypeVar("Group", bound=Options)

SET_TAG = "agent_pipeline/set"
"""A run's tag that names what it sets itself (`--set`)."""


def config_fields(options: type[Options]) -> dict[str, dg.Field]:
    """Dagster's config schema of an asset's options. Values are validated when the asset runs, where a wrong one ends in a sentence."""
    shown = _shown(options)
    fields: dict[str, Any] = {
        name: (field.annotation, Field(default=shown[name], description=field.description))
        for name, field in options.model_fields.items()
    }
    schema = create_model(options.__name__, __base__=dg.Config, **fields).to_fields_dict()
    for earlier_name, name in options.earlier_names.items():
        schema[earlier_name] = dg.Field(
            schema[name].config_type,
            is_required=False,
            description=f"The earlier name of {name}.",
        )
    return schema


def in_force(
    context: dg.AssetExecutionContext, workspace: Workspace, options: type[Group]
) -> Group:
    """The options that hold in this run of an asset; the materialization's metadata says where those that are no defaults were set.

    Raises:
        SettingsError: a setting is wrong, in the file or in the run.
    """
    settings, asset = workspace.settings(), asset_of(options)
    key = None if asset == POOLED else agent_key(context)
    run = _set_by_run(context, options)
    check_trusted(asset, run, resolve(settings, options, key).options)
    if (
        options is ComparisonConfig
        and ("method_comparison", "settings", run.get("settings")) not in typed()
    ):
        check_texts(
            run.get("settings") or [],
            {name: resolve(settings, each, key).options for name, each in ASSETS.items()},
        )
    resolved = resolve(settings, options, key, run)
    for sentence in preset_sentences(resolved):
        context.log.info(sentence)
    rows = [*resolved.table(), *shared(settings, asset, key)]
    if records := [dg.TableRecord(row | {"value": _scalar(row["value"])}) for row in rows]:
        # An asset with checks has an output for each of them too.
        output = context.output_for_asset_key(context.asset_key)
        context.add_output_metadata(
            {"settings": dg.MetadataValue.table(records)}, output_name=output
        )
    return resolved.options


def run_config(settings: Settings, key: PartitionKey) -> dict[str, Any]:
    """The run config of an agent's night: every setting that is not left to its default. Raises SettingsError."""
    ops = {}
    for asset, options in ASSETS.items():
        resolved = resolve(settings, options, key)
        if asset not in NOT_NIGHTLY and resolved.origins:
            ops[asset] = {
                "config": {
                    name: getattr(resolved.options, name) for name in sorted(resolved.origins)
                }
            }
    return {"ops": ops} if ops else {}


def set_tags(names: Sequence[str]) -> dict[str, str]:
    """The tag of a run that sets these `asset.setting`s itself."""
    return {SET_TAG: ", ".join(sorted(names))} if names else {}


def _set_by_run(context: dg.AssetExecutionContext, options: type[Options]) -> dict[str, Any]:
    """What this run sets itself.

    The launchpad fills in every default for all agents. In a form that was filled in so, a value that still is that default was not
    chosen by anybody, and gives way to the agent's own setting.
    """
    ops: Any = context.run.run_config.get("ops") or {}
    written = ops.get(asset_of(options), {}).get("config") or {}
    given = context.op_execution_context.op_config
    chosen = {name: given[name] for name in written if given.get(name) is not None}
    if SET_TAG in context.run.tags or set(chosen) < set(options.model_fields):
        return chosen
    shown = _shown(options)
    return {name: value for name, value in chosen.items() if value != shown[name]}


def _shown(options: type[Options]) -> dict[str, Any]:
    """The values for all agents, which the launchpad shows."""
    try:
        return resolve(load_settings(), options).options.model_dump()
    except (
        SettingsError
    ):  # the code location says what is wrong when it loads, and so does every run
        return options().model_dump()


def _scalar(value: Any) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else json.dumps(value)
