"""The detectors of private values in a text. The decision is left to specialized libraries.

| kinds | decided by |
|---|---|
| API_KEY, TOKEN, PRIVATE_KEY, CONNECTION_STRING, PASSWORD in a URL | Kingfisher's rules (MongoDB;
488 rules, offline) |
| values in headers, cookies, commands and URLs, and after labels (PASSPORT, NATIONAL_ID) |
Kingfisher, with `rules.yaml` |
| PASSWORD and other secrets assigned to a name (`password = ...`, `"api_key": "..."`), AWS key ids
| detect-secrets |
| PHONE | Google's libphonenumber |
| CARD, IBAN, SSN | python-stdnum (check digits, issued ranges) |
| ACCOUNT | a number of 8 to 17 digits after a word such as "account" |
| NAME | `names.py`: names that an address gives away |
| EMAIL, IP | their form |

The patterns in this module only select candidates, so that the libraries read little text. No
library opens a connection. A detector never returns only a part of its finds: if it fails, it
raises an exception.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache, partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from agent_pipeline.redaction.commands import passwords_of_commands, without_closing
from agent_pipeline.redaction.key_blocks import cut_off_keys, encoded_texts
from agent_pipeline.redaction.kinds import KINDS, PSEUDONYM, REGISTERED, Find
from agent_pipeline.redaction.long_runs import LongRuns
from agent_pipeline.redaction.names import entities, names_given_away, spacy_pipeline
from agent_pipeline.redaction.numbers import account_number, numbers
from agent_pipeline.redaction.passwords import (
    has_form_of_password,
    passwords_in_tables,
    written_passwords,
)
from agent_pipeline.redaction.scripts import with_blanks_between_scripts

RULES = Path(__file__).with_name("rules.yaml")
_OURS = "ours."
_SECRETS = {"PRIVATE_KEY", "CONNECTION_STRING", "API_KEY", "TOKEN", "PASSWORD"}
RULE_KINDS = _SECRETS | {"EMAIL", "IBAN", "PASSPORT", "NATIONAL_ID"}
"""The kinds that Kingfisher's rules find. Other detectors may find these kinds too."""
_SHORTEST_PASSWORD, _LONGEST_PASSWORD = 6, 200


Detector = Callable[[str, bytes], Iterable[Find]]
"""A function that takes a text, and the text as Latin-1 bytes (`?` for each other character).
Candidates are found many times faster in the bytes.
"""


class Detectors:
    """The detectors for the given kinds of private values.

    Args:
        kinds: The kinds to find.
        phone_regions: The countries whose national telephone numbers are recognized.
        ner_model: The spaCy pipeline that finds people and places, if `kinds` contains them.
    """

    def __init__(
        self, kinds: Iterable[str], phone_regions: Iterable[str], ner_model: str = ""
    ) -> None:
        self._kinds = frozenset(kinds)
        regions = tuple(phone_regions) if "PHONE" in self._kinds else None
        wanted: dict[Detector, set[str]] = {
            _ruled: RULE_KINDS,
            _assigned: _SECRETS,
            written_passwords: {"PASSWORD", "API_KEY"},
            passwords_of_commands: {"PASSWORD"},
            passwords_in_tables: {"PASSWORD"},
            cut_off_keys: {"PRIVATE_KEY"},
            _emails: {"EMAIL", "NAME"},
            partial(numbers, regions): {"IBAN", "CARD", "SSN", "ACCOUNT", "PHONE", "API_KEY"},
            _addresses: {"IP"},
        }
        if self._kinds & {"PERSON", "LOCATION"}:
            wanted[partial(entities, spacy_pipeline(ner_model))] = {"PERSON", "LOCATION"}
        wanted |= {_own_detector(entry): {kind} for kind, entry in REGISTERED.items()}
        self._detectors = [
            detector for detector, kinds_found in wanted.items() if kinds_found & self._kinds
        ]
        if self._kinds & RULE_KINDS:
            _scanner()  # fail now if the rules cannot be loaded

    def find(self, text: str) -> dict[str, str]:
        """Return every private value that a text contains, with its kind.

        If a text that is encoded as base64 contains a private value, its base64 is returned as a
        `TOKEN`.
        """
        flat = text.encode("latin-1", "replace")
        finds = self._find(text, flat)
        for encoded in encoded_texts(text, flat) if "TOKEN" in self._kinds else ():
            if self._find(encoded.text, encoded.text.encode("latin-1", "replace")):
                for line in encoded.lines:
                    finds.setdefault(line, "TOKEN")
        return finds

    def _find(self, text: str, flat: bytes) -> dict[str, str]:
        finds: dict[str, str] = {}
        spaced = with_blanks_between_scripts(text)
        flat_spaced = flat if spaced is text else spaced.encode("latin-1", "replace")
        for detector in self._detectors:
            # A host name may contain both scripts.
            seen = (text, flat) if detector is _emails else (spaced, flat_spaced)
            for kind, value in detector(*seen):
                if kind in self._kinds and not PSEUDONYM.search(value):
                    known = finds.setdefault(value, kind)
                    finds[value] = min(known, kind, key=KINDS.index)
        return finds


