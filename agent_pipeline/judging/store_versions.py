"""Data versions of a store's partitions, including people's labels.

A version is computed again only if a cheap signature (names, sizes and times of files) shows that
the partition may have changed. Reading a thousand agents takes a minute, but checking their
signatures takes a second. The versions and signatures are stored in a small file of the lake.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.reading import fingerprint_partition
from agent_pipeline.judging.labels import Labels, compute_labels_signature, read_labels
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sources import TraceSource
from agent_pipeline.sources.base import Stored
from agent_pipeline.storage.lake import Lake
from agent_pipeline.structs import decode_json

FindLabels = Callable[[PartitionKey], Path | None]
"""Function that returns the path of people's labels for a partition, or None."""


class StoreVersion(msgspec.Struct, kw_only=True):
    """The data version of one partition.

    The version covers the sessions and the labels, without forgotten sessions.

    Attributes:
        version: The version.
        sessions: The number of sessions.
        signature: The cheap signature of the partition when the version was computed.
        changed_in: The number of the check that found this version.
    """

    version: str
    sessions: int
    signature: str
    changed_in: int


class _Memory(msgspec.Struct):
    """The content of the file that keeps the versions between checks of a store.

    Attributes:
        look: The number of the last check.
        unchanged: The signature of the whole store, if the last check computed every version.
        partitions: The versions by partition.
    """

    look: int = 0
    unchanged: str = ""
    partitions: dict[str, StoreVersion] = {}


class StoreVersions:
    """The data versions of a store's partitions, as found by one check of the store."""

    def __init__(
        self,
        source: TraceSource,
        lake: Lake,
        name: str,
        find_labels: FindLabels,
        seconds: float | None = None,
        after: int = 0,
    ) -> None:
        """Start a check of a store.

        Args:
            source: The store, opened once for all partitions.
            lake: The lake. It has the block list (forgotten sessions do not count) and the file
                that stores versions between checks. If the file is damaged or missing, every
                partition is read.
            name: The name of the store in the name of that file.
            find_labels: Returns the path of people's labels of a partition.
            seconds: Maximum time in seconds for computing versions. `None` means no limit.
            after: The number of an earlier check. The number of this check is larger, even if the
                file has been lost since then.
        """
        self._source, self._lake, self._find_labels = source, lake, find_labels
        self._file = lake.root / "versions" / f"{name}.json"
        self._blocked = BlockList.read(lake)
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._memory = self._read_memory()
        self._memory.look = max(self._memory.look, after) + 1
        self._computed: dict[str, StoreVersion] = {}
        blocked = sorted((session_id, str(key)) for session_id, key in self._blocked.entries)
        self._block_signature = hash_json(blocked)[:16]
        self._label_signatures: dict[Path, str] = {}

    @property
    def look(self) -> int:
        """Return the number of this check of the store."""
        return self._memory.look

    def find_version_in_time(self, key: PartitionKey) -> StoreVersion | None:
        """Return the version of a partition, or `None` if there is not enough time to compute it.

        Raises:
            StoreError, PartitionError, SettingsError: As in `find_version`.
        """
        known = self._find_known(key)
        if known is not None:
            return known
        is_late = self._deadline is not None and time.monotonic() > self._deadline
        return None if is_late else self._compute(key)

    def find_version(self, key: PartitionKey) -> StoreVersion:
        """Return the version of a partition.

        Raises:
            StoreError: The partition cannot be read. The next check tries again.
            PartitionError: The store has no such partition.
            SettingsError: The partition's labels cannot be read.
        """
        return self._find_known(key) or self._compute(key)

    def _find_known(self, key: PartitionKey) -> StoreVersion | None:
        """Return the version from an earlier check, if the partition's signature is unchanged."""
        known = self._memory.partitions.get(str(key))
        if known is None or known.signature != self._compute_signature(key):
            return None
        return known

    def _compute(self, key: PartitionKey) -> StoreVersion:
        """Read a partition, then compute and store its data version."""
        signature = self._compute_signature(key)
        before = self._memory.partitions.get(str(key))
        path = self._find_labels(key)
        labels = read_labels(path, key) if path else Labels()
        session_ids: list[str] = []

        def read_sessions() -> Iterator[Stored]:
            for stored in self._source.stored(key):
                if not self._blocked.has(stored.session_id, key):
                    session_ids.append(stored.session_id)
                    yield stored

        store_version, session_count = fingerprint_partition(read_sessions())
        version = labels.add_to_version(store_version, session_ids)
        is_unchanged = before is not None and before.version == version
        computed = StoreVersion(
            version=version,
            sessions=session_count,
            signature=signature,
            changed_in=before.changed_in if before is not None and is_unchanged else self.look,
        )
        self._memory.partitions[str(key)] = computed
        self._computed[str(key)] = computed
        return computed

    def list_changed_since(self, look: int) -> dict[str, StoreVersion]:
        """Return the partitions whose version has changed since an earlier check of the store."""
        return {
            name: version
            for name, version in sorted(self._memory.partitions.items())
            if version.changed_in > look
        }

    def is_unchanged(self, store_signature: str) -> bool:
        """Return whether the store looks as it did when all versions were last computed."""
        return self._memory.unchanged == store_signature

    def save(self, store_signature: str = "") -> None:
        """Write the computed versions to the file that keeps them.

        Another check may have been saved since this check began (for example, the schedule's check
        and the sensor's check). This check then gets the next number, so that its findings are new
        to everyone who has recorded the other check.

        Args:
            store_signature: The signature of the whole store, if all versions were computed.
        """

        def write_memory() -> None:
            file_version = self._lake.fs.version(self._file)
            stored = self._read_memory()
            old_look = self.look
            self._memory.unchanged = store_signature or stored.unchanged
            if stored.look >= old_look:
                self._memory.look = stored.look + 1
                self._memory.unchanged = ""
                for computed in self._computed.values():
                    if computed.changed_in == old_look:
                        computed.changed_in = self.look
            self._memory.partitions = stored.partitions | self._computed
            self._lake.fs.write(self._file, msgspec.json.encode(self._memory), over=file_version)

        self._lake.fs.in_turn(self._file.parent, write_memory)

    def _read_memory(self) -> _Memory:
        try:
            return decode_json(self._lake.fs.read(self._file), _Memory)
        except (OSError, UnicodeError, msgspec.MsgspecError):
            return _Memory()

    def _compute_signature(self, key: PartitionKey) -> str:
        """Return the signature of a partition, its labels and the block list."""
        path = self._find_labels(key)
        labels_signature = ""
        if path is not None:
            if path not in self._label_signatures:
                self._label_signatures[path] = compute_labels_signature(path)
            labels_signature = self._label_signatures[path]
        source_signature = self._source.partition_signature(key)
        return hash_json([source_signature, labels_signature, self._block_signature])[:32]
