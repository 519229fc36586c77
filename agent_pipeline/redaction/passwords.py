"""The detection of passwords that follow a name such as `password`, in configuration files, code,
tables and sentences of several languages.

`detectors` calls detect-secrets first. This module finds the passwords that detect-secrets does not
find: passwords with brackets or without a digit, columns of tables, and names of passwords in other
languages than English. Commands and markup are in `rules.yaml`. The patterns are tried only at the
names, and they read a limited number of characters.
"""

import re
from collections.abc import Iterator

from agent_pipeline.redaction.kinds import PSEUDONYM, Find

MIN_LENGTH, MAX_LENGTH = 6, 200

_PASSWORD = (
    r"passwor[dt]e?n?|passwd|passphrase|passcode|pwd|contrase\wa|kennwort|mot de "
    r"passe|mdp|senha|wachtwoord|l\wsenord"
    r"|has\wo|heslo|parola|palavra-passe|clave"
)
_NAMES = (
    b"passw", b"passphrase", b"passcode", b"pwd", b"contrase", b"secret", b"_pass", b"kennwort", b"mot de passe", b"mdp",
    b"senha", b"wachtwoord", b"senord", b"has?o", b"heslo", b"clave ", b"parola", b"pass=", b"auth_key", b"-passe",
)  # fmt: skip
"""Texts of which every name of a password contains at least one, in lower case. A `?` stands for a
character beyond Latin-1.
"""
_NAMES_BEYOND_LATIN_1 = (
    "密码",
    "密碼",
    "口令",
    "パスワード",
    "비밀번호",
    "пароль",
    "Пароль",
    "ПАРОЛЬ",
)
_NAME = re.compile(
    rf"(?:{_PASSWORD}|pass(?==)|secret(?:[_-]?key)?|auth_key|{'|'.join(_NAMES_BEYOND_LATIN_1)})(?:[_-]?[A-Za-z0-9_-]{{1,16}})?",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(
    r"(?P<closing>[\"'\]\\)]{0,3})(?:\s(?:for|of|on|für|vom|pour|de|du|del|para|per|voor|do|da|till)(?:\s[^\s:=,;<>]{1,30}){1,3}?)?"
    r"(?:(?P<sign>[ \t\u00a0]{0,3}(?::=|=>|->|\u2192|=|:|\uff1a|(?<=[码碼令])\s?(?![是为為]))[ "
    r"\t\u00a0]{0,3})"
    r"|(?P<verb>\s(?:is|was|ist|lautet|war|est|es|è|é|är|jest|to|c'est)\s(?::\s)?|\s?(?:是|为|為|は|가|는|은)\s?)"
    r"|(?P<gap>[ \u00a0]{0,3}\t[ \t\u00a0]{0,8}|\s{1,3}(?=[\"'`\u201c\u201e\u2018\u00ab])))"
)
_OPENING_QUOTES = {
    "'": "'",
    '"': '"',
    "`": "`",
    "\u201c": "\u201d",
    "\u201e": "\u201c",
    "\u2018": "\u2019",
    "\u00ab": "\u00bb",
}
_BARE = re.compile(rf"\S{{1,{MAX_LENGTH + 1}}}")
_END_OF_BARE = re.compile(
    "[;,\uff0c\u3002\uff1b\u3001\"`]|'|&(?=\\w+=)|</|<br|\\\\[nrt]|です|,(?=\\w+=)"
)
_BRACKETS = {")": "(", "]": "[", "}": "{", ">": "<"}


def written_passwords(text: str, flat: bytes) -> Iterator[Find]:
    """Yield the secrets that follow the name of a password or of a secret."""
    lowered = flat.lower()
    has_pass = b"pass" in lowered
    for name in _NAMES:
        if not has_pass and b"pass" in name:
            continue
        start = lowered.find(name)
        while start >= 0:
            yield from _after_name(text, start + (name[:1] in b"_-"))
            start = lowered.find(name, start + len(name))
    if not text.isascii():
        for word in _NAMES_BEYOND_LATIN_1:
            start = text.find(word)
            while start >= 0:
                yield from _after_name(text, start)
                start = text.find(word, start + len(word))


def _after_name(text: str, start: int) -> Iterator[Find]:
    name = _NAME.match(text, start) or _NAME.match(text, max(0, start - 1))
    separator = _SEPARATOR.match(text, name.end()) if name else None
    if name is None or separator is None:
        return
    whole_name = _NAME_BEFORE.search(text, max(0, start - 24), name.start())[0] + name.group()  # type: ignore[index]
    if _NAME_OF_OTHER.search(whole_name):
        return
    place = separator.end()
    is_password = not re.match(r"secret|auth", name.group(), re.IGNORECASE)
    if closing := _OPENING_QUOTES.get(text[place : place + 1]):
        end = text.find(closing, place + 1, place + MAX_LENGTH + 2)
        value = text[place + 1 : end] if end > 0 else ""
        if (
            (separator["verb"] or separator["gap"])
            and not _has_digit_and_letter(value)
            and not _MARK_WITHIN.search(value)
        ):
            return
        accepted = has_form_of_password(value) if is_password else has_form_of_key(value)
    else:
        value = _within_brackets(text, place) or _bare_value(text, place)
        accepted = has_form_of_key(value) and not _is_verb_of_change(separator["verb"])
        if not accepted and is_password and not separator["gap"]:
            accepted = _is_word_that_is_a_password(text, whole_name, name.start(), separator, value)
    if accepted:
        yield Find("PASSWORD" if is_password else "API_KEY", value)


_NAME_BEFORE = re.compile(r"[\w.$-]*$")
_NAME_OF_OTHER = re.compile(
    r"(?:type|name|variable|field|label|hint|policy|count|limit|length|format|status|id|arn|path|file|url|ary|aries|reset|required"
    r"|manager|store|prompt|error|message|regex|pattern|rules?|strength|age|min|max|expiry|vault|ref|version)$",
    re.IGNORECASE,
)
"""Endings of names that describe a password but do not contain it."""


def _is_verb_of_change(verb: str | None) -> bool:
    return bool(verb) and verb.strip() == "to"  # type: ignore[union-attr]


def _bare_value(text: str, place: int) -> str:
    """Return the value without quotes that begins at a place, without the punctuation of its
    sentence.
    """
    match = _BARE.match(text, place)
    if match is None or len(match.group()) > MAX_LENGTH:
        return ""
    value = _END_OF_BARE.split(match.group(), maxsplit=1)[0].rstrip(".:!?)\\]}>*|")
    tail = match.group()[len(value) :]
    # A closing bracket belongs to the value if the value contains the matching opening bracket.
    while tail[:1] in _BRACKETS and value.count(_BRACKETS[tail[0]]) > value.count(tail[0]):
        value, tail = value + tail[0], tail[1:]
    return value


_IN_BRACKETS = re.compile(
    r"(?:\((?P<round>[^\s()]{6,64})\)|\[(?P<square>[^\s\[\]]{6,64})\]|<(?P<angle>[^\s<>/]{6,64})>)(?!\w)"
)


def _within_brackets(text: str, place: int) -> str:
    """Return the value in the brackets that open at a place, or an empty text if there are no
    brackets.
    """
    match = _IN_BRACKETS.match(text, place)
    if match is None or PSEUDONYM.match(text, place):
        return ""
    value = match[match.lastgroup or 0]
    return value if has_form_of_key(value) else ""


_CALL = re.compile(r"^[A-Za-z_][\w.]*(?:\((?:[^()]*)\)?|\[(?:[^\[\]]*)\]?)$")
_PLACEHOLDER_WORDS = (
    "new|old|your|my|the|a|an|current|user|users|username|required|optional|hidden|masked|redacted|string|password|passwords|passwd|pass"
    "|pwd|secret|token|value|values|reset|changed?|change[_-]?me|updated?|incorrect|correct|invalid|valid|wrong|expired|missing|unknown"
    "|forgotten|private|number|boolean|bool|integer|object|undefined|none|null|nil|true|false|default|example|sample|placeholder"
    "|encrypted|hashed|hash|plaintext|plain|text|prompt|stdin|generated?|random|manager|field|input|minimum|maximum|min|max|length|here"
    "|enter|type|confirm|confirmation|protected|enabled|disabled|strong|weak|secure|empty|blank|unset|basic|column|varchar|char|admin"
    "|not|set|is|to|must|should|please|option|options|parameter|argument|flag|key|hint|label|name|login|auth|env|var|variable|file|path"
    "|db|database|server|root|guest|system|for|of|access|account|email|mail|falsch|richtig|vergessen|ungültig|abgelaufen|erforderlich"
    "|geändert|incorrecte|incorrecta|requis|obligatoire|oublié|incorrecto|olvidada|requerida|onjuist|errata|obligatorio|obligatoria"
)
_PLACEHOLDER = re.compile(rf"(?:(?:{_PLACEHOLDER_WORDS})[_ .-]?)+\d?", re.IGNORECASE)
_MARK_WITHIN = re.compile(r"(?<=\w)[!@#$%^&*?~+=]|^[!@#$%^&*~+=]\w")


def is_reference(value: str) -> bool:
    """Return whether a value is not a secret itself, but a template, a call or a word such as
    `required`.
    """
    return bool(
        _CALL.search(value)
        or _TEMPLATE.search(value)
        or _PLACEHOLDER.fullmatch(value)
        or PSEUDONYM.search(value)
        or _ATTRIBUTE.search(value)
    )


_TEMPLATE = re.compile(
    r"^\$[{(]|^\$[A-Z_][A-Z0-9_]*$|^\$[a-z]\w*$|\{\{|^<[^<>]*>$|^%[sd({]|^[*.\-_xX\u2022#?]+$|^[a-z]{2,10}://|^[{\[(].*[)\]}]$|^[{\[]"
)
_ATTRIBUTE = re.compile(
    r"^(?:process\.env|os\.environ|os\.getenv)|^[A-Za-z_]\w*(?:(?:\.|->|::)[A-Za-z_]\w*)+$|^(?:vault|op|arn|ref):"
)


def has_form_of_password(value: str) -> bool:
    """Return whether a value in quotes or in a table cell can be a password: a single word that is
    not a reference.
    """
    if not MIN_LENGTH <= len(value) <= MAX_LENGTH or any(
        character.isspace() for character in value
    ):
        return False
    return not is_reference(value)


def has_form_of_key(value: str) -> bool:
    """Return whether a value without quotes can be a password.

    The value must have a letter and a digit, or letters and a punctuation mark inside, because
    ordinary words do not.
    """
    return has_form_of_password(value) and (
        _has_digit_and_letter(value) or _has_mark_and_letters(value)
    )


def _has_digit_and_letter(value: str) -> bool:
    return any(character.isdigit() for character in value) and any(
        character.isalpha() for character in value
    )


def _has_mark_and_letters(value: str) -> bool:
    return bool(_MARK_WITHIN.search(value)) and sum(map(str.isalpha, value)) >= 4


_WORDS = re.compile(r"[^\W\d_]{3,}(?:[-_.][^\W\d_]{2,})*")
_ORDINARY_ENDING = re.compile(
    r"(?:ed|ing|able|ible|tive|sive|ful|less|ous|ily|ally|tely|ntly|ary|ory|ical|tial|tion|ment|ness|ity|self|word|words)$",
    re.IGNORECASE,
)
_ORDINARY_WORDS = frozenset(
    [
        "different",
        "sensitive",
        "case-sensitive",
        "stronger",
        "weaker",
        "longer",
        "shorter",
        "simple",
        "complex",
        "sufficient",
        "insufficient",
        "nothing",
        "something",
        "anything",
        "somewhere",
        "between",
        "stored-in",
        "up-to-date",
        "out-of-date",
        "too-short",
        "too-long",
        "apparent",
        "special",
        "identical",
        "obvious",
        "outdated",
        "similar",
        "already",
        "still",
        "never",
        "always",
        "probably",
        "currently",
        "actually",
        "really",
        "somehow",
        "another",
        "whatever",
        "unchanged",
        "broken",
        "stolen",
        "written",
        "known",
        "hidden",
        "shown",
        "within",
        "before",
        "after",
        "because",
        "however",
        "because",
        "correct",
        "always",
        "included",
        "important",
        "essential",
        "dangerous",
        "guessable",
    ]
)
_LINE_START = re.compile(r"(?:^|[\n\"])[ \t]*(?:[-*>] )?(?:export )?[\"'$]?[\w.-]*$")
_SHORTEST_WORD_SAID = 8
_OWN = re.compile(r"\b(?:my|the|your|his|her|our|their)\s(?:\w{1,16}\s)?$", re.IGNORECASE)


def _is_word_that_is_a_password(
    text: str, name: str, start: int, separator: re.Match[str], value: str
) -> bool:
    """Return whether a word without a digit is a password.

    A word is a password if it is assigned without blanks, if it is the rest of its line, or if it
    ends its sentence.
    """
    if not _WORDS.fullmatch(value) or len(value) < MIN_LENGTH or is_reference(value):
        return False
    if re.search(r"pass|pwd|token", value, re.IGNORECASE):
        return False
    after = text[separator.end() + len(value) : separator.end() + len(value) + 3]
    if separator.group() == "=":
        return not after.startswith(("(", ".", "[")) and "_" not in value
    is_unusual = value.lower() not in _ORDINARY_WORDS and not _ORDINARY_ENDING.search(value)
    if not is_unusual or (len(value) < _SHORTEST_WORD_SAID and separator["sign"] is None):
        return False
    if separator["sign"] is not None:
        is_whole_line = not after.strip() or after.startswith(("\n", "\r", '"'))
        return (
            is_whole_line
            and bool(_LINE_START.search(text[max(0, start - 80) : start]))
            and "_" not in value
        )
    is_end = re.match(r"[!.]{0,2}(?:$|[\s,;\"])", after) and not re.match(r"\s\w", after)
    return bool(
        is_end
        and separator["verb"].strip() in ("is", "was")
        and _OWN.search(text[max(0, start - 40) : start])
    )


# Tables

_COLUMN = re.compile(
    rf"[\W_]*(?:\w{{1,16}}[ _-])?(?:{_PASSWORD}|pass|pw|密码|密碼|パスワード|пароль)[\W_]*",
    re.IGNORECASE,
)
_USER_COLUMN = re.compile(
    r"[\W_]*(?:\w{1,16}[ "
    r"_-])?(?:user|login|account|e-?mail|benutzer|utilisateur|usuario)\w{0,6}[\W_]*",
    re.IGNORECASE,
)
_RULER = re.compile(r"[|:\s+-]+")
_END_OF_JSON = re.compile(r"\"[\]},\s]*$")
_OPENINGS_OF_JSON = (': "', '["', ':"')
"""Texts after which the first line of a table begins, if the table is a string in a JSON text."""
_LONGEST_ROW = 2000
_LONGEST_HEADING = 40
_NAMES_OF_COLUMNS = (
    b"passw",
    b"passphrase",
    b"pwd",
    b"pass;",
    b"pass,",
    b"contrase",
    b"kennwort",
    b"mot de passe",
    b"mdp",
    b"senha",
    b"wachtwoord",
)


def passwords_in_tables(text: str, flat: bytes) -> Iterator[Find]:
    """Yield the cells of password columns in CSV, tab-separated and Markdown tables."""
    lowered = flat.lower()
    has_latin_name = any(name in lowered for name in _NAMES_OF_COLUMNS)
    if not has_latin_name and (
        text.isascii() or not any(name in text for name in _NAMES_BEYOND_LATIN_1)
    ):
        return
    heading: list[bool] | None = None
    delimiter, has_users = "", False
    for line in text.splitlines():
        if len(line) > _LONGEST_ROW:
            heading = None
            continue
        line = _END_OF_JSON.sub("", line)
        if heading is not None:
            cells = _cells(line, delimiter)
            if delimiter == "|" and _RULER.fullmatch(line):
                continue
            if len(cells) == len(heading):
                for is_password, cell in zip(heading, cells, strict=True):
                    if is_password and (
                        has_form_of_password(cell) if has_users else has_form_of_key(cell)
                    ):
                        yield Find("PASSWORD", cell)
                continue
            heading = None
        line = line[
            max(
                line.rfind(opening) + len(opening) if opening in line else 0
                for opening in _OPENINGS_OF_JSON
            ) :
        ]
        delimiter = next((mark for mark in ("|", "\t", ";", ",") if mark in line), "")
        if not delimiter:
            continue
        cells = _cells(line, delimiter)
        columns = [
            len(cell) <= _LONGEST_HEADING and bool(_COLUMN.fullmatch(cell)) for cell in cells
        ]
        if not any(columns) or len(cells) < 2:
            continue
        if delimiter == "|" and len(cells) == 2 and columns[0] and has_form_of_key(cells[1]):
            yield Find("PASSWORD", cells[1])
        if all(len(cell) <= _LONGEST_HEADING for cell in cells):
            heading, has_users = columns, any(map(_USER_COLUMN.fullmatch, cells))


def _cells(line: str, delimiter: str) -> list[str]:
    return [
        cell.strip(" \t\"'`*")
        for cell in line.strip(" \t" if delimiter == "|" else " ").strip("|").split(delimiter)
    ]
