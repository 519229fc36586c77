"""Resolution of an agent's asset settings: the value of each setting, and where it was set.

From the lowest to the highest: the default, the preset, for `max_length` the length of the training
rows (`FOLLOWED`), `[assets.<asset>]`,
`[agents."<project/agent>".assets.<asset>]`, and the run's own values. The schedule, the sensors,
the shell, the launchpad and the assets all call `resolve`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from agent_pipeline.config.assets import ASSETS, STEP_GROUPS, AdapterConfig
from agent_pipeline.config.presets import PRESETS
from agent_pipeline.config.settings import Settings
from agent_pipeline.keys import PartitionKey
from agent_pipeline.options import Options, Section
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.filesystem import sha256_file

Group = TypeVar("Group", bound=Options)
RunValues = Mapping[str, Mapping[str, Any]]
"""Values that one run sets, by asset and setting."""

THIS_RUN, PRESET = "this run", "preset"
SFT_ADAPTER = "sft_adapter"
FOLLOWED = "sft_adapter.max_length"
"""The setting that the `max_length` of the later steps and of the evaluations follows.

A `max_length` that nobody set is at least as long as the training rows, so that held-out
conversations fit wherever the rows fit. If this setting is 0, training chooses the length by the
rows. Then a run passes the length of the trained adapter as `trained_length`.
"""
POOLED = "multi_task_dataset"
"""Name of the asset that combines all agents. No single agent's run builds it."""
NOT_NIGHTLY = (POOLED, "method_comparison")
"""Assets that nightly runs do not build. A change in their settings is no reason to train again."""

_TRAINED = ("train", "trust_remote_code")
SHARED: Mapping[str, tuple[str, ...]] = {
    "sessions": ("redaction", "system_prompt", "task_field", "task_pattern", "tools"),
    "judged_sessions": (
        "judge.least_precision",
        "judge.model",
        "judge.parameters",
        "judge.rubric",
        "labels",
    ),
    "curated_sessions": ("preconditions",),
    **dict.fromkeys(("sft_dataset", "preference_dataset", "kto_dataset"), ("split",)),
    "multi_task_dataset": ("mixing",),
    **dict.fromkeys(STEP_GROUPS, _TRAINED),
    "grpo_adapter": (*_TRAINED, "world"),
    "evaluation": _TRAINED,
    "gguf_export": (*_TRAINED, "llama_cpp"),
    "episodes": ("world", "preconditions"),
    "champion": ("world",),
}
"""Settings outside of `[assets]` that affect an asset's content, as whole tables or single
settings.
"""


@dataclass(frozen=True)
class Resolved(Generic[Group]):
    """The settings of an asset, with the place where each setting that is not a default was set."""

    options: Group
    origins: dict[str, str]

    def table(self) -> list[dict[str, Any]]:
        """Return one row per setting that is not a default: its name, its value and its place."""
        return [
            {"setting": name, "value": getattr(self.options, name), "set_by": place}
            for name, place in sorted(self.origins.items())
        ]


def resolve(
    settings: Settings,
    options: type[Group],
    key: PartitionKey | None = None,
    run: Mapping[str, object] | None = None,
    trained_length: int = 0,
) -> Resolved[Group]:
    """Return the settings of an asset for an agent.

    Args:
        settings: The settings file and the environment.
        options: The asset's group of options.
        key: The agent's partition, or None for all agents.
        run: The run's own values, which win.
        trained_length: The run's own `sft_adapter.max_length`, or the length that training chose.
            Other assets follow it.

    Raises:
        SettingsError: a value of the run does not exist, or is out of range.
    """
    asset = asset_of(options)
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for place, layer in _layers(settings, asset, key, trained_length):
        values |= options.with_current_names(layer)
        origins |= {
            options.earlier_names.get(name, name): settings.variable(
                *_path(place, asset, key), name
            )
            or place
            for name in layer
        }
    for name, value in options.with_current_names(run or {}).items():
        if name not in values or values[name] != value:
            values[name] = value
            origins[name] = THIS_RUN
    resolved = options.validated(values, f"{asset}.")
    defaults = options()
    origins = {
        name: origin
        for name, origin in origins.items()
        if origin == THIS_RUN or getattr(resolved, name) != getattr(defaults, name)
    }
    return Resolved(resolved, origins)


def find_trained_length(
    settings: Settings, key: PartitionKey, sft_adapter: Artifact | None = None
) -> int:
    """Return the length that training chose by the rows, or 0 if `sft_adapter.max_length` is set.

    Args:
        settings: The settings file and the environment.
        key: The agent's partition.
        sft_adapter: The adapter; None for the agent's last one.
    """
    if resolve(settings, AdapterConfig, key).options.max_length:
        return 0
    lake = settings.open_lake()
    if sft_adapter is None and lake.pointers(SFT_ADAPTER, key).latest:
        sft_adapter = lake.latest(SFT_ADAPTER, key)
    made_from = sft_adapter.manifest["made_from"] if sft_adapter else {}
    return int(made_from.get("config", {}).get("max_length", 0))


