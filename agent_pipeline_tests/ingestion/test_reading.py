"""What is added to a source's sessions, the task they belong to, and the fingerprint of a store."""

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agent_pipeline.ingestion.reading import (
    ReadingOptions,
    TaskPatternError,
    find_task_key,
    fingerprint_partition,
    read_sessions,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session, dump_canonical_json, hash_json
from agent_pipeline.sources import open_source
from agent_pipeline_tests.stores import (
    HELLO,
    add_sessions,
    call,
    execute,
    omniagents_home,
    result,
    sessions_db,
    user,
)

KEY = PartitionKey("shop", "support")
TOOL = {
    "type": "function",
    "function": {
        "name": "given",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}


def session(**fields) -> Session:
    return Session(**({"session_id": "s", "project": "p", "agent": "a", "source": "test"} | fields))


def key_of(pattern: str = "", context_field: str = "", **fields) -> str:
    return find_task_key(session(**fields), re.compile(pattern) if pattern else None, context_field)


# Tasks


def test_the_pattern_names_the_task_by_its_groups_or_by_all_that_it_matches():
    assert key_of(r"task(\d+)-trial\d+", session_id="task007-trial3", task_id="other") == "007"
    assert key_of(r"(\w)-(\d)?-(\w)", session_id="a--b") == "a-b"
    assert key_of(r"task\d+", session_id="task007-trial3") == "task007"


@pytest.mark.parametrize("pattern", [r"(x)?", r"x*", r"task(\d+)"])
def test_a_pattern_that_names_nothing_does_not_make_all_sessions_one_task(pattern):
    assert key_of(pattern, session_id="abc", task_id="7") == "7"


def test_the_named_field_of_the_context_comes_before_the_task_id():
    assert key_of("", "case", context={"case": "c1"}, task_id="7") == "c1"
    assert key_of("", "case", context={"case": 0}, task_id="7") == "0"
    assert key_of("", "case", context={"case": {"b": 1, "a": 2}}) == key_of(
        "", "case", context={"case": {"a": 2, "b": 1}}
    )
    for empty in (None, ""):
        assert key_of("", "case", context={"case": empty}, task_id="7") == "7"


def test_without_a_name_the_first_user_message_is_the_task_whatever_its_case_and_spaces():
    one = key_of(messages=[{"role": "system", "content": "x"}, user("Hello  World\n")])
    assert (
        one
        == key_of(session_id="t", messages=[user("hello world")], task_id="")
        != key_of(messages=[user("hello")])
    )
    assert "hello" not in one
    assert key_of(session_id="t") == "session:t"


def test_a_pattern_that_is_no_regular_expression_is_a_sentence(tmp_path):
    with pytest.raises(TaskPatternError):
        list(
            read_sessions(
                open_source(omniagents_home(tmp_path / "home")),
                KEY,
                ReadingOptions(task_pattern="("),
            )
        )


def test_sessions_that_the_pattern_does_not_name_are_counted_in_a_note(tmp_path):
    source = open_source(omniagents_home(tmp_path / "home", {"task1": HELLO, "other": HELLO}))
    list(read_sessions(source, KEY, ReadingOptions(task_pattern=r"task(\d+)")))
    assert any("names no task in 1 of the 2 session ids" in note for note in source.notes)


# System prompt and tools


def test_the_system_prompt_goes_where_there_is_none(tmp_path):
    home = omniagents_home(
        tmp_path / "home", {"a": HELLO, "b": [{"role": "system", "content": "own"}, *HELLO]}
    )
    found = [
        each.messages[0]["content"]
        for each in read_sessions(open_source(home), KEY, ReadingOptions(system_prompt="ours"))
    ]
    assert found == ["ours", "own"]


def test_tools_come_from_the_source_then_the_settings_then_the_calls(tmp_path):
    asks = [
        user("x"),
        call("f", "1", '{"a": 1}'),
        result("y", "1"),
        call("f", "2", '{"a": 1.5, "b": null}'),
        result("y", "2"),
    ]
    home = omniagents_home(tmp_path / "home", {"a": asks, "c": HELLO})
    add_sessions(sessions_db(home), {"b": asks}, json.dumps({"tools": [TOOL]}))
    source = open_source(home)
    inferred = {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "null"}},
        "required": ["a"],
    }
    a, b, c = read_sessions(source, KEY, ReadingOptions())
    assert [each.tools_origin for each in (a, b, c)] == ["inferred", "source", "inferred"]
    assert (
        a.tools
        == c.tools
        == [
            {
                "type": "function",
                "function": {"name": "f", "description": "", "parameters": inferred},
            }
        ]
    )
    a, b, c = read_sessions(source, KEY, ReadingOptions(tools=(TOOL,)))
    assert [each.tools_origin for each in (a, b, c)] == ["settings", "source", "settings"]
    assert a.tools == b.tools == [TOOL]


def test_only_answered_calls_with_an_object_for_arguments_teach_a_schema(tmp_path):
    asks = [
        user("x"),
        call("f", "1", "[1]"),
        call("g", "2", "{"),
        call("h", "3", "{}"),
        call("i", "4", '{"x":' + "[" * 5000 + "]" * 5000 + "}"),
        call("refused", "5"),
        call("<empty-function-name>", "6"),
        call("unknown", "7"),
        call("unanswered", "8"),
        *(
            result({5: "Error: no such tool", 7: "Unknown tool: unknown"}.get(at, "y"), str(at))
            for at in range(1, 8)
        ),
    ]
    (found,) = read_sessions(
        open_source(omniagents_home(tmp_path / "home", {"a": asks})), KEY, ReadingOptions()
    )
    assert [tool["function"]["name"] for tool in found.tools] == ["h"]


