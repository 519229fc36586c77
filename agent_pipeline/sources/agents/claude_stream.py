"""The output of `claude -p --output-format stream-json`: messages of Claude's Agent SDK.

claude-code-action writes an execution file of the same form. The messages are JSON lines or one
list. A stream contains the user's request only if Claude Code was told to repeat it
(`--replay-user-messages`, or input as `stream-json`). If the request is missing, no answer can be
trained, and the session counts as damaged.
"""

from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from agent_pipeline.sessions.chat import read_text
from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.agents.claude_lines import is_interruption
from agent_pipeline.sources.agents.codex import folder_name
from agent_pipeline.sources.agents.lines import cut_last_turn, has_words, says_something, words_in
from agent_pipeline.sources.base import add_note
from agent_pipeline.sources.formats.fields import Record, chosen, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_SPOKEN = ("user", "assistant")
_TYPES = (*_SPOKEN, "system", "result")
_BOOKKEEPING = {
    "auth_status", "control_request", "control_response", "keep_alive", "prompt_suggestion",
    "rate_limit_event", "stream_event", "tool_progress", "tool_use_summary",
}  # fmt: skip
"""Types of messages that only the client sees. A `stream_event` is a piece of a later message."""
_NOTES = {
    "api_retry", "compact_boundary", "files_persisted", "hook_progress", "hook_response",
    "hook_started", "init", "session_state_changed", "status", "task_progress", "task_started",
    "task_updated",
}  # fmt: skip
_MISSING_REQUEST = mark_unread("missing request")
_SUMMARY = "This session is being continued"


