"""Schemas inferred from calls."""

import json

from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.export.limits import why_unwritable
from agent_pipeline.sessions.tool_schemas import ToolSchemas, find_call_shapes


def called(**arguments: object) -> list[dict]:
    """A session with one call, which was answered."""
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "pay", "arguments": json.dumps(arguments)},
    }
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ]


def inferred(*sessions: list[dict]) -> list[dict]:
    schemas = ToolSchemas()
    for session in sessions:
        schemas.add(find_call_shapes(session))
    return schemas.tools()


def test_arguments_stand_in_the_order_of_the_calls():
    """llama.cpp's grammar allows a call's arguments in the schema's order only; by name, `to` could never follow `when`."""
    (tool,) = inferred(
        called(to="Ana", when="now", amount=1.5),
        called(to="Bo", amount=2),
        called(to="Cy", when="now", amount=3),
    )
    parameters = tool["function"]["parameters"]
    assert list(parameters["properties"]) == ["to", "when", "amount"]
    assert parameters["required"] == ["to", "amount"]


@given(
    names=st.lists(st.text(min_size=1, max_size=5), unique=True, min_size=1, max_size=6),
    order=st.randoms(),
)
def test_a_call_that_the_schema_was_inferred_from_can_be_served(names, order):
    sessions = [called(**{name: index for index, name in enumerate(names)}) for _ in range(3)]
    odd = called(**dict.fromkeys(reversed(names), 1))
    mixed = [*sessions, odd]
    order.shuffle(mixed)
    tools = inferred(*mixed)
    assert tools == inferred(*sessions, odd)
    arguments = sessions[0][0]["tool_calls"][0]["function"]["arguments"]
    assert why_unwritable("pay", arguments, tools) == ""
    if len(names) > 1:
        assert "order" in why_unwritable(
            "pay", odd[0]["tool_calls"][0]["function"]["arguments"], tools
        )
