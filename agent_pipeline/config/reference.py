"""The tables of `docs/reference/settings.md`: `python -m agent_pipeline.config.reference`."""

from pathlib import Path

from agent_pipeline.config.assets import ASSETS
from agent_pipeline.config.presets import PRESETS
from agent_pipeline.options import allowed

PRESETS_BEGIN, PRESETS_END = (
    "<!-- presets: made by python -m agent_pipeline.config.reference -->",
    "<!-- end of presets -->",
)
BEGIN, END = (
    "<!-- asset settings: made by python -m agent_pipeline.config.reference -->",
    "<!-- end of asset settings -->",
)


def reference() -> str:
    """Return one table of settings per asset.

    Each row has a setting, its default, its allowed values, its meaning, and its name in other
    systems.
    """
    parts = []
    for asset, options in ASSETS.items():
        about = (options.__doc__ or "").strip().splitlines()[0]
        lines = [
            f"### {asset}",
            "",
            about,
            "",
            "| setting | default | value | meaning |",
            "|---|---|---|---|",
        ]
        for name, field in options.model_fields.items():
            others = ", ".join(
                f"`{other}`" for other, ours in options.other_names.items() if ours == name
            )
            earlier_names = ", ".join(
                f"`{earlier}`" for earlier, now in options.earlier_names.items() if now == name
            )
            meaning = str(field.description)
            if earlier_names:
                meaning += f" Also accepted: {earlier_names}."
            if others:
                meaning += f" Elsewhere: {others}."
            lines.append(
                f"| `{name}` | `{_shown(field.get_default(call_default_factory=True))}` | "
                f"{allowed(field)} | {_cell(meaning)} |"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def presets() -> str:
    """Return a table of what each preset changes."""
    lines = ["| preset | asset | what it changes |", "|---|---|---|"]
    for preset, assets in PRESETS.items():
        if not assets:
            lines.append(
                f"| `{preset}` | | nothing: the defaults are chosen for a small model on a few CPU "
                f"cores |"
            )
        for asset, values in assets.items():
            lines.append(
                f"| `{preset}` | `{asset}` | "
                f"{', '.join(f'`{name} = {_shown(value)}`' for name, value in values.items())} |"
            )
    return "\n".join(lines)


def updated(page: str) -> str:
    """Return the page with the tables of today."""
    for begin, end, made in ((BEGIN, END, reference()), (PRESETS_BEGIN, PRESETS_END, presets())):
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n{made}\n\n{end}{rest.partition(end)[2]}"
    return page


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return _cell(text if len(text) <= 90 else f"{text[:87]}...") or '""'


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    path = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
