"""The messages and items of every SDK → plain items and chats: the one reader that all containers use.

It knows OpenAI's chat messages (tool calls, legacy function calls) and Responses items, Anthropic's content blocks, Gemini's and
Bedrock's parts, LangChain's, llama-index's, pydantic-ai's and AutoGen's messages, the AI SDK's messages and UI messages, OpenTelemetry's
GenAI parts, the messages of opencode and Goose, and the calls of AgentDojo and Inspect.

A message, a part or an item is understood, known to be harmless, or damage (`unread`, `invalid_item`). Order and ids stay as they
are: calls are paired with results afterwards. `parts.py` recognizes the parts of a message, `response_items.py` the items.
"""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from agent_pipeline.sessions.evidence import is_cut, rests_on_a_search, shows_activity
from agent_pipeline.sessions.items import INVALID, Chat, Item, assemble_chat, mark_unread
from agent_pipeline.sessions.json_text import replace_surrogates
from agent_pipeline.sessions.part_fields import (
    is_marked_failed,
    pick_first,
    read_id,
    read_part_type,
    read_thought,
)
from agent_pipeline.sessions.parts import (
    read_call,
    read_result,
    read_text,
    read_ui_tool,
    recognize_part,
)
from agent_pipeline.sessions.response_items import read_response_item
from agent_pipeline.sessions.sdk_messages import (
    AUTOGEN,
    read_autogen_messages,
    read_langchain_message,
    read_pydantic_messages,
)
from agent_pipeline.sessions.session import canonicalize_arguments
from agent_pipeline.sessions.steps import Steps

__all__ = [
    "ROLES",
    "VERSION",
    "is_message",
    "read_call",
    "read_chat",
    "read_items",
    "read_result",
    "read_text",
]

VERSION = 9
"""Raise it where the same messages give other sessions than before: the versions of all readers have it."""

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai", "gpt", "model"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "toolResult", "tool_result"), "tool"),
}
"""The four roles by all their names."""

_CONTENTS = ("parts", "blocks")
"""A message's content, if it is not called `content`: OpenTelemetry and Gemini say `parts`, llama-index says `blocks`."""
_PLAIN = {"role", "content", "type", "id", "name", "tool_call_id", "weight"}
"""The fields of a message that says nothing besides its words."""
_UNDERSTOOD = _PLAIN | {
    *(
        "parts",
        "blocks",
        "text",
        "reasoning_content",
        "reasoning",
        "reasoning_details",
        "thinking",
        "refusal",
        "tool_calls",
    ),
    *(
        "function_call",
        "toolInvocations",
        "additional_kwargs",
        "invalid_tool_calls",
        "error",
        "is_error",
        "isError",
        "status",
        "outcome",
    ),
    *(
        "toolCallId",
        "tool_call_ids",
        "call_id",
        "tool_responses",
        "tool_plan",
        "audio",
        "images",
        "attachments",
        "experimental_attachments",
        "files",
        "file_ids",
        "videos",
        "audios",
    ),
    *(
        "finish_reason",
        "stop_reason",
        "finishReason",
        "stopReason",
        "done_reason",
        "finish",
        "incomplete_details",
        "interrupted",
        "partial",
    ),
    *(
        "aborted",
        "truncated",
        "kind",
        "instructions",
        "source",
        "train",
        "training",
        "trainable",
        "loss",
    ),
}
_HARMLESS = {
    *(
        "timestamp",
        "created_at",
        "createdAt",
        "created",
        "updated_at",
        "time",
        "date",
        "uuid",
        "parent_id",
        "thread_id",
        "run_id",
    ),
    *(
        "metadata",
        "response_metadata",
        "usage",
        "usage_metadata",
        "usageMetadata",
        "usageStats",
        "token_usage",
        "tokens",
        "cost",
        "model",
    ),
    *(
        "annotations",
        "logprobs",
        "example",
        "index",
        "lc",
        "lc_attributes",
        "lc_kwargs",
        "tool_call_chunks",
        "provider",
        "api",
    ),
    *(
        "providerOptions",
        "providerMetadata",
        "experimental_providerMetadata",
        "provider_details",
        "provider_name",
        "provider_url",
    ),
    *(
        "provider_response_id",
        "vendor_details",
        "vendor_id",
        "model_name",
        "system_fingerprint",
        "cache_control",
        "stop_sequence",
    ),
    *(
        "container",
        "context_management",
        "generation_info",
        "revisionId",
        "details",
        "toolName",
        "tool_name",
        "artifact",
        "phase",
    ),
    *("citations", "sources", "search_results", "documents", "done", "unfinished", "meta"),
    *(
        "turn_idx",
        "tick",
        "timestamp_ms",
        "raw_data",
        "tool_call_functions",
        "internal",
        "agent",
        "agentName",
        "channel",
        "recipient",
    ),
}
"""Fields of a message that say nothing that was said: names, times, counts, and a library's own copies of other fields."""
_STREAMED = {"part input_json_delta", "part tool_call_chunk", "part server_tool_call_chunk"}
"""Pieces of calls that a stream left in a message. They say nothing if the whole calls stand in a field of the message."""
_NAMES_OF_TOOLS = {"function", "tool"}
_OF_ANSWERED_CALL = {
    "tool_call",
    "toolCall",
    "function_call",
    "input",
    "tool_input",
    "args",
    "arguments",
    "kwargs",
    "parameters",
}
"""Fields of a tool's message that repeat the call that it answers (AgentDojo)."""
_RESULT_IDS = ("tool_call_id", "toolCallId", "call_id", "tool_use_id", "toolUseId", "callId", "")
_ATTACHED = (
    "images",
    "attachments",
    "experimental_attachments",
    "files",
    "file_ids",
    "videos",
    "audios",
)
_UNTRAINED = ("train", "training", "trainable", "loss")
"""Flags of datasets that say by `false` that a message is not trained (axolotl, LLaMA-Factory, ms-swift), as OpenAI's `weight: 0` does."""


