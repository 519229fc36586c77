"""The plan of a method comparison: each method with all its settings, and a control per coreset.

The control of a method that selects rows is a random coreset of the same size.
"""

from math import ceil
from typing import Any

import msgspec

from agent_pipeline.config.assets import ADAPTER, ASSETS, AdapterConfig, ComparisonConfig
from agent_pipeline.config.methods import METHODS, TRAINING
from agent_pipeline.config.overrides import overrides
from agent_pipeline.config.resolution import SFT_ADAPTER, resolve
from agent_pipeline.config.settings import Settings
from agent_pipeline.datasets.multi_task import MIXED_TABLE as MIXED
from agent_pipeline.datasets.sft_tables import read_sft_columns
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.method_comparison.results import Method
from agent_pipeline.options import did_you_mean
from agent_pipeline.training.config import PREFERENCES

MOST = 1000


def comparison(settings: Settings, key: PartitionKey, config: ComparisonConfig) -> dict[str, Any]:
    """Return the parameters of the task `compare_methods`, except those that every task has.

    Raises:
        SettingsError: A method or a setting does not exist, or a value is wrong.
        DataError: There are no training rows, or no rows to measure on.
    """
    if not _rows(settings, key, False, config.split):
        raise DataError(
            f"{key} has no rows in the split {config.split} to measure on: set "
            "`method_comparison.split` to another split, or collect more tasks."
        )
    shared = overrides(config.settings, ["sft_coreset", ADAPTER, "evaluation", "episodes"])
    planned = methods(settings, key, config, shared)
    # All methods are measured in the same way, so the longest training rows decide.
    lengths = [method.assets[SFT_ADAPTER]["max_length"] for method in planned]
    shared[SFT_ADAPTER] = shared.get(SFT_ADAPTER, {}) | {"max_length": max(lengths, default=0)}
    return {
        "methods": msgspec.to_builtins(planned),
        "seeds": config.seeds,
        "held_out": config.split,
        "evaluation": _in_force(settings, key, "evaluation", shared) | {"split": config.split},
        "episodes": _in_force(settings, key, "episodes", shared)
        | {"trials": 1},  # models in memory answer greedily
        "world": settings.world(key),
    }


def methods(
    settings: Settings,
    key: PartitionKey,
    config: ComparisonConfig,
    shared: dict[str, dict[str, Any]],
) -> list[Method]:
    """Return the methods in the order of the settings, including their controls.

    A random coreset follows the first method that needs it as a control.

    Args:
        settings: The settings file and the environment.
        key: The agent's partition.
        config: The options of `method_comparison`.
        shared: Settings of every method, by group of options.
    """
    known = METHODS | settings.methods
    methods_by_name: dict[str, Method] = {}
    for name in dict.fromkeys(config.methods):
        if name not in known:
            raise SettingsError(
                f"There is no method {name!r} to compare{did_you_mean(name, known)}"
            )
        method = known[name]
        chain: list[str] = list(method.train or settings.chain(key))
        if step := next((step_name for step_name in chain[1:] if step_name not in PREFERENCES), ""):
            raise SettingsError(
                f"The method {name!r} trains by {step}, which a comparison does not support: "
                f"choose a method that trains by sft, {', '.join(PREFERENCES)}."
            )
        rows = _rows(settings, key, method.mix, "train")
        options_by_asset = {
            asset: shared.get(asset, {})
            | ASSETS[asset].with_current_names(method.assets.get(asset, {}))
            for asset in TRAINING
        }
        if "sft_coreset" in method.assets:
            options_by_asset["sft_coreset"] = {
                "target_size": config.coreset_size or min(MOST, ceil(rows / 2))
            } | options_by_asset["sft_coreset"]
        assets = {asset: _in_force(settings, key, asset, options_by_asset) for asset in TRAINING}
        method_plan = Method(
            name, method.name or name, method.description, chain, method.mix, assets
        )
        coreset = assets["sft_coreset"]
        if coreset["target_size"] < rows and coreset["strategy"] != "random":
            control = f"{'mixed_' if method.mix else ''}random_{coreset['target_size']}"
            chance = msgspec.structs.replace(
                method_plan,
                id=control,
                name="Random coreset",
                description=f"Like {name}, but with the same number of random rows.",
                assets=assets | {"sft_coreset": coreset | {"strategy": "random"}},
            )
            # A control serves all methods that differ from it only in the choice of rows.
            if control in methods_by_name and (
                methods_by_name[control].assets,
                methods_by_name[control].chain,
            ) != (
                chance.assets,
                chain,
            ):
                chance = msgspec.structs.replace(chance, id=f"{control}_{name}")
            methods_by_name |= {name: msgspec.structs.replace(method_plan, control=chance.id)}
            methods_by_name.setdefault(chance.id, chance)
        methods_by_name.setdefault(name, method_plan)
    return list(methods_by_name.values())


def _rows(settings: Settings, key: PartitionKey, mix: bool, split: str) -> int:
    lake = settings.open_lake()
    table = lake.open(MIXED, None) if mix else None
    rows = table.read(["split"]) if table else read_sft_columns(lake, key, ["split"])
    return int(rows["split"].to_pylist().count(split))


def _in_force(
    settings: Settings, key: PartitionKey, asset: str, run: dict[str, dict[str, object]]
) -> dict[str, Any]:
    """Return the options of an asset, whose `max_length` follows that of the training rows."""
    trained = resolve(settings, AdapterConfig, key, run.get(SFT_ADAPTER)).options.max_length
    return resolve(settings, ASSETS[asset], key, run.get(asset), trained).options.model_dump()
