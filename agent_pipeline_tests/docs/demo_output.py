"""The demo's output on the README and in the tutorial.

`python -m agent_pipeline_tests.docs.demo_output` runs in a folder in which `make demo` has ended. It
keeps the reports of the demo's model in `demo_reports.json`, and prints the lines for the pages.
"""

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from agent_pipeline.cli.report import MODEL_ASSETS, latest, print_report
from agent_pipeline.config.assets import ChampionConfig
from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import load_settings
from agent_pipeline.governance.played_world import find_deciding_world
from agent_pipeline.keys import parse_key
from agent_pipeline.promotion.ledger import EXPORT, find_last_decision
from agent_pipeline.promotion.next_steps import outcome_lines

ROOT = Path(__file__).parents[2]
REPORTS = Path(__file__).with_name("demo_reports.json")
KEY = parse_key("shop/support")
PAGES = (ROOT / "README.md", ROOT / "docs" / "tutorials" / "demo.md")


def printed_lines() -> list[str]:
    """Return what the demo prints of its trained agent, from the lake of the working directory."""
    settings = load_settings()
    lake = settings.open_lake()
    screen = StringIO()
    world = find_deciding_world(settings, lake, KEY)
    print_report(Console(file=screen, width=100), lake, {KEY: world})
    select_turns = resolve(settings, ChampionConfig, KEY).options.select_turns
    outcome = outcome_lines(lake, KEY, settings.split_sizes, select_turns)
    return [*screen.getvalue().strip().splitlines(), *outcome]


def collect_reports() -> dict[str, Any]:
    """Return the reports of the demo's artifacts and its decision, as JSON."""
    lake = load_settings().open_lake()
    reports: dict[str, Any] = {}
    for asset in (*MODEL_ASSETS, "episodes"):
        if artifact := latest(lake, asset, KEY):
            reports[asset] = artifact.manifest["report"]
            if asset == EXPORT:
                entry = find_last_decision(lake, KEY, artifact.identity)
                assert entry is not None
                reports["decision"] = msgspec.to_builtins(entry.decision)
    return reports


def main() -> None:
    """Keep the reports, and print the lines for the pages."""
    reports = collect_reports()
    kept = {name: reports[name] for name in ("sft_adapter", "evaluation", "episodes", "decision")}
    REPORTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(printed_lines()) + "\n")


if __name__ == "__main__":
    main()
