"""The pages about sources, and the tables about damage and curation, say what the code does."""

import html
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.config.assets import CurationConfig
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.judging.decisions import DropReason
from agent_pipeline.sessions.damage import DAMAGE_KINDS
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import SOURCES, open_source, parse_location, readers
from agent_pipeline_tests.sources.platforms.exports import placed, write
from agent_pipeline_tests.sources.platforms.test_platforms import EXPORTS
from agent_pipeline_tests.sources.samples import (
    SAMPLES,
    TOOL,
    chat_row,
    history_row,
    put,
    sharegpt_row,
)
from agent_pipeline_tests.stores import AGENTS_SCHEMA, execute, omniagents_home

DOCS = Path(__file__).parents[2] / "docs"
SOURCE_PAGES = DOCS / "reference" / "sources"
TEXT = (DOCS / "explanation" / "traces.md").read_text(encoding="utf-8")
INDEX = (SOURCE_PAGES / "index.md").read_text(encoding="utf-8")
READER_PAGE = (DOCS / "how-to" / "write-a-reader.md").read_text(encoding="utf-8")
HEADINGS = [
    "Where the sessions are",
    "How to export",
    "Command",
    "What is read",
    "What is lost or counted as damage",
]
"""The headings of a source's page, in their order."""


def rows(heading: str, text: str = TEXT) -> list[list[str]]:
    """The cells of the table that begins with a heading, without their code marks."""
    table = text[text.index(f"| {heading} |") :].partition("\n\n")[0]
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in table.splitlines()[2:]
    ]


def named(heading: str, text: str = TEXT) -> list[str]:
    return [re.findall(r"`([^`]+)`", row[0])[0] for row in rows(heading, text)]


def read_page(source: str) -> str:
    return (SOURCE_PAGES / f"{source}.md").read_text(encoding="utf-8")


def test_every_source_stands_in_the_table_once():
    assert named("source", INDEX) == [source.name for source in SOURCES]


def test_no_page_is_about_a_source_that_does_not_exist():
    pages = {path.stem for path in SOURCE_PAGES.glob("*.md")} - {"index"}
    assert pages == {source.name for source in SOURCES}


@pytest.mark.parametrize("name", [source.name for source in SOURCES])
def test_every_source_has_a_page_with_the_five_headings(name):
    page = read_page(name)
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    assert parts[1::2] == HEADINGS
    bodies = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert all(body.strip() for body in bodies.values())
    introduction = " ".join(parts[0].split())
    assert f"`{name}`" in introduction
    evidence = ("tested with", "was written from", "The reader follows the")
    assert any(words in introduction for words in evidence)
    assert "agent-pipeline discover " in bodies["Command"]
    assert "| part | read from |" in bodies["What is read"]
    nav = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert f": reference/sources/{name}.md\n" in nav


@pytest.mark.parametrize("name", [source.name for source in SOURCES])
def test_the_store_on_every_page_is_read_by_its_source_or_found_by_it(name):
    """A page that names a reader, or opens a URL, names its own reader."""
    stores = re.findall(r'^store = "(.+)"$', read_page(name), flags=re.MULTILINE)
    assert len(stores) == 1
    location = parse_location(stores[0])
    (source,) = (source for source in SOURCES if source.name == name)
    assert location.reader in (None, name)
    assert not location.is_url or location.where.partition("://")[0] in source.schemes


@pytest.mark.parametrize(
    "name", ["openai_chat", "responses_items", "sharegpt", "prompt_completion"]
)
def test_the_record_on_the_page_of_a_plain_format_is_read(name, tmp_path):
    records = re.findall(r"```json\n(.*?)```", read_page(name), re.DOTALL)
    source = open_source(write(tmp_path / "data.jsonl", map(json.loads, records)))
    assert source.name == name
    sessions = [session for key in source.partitions() for session in source.sessions(key)]
    assert sessions and not any(session.damage for session in sessions)
    assert all(session.messages[-1]["role"] == "assistant" for session in sessions)


KEPT: dict[str, Callable[[Session], Any]] = {
    "system prompt": lambda session: session.messages and session.messages[0]["role"] == "system",
    "tool calls": lambda session: any(message.get("tool_calls") for message in session.messages),
    "tools": lambda session: session.tools_origin == "source",
    "reasoning": lambda session: session.reasoning,
    "tokens": lambda session: session.usage,
    "cost": lambda session: session.cost_usd is not None,
    "time": lambda session: session.created_at,
    "task": lambda session: session.task_id,
    "verdict": lambda session: session.judgment,
    "metrics": lambda session: session.scores,
}
"""Checks whether a session has the information in a column of the table, by column."""


