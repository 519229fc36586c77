"""Settings for one run that a user types in a shell.

They are written `asset.setting=value`, or `setting=value` for every selected asset that has the
setting.
"""

from collections.abc import Collection, Sequence
from typing import Any

from agent_pipeline.config.assets import ASSETS, owning_asset
from agent_pipeline.errors import SettingsError
from agent_pipeline.options import did_you_mean


def overrides(texts: Sequence[str], selected: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the validated values by option group and setting.

    Example:
        >>> overrides(["sft_adapter.lora_r=8"], {"adapter"})
        {'sft_adapter': {'lora_r': 8}}

    Raises:
        SettingsError: a text has no `=`, a setting does not exist or belongs to no selected
            asset, or a
            value is wrong.
    """
    values: dict[str, dict[str, object]] = {}
    for text in texts:
        path, equals, written = text.partition("=")
        if not equals:
            raise SettingsError(
                f"{text!r} has no value to set: write asset.setting=value, or setting=value."
            )
        asset, _, name = path.strip().rpartition(".")
        for owner in _owners(asset, name, selected):
            options = ASSETS[owner]
            value = options.parsed(name, written.strip())
            current_name = options.earlier_names.get(name, name)
            values.setdefault(owner, {})[current_name] = getattr(
                options.validated({name: value}, f"{owner}."), current_name
            )
    return values


def _owners(asset: str, name: str, selected: Collection[str]) -> list[str]:
    if asset and asset not in ASSETS:
        raise SettingsError(
            f"There is no asset {asset!r} with settings{did_you_mean(asset, ASSETS)}"
        )
    having = [
        asset_name
        for asset_name, options in ASSETS.items()
        if (name in options.model_fields or name in options.earlier_names)
        and asset in ("", asset_name)
    ]
    if not having:
        candidates = [ASSETS[asset]] if asset else list(ASSETS.values())
        if ours := next(
            (options.other_names[name] for options in candidates if name in options.other_names), ""
        ):
            raise SettingsError(
                f"There is no setting {name!r}: in agent-pipeline, it is called `{ours}`."
            )
        for options in candidates:
            if name in options.removed_options:
                raise SettingsError(
                    f"The setting {name!r} does not exist any more, "
                    f"because {options.removed_options[name]}: leave it out."
                )
        hint = did_you_mean(
            name, {field for options in candidates for field in options.model_fields}
        )
        raise SettingsError(
            f"{asset or 'No asset'} has {'no' if asset else 'a'} setting {name!r}{hint}"
        )
    owners = [group for group in having if {group, owning_asset(group)} & set(selected)]
    if not owners:
        raise SettingsError(
            f"{name!r} is a setting of {', '.join(having)}, which is not selected: select "
            f"{', '.join(dict.fromkeys(map(owning_asset, having)))}, or leave the setting out."
        )
    return owners