class ClaudeStreamSource(FileSource):
    """A reader of the stream-json output of `claude -p`, of an execution file, or of a folder.

    The working folder's name is the project.
    """

    name = "claude_stream"
    looks_like = (
        "messages of Claude's Agent SDK: type, session_id and message, as stream-json or a list"
    )
    merges = True

    @classmethod
    def accepts(cls, record: Record) -> bool:
        if "session_id" not in record or record.get("type") not in _TYPES:
            return False
        if record["type"] in _SPOKEN:
            return isinstance(record.get("message"), dict)
        return isinstance(record.get("subtype"), str)

    @classmethod
    def reads(cls, record: Record) -> bool:
        return isinstance(record.get("type"), str)

    def loses(self, record: Record) -> bool:
        return text(record.get("type")) not in _BOOKKEEPING and says_something(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        session = text(record.get("session_id"))
        return (
            Ident(session, session, folder_name(record.get("cwd")), "claude-code")
            if session
            else None
        )

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        chains: dict[str | None, list[Record]] = {None: []}
        for _, line in records:
            chains.setdefault(text(line.get("parent_tool_use_id")), []).append(line)
        main = chains.pop(None)
        conversations = list(_conversations(main, session_id, None))
        for call, lines in chains.items():
            conversations += _conversations(lines, f"{session_id}:{call}", session_id)
        if any(
            _MISSING_REQUEST in session_fields["history"] for _, session_fields in conversations
        ):
            sentence = (
                f"{self.path}: {session_id} lacks the user's request, so it is damaged (unread)"
            )
            add_note(
                self.notes,
                f"{sentence}. Run claude with --replay-user-messages, or read ~/.claude/projects.",
            )
        return sorted(conversations, key=itemgetter(0))


def _models(lines: list[Record]) -> list[object]:
    return [section(line, "message").get("model") for line in lines if not _is_synthetic(line)]


def _conversations(
    lines: list[Record], name: str, parent: str | None
) -> Iterator[tuple[str, Record]]:
    """Yield the fields of a chain of lines, and of each stretch before a compaction."""
    stretches: list[list[Record]] = [[]]
    for line in lines:
        if line.get("type") == "system" and line.get("subtype") == "compact_boundary":
            stretches.append([])
        stretches[-1].append(line)
    *before, last = stretches
    head = next((line for line in lines if line.get("subtype") == "init"), {})
    results = [line for line in lines if line.get("type") == "result"]
    shared = {
        "context": chosen(head, ("cwd", "permissionMode", "claude_code_version")),
        "model_id": head.get("model"),
    }
    for stretch_number, stretch in enumerate(before, 1):
        session_fields = {
            "history": _history(stretch),
            "parent_session_id": parent or name,
            "ends_on_tool": True,
            "models": _models(stretch),
        }
        yield f"{name}:before-compaction-{stretch_number}", shared | session_fields
    history = _history(last)
    ended = results[-1] if results else {}
    if (
        ended.get("subtype") == "success"
        and not _says_result(history, ended.get("result"))
        and "structured_output" not in ended
    ):
        history.append(mark_unread("result"))
    if _is_limit(ended.get("stop_reason")):
        cut_last_turn(history)
    session_fields = {
        "history": history,
        "skipped": Counter(
            f"line:{text(line.get('type'))}" for line in last if line.get("type") in _BOOKKEEPING
        ),
        "usage": [result.get("usage") for result in results],
        "costs": [ended.get("total_cost_usd")],
        "models": _models(last),
        "parent_session_id": parent,
        "error": (text(ended.get("result")) or "the run failed")
        if ended.get("subtype") == "error_during_execution"
        else None,
    }
    if (last and _is_synthetic(last[-1])) or (
        ended.get("is_error") is True and ended.get("subtype") == "success"
    ):
        session_fields["error"] = text(ended.get("result")) or "the API gave an error"
    yield name, shared | {key: value for key, value in session_fields.items() if value is not None}


def _is_limit(reason: object) -> bool:
    return reason in ("max_tokens", "model_context_window_exceeded", "refusal")


def _is_synthetic(line: Record) -> bool:
    return section(line, "message").get("model") == "<synthetic>" or line.get("error") is not None


def _history(lines: list[Record]) -> list[object]:
    """Return the messages of stream lines. The parts of an API message are joined.

    Lines that cannot be read become items of damage.
    """
    history: list[Any] = []
    whole: dict[str, Record] = {}
    compacted = bool(lines) and lines[0].get("subtype") == "compact_boundary"
    has_request = False
    for line in lines:
        kind, message = text(line.get("type")) or "none", section(line, "message")
        name = text(message.get("id"))
        if kind in _SPOKEN and compacted:
            if not words_in(message.get("content")).startswith(_SUMMARY):
                history.append(mark_unread("compaction"))
            compacted = False
        if (
            kind == "assistant" and not has_request
        ):  # the agent answers before any request is recorded
            history.append(_MISSING_REQUEST)
        has_request = kind != "result" and (
            has_request or kind == "assistant" or (kind == "user" and has_words(message))
        )
        if kind == "user":
            if is_interruption(message):
                cut_last_turn(history)
            history.append(message | {"role": "user"})
        elif kind == "assistant" and _is_synthetic(line):
            if history and section(history[-1]).get("role") == "assistant":
                cut_last_turn(history)
        elif kind == "assistant" and name in whole:
            parts = _parts(message)
            whole[name]["content"] += [part for part in parts if part not in whole[name]["content"]]
            whole[name] |= (
                {"stop_reason": message["stop_reason"]}
                if message.get("stop_reason") is not None
                else {}
            )
        elif kind == "assistant":
            history.append(message | {"role": "assistant", "content": list(_parts(message))})
            if name is not None:
                whole[name] = history[-1]
        elif _is_unknown(line, kind):
            history.append(mark_unread(f"line {text(line.get('subtype')) or kind}"))
    return history


def _parts(message: Record) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else [] if content is None else [content]


def _is_unknown(line: Record, kind: str) -> bool:
    if kind == "result" or kind in _BOOKKEEPING:
        return False
    return not (kind == "system" and text(line.get("subtype")) in _NOTES) and says_something(line)


def _says_result(history: list[object], result: object) -> bool:
    """Return whether an assistant message contains the final result of the run.

    If none does, a message is missing from the stream.
    """
    if not isinstance(result, str) or not result.strip():
        return True
    texts = (
        read_text(message.get("content"))[0]
        for message in history
        if isinstance(message, dict) and message.get("role") == "assistant"
    )
    plain = " ".join(result.split())
    return any(plain in " ".join(words.split()) for words in texts)
