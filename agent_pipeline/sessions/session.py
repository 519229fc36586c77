"""The canonical session, which every reader produces and every later stage uses.

The types of a session and of its parts belong here, with the functions that every package needs for
them: canonical JSON, hashes, and the calls of a conversation. Reading, repair and tables belong
elsewhere.

`messages` are OpenAI chat messages. The arguments of a tool call are a **JSON string** (the form of
the API). Rendering decodes them into the form that the chat template expects.
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
"""An item of the Responses API as a store holds it."""


class FunctionCall(TypedDict):
    """The name of the called tool, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """One tool call in an assistant message."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict, total=False):
    """One OpenAI chat message.

    `is_error` marks the result of a tool that failed. `weight` is 0 if the message is not trained.
    `name` is the tool of a result. Repair needs it for results without an id, and some chat
    templates print it.
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
    """A thought of the model before a message. `message` is the index of the message."""

    message: int
    text: str


ToolsOrigin = Literal["none", "source", "settings", "inferred"]


class Session(msgspec.Struct, kw_only=True):
    """One conversation of one agent, as its source recorded it.

    Attributes:
        session_id: The session's id in its store.
        tools_origin: The origin of `tools`; `inferred` means that they were inferred from the
            calls.
        task_key: The key of the session's task. All trials of a task are in the same split.
        judgment: The source's verdict, or None.
        score: The source's score or reward. None means that the source has no score, which is not
            the same as zero.
        scores: The source's metrics by name. Their direction (higher or lower is better) is not
            known here.
        attack_succeeded: Whether the agent obeyed an injected instruction, or None if that is
            unknown.
        ends_on_tool: Whether the last tool call ended the run by the source's own rules
            (ToolBench's `Finish`). If so, no answer is missing, even if the call has no result.
        error: A failure of the infrastructure, not of the agent.
        usage: Token counts by name.
        cost_usd: The cost in US dollars.
        parent_session_id: The id of the session that started this session. The work of a sub-agent
            is a separate session.
        reasoning: The thoughts of the model, which are not part of the messages.
        damage: Counts of the damage in the record, by kind.
        broken: The kind of damage for which the repair policy drops the session, or None.
        skipped: Counts of content that a chat cannot hold (images, files), by type.
        context: Other fields of the session in the store.
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
        """Return the sha256 (hex) of the messages and tools.

        The function `hash_content` defines the hash.
        """
        return hash_content(encode_json(self.messages), encode_tools(self.tools))


_SORTED_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=str)
_ENCODER = msgspec.json.Encoder(enc_hook=str)


def encode_json(value: object) -> bytes:
    """Return a value as JSON text in the format of the lake's JSON columns.

    The JSON has sorted keys, no spaces, and is UTF-8. NaN and infinity become null.
    """
    try:
        return _SORTED_ENCODER.encode(value)
    except UnicodeEncodeError:  # an unpaired surrogate in a record that is not repaired yet
        return dump_canonical_json(msgspec.to_builtins(value, enc_hook=str)).encode("utf-8")


def encode_tools(tools: object) -> bytes:
    """Return tools as JSON text in the format of the lake's columns of tools.

    The keys keep their order, because a chat template writes them in this order, and a server's
    grammar forces the arguments of a call into it. A model must be trained on the prompt that it
    gets when it is served.
    """
    try:
        return _ENCODER.encode(tools)
    except UnicodeEncodeError:  # an unpaired surrogate in a record that is not repaired yet
        text = json.dumps(msgspec.to_builtins(tools, enc_hook=str), separators=(",", ":"))
        return text.encode()


def hash_content(messages: bytes, tools: bytes) -> str:
    """Return the sha256 (hex) of a session's messages, a line feed, and its tools.

    Args:
        messages: The messages as `encode_json` returns them.
        tools: The tools as `encode_tools` returns them.
    """
    content_hash = hashlib.sha256(messages)
    content_hash.update(b"\n")
    content_hash.update(tools)
    return content_hash.hexdigest()


ANSWERING_MODELS: Final = "answering_models"
"""Key in a session's `context` that lists the models, if several models wrote the answers."""


CHOSEN_MODEL: Final = "chosen_model"
"""Key of the context of a session: the model that a gateway chose for the session, even if another
model answered because the chosen model failed.
"""


def list_answering_models(row: Mapping[str, object]) -> list[str]:
    """Return the models that answered a session, given as a row of `sessions`.

    Tables of older versions name the last model only.
    """
    context = row.get("context")
    listed = context.get(ANSWERING_MODELS) if isinstance(context, dict) else None
    models = [row.get("model_id"), *(listed if isinstance(listed, list) else [])]
    return list(dict.fromkeys(model for model in models if model and isinstance(model, str)))


THOUGHT: Final = "reasoning_content"
"""Key of the thought that precedes a message, as in the APIs of vLLM, DeepSeek and llama.cpp."""


def add_thoughts(messages: list[Message], reasoning: Iterable[Thought]) -> list[Message]:
    """Return the messages, with the recorded thoughts added to the assistant's messages."""
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
    """Return a message without the named keys, or the same object if it has none of them."""
    if message.keys().isdisjoint(names):
        return message
    return cast(Message, {name: value for name, value in message.items() if name not in names})


def drop_error_marks(messages: list[Message]) -> list[Message]:
    """Return messages without the key `is_error`.

    No chat format has this key, and OpenAI refuses it.
    """
    return [drop_keys(message, "is_error") for message in messages]


def is_trained(message: Mapping[str, object]) -> bool:
    """Return whether training uses an assistant message.

    OpenAI's `weight: 0` excludes a message.
    """
    return bool(message.get("weight", 1))


def dump_canonical_json(value: object) -> str:
    """Return the canonical JSON text of a value: sorted keys, no spaces, UTF-8.

    Unpaired surrogates become escapes.

    Raises:
        TypeError: The value contains an object without a stable text. For example, the order of a
            set differs between processes.
    """
    text = _CANONICAL_ENCODER.encode(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def canonicalize_arguments(text: str) -> str:
    """Return a canonical text of a call's arguments.

    Arguments that differ only in their JSON notation have the same text. A text that is not JSON is
    returned unchanged.
    """
    try:
        return dump_canonical_json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _to_text(value: object) -> str:
    """Return a text for a value whose type JSON does not support."""
    if isinstance(value, datetime | PurePath):
        return str(value)
    raise TypeError(f"A {type(value).__name__} cannot be written as JSON text.")


_CANONICAL_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_to_text
)


def hash_json(value: object) -> str:
    """Return the sha256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(dump_canonical_json(value).encode("utf-8")).hexdigest()


def list_calls(messages: Iterable[Message]) -> list[tuple[str, str]]:
    """Return all calls of a conversation in order, as pairs of name and JSON arguments."""
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for message in messages
        for call in message.get("tool_calls") or ()
    ]
