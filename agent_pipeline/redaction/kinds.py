"""The kinds of private data: ours, and those that other packages register."""

import re
from importlib.metadata import distributions, entry_points
from typing import NamedTuple

REDACTORS = "agent_pipeline.redactors"
"""Entry points of other packages, by kind (`PASSPORT`): each a function of a text that yields the private values in it."""

REGISTERED = {entry.name: entry for entry in sorted(entry_points(group=REDACTORS))}
KINDS = (
    "PRIVATE_KEY",
    "CONNECTION_STRING",
    "API_KEY",
    "TOKEN",
    "PASSWORD",
    "EMAIL",
    "IBAN",
    "CARD",
    "SSN",
    "PASSPORT",
    "NATIONAL_ID",
    "PHONE",
    "ACCOUNT",
    "NAME",
    "PERSON",
    "LOCATION",
    "IP",
    *REGISTERED,
)
"""All kinds; a value that is of several kinds is of the first."""

_REGISTERED_BY = sorted({entry.dist.name for entry in REGISTERED.values() if entry.dist})
_OPTIONAL = [name for name in ("spacy",) if any(distributions(name=name))]
LIBRARIES = ("kingfisher-secret-scanner", "bc-detect-secrets", "phonenumbers", "python-stdnum", *_OPTIONAL, *_REGISTERED_BY)
"""Whose versions decide on what is found, and so on what is written."""

OPT_IN = ("IP", "PERSON", "LOCATION")
"""Kinds that are looked for only when the settings name them: version numbers look like addresses; people and places need a model."""

WORDS = frozenset(KINDS) - {"PRIVATE_KEY", "CONNECTION_STRING", "API_KEY", "TOKEN", "EMAIL"}
"""Kinds whose values are short: part of a longer word or number is not the value."""

PSEUDONYM = re.compile(rf"<(?P<kind>{'|'.join(KINDS)})_(?P<number>[1-9]\d*)>")


class Find(NamedTuple):
    """A private value, as it stands in the text."""

    kind: str
    value: str
