"""Histories: as the store holds them, else made of the messages; the way back gives the same messages."""

import json
import sqlite3
from contextlib import closing

from hypothesis import given, settings

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sources import Location, open_source, open_sources, parse_location
from agent_pipeline.sources.base import items_of
from agent_pipeline_tests.datasets.chats import chats, session
from agent_pipeline_tests.stores import AGENTS_SCHEMA, HELLO, call, omniagents_home, says, user

KEY = PartitionKey("shop", "support")
ODD = [
    user("hi"),
    {"type": "web_search_call", "id": "w1"},
    call("f", "c1"),
    says("So."),
    {"type": "reasoning", "summary": []},
]


@settings(max_examples=100, deadline=None)
@given(chats())
def test_items_made_of_messages_give_the_same_messages_back(chat):
    assert read_chat(items_of(session("s", chat))).messages == chat


def test_an_error_of_a_tool_is_one_in_the_items_too():
    told = {"role": "tool", "tool_call_id": "c1", "content": "gone", "is_error": True}
    chat = read_chat([user("hi"), call("f", "c1"), told]).messages
    assert read_chat(items_of(session("s", chat))).messages == chat and chat[-1] == told


def test_what_was_thought_is_before_what_followed_it():
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]
    thoughts = [{"message": 1, "text": "be kind"}, {"message": 1, "text": "be brief"}]
    back = read_chat(items_of(session("s", chat, reasoning=thoughts)))
    assert back.messages == chat and back.reasoning == thoughts


def test_an_omniagents_store_gives_its_items_as_they_are_recorded(tmp_path):
    home = omniagents_home(tmp_path, {"a": [*ODD, "no json"], "b": HELLO, "c": []})
    for source in (
        open_sources([Location(str(home))]),
        open_sources(
            [Location(str(home)), Location(str(omniagents_home(tmp_path / "x", {}, "x/y")))]
        ),
    ):
        found = {each.session_id: items for each, items in source.histories(KEY)}
        assert found == {"a": ODD, "b": HELLO, "c": []}


def test_of_two_stores_with_one_partition_items_are_made_of_the_messages(tmp_path):
    homes = [omniagents_home(tmp_path / name, {"a": HELLO}) for name in ("one", "two")]
    found = [
        (each.session_id, items)
        for each, items in open_sources([Location(str(home)) for home in homes]).histories(KEY)
    ]
    expected = [{"type": "message", **message} for message in HELLO]
    assert found == [("a", expected), ("a~2", expected)]


def test_the_agents_sdk_gives_its_items(tmp_path):
    path = tmp_path / "chat.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(AGENTS_SCHEMA)
        connection.executemany(
            "INSERT INTO agent_sessions (session_id) VALUES (?)", [("a",), ("b",)]
        )
        texts = [("a", json.dumps(item)) for item in ODD] + [("a", "no json")]
        connection.executemany(
            "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)", texts
        )
    found = list(open_source(parse_location(str(path))).histories(PartitionKey("chat", "default")))
    assert [(session.session_id, items) for session, items in found] == [("a", ODD), ("b", [])]
    assert found[0][0].damage["invalid_item"] == 1
