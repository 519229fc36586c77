"""The tables of `docs/traces.md` say what the code does."""

import re
from pathlib import Path

from agent_pipeline.config.assets import CurationConfig
from agent_pipeline.judging.curation import Reason
from agent_pipeline.sessions.repair import KINDS
from agent_pipeline.sources import SOURCES

TEXT = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with a heading, without their code marks."""
    table = TEXT[TEXT.index(f"| {heading} |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]


def named(heading: str) -> list[str]:
    return [re.findall(r"`([^`]+)`", row[0])[0] for row in rows(heading)]


def test_every_source_stands_there_once():
    assert sorted(named("source")) == sorted(source.name for source in SOURCES)


def test_every_kind_of_damage_has_its_default_its_policies_and_its_meaning_in_the_order_of_the_code():
    said = [(row[0], row[1], row[2], row[3]) for row in rows("kind")]
    assert said == [
        (f"`{kind}`", f"`{each.default}`", ", ".join(f"`{action}`" for action in each.allowed), each.meaning)
        for kind, each in KINDS.items()
    ]


def test_every_reason_stands_there_in_the_order_of_the_code():
    assert [reason.partition("<")[0] for reason in named("reason")] == list(Reason)


def test_every_setting_of_curation_has_its_default():
    fields = CurationConfig.model_fields
    assert named("setting of `curated_sessions`") == list(fields)
    said = {row[0].strip("`"): row[1] for row in rows("setting of `curated_sessions`")}
    assert said["required_measures"] == ", ".join(f"`{name}`" for name in fields["required_measures"].default)
    assert [int(said[name]) for name in ("max_sessions", "max_characters")] == [
        fields[n].default for n in ("max_sessions", "max_characters")
    ]
    assert said["verdict_leaks"].startswith({3: "three"}[len(fields["verdict_leaks"].default)])
