"""Plain conversation files: OpenAI chat, Responses items and ShareGPT; a conversation is a line, a list's element or a table's row.

What else a record says is taken by its usual name: `session_id`, `project`, `agent`, `model`, `tools`, `task_id`, `trial`, a verdict
(`judgment`, `passed`, `reward`, `score`, ...), `scores`, `usage`, `error`, a time. The rest of it becomes the session's context.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from agent_pipeline.sessions.chat import ROLES, is_message, to_messages
from agent_pipeline.sessions.items import Chat
from agent_pipeline.sources.formats.fields import Record, chosen, decoded, first_of, first_text, objects, plain_verdict, section
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.record_files import Place

_IDS = ("session_id", "conversation_id", "id", "uuid", "custom_id")
_TIMES = ("created_at", "timestamp", "created", "time", "date")
_FIELDS = ("task_id", "trial", "error", "archived", "cost_usd", "ended_at", "parent_session_id", "attack_succeeded", "ends_on_tool")
_MORE_FIELDS = {"project", "agent", "agent_name", "tools", "functions", "model", "model_id", "scores", "judgment", "score", "usage"}
_OF_OUR_TABLES = {"task_key", "content_sha256", "source", "tools_origin", "damage", "skipped", "measures", "reasoning", "broken"}
_NOT_CONTEXT = {*_IDS, *_TIMES, *_FIELDS, *_MORE_FIELDS, *_OF_OUR_TABLES, "context"}


class PlainSource(RecordSource):
    """Base of the three readers: a record is a session."""

    version = 2
    kinds = ("lines", "document", "table")
    content: ClassVar[tuple[str, ...]]
    """The fields that hold the conversation; the first that is there counts."""

    @classmethod
    def chat(cls, record: Mapping[str, Any]) -> Chat:
        return to_messages(first_of(record, *cls.content))

    @classmethod
    def reads(cls, record: Record) -> bool:
        return any(isinstance(record.get(name), list) for name in cls.content)

    def identify(self, record: Record, place: Place) -> Ident:
        return Ident(None, first_text(record, *_IDS), first_text(record, "project"), first_text(record, "agent", "agent_name"))

    def fields(self, record: Record, place: Place, session_id: str) -> Record:
        score, judgment = plain_verdict(record)
        rest = {name: record[name] for name in record if name not in self.content and name not in _NOT_CONTEXT}
        return {
            **chosen(record, _FIELDS),
            "history": self.chat(record),
            "tools": record.get("tools") or record.get("functions"),
            "context": rest | section(record, "context"),
            "usage": [record.get("usage")],
            "scores": section(record, "scores"),
            "created_at": first_of(record, *_TIMES),
            "model_id": record.get("model") or record.get("model_id"),
            "score": score,
            "judgment": judgment,
        }


class OpenAIChatSource(PlainSource):
    """The fine-tuning format, `{"messages": [...], "tools": [...], ...}`, with messages as any SDK writes them."""

    name = "openai_chat"
    looks_like = "JSON lines with messages of role and content"
    content = ("messages",)

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return any(isinstance(each.get("role"), str) or is_message(each) for each in objects(record.get("messages")))


class ResponsesSource(PlainSource):
    """One history of Responses items a line: `{"session_id", "history": [...], ...}`."""

    name = "responses_items"
    looks_like = "JSON lines with a history of Responses items"
    content = ("history", "items")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        history = objects(first_of(record, *cls.content))
        typed = any(isinstance(each.get("type"), str) for each in history)
        return typed or any(isinstance(each.get("role"), str) and each["role"] in ROLES for each in history)


class ShareGPTSource(PlainSource):
    """`{"conversations": [{"from", "value"}], "system", "tools"}`, with function calls and observations."""

    name = "sharegpt"
    looks_like = "JSON lines with conversations of from and value"
    content = ("conversations", "system")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return any("from" in turn and "value" in turn for turn in objects(record.get("conversations")))

    @classmethod
    def chat(cls, record: Mapping[str, Any]) -> Chat:
        turns = record.get("conversations")
        system = [{"role": "system", "content": record["system"]}] if isinstance(record.get("system"), str) else []
        return to_messages([*system, *(map(_message, turns) if isinstance(turns, list) else [None])])


def _message(turn: Any) -> Any:
    """A ShareGPT turn as a message; a function call's value is JSON with one call or a list of them."""
    if not isinstance(turn, dict):
        return None
    role, value = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if role == "function_call":
        calls = decoded(value)
        return {"role": "assistant", "tool_calls": calls if isinstance(calls, list) else [calls]}
    return {"role": "tool" if role == "function_response" else role, "content": value}
