"""The block list: which sessions were forgotten, so that reading their store again does not bring them back.

A small table of the lake (`tables/forgotten_sessions`, without partitions). A session can be kept out only by what is known of it when it
comes again, its id; the list holds the sha256 of that and nothing else of the session. The same hash stands wherever another record names a
forgotten session (`forgotten:…`: a side chain its parent, a model its sessions): who knows the id can ask, and the list tells it to nobody.
"""

import hashlib
from typing import NamedTuple

import pyarrow as pa

from agent_pipeline.errors import MissingError
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
    """What stands for the id of a forgotten session, wherever it was named."""
    return ALIAS_PREFIX + hashlib.sha256(session_id.encode("utf-8")).hexdigest()[:32]


class BlockList(NamedTuple):
    """(alias, partition) of every forgotten session; `None` as partition stands for all of them, those to come too."""

    entries: frozenset[tuple[str, PartitionKey | None]] = frozenset()

    @classmethod
    def read(cls, lake: Lake) -> "BlockList":
        """The lake's list; empty where nothing was forgotten.

        Raises:
            DataError: the list is damaged (nothing may be read then: it might be what was forgotten).
        """
        try:
            rows = to_rows(lake.open(FORGOTTEN_TABLE, None).read())
        except MissingError:
            return cls()
        keyed = (
            (row["id_hash"], PartitionKey(row["project"], row["agent"]) if row["agent"] else None)
            for row in rows
        )
        return cls(frozenset((ALIAS_PREFIX + id_hash, key) for id_hash, key in keyed))

    @classmethod
    def add(cls, lake: Lake, session_id: str, key: PartitionKey | None) -> "BlockList":
        """Put a session on the lake's list. Of two that are forgotten at the same time, neither is lost. Raises DataError."""
        blocked = cls()

        def added() -> pa.Table:
            nonlocal blocked
            blocked = cls(cls.read(lake).entries | {(make_alias(session_id), key)})
            entries = sorted(blocked.entries, key=lambda entry: (entry[0], str(entry[1] or "")))
            both = [
                (each.removeprefix(ALIAS_PREFIX), *(of or (None, None))) for each, of in entries
            ]
            return to_table([dict(zip(_SCHEMA.names, each, strict=True)) for each in both], _SCHEMA)

        lake.update(FORGOTTEN_TABLE, None, added)
        return blocked

    def has(self, session_id: str, key: PartitionKey | None) -> bool:
        """Whether a partition's session is forgotten; without a partition, whether it is in all."""
        return bool(self.entries) and not self.entries.isdisjoint(
            {(make_alias(session_id), None), (make_alias(session_id), key)}
        )

    def where(self, session_id: str) -> list[str]:
        """The partitions in which a session is forgotten; `*` for all."""
        return sorted(
            str(key or "*") for each, key in self.entries if each == make_alias(session_id)
        )

    def without_names(self, session: Session, key: PartitionKey) -> Session:
        """A session whose parent has an alias where it is forgotten."""
        if session.parent_session_id is not None and self.has(session.parent_session_id, key):
            session.parent_session_id = make_alias(session.parent_session_id)
        return session
