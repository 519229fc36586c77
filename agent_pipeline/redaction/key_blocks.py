"""Private keys whose beginning or end is cut off, PuTTY's keys, and texts that are encoded as
base64.

The rules of Kingfisher find whole keys. A log or a tool often shows the first lines of a key only.
"""

import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple

from agent_pipeline.redaction.kinds import Find

_BODY = r"(?:\s{0,4}[A-Za-z0-9+/=]{20,}+)++(?:\n[A-Za-z0-9+/=]{4,19}(?=\n|$))?"
_BEGIN = re.compile(
    r"BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:\s{0,2}[A-Za-z-]{4,20}: "
    r"[^\n]{1,100}\n){0,4}\s{0,4}"
    rf"(?P<body>{_BODY})(?!\s{{0,4}}-----END)"
)
_END = re.compile(r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_PUTTY = re.compile(rf"Private-Lines:\s?\d{{1,3}}\s{{1,2}}(?P<body>{_BODY})")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{20,}")
_LAST_LINE = re.compile(r"[A-Za-z0-9+/=]{4,}")
_MOST_LINES = 200


def cut_off_keys(text: str, flat: bytes) -> Iterator[Find]:
    """Yield the lines of private keys that have no end or no beginning, and of PuTTY's keys."""
    if b"PRIVATE KEY" in flat:
        for match in _BEGIN.finditer(text):
            yield Find("PRIVATE_KEY", match["body"])
        for match in _END.finditer(text):
            if body := _lines_before(text, match.start()):
                yield Find("PRIVATE_KEY", body)
    if b"Private-Lines:" in flat:
        for match in _PUTTY.finditer(text):
            yield Find("PRIVATE_KEY", match["body"])


def _lines_before(text: str, end: int) -> str:
    """Return the lines of a key before a place; nothing if the line that begins the key stands
    before them.
    """
    start, place, form = -1, end - 1, _LAST_LINE
    for _ in range(_MOST_LINES):
        line_start = text.rfind("\n", max(0, place - 200), max(0, place)) + 1
        if line_start == 0:
            line_start = max(0, place - 200) and place
        line = text[line_start:place].strip()
        if not form.fullmatch(line):
            tail = re.search(r"[A-Za-z0-9+/=]{20,}$", line)
            if tail and not line.startswith("-----") and form is _KEY_LINE:
                start = place - len(tail.group())
            return "" if "-----BEGIN" in line or start < 0 else text[start:end].strip()
        start, form, place = line_start, _KEY_LINE, line_start - 1
        if place <= 0:
            break
    return text[start:end].strip() if start >= 0 else ""


_BASE64 = re.compile(
    r"(?<![A-Za-z0-9+/=_-])(?=[a-z0-9+/_-]{0,15}[A-Z])(?:[A-Za-z0-9+/]{40,}+(?:\n[A-Za-z0-9+/]{40,}+)*+(?:\n[A-Za-z0-9+/]{2,39})?|[A-Za-z0-9+/_-]{16,}+)={0,2}"
    r"(?![A-Za-z0-9+/=_-])"
)
"""Base64 of a text has a capital among its first characters, which most long words of code have
not.
"""
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_URL_SAFE = str.maketrans("-_", "+/")
_START = 40
_SHORTEST_LINE = 8


class EncodedText(NamedTuple):
    """A text that stands in another text as base64: the lines that are written, and the text."""

    lines: list[str]
    text: str


def encoded_texts(text: str) -> Iterator[EncodedText]:
    """Yield the texts that stand in a text as base64. Pictures and keys are no texts."""
    for match in _BASE64.finditer(text):
        written = match.group()
        if _BINARY.search(_decoded(written[:_START].replace("\n", ""))):
            continue
        try:
            decoded = _decoded(written.replace("\n", "")).decode()
        except UnicodeDecodeError:
            continue
        if not _BINARY.search(decoded.encode()):
            lines = [line for line in written.split("\n") if len(line) >= _SHORTEST_LINE]
            yield EncodedText(lines, decoded)


def _decoded(written: str) -> bytes:
    """Return the bytes of base64, without its last ones if it is cut off."""
    plain = written.rstrip("=").translate(_URL_SAFE)
    whole = plain[: len(plain) // 4 * 4]
    rest = plain[len(whole) :]
    if len(rest) > 1:
        whole += rest + "=" * (4 - len(rest))
    return binascii.a2b_base64(whole)
