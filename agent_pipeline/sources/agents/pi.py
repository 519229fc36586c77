"""Sessions of pi, and files in the Hub's Session Trace Simple Format (STS).

A file is a header line, then one line per message. pi's entries form a tree by `parentId`; the
branch that ends in the last entry is read. The messages before a compaction become a separate
session (`ID:before-compaction-1`). Entries that a forked session copied from its parent stay as
context and are not trained again. Aborted answers are left out and counted, because pi does not
show them to the model again.
"""

from pathlib import Path
from typing import Any

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sessions.session_trace import HARNESS
from agent_pipeline.sources.agents.codex import folder_name
from agent_pipeline.sources.agents.lines import branch, says_something, stretches_of
from agent_pipeline.sources.base import add_note
from agent_pipeline.sources.formats.fields import Record, chosen, objects, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_ROLES = (
    "user",
    "assistant",
    "system",
    "tool",
    "toolResult",
    "bashExecution",
    "custom",
    "branchSummary",
    "compactionSummary",
)
_BOOKKEEPING = {
    "child_usage_attributed",
    "custom",
    "label",
    "model_change",
    "session_info",
    "thinking_level_change",
}
_SHOWN = {"message", "custom_message", "branch_summary", "compaction"}
_SUMMARY = (
    "The conversation history before this point was compacted into the following "
    "summary:\n\n<summary>\n{}\n</summary>"
)
_BRANCH = (
    "The following is a summary of a branch that this conversation came back "
    "from:\n\n<summary>\n{}</summary>"
)


