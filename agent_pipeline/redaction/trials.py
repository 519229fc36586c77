"""The private values of all trials of a task, and the search for them in the task's other trials."""

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
"""A pattern that matches one word or a short number, which may mean something else in another
conversation.
"""


class Known:
    """The private values that were found in the trials of one task.

    The time of a search depends on the length of the text and not on the number of values. An
    address is also found by its owner's name if the name has at least two parts. A run holds one
    instance per task, so the values are stored as bytes until the first search.
    """

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written = bytearray()

    def add(self, values: Mapping[str, str], same_task: bool) -> None:
        """Add the private values of one trial, with their kinds.

        If `same_task` is false, the trial shares only its first message with the task. Common words
        and short numbers are then left out.
        """
        for written, kind in values.items():
            value = unescaped_text(written)
            if same_task or not _COMMON.fullmatch(value):
                self._written += msgspec.json.encode((value, kind)) + b"\n"

    def within(self, text: str, regions: tuple[str, ...] = ()) -> dict[str, str]:
        """Return the values that a redacted text contains in any form, with their kinds.

        A word that the text also contains in lower case is not a name. An address is returned if
        the text contains its owner's name.

        Args:
            text: The redacted text.
            regions: The countries whose telephone numbers may lack the country code.
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
    """The private values that are known, prepared for a search.

    Attributes:
        by_run: The values by a word or number that every text with the value contains.
        kinds: The kind of each value.
        numbers: A search for numbers, which have many forms.
    """

    by_run: dict[str, set[str]]
    kinds: dict[str, str]
    numbers: Search


@lru_cache(maxsize=64)
def _look_up(known: Known, _: int, regions: tuple[str, ...]) -> _KnownValues:
    """Return the private values that are known, prepared for a search.

    `_` is their size in bytes. It is a key of the cache, so that the cache notices new values.
    """
    by_run: dict[str, set[str]] = {}
    kinds: dict[str, str] = {}
    for value, kind in map(msgspec.json.decode, known._written.splitlines()):
        kinds[value] = min(kind, kinds.get(value, kind), key=KINDS.index)
        if kind == "EMAIL":
            words = _LETTERS.findall(plain(value).partition("@")[0].partition("+")[0].lower())
            # The owner's name may be written with or without a separator.
            run_options = {words[-1], words[0], "".join(words)} if len(words) > 1 else set()
        else:
            run_options = set(_RUN.findall(value.lower())[:1]) if kind not in NUMERIC else set()
        for run in run_options:
            if len(run) >= _FEWEST_LETTERS_OF_NAME:
                by_run.setdefault(run, set()).add(value)
    numbers = Search({value: kind for value, kind in kinds.items() if kind in NUMERIC}, regions)
    return _KnownValues(by_run, kinds, numbers)
