"""The pseudonyms of one session's private values, and where the values stand in its texts."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from agent_pipeline.redaction.kinds import KINDS, PSEUDONYM, WORDS
from agent_pipeline.redaction.texts import TOKEN, decoded, is_json, unescaped_text

_FEW = 16


class Pseudonyms:
    """The pseudonyms of one session's values, numbered as they appear; numbers that its texts have already are not used again."""

    def __init__(self, texts: list[str]) -> None:
        self.counts: Counter[str] = Counter()
        self.replaced_values: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self._values = Values({})
        self._names: dict[tuple[str, str], str] = {}
        self._last: Counter[str] = Counter()
        for text in texts:
            for kind, number in PSEUDONYM.findall(text) if "<" in text else ():
                self._last[kind] = max(self._last[kind], int(number))

    def learn(self, finds: dict[str, str]) -> None:
        """More values to replace; of two that begin at one place the one of the earlier kind is taken, then the longer."""
        self._kinds |= finds
        self._values = Values(self._kinds)

    def occurs(self, text: str) -> bool:
        """Whether a text has one of the values, as part of a longer word too."""
        return next(self._values.occurrences(text), None) is not None

    def stands_in(self, name: str) -> bool:
        """Whether a name has one of the values as a word of its own."""
        return bool(self._places(name))

    def replaced(self, text: str) -> str:
        """The text with pseudonyms; the very same object where it has nothing private."""
        if is_json(text):
            return TOKEN.sub(self._replaced_token, text)
        parts, done = [], 0
        for start, end, value in self._places(text):
            parts += [text[done:start], self._name(value)]
            done = end
        return "".join([*parts, text[done:]]) if parts else text

    def _places(self, text: str) -> list[tuple[int, int, str]]:
        """Where values stand as words of their own, from left to right, none over another or over a pseudonym."""
        spans = [(match.start(), -1, match.end(), "") for match in PSEUDONYM.finditer(text)] if "<" in text else []
        spans += [
            (start, order, start + len(value), value)
            for start, order, value in self._values.occurrences(text)
            if is_whole_word(value, self._kinds[value], text, start)
        ]
        places, done = [], 0
        for start, _, end, value in sorted(spans):
            if start >= done:
                done = end
                places += [(start, end, value)] if value else []
        return places

    def _replaced_token(self, match: re.Match[str]) -> str:
        token = match.group()
        if token[0] != '"':
            return json.dumps(self._name(token)) if token in self._kinds else token
        inner = decoded(token)
        replaced = self.replaced(inner)
        return token if replaced == inner else json.dumps(replaced, ensure_ascii=token.isascii())

    def _name(self, value: str) -> str:
        kind = self._kinds[value]
        self.counts[kind] += 1
        self.replaced_values[value] = kind
        key = (kind, folded(value))
        if key not in self._names:
            self._last[kind] += 1
            self._names[key] = f"<{kind}_{self._last[kind]}>"
        return self._names[key]


class Values:
    """Private values, found in texts in time that grows with the text, not with the number of values."""

    def __init__(self, kinds: dict[str, str]) -> None:
        ordered = sorted(kinds, key=lambda value: (KINDS.index(kinds[value]), -len(value), value))
        self._orders = {value: order for order, value in enumerate(ordered)}
        self._prefix_length = min((len(value) for value in ordered), default=1)
        self._lengths: dict[str, set[int]] = {}
        for value in ordered:
            self._lengths.setdefault(value[: self._prefix_length], set()).add(len(value))

    def occurrences(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Every (start, order of the value, value) in a text."""
        size, lengths, orders = self._prefix_length, self._lengths, self._orders
        for start in self._starts(text):
            for length in lengths.get(text[start : start + size], ()):
                value = text[start : start + length]
                if (order := orders.get(value)) is not None:
                    yield start, order, value

    def _starts(self, text: str) -> Iterator[int]:
        """The places where a value may begin; a search for each of a few prefixes is faster than a look at every place."""
        if len(self._lengths) > _FEW:
            yield from range(len(text) - self._prefix_length + 1)
            return
        for prefix in self._lengths:
            start = text.find(prefix)
            while start >= 0:
                yield start
                start = text.find(prefix, start + 1)

    def within(self, texts: Iterable[str], kinds: dict[str, str]) -> set[str]:
        """The values that stand in one of the texts, the short ones as words of their own."""
        return {value for text in texts for start, _, value in self.occurrences(text) if is_whole_word(value, kinds[value], text, start)}


def as_written(finds: dict[str, str], texts: list[str]) -> dict[str, str]:
    """Values that were found in texts without their escapes, as they stand in those that have them."""
    written = {value: finds[value] for value in Values(finds).within(texts, finds)}
    escaped = [text for text in texts if "\\" in text]
    for value, kind in finds.items():
        if value not in written and escaped:
            spellings = {"\n": r"(?:\n|(?<!\\)\\++[nrt])"} | {each: rf"\\*+{each}" for each in "\"'/"}
            form = re.compile(re.escape(value[0]) + "".join(spellings.get(each) or re.escape(each) for each in value[1:]))
            for text in escaped:
                for match in form.finditer(text):
                    if is_whole_word(match.group(), kind, text, match.start()):
                        written[match.group()] = kind
    return written


def is_whole_word(value: str, kind: str, text: str, start: int) -> bool:
    """Whether a value at a place in a text counts: a short one (`WORDS`) only as a word of its own."""
    return kind not in WORDS or not (_continues(text, start) or _continues(text, start + len(value)))


def _continues(text: str, place: int) -> bool:
    """Whether a word or number goes on across a place between two characters; the n of an escaped line's end is not a part of one."""
    if not (0 < place < len(text) and text[place - 1].isalnum() and text[place].isalnum()):
        return False
    return not (text[place - 1] in "nrt" and text[place - 2 : place - 1] == "\\")


def folded(value: str) -> str:
    """What of a value makes it the same value: case and separators do not."""
    text = unescaped_text(value).casefold()
    return text if "@" in text else re.sub(r"[\W_]+", "", text) or text
