"""Where a change goes: the table of `docs/explanation/design.md`, and a proof that its places exist.

`python -m agent_pipeline_tests.test_changes` writes the table.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "design.md"
BEGIN = "<!-- changes: made by python -m agent_pipeline_tests.test_changes -->\n"
END = "<!-- end of changes -->"


@dataclass(frozen=True)
class Place:
    """A module that a change touches.

    Attributes:
        path: The module or folder within `agent_pipeline`.
        names: Names in it that a person looks for; none for a new module in a folder.
        action: What a person does there.
    """

    path: str
    names: tuple[str, ...]
    action: str


CHANGES = {
    "a reader for a new trace format": (
        Place("sources/agents", (), "add a module with a subclass of `TraceSource`"),
        Place("sources/registry.py", ("SOURCES",), "add the class to the list"),
    ),
    "a kind of secret to redact": (Place("redaction/rules.yaml", (), "add a rule"),),
    "a kind of damage, and its repair": (
        Place("sessions/damage.py", ("DAMAGE_KINDS",), "add the kind and its default policy"),
        Place("sessions/repair.py", ("repair_session",), "add the repair"),
    ),
    "a column of the table `sessions`": (
        Place("sessions/session.py", ("Session",), "add a field"),
        Place("sessions/tables.py", ("SESSIONS",), "add a column"),
    ),
    "the judge that decides if two judges disagree": (
        Place("judging/verdict_policy.py", (), "change the order of authority"),
    ),
    "a column of the SFT rows": (
        Place("datasets/sft.py", ("SFT",), "add the column to the schema, and fill it"),
        Place("defs/columns.py", ("TABLES",), "name the columns that it is made from"),
    ),
    "a strategy that selects a coreset": (
        Place("selection/strategies.py", ("STRATEGIES",), "add a function"),
    ),
    "a model family": (
        Place("models/families.py", ("FAMILIES",), "add an entry"),
        Place(
            "models/tool_call_parsers.py",
            (),
            "add a parser if the notation of its tool calls is new",
        ),
    ),
    "the tokens that are trained on": (
        Place("tokenization/loss_masks.py", ("encode_conversation",), "change the mask"),
    ),
    "a further training step": (
        Place("training/config.py", ("FURTHER",), "add its name and its options"),
        Place("training/trainers", (), "add a trainer with its objective"),
    ),
    "the metric that decides a promotion": (
        Place("promotion/deciding_metric.py", ("measure_gain",), "change the metric"),
    ),
    "a rule of the decision": (
        Place("promotion/rules.py", ("decide_on_candidate",), "change or add a rule"),
    ),
    "the conditions under which a decision promotes a model": (
        Place("promotion/approval.py", ("needs_a_person",), "change the conditions"),
    ),
    "a figure on the evaluation page": (
        Place("reports/figure_tables.py", ("figure_rows",), "add a row"),
    ),
    "a message to people": (
        Place("defs/automation/notifications.py", ("notices",), "yield a notification"),
    ),
    "the start of a nightly run": (
        Place("defs/automation/nightly.py", ("nightly",), "change the schedule"),
    ),
    "a setting of an asset": (
        Place("config/assets.py", ("ASSETS",), "add a field to its options"),
    ),
    "another place where heavy tasks run": (
        Place("compute/launchers", (), "add a launcher"),
        Place("compute/launchers/places.py", ("launcher",), "return the launcher for its place"),
        Place("config/compute.py", ("Place",), "add the place and its settings"),
    ),
}


def table() -> str:
    """Return the table as Markdown."""
    lines = ["| change | where |", "|---|---|"]
    for change, places in CHANGES.items():
        cells = "; ".join(f"`{place.path}`: {place.action}" for place in places)
        lines.append(f"| {change} | {cells} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("change", CHANGES)
def test_places(change: str) -> None:
    """Every place of a change exists, and defines the names that a person looks for."""
    for place in CHANGES[change]:
        path = ROOT / "agent_pipeline" / place.path
        assert path.exists(), place.path
        for name in place.names:
            defined = rf"^(?:{name}\b.*=|class {name}\b|(?:async )?def {name}\b)"
            assert re.search(defined, path.read_text("utf-8"), re.MULTILINE), (place.path, name)


def test_page() -> None:
    """The page has the table as this module makes it."""
    page = PAGE.read_text("utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0] == table()


if __name__ == "__main__":
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], "utf-8")
