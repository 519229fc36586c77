"""The tables of `docs/traces.md` say what the code does."""

import json
import re
from pathlib import Path

from agent_pipeline.config.assets import CurationConfig
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.judging.curation import Reason
from agent_pipeline.sessions.damage import KINDS
from agent_pipeline.sources import SOURCES, open_source, readers

TEXT = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with a heading, without their code marks."""
    table = TEXT[TEXT.index(f"| {heading} |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]


def named(heading: str) -> list[str]:
    return [re.findall(r"`([^`]+)`", row[0])[0] for row in rows(heading)]


def test_every_source_stands_there_once():
    assert sorted(named("source")) == sorted(source.name for source in SOURCES)


def test_the_example_of_a_source_reads_its_tickets(tmp_path, monkeypatch):
    code = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[0]
    assert len(code.splitlines()) <= 30
    (tmp_path / "helpdesk.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    tickets = tmp_path / "tickets"
    tickets.mkdir()
    for number, solved in enumerate((True, False)):
        dialogue = [{"role": "user", "content": "It is broken."}, {"role": "assistant", "content": "Turn it off and on."}]
        (tickets / f"ticket-{number}.json").write_text(json.dumps({"dialogue": dialogue, "solved": solved}), encoding="utf-8")
    source = open_source(tickets, readers(["helpdesk:HelpdeskSource"]))
    (key,) = source.partitions()
    sessions = list(read_sessions(source, key, ReadingOptions()))
    assert [(each.session_id, each.judgment, len(each.messages)) for each in sessions] == [
        ("ticket-0", "acceptable", 2),
        ("ticket-1", "unacceptable", 2),
    ]
    assert [each.session_id for each in source.stored(key)] == ["ticket-0", "ticket-1"] and source.signature()


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
