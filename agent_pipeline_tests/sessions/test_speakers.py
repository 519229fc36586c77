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
    agents = {name for role, name in turns if role == "assistant" and name}
    assert (chat.damage["several_speakers"] > 0) == (len(users) > 1 or len(agents) > 1)


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


def test_sources_of_autogen_are_speakers():
    """An agent of AutoGen sees other agents as users with another source."""
    history = [
        {"type": "UserMessage", "content": "hello", "source": source}
        for source in ("user", "critic")
    ]
    assert read_chat(history).damage["several_speakers"] == 1


@pytest.mark.parametrize("weight", [0, 0.0, False, "0"])
@pytest.mark.parametrize("extra", [{}, {"refusal": None}])
def test_a_weight_that_is_zero_in_any_form_is_not_trained(weight, extra):
    """A table of texts holds "0"."""
    chat = read_chat([message("user"), message("assistant", weight=weight) | extra])
    assert chat.messages[-1]["weight"] == 0
