"""Plain files of conversations: OpenAI chat, Responses items and ShareGPT.

A conversation is a line, an element of a list or a row of a table. The answer may be in a field
next to the messages (`response`, `choices`, `completion`, `output`), as in a log of model calls.
Other fields of a record are read by their usual names: `session_id`, `project`, `agent`, `model`,
`tools`, `task_id`, `trial`, a verdict (`judgment`, `passed`, `reward`, `score`, ...), `scores`,
`usage`, `error`, a time. The remaining fields become the session's context.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agent_pipeline.sessions.chat import ROLES, is_message, read_chat, read_items
from agent_pipeline.sessions.items import Chat, Item, mark_unread
from agent_pipeline.sources.formats.cut_texts import has_exporter_note
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    decoded,
    first_of,
    first_text,
    function_tools,
    objects,
    plain_verdict,
    scalar,
    section,
    text,
)
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.filler import without_filler
from agent_pipeline.sources.formats.model_calls import (
    Exchange,
    record_stop_reason,
    response_of,
    stop_reason,
    with_reason,
)
from agent_pipeline.sources.formats.record_files import RecordLocation

_ANSWERS = (
    "response",
    "choices",
    "completion",
    "output",
    "model_response",
    "assistant_response",
    "generated_text",
    "output_text",
)
"""Fields that may hold the answer to a record's messages."""

_OF_APIS = {"choices", "candidates", "object", "role", "output", "stop_reason", "stopReason"}
"""Fields of API responses. Every API response has at least one of these fields."""

