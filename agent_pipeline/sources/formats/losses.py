"""Records of a file that could not be read, and the sessions that lack these records.

A half-written record does not show reliably which session it belongs to. Its neighbours do: the
records of a session that fill a file, or stand next to each other in it, were written one after
another. A record that is a session by itself cannot lack anything, so a neighbour never damages it.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Any

TORN = "torn_record"
_MANY = 100
"""If more records of one file are torn, all its sessions of several records are damaged."""


Lost = dict[Hashable, Counter[str]]


class Losses:
    """The records that could not be read in a store's files, by the group that lacks them."""

    def __init__(self) -> None:
        self.by_group: Lost = {}
        self.torn: list[bytes] = []
        """The torn records of the file that is being read. `record_files.records` fills it."""
        self._counted = 0
        self._last: Hashable | None = None
        self._waiting: Counter[str] = Counter()
        self._groups: set[Hashable] = set()

    def begin_file(self) -> None:
        """Forget the neighbours in the previous file."""
        self.torn, self._counted, self._last = [], 0, None
        self._waiting, self._groups = Counter(), set()

    def miss(self, kind: str = TORN, count: int = 1) -> None:
        """Note records that stand here in the file and cannot be read.

        Args:
            kind: A kind of damage (`sessions.damage.KINDS`).
            count: The number of records.
        """
        if count:
            self.damage(self._last, Counter({kind: count}))
            self._waiting[kind] += count

    def count_torn(self) -> None:
        """Note the torn records that were read since the last call."""
        count, self._counted = len(self.torn) - self._counted, len(self.torn)
        self.miss(TORN, count)

    def follow(self, group: Hashable | None) -> None:
        """Note that a record was read.

        `group` is None if the record is a session by itself.
        """
        if group != self._last:
            self.damage(group, self._waiting)
        self._waiting = Counter()
        self._last = group
        if group is not None:
            self._groups.add(group)

    def end_file(self) -> None:
        """Damage the sessions that are named in the text of torn records.

        Records of several sessions may be written in turn, and then the neighbours belong to other
        sessions.
        """
        self.count_torn()
        for group in self._groups - self.by_group.keys() if self.torn else ():
            name = str(group).encode("utf-8", "surrogateescape") if isinstance(group, str) else b""
            named = bool(name) and any(name in text for text in self.torn)
            if named or len(self.torn) > _MANY:
                self.damage(group, Counter({TORN: 1}))

    def damage(self, group: Hashable | None, counts: Counter[str]) -> None:
        """Add the counts, by kind of damage, to a group."""
        if group is not None and counts:
            self.by_group[group] = self.by_group.get(group, Counter()) + counts


def with_damage(session_fields: dict[str, Any], losses: Counter[str] | None) -> dict[str, Any]:
    """Return a session's fields with the losses of its file added to its damage."""
    if not losses:
        return session_fields
    return session_fields | {"damage": Counter(session_fields.get("damage") or {}) + losses}
