"""Values of tool results: pictures and files in them, and encrypted content.

Functions that inspect the value of a result belong here. `parts.read_result` turns the value into
an item.
"""

from collections.abc import Mapping

from agent_pipeline.sessions.json_text import dump_json, parse_json

_ENCRYPTED_FIELDS = ("encrypted_content", "encrypted_stdout", "encrypted_result")
_MEDIA_TYPES = {
    *("image", "image_url", "input_image", "audio", "input_audio", "video"),
    *("document", "file", "input_file", "resource", "blob"),
}
_BYTE_FIELDS = ("data", "base64", "blob", "bytes", "file_data", "source")
_RESULT_FIELDS = {"content", "isError", "is_error", "structuredContent", "_meta", "meta", "type"}
"""Fields that a tool result of the Model Context Protocol (MCP) can have."""
_MAX_DEPTH = 4


def is_encrypted(value: object, depth: int = _MAX_DEPTH) -> bool:
    """Return whether a result has content that only the model's service can decrypt.

    The model saw the content, but the record holds only an encrypted form (Anthropic's searches).
    """
    if isinstance(value, Mapping):
        if any(value.get(name) for name in _ENCRYPTED_FIELDS):
            return True
        inner_values = list(value.values())
    elif isinstance(value, list):
        inner_values = value
    else:
        return False
    return depth > 0 and any(is_encrypted(inner, depth - 1) for inner in inner_values)


def unpack_media(value: object) -> object:
    """Return the parts of a result that contains a picture or a file.

    Other values are returned unchanged. The value may be MCP's result (`{"content": [...],
    "isError": false}`), one part, or the JSON text of either.
    """
    parsed = value
    if isinstance(value, str) and _may_hold_media(value):
        try:
            parsed = parse_json(value)
        except (ValueError, RecursionError):
            return value
    parts = _list_parts(parsed)
    if not any(_holds_bytes(part) for part in parts):
        return value
    return [part if _is_part(part) else _make_text_part(dump_json(part)) for part in parts]


def unwrap_json_part(part: object) -> object:
    """Return a value that Bedrock wraps in a JSON part as a text part.

    Other parts are returned unchanged.
    """
    if isinstance(part, dict) and part.keys() == {"json"}:
        text = dump_json(part["json"])
        if text is not None:
            return _make_text_part(text)
    return part


def _make_text_part(text: str | None) -> dict[str, str | None]:
    """Return a message part that holds a text."""
    return {"type": "text", "text": text}


def _may_hold_media(text: str) -> bool:
    """Return whether a text may be JSON of message parts that contain bytes."""
    return (
        text.lstrip()[:1] in ("[", "{")
        and '"type"' in text
        and any(f'"{name}"' in text for name in _BYTE_FIELDS)
    )


def _list_parts(value: object) -> list[object]:
    """Return the parts that a tool result consists of."""
    if not isinstance(value, Mapping):
        return value if isinstance(value, list) else []
    content = value.get("content")
    if isinstance(content, list) and value.keys() <= _RESULT_FIELDS:
        return content
    if isinstance(content, Mapping) and _holds_bytes(content):
        return [content]
    return [value]


def _is_part(part: object) -> bool:
    """Return whether a value is a text or has a type, like a message part."""
    if isinstance(part, str):
        return True
    return isinstance(part, Mapping) and isinstance(part.get("type"), str)


def _holds_bytes(part: object) -> bool:
    """Return whether a message part is a picture or a file that includes its bytes."""
    if not isinstance(part, Mapping) or part.get("type") not in _MEDIA_TYPES:
        return False
    source = part.get("source")
    if isinstance(source, Mapping):
        return source.get("type") != "text"
    if any(isinstance(part.get(name), str) and part[name] for name in _BYTE_FIELDS):
        return True
    holder = part.get("image_url") if part.get("image_url") is not None else part.get("resource")
    if isinstance(holder, Mapping) and holder.get("blob"):
        return True
    address = holder.get("url") if isinstance(holder, Mapping) else holder
    return isinstance(address, str) and address.startswith("data:")
