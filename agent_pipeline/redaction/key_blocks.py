"""The detection of private keys whose beginning or end is cut off, of PuTTY keys, and of texts that
are encoded as base64.

Kingfisher's rules find only complete keys, but logs and tools often show only the first lines of a
key.
"""

import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple

from agent_pipeline.redaction.kinds import Find
from agent_pipeline.redaction.long_runs import LongRuns

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
    """Yield the lines of private keys whose end or beginning is missing, and the lines of PuTTY
    keys.
    """
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
    """Return the lines of a key that precede a place.

    Return an empty text if the line that begins the key precedes these lines, because the key is
    then complete.
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
"""A pattern that matches base64. Base64 of a text has a capital letter among its first characters,
unlike most long words in code.
"""
_RUNS = LongRuns(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-", 16)
"""The runs of characters at whose start `_BASE64` may match. It matches nowhere else."""
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_URL_SAFE = str.maketrans("-_", "+/")
_START = 40
_SHORTEST_LINE = 8


class EncodedText(NamedTuple):
    """A text that is written as base64 within another text: the lines of base64, and the decoded
    text.
    """

    lines: list[str]
    text: str


def encoded_texts(text: str, flat: bytes) -> Iterator[EncodedText]:
    """Yield the texts that are written as base64 in a text. Decoded data that is not text, such as
    an image or a key, is skipped.
    """
    for written in _written_in_base64(text, flat):
        if _BINARY.search(_decoded(written[:_START].replace("\n", ""))):
            continue
        try:
            decoded = _decoded(written.replace("\n", "")).decode()
        except UnicodeDecodeError:
            continue
        if not _BINARY.search(decoded.encode()):
            lines = [line for line in written.split("\n") if len(line) >= _SHORTEST_LINE]
            yield EncodedText(lines, decoded)


def _written_in_base64(text: str, flat: bytes) -> Iterator[str]:
    """Yield the matches of `_BASE64` in a text."""
    done = 0
    for start, _ in _RUNS.spans(flat):
        if start >= done and (match := _BASE64.match(text, start)):
            done = match.end()
            yield match.group()


def _decoded(written: str) -> bytes:
    """Return the bytes that base64 encodes. If the base64 is cut off, the incomplete last bytes are
    missing.
    """
    plain = written.rstrip("=").translate(_URL_SAFE)
    whole = plain[: len(plain) // 4 * 4]
    rest = plain[len(whole) :]
    if len(rest) > 1:
        whole += rest + "=" * (4 - len(rest))
    return binascii.a2b_base64(whole)
