"""The decoding of encoded characters in a text, and the mapping from decoded characters to their
places in the original text.

Four encodings are decoded: percent-encoding (`%40`), HTML entities (`&#64;`), escapes of
programming languages (`\\u0040`, `\\n`, `\\"`), and `[at]` or `(a)` for an @. JSON texts are not
read here; `texts` decodes their strings.
"""

import html
import json
import re
from bisect import bisect_right
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

_CHARACTERS = r"(?:%[0-9A-Fa-f]{2})+|&(?:\#[0-9]{1,7}|\#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});|(?:(?<!\\)\\++u[0-9a-fA-F]{4})+"
_SPELLED = r"\s?[\[({<](?:at|dot)[\])}>]\s?|(?<=\w)\(a\)(?=\w)|\uff20"
_ENCODED_CHARACTER = re.compile(rf"{_CHARACTERS}|{_SPELLED}")
_ENCODED = re.compile(rf"{_CHARACTERS}|{_SPELLED}|(?<!\\)\\++[nrt\"'/]")
_BACKSLASHES = re.compile(r"\\+")
_MAX_LAYERS = 3
"""Maximum number of decoding passes. For example, `%2540` is an @ that was encoded twice."""
_WINDOW = 200
_MARKS = tuple(map(re.compile, (r"%[0-9A-Fa-f]{2}", r"&#?[A-Za-z0-9]{1,32};", r"\\[unrt\"'/]")))
"""Cheap patterns of encoded characters. They begin with a fixed character, and most texts need no
slower search.
"""


class Decoded(NamedTuple):
    """A text with decoded characters, and the mapping from its positions to the encoded text.

    Attributes:
        text: The decoded text.
        starts: The index in the decoded text at which each piece begins.
        pieces: The start and end of each piece in the encoded text, and whether the piece is the
            same in both texts.
    """

    text: str
    starts: list[int]
    pieces: list[tuple[int, int, bool]]

    def encoded_range(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of the encoded text that corresponds to a range of the decoded text."""
        first, last = bisect_right(self.starts, start) - 1, bisect_right(self.starts, end - 1) - 1
        piece_start, _, is_same = self.pieces[first]
        encoded_start = piece_start + start - self.starts[first] if is_same else piece_start
        piece_start, piece_end, is_same = self.pieces[last]
        return encoded_start, piece_start + end - self.starts[last] if is_same else piece_end


def decode(text: str) -> list[Decoded]:
    """Return the decoded layers of a text, the outermost first. The list is empty if no character
    is encoded.
    """
    layers: list[Decoded] = []
    while len(layers) < _MAX_LAYERS and (layer := _decode_once(text)):
        layers.append(layer)
        text = layer.text
    return layers


def decoded_windows(text: str) -> list[str]:
    """Return the decoded parts of a text around its encoded characters. Detectors read them in
    addition to the text.
    """
    windows: list[tuple[int, int]] = []
    for match in _ENCODED_CHARACTER.finditer(text) if _may_be_encoded(text) else ():
        joins_last = bool(windows) and match.start() < windows[-1][1]
        start = (
            windows.pop()[0] if joins_last else _word_boundary(text, match.start() - _WINDOW, -1)
        )
        windows.append((start, _word_boundary(text, match.end() + _WINDOW, 1)))
    return [layers[-1].text for start, end in windows if (layers := decode(text[start:end]))]


def _word_boundary(text: str, place: int, step: int) -> int:
    """Return the nearest blank before a place (`step` is -1) or after it (`step` is 1).

    The search ends after the length of a window.
    """
    for _ in range(_WINDOW):
        if place <= 0 or place >= len(text):
            break
        if text[place].isspace():
            return place
        place += step
    return min(max(place, 0), len(text))


def _may_be_encoded(text: str) -> bool:
    percent, entity, escape = _MARKS
    return bool(
        ("%" in text and percent.search(text))
        or ("&" in text and entity.search(text))
        or ("\\" in text and escape.search(text))
        or ("]" in text and ("at]" in text or "dot]" in text))
        or (")" in text and ("at)" in text or "dot)" in text or "(a)" in text))
        or ("}" in text and ("at}" in text or "dot}" in text))
        or (">" in text and ("at>" in text or "dot>" in text))
        or "\uff20" in text
    )


def _decode_once(text: str) -> Decoded | None:
    if not _may_be_encoded(text):
        return None
    parts: list[str] = []
    starts: list[int] = []
    pieces: list[tuple[int, int, bool]] = []
    length = done = 0
    for match in _ENCODED.finditer(text):
        characters = _decoded_characters(match.group())
        if characters == match.group():
            continue
        if match.start() > done:
            starts.append(length)
            pieces.append((done, match.start(), True))
            parts.append(text[done : match.start()])
            length += match.start() - done
        starts.append(length)
        pieces.append((match.start(), match.end(), False))
        parts.append(characters)
        length += len(characters)
        done = match.end()
    if not parts:
        return None
    starts.append(length)
    pieces.append((done, len(text), True))
    parts.append(text[done:])
    return Decoded("".join(parts), starts, pieces)


def _decoded_characters(encoded: str) -> str:
    """Return the characters that a match stands for, or the match itself if it cannot be decoded."""
    if encoded[0] == "%":
        try:
            return unquote_to_bytes(encoded).decode()
        except UnicodeDecodeError:
            return encoded
    if encoded[0] == "&":
        return html.unescape(encoded)
    if encoded[0] == "\\":
        if encoded[-1] in "nrt":
            return "\n"
        return (
            json.loads('"' + _BACKSLASHES.sub(lambda _: "\\", encoded) + '"')
            if "u" in encoded
            else encoded[-1]
        )
    return "@" if encoded == "\uff20" or "a" in encoded.lower() else "."
