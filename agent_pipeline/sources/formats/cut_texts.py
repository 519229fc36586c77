"""Detection of texts that a logger or an exporter has cut off or blacked out.

The agent saw the whole text, so training on an answer to a cut text teaches a model to make things
up. A tool's own note that its output is too long does not count as a cut, because the agent saw the
note.
"""

import re
from collections.abc import Iterable, Sequence
from string import ascii_uppercase

from agent_pipeline.sessions.items import Item
from agent_pipeline.sources.formats.fields import decoded

_FIELDS = (
    "role|content|contents|parts|type|text|messages|message|input|output|id|lc|name|tool_calls|toolUse|toolResult|generations|choices"
    "|inputs|outputs|query|question|history|chat_history|args|response|answer|result|candidates"
    "|tools|arguments|temperature|max_tokens"
    "|model|system|system_instruction|config|object|kwargs|block_type|kind|prompt|functionCall|function_call|toolCallId|finish_reason"
)
_JSON_OF_MESSAGES = re.compile(rf'\s*(?:\[\s*)*\{{\s*"(?:(?:{_FIELDS})"\s*(?::|$)|\w*$)')
"""Pattern for the beginning of JSON that holds messages, blocks, or a model's request or
response.
"""

_NOTES = re.compile(
    r"\(litellm_truncated (?:skipped )?\d+ chars"
    r"|<truncated due to size exceeding limit>"
    r"|<fully masked due to failed mask function>"
)
"""Pattern of the notes that LiteLLM and Langfuse insert into a text. No tool writes such notes."""

_WHOLE = {
    "redacted-by-litellm",
    "redacted_by_litelm",
    "__redacted__",
    "[redacted]",
    "<redacted>",
    "redacted",
    "[masked]",
    "[hidden]",
    "[filtered]",
    "[truncated]",
    "<truncated>",
    "[content redacted]",
    "[langsmith secret]",
}
"""Lower-case placeholders that replace a whole text. They come from LiteLLM, OpenInference
(Phoenix, Arize), MLflow, Claude Code's telemetry and Sentry.
"""

_OF_EXPORTERS = {"redacted-by-litellm", "redacted_by_litelm", "__redacted__"}
"""Placeholders that only exporters of traces write."""

_SCRUBBED = re.compile(r"\[Scrubbed due to '[^']*'\]")
"""Note that Logfire writes in place of a text that it has removed."""

_NOT_WRITTEN = re.compile(
    r"<(?:not serializable|unserializable|non-serializable)[^<>]{0,80}>", re.IGNORECASE
)
"""Placeholders that serializers (Langfuse, the ADK and others) write for values that they cannot
serialize.
"""
_OBJECT = re.compile(
    r"\s*\[?\s*(?:"
    r"[A-Z]\w*\((?:content|role|id|messages|parts|choices|text|output|type|tool_calls|contents|candidates|model|generations|lc)="
    r"|content=(?:'|\"|\[).*\s(?:additional_kwargs|response_metadata"
    r"|id|name|tool_calls|usage_metadata)="
    r"|<[\w.]+ object at 0x[0-9a-f]+>"
    r"|\{'(?:role|content|messages|parts|type|text|output"
    r"|input|id|choices|name|tool_calls|candidates)': )",
    re.DOTALL,
)
"""Pattern for the beginning of Python's printed form of messages, which some loggers store instead
of the messages.
"""
MEDIA = re.compile(r"@@@langfuseMedia:type=(\w+)[^@]*@@@")
"""Placeholder that Langfuse writes into a text in place of a picture, a sound or a file."""

_ENDS = re.compile(
    r"(?:\.\.\.|…)?\s*(?:\[[^\[\]]{0,30}truncated[^\[\]]{0,60}\]|<[^<>]{0,30}truncated[^<>]{0,60}>)\s*$",
    re.IGNORECASE,
)
_ELLIPSES = ("...", "…")

_LIMITS = frozenset({
    128, 250, 255, 256, 500, 512, 1_000, 1_024, 1_500, 2_000, 2_048, 2_500, 3_000, 4_000, 4_095,
    4_096, 5_000, 8_000, 8_191, 8_192, 10_000, 16_000, 16_383, 16_384, 20_000, 25_000, 30_000,
    32_000, 32_766, 32_767, 32_768, 40_000, 50_000, 64_000, 65_535, 65_536, 100_000, 102_400,
    128_000, 131_072, 200_000, 250_000, 256_000, 262_144, 500_000, 512_000, 524_288,
    1_000_000, 1_048_576,
})  # fmt: skip
"""Usual limits that exporters and stores set on the length of a text, in characters or bytes."""

