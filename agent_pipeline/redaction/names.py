"""The detection of names: names that e-mail addresses give away, and names that a spaCy model
finds.

For example, if noah.brown7@example.com occurs in a session, Noah and Brown are private names.
"""

import calendar
import re
from collections.abc import Container, Iterable, Iterator
from functools import cache
from typing import Any

from agent_pipeline.errors import RedactionError
from agent_pipeline.redaction.kinds import Find
from agent_pipeline.redaction.owners import FEWEST_LETTERS, LETTERS, Owner, owner_of
from agent_pipeline.redaction.values import Values, lowered

_CAPITAL = r"[A-Z\u00c0-\u00de]"
_REST = r"(?:[^\W\d_]|['\u2019-](?=[^\W\d_]))"
_PAIR = re.compile(
    rf"(?P<one>{_CAPITAL}(?<![^\W_].){_REST}*\.?)(?=(?P<between>[ \u00a0]|, "
    rf"|\",\s?\"(?P<key>[a-z]+)[ _]?[nN]ame\":\s?\")"
    rf"(?P<two>{_CAPITAL}{_REST}+)(?![^\W_]))"
)
"""A pattern that matches the two words of a name: `Noah Brown`, `Brown, Noah`, `"first_name":
"Noah", "last_name": "Brown"`. It begins with the capital letter, because a search for a class of
characters is fast.
"""
_ID = re.compile(r"(?P<one>[^\W\d_]+)(?:[._-](?P<two>[^\W\d_]+))?[._-]?\d+(?![\w.+%'-]*@)")
"""A pattern that matches an id that may be made from a name: `ana_lopez_4471`, `analopez7`."""
_DAYS_AND_MONTHS = frozenset([*calendar.month_name, *calendar.day_name])


def names_given_away(addresses: Iterable[str], text: str) -> Iterator[Find]:
    """Yield the names of the addresses' owners as they are written in the text.

    The first and the last name are separate values. So the first name that a user gives matches the
    first name in a call's arguments. A name is yielded only if the whole name is in the text,
    either capitalized or in an id such as `ana_lopez_4471`.
    """
    owners = {owner for address in addresses if (owner := owner_of(address))}
    joined = {owner.letters for owner in owners if len(owner.letters) >= FEWEST_LETTERS}
    initials = {owner.words[0][0] + owner.words[-1] for owner in owners if len(owner.words) > 1}
    if not joined:
        return
    for pair in _PAIR.finditer(text):
        one, two = pair["one"], pair["two"]
        first, last = (LETTERS.sub("", name).lower() for name in (one, two))
        if pair["between"] == ", " or pair["key"] in ("first", "given"):
            first, last = last, first
        is_given_away = first + last in joined or (
            len(first) > 1 and len(last) > 1 and last + first in joined
        )
        if is_given_away or (
            len(last) >= 3 and first[0] + last in (initials if len(first) == 1 else joined)
        ):
            yield from (
                Find("NAME", part)
                for part in (one.rstrip("."), two)
                if len(part) > 1 and part not in _DAYS_AND_MONTHS
            )
    yield from _names_in_ids(owners, joined, text)


def _names_in_ids(owners: Iterable[Owner], joined: Container[str], text: str) -> Iterator[Find]:
    """Yield the capitalized words of a text that also form an id, if the id is made from an owner's
    name.

    Args:
        owners: The owners of the addresses.
        joined: The letters of the owners' names.
        text: The text.
    """
    words = {
        owner.letters: owner.words
        for owner in owners
        if len(owner.words) == 2 and owner.letters in joined
    }
    beginnings = {word for pair in words.values() for word in pair}
    small, names = lowered(text), set[str]()
    for start, _ in Values(beginnings, at_words=True).occurrences(small) if beginnings else ():
        match = _ID.match(small, start)
        if match is None or (start and small[start - 1].isalnum()):
            continue
        one, two = match["one"], match["two"] or ""
        if one + two in words or (two and two + one in words):
            names.update((one, two) if two else words[one])
    capitalized = {name.capitalize() for name in names} - _DAYS_AND_MONTHS
    for start, name in Values(capitalized, at_words=True).occurrences(text) if capitalized else ():
        if not (
            text[start - 1 : start].isalnum()
            or text[start + len(name) : start + len(name) + 1].isalnum()
        ):
            yield Find("NAME", name)


_LONGEST_PART = 20_000
_PARTS = re.compile(rf"(?s).{{1,{_LONGEST_PART}}}(?:\n|$)|.{{1,{_LONGEST_PART}}}")
_KIND_OF_ENTITY = {
    "PERSON": "PERSON",
    "PER": "PERSON",
    "GPE": "LOCATION",
    "LOC": "LOCATION",
    "FAC": "LOCATION",
}
_NAME_PART = re.compile(r"[^\W\d_](?:[^\W\d_]|['\u2019.-](?=[^\W\d_]))+")
_NO_PLACE = re.compile(r'["{}\[\]_\n<>=]')


def entities(pipeline: Any, text: str, flat: bytes) -> Iterator[Find]:
    """Yield people and places that a spaCy pipeline finds (`PERSON`, `LOCATION`).

    The text is read in parts of at most 20,000 characters. A person's first and last name are
    separate values.
    """
    for document in pipeline.pipe(part.group() for part in _PARTS.finditer(text)):
        for entity in document.ents:
            kind = _KIND_OF_ENTITY.get(entity.label_)
            if kind == "PERSON":
                yield from (
                    Find(kind, part)
                    for part in _NAME_PART.findall(entity.text)
                    if part[0].isupper() and not part.isupper()
                )
            elif kind and not _NO_PLACE.search(entity.text) and not entity.text.isupper():
                yield Find(kind, entity.text)


@cache
def spacy_pipeline(model: str) -> object:
    """Load an installed spaCy pipeline by its name.

    Raises:
        RedactionError: spaCy or the pipeline is not installed.
    """
    try:
        import spacy

        return spacy.load(
            model, exclude=["tagger", "parser", "attribute_ruler", "lemmatizer", "morphologizer"]
        )
    except (ImportError, OSError) as error:
        raise RedactionError(
            f"The spaCy pipeline {model!r} (the setting `redaction.ner_model`) cannot be loaded, "
            "but `redaction.types` names people or places: install agent-pipeline[ner] and the "
            f"pipeline (`python -m spacy download {model}`), or remove PERSON and LOCATION from "
            "`redaction.types`."
        ) from error
