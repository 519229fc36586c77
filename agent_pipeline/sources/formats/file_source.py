"""What the readers of files share: one pass over a file or folder makes an index, then each session is read by its records' places.

A reader says which records are its own (`accepts`), what session a record belongs to (`identify`) and what session its records make
(`build`). Memory holds the index (ids and places) and one session's records.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.keys import PartitionKey, make_key
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.base import TraceSource, add_note, changed, files_of, no_partition, unreadable
from agent_pipeline.sources.formats.fields import Record, clean_text, parsed, section
from agent_pipeline.sources.formats.record_files import Kind, Place, RecordReader, kind_of, records
from agent_pipeline.sources.formats.services import ServerError
from agent_pipeline.sources.formats.session_fields import new_session

DEFAULT_AGENT = "default"
"""The agent of a store that names none."""

_PROBED_RECORDS = 20
_UNPACKED = 4


class Ident(NamedTuple):
    """Where a record belongs.

    Records with the same `group` are one session; a record without one is a session by itself. `session` is the session's id; `project` and
    `agent` are given where the record says them.
    """

    group: str | None
    session: str | None = None
    project: str | None = None
    agent: str | None = None


@dataclass(slots=True)
class _Group:
    places: list[Place] = field(default_factory=list)
    session: str | None = None
    project: str | None = None
    agent: str | None = None

    def add(self, place: Place, ident: Ident) -> None:
        self.places.append(place)
        self.session = self.session or ident.session
        self.project = self.project or ident.project
        self.agent = self.agent or ident.agent


Index = dict[PartitionKey, dict[str, list[Place]]]


class FileSource(TraceSource):
    """Base of the file readers; see the module."""

    kinds: ClassVar[tuple[Kind, ...]] = ("lines", "document")
    merges: ClassVar[bool] = False
    """Whether groups that name the same session are one session (traces, say); otherwise each gets an id of its own."""

    def __init__(self, where: Path | str) -> None:
        super().__init__(where)
        self._reader = RecordReader()
        self._unpacked: dict[tuple[Path, int], list[Record]] = {}
        self._beside: dict[Path, Record] = {}
        """What files beside the records say (headers, sets of prompts), once read."""
        self._indexed: tuple[str, Index] | None = None

    @classmethod
    def accepts(cls, record: Record) -> bool:
        """Whether a record shows that a file is of this kind."""
        raise NotImplementedError

    @classmethod
    def reads(cls, record: Record) -> bool:
        """Whether the index takes a record; in a file of this kind, a record may be known by less than `accepts` asks for."""
        return cls.accepts(record)

    def identify(self, record: Record, place: Place) -> Ident | None:
        """Where a record belongs; `None` for a record that belongs to no session."""
        raise NotImplementedError

    def build(self, key: PartitionKey, session_id: str, records: list[tuple[Place, Record]]) -> Iterable[Session]:
        """The session that records make, and those that branch off it."""
        raise NotImplementedError

    def unpack(self, record: Record) -> list[Record]:
        """The records inside a record."""
        return [record]

    def empty(self, record: Record) -> str | None:
        """The predicate of a note about a record in which `unpack` finds nothing ("is ..."); `None` for no note."""
        return None

    @classmethod
    def detect(cls, path: Path) -> bool:
        return any(cls._is_mine(each) for each in files_of(path))

    def partitions(self) -> list[PartitionKey]:
        return sorted(self._index())

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        try:
            for session_id, places in self._places(key):
                yield from self._built(key, session_id, places)
        finally:
            self._reader.close()

    @cached_property
    def default_project(self) -> str:
        """What the file or folder is called."""
        return self.path.resolve().stem if self.path.is_file() else self.path.resolve().name

    def folders_of(self, path: Path) -> tuple[str, ...]:
        """The folders between the store and one of its files; none where the store is the file."""
        return path.relative_to(self.path).parts[:-1] if path != self.path else ()

    def file_beside(self, path: Path, lost: str) -> Record:
        """The object in a file that says more of the records; where it cannot be read, a note says what is lost with it."""
        if path not in self._beside:
            try:
                self._beside[path] = section(parsed(path.read_bytes()))
            except (OSError, ValueError) as error:
                add_note(self.notes, f"{lost} ({path}: {error}).")
                self._beside[path] = {}
        return self._beside[path]

    @classmethod
    def _is_mine(cls, path: Path) -> bool:
        kind, records = sampled(path)
        return kind in cls.kinds and any(isinstance(each, dict) and cls.accepts(each) for each in records)

    def _places(self, key: PartitionKey) -> list[tuple[str, list[Place]]]:
        """The sessions of a partition, each with the places of its records; raises PartitionError."""
        index = self._index()
        if key not in index:
            raise no_partition(self.path, key, index)
        return sorted(index[key].items())

    def _built(self, key: PartitionKey, session_id: str, places: list[Place]) -> Iterable[Session]:
        return self.build(key, session_id, [(place, self._record(place)) for place in places])

    def _files(self) -> list[Path]:
        return files_of(self.path)

    def _records_in(self, path: Path) -> Iterable[tuple[Place, Any]]:
        return records(path, self.notes) if kind_of(path) in self.kinds else ()

    def _whole(self, place: Place) -> Any:
        return self._reader.record(place)

    def _record(self, place: Place) -> Record:
        """The record at a place; what is in the last few records that hold several stays in memory."""
        whole = (place.path, place.at)
        inside = self._unpacked.get(whole)
        if inside is None:
            record = self._whole(place)
            inside = self.unpack(record) if isinstance(record, dict) else []
            if len(inside) > 1:
                while len(self._unpacked) >= _UNPACKED:
                    self._unpacked.pop(next(iter(self._unpacked)))
                self._unpacked[whole] = inside
        if place.part >= len(inside):
            raise changed(place.path)
        return inside[place.part]

    def _index(self) -> Index:
        signature = self.signature()
        if self._indexed is None or self._indexed[0] != signature:
            self._reader.close()
            self._reader, self._unpacked, self._beside = RecordReader(signature if self.merges else ""), {}, {}
            self._indexed = signature, self._new_index()
        return self._indexed[1]

    def _new_index(self) -> Index:
        groups: dict[str | Place, _Group] = {}
        files, foreign, failures, homeless = self._files(), [], [], 0
        for path in files:
            others = accepted = 0
            try:
                for place, record in self._records_in(path):
                    if not isinstance(record, dict) or not self.reads(record):
                        others += 1
                        continue
                    accepted += 1
                    inside = self.unpack(record)
                    for part, each in enumerate(inside):
                        own = place._replace(part=part)
                        if ident := self.identify(each, own):
                            groups.setdefault(ident.group or own, _Group()).add(own, ident)
                        else:
                            homeless += 1
                    if not inside and (sentence := self.empty(record)):
                        add_note(self.notes, f"{path} {sentence}")
            except ServerError:
                raise
            except StoreError as error:  # one broken file must not keep a folder of good ones from being read
                failures.append(error)
                add_note(self.notes, str(error))
                continue
            if not accepted:
                foreign.append(path.name)
            elif others:
                add_note(self.notes, f"{path}: {others} records are not what {self.name} writes ({self.looks_like}) and were left out.")
        if failures and len(failures) + len(foreign) == len(files):
            raise failures[0]
        if foreign:
            names = ", ".join(sorted(set(foreign))[:5])
            add_note(self.notes, f"{len(foreign)} files under {self.path} hold no records of {self.name} and were left out ({names}).")
        if homeless:
            add_note(self.notes, f"{self.path}: {homeless} records of {self.name} belong to no session and were passed over.")
        if not groups and not self.notes:
            add_note(self.notes, f"{self.path} holds no session: no record of {self.name} in it says what belongs to one.")
        return self._partitioned(groups)

    def _partitioned(self, groups: dict[str | Place, "_Group"]) -> Index:
        """The groups by partition and session id."""
        index: Index = {}
        repeats: Counter[tuple[PartitionKey, str]] = Counter()
        for name, group in groups.items():
            key = usable_key(group.project or self.default_project, group.agent or DEFAULT_AGENT)
            default = name if isinstance(name, str) else f"{name.path.stem}:{name.at:012d}:{name.part}"
            session_id = wanted = clean_text(group.session or default) or default
            sessions = index.setdefault(key, {})
            while session_id in sessions and not self.merges:
                repeats[key, wanted] += 1
                session_id = f"{wanted}~{repeats[key, wanted] + 1}"
            sessions.setdefault(session_id, []).extend(group.places)
        if repeats:
            sentence = f"{self.path}: {repeats.total()} sessions have an id that another session has too"
            add_note(self.notes, f"{sentence}; they were given ids of their own (~2, ~3).")
        return index


class RecordSource(FileSource):
    """Base of the file readers whose records are a session each."""

    def _built(self, key: PartitionKey, session_id: str, places: list[Place]) -> Iterable[Session]:
        records = [(place, self._record(place)) for place in places]
        for place, record in records:  # where a file was put in another's place since, this may be another session's
            ident = self.identify(record, place)
            named = ident and clean_text(ident.session or "")
            if ident is None or (named and named not in (session_id, session_id.rpartition("~")[0])):
                raise changed(place.path)
        return self.build(key, session_id, records)

    def fields(self, record: Record, place: Place, session_id: str) -> Record:
        """What a record says: the conversation (`chat`) and the other arguments of `new_session`."""
        raise NotImplementedError

    def build(self, key: PartitionKey, session_id: str, records: list[tuple[Place, Record]]) -> Iterable[Session]:
        for place, record in records:
            yield new_session(self.name, key, session_id, **self.fields(record, place, session_id))


@lru_cache(maxsize=1024)
def usable_key(project: str, agent: str) -> PartitionKey:
    """A partition key from any two names: what cannot be part of one is replaced, and a name that is cut gets a hash."""
    try:
        return make_key(project, agent)
    except PartitionError:
        return make_key(_usable(project), _usable(agent))


def _usable(name: str) -> str:
    plain = name.lower().replace("..", "-").strip("-_. ")
    try:
        return make_key(plain, DEFAULT_AGENT).project
    except PartitionError:
        digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:8]
        letters = "".join(letter for letter in plain if letter.isascii() and letter.isalnum())[:80]
        return f"{letters or 'name'}-{digest}"


def sampled(path: Path) -> tuple[Kind | None, list[Any]]:
    """What a file holds and its first records: detection asks every reader about the same file.

    Raises:
        StoreError: the file cannot be opened.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return _sample(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=8)
def _sample(path: Path, size: int, changed: int) -> tuple[Kind | None, list[Any]]:
    kind = kind_of(path)
    try:
        return kind, [record for _, record in islice(records(path, [], kind), _PROBED_RECORDS)] if kind else []
    except StoreError:  # whoever reads the store will say what is wrong
        return kind, []