def read_chat(history: Any) -> Chat:
    """The chat of a history: messages and items of any spelling, mixed. Anything that is not a list is one invalid item."""
    return assemble_chat(read_items(history if isinstance(history, list) else [None]))


def is_message(record: Any) -> bool:
    """Whether a record is a message in any spelling."""
    return any(
        item.role or item.kind in ("function_call", "function_call_output")
        for item in read_items([record])
    )


def read_items(history: Iterable[Any]) -> list[Item]:
    """The plain items of a history in order; an invalid one where a message, an item or a call is not what it should be."""
    items: list[Item] = []
    for record in history:
        items += _items_of(record, items)
    return items


def _items_of(record: Any, before: list[Item]) -> Iterable[Item]:
    """The items in a record that follows others."""
    if isinstance(record, Item):
        return (record,)
    if not isinstance(record, dict):
        return (INVALID,)
    if "kwargs" in record or "data" in record:
        record = read_langchain_message(record)
    kind = record["type"] if isinstance(record.get("type"), str) else ""
    if (items := read_response_item(record, kind)) is not None:
        return items
    if (
        "parts" in record
        and isinstance(record["parts"], list)
        and record.get("kind") in ("request", "response")
    ):
        return read_items(read_pydantic_messages(record))
    if kind in AUTOGEN and "role" not in record:
        return read_items(read_autogen_messages(record))
    spoken_by = (
        kind if kind in ROLES else kind.removesuffix("Chunk").removesuffix("Message").lower()
    )  # LangChain says it by the type
    role = record.get("role", spoken_by if spoken_by in ROLES else None)
    if isinstance(role, str):
        # Langfuse writes a LangChain tool's name for its role.
        is_tool = role not in ROLES and any(
            item.name == role for item in before if item.kind == "function_call"
        )
        name = "tool" if is_tool else ROLES.get(role)
        return (
            (INVALID,)
            if name is None
            else _results(record)
            if name == "tool"
            else _spoken(name, record, before)
        )
    if kind == "reasoning":
        return (Item("reasoning", read_thought(record)),)
    if not kind or kind == "message":
        return (INVALID,)
    return (mark_unread(replace_surrogates(kind)),)


def _is_trained(message: dict[str, Any]) -> bool:
    return message.get("weight") != 0 and not any(message.get(name) is False for name in _UNTRAINED)


