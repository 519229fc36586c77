"""The block list: the sessions that were forgotten, so that no run brings them back.

The list is a small table of the lake (`tables/forgotten_sessions`, without partitions). A session
that comes again is recognized by its id alone, so the list holds the sha256 of the id and nothing
else of the session. The same hash (`forgotten:…`) replaces the id wherever another record names a
forgotten session: a side chain names its parent, a model its sessions. A person who has the id can
look it up; the list does not reveal it. Removing a session from tables does not belong here.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from agent_pipeline.errors import MissingError
from agent_pipeline.json_types import JsonObject
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import to_rows, to_table
from agent_pipeline.storage.lake import Lake

FORGOTTEN_TABLE = "forgotten_sessions"
ALIAS_PREFIX = "forgotten:"
_SCHEMA = pa.schema(
    [
        pa.field("id_hash", pa.string(), nullable=False),
        pa.field("project", pa.string()),
        pa.field("agent", pa.string()),
    ]
)


def make_alias(session_id: str) -> str:
    """Return the text that replaces the id of a forgotten session."""
    return ALIAS_PREFIX + hashlib.sha256(session_id.encode("utf-8")).hexdigest()[:32]


class BlockedSession(NamedTuple):
    """One entry of the list.

    Attributes:
        alias: The alias of the session's id.
        key: The partition; None means all partitions, future ones included.
    """

    alias: str
    key: PartitionKey | None


class BlockList(NamedTuple):
    """The forgotten sessions."""

    entries: frozenset[BlockedSession] = frozenset()

    @classmethod
    def read(cls, lake: Lake) -> "BlockList":
        """Return the lake's list; an empty one if nothing was forgotten.

        Raises:
            DataError: The list is damaged. Then nothing may be read: it might have been forgotten.
        """
        try:
            rows = to_rows(lake.open(FORGOTTEN_TABLE, None).read())
        except MissingError:
            return cls()
        entries = []
        for row in rows:
            key = PartitionKey(row["project"], row["agent"]) if row["agent"] else None
            entries.append(BlockedSession(ALIAS_PREFIX + row["id_hash"], key))
        return cls(frozenset(entries))

    @classmethod
    def add(cls, lake: Lake, session_ids: Iterable[str], key: PartitionKey | None) -> "BlockList":
        """Put sessions on the lake's list and return the list.

        If two processes add sessions at the same time, all of them are on the list afterwards.

        Args:
            lake: The lake.
            session_ids: The sessions.
            key: The partition; None for all partitions.

        Raises:
            DataError: The list is damaged.
        """
        added = {BlockedSession(make_alias(session_id), key) for session_id in session_ids}
        blocked = cls()

        def make_table() -> pa.Table:
            nonlocal blocked
            blocked = cls(cls.read(lake).entries | added)
            entries = sorted(blocked.entries, key=lambda entry: (entry.alias, str(entry.key or "")))
            return to_table([_make_row(entry) for entry in entries], _SCHEMA)

        lake.update(FORGOTTEN_TABLE, None, make_table)
        return blocked

    def has(self, session_id: str, key: PartitionKey | None) -> bool:
        """Return whether a session of a partition is forgotten.

        If `key` is None, return whether the session is forgotten in all partitions.
        """
        if not self.entries:
            return False
        alias = make_alias(session_id)
        entries = {BlockedSession(alias, None), BlockedSession(alias, key)}
        return not self.entries.isdisjoint(entries)

    def list_partitions(self, session_id: str) -> list[str]:
        """Return the partitions in which a session is forgotten; `*` stands for all."""
        alias = make_alias(session_id)
        return sorted(str(entry.key or "*") for entry in self.entries if entry.alias == alias)

    def replace_names(self, session: Session, key: PartitionKey) -> Session:
        """Replace the id of a session's parent by its alias if the parent is forgotten."""
        parent_id = session.parent_session_id
        if parent_id is not None and self.has(parent_id, key):
            session.parent_session_id = make_alias(parent_id)
        return session


def _make_row(entry: BlockedSession) -> JsonObject:
    """Return an entry as a row of the table."""
    project, agent = entry.key or (None, None)
    return {
        "id_hash": entry.alias.removeprefix(ALIAS_PREFIX),
        "project": project,
        "agent": agent,
    }
