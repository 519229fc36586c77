"""ShareGPT conversations: `{"from", "value"}` turns of `system`, `human`, `gpt`, `function_call` and `observation`.

This is the form that LLaMA-Factory documents for tool use. A call's value is the JSON of `{"name", "arguments"}` with the arguments as an
object; several calls in one message (and their results) are one turn whose value is a JSON list. After the system turn, human or
observation and gpt or function_call alternate, else the loader discards the conversation. Axolotl reads the same turns with its mappings of
`from` and `value` and its `roles`. Both read `tools`, the JSON text of OpenAI's schemas, or null. It is a text because schemas have no one
type: datasets 4.0, the newest that LLaMA-Factory 0.9.5 takes, refuses a JSON file of them. It is null and not empty because Axolotl 0.19
decodes whatever text it finds.

What that form has no place for is in keys that loaders ignore, so that `messages_of` restores the chat: `ids` of calls and results, `words`
beside calls, `lengths` of messages that were joined into one turn, the `thought` before a turn, and `train: false` (Axolotl's
`message_field_training: train`) on a turn that is not trained.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa

from agent_pipeline.datasets.splits import ROW
from agent_pipeline.sessions.session import THOUGHT, Message, Tool, is_trained
from agent_pipeline.sessions.tables import define_optional, define_required

SHAREGPT = pa.schema(
    [
        *ROW,
        *define_required(
            pa.json_(),
            conversations="turns of from (system, human, gpt, function_call, observation) and value",
        ),
        *define_optional(
            pa.string(),
            tools="JSON text of the OpenAI function schemas",
            verdict_by="the judge that found the session good; unverified: nobody checked it",
        ),
    ]
)

Turn = dict[str, Any]

_FROM = {"system": "system", "user": "human", "assistant": "gpt"}
_ROLE = {name: role for role, name in _FROM.items()}
_BETWEEN = "\n\n"
"""Separates messages of one role that are joined into one turn."""

_TAKES_NONE: Tool = {"type": "object", "properties": {}}


class _Call(msgspec.Struct):
    """A call as it is written in a turn's value; the arguments keep their text."""

    name: str
    arguments: msgspec.Raw


def sharegpt_rows(
    sft_rows: Iterable[dict[str, Any]], counts: Counter[str] | None = None, alternating: bool = True
) -> Iterator[dict[str, Any]]:
    """Rows of `SHAREGPT`, one for each SFT row, in its order.

    With `alternating`, rows whose turns do not alternate are left out, since loaders that need it discard them. A row with a tool schema
    that is not an object (or whose function or parameters are not) is left out. `counts` gets `rows`, `turns_do_not_alternate`,
    `invalid_tool_schema`, and `words_beside_calls`: turns of which such loaders see the call and not the words.
    """
    counts = Counter() if counts is None else counts
    for row in sft_rows:
        turns = conversations(row["messages"])
        if alternating and not alternates(turns):
            counts["turns_do_not_alternate"] += 1
            continue
        tools = [_schema(tool) for tool in row["tools"]]
        if None in tools:
            counts["invalid_tool_schema"] += 1
            continue
        counts["rows"] += 1
        counts["words_beside_calls"] += sum("words" in turn for turn in turns)
        lineage = {name: row[name] for name in SHAREGPT.names if name in row and name != "tools"}
        yield lineage | {
            "conversations": turns,
            "tools": json.dumps(tools, ensure_ascii=False) if tools else None,
        }


def _schema(tool: Any) -> Tool | None:
    """A tool in OpenAI's form, with parameters even if it takes none, which LLaMA-Factory needs; `None` where it is not a schema."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    parameters = (function.get("parameters") or {}) if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(parameters, dict):
        return None
    return {"type": "function", "function": function | {"parameters": _TAKES_NONE | parameters}}


def conversations(messages: list[Message]) -> list[Turn]:
    """A chat as ShareGPT turns; `messages_of` is the way back."""
    turns: list[Turn] = []
    for role, members in groupby(messages, key=lambda message: message["role"]):
        if role == "assistant":
            turns += [_agent_turn(message) for message in members]
        elif role == "tool":
            turns.append(_results(list(members)))
        else:
            texts = [message["content"] for message in members]
            joined = {"lengths": [len(text) for text in texts]} if len(texts) > 1 else {}
            turns.append({"from": _FROM[role], "value": _BETWEEN.join(texts)} | joined)
    return turns


def messages_of(turns: list[Turn]) -> list[Message]:
    """The chat that `conversations` made the turns of."""
    messages: list[Message] = []
    for turn in turns:
        kind, value = turn["from"], turn["value"]
        if kind == "observation":
            texts = json.loads(value) if len(turn["ids"]) > 1 else [value]
            messages += [
                {"role": "tool", "tool_call_id": id_, "content": text}
                for id_, text in zip(turn["ids"], texts, strict=True)
            ]
        elif kind == "function_call":
            decoded = msgspec.json.decode(value, type=_Call | list[_Call])
            named = zip(
                turn["ids"], decoded if isinstance(decoded, list) else [decoded], strict=True
            )
            calls = [_openai_call(id_, call) for id_, call in named]
            messages.append(
                {"role": "assistant", "content": turn.get("words", ""), "tool_calls": calls}
            )
        else:
            start = 0
            for length in turn.get("lengths", [len(value)]):
                messages.append({"role": _ROLE[kind], "content": value[start : start + length]})
                start += length + len(_BETWEEN)
        if turn.get("train") is False:
            messages[-1]["weight"] = 0
        if "thought" in turn:
            messages[-1][THOUGHT] = turn["thought"]
    return messages


def alternates(turns: list[Turn]) -> bool:
    """Whether, after a system turn at the start, input and the agent's turns alternate, and the agent has the last word."""
    inputs = [
        turn["from"] in ("human", "observation")
        for turn in turns
        if turn is not turns[0] or turn["from"] != "system"
    ]
    kinds = {turn["from"] for turn in turns[1:]}
    return (
        "system" not in kinds
        and len(inputs) % 2 == 0
        and inputs == [at % 2 == 0 for at in range(len(inputs))]
    )


def _agent_turn(message: Message) -> Turn:
    more = {} if is_trained(message) else {"train": False}
    more |= {"thought": message[THOUGHT]} if THOUGHT in message else {}
    calls = message.get("tool_calls") or ()
    if not calls:
        return {"from": "gpt", "value": message["content"]} | more
    texts = [_call_json(call["function"]) for call in calls]
    words = {"words": message["content"]} if message["content"] else {}
    value = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return (
        {"from": "function_call", "value": value, "ids": [call["id"] for call in calls]}
        | words
        | more
    )


def _results(messages: list[Message]) -> Turn:
    texts = [message["content"] for message in messages]
    value = texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)
    return {
        "from": "observation",
        "value": value,
        "ids": [message["tool_call_id"] for message in messages],
    }


def _call_json(function: dict[str, str]) -> str:
    """A call's JSON. Arguments that are the text of an object stay that text; others become a JSON string."""
    text = function["arguments"]
    arguments = text if _is_object(text) else json.dumps(text, ensure_ascii=False)
    return (
        f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": {arguments}}}'
    )


def _is_object(text: str) -> bool:
    if text[:1] != "{" or text[-1:] != "}":  # spaces around it would be lost
        return False
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        json.loads(text)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return False
    return True


def _openai_call(id_: str, call: _Call) -> dict[str, Any]:
    raw = bytes(call.arguments).decode("utf-8")
    arguments = raw if raw.startswith("{") else json.loads(raw)
    return {"id": id_, "type": "function", "function": {"name": call.name, "arguments": arguments}}
