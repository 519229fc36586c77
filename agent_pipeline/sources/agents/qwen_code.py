"""Sessions of Qwen Code and of iFlow, whose lines look like Claude Code's.

Qwen Code writes `message.parts` in the form of Gemini's API, and lines of type `tool_result`. iFlow
writes Anthropic's blocks. Each iFlow line of a streamed answer repeats a part of the previous line,
and all of these lines name the user's line as their parent.
"""

from typing import Any

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.agents.claude_code import IFLOW_SESSION
from agent_pipeline.sources.agents.codex import folder_name
from agent_pipeline.sources.agents.lines import branch, says_something, stretches_of
from agent_pipeline.sources.formats.fields import Record, chosen, elements, objects, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_CONTEXT = ("cwd", "gitBranch", "version", "agentId")
_QWEN_LINES = ("user", "assistant", "tool_result")
_BOOKKEEPING = {
    "agent_retry", "agent_session_ready", "at_command", "attribution_snapshot", "branch_checkpoint",
    "custom_title", "file_history_snapshot", "goal_state", "goal_turn_end", "parent_session",
    "rewind", "session_approval_mode", "session_artifact_event", "session_artifact_snapshot",
    "session_execution_engine", "session_model", "session_notes", "session_source",
    "session_sources_snapshot", "slash_command", "turn_result", "ui_telemetry",
    "user_text_elements",
}  # fmt: skip
"""Subtypes of Qwen Code's system lines that the model never sees."""


