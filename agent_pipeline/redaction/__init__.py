"""Secrets and personal data become pseudonyms before anything of a session is written.

A private value becomes `<EMAIL_1>`, `<API_KEY_2>`: its kind, and a number by first appearance in the session. The same value (case and
separators aside) has the same pseudonym everywhere in its session, so that the address in a call's arguments still is the address in its
result. A JSON text stays one, with its layout; a number in it that is private becomes a string. What was redacted before is left alone.

Closed when it fails: a detector that cannot be loaded or raises is a `RedactionError`, and the session is not handed on.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from agent_pipeline.errors import RedactionError, SettingsError
from agent_pipeline.redaction.detectors import KINDS, OPT_IN, PSEUDONYM, WORDS, Detectors
from agent_pipeline.sessions.session import Message, Session, sha256_of

DEFAULT_TYPES = tuple(kind for kind in KINDS if kind not in OPT_IN)


@dataclass(frozen=True)
class RedactionOptions:
    """What is redacted.

    `allow` are values that stay: a text between slashes is a regular expression for a whole value, any other one exact value (case and
    separators aside). `types` are kinds of `KINDS`. `phone_regions` are countries (ISO 3166: `US`) whose numbers are
    known without their `+`.
    """

    enabled: bool = True
    allow: tuple[str, ...] = ()
    types: tuple[str, ...] = DEFAULT_TYPES
    phone_regions: tuple[str, ...] = ("US",)


class Redactor:
    """Redacts sessions by one set of options.

    Raises:
        SettingsError: an option has a value that it cannot have.
        RedactionError: a detector cannot be loaded.
    """

    def __init__(self, options: RedactionOptions) -> None:
        if unknown := sorted(set(options.types) - set(KINDS)):
            raise SettingsError(f"redaction.types has {unknown[0]!r}, which is no kind: there are {', '.join(KINDS)}.")
        self._allowed = {_plain(each) for each in options.allow if not _is_expression(each)}
        self._allowed_forms = [_compiled(each) for each in options.allow if _is_expression(each)]
        self._detectors: Detectors | None = None
        self.private_ids = 0
        if options.enabled:
            try:
                _known_regions(options.phone_regions)
                self._detectors = Detectors(options.types, options.phone_regions)
            except SettingsError:
                raise
            except Exception as error:
                raise RedactionError(
                    f"The detectors of private data cannot be loaded ({type(error).__name__}: {error}): install what "
                    "requirements/lock.txt names; nothing is written without them."
                ) from error

    def redact(self, session: Session) -> Counter[str]:
        """Redact a session in place; answers how many places became a pseudonym, by kind.

        Ids stay, whatever judges or looks up a session names it by its id: those that hold something private are counted in `private_ids`.
        A task key or task id that does becomes its hash.

        Raises:
            RedactionError: a detector raised.
        """
        if self._detectors is None:
            return Counter()
        texts = _texts(session)
        views = _views(texts)
        finds = self._found(session, [*views, session.session_id, session.task_key, session.task_id or ""])
        if not finds:
            return Counter()
        names = _Names(texts)
        while finds:
            names.learn(finds)
            changed = [names.replaced(text) if names.occurs(view) else text for text, view in zip(texts, views, strict=True)]
            # What is gone may lay something open: two addresses without a blank between them, say.
            fresh = _views([new for new, old in zip(changed, texts, strict=True) if new != old])
            texts, views = changed, _views(changed)
            finds = self._found(session, fresh) if fresh else {}
        if names.counts:
            replacing = iter(texts)
            _walk(session, lambda _: next(replacing))
        self.private_ids += names.stands_in(session.session_id)
        for field in ("task_key", "task_id"):
            value = getattr(session, field)
            if value and names.stands_in(value):
                setattr(session, field, f"private:{sha256_of(value)[:16]}")
        return names.counts

    def finds(self, session: Session) -> dict[str, str]:
        """Every private value of a session with its kind, its ids aside.

        Raises:
            RedactionError: a detector raised.
        """
        return self._found(session, [*_views(_texts(session)), session.task_key, session.task_id or ""])

    def _found(self, session: Session, texts: list[str]) -> dict[str, str]:
        if self._detectors is None:
            return {}
        written = "\n\n".join(texts)
        read = _unescaped_text(written)
        try:
            found = self._detectors.find(read)
        except Exception as error:  # its text may hold what is private: the type must do
            raise RedactionError(
                f"The search for private data failed in session {session.session_id} of {session.project}/{session.agent} "
                f"({type(error).__name__}): nothing is written; report it with the session's shape."
            ) from error
        if read is not written:
            found = {form: kind for value, kind in found.items() for form in _as_written(value, kind, texts)}
        return {value: kind for value, kind in found.items() if not self._stays(value)}

    def _stays(self, value: str) -> bool:
        return _plain(value) in self._allowed or any(form.fullmatch(value) for form in self._allowed_forms)


class _Names:
    """The pseudonyms of one session's values, numbered as they appear; numbers that its texts have already are not used again."""

    def __init__(self, texts: list[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._kinds: dict[str, str] = {}
        self._ordered: list[str] = []
        self._made: dict[tuple[str, str], str] = {}
        self._last: Counter[str] = Counter()
        for text in texts:
            for kind, number in PSEUDONYM.findall(text) if "<" in text else ():
                self._last[kind] = max(self._last[kind], int(number))

    def learn(self, finds: dict[str, str]) -> None:
        """More values to replace; of two that begin at one place the one of the earlier kind is taken, then the longer."""
        self._kinds |= finds
        self._ordered = sorted(self._kinds, key=lambda value: (KINDS.index(self._kinds[value]), -len(value), value))

    def occurs(self, text: str) -> bool:
        """Whether a text has one of the values, as part of a longer word too."""
        return any(value in text for value in self._ordered)

    def stands_in(self, name: str) -> bool:
        """Whether a name has one of the values as a word of its own."""
        return bool(self._places(name))

    def replaced(self, text: str) -> str:
        """The text with pseudonyms; the very same object where it has nothing private."""
        if _looks_like_json(text) and _is_json(text):
            return _TOKEN.sub(self._replaced_token, text)
        parts, done = [], 0
        for start, end, value in self._places(text):
            parts += [text[done:start], self._name(value)]
            done = end
        return "".join([*parts, text[done:]]) if parts else text

    def _places(self, text: str) -> list[tuple[int, int, str]]:
        """Where values stand as words of their own, from left to right, none over another or over a pseudonym."""
        found = [(match.start(), -1, match.end(), "") for match in PSEUDONYM.finditer(text)] if "<" in text else []
        for order, value in enumerate(self._ordered):
            found += [(start, order, start + len(value), value) for start in _starts(value, self._kinds[value], text)]
        places, done = [], 0
        for start, _, end, value in sorted(found):
            if start >= done:
                done = end
                places += [(start, end, value)] if value else []
        return places

    def _replaced_token(self, match: re.Match[str]) -> str:
        token = match.group()
        if token[0] != '"':
            return json.dumps(self._name(token)) if token in self._kinds else token
        inner = _decoded(token)
        replaced = self.replaced(inner)
        return token if replaced == inner else json.dumps(replaced, ensure_ascii=token.isascii())

    def _name(self, value: str) -> str:
        kind = self._kinds[value]
        self.counts[kind] += 1
        key = (kind, _plain(value))
        if key not in self._made:
            self._last[kind] += 1
            self._made[key] = f"<{kind}_{self._last[kind]}>"
        return self._made[key]


def _starts(value: str, kind: str, text: str) -> Iterator[int]:
    """Where a value begins in a text; a short one (`WORDS`) only as a word of its own."""
    start = text.find(value)
    while start >= 0:
        if kind not in WORDS or not (_continues(text, start) or _continues(text, start + len(value))):
            yield start
        start = text.find(value, start + 1)


def _continues(text: str, place: int) -> bool:
    """Whether a word or number goes on across a place between two characters; the n of an escaped line's end is no part of one."""
    if not (0 < place < len(text) and text[place - 1].isalnum() and text[place].isalnum()):
        return False
    return not (text[place - 1] in "nrt" and text[place - 2 : place - 1] == "\\")


_ESCAPED = re.compile(r"(?<!\\)\\++(?:([nrt])|([\"'/]))")


def _unescaped_text(text: str) -> str:
    """A text as its reader understands it: line ends and quotes that a program escaped, however often (a log, JSON in a sentence)."""
    return _ESCAPED.sub(lambda match: "\n" if match[1] else match[2], text) if "\\" in text else text


def _as_written(value: str, kind: str, texts: list[str]) -> set[str]:
    """A value that was found in texts without such escapes, as it stands in those that have them."""
    if any(True for text in texts for _ in _starts(value, kind, text)):
        return {value}
    forms = {"\n": r"(?:\n|(?<!\\)\\++[nrt])"} | {each: rf"\\*+{each}" for each in "\"'/"}
    form = re.compile(re.escape(value[0]) + "".join(forms.get(each) or re.escape(each) for each in value[1:]))
    written = {match.group() for text in texts if "\\" in text for match in form.finditer(text)}
    return {each for each in written if any(True for text in texts for _ in _starts(each, kind, text))}


def _plain(value: str) -> str:
    """What of a value makes it the same value: case and separators do not."""
    folded = _unescaped_text(value).casefold()
    return folded if "@" in folded else re.sub(r"[\W_]+", "", folded) or folded


def _walk(session: Session, change: Callable[[str], str]) -> None:
    """Put every text of a session through `change`; messages and tools that sessions share are replaced, never changed."""
    session.messages = [_changed_message(message, change) for message in session.messages]
    _walk_beside(session, change)


def _walk_beside(session: Session, change: Callable[[str], str]) -> None:
    """The texts of a session that are no messages."""
    session.tools = _changed(session.tools, change)
    session.reasoning = _changed(session.reasoning, change)
    session.context = _changed(session.context, change)
    session.error = change(session.error) if session.error else session.error
    session.judgment = change(session.judgment) if session.judgment else session.judgment


def _texts(session: Session) -> list[str]:
    """Every text of a session in the order of `_walk`, which this is written out for what most of them are."""
    texts: list[str] = []

    def seen(text: str) -> str:
        texts.append(text)
        return text

    for message in session.messages:
        content, calls = message.get("content"), message.get("tool_calls") or ()
        others = len(message) - 2 - ("tool_call_id" in message) - ("tool_calls" in message)
        if others or not isinstance(content, str) or (calls and next(reversed(message)) != "tool_calls"):
            _changed_message(message, seen)
            continue
        texts.append(content)
        for call in calls:
            _changed(call["function"]["arguments"], seen)
    _walk_beside(session, seen)
    return texts


_NO_TEXT = frozenset({"role", "tool_call_id"})


def _changed_message(message: Message, change: Callable[[str], str]) -> Message:
    changed = {}
    for name, value in message.items():
        if name == "tool_calls":
            new = [_changed_call(call, change) for call in value] if value else value
        else:
            new = value if name in _NO_TEXT else _changed(value, change)
        if new is not value:
            changed[name] = new
    return message | changed if changed else message


def _changed_call(call: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    before = call["function"]["arguments"]
    arguments = _changed(before, change)
    return call if arguments is before else call | {"function": call["function"] | {"arguments": arguments}}


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """A value with its texts changed: one that is no text as its JSON."""
    if isinstance(value, str):
        return change(value)
    if not value or isinstance(value, bool):
        return value
    text = json.dumps(value, ensure_ascii=False, default=str)
    changed = change(text)
    return value if changed == text else json.loads(changed)


_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*')
"""A string or a number of a valid JSON text."""


def _views(texts: list[str]) -> list[str]:
    return [_view(text) if "\\" in text else text for text in texts]


def _view(text: str) -> str:
    """A text as detectors see it: escapes of JSON strings, and of JSON within them, resolved, since `\\u0040` is an @ to its reader."""
    if not _looks_like_json(text) or not _is_json(text):
        return text
    if '\\"' in text or "\\\\" in text:  # JSON within JSON, perhaps
        return _TOKEN.sub(lambda match: f'"{_views([_decoded(match.group())])[0]}"' if match.group()[0] == '"' else match.group(), text)
    return _ESCAPES.sub(lambda match: _unescaped(match.group()), text)


_ESCAPES = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[^u])(?:\\(?:u[0-9a-fA-F]{4}|[^u]))*")


@lru_cache(maxsize=1 << 12)
def _unescaped(escapes: str) -> str:
    return json.loads(f'"{escapes}"')


def _decoded(token: str) -> str:
    return json.loads(token) if "\\" in token else token[1:-1]


def _looks_like_json(text: str) -> bool:
    return text[:1] in ("{", "[", '"', " ", "\n", "\t", "\r") and text.strip()[:1] in ("{", "[", '"')


def _is_json(text: str) -> bool:
    for decode in (msgspec.json.decode, json.loads):  # the second takes what the first is too strict for: half an emoji
        try:
            decode(text)
        except (ValueError, RecursionError):
            continue
        return True
    return False


def _is_expression(allowed: str) -> bool:
    return len(allowed) > 2 and allowed[0] == allowed[-1] == "/"


def _compiled(allowed: str) -> re.Pattern[str]:
    try:
        return re.compile(allowed[1:-1], re.IGNORECASE)
    except re.error as error:
        raise SettingsError(f"redaction.allow has {allowed!r}, which is not a regular expression ({error}): mend it.") from error


def _known_regions(regions: tuple[str, ...]) -> None:
    import phonenumbers

    if unknown := sorted(set(regions) - phonenumbers.SUPPORTED_REGIONS):
        raise SettingsError(f"redaction.phone_regions has {unknown[0]!r}, which is no country: give ISO 3166 codes such as US or DE.")
