"""Rows of small made-up agents, for the tests of varied rows."""

import json
from typing import Any

from hypothesis import strategies as st

TOOL_NAMES = ("find_orders", "refund", "cancel", "getUser", "send-mail", "x9", "größe", "search")
PARAMETERS = ("order", "order_id", "amount", "query", "q", "userName", "day")
WORDS = (
    "I want a refund for my order.",
    "Use `cancel` only before noon.",
    "find_orders knows every order_id.",
    "Call search(q) first.",
    "The query is in the amount field.",
    "Was kostet das?",
)
VALUES = st.one_of(
    st.integers(0, 10**6).map(lambda number: f"K{number}"),
    st.integers(0, 10**18),
    st.sampled_from(["2024-05-03", "refund", "order_id", 'say "hi", é', None, [1, {"order": 2}]]),
)
STYLES = st.sampled_from(
    [{"ensure_ascii": False}, {"ensure_ascii": False, "separators": (",", ":")}]
)


@st.composite
def tools(draw: Any) -> list[dict[str, Any]]:
    """The schemas of an agent. A parameter has a description in all schemas or in none."""
    described = draw(st.booleans())
    schemas = []
    for name in draw(st.lists(st.sampled_from(TOOL_NAMES), min_size=1, max_size=4, unique=True)):
        parameters = draw(st.lists(st.sampled_from(PARAMETERS), max_size=3, unique=True))
        properties = {
            key: {"type": "string"} | ({"description": "What it is."} if described else {})
            for key in parameters
        }
        schemas.append(
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": "Does the work." if described else "",
                    "parameters": {
                        "type": "object",
                        "properties": properties,
                        "required": parameters[:1],
                    },
                },
            }
        )
    return schemas


@st.composite
def rows(draw: Any, number: int = 0) -> dict[str, Any]:
    """A row: a request, calls with results, and an answer."""
    schemas = draw(tools())
    texts = st.lists(st.sampled_from(WORDS), max_size=2).map(" ".join)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": draw(texts)},
        {"role": "user", "content": draw(texts) or "Hello"},
    ]
    for index in range(draw(st.integers(0, 3))):
        function = draw(st.sampled_from(schemas))["function"]
        names = list(function["parameters"]["properties"])
        keys = names[:1] + [key for key in names[1:] if draw(st.booleans())]
        values = {key: draw(VALUES) for key in keys}
        call_id = f"call-{number}-{index}"
        call = {"name": function["name"], "arguments": json.dumps(values, **draw(STYLES))}
        messages += [
            {
                "role": "assistant",
                "content": draw(texts),
                "tool_calls": [{"id": call_id, "type": "function", "function": call}],
            },
            {
                "role": "tool",
                "tool_call_id": call_id,
                "name": function["name"],
                "content": json.dumps({"order_id": draw(VALUES), "found": draw(texts)}),
            },
        ]
    messages.append({"role": "assistant", "content": draw(texts) or "Done."})
    return {
        "row_id": f"row-{number}",
        "session_id": f"session-{number}",
        "task_key": f"task-{number}",
        "split": "train",
        "messages": messages,
        "tools": schemas,
    }


def list_functions(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The called functions of a row, in order."""
    return [
        call["function"] for message in row["messages"] for call in message.get("tool_calls") or ()
    ]
