"""ShareGPT conversations: `{"from", "value"}` turns of `system`, `human`, `gpt`, `function_call` and `observation`.

The form that LLaMA-Factory and Axolotl document for tool use: a call's value is the JSON of `{"name", "arguments"}` with the arguments as
an object; `tools` is the JSON text of the function schemas. Several calls in one message, and their results, are one turn each whose
value is a JSON list.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from agent_pipeline.traces.session import Message

SHAREGPT = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("content_sha256", pa.string(), nullable=False),
        pa.field("task_key", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("conversations", pa.json_(), nullable=False),
        pa.field("tools", pa.string(), nullable=False),
    ]
)

_FROM = {"system": "system", "user": "human", "assistant": "gpt"}


def sharegpt_rows(sft_rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of `SHAREGPT`, one for each SFT row, in its order."""
    for row in sft_rows:
        kept = {name: row[name] for name in SHAREGPT.names if name in row and name != "tools"}
        functions = [tool.get("function", tool) for tool in row["tools"]]
        tools = json.dumps(functions, ensure_ascii=False) if functions else ""
        yield kept | {"conversations": conversations(row["messages"]), "tools": tools}


def conversations(messages: list[Message]) -> list[dict[str, str]]:
    """A chat as ShareGPT turns; an assistant message with words and calls is a `gpt` turn and a `function_call` turn."""
    turns: list[dict[str, str]] = []
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(message["content"])
            continue
        _flush(turns, results)
        calls = [_call(call["function"]) for call in message.get("tool_calls", ())]
        if message["content"] or not calls:
            turns.append({"from": _FROM[message["role"]], "value": message["content"]})
        if calls:
            turns.append({"from": "function_call", "value": json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)})
    _flush(turns, results)
    return turns


def _flush(turns: list[dict[str, str]], results: list[str]) -> None:
    if results:
        turns.append({"from": "observation", "value": results[0] if len(results) == 1 else json.dumps(results, ensure_ascii=False)})
        results.clear()


def _call(function: dict[str, str]) -> dict[str, Any]:
    return {"name": function["name"], "arguments": json.loads(function["arguments"])}
