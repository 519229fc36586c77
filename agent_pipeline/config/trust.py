"""Settings that run code or send data to another place. A run's own config must not set them.

Anybody who reaches the UI can write run config. `pipeline.toml` and the environment may set these
settings, and so may a person in a shell, who could edit the file.
"""

import re
from collections.abc import Mapping
from typing import Any

from agent_pipeline.config.assets import ASSETS
from agent_pipeline.config.resolution import RunValues
from agent_pipeline.datasets.publishing import FileOptions
from agent_pipeline.errors import SettingsError
from agent_pipeline.options import Options

PLUGINS: Mapping[str, tuple[str, ...]] = {
    "judged_sessions": ("measures", "turn_measures"),
    "curated_sessions": ("required_measures",),
    "sft_coreset": ("strategy",),
}
"""Settings that may name code by a dotted path. Only dotted paths are refused, because registered
names are safe.
"""
TARGETS: Mapping[str, tuple[str, ...]] = {
    "serving": ("server", "hub"),
    **{
        asset: ("push_to", "push_public")
        for asset, options in ASSETS.items()
        if issubclass(options, FileOptions)
    },
}
"""Settings that name a place to which data is sent."""
_DOTTED = re.compile(r"^\s*[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|:")
"""Pattern of a dotted path or of `package.module:attribute`."""

_typed: list[tuple[str, str, Any]] = []
"""The setting values that a user typed into the shell of this process."""


def trust(values: RunValues) -> None:
    """Accept the given values in runs of this process, because a user typed them into its shell."""
    _typed.extend(
        (asset, name, value) for asset, group in values.items() for name, value in group.items()
    )


def typed() -> list[tuple[str, str, Any]]:
    """Return the values that `trust` accepted, as asset, setting and value."""
    return _typed


def check_trusted(asset: str, run: Mapping[str, object], configured: Options) -> None:
    """Check that a run sets no code and no target unless the file or the environment sets it.

    Raises:
        SettingsError: the run does.
    """
    for name, value in run.items():
        if (asset, name, value) in _typed:
            continue
        allowed = getattr(configured, name, None)
        entries = value if isinstance(value, list) else [value]
        known = allowed if isinstance(allowed, list) else [allowed]
        strange = [
            entry for entry in entries if entry not in known and _is_sensitive(asset, name, entry)
        ]
        if strange:
            raise SettingsError(
                f"The run config sets `{asset}.{name}` to {strange[0]!r}, which could run code or "
                "send data to another machine. The config of a run may not set this: set it in "
                "pipeline.toml or in the environment."
            )


def check_texts(texts: list[str], configured: Mapping[str, Options]) -> None:
    """Check the texts `asset.setting=value` of a method comparison in the way of `check_trusted`.

    Raises:
        SettingsError: one of them sets code or a target.
    """
    for text in texts:
        path, _, value = text.partition("=")
        asset, _, name = path.strip().rpartition(".")
        for owner in [asset] if asset else configured:
            if owner in configured and name in ASSETS[owner].model_fields:
                check_trusted(
                    owner, {name: ASSETS[owner].parsed(name, value.strip())}, configured[owner]
                )


def _is_sensitive(asset: str, name: str, value: object) -> bool:
    if name in TARGETS.get(asset, ()):
        return bool(value)
    return name in PLUGINS.get(asset, ()) and bool(_DOTTED.search(str(value)))