class QwenCodeSource(FileSource):
    """A reader of a Qwen Code session file, or of a folder such as ~/.qwen/projects.

    The working folder's name is the project.
    """

    name = "qwen_code"
    looks_like = (
        "Qwen Code sessions: lines of type user, assistant or tool_result with sessionId and "
        "message.parts"
    )
    merges = True

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return (
            record.get("type") in _QWEN_LINES
            and "sessionId" in record
            and isinstance(section(record, "message").get("parts"), list)
        )

    @classmethod
    def reads(cls, record: Record) -> bool:
        return isinstance(record.get("type"), str)

    def loses(self, record: Record) -> bool:
        return says_something(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        session = text(record.get("sessionId"))
        if session and record.get("isSidechain") is True:
            session = f"{session}:{text(record.get('agentId')) or 'side'}"
        return (
            Ident(session, session, folder_name(record.get("cwd")), self.name.replace("_", "-"))
            if session
            else None
        )

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        lines = [record for _, record in records]
        way, missing = branch(lines, "uuid", "parentUuid")
        *before, last = _views(way)
        started = next(
            (
                section(line, "systemPayload")
                for line in lines
                if line.get("subtype") == "parent_session"
            ),
            {},
        )
        session_fields = {
            "history": [*last, *[mark_unread("missing line")] * missing, *_unknown(lines)],
            "skipped": {"other_branch": len(lines) - len(way)},
            "context": chosen(next((line for line in lines if "cwd" in line), {}), _CONTEXT),
            "usage": [section(line, "usageMetadata") for line in way],
            "times": [line.get("timestamp") for line in way],
            "models": [line.get("model") for line in way],
            "parent_session_id": session_id.rpartition(":")[0]
            or text(started.get("parentSessionId")),
        }
        return stretches_of(session_id, [{"history": view} for view in before], session_fields)


def _views(way: list[Record]) -> list[list[object]]:
    """Return the messages that the model saw before each compression, and at the end."""
    views: list[list[object]] = []
    view: list[object] = []
    for line in way:
        kind, subtype, payload = (
            text(line.get("type")) or "none",
            text(line.get("subtype")),
            section(line, "systemPayload"),
        )
        if kind in _QWEN_LINES and isinstance(line.get("message"), dict):
            message = line["message"] | {"role": "assistant" if kind == "assistant" else "user"}
            view.append(
                message | {"weight": 0}
                if kind == "assistant" and line.get("forkedFrom")
                else message
            )
        elif subtype == "chat_compression":
            if any(
                isinstance(earlier, dict)
                and earlier.get("role") == "assistant"
                and earlier.get("weight") != 0
                for earlier in view
            ):
                views.append(view)
            view = _inherited(payload.get("compressedHistory"))
        elif subtype == "agent_bootstrap":
            view += _inherited(payload.get("history"))
    return [*views, view]


def _unknown(lines: list[Record]) -> list[object]:
    """Return a damage item for each line that has content but an unknown type."""
    unread_items: list[object] = []
    for line in lines:
        kind, subtype = text(line.get("type")) or "none", text(line.get("subtype"))
        is_read = (kind in _QWEN_LINES and isinstance(line.get("message"), dict)) or subtype in (
            "chat_compression",
            "agent_bootstrap",
        )
        if (
            not is_read
            and not (kind == "system" and subtype in _BOOKKEEPING)
            and says_something(line)
        ):
            unread_items.append(mark_unread(f"line {subtype or kind}"))
    return unread_items


def _inherited(contents: object) -> list[object]:
    """Return the messages with which the model's context began.

    These messages are not trained in this session.
    """
    if not isinstance(contents, list):
        return [mark_unread("compressed history")]
    return [{**section(part), "weight": 0} for part in contents]


class IFlowSource(FileSource):
    """A reader of an iFlow session file, or of a folder such as ~/.iflow/projects.

    The working folder's name is the project.
    """

    name = "iflow"
    looks_like = (
        "iFlow sessions: lines of type user or assistant whose sessionId begins with session-"
    )

    @classmethod
    def accepts(cls, record: Record) -> bool:
        is_spoken = record.get("type") in ("user", "assistant") and isinstance(
            record.get("message"), dict
        )
        return is_spoken and IFLOW_SESSION.fullmatch(str(record.get("sessionId"))) is not None

    @classmethod
    def reads(cls, record: Record) -> bool:
        return isinstance(record.get("type"), str)

    def loses(self, record: Record) -> bool:
        return says_something(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        session = text(record.get("sessionId"))
        return (
            Ident(session, session, folder_name(record.get("cwd")), self.name) if session else None
        )

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        lines = [record for _, record in records]
        yield (
            session_id,
            {
                "history": _iflow_history(lines),
                "context": chosen(next((line for line in lines if "cwd" in line), {}), _CONTEXT),
                "usage": [section(line, "message", "usage") for line in lines],
                "times": [line.get("timestamp") for line in lines],
                "models": [section(line, "message").get("model") for line in lines],
            },
        )


def _iflow_history(lines: list[Record]) -> list[object]:
    """Return the messages of iFlow lines in the order of the file.

    If several lines repeat a call, the first line counts.
    """
    history: list[object] = []
    calls: set[str] = set()
    for line in lines:
        kind, message = text(line.get("type")) or "none", section(line, "message")
        if kind not in ("user", "assistant"):
            if says_something(line):
                history.append(mark_unread(f"line {kind}"))
            continue
        content = message.get("content")
        if kind == "assistant" and isinstance(content, list):
            new = [block for block in content if not _is_repeated(block, calls)]
            calls |= {
                str(block.get("id"))
                for block in objects(content)
                if block.get("type") == "tool_use"
            }
            if not new:
                continue
            before = section(history[-1]) if history else {}
            if before.get("role") == "assistant":
                before["content"] += new  # the next line of the same streamed answer
                continue
            content = new
        elif isinstance(content, list):
            content = [_with_output(block) for block in content]
        history.append(
            {
                "role": kind,
                "content": content if isinstance(content, str | list) else elements(content),
            }
        )
    return history


def _is_repeated(block: object, calls: set[str]) -> bool:
    return (
        isinstance(block, dict)
        and block.get("type") == "tool_use"
        and str(block.get("id")) in calls
    )


def _with_output(block: Any) -> Any:
    """Replace the content of a tool result by the tool's output from iFlow's record."""
    answered = section(block, "content", "responseParts", "functionResponse")
    if not answered:
        return block
    response = answered.get("response")
    output = section(response).get("output")
    is_plain = isinstance(output, str) and len(section(response)) == 1
    return block | {"content": output if is_plain else response}
