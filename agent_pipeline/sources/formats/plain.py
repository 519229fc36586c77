"""Plain conversation files: OpenAI chat, Responses items and ShareGPT; a conversation is a line, a list's element or a table's row.

What else a record says is taken by its usual name: `session_id`, `project`, `agent`, `model`, `tools`, `task_id`, `trial`, a verdict
(`judgment`, `passed`, `reward`, `score`, ...), `scores`, `usage`, `error`, a time. The rest of it becomes the session's context.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import msgspec

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import ROLES, chat_items, chat_to_messages, responses_items, result_item
from agent_pipeline.sessions.items import Chat, plain_chat, to_messages
from agent_pipeline.sessions.session import Session, json_bytes
from agent_pipeline.sources.base import Stored, digest
from agent_pipeline.sources.formats.fields import Record, first_of, first_text, objects, plain_verdict
from agent_pipeline.sources.formats.file_source import Fields, Ident, RecordSource
from agent_pipeline.sources.formats.json_values import LazyObject, holds_list, lazy_object, parsed
from agent_pipeline.sources.formats.record_files import Place
from agent_pipeline.sources.formats.session_fields import new_session

_IDS = ("session_id", "conversation_id", "id", "uuid", "custom_id")
_TIMES = ("created_at", "timestamp", "created", "time", "date")
_FIELDS = {"project", "agent", "agent_name", "tools", "functions", "task_id", "trial", "model", "model_id", "error", "archived", "scores"}
_MORE_FIELDS = {"judgment", "score", "usage", "cost_usd", "ended_at", "parent_session_id", "attack_succeeded", "ends_on_tool"}
_OF_OUR_TABLES = {"task_key", "content_sha256", "source", "tools_origin", "damage", "skipped", "measures", "reasoning", "broken"}
_NOT_CONTEXT = {*_IDS, *_TIMES, *_FIELDS, *_MORE_FIELDS, *_OF_OUR_TABLES, "context"}

_SPEAKERS = {"system", "developer", "user", "assistant", "tool", *ROLES}


class PlainSource(RecordSource):
    """Base of the three readers: a record is a session."""

    content: ClassVar[tuple[str, ...]]
    """The fields that hold the conversation; the first that is there counts."""

    @classmethod
    def chat(cls, record: Mapping[str, Any]) -> Chat:
        """The conversation in a record."""
        raise NotImplementedError

    @classmethod
    def reads(cls, record: Fields) -> bool:
        return any(holds_list(record, name) for name in cls.content)

    def identify(self, record: Fields, place: Place) -> Ident:
        return Ident(None, first_text(record, *_IDS), first_text(record, "project"), first_text(record, "agent", "agent_name"))

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        for stored in self.stored(key):
            if (session := stored.build()) is not None:
                yield session

    def stored(self, key: PartitionKey) -> Iterator[Stored]:
        with self._places(key) as (sessions, broken):
            for session_id, (place, *_) in sessions:
                raw = self._reader.raw(place)
                text = bytes(raw) if isinstance(raw, bytes | msgspec.Raw) else json_bytes(raw)
                yield Stored(session_id, digest(text), partial(self._session, key, session_id, raw, place, broken))

    def _session(self, key: PartitionKey, session_id: str, raw: Any, place: Place, broken: list[Place]) -> Session | None:
        try:
            record = lazy_object(raw)
            return None if record is None else new_session(self.name, key, session_id, **self.fields(record, place, session_id))
        except ValueError:
            broken.append(place)
            return None

    def fields(self, record: Fields, place: Place, session_id: str) -> Record:
        score, judgment = plain_verdict(record)
        context, attacked, scores = record.get("context"), record.get("attack_succeeded"), record.get("scores")
        rest = {name: record[name] for name in record if name not in self.content and name not in _NOT_CONTEXT}
        return {
            "chat": self.chat(record),
            "tools": record.get("tools") or record.get("functions"),
            "context": rest | (context if isinstance(context, dict) else {}),
            "usage": [record.get("usage")],
            "scores": scores if isinstance(scores, dict) else None,
            "created_at": first_of(record, *_TIMES),
            "ended_at": record.get("ended_at"),
            "task_id": record.get("task_id"),
            "trial": record.get("trial"),
            "model_id": record.get("model") or record.get("model_id"),
            "error": record.get("error"),
            "archived": record.get("archived") is True,
            "parent_session_id": record.get("parent_session_id"),
            "cost_usd": record.get("cost_usd"),
            "attack_succeeded": attacked if isinstance(attacked, bool) else None,
            "ends_on_tool": record.get("ends_on_tool") is True,
            "score": score,
            "judgment": judgment,
        }


class OpenAIChatSource(PlainSource):
    """The fine-tuning format: `{"messages": [...], "tools": [...], ...}`."""

    name: ClassVar[str] = "openai_chat"
    looks_like: ClassVar[str] = "JSON lines with messages of role and content"
    content: ClassVar[tuple[str, ...]] = ("messages",)

    @classmethod
    def accepts(cls, record: Fields) -> bool:
        return any(isinstance(each.get("role"), str) for each in objects(record.get("messages")))

    @classmethod
    def chat(cls, record: Mapping[str, Any]) -> Chat:
        messages = record.raw("messages") if isinstance(record, LazyObject) else record.get("messages")
        plain = plain_chat(messages) if isinstance(messages, msgspec.Raw) else None
        return plain if plain is not None else chat_to_messages(parsed(messages))


class ResponsesSource(PlainSource):
    """One history of Responses items a line: `{"session_id", "history": [...], ...}`."""

    name: ClassVar[str] = "responses_items"
    looks_like: ClassVar[str] = "JSON lines with a history of Responses items"
    content: ClassVar[tuple[str, ...]] = ("history", "items")

    @classmethod
    def accepts(cls, record: Fields) -> bool:
        history = objects(first_of(record, *cls.content))
        typed = any(isinstance(each.get("type"), str) for each in history)
        return typed or any(isinstance(each.get("role"), str) and each["role"] in _SPEAKERS for each in history)

    @classmethod
    def chat(cls, record: Mapping[str, Any]) -> Chat:
        return to_messages(responses_items(first_of(record, *cls.content)))


class ShareGPTSource(PlainSource):
    """`{"conversations": [{"from", "value"}], "system", "tools"}`, with function calls and observations."""

    name: ClassVar[str] = "sharegpt"
    looks_like: ClassVar[str] = "JSON lines with conversations of from and value"
    content: ClassVar[tuple[str, ...]] = ("conversations", "system")

    @classmethod
    def accepts(cls, record: Fields) -> bool:
        return any("from" in turn and "value" in turn for turn in objects(record.get("conversations")))

    @classmethod
    def chat(cls, record: Mapping[str, Any]) -> Chat:
        turns = record.get("conversations")
        system = [{"role": "system", "content": record["system"]}] if isinstance(record.get("system"), str) else []
        return to_messages(item for turn in [*system, *(turns if isinstance(turns, list) else [None])] for item in _turn_items(turn))


def _turn_items(turn: Any) -> Iterable[Any]:
    """A ShareGPT turn as items; a function call's value is JSON with one call or a list of them."""
    role, value = (turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))) if isinstance(turn, dict) else (None, None)
    if role == "function_call":
        try:
            calls = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            calls = [None]
        return chat_items([{"role": "assistant", "content": None, "tool_calls": calls if isinstance(calls, list) else [calls]}])
    if role in ("observation", "tool", "function_response"):
        return [result_item(None, value)]
    return chat_items([{"role": role, "content": value}])
