"""Stores that keep items give them as they are recorded, as histories."""

import json
import sqlite3
from contextlib import closing

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sources import open_source, parse_location
from agent_pipeline_tests.sources.platforms.test_postgres import rows, tables
from agent_pipeline_tests.stores import AGENTS_SCHEMA, HELLO, call, says, user

ODD = [user("hi"), {"type": "web_search_call", "id": "w1"}, call("f", "c1"), says("So.")]


def test_the_agents_sdk_gives_its_items(tmp_path):
    path = tmp_path / "chat.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(AGENTS_SCHEMA)
        connection.executemany("INSERT INTO agent_sessions (session_id) VALUES (?)", [("a",), ("b",)])
        texts = [("a", json.dumps(item)) for item in ODD] + [("a", "no json")]
        connection.executemany("INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)", texts)
    found = list(open_source(parse_location(str(path))).histories(PartitionKey("chat", "default")))
    assert [(session.session_id, items) for session, items in found] == [("a", ODD), ("b", [])]
    assert found[0][0].damage["invalid_item"] == 1


def test_postgresql_gives_its_items(database):
    url = database(tables(), *rows("a", [*ODD, "no json"]), *rows("b", []), *rows("c", HELLO))
    found = list(open_source(parse_location(url)).histories(PartitionKey("shop", "support")))
    assert [(session.session_id, items) for session, items in found] == [("a", ODD), ("b", []), ("c", HELLO)]
