"""The fields that messages and their parts have in common: types, ids, marks of errors, the text of a thought."""

from collections.abc import Iterable
from typing import Any

_FAILED_STATES = ("error", "failed", "denied")
_FAILED_TYPES = ("tool-error", "error-text", "error-json", "execution-denied")
OF_THOUGHTS = {"thought", "thought_signature", "thoughtSignature"}
_THOUGHT_TEXT = ("thinking", "reasoning", "text", "content", "summary", "reasoningText")


def join_texts(texts: Iterable[str], seam: str) -> str:
    """Join pieces of text. `seam` stands between two pieces if neither has white space there."""
    whole = ""
    for text in texts:
        has_space = not whole or not text or whole[-1].isspace() or text[0].isspace()
        whole += ("" if has_space else seam) + text
    return whole


def is_marked_failed(record: dict[str, Any]) -> bool:
    """Whether a result's own record calls it an error.

    The field is `is_error` (Anthropic, AutoGen), `isError` (MCP), `status` (LangChain, Bedrock), `outcome` (pydantic-ai), `error`
    (tau2, Inspect) or a type (the AI SDK, pydantic-ai).
    """
    return (
        record.get("is_error") is True
        or record.get("isError") is True
        or record.get("status") in _FAILED_STATES
        or record.get("outcome") in _FAILED_STATES
        or bool(record.get("error"))
        or record.get("type") in _FAILED_TYPES
        or record.get("part_kind") == "retry-prompt"
    )


def read_part_type(part: Any) -> str:
    """Return a part's type. Bedrock's and Gemini's texts have none, and Gemini marks a text that is a thought."""
    if not isinstance(part, dict):
        return ""
    kind = next(
        (part[name] for name in ("type", "part_kind", "block_type", "kind") if name in part), None
    )
    if kind is None and {
        name for name, value in part.items() if value is not None
    } - OF_THOUGHTS == {"text"}:
        kind = "thinking" if part.get("thought") is True else "text"
    return kind if isinstance(kind, str) else ""


def read_id(record: dict[str, Any], *names: str) -> str:
    """Return a call's id as text; empty if there is none (some stores number their calls)."""
    for name in names:
        if (value := record.get(name)) not in (None, ""):
            return (
                value
                if isinstance(value, str)
                else str(value)
                if isinstance(value, int) and not isinstance(value, bool)
                else ""
            )
    return ""


def pick_first(record: dict[str, Any], names: Iterable[str]) -> Any:
    """Return the first of these fields that is neither absent nor `None`."""
    for name in names:
        if (value := record.get(name)) is not None:
            return value
    return None


def read_thought(thought: Any, depth: int = 4) -> str:
    """Return the first readable text of a thought: a string, a list of parts, or a block with the text under one of its names."""
    if isinstance(thought, str):
        return thought if thought.strip() else ""
    if isinstance(thought, list) and depth:
        return "\n\n".join(
            text for text in (read_thought(part, depth - 1) for part in thought) if text
        )
    if isinstance(thought, dict) and depth:
        return next(
            (
                text
                for name in _THOUGHT_TEXT
                if (text := read_thought(thought.get(name), depth - 1))
            ),
            "",
        )
    return ""