def stores_of_every_source(folder: Path) -> Iterator[Path]:
    """A store or several of each source: those of the tests."""
    for name, (_, files) in SAMPLES.items():
        yield put(folder / name, files)
    for name, (_, _, _, made) in EXPORTS.items():
        yield placed(name, made, folder)
    items = [{"role": "system", "content": "Help."}, *history_row()["history"]]
    more = {
        "tools": [TOOL],
        "usage": {"input_tokens": 1},
        "cost_usd": 0.1,
        "created_at": 1,
        "task_id": "7",
        "reward": 1,
        "scores": {"a": 1},
    }
    thought = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hi", "reasoning_content": "Be kind."},
    ]
    yield write(folder / "chat.jsonl", [chat_row(**more), chat_row(messages=thought)])
    yield write(folder / "history.jsonl", [history_row(history=items, **more)])
    yield write(folder / "sharegpt.jsonl", [sharegpt_row(**more)])
    yield omniagents_home(
        folder / "home",
        {"a": items},
        context=json.dumps({"tools": [TOOL]}),
        verdicts=[("a", "acceptable")],
    )
    sdk = folder / "sdk_sessions.db"
    with closing(sqlite3.connect(sdk)) as connection:
        connection.executescript(AGENTS_SCHEMA)
    execute(sdk, "INSERT INTO agent_sessions (session_id) VALUES ('a')")
    for item in items:
        execute(
            sdk,
            (
                "INSERT INTO agent_messages (session_id, message_data) VALUES ('a', ?)",
                (json.dumps(item),),
            ),
        )
    write(folder / "sdk_labels.json", [{"session_id": "a", "task_id": "7", "reward": 1}])
    yield sdk


def test_what_each_source_keeps_stands_there_as_the_files_of_the_tests_show_it(tmp_path):
    kept: dict[str, set[str]] = {source.name: set() for source in SOURCES}
    for store in stores_of_every_source(tmp_path):
        source = open_source(store)
        sessions = [session for key in source.partitions() for session in source.sessions(key)]
        kept[source.name] |= {name for name, has in KEPT.items() if any(map(has, sessions))}
    lines = [
        f"| source | product | how it is recognized | {' | '.join(KEPT)} |",
        "|---|---|---|" + ":-:|" * len(KEPT),
    ]
    for source in SOURCES:
        title = read_page(source.name).partition("\n")[0].removeprefix("# ")
        marks = ("✓" if name in kept[source.name] else "–" for name in KEPT)
        cells = [
            f"[`{source.name}`]({source.name}.md)",
            title,
            html.escape(source.looks_like, quote=False),
            *marks,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    table = "\n".join(lines)
    assert table in INDEX, f"Put this table into docs/reference/sources/index.md:\n{table}"


def test_the_example_of_a_source_reads_its_tickets(tmp_path, monkeypatch):
    code = re.findall(r"```python\n(.*?)```", READER_PAGE, re.DOTALL)[0]
    assert len(code.splitlines()) <= 36
    (tmp_path / "helpdesk.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    tickets = tmp_path / "tickets"
    tickets.mkdir()
    for number, solved in enumerate((True, False)):
        dialogue = [
            {"role": "user", "content": "It is broken."},
            {"role": "assistant", "content": "Turn it off and on."},
        ]
        (tickets / f"ticket-{number}.json").write_text(
            json.dumps({"dialogue": dialogue, "solved": solved}), encoding="utf-8"
        )
    source = open_source(tickets, readers(["helpdesk:HelpdeskSource"]))
    (key,) = source.partitions()
    sessions = list(read_sessions(source, key, ReadingOptions()))
    assert [(each.session_id, each.judgment, len(each.messages)) for each in sessions] == [
        ("ticket-0", "acceptable", 2),
        ("ticket-1", "unacceptable", 2),
    ]
    assert [each.session_id for each in source.stored(key)] == [
        "ticket-0",
        "ticket-1",
    ] and source.signature()


def test_every_kind_of_damage_has_its_default_its_policies_and_its_meaning_in_the_order_of_the_code():
    said = [(row[0], row[1], row[2], row[3]) for row in rows("kind")]
    assert said == [
        (
            f"`{kind}`",
            f"`{each.default}`",
            ", ".join(f"`{action}`" for action in each.allowed),
            each.meaning,
        )
        for kind, each in DAMAGE_KINDS.items()
    ]


def test_every_reason_stands_there_in_the_order_of_the_code():
    assert [reason.partition("<")[0] for reason in named("reason")] == list(DropReason)


def test_every_setting_of_curation_has_its_default():
    fields = CurationConfig.model_fields
    assert named("setting of `curated_sessions`") == list(fields)
    said = {row[0].strip("`"): row[1] for row in rows("setting of `curated_sessions`")}
    assert said["required_measures"] == ", ".join(
        f"`{name}`" for name in fields["required_measures"].default
    )
    assert [int(said[name]) for name in ("max_sessions", "max_characters")] == [
        fields[n].default for n in ("max_sessions", "max_characters")
    ]
    assert said["verdict_leaks"].startswith({3: "three"}[len(fields["verdict_leaks"].default)])
