"""Records that could not be read, and the sessions that lack these records.

A half-written record does not reliably show which session it belongs to. Its neighbors do, because
records of one session usually stand next to each other in a file, or fill the whole file. A record
that is a session by itself never counts as damaged by a neighbor, because it cannot lack a record.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Any

TORN = "torn_record"
_MANY = 100
"""Number of torn records per file above which all sessions with several records count as damaged.
"""


Lost = dict[Hashable, Counter[str]]


class Losses:
    """Counts of the records of a store that could not be read, by the session that lacks them."""

    def __init__(self) -> None:
        self.by_group: Lost = {}
        self.torn: list[bytes] = []
        """Torn records of the file that is being read. `record_files.records` fills the list."""
        self._counted = 0
        self._last: Hashable | None = None
        self._waiting: Counter[str] = Counter()
        self._groups: set[Hashable] = set()

    def begin_file(self) -> None:
        """Reset the state that belongs to the previous file."""
        self.torn, self._counted, self._last = [], 0, None
        self._waiting, self._groups = Counter(), set()

    def miss(self, kind: str = TORN, count: int = 1) -> None:
        """Count unreadable records at the current position in the file.

        Args:
            kind: A kind of damage (`sessions.damage.KINDS`).
            count: The number of records.
        """
        if count:
            self.damage(self._last, Counter({kind: count}))
            self._waiting[kind] += count

    def count_torn(self) -> None:
        """Count the torn records that were read since the last call."""
        count, self._counted = len(self.torn) - self._counted, len(self.torn)
        self.miss(TORN, count)

    def follow(self, group: Hashable | None) -> None:
        """Note that a readable record came after unreadable records.

        `group` is None if the record is a session by itself.
        """
        if group != self._last:
            self.damage(group, self._waiting)
        self._waiting = Counter()
        self._last = group
        if group is not None:
            self._groups.add(group)

    def end_file(self) -> None:
        """At the end of a file, mark the sessions that the text of torn records names as damaged.

        Records of several sessions may alternate in a file. The neighbors of a torn record then
        belong to other sessions.
        """
        self.count_torn()
        for group in self._groups - self.by_group.keys() if self.torn else ():
            name = str(group).encode("utf-8", "surrogateescape") if isinstance(group, str) else b""
            named = bool(name) and any(name in text for text in self.torn)
            if named or len(self.torn) > _MANY:
                self.damage(group, Counter({TORN: 1}))

    def damage(self, group: Hashable | None, counts: Counter[str]) -> None:
        """Add counts of damage, by kind, to a group of records."""
        if group is not None and counts:
            self.by_group[group] = self.by_group.get(group, Counter()) + counts


def with_damage(session_fields: dict[str, Any], losses: Counter[str] | None) -> dict[str, Any]:
    """Return a session's fields, with the record losses in its files added to its damage counts."""
    if not losses:
        return session_fields
    return session_fields | {"damage": Counter(session_fields.get("damage") or {}) + losses}
