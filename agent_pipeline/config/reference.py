"""Generation of the page `docs/reference/settings.md`: `python -m agent_pipeline.config.reference`.

The text of the page is written by hand. Every table between two markers is made from the settings.
An option that several assets have is listed once.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from agent_pipeline.config.assets import ASSETS, STEP_GROUPS
from agent_pipeline.config.methods import MethodSettings
from agent_pipeline.config.presets import PRESETS
from agent_pipeline.config.sections import AgentSettings, TrafficSettings
from agent_pipeline.config.settings import Settings
from agent_pipeline.datasets.publishing import FileOptions
from agent_pipeline.options import Options, Section, allowed
from agent_pipeline.training.size_defaults import list_size_rates

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
_BEGIN = "<!-- {name}: made by python -m agent_pipeline.config.reference -->"
_END = "<!-- end of {name} -->"

_LONGEST_DEFAULT = 60
_SHOWN_PRESETS = [name for name, assets in PRESETS.items() if assets]
"""Presets that change at least one default. The preset `cpu` consists of the defaults."""

_DATASETS = [name for name, options in ASSETS.items() if issubclass(options, FileOptions)]


def update_page(page: str) -> str:
    """Return the page with newly generated tables of the current settings."""
    for name, text in make_parts().items():
        begin, end = _BEGIN.format(name=name), _END.format(name=name)
        before, _, rest = page.partition(begin)
        after = rest.partition(end)[2]
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def make_parts() -> dict[str, str]:
    """Return the generated parts of the page, by the name in the part's markers."""
    single_assets = [name for name in ASSETS if name not in (*STEP_GROUPS, *_DATASETS)]
    return {
        "general settings": _make_settings_table(),
        "tables of settings": "\n\n".join(_describe_sections()),
        "dataset options": "\n\n".join(_describe_group(_DATASETS, "dataset")),
        "training options": "\n\n".join(_describe_group(STEP_GROUPS, "training step")),
        "learning rates": _make_rates_table(),
        "asset options": "\n\n".join(
            part for name in single_assets for part in _describe_asset(name)
        ),
        "other names": _make_names_table(),
    }


def _make_settings_table() -> str:
    """Return the table of settings that are neither tables nor settings of assets."""
    rows = []
    for name, field in Settings.model_fields.items():
        if not _find_section(field) and name not in ("agents", "methods"):
            rows.append((f"`{name}`", _show_default(name, field), str(field.description)))
    return _make_table(("setting", "default", "meaning"), rows)


def _describe_sections() -> Iterator[str]:
    """Yield a heading and a table for each table of the settings file."""
    sections: dict[str, type[Section]] = {
        'agents."project/agent"': AgentSettings,
        'agents."project/agent".traffic': TrafficSettings,
    }
    for name, field in Settings.model_fields.items():
        if section := _find_section(field):
            sections[name] = section
    sections["methods.ID"] = MethodSettings
    for name, section in sections.items():
        yield f"### `[{name}]`"
        yield (section.__doc__ or "").strip().partition("\n")[0]
        rows = [
            (f"`{option}`", _show_default(option, field), str(field.description))
            for option, field in section.model_fields.items()
            if not _find_section(field)
        ]
        yield _make_table(("setting", "default", "meaning"), rows)


def _describe_group(names: Sequence[str], kind: str) -> Iterator[str]:
    """Yield headings and tables for assets that share options.

    An option that several assets have, with one meaning, is in one table.

    Args:
        names: The assets, or the steps of `adapter`.
        kind: What the assets are, for a heading.
    """
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names:
        for option, field in ASSETS[name].model_fields.items():
            owners[option, str(field.description)].append(name)
    options_by_owners: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for (option, _), having in owners.items():
        options_by_owners[tuple(having)].append(option)
    shared = [having for having in options_by_owners if len(having) > 1]
    for owners_of_table in sorted(shared, key=len, reverse=True):
        yield f"### {_name_owners(owners_of_table, names, kind)}"
        yield _make_options_table(owners_of_table, options_by_owners[owners_of_table])
    for name in names:
        yield f"### {name}"
        yield _first_line(ASSETS[name])
        yield _make_options_table((name,), options_by_owners.get((name,), []))


