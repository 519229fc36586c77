"""Types of lines in a Claude Code session: text for the model, bookkeeping, or unknown.

The lists name the types that Claude Code is known to write. A line of any other type is bookkeeping
only if it contains no text, no tool call and no tool result. Otherwise, the line counts as damage
of its session.
"""

from collections.abc import Iterable

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.agents.claude_attachments import attached_media, attached_text
from agent_pipeline.sources.agents.lines import says_something, words_in
from agent_pipeline.sources.formats.fields import Record, objects, section, text

SPOKEN = ("user", "assistant")

_BOOKKEEPING = {
    "agent-color", "agent-name", "agent-setting", "ai-title", "attribution-snapshot",
    "bridge-session", "custom-title", "file-history-snapshot", "fork-context-ref",
    "isolation-latch", "last-prompt", "mode", "permission-mode", "pr-link", "progress", "relocated",
    "speculation-accept", "summary", "tag", "task-summary", "worktree-state",
}  # fmt: skip
"""Types of lines that the model never sees. A `summary` line is the title of a conversation."""

_READ_ELSEWHERE = {"queue-operation", "content-replacement"}

_SYSTEM_NOTES = {
    "agents_killed", "api_error", "api_metrics", "away_summary", "bridge_status",
    "compact_boundary", "file_snapshot", "informational", "memory_saved", "permission_retry",
    "scheduled_task_fire", "stop_hook_summary", "thinking", "turn_duration",
}  # fmt: skip
"""Subtypes of `system` lines that Claude Code shows only on the screen."""

_REMINDERS = {
    "agent_listing_delta", "agent_mention", "already_read_file", "auto_mode", "auto_mode_exit",
    "budget_usd", "command_permissions", "companion_intro", "compaction_reminder",
    "context_efficiency", "critical_system_reminder", "current_session_memory", "date_change",
    "deferred_tools_delta", "dynamic_skill", "hook_cancelled", "hook_error_during_execution",
    "hook_non_blocking_error", "hook_permission_decision", "hook_success", "hook_system_message",
    "max_turns_reached", "mcp_instructions_delta", "model", "nested_memory", "output_style",
    "output_token_usage", "plan_mode", "plan_mode_exit", "plan_mode_reentry", "skill_discovery",
    "skill_listing", "structured_output", "task_reminder", "todo", "todo_reminder", "token_usage",
    "ultrathink_effort", "verify_plan_reminder",
}  # fmt: skip
"""Kinds of attachments that the session leaves out. The model never sees them, or they repeat
instructions and tool lists (the system prompt, CLAUDE.md) that Claude Code does not record either.
"""

_INTERRUPTED = "[Request interrupted by user"


def is_boundary(line: Record) -> bool:
    """Return whether a line marks a point at which the conversation was compacted.

    After a compaction, the model no longer sees the messages before it.
    """
    return line.get("type") == "system" and line.get("subtype") == "compact_boundary"


def is_shown(line: Record) -> bool:
    """Return whether a line is a step of the conversation.

    A line of the conversation counts even if its content cannot be read.
    """
    kind = line.get("type")
    if kind == "system":
        return is_boundary(line) or message_of(line) is not None
    return kind in SPOKEN or (kind == "attachment" and message_of(line) is not None)


def unknown_line(line: Record) -> str | None:
    """Return the type of a line whose content cannot be interpreted, or None for any other line."""
    kind = text(line.get("type")) or "none"
    if kind in _BOOKKEEPING or kind in _READ_ELSEWHERE or kind in (*SPOKEN, "system", "attachment"):
        return None
    return f"line {kind}" if says_something(line) else None


def message_of(line: Record) -> object:
    """Return the message that the model sees for a system line or an attachment.

    Returns:
        A user message, an item of damage for unknown content, or None for bookkeeping.
    """
    if line.get("type") == "system":
        return _system_message(line)
    attachment = section(line, "attachment")
    kind = text(attachment.get("type")) or "none"
    if kind == "queued_command":
        return {"role": "user", "content": attachment.get("prompt")}
    if kind in ("file", "mcp_resource") and (media := attached_media(attachment)):
        return {"role": "user", "content": media}
    if shown := attached_text(kind, attachment):
        return {"role": "user", "content": f"<system-reminder>\n{shown}\n</system-reminder>"}
    if kind in _REMINDERS or not says_something(attachment):
        return None
    return mark_unread(f"attachment {kind}")


