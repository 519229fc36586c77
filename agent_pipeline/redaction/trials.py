"""What the trials of one task call private, and where another trial of it says the same."""

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from agent_pipeline.redaction.kinds import KINDS
from agent_pipeline.redaction.names import names_given_away
from agent_pipeline.redaction.pseudonyms import Values
from agent_pipeline.redaction.texts import unescaped_text

_RUN = re.compile(r"[^\W\d_]+|\d+")
_LETTERS = re.compile(r"[^\W\d_]+")
_COMMON = re.compile(r"[^\W\d_]+|\d{1,6}")
"""One word or a short number: in a conversation about something else it may mean something else."""


class Known:
    """The private values of a task's trials. Looking for them in a text takes time that grows with the text, not with their number.

    An address is found in a text by its own form; here it gives the name of its owner away, if it has two parts at least. A run holds one
    of each task: its values are bytes until they are looked for.
    """

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written = bytearray()

    def add(self, values: Mapping[str, str], same_task: bool) -> None:
        """What one trial calls private, by value its kind. Where only the first message says that it is the `same_task`, no common word."""
        for written, kind in values.items():
            value = unescaped_text(written)
            if same_task or not _COMMON.fullmatch(value):
                self._written += msgspec.json.encode((value, kind)) + b"\n"

    def within(self, text: str) -> dict[str, str]:
        """Those of the values that a redacted text says, with their kinds; a word that it writes small too is not a name."""
        by_run, all_kinds = _looked_up(self, len(self._written))
        runs = set(_RUN.findall(text))
        near = [value for run in by_run.keys() & {run.lower() for run in runs} for value in by_run[run]]
        names = names_given_away([value for value in near if all_kinds[value] == "EMAIL"], text)
        kinds = {value: kind for value in near if (kind := all_kinds[value]) != "EMAIL" and not (kind == "NAME" and value.lower() in runs)}
        return {name.value: name.kind for name in names} | {value: kinds[value] for value in Values(kinds).within([text], kinds)}


@lru_cache(maxsize=64)
def _looked_up(known: Known, _: int) -> tuple[dict[str, set[str]], dict[str, str]]:
    """Values by the word or number that a text which says one must have, and their kinds."""
    by_run: dict[str, set[str]] = {}
    kinds: dict[str, str] = {}
    for value, kind in map(msgspec.json.decode, known._written.splitlines()):
        if kind == "EMAIL":
            parts = _LETTERS.findall(value.partition("@")[0].lower())
            run = parts[-1] if len(parts) > 1 else ""
        else:
            run = next(iter(_RUN.findall(value.lower())), "")
        if run:
            by_run.setdefault(run, set()).add(value)
            kinds[value] = min(kind, kinds.get(value, kind), key=KINDS.index)
    return by_run, kinds