def _spoken(role: str, message: dict[str, Any], before: list[Item]) -> list[Item]:
    """What a message of the system, a user or the assistant says: thoughts, words, calls, and the results of calls."""
    content = message.get("content")
    if isinstance(content, str) and message.keys() <= _PLAIN:  # most messages of most stores
        return [Item("message", content, role=role, trained=message.get("weight") != 0)]
    turn = Steps(role, _is_trained(message))
    thought = (
        message.get("reasoning_content")
        or message.get("reasoning")
        or message.get("thinking")
        or message.get("reasoning_details")
    )
    if thought:
        turn.thoughts.append(Item("reasoning", read_thought(thought)))
    parts, is_list = _parts(message)
    steps = (
        _invocations(message)
        if not any(read_part_type(part).startswith("tool-") for part in parts)
        else []
    )
    for step in steps:
        for item in step:
            turn.add(item)
        turn.close()
    named = _named_calls(message)
    for part in parts:
        items = recognize_part(part)
        turn.add_part(
            [item for item in (_told_better(item, named) for item in items) if item is not None]
        )
    for words in _words_beside(message):
        turn.add(Item("words", words))
    for name in _ATTACHED:
        for attached in message[name] if isinstance(message.get(name), list) else ():
            items = (
                recognize_part(attached)
                if isinstance(attached, dict) and read_part_type(attached)
                else (Item("media", "[file]", name="file"),)
            )
            turn.add_part(list(items))
    for call in named.values():
        turn.add(call)
    turn.others += _left_over(message, turn, is_list)
    follows_a_result = bool(turn.results) or any(
        item.kind == "function_call_output" for item in [*before[-1:], *turn.done]
    )
    if role == "assistant" and rests_on_a_search(message, follows_a_result):
        turn.others.append(mark_unread("answer from a hosted search"))
    is_list_of_others = is_list and bool(parts)
    return turn.items(is_cut(message) and role == "assistant", empty=not is_list_of_others)


def _results(message: dict[str, Any]) -> list[Item]:
    """The results in a tool's message. If it has an error beside its content, the error is what the model was given."""
    if (
        isinstance(message.get("tool_responses"), list) and message["tool_responses"]
    ):  # AG2 repeats several in one content
        return [
            item
            for each in message["tool_responses"]
            for item in (_results(each) if isinstance(each, dict) else [INVALID])
        ]
    parts, is_list = _parts(message)
    recognized = [recognize_part(part) for part in parts]
    results = [
        item for items in recognized for item in items if item.kind == "function_call_output"
    ]
    answered = {name: value for name, value in message.items() if name not in _OF_ANSWERED_CALL}
    others = [mark_unread(f"field {name}") for name in _strange(answered, evidence=True)]
    if results:
        beside = [
            item
            for items in recognized
            for item in items
            if item.kind not in ("function_call_output", "harmless", "border")
        ]
        left = [
            item if item.kind == "unread" else mark_unread("words beside a result")
            for item in beside
            if item.text.strip() or not item.text
        ]
        return results + left + others
    error, ids = message.get("error"), message.get("tool_call_ids")
    reason = error.get("message") if isinstance(error, dict) else error
    first_id = ids[0] if isinstance(ids, list) and ids else None  # SWE-agent
    call_id = read_id(message, "tool_call_id") or read_id(
        {"": first_id} | _additional(message) | message, *_RESULT_IDS
    )
    content: Any = (
        (parts or "") if is_list else message.get("content", message.get("text"))
    )  # no parts are an empty result
    output = reason if reason and isinstance(reason, str) else content
    return [read_result(call_id, output, is_marked_failed(message)), *others]


def _parts(message: dict[str, Any]) -> tuple[list[Any], bool]:
    """The parts of a message under any name, and whether it has a list of them.

    If a message has its words and a list of parts (the AI SDK's UI messages), the parts say more.
    """
    content = message.get("content")
    listed = next(
        (message[name] for name in _CONTENTS if isinstance(message.get(name), list)), None
    )
    if listed and any(isinstance(part, dict) for part in listed) and not isinstance(content, list):
        if isinstance(content, str) and content.strip():
            words = read_text(listed, "")[0]
            if "".join(content.split()) not in "".join(words.split()):
                return [*listed, {"type": "content beside parts"}], True
        return listed, True
    wrapped = pick_first(message, ("content", *_CONTENTS, "text"))
    if isinstance(wrapped, list):
        return wrapped, True
    return ([] if wrapped is None else [wrapped]), False


