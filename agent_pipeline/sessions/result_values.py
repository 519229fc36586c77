"""The values of tools' results: pictures and files in them, and contents that only a model's service can read."""

from collections.abc import Mapping
from typing import Any

from agent_pipeline.sessions.json_text import dump_json, parse_json

_ENCRYPTED = ("encrypted_content", "encrypted_stdout", "encrypted_result")
_MEDIA = {
    "image",
    "image_url",
    "input_image",
    "audio",
    "input_audio",
    "video",
    "document",
    "file",
    "input_file",
    "resource",
    "blob",
}
_BYTES = ("data", "base64", "blob", "bytes", "file_data", "source")
_OF_RESULTS = {"content", "isError", "is_error", "structuredContent", "_meta", "meta", "type"}


def is_encrypted(value: Any, depth: int = 4) -> bool:
    """Whether a result has contents that the model read and that its record has only in an encrypted form (Anthropic's searches)."""
    if isinstance(value, Mapping):
        return any(bool(value.get(name)) for name in _ENCRYPTED) or (
            depth > 0 and any(is_encrypted(each, depth - 1) for each in value.values())
        )
    return (
        isinstance(value, list)
        and depth > 0
        and any(is_encrypted(each, depth - 1) for each in value)
    )


def unpack_media(value: Any) -> Any:
    """Return the parts of a result that holds a picture or a file, and any other value as it is.

    The value may be MCP's result (`{"content": [...], "isError": false}`), one part, or the JSON text of these.
    """
    told = value
    if (
        isinstance(value, str)
        and value.lstrip()[:1] in ("[", "{")
        and '"type"' in value
        and any(f'"{name}"' in value for name in _BYTES)
    ):
        try:
            told = parse_json(value)
        except (ValueError, RecursionError):
            return value
    parts = _parts_in(told)
    if not any(map(_holds_bytes, parts)):
        return value
    texts = (
        {"type": "text", "text": dump_json(part)} if not _is_part(part) else part for part in parts
    )
    return list(texts)


def unwrap_json_part(part: Any) -> Any:
    """Return a value that Bedrock wraps in a part as a text, and any other part as it is."""
    if (
        isinstance(part, dict)
        and part.keys() == {"json"}
        and (value := dump_json(part["json"])) is not None
    ):
        return {"type": "text", "text": value}
    return part


def _parts_in(told: Any) -> list[Any]:
    if isinstance(told, Mapping):
        content = told.get("content")
        if isinstance(content, list) and told.keys() <= _OF_RESULTS:
            return content
        return [content] if isinstance(content, Mapping) and _holds_bytes(content) else [told]
    return told if isinstance(told, list) else []


def _is_part(part: Any) -> bool:
    return isinstance(part, str) or (
        isinstance(part, Mapping) and isinstance(part.get("type"), str)
    )


def _holds_bytes(part: Any) -> bool:
    """Whether a part is a picture or a file with its bytes."""
    if not isinstance(part, Mapping) or part.get("type") not in _MEDIA:
        return False
    source = part.get("source")
    if isinstance(source, Mapping):
        return source.get("type") != "text"
    inner = part.get("image_url") if part.get("image_url") is not None else part.get("resource")
    address = inner.get("url") if isinstance(inner, Mapping) else inner
    has_bytes = any(isinstance(part.get(name), str) and part[name] for name in _BYTES)
    return (
        has_bytes
        or (isinstance(inner, Mapping) and bool(inner.get("blob")))
        or (isinstance(address, str) and address.startswith("data:"))
    )
