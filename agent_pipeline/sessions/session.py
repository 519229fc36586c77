"""The canonical session: the one form that every source is read into and every later stage works on.

`messages` are OpenAI chat messages. An assistant's tool calls carry their arguments as a **JSON string** (the form of the
API); rendering decodes them into what the chat template expects.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Any, Literal

import msgspec

Message = dict[str, Any]
"""`{"role": "system"|"user"|"assistant"|"tool", "content": str, ["tool_calls": [...]], ["tool_call_id": str], ["is_error": True]}`."""

RecordedItem = dict[str, Any]
"""A Responses item as a store holds it."""

Tool = dict[str, Any]
"""`{"type": "function", "function": {"name", "description", "parameters": <JSON schema>}}`."""

ToolsOrigin = Literal["none", "source", "settings", "inferred"]


class Session(msgspec.Struct, kw_only=True):
    """One conversation of one agent, as its source recorded it.

    What the source says about the session: `judgment`, `score`, `attack_succeeded` (an injection was obeyed); `None` means that it says
    nothing, which is not zero. `scores` are its metrics by name: numbers without a direction. `ends_on_tool`: by the source's own rules
    the run ended with its last tool call, answered or not (ToolBench's `Finish`), so no answer is missing. `error` is a failure of the
    infrastructure, not of the agent. `usage` counts tokens by name; `cost_usd` is in US dollars.

    `reasoning` holds what the model thought, apart from what it said: `{"message": index, "text": ...}` for the message that followed it.
    `damage` counts what was wrong with the record, by kind; `broken` is the kind for which the repair policy drops the session; `skipped`
    counts what the canonical form has no place for (images, files), by type. A side chain (a sub-agent's work) is a session of its own
    that names its parent.
    """

    session_id: str
    project: str
    agent: str
    source: str
    messages: list[Message] = []
    tools: list[Tool] = []
    tools_origin: ToolsOrigin = "none"
    archived: bool = False
    created_at: datetime | None = None
    task_id: str | None = None
    trial: str | None = None
    task_key: str = ""
    model_id: str | None = None
    judgment: str | None = None
    score: float | None = None
    scores: dict[str, float] = {}
    attack_succeeded: bool | None = None
    ends_on_tool: bool = False
    error: str | None = None
    ended_at: datetime | None = None
    usage: dict[str, int] = {}
    cost_usd: float | None = None
    parent_session_id: str | None = None
    reasoning: list[dict[str, Any]] = []
    damage: dict[str, int] = {}
    broken: str | None = None
    skipped: dict[str, int] = {}
    context: dict[str, Any] = {}

    def hash_content(self) -> str:
        """Identity of the content; see the function `hash_content`."""
        return hash_content(encode_json(self.messages), encode_json(self.tools))


_SORTED = msgspec.json.Encoder(order="sorted", enc_hook=str)


def encode_json(value: Any) -> bytes:
    """The JSON of a value as the lake's columns hold it: sorted keys, no spaces, UTF-8; NaN and infinity are not known, so null."""
    try:
        return _SORTED.encode(value)
    except UnicodeEncodeError:  # half a character, in what is not repaired yet
        return dump_canonical_json(msgspec.to_builtins(value, enc_hook=str)).encode("utf-8")


def hash_content(messages: bytes, tools: bytes) -> str:
    """sha256 (hex) of the JSON of a session's messages, a line feed, and the JSON of its tools, both as `encode_json` gives them."""
    hashed = hashlib.sha256(messages)
    hashed.update(b"\n")
    hashed.update(tools)
    return hashed.hexdigest()


THOUGHT = "reasoning_content"
"""The key of what an assistant thought before a message, as the APIs of vLLM, DeepSeek and llama.cpp name it."""


def add_thoughts(messages: list[Message], reasoning: Iterable[Mapping[str, Any]]) -> list[Message]:
    """The messages, the assistant's with the recorded thoughts (`Session.reasoning`) that stood before them."""
    thoughts: dict[int, list[str]] = {}
    for each in reasoning:
        thoughts.setdefault(each["message"], []).append(each["text"])
    return [
        message | {THOUGHT: "\n\n".join(thoughts[at])}
        if at in thoughts and message["role"] == "assistant"
        else message
        for at, message in enumerate(messages)
    ]


def drop_keys(message: Message, *names: str) -> Message:
    """The message without these keys; the very same object where it has none of them."""
    gone = message.keys() & names
    return {name: value for name, value in message.items() if name not in gone} if gone else message


def drop_error_marks(messages: list[Message]) -> list[Message]:
    """The messages without the source's mark of a tool's error (`is_error`), for which no chat format has a place; OpenAI refuses it."""
    return [drop_keys(message, "is_error") for message in messages]


def is_trained(message: Mapping[str, Any]) -> bool:
    """Whether an assistant's message is trained on: OpenAI's `weight: 0` says that it is not."""
    return bool(message.get("weight", 1))


def dump_canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, UTF-8 as it is; lone surrogates survive as escapes.

    Raises:
        TypeError: part of the value has no one text (a set's order, an object's address differ from process to process).
    """
    text = _CANONICAL(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def canonicalize_arguments(text: str) -> str:
    """One text for a call's arguments that mean the same; what is not JSON stays as it is."""
    try:
        return dump_canonical_json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _one_text(value: Any) -> str:
    if isinstance(value, datetime | PurePath):
        return str(value)
    raise TypeError(f"A {type(value).__name__} has no one JSON text.")


_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_one_text
).encode


def hash_json(value: Any) -> str:
    """sha256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(dump_canonical_json(value).encode("utf-8")).hexdigest()


def list_calls(messages: list[Message]) -> list[tuple[str, str]]:
    """All calls of a conversation in order, as (name, arguments as a JSON string)."""
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for message in messages
        for call in message.get("tool_calls") or ()
    ]
