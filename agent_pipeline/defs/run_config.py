"""Run config of the assets: its schema in the launchpad, and the values that a run uses.

A run config may be empty. What it leaves out comes from the settings when the asset runs. So a
nightly run, a backfill, the shell and the UI use the same values.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import dagster as dg
from pydantic import Field, create_model

from agent_pipeline.config.assets import ASSETS, AdapterConfig, ComparisonConfig, owning_asset
from agent_pipeline.config.resolution import (
    NOT_NIGHTLY,
    POOLED,
    SFT_ADAPTER,
    asset_of,
    find_trained_length,
    preset_sentences,
    resolve,
    shared,
)
from agent_pipeline.config.settings import Settings, cached_settings
from agent_pipeline.config.trust import check_texts, check_trusted, typed
from agent_pipeline.defs.asset_keys import add_prefix, remove_prefix
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.errors import SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.options import Options
from agent_pipeline.storage.artifacts import Artifact

Group = TypeVar("Group", bound=Options)

SET_TAG = "agent_pipeline/set"
"""Tag that names the settings which a run sets itself (`--set`)."""


def config_fields(options: type[Options]) -> dict[str, dg.Field]:
    """Return Dagster's config schema for a group of options.

    Values are validated when the asset runs, so that a wrong value ends with one sentence.
    """
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


def step_fields(groups: Mapping[str, type[Options]]) -> dict[str, dg.Field]:
    """Return Dagster's config schema for an asset with several steps, with a field per step."""
    return {
        group: dg.Field(
            dg.Shape(config_fields(options)),  # type: ignore[no-untyped-call]
            is_required=False,
        )
        for group, options in groups.items()
    }


def config_by_asset(values: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """Convert values by option group into the part `ops` of a run config.

    Example:
        >>> config_by_asset({"evaluation": {"split": "test"}, "sft_adapter": {"lora_r": 8}})
        {'evaluation': {'config': {'split': 'test'}}, 'adapter': {'config': {'sft_adapter':
        {'lora_r': 8}}}}
    """
    ops: dict[str, Any] = {}
    for group, group_values in values.items():
        asset = owning_asset(group)
        config = ops.setdefault(add_prefix(asset), {"config": {}})["config"]
        (config if asset == group else config.setdefault(group, {})).update(group_values)
    return ops


def config_by_group(ops: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Convert the part `ops` of a run config into values by option group."""
    values: dict[str, dict[str, Any]] = {}
    for name, op in ops.items():
        asset = remove_prefix(name)
        config = op.get("config") or {}
        values.update({asset: config} if asset in ASSETS else config)
    return values


def in_force(
    context: dg.AssetExecutionContext, workspace: Workspace, options: type[Group]
) -> Group:
    """Return the options that an asset uses in this run, and record where each option was set.

    The materialization's metadata lists every option that differs from its default.

    Raises:
        SettingsError: a setting is wrong, in the file or in the run.
    """
    chosen, rows = resolve_for_run(context, workspace, options)
    record_settings(context, rows)
    return chosen


def record_settings(context: dg.AssetExecutionContext, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add a table of settings to the materialization's metadata, unless the table is empty."""
    if not rows:
        return
    shown = show_settings(rows)
    # An asset with checks has an output for each check too, and a pass may write several assets.
    for asset_key in context.selected_asset_keys:
        context.add_output_metadata(
            {"settings": shown}, output_name=context.output_for_asset_key(asset_key)
        )


def show_settings(rows: Sequence[Mapping[str, Any]]) -> dg.MetadataValue:
    """Return a table of settings."""
    return dg.MetadataValue.table(
        [dg.TableRecord({**row, "value": _scalar(row["value"])}) for row in rows]
    )


def resolve_for_run(
    context: dg.AssetExecutionContext,
    workspace: Workspace,
    options: type[Group],
    sft_adapter: Artifact | None = None,
) -> tuple[Group, list[dict[str, Any]]]:
    """Return the options that this run uses, and one row per option that is not a default.

    Args:
        context: The context of the asset.
        workspace: The workspace.
        options: The asset's group of options.
        sft_adapter: The adapter that later steps continue from; None for the agent's last one.

    Raises:
        DataError: The files of the agent's last SFT adapter are missing.
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
            {name: resolve(settings, value, key).options for name, value in ASSETS.items()},
        )
    length = _set_length(context)
    if key and not length and "max_length" in options.model_fields and asset != SFT_ADAPTER:
        length = find_trained_length(settings, key, sft_adapter)
    resolved = resolve(settings, options, key, run, length)
    for sentence in preset_sentences(resolved):
        context.log.info(sentence)
    return resolved.options, [*resolved.table(), *shared(settings, asset, key)]


def run_config(settings: Settings, key: PartitionKey) -> dict[str, Any]:
    """Return the run config of an agent's nightly run: all settings that are not defaults.

    Raises:
        SettingsError: a setting is wrong.
    """
    values: dict[str, dict[str, object]] = {}
    for group, options in ASSETS.items():
        resolved = resolve(settings, options, key)
        if group not in NOT_NIGHTLY and resolved.origins:
            names = sorted(resolved.origins)
            values[group] = {name: getattr(resolved.options, name) for name in names}
    return {"ops": config_by_asset(values)} if values else {}


def set_tags(names: Sequence[str]) -> dict[str, str]:
    """Return the run tag that names the settings which the run sets itself (`asset.setting`)."""
    return {SET_TAG: ", ".join(sorted(names))} if names else {}


def _set_by_run(context: dg.AssetExecutionContext, options: type[Options]) -> dict[str, Any]:
    """Return the option values that this run sets itself.

    The launchpad fills in every default for all agents. In such a form, a value that equals the
    default was chosen by nobody, so the agent's own setting wins.
    """
    group = asset_of(options)
    ops: Any = context.run.run_config.get("ops") or {}
    written = config_by_group(ops).get(group) or {}
    run_values = context.op_execution_context.op_config or {}
    if owning_asset(group) != group:
        run_values = run_values.get(group) or {}
    chosen = {name: run_values[name] for name in written if run_values.get(name) is not None}
    return _drop_shown(context, options, chosen)


def _set_length(context: dg.AssetExecutionContext) -> int:
    """Return the `sft_adapter.max_length` that this run sets itself, or 0."""
    ops: Any = context.run.run_config.get("ops") or {}
    written = config_by_group(ops).get(SFT_ADAPTER) or {}
    chosen = {name: value for name, value in written.items() if value is not None}
    length = _drop_shown(context, AdapterConfig, chosen).get("max_length")
    return length if isinstance(length, int) else 0


def _drop_shown(
    context: dg.AssetExecutionContext, options: type[Options], chosen: dict[str, Any]
) -> dict[str, Any]:
    """Return the values of a run without the defaults that the launchpad filled in."""
    is_filled_form = set(options.model_fields) <= set(chosen)
    if SET_TAG in context.run.tags or not is_filled_form:
        return chosen
    shown = _shown(options)
    return {name: value for name, value in chosen.items() if value != shown.get(name)}


def _shown(options: type[Options]) -> dict[str, object]:
    """Return the values that apply to all agents, which the launchpad shows."""
    try:
        return resolve(cached_settings(), options).options.model_dump()
    except (
        SettingsError
    ):  # the code location says what is wrong when it loads, and so does every run
        return options().model_dump()


def _scalar(value: object) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else json.dumps(value)
