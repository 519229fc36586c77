"""The Agents SDK's databases: tables by any name, branches, verdicts beside the file; one database of omniagents as a store."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent_pipeline.errors import StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sources import OmniagentsSource, OpenAIAgentsSource, open_source
from agent_pipeline_tests.sources import damage
from agent_pipeline_tests.sources.platforms.exports import write
from agent_pipeline_tests.stores import HELLO, execute, omniagents_home, says, sessions_db, user

SCHEMA = """
CREATE TABLE {sessions} (session_id TEXT PRIMARY KEY, created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, updated_at TIMESTAMP);
CREATE TABLE {messages} (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, message_data TEXT NOT NULL, created_at TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES {sessions} (session_id) ON DELETE CASCADE);
"""

STRUCTURE = """
CREATE TABLE message_structure (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, message_id INTEGER NOT NULL,
    branch_id TEXT NOT NULL DEFAULT 'main', message_type TEXT NOT NULL, sequence_number INTEGER NOT NULL, user_turn_number INTEGER,
    branch_turn_number INTEGER, tool_name TEXT, created_at TIMESTAMP)
"""


def agents_db(
    path: Path,
    sessions: str = "agent_sessions",
    messages: str = "agent_messages",
    items: tuple = HELLO,
    name: str = "a",
) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(SCHEMA.format(sessions=f'"{sessions}"', messages=f'"{messages}"'))
        connection.execute(f'INSERT INTO "{sessions}" (session_id) VALUES (?)', (name,))
        rows = [(name, json.dumps(item)) for item in items]
        connection.executemany(
            f'INSERT INTO "{messages}" (session_id, message_data) VALUES (?, ?)', rows
        )
    return path


def test_tables_are_found_by_their_columns_whatever_they_are_called(tmp_path):
    source = open_source(agents_db(tmp_path / "chats.db", "my sessions", "Order"))
    assert source.partitions() == [("chats", "default")]
    assert [session.messages for session in source.sessions(source.partitions()[0])] == [HELLO]


def test_several_pairs_of_tables_are_several_agents(tmp_path):
    path = agents_db(tmp_path / "chats.db")
    agents_db(path, "bank_sessions", "bank_messages", name="b")
    source = open_source(path)
    assert source.partitions() == [("chats", "bank_messages"), ("chats", "default")]
    assert [
        session.session_id for key in source.partitions() for session in source.sessions(key)
    ] == ["b", "a"]


def test_of_branches_main_is_taken_in_its_own_order_and_the_others_are_named(tmp_path):
    items = (user("x"), says("first answer"), says("other answer"), user("y"), says("last"))
    path = agents_db(tmp_path / "chats.db", items=items)
    rows = [
        ("main", 1, 1),
        ("main", 4, 2),
        ("main", 2, 3),
        ("retry", 1, 1),
        ("retry", 3, 2),
        ("third", 5, 1),
    ]
    values = ", ".join(
        f"('a', {message}, '{branch}', 'x', {number})" for branch, message, number in rows
    )
    insert = f"INSERT INTO message_structure (session_id, message_id, branch_id, message_type, sequence_number) VALUES {values}"
    execute(
        path,
        STRUCTURE,
        insert,
        "INSERT INTO agent_sessions (session_id) VALUES ('empty')",
        "INSERT INTO agent_messages (session_id, message_data) VALUES ('gone', '{}')",
    )
    source = open_source(path)
    chats = {
        session.session_id: session.messages for session in source.sessions(source.partitions()[0])
    }
    assert [message["content"] for message in chats["a"]] == ["x", "y", "first answer"] and chats[
        "empty"
    ] == []
    assert "1 messages belong to no session" in source.notes[0]
    assert (
        "main of each session was taken, and 3 messages that are only in other branches (retry, third)"
        in source.notes[1]
    )


def test_a_database_without_other_branches_has_nothing_to_note(tmp_path):
    path = agents_db(tmp_path / "chats.db")
    insert = "INSERT INTO message_structure (session_id, message_id, message_type, sequence_number) VALUES ('a', 1, 'u', 1), ('a', 2, 'a', 2)"
    execute(path, STRUCTURE, insert)
    source = open_source(path)
    assert [session.messages for session in source.sessions(source.partitions()[0])] == [
        HELLO
    ] and not source.notes


def test_verdicts_beside_the_file_are_the_sessions_and_the_last_of_an_id_wins(tmp_path):
    path = agents_db(tmp_path / "shop_sessions.db")
    before = open_source(path).signature()
    labels = [
        {"session_id": "a", "reward": 0},
        {"session_id": "a", "task_id": 3, "trial": 1, "reward": 1.0},
        {"session_id": "b", "reward": 0},
    ]
    write(tmp_path / "shop_labels.json", labels)
    source = open_source(path)
    assert source.signature() != before
    (session,) = source.sessions(PartitionKey("shop_sessions", "default"))
    assert (session.judgment, session.score, session.task_id, session.trial) == (
        "acceptable",
        1.0,
        "3",
        "1",
    )


@pytest.mark.parametrize("content", ["", "no json", '[{"id": 1}]', "[[1]]"])
def test_labels_that_cannot_be_read_are_a_failure_and_not_no_verdicts(tmp_path, content):
    path = agents_db(tmp_path / "shop_sessions.db")
    (tmp_path / "shop_labels.json").write_text(content, encoding="utf-8")
    with pytest.raises(StoreError, match=r"shop_labels\.json") as error:
        list(open_source(path).sessions(PartitionKey("shop_sessions", "default")))
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


def test_one_database_of_omniagents_is_a_store_with_the_tree_around_it(tmp_path):
    home = omniagents_home(tmp_path / "home", verdicts=[("s1", "acceptable")])
    source = open_source(sessions_db(home))
    assert (source.name, source.partitions()) == ("omniagents", [("shop", "support")])
    (session,) = source.sessions(source.partitions()[0])
    assert session.messages == HELLO and session.judgment == "acceptable"
    before = source.signature()
    execute(
        home / "traces" / "shop.db",
        "INSERT INTO analysis (group_id, judgment) VALUES ('s1', 'unacceptable')",
    )
    assert source.signature() != before


def test_a_database_of_omniagents_outside_a_tree_goes_by_its_own_name(tmp_path):
    home = omniagents_home(tmp_path / "home")
    alone = tmp_path / "my-history.db"
    alone.write_bytes(sessions_db(home).read_bytes())
    source = open_source(alone)
    assert source.partitions() == [("my-history", "default")]
    assert [session.messages for session in source.sessions(source.partitions()[0])] == [HELLO]


# Damage


@pytest.mark.parametrize("reader", [OpenAIAgentsSource, OmniagentsSource])
def test_damaged_databases_are_read_or_refused_with_a_sentence(tmp_path, reader):
    agents = agents_db(tmp_path / "agents.db", items=(*HELLO, user("x"), says("y")))
    home = omniagents_home(
        tmp_path / "home", {f"s{number}": HELLO for number in range(20)}, context='{"task_id": 1}'
    )
    whole = (agents if reader is OpenAIAgentsSource else sessions_db(home)).read_bytes()
    assert damage.survivors(reader, whole, tmp_path, ".db") > 0


def test_a_schema_that_is_no_text_is_a_sentence(tmp_path):
    path = agents_db(tmp_path / "chats.db")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CR\xf3\xf3\xf3 TABLE"))
    with pytest.raises(StoreError, match="is damaged") as error:
        open_source(path)
    assert "\n" not in str(error.value)
