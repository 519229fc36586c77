"""The output of `codex exec --json`: one JSON line per event of a thread.

The stream does not contain the user's request. It does not contain tool calls as the model made
them either: a command is recorded as it ran, and a file change without its content. Its sessions
therefore count as damaged (`unread`). Codex's own rollouts (`~/.codex/sessions`) contain both.
"""

from typing import Any

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.agents.lines import cut_last_turn, says_something
from agent_pipeline.sources.base import add_note
from agent_pipeline.sources.formats.fields import Record, error_text, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_EVENTS = (
    "thread.started",
    "turn.started",
    "turn.completed",
    "turn.failed",
    "item.started",
    "item.updated",
    "item.completed",
)


class CodexExecSource(FileSource):
    """A reader of an event stream of `codex exec --json`, or of a folder of streams."""

    name = "codex_exec"
    looks_like = "events of codex exec --json: thread.started, turn.started, item.completed"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        kind = record.get("type")
        return (kind == "thread.started" and "thread_id" in record) or (
            kind == "item.completed" and isinstance(record.get("item"), dict)
        )

    @classmethod
    def reads(cls, record: Record) -> bool:
        return isinstance(record.get("type"), str)

    def loses(self, record: Record) -> bool:
        return says_something(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        return Ident(str(location.path), text(record.get("thread_id")), None, "codex")

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        events = [record for _, record in records]
        sentence = (
            f"{self.path}: codex exec --json does not record the user's request, so its sessions "
            "are damaged (unread)"
        )
        add_note(self.notes, f"{sentence}. Read the rollouts in ~/.codex/sessions instead.")
        failed = next(
            (
                event
                for event in reversed(events)
                if event.get("type") in ("turn.failed", "error", "turn.completed")
            ),
            {},
        )
        yield (
            session_id,
            {
                "history": _history(events),
                "usage": [
                    event.get("usage") for event in events if event.get("type") == "turn.completed"
                ],
                "error": error_text(failed.get("error") or failed.get("message")),
            },
        )


def _history(events: list[Record]) -> list[object]:
    history: list[object] = []
    ended = {
        text(section(event, "item").get("id"))
        for event in events
        if event.get("type") == "item.completed"
    }
    for event in events:
        kind, item = text(event.get("type")) or "none", section(event, "item")
        if kind == "turn.started":
            history.append(mark_unread("missing request"))
        elif kind == "turn.failed":
            cut_last_turn(history)
        elif kind == "item.completed":
            history += _messages(item)
        elif kind == "item.started" and text(item.get("id")) not in ended:
            history.append(mark_unread(f"item {text(item.get('type'))} that did not end"))
        elif kind not in (*_EVENTS, "error") and says_something(event):
            history.append(mark_unread(f"event {kind}"))
    return history


def _messages(item: Record) -> list[Any]:
    kind, name = text(item.get("type")) or "none", text(item.get("id")) or ""
    if kind == "agent_message":
        return [{"role": "assistant", "content": item.get("text")}]
    if kind == "reasoning":
        return [
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": str(item.get("text") or "")}],
            }
        ]
    if kind == "command_execution":
        failed = item.get("status") in ("failed", "declined") or item.get("exit_code") not in (
            0,
            None,
        )
        return _call(
            name, kind, {"command": item.get("command")}, item.get("aggregated_output"), failed
        )
    if kind == "mcp_tool_call" and (item.get("result") or item.get("error")):
        error = section(item, "error").get("message")
        output = error if error is not None else section(item, "result").get("content")
        return _call(
            name,
            f"{item.get('server')}__{item.get('tool')}",
            item.get("arguments"),
            output,
            error is not None,
        )
    if kind == "error" or not says_something(item):
        return []
    return [mark_unread(f"item {kind}")]


def _call(name: str, tool: str, arguments: object, output: object, failed: bool) -> list[object]:
    call = {"id": name, "function": {"name": tool, "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": name, "content": output, "is_error": failed}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, result]