_IDS = ("session_id", "conversation_id", "id", "uuid", "custom_id")
_TIMES = ("created_at", "timestamp", "created", "time", "date")
_FIELDS = (
    "task_id",
    "trial",
    "error",
    "archived",
    "cost_usd",
    "ended_at",
    "parent_session_id",
    "attack_succeeded",
    "ends_on_tool",
)
_MORE_FIELDS = {
    "project",
    "agent",
    "agent_name",
    "tools",
    "functions",
    "model",
    "model_id",
    "scores",
    "judgment",
    "score",
    "usage",
}
_OF_OUR_TABLES = {
    "task_key",
    "content_sha256",
    "source",
    "tools_origin",
    "damage",
    "skipped",
    "measures",
    "reasoning",
    "broken",
}
_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""Columns with the pictures and sounds that belong to a row's messages, as TRL, LLaVA and
LLaMA-Factory name them.
"""
_NOT_CONTEXT = {*_IDS, *_TIMES, *_FIELDS, *_MORE_FIELDS, *_OF_OUR_TABLES, "context"}


class PlainSource(RecordSource):
    """A base class for readers of files in which each record is a conversation.

    The readers in this module extend it.
    """

    version = 3
    kinds = ("lines", "document", "table")
    content: ClassVar[tuple[str, ...]]
    """Fields that hold the conversation. The first field that is present counts."""

    @classmethod
    def chat(cls, record: Mapping[str, object]) -> Chat:
        return read_chat(first_of(record, *cls.content))

    @classmethod
    def reads(cls, record: Record) -> bool:
        return any(isinstance(record.get(name), list) for name in cls.content)

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        return Ident(
            None,
            first_text(record, *_IDS),
            first_text(record, "project"),
            first_text(record, "agent", "agent_name"),
        )

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        score, judgment = plain_verdict(record)
        if (
            "task_id" not in record and (example := scalar(record.get("example_id"))) is not None
        ):  # verifiers name a task by its environment and example
            record = record | {
                "task_id": "/".join(filter(None, (text(record.get("task")), example)))
            }
        rest = {
            name: record[name]
            for name in record
            if name not in self.content and name not in _NOT_CONTEXT
        }
        tools = record.get("tools") or record.get("functions")
        cleaned_content = {
            name: without_filler(record[name], lambda: function_tools(tools)[0])
            for name in self.content
            if isinstance(record.get(name), list)
        }
        return {
            **chosen(record, _FIELDS),
            "history": (chat := self.chat(record | cleaned_content)),
            "damage": {
                "cut_text": sum(has_exporter_note(message["content"]) for message in chat.messages),
                "missing_media": sum(_count_of(record.get(name)) for name in _MEDIA),
            },
            "tools": tools,
            "context": rest | section(record, "context"),
            "usage": [record.get("usage")],
            "scores": section(record, "scores"),
            "created_at": first_of(record, *_TIMES),
            "model_id": record.get("model") or record.get("model_id"),
            "score": score,
            "judgment": judgment,
        }


def _count_of(media: object) -> int:
    """Return the number of pictures or sounds in a column of a dataset row."""
    return (
        sum(element is not None for element in media)
        if isinstance(media, list)
        else int(media not in (None, "", {}))
    )


class OpenAIChatSource(PlainSource):
    """A reader of OpenAI's fine-tuning format, `{"messages": [...], "tools": [...], ...}`.

    The messages may have the form of any SDK.
    """

    name = "openai_chat"
    version = 4
    looks_like = "JSON lines with messages, a list with role and content"
    content = ("messages",)

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return any(
            isinstance(message.get("role"), str) or is_message(message)
            for message in objects(record.get("messages"))
        )

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        messages = record.get("messages")
        if not isinstance(messages, list):
            return super().fields(record, location, session_id)
        has_more = any(record.get(name) for name in _ANSWERS)
        answer_beside = _AnswerBeside(Exchange([]), record_stop_reason(record), [])
        if has_more:
            answer_beside = _read_answer_beside(record, read_items(messages))
        answer = answer_beside.answer
        history = [*with_reason(messages, answer_beside.stop_reason), *answer.messages]
        rest = {
            name: value for name, value in record.items() if name not in answer_beside.used_fields
        }
        session_fields = super().fields(rest | {"messages": history}, location, session_id)
        usage = [record.get("usage") or answer.usage]
        tools = session_fields["tools"] or section(record, "kwargs").get(
            "tools"
        )  # OpenHands logs the tools of a completion in `kwargs`
        cost = first_of(record, "cost_usd", "cost")
        return session_fields | {
            "usage": usage,
            "tools": tools,
            "cost_usd": cost,
            "model_id": session_fields["model_id"] or answer.model,
            "models": [
                message.get("model")
                for message in objects(messages)
                if message.get("role") == "assistant"
            ],
        }


@dataclass(frozen=True)
class _AnswerBeside:
    """The answer that a record holds in a field next to its messages.

    Attributes:
        answer: The answer.
        stop_reason: The stop reason of the last message, or None if it is unknown.
        used_fields: The fields of the record that were read.
    """

    answer: Exchange
    stop_reason: str | None
    used_fields: list[str]


def _read_answer_beside(record: Record, items: list[Item]) -> _AnswerBeside:
    """Return the answer that a record holds in a field next to its messages.

    The answer is not repeated if the messages already end with it. If the messages end without an
    answer, a field that cannot be read counts as damage. If the messages end with an answer, a text
    in another field has a different meaning, such as a label, and becomes part of the session's
    context.
    """
    spoken = [
        item for item in items if item.kind in ("message", "function_call", "function_call_output")
    ]
    is_answered = bool(spoken) and spoken[-1].kind == "message" and spoken[-1].role == "assistant"
    status_fields = chosen(record, ("status", "incomplete_details", "finish_reason", "stop_reason"))
    answer, reason = Exchange([]), record_stop_reason(record)
    used, unreadable = [], []
    for name in _ANSWERS:
        value = decoded(record.get(name))
        if value in (None, "", [], {}):
            continue
        is_part = isinstance(value, str) or name in ("choices", "output")
        exchange = response_of(
            status_fields | {"completion" if isinstance(value, str) else name: value}
            if is_part
            else value
        )
        new = read_items(exchange.messages)
        if not any(item.role == "assistant" or item.kind == "function_call" for item in new):
            unreadable.append(name)
        elif _ends_with(spoken, new):
            used.append(name)
            reason = reason or next(
                filter(None, (stop_reason(message) for message in objects(exchange.messages))), None
            )
        elif (
            not is_answered
            or name == "choices"
            or (isinstance(value, dict) and not _OF_APIS.isdisjoint(value))
        ):
            used.append(name)
            answer = answer if answer.messages else exchange
    if answer.messages:
        answer = answer._replace(messages=with_reason(answer.messages, reason))
        return _AnswerBeside(answer, None, used)
    if unreadable and not used and not is_answered:
        return _AnswerBeside(Exchange([mark_unread(unreadable[0])]), None, used)
    return _AnswerBeside(answer, reason, used)


def _ends_with(spoken: list[Item], new: list[Item]) -> bool:
    """Return whether a conversation already ends with the new items."""
    new_contents = [
        _content_of(item)
        for item in new
        if item.kind in ("message", "function_call") and (item.text.strip() or item.name)
    ]
    return (
        bool(new_contents)
        and [_content_of(item) for item in spoken[-len(new_contents) :]] == new_contents
    )


@dataclass(frozen=True)
class _ItemContent:
    """The fields of an item that are compared to decide whether two items have the same content."""

    kind: str
    role: str
    name: str
    text: str


def _content_of(item: Item) -> _ItemContent:
    return _ItemContent(item.kind, item.role, item.name, item.text.strip())


class ResponsesSource(PlainSource):
    """A reader of files with Responses items: lines of `{"session_id", "history": [...]}`."""

    name = "responses_items"
    looks_like = "JSON lines with history, a list of Responses items"
    content = ("history", "items")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        history = objects(first_of(record, *cls.content))
        typed = any(isinstance(item.get("type"), str) for item in history)
        return typed or any(
            isinstance(item.get("role"), str) and item["role"] in ROLES for item in history
        )


class ShareGPTSource(PlainSource):
    """A reader of ShareGPT files: `{"conversations": [{"from", "value"}], "system", "tools"}`.

    Function calls and observations are read, too.
    """

    name = "sharegpt"
    looks_like = "JSON lines with conversations, a list of turns with from and value"
    content = ("conversations", "system")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return any(
            "from" in turn and "value" in turn for turn in objects(record.get("conversations"))
        )

    @classmethod
    def chat(cls, record: Mapping[str, object]) -> Chat:
        turns = record.get("conversations")
        system = (
            [{"role": "system", "content": record["system"]}]
            if isinstance(record.get("system"), str)
            else []
        )
        return read_chat([*system, *(map(_message, turns) if isinstance(turns, list) else [None])])


def _message(turn: object) -> object:
    """Return a ShareGPT turn as a chat message.

    The value of a function call is JSON with one call or a list of calls.
    """
    if not isinstance(turn, dict):
        return None
    role, value = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if role == "function_call":
        calls = decoded(value)
        return {"role": "assistant", "tool_calls": calls if isinstance(calls, list) else [calls]}
    return {"role": "tool" if role == "function_response" else role, "content": value}
