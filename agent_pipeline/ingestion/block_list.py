"""The block list of forgotten sessions, which prevents any run from reading them again.

The list is a small table of the lake (`tables/forgotten_sessions`, without partitions). A session
is recognized by its id alone, so the list contains only the sha256 of the id. If another record
names a forgotten session, the same hash (`forgotten:…`) replaces the id; for example, a side chain
names its parent, and a model names its sessions. A person who has the id can look it up, but the
list does not reveal it. Removing a session from tables does not belong here.
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
    """An entry of the block list: one forgotten session.

    Attributes:
        alias: The alias of the session's id.
        key: The partition; None means all partitions, future ones included.
    """

    alias: str
    key: PartitionKey | None


class BlockList(NamedTuple):
    """The list of all forgotten sessions."""

    entries: frozenset[BlockedSession] = frozenset()

    @classmethod
    def read(cls, lake: Lake) -> "BlockList":
        """Read the lake's block list, which is empty if no session was forgotten.

        Raises:
            DataError: The list is damaged. No session may be read then, because it might be a
                forgotten one.
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
        """Add sessions to the lake's block list, and return the list.

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
        """Return whether the block list contains a session of a partition.

        If `key` is None, return whether the session was forgotten in all partitions.
        """
        if not self.entries:
            return False
        alias = make_alias(session_id)
        entries = {BlockedSession(alias, None), BlockedSession(alias, key)}
        return not self.entries.isdisjoint(entries)

    def list_partitions(self, session_id: str) -> list[str]:
        """Return the partitions that have at least one forgotten session.

        `*` stands for all partitions.
        """
        alias = make_alias(session_id)
        return sorted(str(entry.key or "*") for entry in self.entries if entry.alias == alias)

    def replace_names(self, session: Session, key: PartitionKey) -> Session:
        """Replace the id of a session's parent by its alias if the parent was forgotten."""
        parent_id = session.parent_session_id
        if parent_id is not None and self.has(parent_id, key):
            session.parent_session_id = make_alias(parent_id)
        return session


def _make_row(entry: BlockedSession) -> JsonObject:
    """Convert an entry of the block list into a row of its table."""
    project, agent = entry.key or (None, None)
    return {
        "id_hash": entry.alias.removeprefix(ALIAS_PREFIX),
        "project": project,
        "agent": agent,
    }
