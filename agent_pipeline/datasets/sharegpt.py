"""ShareGPT conversations: turns `{"from", "value"}` of `system`, `human`, `gpt` and tool calls.

The schema of `sharegpt_dataset` and the conversion of OpenAI messages into ShareGPT turns and back
belong here.

LLaMA-Factory documents this form for tool use. The value of a `function_call` turn is the JSON of
`{"name", "arguments"}` with the arguments as an object. Several calls in one message, and their
results (`observation`), are one turn whose value is a JSON list. After the system turn, turns of
input (`human`, `observation`) and of the agent (`gpt`, `function_call`) must alternate; the loader
discards other conversations. Axolotl reads the same turns with mappings of `from` and `value`.

Both loaders read `tools`, the JSON text of OpenAI's schemas, or null. The schemas are a text
because they have no common type: datasets 4.0, the newest that LLaMA-Factory 0.9.5 accepts,
refuses a JSON file of such schemas. A row without tools has null, and not an empty text, because
Axolotl 0.19 decodes any text.

The form has no place for some facts. They are stored in keys that loaders ignore, so that
`from_sharegpt_turns` can restore the chat:

- `ids` of calls and results,
- `words` next to calls,
- `lengths` of messages that were joined into one turn,
- the `thought` before a turn,
- `train: false` (Axolotl's `message_field_training: train`) on a turn that is not trained.
  LLaMA-Factory ignores this key, so such rows are left out by default.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa

from agent_pipeline.datasets.comparison import has_untrained_turn
from agent_pipeline.datasets.splits import LINEAGE_COLUMNS, LineageRow
from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.session import (
    THOUGHT,
    FunctionCall,
    Message,
    Role,
    ToolCall,
    is_trained,
)
from agent_pipeline.sessions.tables import define_optional, define_required
from agent_pipeline.structs import decode_json

SHAREGPT = pa.schema(
    [
        *LINEAGE_COLUMNS,
        *define_required(
            pa.json_(),
            conversations=(
                "list of turns; each turn has `from` (system, human, gpt, function_call or "
                "observation) and `value`"
            ),
        ),
        *define_optional(
            pa.string(),
            tools="tools that the agent had, as JSON text with OpenAI function schemas",
            verdict_by=(
                "judge that found the session good; unverified if nobody checked the session"
            ),
        ),
        *define_optional(
            pa.bool_(),
            served_model=(
                "whether the session contains an answer of a model that this pipeline trained"
            ),
        ),
    ]
)
"""Columns of the table `sharegpt_dataset`."""

ShareGptTurn = JsonObject
"""A ShareGPT turn with `from`, `value`, and additional keys that loaders ignore."""


class ShareGptRow(LineageRow):
    """A row of `sharegpt_dataset`."""

    conversations: list[ShareGptTurn]
    tools: str | None
    verdict_by: str | None
    served_model: bool | None


_COPIED_COLUMNS = [*(column.name for column in LINEAGE_COLUMNS), "verdict_by", "served_model"]
"""Columns that are copied from an SFT row, if the row has them."""

_TURN_NAMES = {"system": "system", "user": "human", "assistant": "gpt"}
_ROLES: dict[str, Role] = {"system": "system", "human": "user", "gpt": "assistant"}

_SEPARATOR = "\n\n"
"""Separator between messages of the same role that are joined into one turn."""

_NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}


class _WrittenCall(msgspec.Struct):
    """A tool call in the form in which a turn's value contains it.

    The arguments keep their original text.
    """

    name: str
    arguments: msgspec.Raw


def make_sharegpt_rows(
    sft_rows: Iterable[Mapping[str, Any]],
    counts: Counter[str] | None = None,
    alternating: bool = True,
) -> Iterator[ShareGptRow]:
    """Convert each SFT row into a row of `sharegpt_dataset`, and yield the rows in the same order.

    Args:
        sft_rows: Rows of `SFT` with decoded JSON columns.
        counts: Receives `rows`; the rows that are left out, `turns_do_not_alternate`,
            `a_turn_is_not_to_be_trained` (a turn has `weight: 0`) and `invalid_tool_schema` (a tool
            schema, its function or its parameters are not an object); and `words_beside_calls`, the
            number of turns in which loaders see the call but not the text.
        alternating: Whether to leave out rows that LLaMA-Factory would discard, because their turns
            do not alternate, or train wrongly, because it ignores which turns are not trained.
    """
    counts = Counter() if counts is None else counts
    for row in sft_rows:
        turns = to_sharegpt_turns(row["messages"])
        if alternating and not turns_alternate(turns):
            counts["turns_do_not_alternate"] += 1
            continue
        if alternating and has_untrained_turn(row["messages"]):
            counts["a_turn_is_not_to_be_trained"] += 1
            continue
        tools = [_complete_schema(tool) for tool in row["tools"]]
        if None in tools:
            counts["invalid_tool_schema"] += 1
            continue
        counts["rows"] += 1
        counts["words_beside_calls"] += sum("words" in turn for turn in turns)
        lineage = {name: row[name] for name in _COPIED_COLUMNS if name in row}
        sharegpt_row: Any = lineage | {
            "conversations": turns,
            "tools": json.dumps(tools, ensure_ascii=False) if tools else None,
        }
        yield sharegpt_row


def _complete_schema(tool: object) -> JsonObject | None:
    """Return a tool in OpenAI's format, or `None` if the tool is not a schema.

    A tool without parameters gets empty parameters, which LLaMA-Factory needs.
    """
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return None
    parameters = function.get("parameters") or {}
    if not isinstance(parameters, dict):
        return None
    return {"type": "function", "function": function | {"parameters": _NO_PARAMETERS | parameters}}


def to_sharegpt_turns(messages: list[Message]) -> list[ShareGptTurn]:
    """Convert a chat into ShareGPT turns.

    `from_sharegpt_turns` is the inverse function.
    """
    turns: list[ShareGptTurn] = []
    for role, group in groupby(messages, key=lambda message: message["role"]):
        if role == "assistant":
            turns += [_make_agent_turn(message) for message in group]
        elif role == "tool":
            turns.append(_make_observation(list(group)))
        else:
            texts = [message["content"] for message in group]
            turn: ShareGptTurn = {"from": _TURN_NAMES[role], "value": _SEPARATOR.join(texts)}
            if len(texts) > 1:
                turn["lengths"] = [len(text) for text in texts]
            turns.append(turn)
    return turns


def _make_agent_turn(message: Message) -> ShareGptTurn:
    calls = message.get("tool_calls") or ()
    turn: ShareGptTurn
    if calls:
        texts = [_write_call(call["function"]) for call in calls]
        turn = {
            "from": "function_call",
            "value": texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]",
            "ids": [call["id"] for call in calls],
        }
        if message["content"]:
            turn["words"] = message["content"]
    else:
        turn = {"from": "gpt", "value": message["content"]}
    if not is_trained(message):
        turn["train"] = False
    if THOUGHT in message:
        turn["thought"] = message[THOUGHT]
    return turn


def _make_observation(messages: list[Message]) -> ShareGptTurn:
    """Return the turn that contains the tool results after one message."""
    texts = [message["content"] for message in messages]
    return {
        "from": "observation",
        "value": texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False),
        "ids": [message["tool_call_id"] for message in messages],
    }


def _write_call(function: FunctionCall) -> str:
    """Return a tool call as JSON text.

    Arguments that are the JSON text of an object keep that text. Other arguments become a JSON
    string.
    """
    arguments = function["arguments"]
    if not _is_object(arguments):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {arguments}}}'


def _is_object(text: str) -> bool:
    if text[:1] != "{" or text[-1:] != "}":  # spaces around the object would be lost
        return False
    try:
        decode_json(text, dict[str, msgspec.Raw])
        json.loads(text)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return False
    return True


def from_sharegpt_turns(turns: list[ShareGptTurn]) -> list[Message]:
    """Convert ShareGPT turns back into a chat.

    The turns must come from `to_sharegpt_turns`.
    """
    messages: list[Message] = []
    for turn in turns:
        if turn["from"] == "observation":
            messages += _read_observation(turn)
        elif turn["from"] == "function_call":
            messages.append(_read_calls(turn))
        else:
            messages += _read_texts(turn)
        if turn.get("train") is False:
            messages[-1]["weight"] = 0
        if "thought" in turn:
            messages[-1][THOUGHT] = turn["thought"]
    return messages


def _read_observation(turn: ShareGptTurn) -> list[Message]:
    call_ids, value = turn["ids"], turn["value"]
    texts = json.loads(value) if len(call_ids) > 1 else [value]
    return [
        {"role": "tool", "tool_call_id": call_id, "content": text}
        for call_id, text in zip(call_ids, texts, strict=True)
    ]


def _read_calls(turn: ShareGptTurn) -> Message:
    decoded = decode_json(turn["value"], _WrittenCall | list[_WrittenCall])
    written_calls = decoded if isinstance(decoded, list) else [decoded]
    calls: list[ToolCall] = []
    for call_id, call in zip(turn["ids"], written_calls, strict=True):
        text = bytes(call.arguments).decode("utf-8")
        arguments = text if text.startswith("{") else json.loads(text)
        function: FunctionCall = {"name": call.name, "arguments": arguments}
        calls.append({"id": call_id, "type": "function", "function": function})
    return {"role": "assistant", "content": turn.get("words", ""), "tool_calls": calls}


def _read_texts(turn: ShareGptTurn) -> list[Message]:
    """Return the messages that were joined into one text turn."""
    value = turn["value"]
    messages: list[Message] = []
    start = 0
    for length in turn.get("lengths", [len(value)]):
        text = value[start : start + length]
        messages.append({"role": _ROLES[turn["from"]], "content": text})
        start += length + len(_SEPARATOR)
    return messages


def turns_alternate(turns: list[ShareGptTurn]) -> bool:
    """Return whether input turns and agent turns alternate, and the last turn is the agent's.

    One system turn may come first.
    """
    if turns and turns[0]["from"] == "system":
        turns = turns[1:]
    if len(turns) % 2:
        return False
    for index, turn in enumerate(turns):
        expected = ("human", "observation") if index % 2 == 0 else ("gpt", "function_call")
        if turn["from"] not in expected:
            return False
    return True