# Fingerprints


@pytest.fixture
def home(tmp_path: Path) -> Path:
    sessions = {"a": HELLO, "b": [*HELLO, call("f", "1"), result("x", "1")]}
    return omniagents_home(
        tmp_path / "home", sessions, context='{"task_id": 1}', verdicts=[("a", "acceptable")]
    )


def version(home: Path) -> str:
    return fingerprint_partition(open_source(home).stored(KEY))[0]


def in_sessions(*statements: str) -> Callable[[Path], None]:
    return lambda home: execute(sessions_db(home), *statements)


def in_verdicts(*statements: str) -> Callable[[Path], None]:
    return lambda home: execute(home / "traces" / "shop.db", *statements)


def vacuumed(home: Path) -> None:
    with closing(sqlite3.connect(sessions_db(home), isolation_level=None)) as connection:
        connection.execute("VACUUM")


def copied(home: Path) -> None:
    shutil.copytree(home, home.with_name("copy"))
    shutil.rmtree(home)
    home.with_name("copy").rename(home)


@pytest.mark.parametrize(
    "change",
    [
        in_sessions(
            "UPDATE history SET msg_json = replace(msg_json, 'hello', 'hullo') WHERE id = 1"
        ),
        in_sessions("DELETE FROM history WHERE id = 6"),
        in_sessions(
            """INSERT INTO history (session_id, msg_json) VALUES ('a', '{"role": "user", "content": "more"}')"""
        ),
        in_sessions(
            """INSERT INTO history (session_id, msg_json) VALUES ('a', '{"type": "reasoning"}')"""
        ),
        in_sessions("INSERT INTO history (session_id, msg_json) VALUES ('a', 'cut o')"),
        in_sessions("UPDATE sessions SET archived = 1 WHERE session_id = 'a'"),
        in_sessions("UPDATE sessions SET created_at = '2020-01-01' WHERE session_id = 'a'"),
        in_sessions(
            """UPDATE sessions SET context_json = '{"task_id": 2}' WHERE session_id = 'a'"""
        ),
        in_sessions(
            """UPDATE sessions SET context_json = '{"task_id": 1, "tools": [{}]}' WHERE session_id = 'a'"""
        ),
        in_sessions("INSERT INTO sessions (session_id) VALUES ('c')"),
        in_sessions(
            "DELETE FROM history WHERE session_id = 'a'",
            "DELETE FROM sessions WHERE session_id = 'a'",
        ),
        in_sessions(
            "UPDATE history SET session_id = 'c' WHERE session_id = 'a'",
            "UPDATE sessions SET session_id = 'c' WHERE session_id = 'a'",
        ),
        in_verdicts("INSERT INTO analysis (group_id, judgment) VALUES ('a', 'unacceptable')"),
        in_verdicts("UPDATE analysis SET judgment = NULL"),
        in_verdicts("INSERT INTO analysis (group_id, judgment) VALUES ('b', 'acceptable')"),
    ],
)
def test_the_fingerprint_changes_with_a_session_an_item_or_a_verdict(home, change):
    before = version(home)
    change(home)
    assert version(home) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda home: os.utime(sessions_db(home), (0, 0)),
        vacuumed,
        copied,
        in_sessions("UPDATE sessions SET hold = 1, user_id = 'u', variables_json = '{}'"),
        in_sessions("CREATE TABLE other (x)", "PRAGMA journal_mode=WAL"),
        in_sessions("UPDATE history SET id = id + 100"),
        in_verdicts(
            "INSERT INTO analysis (group_id, judgment) VALUES ('a', 'acceptable'), ('elsewhere', 'acceptable')"
        ),
        in_verdicts("UPDATE analysis SET reason = 'because'"),
    ],
)
def test_the_fingerprint_stays_when_no_session_item_or_verdict_changed(home, change):
    before = version(home)
    change(home)
    assert version(home) == before


def test_canonical_json_is_one_text_for_one_value():
    assert (
        dump_canonical_json({"b": 1, "a": "ü"})
        == '{"a":"ü","b":1}'
        == dump_canonical_json({"a": "ü", "b": 1})
    )
    assert hash_json("\ud800") != hash_json("\\ud800")
    with pytest.raises(TypeError):
        dump_canonical_json({"a", "b"})


def test_a_greeting_names_no_task():
    """Sessions that begin with "Hi" were one task, and so lay in one split."""

    def task(*texts: str) -> str:
        messages = [{"role": "user", "content": text} for text in texts]
        session = Session(
            session_id=texts[-1], project="p", agent="a", source="test", messages=messages
        )
        return find_task_key(session, None, "")

    assert (
        task("Hi", "Cancel booking B0.")
        == task("Hello, can you help me?", "cancel  booking B0.")
        == task("Cancel booking B0.")
    )
    assert task("Hi", "Cancel booking B0.") != task("Hi", "Cancel booking B2.")
    assert task("Hi") == "session:Hi"
    assert task("Hola", "Buenos días") == "session:Buenos días"