def _name_owners(owners: Sequence[str], names: Sequence[str], kind: str) -> str:
    """Return the heading for a table of options that several assets share."""
    if len(owners) == len(names):
        return f"Options of every {kind}"
    if list(owners) == list(names[1:]):
        return f"Options of every {kind} after {names[0].removesuffix('_adapter')}"
    *first, last = (name.removesuffix("_adapter") for name in owners)
    return f"Options of {', '.join(first)} and {last}"


def _describe_asset(name: str) -> Iterator[str]:
    """Yield the heading, the description and the table of an asset's options."""
    yield f"### {name}"
    yield _first_line(ASSETS[name])
    yield _make_options_table((name,), list(ASSETS[name].model_fields))


def _make_options_table(owners: Sequence[str], options: Sequence[str]) -> str:
    """Return a table of options, with a column for each preset that changes an option."""
    presets = [
        preset
        for preset in _SHOWN_PRESETS
        if any(option in PRESETS[preset].get(owner, {}) for owner in owners for option in options)
    ]
    rows = []
    for option in options:
        field = ASSETS[owners[0]].model_fields[option]
        defaults = {owner: _show_default(option, _get_field(owner, option)) for owner in owners}
        row = [f"`{option}`", _merge(defaults)]
        for preset in presets:
            values = {owner: PRESETS[preset].get(owner, {}) for owner in owners}
            changed = {
                owner: f"`{_show(values[owner][option])}`" if option in values[owner] else ""
                for owner in owners
            }
            row.append(_merge(changed))
        rows.append([*row, allowed(field), str(field.description)])
    return _make_table(("setting", "default", *presets, "values", "meaning"), rows)


def _merge(values: Mapping[str, str]) -> str:
    """Return one text for the values of several assets.

    A value that all assets share is stated once.
    """
    owners_by_value: dict[str, list[str]] = defaultdict(list)
    for owner, value in values.items():
        owners_by_value[value].append(owner.removesuffix("_adapter"))
    if len(owners_by_value) == 1:
        return next(iter(owners_by_value))
    return "; ".join(
        f"{', '.join(owners)}: {value}" for value, owners in owners_by_value.items() if value
    )


def _make_rates_table() -> str:
    """Return the table of defaults that depend on the size of the base model."""
    rows = [
        (rates.size, *map(_show_rate, (rates.sft, rates.further, rates.grpo)))
        for rates in list_size_rates()
    ]
    header = ("weights of the base model", "`sft`", "`sdft`, `distill`, `dpo`, `kto`", "`grpo`")
    return _make_table(header, rows)


def _make_names_table() -> str:
    """Return the table of the earlier names of options, and of their names in other systems."""
    rows = {
        (f"`{name}`", f"`{option}`", meaning)
        for options in ASSETS.values()
        for names, meaning in (
            (options.earlier_names, "earlier name, still accepted"),
            (options.other_names, "name in another system; the error names the option"),
        )
        for name, option in names.items()
    }
    return _make_table(("name", "option", "meaning"), sorted(rows))


def _get_field(owner: str, option: str) -> FieldInfo:
    return ASSETS[owner].model_fields[option]


def _find_section(field: FieldInfo) -> type[Section] | None:
    """Return the settings-file table that a setting represents, or None."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _first_line(options: type[Options]) -> str:
    return (options.__doc__ or "").strip().partition("\n")[0]


def _show_default(name: str, field: FieldInfo) -> str:
    """Return the default of a setting as code.

    Empty and very long defaults are described in words.
    """
    if name == "store":
        return "store of omniagents"
    value = field.get_default(call_default_factory=True)
    if value in ("", None) or value == [] or value == {}:
        return "empty"
    text = _show(value)
    if len(text) > _LONGEST_DEFAULT:
        return f"{len(value)} {'patterns' if name == 'verdict_leaks' else 'entries'}"
    return f"`{text}`"


def _show(value: Any) -> str:
    """Return a value as TOML writes it, but a text without quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_quote, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_quote(key)} = {_quote(part)}' for key, part in value.items())}}}"
    return str(value)


def _show_rate(rate: float) -> str:
    """Return a learning rate as text without an exponent."""
    return f"{rate:.7f}".rstrip("0")


def _quote(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else _show(value)


def _make_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(map(_make_cell, row))} |" for row in rows]
    if not lines:
        return "There are no further options."
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *lines])


def _make_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(update_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
