"""Functions that read and rewrite every text of a session, and that resolve escapes in texts."""

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.json_text import parse_json
from agent_pipeline.sessions.session import Message, Session

TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*')
"""A pattern that matches a string or a number in a valid JSON text."""

_ESCAPES = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[^u])(?:\\(?:u[0-9a-fA-F]{4}|[^u]))*")
_ESCAPED = re.compile(r"(?<!\\)\\++(?:([nrt])|([\"'/]))")
_NO_TEXT = frozenset({"role", "weight"})


def texts_of(session: Session) -> list[str]:
    """Return every text of a session, in the order in which `rewrite` visits them."""
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    rewrite(session, collect)
    return texts


def rewrite(session: Session, change: Callable[[str], str]) -> None:
    """Replace every text of a session by `change(text)`.

    Messages and tools may be shared between sessions. They are replaced by new objects and never
    changed in place. Tools come first, because pseudonyms are numbered in this order: equal tools
    then stay equal in all sessions, whatever the users say.
    """
    session.tools = _changed(session.tools, change)
    session.messages = [_changed_message(message, change) for message in session.messages]
    session.reasoning = _changed(session.reasoning, change)
    session.context = _changed(session.context, change)
    session.error = change(session.error) if session.error else session.error
    session.judgment = change(session.judgment) if session.judgment else session.judgment
    session.skipped = {change(name): count for name, count in session.skipped.items()}
    session.scores = {change(name): score for name, score in session.scores.items()}


def _changed_message(message: Message, change: Callable[[str], str]) -> Message:
    changed: JsonObject = {}
    fields: JsonObject = {**message}
    for name, value in fields.items():
        if name == "tool_calls":
            new = [_changed_call(call, change) for call in value] if value else value
        else:
            new = value if name in _NO_TEXT else _changed(value, change)
        if new is not value:
            changed[name] = new
    return cast(Message, fields | changed) if changed else message


def _changed_call(call: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    function = call["function"]
    changed = {
        name: new
        for name, value in function.items()
        if (new := _changed(value, change)) is not value
    }
    call_id = _changed(call.get("id"), change)
    if changed:
        call = call | {"function": function | changed}
    return call if call_id is call.get("id") else call | {"id": call_id}


def _changed(value: object, change: Callable[[str], str]) -> Any:
    """Return a value with its texts changed. A value that is not a text is changed as JSON."""
    if isinstance(value, str):
        return change(value)
    if not value or isinstance(value, bool):
        return value
    text = json.dumps(value, ensure_ascii=False, default=str)
    changed = change(text)
    return value if changed == text else json.loads(changed)


def seen_by_detectors(texts: list[str]) -> list[str]:
    """Return texts in the form in which the detectors read them, with JSON escapes resolved."""
    return [_view(text) if "\\" in text else text for text in texts]


def _view(text: str) -> str:
    """Return a text in the form in which the detectors read it.

    Escapes in JSON strings, and in JSON within these strings, are resolved: a reader sees `\\u0040`
    as an @.
    """
    if not is_json(text):
        return text
    if '\\"' in text or "\\\\" in text:  # perhaps JSON within JSON
        return TOKEN.sub(
            lambda match: (
                f'"{seen_by_detectors([decoded(match.group())])[0]}"'
                if match.group()[0] == '"'
                else match.group()
            ),
            text,
        )
    return _ESCAPES.sub(lambda match: _unescaped(match.group()), text)


@lru_cache(maxsize=1 << 12)
def _unescaped(escapes: str) -> str:
    return str(json.loads(f'"{escapes}"'))


def decoded(token: str) -> str:
    return json.loads(token) if "\\" in token else token[1:-1]


def is_json(text: str) -> bool:
    """Return whether a text is a JSON object, list or string."""
    if not (
        text[:1] in ("{", "[", '"', " ", "\n", "\t", "\r") and text.strip()[:1] in ("{", "[", '"')
    ):
        return False
    try:
        parse_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def unescaped_text(text: str) -> str:
    """Return a text with escaped line ends and quotes resolved, even if they were escaped several
    times.

    Logs, and sentences that quote JSON, contain such escapes.
    """
    return (
        _ESCAPED.sub(lambda match: "\n" if match[1] else match[2], text) if "\\" in text else text
    )
