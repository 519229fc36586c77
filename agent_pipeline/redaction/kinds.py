"""The kinds of private data: ours, and those that other packages register."""

import re
from importlib.metadata import distributions, entry_points
from typing import NamedTuple

REDACTORS = "agent_pipeline.redactors"
"""Entry points of other packages, by kind (`PASSPORT`): each a function of a text that yields the
private values in it.
"""

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
LIBRARIES = (
    "kingfisher-secret-scanner",
    "bc-detect-secrets",
    "phonenumbers",
    "python-stdnum",
    *_OPTIONAL,
    *_REGISTERED_BY,
)
"""Whose versions decide on what is found, and so on what is written."""

OPT_IN = ("IP", "PERSON", "LOCATION")
"""Kinds that are looked for only when the settings name them: version numbers look like addresses;
people and places need a model.
"""

WORDS = frozenset(KINDS) - {"PRIVATE_KEY", "CONNECTION_STRING", "API_KEY", "TOKEN", "EMAIL"}
"""Kinds whose values are short: part of a longer word or number is not the value."""

PSEUDONYM = re.compile(
    rf"<(?P<kind>{'|'.join(KINDS)})_(?P<number>[1-9]\d*)(?::(?P<part>[a-z0-9-]+))?>"
)
"""A pseudonym: a kind, the number of a value, and perhaps which part or form of the value it stands
for.

| part | what it stands for |
|---|---|
| `last4` | the last four digits or letters of the value |
| `5-12` | the characters 5 to 12 of the value without separators |
| `local` | what stands before the @ of an address |
| `lower`, `upper`, `initial` | a name in small letters, in capitals, its first letter |
| `of-3-2` | the address of the person whose names are `<NAME_3>` and `<NAME_2>`; perhaps followed by `-local` |

An address without `of` has the number n, and its owner's names have the numbers 2n - 1 and 2n.
"""


class Find(NamedTuple):
    """A private value, as it stands in the text."""

    kind: str
    value: str
