"""What the trials of one task call private, and where another trial of it says the same."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from agent_pipeline.redaction.forms import NUMERIC, plain
from agent_pipeline.redaction.kinds import KINDS
from agent_pipeline.redaction.names import names_given_away
from agent_pipeline.redaction.search import Search
from agent_pipeline.redaction.texts import unescaped_text

_RUN = re.compile(r"[^\W\d_]+|\d+")
_LETTERS = re.compile(r"[^\W\d_]+")
_FEWEST_LETTERS_OF_NAME = 2
_COMMON = re.compile(r"[^\W\d_]+|\d{1,6}")
"""One word or a short number: in a conversation about something else it may mean something else."""


class Known:
    """The private values of a task's trials. Looking for them in a text takes time that grows with
    the text, not with their number.

    An address is found in a text by its own form; here it gives the name of its owner away, if it
    has two parts at least. A run holds one of each task: its values are bytes until they are looked
    for.
    """

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written = bytearray()

    def add(self, values: Mapping[str, str], same_task: bool) -> None:
        """What one trial calls private, by value its kind. Where only the first message says that
        it is the `same_task`, no common word.
        """
        for written, kind in values.items():
            value = unescaped_text(written)
            if same_task or not _COMMON.fullmatch(value):
                self._written += msgspec.json.encode((value, kind)) + b"\n"

    def within(self, text: str, regions: tuple[str, ...] = ()) -> dict[str, str]:
        """Those of the values that a redacted text says in any form, with their kinds; a word that
        it writes small too is not a name.

        An address is among them if the text names its owner. `regions` are the countries of
        telephone numbers.
        """
        values = _look_up(self, len(self._written), regions)
        runs = set(_RUN.findall(text))
        near = [
            value
            for run in values.by_run.keys() & {run.lower() for run in runs}
            for value in values.by_run[run]
        ]
        addresses = [value for value in near if values.kinds[value] == "EMAIL"]
        names = {name.value: name.kind for name in names_given_away(addresses, text)}
        if names:
            addresses = [address for address in addresses if any(names_given_away([address], text))]
            names |= dict.fromkeys(addresses, "EMAIL")
        kinds = {
            value: values.kinds[value]
            for value in near
            if values.kinds[value] != "NAME" or value.lower() not in runs
        }
        written = Search(kinds, regions).within([text]) | values.numbers.within([text])
        return names | {value: values.kinds[value] for value in written}


@dataclass(frozen=True)
class _KnownValues:
    """The known values, in the forms in which a text is searched for them.

    Attributes:
        by_run: The values by the word or number that a text with such a value must have.
        kinds: The kind of each value.
        numbers: A search for numbers, which have many forms.
    """

    by_run: dict[str, set[str]]
    kinds: dict[str, str]
    numbers: Search


@lru_cache(maxsize=64)
def _look_up(known: Known, _: int, regions: tuple[str, ...]) -> _KnownValues:
    """Return the known values; `_` is their size, so that the cache sees new values."""
    by_run: dict[str, set[str]] = {}
    kinds: dict[str, str] = {}
    for value, kind in map(msgspec.json.decode, known._written.splitlines()):
        kinds[value] = min(kind, kinds.get(value, kind), key=KINDS.index)
        if kind == "EMAIL":
            words = _LETTERS.findall(plain(value).partition("@")[0].partition("+")[0].lower())
            # Its owner may be written with or without a separator.
            run_options = {words[-1], words[0], "".join(words)} if len(words) > 1 else set()
        else:
            run_options = set(_RUN.findall(value.lower())[:1]) if kind not in NUMERIC else set()
        for run in run_options:
            if len(run) >= _FEWEST_LETTERS_OF_NAME:
                by_run.setdefault(run, set()).add(value)
    numbers = Search({value: kind for value, kind in kinds.items() if kind in NUMERIC}, regions)
    return _KnownValues(by_run, kinds, numbers)
