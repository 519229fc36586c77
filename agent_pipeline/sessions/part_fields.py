"""Functions that read one field of a message or a part: type, id, error mark or thought.

`parts` reads whole parts, and `chat` reads whole messages.
"""

from collections.abc import Iterable

from agent_pipeline.json_types import JsonObject

_FAILED_STATES = ("error", "failed", "denied")
_FAILED_TYPES = ("tool-error", "error-text", "error-json", "execution-denied")
THOUGHT_MARKS = {"thought", "thought_signature", "thoughtSignature"}
"""Fields with which Gemini marks a message part as a thought."""
_THOUGHT_TEXT_FIELDS = ("thinking", "reasoning", "text", "content", "summary", "reasoningText")
_MAX_THOUGHT_DEPTH = 4


def join_texts(texts: Iterable[str], seam: str) -> str:
    """Join pieces of text.

    `seam` is inserted between two pieces if neither has white space there.
    """
    joined = ""
    for text in texts:
        has_space = not joined or not text or joined[-1].isspace() or text[0].isspace()
        joined += ("" if has_space else seam) + text
    return joined


def is_marked_failed(record: JsonObject) -> bool:
    """Return whether the record of a tool result reports an error.

    The field is `is_error` (Anthropic, AutoGen), `isError` (MCP), `status` (LangChain, Bedrock),
    `outcome` (pydantic-ai), `error` (tau2, Inspect) or a type (the AI SDK, pydantic-ai).
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


def read_part_type(part: object) -> str:
    """Return the type of a message part, or an empty text if the part does not state a type.

    Bedrock's and Gemini's text parts have no type. Gemini marks a text part that is a thought.
    """
    if not isinstance(part, dict):
        return ""
    for name in ("type", "part_kind", "block_type", "kind"):
        if name in part:
            kind = part[name]
            break
    else:
        kind = None
    if kind is None:
        filled = {name for name, value in part.items() if value is not None}
        if filled - THOUGHT_MARKS == {"text"}:
            return "thinking" if part.get("thought") is True else "text"
    return kind if isinstance(kind, str) else ""


def read_id(record: JsonObject, *names: str) -> str:
    """Return a call's id as text, from the first of the named fields that is filled.

    The result is empty if there is no id. A number becomes text, because some stores number their
    calls.
    """
    for name in names:
        value = record.get(name)
        if value is None or value == "":
            continue
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return ""
    return ""


def pick_first(record: JsonObject, names: Iterable[str]) -> object:
    """Return the first of the named fields that is present and not None."""
    for name in names:
        value = record.get(name)
        if value is not None:
            return value
    return None


def read_thought(thought: object, depth: int = _MAX_THOUGHT_DEPTH) -> str:
    """Return the text of a model's thought, which a message part contains.

    A thought is a string, a list of parts, or a block that has the text in one of several fields.
    """
    if isinstance(thought, str):
        return thought if thought.strip() else ""
    if depth == 0:
        return ""
    if isinstance(thought, list):
        texts = [read_thought(part, depth - 1) for part in thought]
        return "\n\n".join(text for text in texts if text)
    if isinstance(thought, dict):
        for name in _THOUGHT_TEXT_FIELDS:
            text = read_thought(thought.get(name), depth - 1)
            if text:
                return text
    return ""
