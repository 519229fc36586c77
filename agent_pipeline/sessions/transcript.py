"""What a conversation says: its calls paired with their results, its texts, and the whole of it as a person reads it."""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from agent_pipeline.sessions.json_text import parse_object
from agent_pipeline.sessions.session import Message, list_calls


class PairedCall(NamedTuple):
    """One tool call: `arguments` is `None` where `raw` is not the JSON text of an object, `result` where nothing answered the call.
    `failed`: the result is an error (`is_failed`)."""

    name: str
    arguments: dict[str, Any] | None
    raw: str
    result: str | None
    failed: bool = False


def pair_calls(messages: Sequence[Message]) -> list[PairedCall]:
    """Every tool call in order, with its result.

    Results follow the message that called. A call takes the result that carries its id, else the oldest result that is left over.
    """
    pairs = []
    for position, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        if not calls:
            continue
        after = position + 1
        while after < len(messages) and messages[after]["role"] == "tool":
            after += 1
        results = list(messages[position + 1 : after])
        answers = [_take_result(results, call.get("id")) for call in calls]
        left = deque(results)
        for call, answer in zip(calls, answers, strict=True):
            answer = answer or (left.popleft() if left else None)
            result, failed = (answer["content"], is_failed(answer)) if answer else (None, False)
            name, raw = call["function"]["name"], call["function"]["arguments"]
            pairs.append(PairedCall(name, parse_object(raw), raw, result, failed))
    return pairs


def _take_result(results: list[Message], call_id: str | None) -> Message | None:
    for index, result in enumerate(results):
        if call_id and result.get("tool_call_id") == call_id:
            return results.pop(index)
    return None


def list_texts(message: Message, names: bool = False) -> list[str]:
    """A message's content and its calls' arguments; with `names` each call's name before its arguments."""
    texts = [message.get("content") or ""]
    for name, raw in list_calls([message]) if message.get("tool_calls") else ():
        texts += [name, raw] if names else [raw]
    return texts


def count_characters(messages: Iterable[Message]) -> int:
    """The length of a conversation: contents and arguments. About four characters are a token."""
    return sum(sum(map(len, list_texts(message))) for message in messages)


def format_transcript(messages: Iterable[Message]) -> str:
    """A conversation as a person reads it: `USER: …`, `ASSISTANT: …`, `CALL: name {…}`, `TOOL: …`, with a blank line between."""
    parts = []
    for message in messages:
        if message["content"] or not message.get("tool_calls"):
            parts.append(f"{message['role'].upper()}: {message['content']}")
        parts += [f"CALL: {name} {raw}" for name, raw in list_calls([message])]
    return "\n\n".join(parts)


def format_markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the head first; its first column is of texts, the others of numbers."""
    head, *others = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    )
    return "\n".join([head, f"|---|{'---:|' * (len(rows[0]) - 1)}", *others])


def shorten_text(text: str, limit: int, where: str) -> str:
    """A text of about `limit` characters: of a longer one the beginning and the end, and `where` the rest is."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n\n[{len(text) - 2 * half:,} characters are left out here: {where} has them]\n\n{text[-half:]}"


_ERRORS = ("error", "is_error", "isError")
_EXCEPTION = re.compile(
    r"error|<tool_use_error>|an error occurred while running the tool|[\w.]{1,80}(?:Error|Exception): |traceback \(most recent call last\)"
    r"|(?:chunk id: \w+\s+)?(?:wall time: [\d.]+ seconds\s+)?(?:process exited with|exit) code:? [1-9]",
    re.IGNORECASE,
)


def is_failed(result: Message) -> bool:
    """Whether a tool's message is an error: its record says so (`is_error`), or its text reads as one."""
    return bool(result.get("is_error")) or is_tool_error(result["content"])


def is_tool_error(text: str) -> bool:
    """Whether a tool result reads as an error: a JSON object with a true `error`, `is_error` or `isError` (MCP), or a text that begins with
    "Error", an exception's name (`ValueError: `), a traceback, or what Codex, Claude Code and the OpenAI Agents SDK say of a failure."""
    text = text.strip()
    if _EXCEPTION.match(text):
        return True
    if not text.startswith("{") or 'rror"' not in text:  # most results need no decoding
        return False
    value = parse_object(text) or {}
    return any(value.get(name) for name in _ERRORS)


# Read at the beginning of a result only: what a tool has found may say anything.
_REFUSED = re.compile(
    r"\W*+(?:\w*(?:error|exception)\b\W*+)*(?:the |your |this )?(?:"
    r"(?:unknown|unrecognized|unsupported|invalid|no such) (?:tool|function|action)\b"
    r"|(?:requested )?(?:tool|function|action)(?: use| call)?:? ?[\w.:/`'\"-]{0,80} ?(?:is |was )?not (?:available|found|allowed|permitted)"
    r"|(?:tool|function|action) [\w.:/`'\"-]{1,80} does(?: not|n't) exist"
    r"|(?:tool|function|action)(?: use| call)? (?:was |has been |is )?(?:rejected|denied|blocked|declined)"
    r"|(?:permission|access) (?:was |is )?denied|permission to use"
    r"|user (?:rejected|declined|denied|does(?: not|n't) want to proceed)"
    r")",
    re.IGNORECASE,
)


def is_refusal(text: str) -> bool:
    """Whether a tool result says that the call was not carried out: there is no such tool, or it was not permitted."""
    return bool(_REFUSED.match(text))
