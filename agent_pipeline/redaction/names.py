"""Names: those that e-mail addresses give away (noah.brown7@example.com is Noah Brown elsewhere in a session), and those a model finds."""

import calendar
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from agent_pipeline.errors import RedactionError
from agent_pipeline.redaction.kinds import Find
from agent_pipeline.redaction.pseudonyms import Values

_CAPITAL = r"[A-Z\u00c0-\u00de]"
_REST = r"(?:[^\W\d_]|['\u2019-](?=[^\W\d_]))"
_PAIR = re.compile(
    rf"(?<![^\W_])(?P<one>{_CAPITAL}{_REST}*\.?)(?=(?P<between>[ \u00a0]|, |\",\s?\"(?P<key>[a-z]+)[ _]?[nN]ame\":\s?\")"
    rf"(?P<two>{_CAPITAL}{_REST}+)(?![^\W_]))"
)
"""Two words of a name: `Noah Brown`, `Brown, Noah`, `"first_name": "Noah", "last_name": "Brown"`."""
_IN_ID = re.compile(r"[\w.+-]")
_IN_ADDRESS = re.compile(r"[\w+@-]|\.\w")
_HYPHENED = re.compile(r"[^\W\d_]+-[^\W\d_]+[^._]*")
_WORD = re.compile(r"[^\W\d_]+")
_LETTERS = re.compile(r"[\W\d_]+")
_FEWEST_LETTERS = 5
_ROLES = re.compile(
    r"(?:^|[\W\d_])(?:info|support|sales|help|customer|service|services|no|reply|noreply|team|manager|admin|contact|office|billing|security|hello|news|"
    r"marketing|tech|hr|events?|travels?|deals|promotions|account|accounts|networking|participants|members|group|list|staff|everyone|orders?|shop|store|mail|com|user|test)(?![^\W\d_])"
)
_DAYS_AND_MONTHS = frozenset([*calendar.month_name, *calendar.day_name])


def names_given_away(addresses: Iterable[str], text: str) -> Iterator[Find]:
    """The names of the addresses' owners as the text says them, each part by itself, and what stands before the @ where it is a word.

    The parts are separate values, so that the first name that a user says is the one in a call's arguments. A part is taken only where
    the whole name stands, capitalised, in the text.
    """
    owners = {address.partition("@")[0] for address in addresses}
    owners = {owner for owner in owners if not (_ROLES.search(owner.lower()) or _HYPHENED.fullmatch(owner))}
    joined = {_LETTERS.sub("", owner).lower() for owner in owners}
    joined = {letters for letters in joined if len(letters) >= _FEWEST_LETTERS}
    initials = {parts[0][0] + parts[-1] for owner in owners if len(parts := _WORD.findall(owner.lower())) > 1}
    if not joined:
        return
    ids = dict.fromkeys((owner for owner in owners if len(owner) > _FEWEST_LETTERS and not owner.isalpha()), "NAME")
    for start, _, owner in Values(ids).occurrences(text) if ids else ():
        if not ((start and _IN_ID.match(text, start - 1)) or _IN_ADDRESS.match(text, start + len(owner))):
            yield Find("NAME", owner)
    for pair in _PAIR.finditer(text):
        one, two = pair["one"], pair["two"]
        first, last = (_LETTERS.sub("", each).lower() for each in (one, two))
        if pair["between"] == ", " or pair["key"] in ("first", "given"):
            first, last = last, first
        if first + last in joined or (len(last) >= 3 and first[0] + last in (initials if len(first) == 1 else joined)):
            yield from (Find("NAME", part) for part in (one.rstrip("."), two) if len(part) > 1 and part not in _DAYS_AND_MONTHS)


_LONGEST_PART = 20_000
_PARTS = re.compile(rf"(?s).{{1,{_LONGEST_PART}}}(?:\n|$)|.{{1,{_LONGEST_PART}}}")
_KIND_OF_ENTITY = {"PERSON": "PERSON", "PER": "PERSON", "GPE": "LOCATION", "LOC": "LOCATION", "FAC": "LOCATION"}
_NAME_PART = re.compile(r"[^\W\d_](?:[^\W\d_]|['\u2019.-](?=[^\W\d_]))+")
_NO_PLACE = re.compile(r'["{}\[\]_\n<>=]')


def entities(pipeline: Any, text: str, flat: bytes) -> Iterator[Find]:
    """People and places as a spaCy pipeline finds them (`PERSON`, `LOCATION`), in parts of at most 20,000 characters; a person's names are
    separate values."""
    for document in pipeline.pipe(part.group() for part in _PARTS.finditer(text)):
        for entity in document.ents:
            kind = _KIND_OF_ENTITY.get(entity.label_)
            if kind == "PERSON":
                yield from (Find(kind, part) for part in _NAME_PART.findall(entity.text) if part[0].isupper() and not part.isupper())
            elif kind and not _NO_PLACE.search(entity.text) and not entity.text.isupper():
                yield Find(kind, entity.text)


@cache
def spacy_pipeline(model: str) -> Any:
    """An installed spaCy pipeline by its name; raises RedactionError where spaCy or the pipeline is not installed."""
    try:
        import spacy

        return spacy.load(model, exclude=["tagger", "parser", "attribute_ruler", "lemmatizer", "morphologizer"])
    except (ImportError, OSError) as error:
        raise RedactionError(
            f"redaction.types names people or places, and the spaCy pipeline {model!r} (redaction.ner_model) cannot be loaded: install "
            f"agent-pipeline[ner] and the pipeline (python -m spacy download {model}), or take PERSON and LOCATION out of redaction.types."
        ) from error
