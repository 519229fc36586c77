"""Texts that hold encoded characters: what a reader sees, and where each character of it stands in
the text.

Handled are percent-encoding (`%40`), HTML entities (`&#64;`), escapes of programs (`\\u0040`,
`\\n`, `\\"`) and the habit of writing `[at]` or `(a)` for an @. JSON texts are not read here:
`texts` decodes their strings.
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
"""How often a character may be encoded: `%2540` is an @ in two layers."""
_WINDOW = 200
_MARKS = tuple(map(re.compile, (r"%[0-9A-Fa-f]{2}", r"&#?[A-Za-z0-9]{1,32};", r"\\[unrt\"'/]")))
"""What a text with encoded characters holds: searches that begin with a fixed character spare most
texts the slow one.
"""


class Decoded(NamedTuple):
    """A text with its characters decoded, and the places in the encoded text.

    `starts` has the place in the decoded text at which each piece begins; `pieces` has the range of
    each piece in the encoded text, and whether its characters are the same in both.
    """

    text: str
    starts: list[int]
    pieces: list[tuple[int, int, bool]]

    def encoded_range(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of the encoded text that a range of the decoded text stands for."""
        first, last = bisect_right(self.starts, start) - 1, bisect_right(self.starts, end - 1) - 1
        piece_start, _, is_same = self.pieces[first]
        encoded_start = piece_start + start - self.starts[first] if is_same else piece_start
        piece_start, piece_end, is_same = self.pieces[last]
        return encoded_start, piece_start + end - self.starts[last] if is_same else piece_end


def decode(text: str) -> list[Decoded]:
    """Return a text's decoded layers, the outermost first; an empty list if no character of it is
    encoded.
    """
    layers: list[Decoded] = []
    while len(layers) < _MAX_LAYERS and (layer := _decode_once(text)):
        layers.append(layer)
        text = layer.text
    return layers


def decoded_windows(text: str) -> list[str]:
    """Return the parts of a text around its encoded characters, decoded: what detectors must see
    besides the text itself.
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
    """Return the nearest blank before (`step` -1) or after (1) a place, but not further away than a
    window's length.
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
        or "at]" in text
        or "(a)" in text
        or "at)" in text
        or "dot]" in text
        or "dot)" in text
        or "at}" in text
        or "dot}" in text
        or "at>" in text
        or "dot>" in text
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
    """Return the characters that a match stands for; the match itself if it stands for none."""
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
