"""The data version of each partition, computed again only where a cheap look says that it may have changed.

A thousand agents take a minute to read and a second to look at. `StoreVersions` keeps, in a small file of the lake, the version of each
partition beside the cheap signature (names, sizes, times of files) under which it was computed.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.reading import fingerprint_partition
from agent_pipeline.judging.labels import Labels, labels_signature, read_labels
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sources import TraceSource
from agent_pipeline.sources.base import Stored
from agent_pipeline.storage.lake import Lake

LabelPaths = Callable[[PartitionKey], Path | None]


class StoreVersion(msgspec.Struct, kw_only=True):
    """The data version of one partition: of its sessions and of people's labels, without forgotten sessions.

    `signature` is the cheap look under which it was computed, `changed_in` the number of the look that found this version.
    """

    version: str
    sessions: int
    signature: str
    changed_in: int


class _Memory(msgspec.Struct):
    look: int = 0
    unchanged: str = ""
    partitions: dict[str, StoreVersion] = {}


class StoreVersions:
    """The versions of a store's partitions, as one look at the store finds them.

    Args:
        source: the store, opened once for all partitions.
        lake: it holds the block list (forgotten sessions do not count) and the file that keeps versions from look to look. A damaged or
            missing file costs a full reading, nothing else.
        name: which store it is, in the name of that file.
        labels: where people's labels of each partition are; `None` for a partition without any.
        seconds: how long this look may compute versions. `None` is no limit.
        after: the number of an earlier look, below which this one's number must not fall (the memory may have been lost since).
    """

    def __init__(
        self,
        source: TraceSource,
        lake: Lake,
        name: str,
        labels: LabelPaths,
        seconds: float | None = None,
        after: int = 0,
    ) -> None:
        self._source, self._lake, self._labels = source, lake, labels
        self._file = lake.root / "versions" / f"{name}.json"
        self._blocked = BlockList.read(lake)
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._memory = self._stored()
        self._new: dict[str, StoreVersion] = {}
        self._memory.look = max(self._memory.look, after) + 1
        self._block_signature = hash_json(
            sorted((each, str(key)) for each, key in self._blocked.entries)
        )[:16]
        self._label_signatures: dict[Path, str] = {}

    @property
    def look(self) -> int:
        return self._memory.look

    def in_time(self, key: PartitionKey) -> StoreVersion | None:
        """The version of a partition; `None` where it would have to be computed and the look is out of time. Raises what `of` raises."""
        if known := self._known(key):
            return known
        late = self._deadline is not None and time.monotonic() > self._deadline
        return None if late else self._computed(key)

    def of(self, key: PartitionKey) -> StoreVersion:
        """The version of a partition.

        Raises:
            StoreError: the partition cannot be read. Its version is then looked for again by the next look.
            PartitionError: the store has no such partition.
            SettingsError: its labels cannot be read.
        """
        return self._known(key) or self._computed(key)

    def _known(self, key: PartitionKey) -> StoreVersion | None:
        """The version that an earlier look computed, if the partition looks as it did then."""
        before = self._memory.partitions.get(str(key))
        return before if before is not None and before.signature == self._signature(key) else None

    def _computed(self, key: PartitionKey) -> StoreVersion:
        signature, before = self._signature(key), self._memory.partitions.get(str(key))
        path, ids = self._labels(key), list[str]()
        labels = read_labels(path, key) if path else Labels()

        def stored() -> Iterator[Stored]:
            for each in self._source.stored(key):
                if not self._blocked.has(each.session_id, key):
                    ids.append(each.session_id)
                    yield each

        version, sessions = fingerprint_partition(stored())
        version = labels.version_with(version, ids)
        changed_in = (
            before.changed_in if before is not None and before.version == version else self.look
        )
        after = StoreVersion(
            version=version, sessions=sessions, signature=signature, changed_in=changed_in
        )
        self._memory.partitions[str(key)] = self._new[str(key)] = after
        return after

    def changed_since(self, look: int) -> dict[str, StoreVersion]:
        """The partitions whose version is another than it was at an earlier look, by name."""
        return {
            name: each
            for name, each in sorted(self._memory.partitions.items())
            if each.changed_in > look
        }

    def is_unchanged(self, store_signature: str) -> bool:
        """Whether the whole store looks as it did at the last look that computed every version (`save` with a signature)."""
        return self._memory.unchanged == store_signature

    def save(self, store_signature: str = "") -> None:
        """Keep what was computed. `store_signature` stands for the whole store and says that no version is missing.

        Where another look was saved since this one began (the schedule's beside the sensor's), this one gets the number after it: what it
        found is news to whoever has recorded the other.
        """

        def saved() -> None:
            version = self._lake.fs.version(self._file)
            stored, look = self._stored(), self.look
            self._memory.unchanged = store_signature or stored.unchanged
            if stored.look >= look:
                self._memory.look, self._memory.unchanged = stored.look + 1, ""
                for each in self._new.values():
                    each.changed_in = self.look if each.changed_in == look else each.changed_in
            self._memory.partitions = stored.partitions | self._new
            self._lake.fs.write(self._file, msgspec.json.encode(self._memory), over=version)

        self._lake.fs.in_turn(self._file.parent, saved)

    def _stored(self) -> _Memory:
        try:
            return msgspec.json.decode(self._lake.fs.read(self._file), type=_Memory)
        except (OSError, msgspec.MsgspecError):
            return _Memory()

    def _signature(self, key: PartitionKey) -> str:
        path = self._labels(key)
        if path is not None and path not in self._label_signatures:
            self._label_signatures[path] = labels_signature(path)
        labels = self._label_signatures[path] if path is not None else ""
        return hash_json([self._source.partition_signature(key), labels, self._block_signature])[
            :32
        ]