def _system_message(line: Record) -> object:
    kind = text(line.get("subtype"))
    if kind == "local_command":  # the model sees the output of a command that the user typed
        return {"role": "user", "content": line.get("content")}
    if kind is None or kind in _SYSTEM_NOTES or not says_something(line):
        return None
    return mark_unread(f"system {kind}")


def is_interruption(message: Record) -> bool:
    """Return whether a message is Claude Code's note that the user stopped the agent."""
    content = message.get("content")
    texts = (
        [words_in([block]) for block in objects(content)]
        if isinstance(content, list)
        else [words_in(content)]
    )
    return any(words.lstrip().startswith(_INTERRUPTED) for words in texts)


def lost_in_queue(lines: list[Record]) -> int:
    """Count the texts that the user typed while the agent worked and that no message contains.

    `queue-operation` lines record a typed text (`enqueue`) and what happened to it: Claude Code
    gave it to the model (`dequeue`, `remove`), or the user took it back (`popAll`). A text that was
    given to the model is in a user line or in an attachment. A text that was taken back, or typed
    after the agent's last answer, is not lost.
    """
    queue: list[tuple[int, str]] = []
    delivered: list[tuple[int, str]] = []
    last_answer = max(
        (line_index for line_index, line in enumerate(lines) if line.get("type") == "assistant"),
        default=-1,
    )
    for line_index, line in enumerate(lines):
        operation = line.get("operation") if line.get("type") == "queue-operation" else None
        if operation == "enqueue":
            queue.append((line_index, words_in(line.get("content")).strip()))
        elif operation == "popAll":
            queue = []
        elif operation is not None and queue:
            delivered.append(queue.pop(0))
    texts_by_line = {
        line_index: f"\n{words}\n"
        for line_index, line in enumerate(lines)
        if (words := _said_by_user(line))
    }
    return sum(
        not _take(texts_by_line, line_index, words)
        for line_index, words in sorted(delivered + queue)
        if line_index < last_answer
    )


def _said_by_user(line: Record) -> str:
    if line.get("type") == "user":
        return words_in(section(line, "message").get("content"))
    attachment = section(line, "attachment")
    return words_in(attachment.get("prompt")) if attachment.get("type") == "queued_command" else ""


def _take(texts_by_line: dict[int, str], after: int, words: str) -> bool:
    """Remove a queued text from the later user lines. Return False if no later line has it.

    Claude Code may give several queued texts as one message, each on separate lines. For a command
    (`/review this`), the message contains only the command's name as it was typed.
    """
    sought = words.split()[0] if words.startswith("/") else f"\n{words.removeprefix('!').strip()}\n"
    if not sought.strip():
        return True
    for line_index, text_said in texts_by_line.items():
        if line_index > after and sought in text_said:
            texts_by_line[line_index] = text_said.replace(sought, "\n", 1)
            return True
    return words.startswith("!") and any(
        line_index > after and words[1:].strip() in text
        for line_index, text in texts_by_line.items()
    )


def replacements_in(lines: Iterable[Record]) -> tuple[dict[str, str], int]:
    """Return the short texts that the model saw instead of long tool results, by tool call id.

    Returns:
        The texts, and the number of replacements that could not be read.
    """
    texts: dict[str, str] = {}
    strange = 0
    for line in lines:
        if line.get("type") != "content-replacement":
            continue
        replacements = line.get("replacements")
        for record in replacements if isinstance(replacements, list) else [None]:
            call, shown = text(section(record).get("toolUseId")), section(record).get("replacement")
            if call and isinstance(shown, str):
                texts[call] = shown
            else:
                strange += 1
    return texts, strange