_SURE_LIMIT = 1_000
"""Smallest length limit that proves that a text was cut, if the text has exactly this length and
stops within a sentence. A text may have a shorter length by chance.
"""

_SENTENCE_ENDS = tuple(".!?:;…\"'`)]}>*|\n。！？」】")


def is_cut_json(text: str, is_json: bool = False) -> bool:
    """Return whether a text begins as JSON of messages or blocks, but its end is missing.

    Args:
        text: The content of an attribute or a field.
        is_json: True if the field always holds JSON, so that any beginning of JSON counts.
    """
    begins = (
        text.lstrip()[:1] in ("[", "{") if is_json else _JSON_OF_MESSAGES.match(text) is not None
    )
    return begins and isinstance(decoded(text), str)


def has_cut_mark(text: str) -> bool:
    """Return whether a text contains an exporter's note that text was cut or hidden."""
    return _NOTES.search(text) is not None or stands_for_a_text(text)


def has_exporter_note(text: str) -> bool:
    """Return whether a text contains a note that only an exporter writes.

    Such a note is recognized even if the text was copied to another place.
    """
    return _NOTES.search(text) is not None or text.strip().lower() in _OF_EXPORTERS


def stands_for_a_text(text: str) -> bool:
    """Return whether a text is only an exporter's note that the original text was hidden."""
    if len(text) > 100:
        return False
    words = text.strip()
    is_hidden = words.lower() in _WHOLE or (len(words) > 2 and not words.strip("*"))
    return is_hidden or any(note.fullmatch(words) is not None for note in (_SCRUBBED, _NOT_WRITTEN))


def is_printed_object(text: str) -> bool:
    """Return whether a text is Python's printed form of messages or of a response.

    Such a text cannot be read reliably.
    """
    return (
        text.lstrip()[:1] in ("[", "{", "<", "c", *ascii_uppercase)
        and _OBJECT.match(text) is not None
    )


def cut_texts_in(items: Sequence[Item]) -> int:
    """Count the texts that an exporter cut or hid in a conversation from a tracing platform.

    A cut text is recognized by the exporter's notes, or because its length is a limit.
    """
    limits = {len(item.text) for item in items if item.kind == "cut_text"} - {0}
    texts = [
        item
        for item in items
        if item.kind in ("message", "function_call", "function_call_output") and item.text
    ]
    limits |= _limits_met(texts)
    silent = sum(
        item.kind == "message" and item.role == "user" and not item.text.strip() for item in items
    )  # an empty user message means that the exporter did not record contents
    return sum(_is_cut(item, limits) for item in texts) + silent


def _is_cut(item: Item, limits: set[int]) -> bool:
    """Return whether an exporter cut or hid the text of an item."""
    text = item.text
    if has_cut_mark(text) or not limits.isdisjoint(_lengths(text)):
        return True
    if item.kind == "function_call_output":  # a tool itself may state that its output was too long
        return False
    return _ENDS.search(text[-100:]) is not None or _is_cut_with_ellipsis(text)


def _is_cut_with_ellipsis(text: str) -> bool:
    """Return whether a text ends with an ellipsis and its length is a known length limit."""
    end = next((end for end in _ELLIPSES if text.endswith(end)), None)
    return end is not None and not _LIMITS.isdisjoint(
        {*_lengths(text), *_lengths(text.removesuffix(end))}
    )


def _limits_met(texts: Iterable[Item]) -> set[int]:
    """Return the length limits at which texts of a conversation were cut.

    A limit counts if one long text, or two short texts, have exactly this length and stop within a
    sentence. Tool results do not count, because many tools cut their own output at a limit.
    """
    stopped: dict[int, set[str]] = {}
    for item in texts:
        if item.kind == "function_call_output" or item.text.endswith(_SENTENCE_ENDS):
            continue
        for length in _lengths(item.text) & _LIMITS:
            stopped.setdefault(length, set()).add(item.text)
    return {
        length
        for length, texts_of_length in stopped.items()
        if length >= _SURE_LIMIT or len(texts_of_length) > 1
    }


def _lengths(text: str) -> set[int]:
    """Return the length of a text in characters and in bytes (UTF-8)."""
    return (
        {len(text)} if text.isascii() else {len(text), len(text.encode("utf-8", "surrogatepass"))}
    )
