"""Small sessions to judge."""

import json
from typing import Any

from agent_pipeline.sessions.session import Session

ANSWERED = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def calls(*made: tuple[str, Any], content: str = "") -> dict[str, Any]:
    """An assistant message with calls `(name, arguments)`, ids 1, 2, ..."""
    functions = [(name, arguments if isinstance(arguments, str) else json.dumps(arguments)) for name, arguments in made]
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {"id": str(number), "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(functions, 1)
        ],
    }


def result(content: str, call_id: str = "1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def session(messages: Any = ANSWERED, session_id: str = "s", **fields: Any) -> Session:
    return Session(session_id=session_id, project="p", agent="a", source="test", messages=messages, **fields)
