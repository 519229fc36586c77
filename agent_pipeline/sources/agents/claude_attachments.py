"""Texts that Claude Code attaches to a user message.

Claude Code wraps these texts in a reminder for the model. It records the attachment, but not the
reminder. If Claude Code's wording differs between versions, this module uses its own wording.
"""

from typing import Any

from agent_pipeline.sources.formats.fields import Record, objects, section, text

_SIGNS = {"Error": "✘", "Warning": "⚠", "Info": "ℹ", "Hint": "★"}


def attached_text(kind: str, attachment: Record) -> str | None:
    """Return the text of an attachment, or None.

    The result is None if another function reads the attachment, if it has no content, or if its
    kind is unknown.
    """
    name = text(attachment.get("filename")) or text(attachment.get("path")) or "a file"
    content = attachment.get("content")
    if kind == "file" and section(content).get("type") == "text":
        whole = section(content, "file").get("content")
        return f"{name}:\n{whole}" if isinstance(whole, str) else None
    if kind == "edited_text_file" and isinstance(attachment.get("snippet"), str):
        return f"{name} was changed by the user or by a tool:\n{attachment['snippet']}"
    if kind in ("directory", "selected_lines_in_ide") and isinstance(content, str):
        return f"{name}:\n{content}"
    if kind == "opened_file_in_ide":
        return f"The user opened {name}."
    if kind == "hook_blocking_error":
        return text(section(attachment, "blockingError").get("blockingError"))
    is_context = kind == "hook_success" and attachment.get("hookEvent") in (
        "SessionStart",
        "UserPromptSubmit",
    )
    if kind == "hook_additional_context" or (is_context and content):
        return _joined(content if isinstance(content, list) else [content])
    reader = _READERS.get(kind)
    return reader(attachment) if reader else None


def attached_media(attachment: Record) -> list[object]:
    """Return the message parts of an attached picture or document.

    The list is empty if the attachment is neither a picture nor a document.
    """
    content = (
        section(attachment.get("content")) if isinstance(attachment.get("content"), dict) else {}
    )
    if content.get("type") in ("image", "pdf"):
        return [{"type": "image" if content["type"] == "image" else "file"}]
    return [{"type": "file"} for part in objects(content.get("contents")) if part.get("blob")]


def _joined(parts: list[Any], seam: str = "\n") -> str | None:
    """Join the texts of a list into one text.

    Return None if the list is empty or contains an element that is not a text.
    """
    texts = [part for part in parts if isinstance(part, str)]
    return seam.join(texts) if parts and len(texts) == len(parts) else None


def _diagnostics(attachment: Record) -> str | None:
    """Return the problems that an editor found in files, listed as Claude Code lists them."""
    files = [_file_with_diagnostics(file) for file in objects(attachment.get("files"))]
    listed = _joined(files, "\n\n")
    return (
        listed
        and f"<new-diagnostics>The following new diagnostic issues were "
        f"detected:\n\n{listed}</new-diagnostics>"
    )


def _file_with_diagnostics(file: Record) -> str | None:
    lines = [_diagnostic(diagnostic) for diagnostic in objects(file.get("diagnostics"))]
    name = (text(file.get("uri")) or "a file").rpartition("/")[2]
    return f"{name}:\n{_joined(lines)}" if _joined(lines) is not None else None


def _diagnostic(diagnostic: Record) -> str | None:
    if not isinstance(diagnostic.get("message"), str):
        return None
    start = section(diagnostic, "range", "start")
    position = [
        index + 1 for name in ("line", "character") if isinstance(index := start.get(name), int)
    ]
    where = f"[Line {position[0]}:{position[1]}] " if len(position) == 2 else ""
    code, source = diagnostic.get("code"), diagnostic.get("source")
    more = (f" [{code}]" if code else "") + (f" ({source})" if source else "")
    return (
        f"  {_SIGNS.get(str(diagnostic.get('severity')), '•')} {where}{diagnostic['message']}{more}"
    )


def _plan(attachment: Record) -> str | None:
    plan = text(attachment.get("planContent"))
    return (
        plan
        and f"A plan file exists from plan mode at: {attachment.get('planFilePath')}\n\nPlan "
        f"contents:\n\n{plan}"
    )


def _hook_response(attachment: Record) -> str | None:
    response = section(attachment, "response")
    texts = (
        response.get("systemMessage"),
        section(response, "hookSpecificOutput").get("additionalContext"),
    )
    return _joined([words for words in texts if words])


def _skills(attachment: Record) -> str | None:
    skills = objects(attachment.get("skills"))
    listed = _joined(
        [_titled("Skill", skill, skill.get("content")) for skill in skills], "\n\n---\n\n"
    )
    return listed and f"The following skills were invoked in this session:\n\n{listed}"


def _memories(attachment: Record) -> str | None:
    return _joined(
        [
            _titled("Memory", memory, memory.get("content"))
            for memory in objects(attachment.get("memories"))
        ],
        "\n\n",
    )


def _titled(what: str, record: Record, content: object) -> str | None:
    title = text(record.get("name")) or text(record.get("path")) or "?"
    return f"{what}: {title}\n{content}" if isinstance(content, str) else None


def _resource(attachment: Record) -> str | None:
    contents = _joined(
        [part.get("text") for part in objects(section(attachment, "content").get("contents"))]
    )
    return contents and f"{attachment.get('server')}: {attachment.get('uri')}\n{contents}"


def _mailbox(attachment: Record) -> str | None:
    messages = objects(attachment.get("messages"))
    return _joined(
        [
            f"{message.get('from')}: {message['text']}"
            if isinstance(message.get("text"), str)
            else None
            for message in messages
        ]
    )


def _task(attachment: Record) -> str | None:
    task = {
        name: text(attachment.get(name))
        for name in ("taskId", "taskType", "status", "description", "deltaSummary")
    }
    words = (
        f"Task {task['taskId']} (type: {task['taskType']}) (status: {task['status']}) "
        f"(description: {task['description']})"
    )
    return words + (f" Delta: {task['deltaSummary']}" if task["deltaSummary"] else "")


_READERS = {
    "diagnostics": _diagnostics,
    "plan_file_reference": _plan,
    "async_hook_response": _hook_response,
    "invoked_skills": _skills,
    "relevant_memories": _memories,
    "mcp_resource": _resource,
    "teammate_mailbox": _mailbox,
    "task_status": _task,
}
"""Functions that compose an attachment's text from several fields, by the attachment's kind."""
