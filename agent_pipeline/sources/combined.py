"""A source that reads several stores as one store.

The partitions are the union of the stores' partitions. If two stores have the same partition, it
contains the sessions of both. A store that cannot be opened or listed may hold sessions of any
partition. Its failure does not hide the partitions of the other stores, but reading any partition
raises an error that names the failed store. Otherwise, half of an agent's sessions could pass for
all of them. To continue without the store, remove it from the setting `store`.
"""

import heapq
from collections.abc import Iterator, Mapping
from itertools import repeat

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import RecordedItem, Session
from agent_pipeline.sources.base import Stored, TraceSource, add_note, items_of


class CombinedSource(TraceSource):
    """A source that combines several stores.

    The stores are passed by name. If a store could not be opened, its error is passed instead.

    Raises:
        StoreError: No store could be opened.
    """

    name = "several"
    looks_like = "several stores"

    def __init__(self, stores: Mapping[str, TraceSource | StoreError]) -> None:
        super().__init__("several stores")
        self._stores = {
            name: store for name, store in stores.items() if not isinstance(store, StoreError)
        }
        self._held: tuple[dict[PartitionKey, list[str]], dict[str, StoreError]] | None = None
        self._closed = {
            name: store for name, store in stores.items() if isinstance(store, StoreError)
        }
        if not self._stores:
            raise next(
                iter(self._closed.values()),
                StoreError("No session store is given: set AGENT_PIPELINE_STORE."),
            )
        for store in self._stores.values():
            self.notes += store.notes
            store.notes = self.notes
        for error in self._closed.values():
            add_note(self.notes, str(error))

    def partitions(self) -> list[PartitionKey]:
        self._held = holders, failures = self._holders()
        for error in failures.values():
            add_note(self.notes, str(error))
        if failures and not holders:
            raise next(iter(failures.values()))
        return sorted(holders)

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        return self._merged(key, self._holding(key))

    def histories(self, key: PartitionKey) -> Iterator[tuple[Session, list[RecordedItem]]]:
        """Return the sessions of a partition with their items.

        If several stores have the partition, the items are made from the messages.
        """
        names = self._holding(key)
        if len(names) == 1:
            return self._stores[names[0]].histories(key)
        return ((session, items_of(session)) for session in self._merged(key, names))

    def stored(self, key: PartitionKey) -> Iterator[Stored]:
        """Return the sessions of a partition with their digests.

        If only one store has the partition, its digests are used. Otherwise, the digests are
        computed from the merged sessions.
        """
        names = self._holding(key)
        return self._stores[names[0]].stored(key) if len(names) == 1 else super().stored(key)

    def partition_signature(self, key: PartitionKey) -> str:
        return "|".join(self._stores[name].partition_signature(key) for name in self._holding(key))

    def _holding(self, key: PartitionKey) -> list[str]:
        """Return the names of the stores that contain a partition.

        Raises:
            PartitionError: No store has the partition.
            StoreError: A store that may have the partition cannot be listed.
        """
        holders, failures = self._held or self._holders()
        if failures or key not in holders:
            holders, failures = self._held = self._holders()
        if failures:
            name, error = next(iter(failures.items()))
            sentence = str(error).rstrip(".")
            raise StoreError(
                f"{sentence}. The store {name} may also hold sessions of {key}: repair the store, "
                "or remove it from the setting `store`."
            )
        if key not in holders:
            raise PartitionError(
                f"The stores have no partition {key}: they have "
                f"{', '.join(map(str, sorted(holders))) or 'none'}."
            )
        return holders[key]

    def reader_versions(self) -> dict[str, int]:
        return {
            name: version
            for store in self._stores.values()
            for name, version in store.reader_versions().items()
        }

    def signature(self) -> str:
        signatures = []
        for store in self._stores.values():
            try:
                signatures.append(store.signature())
            except StoreError as error:
                signatures.append(str(error))
        return "|".join([*signatures, *map(str, self._closed.values())])

    def _holders(self) -> tuple[dict[PartitionKey, list[str]], dict[str, StoreError]]:
        """Return the stores that contain each partition, and the errors of unreadable stores."""
        holders: dict[PartitionKey, list[str]] = {}
        failures = dict(self._closed)
        for name, store in self._stores.items():
            try:
                for key in store.partitions():
                    holders.setdefault(key, []).append(name)
            except StoreError as error:
                failures[name] = error
        return holders, failures

    def _merged(self, key: PartitionKey, names: list[str]) -> Iterator[Session]:
        """Yield the sessions of several stores in one sequence, ordered by session id.

        If two stores use one id for a session, the session of the later store gets a new id.
        """
        used_ids: set[str] = set()
        renamed: dict[tuple[str, str], str] = {}
        streams = [
            zip(self._stores[name].sessions(key), repeat(name), strict=False) for name in names
        ]
        count = 0
        for session, name in heapq.merge(*streams, key=_id_of_session):
            if session.session_id in used_ids:
                count += 1
                suffix = 2
                while f"{session.session_id}~{suffix}" in used_ids:
                    suffix += 1
                free = f"{session.session_id}~{suffix}"
                renamed[name, session.session_id] = free
                session.session_id = free
            if session.parent_session_id is not None:
                session.parent_session_id = renamed.get(
                    (name, session.parent_session_id), session.parent_session_id
                )
            used_ids.add(session.session_id)
            yield session
        if count:
            add_note(
                self.notes,
                f"{key}: {count} session ids are in more than one store ({', '.join(names)}); the "
                "later sessions got the suffixes ~2, ~3.",
            )


def _id_of_session(session_and_store: tuple[Session, str]) -> str:
    """Return the id of the session in a pair of a session and a store name."""
    return session_and_store[0].session_id
