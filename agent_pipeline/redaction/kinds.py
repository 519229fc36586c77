"""The kinds of private data: the built-in kinds, and the kinds that other packages register."""

import re
from importlib.metadata import distributions, entry_points
from typing import NamedTuple

REDACTORS = "agent_pipeline.redactors"
"""The entry point group in which other packages register detectors. An entry point is named after
its kind (`PASSPORT`) and is a function that takes a text and yields the private values in it.
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
"""All kinds of private data. If a value matches several kinds, it gets the kind that comes first
here.
"""

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
"""The libraries whose versions affect which values are found, and therefore what is written."""

OPT_IN = ("IP", "PERSON", "LOCATION")
"""Kinds that are searched for only if the settings name them. Version numbers look like IP
addresses, and people and places need a model.
"""

WORDS = frozenset(KINDS) - {"PRIVATE_KEY", "CONNECTION_STRING", "API_KEY", "TOKEN", "EMAIL"}
"""Kinds with short values. A match within a longer word or number does not count as such a value.
"""

PSEUDONYM = re.compile(
    rf"<(?P<kind>{'|'.join(KINDS)})_(?P<number>[1-9]\d*)(?::(?P<part>[a-z0-9-]+))?>"
)
"""A pattern that matches a pseudonym. A pseudonym has a kind, the number of a value, and optionally
the part or form of the value that it replaces.

| part | replaces |
|---|---|
| `last4` | the last four digits or letters of the value |
| `5-12` | characters 5 to 12 of the value without separators |
| `local` | the part of an address before the @ |
| `lower`, `upper`, `initial` | a name in lower case, a name in upper case, the first letter of a
name |
| `of-3-2` | the address of the person whose names are `<NAME_3>` and `<NAME_2>`; `-local` may
follow |

If an address has number n and no `of` part, its owner's names have the numbers 2n - 1 and 2n.
"""


class Find(NamedTuple):
    """A private value as it is written in a text, and its kind."""

    kind: str
    value: str
