"""A partition of a store as canonical sessions: what every source needs after its reader, in one pass each.

System prompt and tools from the settings where the source has none, tool schemas inferred from the calls where nobody has any, the
task key. Two passes over the store when schemas must be inferred: the first sees only calls.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent_pipeline.errors import SettingsError
from agent_pipeline.traces.partitions import PartitionKey
from agent_pipeline.traces.session import Session, Tool, ToolsOrigin, canonical_json, sha256_of
from agent_pipeline.traces.sources.base import TraceSource
from agent_pipeline.traces.tools import ToolSchemas


@dataclass(frozen=True)
class ReadingOptions:
    """What the settings say about one agent's sessions.

    `task_pattern` is a regular expression searched in the session id; its groups (or the whole match) name the task. `task_field` is a key
    of the session's context. Without either, and without a task id from the source, the first user message is the task.
    """

    system_prompt: str = ""
    tools: tuple[Tool, ...] = field(default=())
    task_pattern: str = ""
    task_field: str = ""


def read_sessions(source: TraceSource, key: PartitionKey, options: ReadingOptions) -> Iterator[Session]:
    """Every session of the partition, complete; raises what `TraceSource.sessions` raises."""
    pattern = _compiled(options.task_pattern)
    tools, origin = list(options.tools), "settings"
    if not tools:
        tools, origin = _inferred(source, key), "inferred"
    unmatched = count = 0
    for session in source.sessions(key):
        count += 1
        unmatched += pattern is not None and not _named(pattern, session.session_id)
        if not session.tools and tools:
            session.tools, session.tools_origin = tools, _origin(origin)
        if options.system_prompt and not any(message["role"] == "system" for message in session.messages):
            session.messages = [{"role": "system", "content": options.system_prompt}, *session.messages]
        session.task_key = task_key(session, pattern, options.task_field)
        yield session
    if unmatched:
        source.notes.append(f"task_pattern {options.task_pattern!r} names no task in {unmatched} of the {count} session ids of {key}.")


def task_key(session: Session, pattern: re.Pattern[str] | None, context_field: str) -> str:
    """The task that a session is a trial of: what the split belongs to.

    In order: the pattern on the session id, the named field of its context, the source's task id, the first user message with case and
    white space folded (as its sha256, so that no text of a conversation travels in a key). A session with none of these is its own task.
    """
    if pattern is not None and (named := _named(pattern, session.session_id)):
        return named
    value = session.context.get(context_field) if context_field else None
    if value is not None and value != "":
        return value if isinstance(value, str) else canonical_json(value)
    if session.task_id:
        return session.task_id
    asked = next((message["content"] for message in session.messages if message["role"] == "user"), None)
    return f"text:{sha256_of(' '.join(asked.lower().split()))[:16]}" if asked else f"session:{session.session_id}"


_OF_THE_STORE = [name for name in Session.__struct_fields__ if name not in ("messages", "tools", "task_key")]
"""What a session is beside its content; the task key follows from it and from settings."""


def fingerprint(sessions: Iterator[Session]) -> tuple[str, int]:
    """A store partition's data version and its number of sessions.

    The version changes when, and only when, a session's content, state or verdict does: it is the sha256 of all that the reader takes from
    the store, in the order of session ids; a vacuumed, copied or touched file keeps its version.
    """
    parts, count = [], 0
    for session in sessions:
        parts.append(sha256_of([session.content_sha256(), {name: getattr(session, name) for name in _OF_THE_STORE}]))
        count += 1
    return sha256_of(parts), count


def _named(pattern: re.Pattern[str], session_id: str) -> str:
    """The task that a pattern finds in a session id; empty where it finds none."""
    match = pattern.search(session_id)
    if match is None:
        return ""
    return "-".join(group for group in match.groups() if group) if match.re.groups else match.group()


def _inferred(source: TraceSource, key: PartitionKey) -> list[Tool]:
    schemas = ToolSchemas()
    for session in source.sessions(key):
        if not session.tools:
            schemas.add(session.messages)
    return schemas.tools()


def _origin(text: str) -> ToolsOrigin:
    return "settings" if text == "settings" else "inferred"


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        raise SettingsError(f"task_pattern {pattern!r} is not a regular expression ({error}): mend it in pipeline.toml.") from error