class PiSource(FileSource):
    """A reader of a session file of pi, or of a folder such as ~/.pi/agent/sessions.

    The working folder's name is the project.
    """

    name = "pi"
    looks_like = (
        "sessions of pi or of the Hub's trace format: a line of type session, then lines of type "
        "message"
    )

    @classmethod
    def accepts(cls, record: Record) -> bool:
        if record.get("type") == "session":
            return isinstance(record.get("id"), str) and not {
                "harness",
                "version",
                "cwd",
            }.isdisjoint(record)
        return record.get("type") == "message" and section(record, "message").get("role") in _ROLES

    @classmethod
    def reads(cls, record: Record) -> bool:
        return isinstance(record.get("type"), str)

    def loses(self, record: Record) -> bool:
        return says_something(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        head = record if record.get("type") == "session" else {}
        trace_head = head if head.get("harness") == HARNESS else {}
        agent = (
            text(trace_head.get("agent"))
            or text(head.get("harness"))
            or (self.name if head else None)
        )
        return Ident(
            str(location.path),
            text(head.get("id")),
            text(trace_head.get("project")) or folder_name(head.get("cwd")),
            agent,
        )

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        head = next((record for _, record in records if record.get("type") == "session"), {})
        entries = [record for _, record in records if record.get("type") != "session"]
        way, missing = branch(entries)
        copied = self._copied(session_id, head, entries)
        *before, last = _views(way, copied)
        messages = [section(entry, "message") for entry in way]
        used = [section(message, "usage") for message in messages]
        unknown = [
            mark_unread(f"line {text(entry.get('type'))}")
            for entry in entries
            if _is_unknown(entry)
        ]
        history = [*last, *[mark_unread("missing line")] * missing, *unknown]
        models = [message.get("model") for message in messages]
        session_fields = {
            "history": history,
            "damage": {"cut_message": sum(map(_was_given_up, messages))},
            "skipped": {"other_branch": len(entries) - len(way)},
            "context": chosen(head, ("cwd", "name", "provider")),
            "usage": [
                {name: count for name, count in usage.items() if name != "cost"} for usage in used
            ],
            "costs": [section(usage, "cost").get("total") for usage in used],
            "times": [head.get("timestamp"), *(_time(entry) for entry in way)],
            "models": models,
            "parent_session_id": _parent(head),
        }
        if head.get("harness") == HARNESS:  # `agent-pipeline play` wrote it
            session_fields |= chosen(head, ("task_id", "trial", "judgment", "error"))
        return stretches_of(
            session_id, [{"history": view, "models": models} for view in before], session_fields
        )

    def _copied(self, session_id: str, head: Record, entries: list[Record]) -> set[str]:
        """Return the ids of the entries that a forked session copied from its parent."""
        parent = _parent(head)
        if parent is None:
            return set()
        locations = [
            locations
            for sessions in self._index().values()
            for name, locations in sessions.items()
            if name == parent
        ]
        if not locations or parent == session_id:
            add_note(
                self.notes,
                f"{self.path}: {session_id} was forked from {parent}, which is not in this store; "
                f"the turns of {parent} are trained in {session_id}.",
            )
            return set()
        known = {
            text(record.get("id")): record.get("message")
            for record in (self._record(location) for location in locations[0])
        }
        return {
            entry_id
            for entry in entries
            if (entry_id := text(entry.get("id")))
            and entry_id in known
            and known[entry_id] == entry.get("message")
        }


def _parent(head: Record) -> str | None:
    """Return the id of the session that a session was forked from.

    The id is the end of the file name in `parentSession`.
    """
    path = text(head.get("parentSession"))
    return Path(path.replace("\\", "/")).stem.rpartition("_")[2] if path else None


def _time(entry: Record) -> object:
    return entry.get("timestamp") or section(entry, "message").get("timestamp")


def _is_unknown(entry: Record) -> bool:
    return text(entry.get("type")) not in _SHOWN | _BOOKKEEPING and says_something(entry)


def _views(way: list[Record], copied: set[str]) -> list[list[object]]:
    """Return the messages that the model saw before each compaction and at the end.

    Messages that an earlier view contains are not trained again.
    """
    views: list[list[object]] = []
    entries: list[Record] = []
    view: list[object] = []
    for entry in way:
        if entry.get("type") != "compaction":
            entries.append(entry)
            view += _messages(entry, text(entry.get("id")) in copied)
            continue
        if any(_is_own_answer(message) for message in view):
            views.append(view)
        view = [{"role": "user", "content": _SUMMARY.format(entry.get("summary"))}]
        if isinstance(entry.get("retainedTail"), list):
            view += [_untrained(_message(message)) for message in objects(entry["retainedTail"])]
        else:
            first = next(
                (
                    entry_index
                    for entry_index, earlier in enumerate(entries)
                    if earlier.get("id") == entry.get("firstKeptEntryId")
                ),
                None,
            )
            view += (
                [mark_unread("compaction")]
                if first is None
                else [
                    message for earlier in entries[first:] for message in _messages(earlier, True)
                ]
            )
    return [*views, view]


def _is_own_answer(message: object) -> bool:
    return (
        isinstance(message, dict)
        and message.get("role") == "assistant"
        and message.get("weight") != 0
    )


def _was_given_up(message: Record) -> bool:
    """Return whether the user or an error stopped the model's answer.

    pi keeps such an answer in the file and does not show it to the model again.
    """
    return message.get("role") == "assistant" and message.get("stopReason") in ("aborted", "error")


def _messages(entry: Record, copied: bool) -> list[Any]:
    kind = entry.get("type")
    if kind == "message":
        message = entry.get("message")
        hidden = (
            section(message).get("role") == "bashExecution"
            and section(message).get("excludeFromContext") is True
        )
        if hidden or _was_given_up(section(message)):
            return []
        chat_message = (
            _message(section(message)) if isinstance(message, dict) else mark_unread("line message")
        )
        return [_untrained(chat_message) if copied else chat_message]
    if kind == "custom_message":
        return [{"role": "user", "content": entry.get("content")}]
    if kind == "branch_summary":
        return [{"role": "user", "content": _BRANCH.format(entry.get("summary"))}]
    return []


def _message(message: Record) -> object:
    """Convert a message of pi into a chat message."""
    role = message.get("role")
    if role == "bashExecution":  # a command that the user typed
        shown = f"```\n{message['output']}\n```" if message.get("output") else "(no output)"
        return {"role": "user", "content": f"Ran `{message.get('command')}`\n{shown}"}
    if role == "custom":
        return {"role": "user", "content": message.get("content")}
    if role in ("branchSummary", "compactionSummary"):
        form = _BRANCH if role == "branchSummary" else _SUMMARY
        return {"role": "user", "content": form.format(message.get("summary"))}
    names = {
        "toolCalls": "tool_calls",
        "toolCallId": "tool_call_id",
        "reasoningContent": "reasoning_content",
    }
    return {names.get(name, name): value for name, value in message.items()}


def _untrained(message: object) -> object:
    return (
        message | {"weight": 0}
        if isinstance(message, dict) and message.get("role") == "assistant"
        else message
    )
