"""Histories: as the store holds them, else made of the messages; the way back gives the same messages."""

from hypothesis import given, settings

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.items import to_messages
from agent_pipeline.sources import Location, open_sources
from agent_pipeline.sources.base import items_of
from agent_pipeline_tests.datasets.chats import chats, session
from agent_pipeline_tests.stores import HELLO, call, omniagents_home, says, user

KEY = PartitionKey("shop", "support")
ODD = [user("hi"), {"type": "web_search_call", "id": "w1"}, call("f", "c1"), says("So."), {"type": "reasoning", "summary": []}]


@settings(max_examples=100, deadline=None)
@given(chats())
def test_items_made_of_messages_give_the_same_messages_back(chat):
    assert to_messages(items_of(session("s", chat))).messages == chat


def test_what_was_thought_is_before_what_followed_it():
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]
    thoughts = [{"message": 1, "text": "be kind"}, {"message": 1, "text": "be brief"}]
    back = to_messages(items_of(session("s", chat, reasoning=thoughts)))
    assert back.messages == chat and back.reasoning == thoughts


def test_an_omniagents_store_gives_its_items_as_they_are_recorded(tmp_path):
    home = omniagents_home(tmp_path, {"a": [*ODD, "no json"], "b": HELLO, "c": []})
    for source in (
        open_sources([Location(str(home))]),
        open_sources([Location(str(home)), Location(str(omniagents_home(tmp_path / "x", {}, "x/y")))]),
    ):
        found = {each.session_id: items for each, items in source.histories(KEY)}
        assert found == {"a": ODD, "b": HELLO, "c": []}


def test_of_two_stores_with_one_partition_items_are_made_of_the_messages(tmp_path):
    homes = [omniagents_home(tmp_path / name, {"a": HELLO}) for name in ("one", "two")]
    found = [(each.session_id, items) for each, items in open_sources([Location(str(home)) for home in homes]).histories(KEY)]
    expected = [{"type": "message", **message} for message in HELLO]
    assert found == [("a", expected), ("a~2", expected)]