def preset_sentences(resolved: Resolved[Any]) -> list[str]:
    """Return one sentence per preset that describes how it changes an asset's settings."""
    asset = asset_of(type(resolved.options))
    changed: dict[str, list[str]] = {}
    for name, place in sorted(resolved.origins.items()):
        if place.startswith(PRESET):
            changed.setdefault(place, []).append(f"{name} = {getattr(resolved.options, name)}")
    return [f"{place} sets {asset}: {', '.join(values)}." for place, values in changed.items()]


def shared(settings: Settings, asset: str, key: PartitionKey | None = None) -> list[dict[str, Any]]:
    """Return one row per setting of `SHARED` that is not a default, like `Resolved.table`.

    Args:
        settings: The settings file and the environment.
        asset: The asset that the settings decide.
        key: The agent's partition, or None for all agents.
    """
    agent = settings.agents.get(str(key)) if key else None
    rows = []
    for name in SHARED.get(asset, ()):
        if agent_value := getattr(agent, name, None):
            place = settings.variable("agents", str(key), name) or f'[agents."{key}"]'
            rows.append({"setting": name, "value": agent_value, "set_by": place})
            continue
        for setting, place, value, default in _values(settings, name):
            if value != default:
                rows.append(
                    {
                        "setting": setting,
                        "value": value,
                        "set_by": settings.variable(*setting.split(".")) or place,
                    }
                )
    return rows


def _values(settings: Settings, name: str) -> Iterator[tuple[str, str, object, object]]:
    """Yield the settings of a table (such as `split`), or a single setting (such as `judge.model`).

    Each is its name, its place in the file, its value and its default.
    """
    table, _, only = name.partition(".")
    section = getattr(settings, table, None)
    if isinstance(section, Section):
        for field in [only] if only else type(section).model_fields:
            yield (
                f"{table}.{field}",
                f"[{table}]",
                getattr(section, field),
                getattr(type(section)(), field),
            )
    elif table in Settings.model_fields:  # others are an agent's alone
        yield name, name, section, Settings.model_fields[name].default


def asset_of(options: type[Options]) -> str:
    """Return the name of an option group, which is its asset or the training step."""
    return next(name for name, value in ASSETS.items() if value is options)


def _layers(
    settings: Settings, asset: str, key: PartitionKey | None, trained_length: int
) -> Iterator[tuple[str, Mapping[str, object]]]:
    agent = settings.agents.get(str(key)) if key else None
    preset = (agent.preset if agent else "") or settings.preset
    values = PRESETS[preset].get(asset, {}) if preset else {}
    if preset:
        yield f'{PRESET} = "{preset}"', values
    length = ASSETS[asset].model_fields.get("max_length")
    if length is not None and asset != SFT_ADAPTER:
        sft_options = resolve(settings, AdapterConfig, key).options
        row_length = trained_length or sft_options.max_length
        if row_length > values.get("max_length", length.default):
            yield FOLLOWED, {"max_length": row_length}
    if "base_model" in ASSETS[asset].model_fields and "base_model" in settings.model_fields_set:
        yield "base_model", {"base_model": settings.base_model}
    yield f"[assets.{asset}]", settings.assets.get(asset, {})
    if agent:
        yield f'[agents."{key}".assets.{asset}]', agent.assets.get(asset, {})


def _path(place: str, asset: str, key: PartitionKey | None) -> tuple[str, ...]:
    """Return the path of a settings layer in the settings tree."""
    if place.startswith("[agents."):
        return ("agents", str(key), "assets", asset)
    return ("assets", asset) if place.startswith("[assets.") else ()


def fingerprint(settings: Settings, key: PartitionKey, run: RunValues | None = None) -> str:
    """Return a hash of every setting that affects the result of an agent's run.

    If the hash changes, the agent is trained again.

    Raises:
        SettingsError: a setting is wrong, or the agent's file of tools cannot be read.
    """
    run = run or {}
    trained_length = resolve(settings, AdapterConfig, key, run.get(SFT_ADAPTER)).options.max_length
    assets = {
        name: resolve(settings, options, key, run.get(name), trained_length).options
        for name, options in ASSETS.items()
        if name not in NOT_NIGHTLY
    }
    reading = asdict(settings.reading(key))
    del reading["repair"]  # a setting of the asset `sessions`
    names = {"endpoint", "model", "parameters", "max_characters", "least_precision"}
    judge = settings.judge.model_dump(include=names)
    rubric = (
        sha256_file(settings.rubric_path)
        if settings.rubric_path and settings.rubric_path.is_file()
        else ""
    )
    deciding = str(getattr(assets["judged_sessions"], "decided_by", ""))
    judged: dict[str, Any] = {}
    preconditions = settings.preconditions(key)
    if "llm" in deciding:
        judged = {"judge": judge, "rubric": rubric}
    elif "measures" in deciding:
        judged = {"judge": {"least_precision": settings.judge.least_precision}}
    return hash_json(
        {
            "assets": {name: options.hashed() for name, options in assets.items()},
            "reading": reading,
            "split": settings.split.shares,
            "llama_cpp": settings.llama_cpp,
            "world": settings.episodes_world(key),
            "train": settings.chain(key),
            **judged,
            **({"preconditions": preconditions} if preconditions else {}),
        }
    )
