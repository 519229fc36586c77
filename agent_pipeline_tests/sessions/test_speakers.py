"""Names beside roles: rows have no names, so several users or agents in one role are damage."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sessions.chat import read_chat

NAMES = st.sampled_from(["", "ann", "bob", "cy"])


def message(role: str, name: str = "", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": "text", **({"name": name} if name else {}), **fields}


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), NAMES), max_size=8))
def test_several_speakers_are_damage(turns):
    """A row that mixes speakers is damage, and a row with one speaker per role is none."""
    chat = read_chat([message(role, name) for role, name in turns])
    users = {name for role, name in turns if role == "user"}
    agents = {name for role, name in turns if role == "assistant"} - {""}
    named = users - {""}
    is_mixed = len(named) > 1 or len(agents) > 1 or (len(users) > 1 and bool(named & agents))
    assert (chat.damage["several_speakers"] > 0) == is_mixed


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.booleans()), max_size=8))
def test_messages_without_a_name_count_for_no_role(turns):
    """Applications insert reminders and summaries without the name of the user."""
    names = {"user": "ann", "assistant": "helper"}
    chat = read_chat([message(role, names[role] if is_named else "") for role, is_named in turns])
    assert not chat.damage["several_speakers"]


@pytest.mark.parametrize(
    "names",
    [("gpt-4o", "gpt-4o-mini"), ("claude-opus-4-5", "anthropic/claude-haiku-4-5"), ("m1", "m2")],
)
def test_models_are_no_speakers(names):
    """Some logs write the model as the name of the assistant."""
    history = [message("user"), *(message("assistant", name, model=name) for name in names)]
    assert not read_chat(history).damage["several_speakers"]
    if names != ("m1", "m2"):
        history = [message("user"), *(message("assistant", name) for name in names)]
        assert not read_chat(history).damage["several_speakers"]


def test_names_of_other_roles_are_no_speakers():
    """OpenAI's examples name system messages, and results name their tool."""
    call = {"id": "1", "function": {"name": "weather", "arguments": "{}"}}
    history = [
        message("system", "example_user"),
        message("system", "example_assistant"),
        message("user"),
        message("assistant", "helper", tool_calls=[call]),
        message("tool", "weather", tool_call_id="1"),
        message("assistant"),
    ]
    assert not read_chat(history).damage["several_speakers"]


@pytest.mark.parametrize("wrapped", ["kwargs", "data"])
def test_agents_of_langchain_are_speakers(wrapped):
    history: list[dict[str, Any]] = [{"type": "human", "data": {"content": "hello"}}]
    for name in ("researcher", "writer"):
        fields = {"content": "text", "name": name, "type": "ai"}
        lc = {"lc": 1, "id": ["AIMessage"], "kwargs": fields}
        history.append(lc if wrapped == "kwargs" else {"type": "ai", "data": fields})
    assert read_chat(history).damage["several_speakers"] == 1


PEOPLE = ("user", "user_proxy", "UserProxyAgent", "human")


@given(st.lists(st.sampled_from([*PEOPLE, "critic", "editor", "writer"]), max_size=6))
def test_sources_of_autogen(sources):
    """A person has several sources, and another agent may speak as a user to its only partner."""
    history: list[dict[str, Any]] = [
        {"type": "UserMessage", "content": "hello", "source": source} for source in sources
    ]
    history.append({"type": "AssistantMessage", "content": "text", "source": "writer"})
    others = set(sources) - set(PEOPLE)
    mixes_roles = "writer" in others and len(others) < len(set(sources))
    has_damage = read_chat(history).damage["several_speakers"] > 0
    assert has_damage == (len(others) > 1 or mixes_roles)


@pytest.mark.parametrize("weight", [0, 0.0, False, "0"])
@pytest.mark.parametrize("extra", [{}, {"refusal": None}])
def test_a_weight_that_is_zero_in_any_form_is_not_trained(weight, extra):
    """A table of texts holds "0"."""
    chat = read_chat([message("user"), message("assistant", weight=weight) | extra])
    assert chat.messages[-1]["weight"] == 0
