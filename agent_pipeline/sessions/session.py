"""The canonical session: the form that every source is read into and every later stage works on.

The types of a session and of its parts belong here, with the functions that every room needs for
them: canonical JSON, hashes, the calls of a conversation. Reading, repair and tables do not.

`messages` are OpenAI chat messages. An assistant's tool calls hold their arguments as a **JSON
string** (the form of the API); rendering decodes them into what the chat template expects.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Final, Literal, Required, TypedDict, cast

import msgspec

from agent_pipeline.json_types import JsonObject

Role = Literal["system", "user", "assistant", "tool"]

RecordedItem = JsonObject
"""A Responses item as a store holds it."""


class FunctionCall(TypedDict):
    """The name of the called tool, and the JSON text of the arguments."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """One call in an assistant's message."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict, total=False):
    """One OpenAI chat message.

    `is_error` marks the result of a tool that failed. `weight` is 0 if the message is not trained
    on. `name` is the tool of a result; only templates that show it need it.
    """

    role: Required[Role]
    content: Required[str]
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str
    is_error: bool
    weight: int
    reasoning_content: str


class ToolFunction(TypedDict, total=False):
    """A tool's name, its description, and the JSON schema of its parameters."""

    name: Required[str]
    description: str
    parameters: JsonObject


class Tool(TypedDict):
    """One OpenAI function schema."""

    type: Literal["function"]
    function: ToolFunction


class Thought(TypedDict):
    """What the model thought before a message; `message` is the message's index."""

    message: int
    text: str


ToolsOrigin = Literal["none", "source", "settings", "inferred"]


class Session(msgspec.Struct, kw_only=True):
    """One conversation of one agent, as its source recorded it.

    Attributes:
        session_id: The session's id in its store.
        tools_origin: Where `tools` come from; `inferred` means from the calls.
        task_key: The task that the session is a trial of. A split holds whole tasks.
        judgment: The source's verdict; None if the source has none.
        score: The source's score or reward; None, which is not zero, if the source has none.
        scores: The source's metrics by name: numbers without a direction.
        attack_succeeded: Whether the agent obeyed an injected instruction; None if unknown.
        ends_on_tool: Whether, by the source's own rules, the last tool call ended the run
            (ToolBench's `Finish`). Then no answer is missing, even if nothing answered the call.
        error: A failure of the infrastructure, not of the agent.
        usage: Counts of tokens by name.
        cost_usd: The cost in US dollars.
        parent_session_id: The session that started this one. A side chain (a sub-agent's work) is
            a session of its own.
        reasoning: What the model thought, apart from what it said.
        damage: Counts of what was wrong with the record, by kind.
        broken: The kind of damage for which the repair policy drops the session.
        skipped: Counts of what a chat cannot hold (images, files), by type.
        context: Other fields that the store has about the session.
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
    reasoning: list[Thought] = []
    damage: dict[str, int] = {}
    broken: str | None = None
    skipped: dict[str, int] = {}
    context: JsonObject = {}

    def hash_content(self) -> str:
        """Return the sha256 (hex) of the messages and tools; see the function `hash_content`."""
        return hash_content(encode_json(self.messages), encode_json(self.tools))


_SORTED_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=str)


def encode_json(value: object) -> bytes:
    """Return the JSON of a value as the lake's columns hold it.

    The JSON has sorted keys, no spaces, and UTF-8. NaN and infinity become null.
    """
    try:
        return _SORTED_ENCODER.encode(value)
    except UnicodeEncodeError:  # half a character in a record that is not repaired yet
        return dump_canonical_json(msgspec.to_builtins(value, enc_hook=str)).encode("utf-8")


def hash_content(messages: bytes, tools: bytes) -> str:
    """Return the sha256 (hex) of a session's messages, a line feed, and its tools.

    Both parameters are JSON as `encode_json` returns it.
    """
    content_hash = hashlib.sha256(messages)
    content_hash.update(b"\n")
    content_hash.update(tools)
    return content_hash.hexdigest()


ANSWERING_MODELS: Final = "answering_models"
"""The key in a session's `context` that lists the models that answered, if there are several."""


def list_answering_models(row: Mapping[str, object]) -> list[str]:
    """Return the models that answered a session, given as a row of `sessions`.

    Tables of older versions name the last model only.
    """
    context = row.get("context")
    listed = context.get(ANSWERING_MODELS) if isinstance(context, dict) else None
    models = [row.get("model_id"), *(listed if isinstance(listed, list) else [])]
    return list(dict.fromkeys(model for model in models if model and isinstance(model, str)))


THOUGHT: Final = "reasoning_content"
"""The key of the thought before a message, as in the APIs of vLLM, DeepSeek and llama.cpp."""


def add_thoughts(messages: list[Message], reasoning: Iterable[Thought]) -> list[Message]:
    """Return the messages; the assistant's messages have the recorded thoughts before them."""
    texts_by_index: dict[int, list[str]] = {}
    for thought in reasoning:
        texts_by_index.setdefault(thought["message"], []).append(thought["text"])
    messages_with_thoughts: list[Message] = []
    for index, message in enumerate(messages):
        if index in texts_by_index and message["role"] == "assistant":
            message = {**message, THOUGHT: "\n\n".join(texts_by_index[index])}
        messages_with_thoughts.append(message)
    return messages_with_thoughts


def drop_keys(message: Message, *names: str) -> Message:
    """Return the message without these keys, or the same object if it has none of them."""
    if message.keys().isdisjoint(names):
        return message
    return cast(Message, {name: value for name, value in message.items() if name not in names})


def drop_error_marks(messages: list[Message]) -> list[Message]:
    """Return the messages without `is_error`, which no chat format holds and OpenAI refuses."""
    return [drop_keys(message, "is_error") for message in messages]


def is_trained(message: Mapping[str, object]) -> bool:
    """Return whether an assistant's message is trained on; OpenAI's `weight: 0` excludes it."""
    return bool(message.get("weight", 1))


def dump_canonical_json(value: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, UTF-8.

    Lone surrogates become escapes.

    Raises:
        TypeError: Part of the value has no one text: the order of a set and the address of an
            object differ between processes.
    """
    text = _CANONICAL_ENCODER.encode(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def canonicalize_arguments(text: str) -> str:
    """Return one text for all spellings of a call's arguments; a text that is not JSON stays."""
    try:
        return dump_canonical_json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _to_text(value: object) -> str:
    """Return the text of a value that JSON has no type for."""
    if isinstance(value, datetime | PurePath):
        return str(value)
    raise TypeError(f"A {type(value).__name__} has no one JSON text.")


_CANONICAL_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_to_text
)


def hash_json(value: object) -> str:
    """Return the sha256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(dump_canonical_json(value).encode("utf-8")).hexdigest()


def list_calls(messages: Iterable[Message]) -> list[tuple[str, str]]:
    """Return all calls of a conversation in order, as (name, arguments as a JSON string)."""
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for message in messages
        for call in message.get("tool_calls") or ()
    ]
