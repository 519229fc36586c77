"""Records that were only half written: which sessions are damaged, and which are not."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.errors import StoreError
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.agents.openhands import OpenHandsSource
from agent_pipeline.sources.formats.file_source import FileSource
from agent_pipeline.sources.formats.plain import OpenAIChatSource
from agent_pipeline.sources.platforms.opentelemetry import OpenInferenceSource
from agent_pipeline_tests.sources.samples import SAMPLES, WRITTEN, chat_row, lines, put, written
from agent_pipeline_tests.sources.test_plain import read

ONE_SESSION = [
    "claude_code",
    "codex",
    "gemini_cli",
    "openhands_lines",
    "claude_stream",
    "codex_exec",
    "copilot_cli",
    "cline_lines",
]
ONE_SESSION += ["goose", "pi", "session_trace", "qwen_code", "iflow"]
"""Samples whose file of lines is one session with its side chains."""


def sessions_in(reader: type[FileSource], path: Path, raw: bytes) -> list[Session]:
    path.write_bytes(raw)
    try:
        return read(reader(path))
    except StoreError:  # refused with a sentence
        return []


def sample(name: str) -> tuple[type[FileSource], bytes]:
    reader, files = SAMPLES[name]
    return reader, next(iter(files.values()))


@pytest.mark.parametrize("name", ONE_SESSION)
@settings(max_examples=60)
@given(data=st.data())
def test_a_file_that_ends_inside_a_line_is_damaged(
    name: str, data: Any, tmp_path_factory: Any
) -> None:
    """A file that ends exactly at a line's end cannot be told from a shorter session. Every other cut can."""
    reader, raw = sample(name)
    cut = data.draw(st.integers(1, len(raw)))
    path = tmp_path_factory.mktemp("cut") / "s.jsonl"
    begun = raw[:cut].rsplit(b"\n", 1)[-1]
    is_whole = not begun or raw[cut : cut + 1] == b"\n"
    for session in sessions_in(reader, path, raw[:cut]):
        assert bool(session.damage.get("torn_record")) is not is_whole


@pytest.mark.parametrize("name", ONE_SESSION)
@settings(max_examples=60)
@given(data=st.data())
def test_a_line_that_lost_a_part_damages_its_session(
    name: str, data: Any, tmp_path_factory: Any
) -> None:
    reader, raw = sample(name)
    rows = raw.splitlines()
    at = data.draw(st.integers(0, len(rows) - 1))
    begin = data.draw(st.integers(0, len(rows[at]) - 1))
    end = data.draw(st.integers(begin + 1, len(rows[at])))
    rest = rows[at][:begin] + rows[at][end:]
    path = tmp_path_factory.mktemp("torn") / "s.jsonl"
    try:
        left = json.loads(rest) if rest.strip() else None
        is_torn = left is not None and not isinstance(left, dict)
    except ValueError:
        left, is_torn = None, True
    # A record that lost a name may be counted too: without its role a message is no message.
    lost_a_name = isinstance(left, dict) and left.keys() != json.loads(rows[at]).keys()
    for session in sessions_in(reader, path, b"\n".join([*rows[:at], rest, *rows[at + 1 :]])):
        is_counted = bool(session.damage.get("torn_record"))
        assert is_counted is is_torn or (lost_a_name and is_counted)


@pytest.mark.parametrize("torn", [b'{"type": "use', b"\0\0\0\0", b"[]", b"3", b'{"a": 1}{"b": 2}'])
def test_a_torn_line_between_two_sessions_of_one_file_damages_both(
    tmp_path: Path, torn: bytes
) -> None:
    reader, raw = sample("claude_code")
    other = raw.replace(b'"cc-1"', b'"cc-2"')
    (tmp_path / "s.jsonl").write_bytes(raw + torn + b"\n" + other)
    damage = {
        session.session_id: dict(session.damage) for session in read(reader(tmp_path / "s.jsonl"))
    }
    assert damage == {name: {"torn_record": 1} for name in ("cc-1", "cc-1:ag7", "cc-2", "cc-2:ag7")}


def test_a_torn_line_damages_no_session_of_one_line(tmp_path: Path) -> None:
    """Each line is a whole session. The torn one is lost, and a note says so."""
    rows = lines(chat_row(), chat_row(session_id="s2"), chat_row(session_id="s3")).splitlines()
    source = OpenAIChatSource(
        put(tmp_path, {"chat.jsonl": b"\n".join([rows[0], rows[1][:80], rows[2]])})
    )
    assert [(session.session_id, session.damage) for session in read(source)] == [
        ("s1", {}),
        ("s3", {}),
    ]
    assert any("1 records are not JSON" in note for note in source.notes)


def test_a_torn_span_damages_its_neighbours_and_the_trace_that_it_names(tmp_path: Path) -> None:
    """Spans of several traces may be written in turn."""
    rows = (WRITTEN / "openinference_otlp.jsonl").read_bytes().splitlines()
    (tmp_path / "s.jsonl").write_bytes(b"\n".join([*rows, rows[0][: len(rows[0]) // 2]]))
    whole, torn = (
        read(OpenInferenceSource(WRITTEN / "openinference_otlp.jsonl")),
        read(OpenInferenceSource(tmp_path / "s.jsonl")),
    )
    assert [session.damage for session in whole] == [{}] and torn[-1].damage["torn_record"]


def test_a_torn_file_damages_the_session_of_its_folder(tmp_path: Path) -> None:
    files = written("openhands")
    name = next(each for each in sorted(files) if "event-00003" in each)
    store = put(tmp_path, files | {name: files[name][:100]})
    (session,) = read(OpenHandsSource(store))
    assert session.damage["torn_record"]


def test_a_list_that_is_cut_off_damages_the_session_at_its_end(tmp_path: Path) -> None:
    reader, files = SAMPLES["openhands_lines"]
    events = [json.loads(line) for line in next(iter(files.values())).splitlines()]
    raw = json.dumps(events, indent=1).encode()
    (tmp_path / "events.json").write_bytes(raw[: len(raw) - 30])
    (session,) = read(reader(tmp_path / "events.json"))
    assert session.damage["torn_record"] == 1
