"""Plain conversation files: OpenAI chat, Responses items and ShareGPT, a conversation a line (or a list's element, or a table's row).

What else a line says is taken by its usual name: `session_id`, `project`, `agent`, `model`, `tools`, `task_id`, `trial`, a verdict
(`judgment`, `passed`, `reward`, `score`, ...), `scores`, `usage`, `error`, a time; the rest of it becomes the session's context.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

import msgspec

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import chat_items, chat_to_messages, responses_items, result_item
from agent_pipeline.sessions.items import Chat, plain_chat, to_messages
from agent_pipeline.sessions.session import Session, json_bytes
from agent_pipeline.sources.base import digest
from agent_pipeline.sources.formats.fields import said
from agent_pipeline.sources.formats.files import FileSource, Ident, Record, text
from agent_pipeline.sources.formats.records import Place, parsed

_IDS = ("session_id", "conversation_id", "id", "uuid", "custom_id")
_TIMES = ("created_at", "timestamp", "created", "time", "date")
_SAID = {"project", "agent", "agent_name", "tools", "functions", "task_id", "trial", "model", "model_id", "error", "archived", "scores"}
_ALSO_SAID = {"judgment", "score", "usage", "cost_usd", "ended_at", "parent_session_id", "attack_succeeded"}
_OF_OUR_TABLES = {"task_key", "content_sha256", "source", "tools_origin", "damage", "skipped", "measures", "reasoning", "broken"}
_TAKEN = {*_IDS, *_TIMES, *_SAID, *_ALSO_SAID, *_OF_OUR_TABLES}


class _Named(msgspec.Struct):
    """What a record says of where it belongs."""

    session_id: Any = None
    conversation_id: Any = None
    id: Any = None
    uuid: Any = None
    custom_id: Any = None
    project: Any = None
    agent: Any = None
    agent_name: Any = None


class _Chat(_Named, kw_only=True):
    messages: msgspec.Raw


class _History(_Named, kw_only=True):
    history: msgspec.Raw


class PlainSource(FileSource):
    """Base of the three: a record is a session.

    A record's text is decoded as far as its `raw` fields, which `chat` decodes into what it needs.
    """

    content: ClassVar[tuple[str, ...]]
    raw: ClassVar[frozenset[str]] = frozenset()

    def chat(self, record: Record) -> Chat:
        """The conversation in a record."""
        raise NotImplementedError

    def identify(self, record: Record, place: Place) -> Ident:
        session = next((found for name in _IDS if (found := text(record.get(name)))), None)
        return Ident(None, session, text(record.get("project")), text(record.get("agent")) or text(record.get("agent_name")))

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        for _, _, build in self.stored(key):
            if (session := build()) is not None:
                yield session

    def stored(self, key: PartitionKey) -> Iterator[tuple[str, bytes, Callable[[], Session | None]]]:
        """Every session's id, a hash of its record, and what reads it (null: it is no JSON, which is noted at the end); raises what
        `sessions` raises."""
        with self._places(key) as (sessions, broken):
            for session_id, places in sessions:
                text = self._records.text(places[0])
                whole = text if isinstance(text, bytes) else bytes(text) if isinstance(text, msgspec.Raw) else json_bytes(text)
                yield session_id, digest(whole), partial(self._session, key, session_id, text, places[0], broken)

    def _session(self, key: PartitionKey, session_id: str, text: Any, place: Place, broken: list[Place]) -> Session | None:
        try:
            record = _fields(text, self.raw) if self.raw else None
            record = parsed(text) if record is None else record
            chat = self.chat(record)
        except ValueError:
            broken.append(place)
            return None
        return self._made(key, session_id, record, chat)

    def _made(self, key: PartitionKey, session_id: str, record: Record, chat: Chat) -> Session:
        score, judgment = said(record)
        rest = {name: value for name, value in record.items() if name not in self.content and name not in _TAKEN}
        context = rest.pop("context", None)
        attacked, scores = record.get("attack_succeeded"), record.get("scores")
        return self.made(
            key,
            session_id,
            chat,
            tools=record.get("tools") or record.get("functions"),
            context=rest | (context if isinstance(context, dict) else {}),
            usage=[record.get("usage")],
            scores=scores if isinstance(scores, dict) else None,
            created_at=next((record[name] for name in _TIMES if record.get(name) is not None), None),
            ended_at=record.get("ended_at"),
            task_id=record.get("task_id"),
            trial=record.get("trial"),
            model_id=record.get("model") or record.get("model_id"),
            error=record.get("error"),
            archived=record.get("archived") is True,
            parent_session_id=record.get("parent_session_id"),
            cost_usd=record.get("cost_usd"),
            attack_succeeded=attacked if isinstance(attacked, bool) else None,
            score=score if not scores or record.get("score") is not None else None,
            judgment=judgment,
        )


class OpenAIChatSource(PlainSource):
    """The fine-tuning format: `{"messages": [...], "tools": [...], ...}`."""

    name: ClassVar[str] = "openai_chat"
    looks_like: ClassVar[str] = "JSON lines with messages"
    content: ClassVar[tuple[str, ...]] = ("messages",)
    raw: ClassVar[frozenset[str]] = frozenset({"messages"})
    outline: ClassVar[type[msgspec.Struct]] = _Chat

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return has_roles(record.get("messages"))

    def chat(self, record: Record) -> Chat:
        messages = record.get("messages")
        plain = plain_chat(messages) if isinstance(messages, msgspec.Raw) else None
        return Chat(plain) if plain is not None else chat_to_messages(parsed(messages))


class ResponsesSource(PlainSource):
    """One history of Responses items a line: `{"session_id", "history": [...], ...}`."""

    name: ClassVar[str] = "responses_items"
    looks_like: ClassVar[str] = "JSON lines with a history of Responses items"
    content: ClassVar[tuple[str, ...]] = ("history", "items")
    outline: ClassVar[type[msgspec.Struct]] = _History

    @classmethod
    def accepts(cls, record: Record) -> bool:
        history = _history(record)
        return isinstance(history, list) and any(isinstance(each, dict) and ("role" in each or "type" in each) for each in history)

    def chat(self, record: Record) -> Chat:
        return to_messages(responses_items(_history(record)))


class ShareGPTSource(PlainSource):
    """`{"conversations": [{"from", "value"}], "system", "tools"}`, with function calls and observations."""

    name: ClassVar[str] = "sharegpt"
    looks_like: ClassVar[str] = "JSON lines with conversations of from and value"
    content: ClassVar[tuple[str, ...]] = ("conversations", "system")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        turns = record.get("conversations")
        return isinstance(turns, list) and any(isinstance(turn, dict) and "from" in turn and "value" in turn for turn in turns)

    def chat(self, record: Record) -> Chat:
        turns = record.get("conversations")
        system = [{"role": "system", "content": record["system"]}] if isinstance(record.get("system"), str) else []
        return to_messages(item for turn in [*system, *(turns if isinstance(turns, list) else [None])] for item in _turn(turn))


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _fields(text: Any, raw: frozenset[str]) -> Record | None:
    """A record's fields, some of them as the JSON that they are; null where it has to be looked at as a whole."""
    try:
        return {name: value if name in raw else msgspec.json.decode(value) for name, value in _FIELDS(text).items()}
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError):
        return None


def has_roles(messages: Any) -> bool:
    """Whether a value is a list with chat messages in it."""
    return isinstance(messages, list) and any(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages)


def _history(record: Record) -> Any:
    return record.get("history") if record.get("history") is not None else record.get("items")


def _turn(turn: Any) -> Iterable[Any]:
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