def _own_detector(entry: EntryPoint) -> Detector:
    function: Callable[[str], Iterable[str]] = entry.load()
    return lambda text, flat: (Find(entry.name, value) for value in function(text) if value)


@cache
def _scanner() -> Any:
    from kingfisher_sdk import Rules, Scanner

    return Scanner(Rules([RULES], confidence="low"))


def _ruled(text: str, flat: bytes) -> Iterator[Find]:
    """Yield the values that Kingfisher's rules find: keys, tokens and passwords by the vendors'
    formats, and values after headers, commands or labels.
    """
    yield from _found_by_rules(text)
    if windows := list(_without_marks(text, flat)):
        yield from _found_by_rules("\n\n".join(windows))


_KEY = "[A-Za-z0-9_-]"
_AFTER_KEY = re.compile(rf"(?<={_KEY}{{16}})(?:[.:](?![A-Za-z0-9])|[^\w\s./:=+@%-])++")
_BEFORE_KEY = re.compile(rf"[^\w\s./:=+@%-]{{1,4}}(?={_KEY}{{16}})")
"""Punctuation before a possible key (after a possible key: `_AFTER_KEY`). Many rules expect a blank
there, but people write a comma, a bracket or a quote.
"""


_LONG_RUNS = LongRuns(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:/+=-", 20)
_LONGEST_WORDS_BEFORE = 80


def _without_marks(text: str, flat: bytes) -> Iterator[str]:
    """Yield the parts of a text that may be keys with punctuation around them.

    Each part includes the words before the key. The punctuation is replaced by blanks.
    """
    for start, end in _LONG_RUNS.spans(flat):
        if flat[start - 1 : start] in (b"@", b"%"):
            continue
        if (
            text[end - 1] in ".:"
            or _MARK.match(text, end)
            or (start and _MARK.match(text, start - 1))
        ):
            window = text[max(0, start - _LONGEST_WORDS_BEFORE) : end + 1]
            yield _BEFORE_KEY.sub(_blank, _AFTER_KEY.sub(_blank, window))


_MARK = re.compile(r"[^\w\s./:=+@%-]")


def _blank(marks: re.Match[str]) -> str:
    return " " * len(marks.group())


def _found_by_rules(text: str) -> Iterator[Find]:
    data = text.encode("utf-8", "replace")
    for finding in _scanner().scan(data):
        # A helper rule finds the other part of a secret, which is often public (a client id, a
        # host) and not a secret.
        if not finding.visible and not _HELPING_SECRET.search(finding.rule_id):
            continue
        place = finding.location
        if _PAGE_TOKEN.search(data, max(0, place["start_offset"] - 60), place["start_offset"]):
            continue
        encoded = finding.is_base64_encoded  # the text contains only the encoded secret
        secret = (
            data[place["start_offset"] : place["end_offset"]].decode("utf-8", "replace")
            if encoded
            else finding.secret
        )
        # If a secret consists of several JSON strings (a service account's file), each string is
        # replaced separately.
        kind = _kind_of_rule(finding.rule_id)
        is_set = kind == "PASSWORD" and finding.rule_id.startswith(_OURS)
        if kind == "IBAN":
            secret = account_number(secret)
        if kind == "EMAIL" and data[place["start_offset"] - 1 : place["start_offset"]] == b"%":
            secret = secret[2:]  # the address begins after a percent-encoded character
        for part in (
            re.findall(r"[^\"\s:{},]{8,}", secret)
            if '"' in secret and not finding.rule_id.startswith(_OURS)
            else [secret]
        ):
            if is_set:
                part = without_closing(part)
                if not (part.isdigit() or has_form_of_password(part)):
                    continue
            if part:
                yield Find(kind, part)


_PAGE_TOKEN = re.compile(
    rb"(?i)(?:page|continuation|next|sync|resume|cursor)[_-]?token[\"'\]\\]{0,3}\s{0,3}[:=]\s{0,3}[\"']?$"
)


_HELPING_SECRET = re.compile(r"(?:secret|key|token|passphrase)(?:\.\d+)?$")
_KIND_OF_RULE = (
    ("PRIVATE_KEY", re.compile(r"private-key$")),
    ("CONNECTION_STRING", re.compile(r"connection-string$")),
    ("PASSWORD", re.compile(r"password$|credential-uri$|passphrase$")),
    ("TOKEN", re.compile(r"token|jwt|-pat\b|webhook")),
)


@cache
def _kind_of_rule(rule_id: str) -> str:
    if rule_id.startswith(_OURS):
        return rule_id.split(".")[1]
    return next((kind for kind, names in _KIND_OF_RULE if names.search(rule_id)), "API_KEY")


_NAMES = tuple(map(re.compile, (b"pwd", b"secret", b"token", b"key", b"contrase", b"pass")))
"""Patterns for the beginnings of secret names. A single pattern for all of them would be five times
slower.
"""
_PASS = (b"passw", b"passphrase", b"passcode")
_ASSIGNMENT = re.compile(r"\w{0,24}[\"'\]\\]{0,3}(?:\s{0,3}(?::?=|:|\(|\bis\b)|\t)")
_LONGEST_AFFIX = 24
_WORD_BEFORE = re.compile(r"[\w.$-]*$")
_VALUE = re.compile(r"[=>]{0,2}\s{0,16}\S{0,202}")
_IS = re.compile(r"(?<=\w)\s+is\s+(?=\S)")
_CODE = re.compile(r"[(){}\[\]<>]|^\$|^https?:|^[*.\-_xX]+$")
_END_OF_BARE = re.compile(r"[\s;,]|&(?=\w+=)")
_PASSWORD_NAME = re.compile(r"pass|pwd|contrase", re.IGNORECASE)


def _assigned(text: str, flat: bytes) -> Iterator[Find]:
    """Yield the secrets that are recognized only by the name before them."""
    lowered = flat.lower()
    starts = {match.start() for name in _NAMES for match in name.finditer(lowered)}
    for start in starts:
        if lowered.startswith(b"pass", start) and not (
            lowered.startswith(_PASS, start) or lowered[start - 1 : start] in (b"_", b"b")
        ):
            continue  # a word such as passenger
        finds: tuple[Find, ...] = ()
        if assignment := _ASSIGNMENT.match(text, start):
            word_before = _WORD_BEFORE.search(text, max(0, start - _LONGEST_AFFIX), start)
            name = (word_before.group() if word_before else "") + assignment.group()
            finds = _assigned_in(name, _VALUE.match(text, assignment.end()).group())  # type: ignore[union-attr]
        if not finds and (spoken_name := _SPOKEN.match(text, start)):
            finds = _spoken(text, start, spoken_name)
        yield from finds


_REDACTED = re.compile(rf"\W*?{PSEUDONYM.pattern}")
_QUOTED = re.compile("[\"'`]")
_NAME_OF_NO_SECRET = re.compile(
    r"(?:(?:page|continuation|next|sync|resume|cursor)[_-]?token|secretar(?:y|ies)"
    r"|(?:token|secret|key|password|passwd|pwd)s?[_-]?(?:type|name|variable|field|label|hint|policy|count|limit|length|format|status))"
    r"[\"'\]\\]{0,3}\s{0,3}(?::?=|:|\(|\bis\b)$",
    re.IGNORECASE,
)
"""Names that do not contain a secret: names of values that tools need, such as the token of a
list's next page, and names that describe a secret.
"""


@lru_cache(maxsize=1 << 14)
def _assigned_in(name: str, rest: str, any_word: bool = True) -> tuple[Find, ...]:
    """Return the secret that detect-secrets finds in an assignment.

    detect-secrets reads only the name and the text up to the next blank. In a longer text it would
    use only the first name per line, and it would ignore lines with a word such as `example`.

    Args:
        name: The name and the assignment sign.
        rest: The text after the sign, up to the next blank.
        any_word: Whether a password in quotes may be an ordinary word.
    """
    from detect_secrets.filters.heuristic import is_templated_secret
    from detect_secrets.plugins.keyword import (
        CONFIG_DENYLIST_REGEX_TO_GROUP,
        QUOTES_REQUIRED_DENYLIST_REGEX_TO_GROUP,
        KeywordDetector,
    )

    if _REDACTED.match(rest) or _NAME_OF_NO_SECRET.search(name):
        return ()
    assignment = _IS.sub(": ", (name[:-1] + ":" if name.endswith("\t") else name) + rest)
    named = bool(_PASSWORD_NAME.search(name))
    kind = "PASSWORD" if named else "TOKEN" if "token" in name.lower() else "API_KEY"
    for quoted, forms in (
        (True, QUOTES_REQUIRED_DENYLIST_REGEX_TO_GROUP),
        (False, CONFIG_DENYLIST_REGEX_TO_GROUP),
    ):
        if quoted and not _QUOTED.search(rest):
            continue  # saves half of the time
        for value in KeywordDetector().analyze_string(assignment, forms):
            secret = value if quoted else _END_OF_BARE.split(value, maxsplit=1)[0].rstrip(".:!?)\\")
            is_of_this_name = secret and not re.search(r"\w", rest[: rest.find(secret)])
            if (
                is_of_this_name
                and _is_secret(secret, quoted, named and any_word)
                and not is_templated_secret(secret)
            ):
                return (Find(kind, secret),)
    return ()


_SPOKEN = re.compile(
    r"(?:passw(?:or)?d|passphrase|passcode|pwd|contrase\wa)"
    r"(?:(?:\s(?:for|of|on)(?:\s[^\s:=,;]{1,40}){1,4}?)?"
    r"(?:(?P<is>\s(?:is|was|(?:will|should|must) "
    r"be)\b:?|\s?[:=])|(?P<to>\s(?:to|with)\b)))?\s+(?=\S)",
    re.IGNORECASE,
)
"""The ways in which people name a password: `password for the server is`, `password to`, or
`password` directly before the value.
"""
_CHANGING = re.compile(
    r"\b(?:chang|set|updat|reset|rotat|replac)\w{0,4}\s[^.:;\n]*$", re.IGNORECASE
)
_USING = re.compile(
    r"\b(?:with|and|use|using|enter|type|try)\s(?:(?:the|my|this|a)\s)?(?:\w+\s)?$", re.IGNORECASE
)
_QUOTE = re.compile(r"[\"'`\u2018-\u201f\u00ab\u00bb]")


def _spoken(text: str, start: int, name: re.Match[str]) -> tuple[Find, ...]:
    """Return the password that follows its name in a sentence: `update the password to 'x'`, `log
    in with password x`.

    Args:
        text: The text.
        start: The index at which the name begins.
        name: The match of `_SPOKEN`.
    """
    before = text[max(0, start - 40) : start]
    if name["to"]:
        if not _CHANGING.search(before):
            return ()
    elif not (name["is"] or _QUOTE.match(text, name.end()) or _USING.search(before)):
        return ()
    value = _VALUE.match(text, name.end()).group()  # type: ignore[union-attr]
    return _assigned_in(
        "password: ",
        _QUOTE.sub('"', value, count=2) if _QUOTE.match(value) else value,
        bool(name["is"] or name["to"]),
    )


def _is_secret(value: str, quoted: bool, password: bool) -> bool:
    """Return whether an assigned value can be a secret, and is not a sentence, a word, code or a
    count.

    Args:
        value: The value.
        quoted: Whether the value is in quotes.
        password: Whether the name is the name of a password.
    """
    if (
        not _SHORTEST_PASSWORD <= len(value) <= _LONGEST_PASSWORD
        or _CODE.search(value)
        or any(character.isspace() for character in value)
    ):
        return False
    if quoted and password:
        return not _PLACEHOLDER.fullmatch(value)
    return any(character.isdigit() for character in value) and any(
        character.isalpha() for character in value
    )


_PLACEHOLDER = re.compile(
    r"(?:(?:new|old|your|my|the|current|user|required|optional|hidden|masked|redacted|string|password|passwd|secret|token|value)[_-]?)+",
    re.IGNORECASE,
)
"""Pattern of placeholders for a password in a schema or an example. For example, replacing `string`
everywhere would break the schemas of tools.
"""
_LONGEST_LOCAL_PART, _LONGEST_DOMAIN = 64, 255
_EMAIL = re.compile(r"\w[\w.%+'-]{0,63}@[^\W_](?:[\w-]*\.)+[^\W\d_]{2,}", re.UNICODE)


def _emails(text: str, flat: bytes) -> Iterator[Find]:
    addresses = list(_addresses_in(text, flat))
    yield from (Find("EMAIL", address) for address in addresses)
    yield from names_given_away(addresses, text)


def _addresses_in(text: str, flat: bytes) -> Iterator[str]:
    position, done = flat.find(b"@"), 0
    while position >= 0:
        between = text[position - 1 : position + 2]
        may_be = between[-1:].isalnum() and (between[:1].isalnum() or between[:1] in "_.%+'-")
        if may_be and (
            match := _EMAIL.search(
                text, max(done, position - _LONGEST_LOCAL_PART), position + _LONGEST_DOMAIN
            )
        ):
            if not match.group().startswith("git@"):  # the address of a repository
                yield match.group()
            done = match.end()
        position = flat.find(b"@", max(position + 1, done))


_ADDRESS = re.compile(
    r"(?<![\w.:-])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}|[0-9a-fA-F]{2}(?:-[0-9a-fA-F]{2}){5})(?![\w.:-])"
)


def _addresses(text: str, flat: bytes) -> Iterator[Find]:
    from stdnum import mac

    for match in _ADDRESS.finditer(text):
        if mac.is_valid(match.group(), validate_manufacturer=False):
            yield Find("IP", match.group())
            continue
        try:
            address = ipaddress.ip_address(match.group())
        except ValueError:
            continue
        if not (address.is_loopback or address.is_unspecified):
            yield Find("IP", match.group())