def _words_beside(message: dict[str, Any]) -> list[str]:
    """What a message says in fields of its own: a refusal, what was spoken aloud."""
    refusal = message.get("refusal") or _additional(message).get("refusal")
    words = [refusal] if isinstance(refusal, str) else []
    if isinstance(message.get("tool_plan"), str):  # Cohere: what the model says before its calls
        words.append(message["tool_plan"])
    audio = message.get("audio")
    if (
        isinstance(audio, dict)
        and isinstance(audio.get("transcript"), str)
        and not message.get("content")
    ):
        words.append(audio["transcript"])
    return [text for text in words if text.strip() and text != message.get("content")]


def _invocations(message: dict[str, Any]) -> list[list[Item]]:
    """The calls and results of the AI SDK's version 4, step by step. What the message says was said after them."""
    steps: dict[Any, list[Item]] = {}
    for invocation in (
        message["toolInvocations"] if isinstance(message.get("toolInvocations"), list) else ()
    ):
        items = (
            read_ui_tool(invocation)
            if isinstance(invocation, dict)
            else (mark_unread("toolInvocations"),)
        )
        steps.setdefault(
            read_id(invocation, "step") if isinstance(invocation, dict) else "", []
        ).extend(items)
    return list(steps.values())


def _named_calls(message: dict[str, Any]) -> dict[Any, Item]:
    """The calls in a message's own fields, in order, by their ids. Calls without an id are told apart by their place."""
    named = message.get("tool_calls") or _additional(message).get("tool_calls")
    calls = [*(named if isinstance(named, list | tuple) else [None] if named else [])]
    invalid = message.get(
        "invalid_tool_calls"
    )  # LangChain: the arguments are no JSON, as repair will find
    calls += invalid if isinstance(invalid, list) else []
    legacy = message.get("function_call") or (
        None if calls else _additional(message).get("function_call")
    )
    if legacy and not any(_is_same_call(legacy, call) for call in calls):
        calls.append(legacy)
    trained = _is_trained(message)
    found: dict[Any, Item] = {}
    for place, call in enumerate(calls):
        item = read_call(call, trained)
        found[item.call_id if item.call_id and item.call_id not in found else place] = item
    return found


def _is_same_call(left: Any, right: Any) -> bool:
    told = [read_call(call) for call in (left, right)]
    return (told[0].name, canonicalize_arguments(told[0].text)) == (
        told[1].name,
        canonicalize_arguments(told[1].text),
    )


def _told_better(item: Item, named: dict[Any, Item]) -> Item | None:
    """A call of a part, if no field of the message tells it too: LangChain does both, and a stream leaves the part without arguments.

    Two tellings of one call that differ are unread, since nobody knows which one was made.
    """
    if item.kind == "unread" and item.name in _STREAMED and named:
        return None
    if item.kind != "function_call":
        return item
    told = (
        named.get(item.call_id)
        if item.call_id
        else next((call for call in named.values() if replace(call, call_id="") == item), None)
    )
    if told is None:
        return item
    if item.name != told.name or (
        item.text not in ("", "{}")
        and told.text
        and canonicalize_arguments(item.text) != canonicalize_arguments(told.text)
    ):
        return mark_unread("a call that is told twice, differently")
    return None


def _left_over(message: dict[str, Any], turn: Steps, is_list: bool) -> list[Item]:
    """What a message's other fields show, and nobody understands."""
    says_nothing = not (
        is_list
        or turn.words
        or turn.calls
        or turn.results
        or turn.done
        or message.get("content") is not None
    )
    return [mark_unread(f"field {name}") for name in _strange(message, evidence=not says_nothing)]


def _strange(message: dict[str, Any], evidence: bool) -> list[str]:
    """The fields of a message that are neither understood nor harmless and show a call or a result; without `evidence`, all."""
    strange = [name for name in message if name not in _UNDERSTOOD and name not in _HARMLESS]
    strange = [
        name for name in strange if not (name in _NAMES_OF_TOOLS and isinstance(message[name], str))
    ]
    if not evidence:
        return [
            replace_surrogates(str(name))
            for name in strange
            if message[name] not in (None, "", [], {}, False)
        ]
    return [
        replace_surrogates(str(name)) for name in strange if shows_activity({name: message[name]})
    ]


def _additional(message: dict[str, Any]) -> dict[str, Any]:
    """What LangChain and llama-index say of a message beside its own fields."""
    more = message.get("additional_kwargs")
    return more if isinstance(more, dict) else {}
