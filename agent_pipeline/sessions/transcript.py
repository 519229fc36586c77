"""Conversion of a conversation into text: paired calls and results, texts, and a transcript.

The decision whether a tool result is an error or a refusal also belongs here, because it reads the
result's text. Rendering with a chat template does not belong here.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.json_text import parse_object
from agent_pipeline.sessions.session import Message, list_calls


class PairedCall(NamedTuple):
    """One tool call with its result.

    Attributes:
        name: The called tool.
        arguments: The decoded arguments, or None if `raw` is not the JSON text of an object.
        raw: The arguments as the message has them.
        result: The text of the result, or None if the call has no result.
        failed: Whether the result is an error (`is_failed`).
    """

    name: str
    arguments: JsonObject | None
    raw: str
    result: str | None
    failed: bool = False


def pair_calls(messages: Sequence[Message]) -> list[PairedCall]:
    """Return every tool call in order, with its result.

    Results follow the message with the calls. A call gets the result that has its id. If there is
    no such result, the call gets the oldest result that belongs to no other call.
    """
    pairs = []
    for index, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        if not calls:
            continue
        end = index + 1
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results = list(messages[index + 1 : end])
        results_by_id = [_take_result(results, call.get("id")) for call in calls]
        untaken = deque(results)
        for call, result in zip(calls, results_by_id, strict=True):
            if result is None and untaken:
                result = untaken.popleft()
            raw = call["function"]["arguments"]
            pairs.append(
                PairedCall(
                    name=call["function"]["name"],
                    arguments=parse_object(raw),
                    raw=raw,
                    result=result["content"] if result else None,
                    failed=is_failed(result) if result else False,
                )
            )
    return pairs


def _take_result(results: list[Message], call_id: str | None) -> Message | None:
    """Remove the result of the call with the given id from a list, and return it."""
    for index, result in enumerate(results):
        if call_id and result.get("tool_call_id") == call_id:
            return results.pop(index)
    return None


def list_texts(message: Message, names: bool = False) -> list[str]:
    """Return the content of a message and the arguments of its tool calls.

    If `names` is true, each call's name comes before its arguments.
    """
    texts = [message.get("content") or ""]
    if message.get("tool_calls"):
        for name, raw in list_calls([message]):
            texts += [name, raw] if names else [raw]
    return texts


def count_characters(messages: Iterable[Message]) -> int:
    """Count the characters of all message contents and call arguments.

    A token has about four characters.
    """
    return sum(len(text) for message in messages for text in list_texts(message))


def format_transcript(messages: Iterable[Message]) -> str:
    """Return a conversation as readable text.

    The parts are `USER: …`, `ASSISTANT: …`, `CALL: name {…}` and `TOOL: …`, with a blank line
    between two parts.
    """
    parts = []
    for message in messages:
        if message["content"] or not message.get("tool_calls"):
            parts.append(f"{message['role'].upper()}: {message['content']}")
        parts += [f"CALL: {name} {raw}" for name, raw in list_calls([message])]
    return "\n\n".join(parts)


def format_markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first row is the header.

    The first column is aligned as text, the other columns as numbers.
    """
    lines = []
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    lines.insert(1, f"|---|{'---:|' * (len(rows[0]) - 1)}")
    return "\n".join(lines)


def shorten_text(text: str, limit: int, where: str) -> str:
    """Shorten a text that is too long to its beginning and its end.

    Args:
        text: The text.
        limit: The approximate number of characters to keep.
        where: The place where a person finds the whole text.
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    gap = f"[{len(text) - 2 * half:,} characters are left out here: {where} has them]"
    return f"{text[:half]}\n\n{gap}\n\n{text[-half:]}"


_ERROR_FIELDS = ("error", "is_error", "isError")
_EXCEPTION = re.compile(
    r"error|<tool_use_error>|an error occurred while running the tool"
    r"|[\w.]{1,80}(?:Error|Exception): |traceback \(most recent call last\)"
    r"|(?:chunk id: \w+\s+)?(?:wall time: [\d.]+ seconds\s+)?"
    r"(?:process exited with|exit) code:? [1-9]",
    re.IGNORECASE,
)


def is_failed(result: Message) -> bool:
    """Return whether a tool message reports an error.

    The message may be marked (`is_error`), or its text may read as an error.
    """
    return bool(result.get("is_error")) or is_tool_error(result["content"])


def is_tool_error(text: str) -> bool:
    """Return whether the text of a tool result looks like an error message.

    An error is a JSON object with a true `error`, `is_error` or `isError` (MCP). It is also a text
    that begins with "Error", an exception's name (`ValueError: `), a traceback, or the words with
    which Codex, Claude Code and the OpenAI Agents SDK report a failure.
    """
    text = text.strip()
    if _EXCEPTION.match(text):
        return True
    if not text.startswith("{") or 'rror"' not in text:  # most results need no decoding
        return False
    value = parse_object(text) or {}
    return any(value.get(name) for name in _ERROR_FIELDS)


# The pattern matches only at the beginning, because a tool's findings may contain any words.
_REFUSED = re.compile(
    r"\W*+(?:\w*(?:error|exception)\b\W*+)*(?:the |your |this )?(?:"
    r"(?:unknown|unrecognized|unsupported|invalid|no such) (?:tool|function|action)\b"
    r"|(?:requested )?(?:tool|function|action)(?: use| call)?:? ?[\w.:/`'\"-]{0,80} ?"
    r"(?:is |was )?not (?:available|found|allowed|permitted)"
    r"|(?:tool|function|action) [\w.:/`'\"-]{1,80} does(?: not|n't) exist"
    r"|(?:tool|function|action)(?: use| call)? (?:was |has been |is )?"
    r"(?:rejected|denied|blocked|declined)"
    r"|(?:permission|access) (?:was |is )?denied|permission to use"
    r"|user (?:rejected|declined|denied|does(?: not|n't) want to proceed)"
    r")",
    re.IGNORECASE,
)


def is_refusal(text: str) -> bool:
    """Return whether a tool result reports that the tool call was not carried out.

    The tool does not exist, or the call was not permitted.
    """
    return bool(_REFUSED.match(text))
