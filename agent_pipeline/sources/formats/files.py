"""What the readers of files share: a file or a folder of them, an index in one pass, then each session by its records' places.

A reader says which records are its own (`accepts`), what sessions they belong to (`identify`), and what a session is made of (`build`).
Memory holds the index (ids and places) and one session's records. With an `outline` the index pass decodes no more than it names.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.keys import PartitionKey, make_key
from agent_pipeline.sessions.items import Chat, mended_unicode
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.base import add_note, clean_text, file_signature, unreadable
from agent_pipeline.sources.formats.fields import counts, error_text, function_tools, number, scalar, when
from agent_pipeline.sources.formats.records import Kind, Place, Records, Text, kind_of, parsed, records

Record = dict[str, Any]

_PROBED_RECORDS = 20
_UNPACKED = 4
_OTHER = "default"


class Ident(NamedTuple):
    """Where a record belongs.

    Records with one `group` are one session, a record without one is a session by itself; `session` names it, `project` and `agent` where
    the record says so.
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


Index = dict[PartitionKey, dict[str, list[Place]]]


class FileSource:
    """Base of the file readers; see the module."""

    name: ClassVar[str]
    looks_like: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]] = ("lines", "document", "table")
    merges: ClassVar[bool] = False
    """Whether groups that name the same session are one (a run a trace, say); otherwise each is a session with an id of its own."""
    outline: ClassVar[type[msgspec.Struct] | None] = None
    """The fields that `identify` looks at.

    A record that fits it is one of this reader's, and is not decoded further in the index pass; a `msgspec.Raw` field fits any list.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self._records = Records()
        self._unpacked: dict[tuple[Path, int], list[Record]] = {}
        self._beside: dict[Path, Record] = {}
        """What files beside the records say (headers, sets of prompts), once read."""
        self._index: tuple[str, Index] | None = None

    @classmethod
    def accepts(cls, record: Record) -> bool:
        """Whether a record is of this kind."""
        raise NotImplementedError

    def identify(self, record: Record, place: Place) -> Ident | None:
        """Where a record (its outline, where there is one) belongs; null for one that belongs to no session."""
        raise NotImplementedError

    def build(self, key: PartitionKey, session_id: str, found: list[tuple[Place, Record]]) -> Iterable[Session]:
        """The session that records make, and those that branch off it."""
        raise NotImplementedError

    def unpack(self, record: Record) -> list[Record]:
        """The records inside a record; itself where it is one."""
        return [record]

    def empty(self, record: Record) -> str | None:
        """What to say of a record in which `unpack` finds none (of a file: "is ..."); null for nothing."""
        return None

    @classmethod
    def detect(cls, path: Path) -> bool:
        return any(cls._is_mine(each) for each in files_of(path))

    def partitions(self) -> list[PartitionKey]:
        return sorted(self._indexed())

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        with self._places(key) as (sessions, broken):
            for session_id, places in sessions:
                if found := list(self._read(places, broken)):
                    yield from self.build(key, session_id, found)

    def signature(self) -> str:
        return file_signature(*files_of(self.path))

    def made(
        self,
        key: PartitionKey,
        session_id: str,
        chat: Chat,
        *,
        tools: Any = None,
        context: Record | None = None,
        usage: Iterable[Any] = (),
        scores: Record | None = None,
        **said: Any,
    ) -> Session:
        """A session of this source, with everything the record says brought into a form that can be stored.

        `usage` are the token counts of its calls, to be added; the score is the mean of `scores` unless it is said. A run that the
        infrastructure failed has no verdict.
        """
        schemas, strange = function_tools(_storable(tools, chat)) if tools is not None else ([], 0)
        if strange:
            chat.damage["invalid_tools"] += strange
        said = {name: value for name, value in said.items() if value is not None}
        if "error" in said:
            said["error"] = error_text(said["error"])
        for name in said.keys() & {"task_id", "trial", "model_id", "judgment", "error", "parent_session_id"}:
            said[name] = clean_text(mended_unicode(scalar(said[name]), chat.damage))
        for name in said.keys() & {"created_at", "ended_at"}:
            said[name] = when(said[name])
        for name in said.keys() & {"score", "cost_usd"}:
            said[name] = number(said[name])
        numbers = {clean_text(name) or "": value for name, raw in (scores or {}).items() if (value := number(raw)) is not None}
        if numbers and said.get("score") is None:
            said["score"] = sum(numbers.values()) / len(numbers)
        if said.get("error"):
            said["score"] = said["judgment"] = None
        context = (_storable(context, chat) or {}) if context else {}
        reasoning = (_storable(chat.reasoning, chat) or []) if chat.reasoning else []
        return Session(
            session_id=session_id,
            project=key.project,
            agent=key.agent,
            source=self.name,
            messages=chat.messages,
            tools=schemas,
            tools_origin="source" if schemas else "none",
            scores=numbers,
            usage={clean_text(name) or "": value for name, value in counts(usage).items()},
            reasoning=reasoning,
            damage=dict(+chat.damage) if chat.damage else {},
            skipped=dict(+chat.skipped) if chat.skipped else {},
            context=context,
            **said,
        )

    @cached_property
    def default_project(self) -> str:
        """What the file or folder is called."""
        return self.path.resolve().stem if self.path.is_file() else self.path.resolve().name

    def under(self, path: Path) -> tuple[str, ...]:
        """The folders between the store and one of its files; none where the store is the file."""
        return path.relative_to(self.path).parts[:-1] if path != self.path else ()

    @classmethod
    def _is_mine(cls, path: Path) -> bool:
        sample = sampled(path)
        return sample.kind in cls.kinds and any(isinstance(each, dict) and cls.accepts(each) for each in sample.records)

    @contextmanager
    def _places(self, key: PartitionKey) -> Iterator[tuple[list[tuple[str, list[Place]]], list[Place]]]:
        """A partition's sessions by id, each with the places of its records, and a list for those that prove to be no JSON, to be noted."""
        index = self._indexed()
        if key not in index:
            known = ", ".join(map(str, sorted(index))) or "none"
            raise PartitionError(f"The store {self.path} has no partition {key}: it has {known}.")
        broken: list[Place] = []
        try:
            yield sorted(index[key].items()), broken
        finally:
            self._records.close()
        if broken:
            first = broken[0]
            where = f"the first is at {first.at} of {first.path}"
            add_note(self.notes, f"{self.path}: {len(broken)} records of {key} are no JSON and were left out ({where}).")

    def _read(self, places: list[Place], broken: list[Place]) -> Iterator[tuple[Place, Record]]:
        for place in places:
            whole = (place.path, place.at)
            if whole not in self._unpacked:
                try:
                    record = self._records.get(place)
                except ValueError:
                    broken.append(place)
                    continue
                unpacked = self.unpack(record)
                if len(unpacked) == 1:
                    yield place, unpacked[0]
                    continue
                while len(self._unpacked) >= _UNPACKED:
                    self._unpacked.pop(next(iter(self._unpacked)))
                self._unpacked[whole] = unpacked
            if place.part >= len(self._unpacked[whole]):
                raise StoreError(f"{place.path} has changed while it was read: run again when nothing writes to it.")
            yield place, self._unpacked[whole][place.part]

    def _found(self, path: Path) -> Iterator[tuple[Place, Record]]:
        """Every record of a file of this kind."""
        strange = broken = 0
        decoder = msgspec.json.Decoder(self.outline) if self.outline else None
        for text in records(path, self.notes):
            if decoder is not None and (outlined := _outlined(decoder, text)) is not None:
                yield Place(path, text.at, 0, text.size), outlined
                continue
            try:
                record = parsed(text.raw)
            except ValueError:
                broken += 1
                continue
            mine = isinstance(record, dict) and self.accepts(record)
            strange += not mine
            inside = self.unpack(record) if mine else []
            for part, each in enumerate(inside):
                yield Place(path, text.at, part, text.size), each
            if mine and not inside and (sentence := self.empty(record)):
                add_note(self.notes, f"{path} {sentence}")
        if broken:
            add_note(self.notes, f"{path}: {broken} records are no JSON and were left out.")
        if strange:
            add_note(self.notes, f"{path}: {strange} records are not what {self.name} writes ({self.looks_like}) and were left out.")

    def _indexed(self) -> Index:
        signature = self.signature()
        if self._index is None or self._index[0] != signature:
            self._records.close()
            self._records, self._unpacked, self._beside = Records(), {}, {}
            self._index = signature, self._made_index()
        return self._index[1]

    def _made_index(self) -> Index:
        index: Index = {}
        groups: dict[str, _Group] = {}
        repeats: Counter[tuple[PartitionKey, str]] = Counter()
        others, failures, read, passed_over = [], [], 0, 0
        for path in files_of(self.path):
            try:
                if not self._is_mine(path):
                    if error := sampled(path).error:
                        raise error
                    others.append(path)
                    continue
                for place, record in self._found(path):
                    ident = self.identify(record, place)
                    if ident is None:
                        passed_over += 1
                    elif ident.group is None:
                        self._put(index, _Group([place], *ident[1:]), f"{place.path.stem}:{place.at:012d}:{place.part}", repeats)
                    else:
                        _gathered(groups.setdefault(ident.group, _Group()), place, ident)
                read += 1
            except StoreError as error:  # one broken file must not keep a folder of good ones from being read
                failures.append(error)
                add_note(self.notes, str(error))
        if failures and not read:
            raise failures[0]
        for name, group in groups.items():
            self._put(index, group, name, repeats)
        self._note(others, passed_over, sum(repeats.values()))
        return index

    def _put(self, index: Index, group: _Group, name: str, repeats: Counter[tuple[PartitionKey, str]]) -> None:
        key = usable_key(group.project or self.default_project, group.agent or _OTHER)
        session_id = wanted = clean_text(group.session or name) or name
        sessions = index.setdefault(key, {})
        if not self.merges:
            while session_id in sessions:
                repeats[key, wanted] += 1
                session_id = f"{wanted}~{repeats[key, wanted] + 1}"
        sessions.setdefault(session_id, []).extend(group.places)

    def _note(self, others: list[Path], passed_over: int, repeated: int) -> None:
        if others:
            sentence = f"{len(others)} files under {self.path} hold no records of {self.name} and were left out"
            add_note(self.notes, f"{sentence} ({', '.join(sorted({path.name for path in others})[:5])}).")
        if passed_over:
            add_note(self.notes, f"{self.path}: {passed_over} records of {self.name} belong to no session and were passed over.")
        if repeated:
            sentence = f"{self.path}: {repeated} sessions have an id that another has too"
            add_note(self.notes, f"{sentence}; they were given one of their own (~2, ~3).")


def files_of(path: Path) -> list[Path]:
    """A file, or those of a folder that could hold records, hidden ones and empty ones not."""
    if path.is_file():
        return [path]
    found: list[Path] = []
    try:
        for folder, folders, names in os.walk(path, onerror=_refuse):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [Path(folder, name) for name in names if not name.startswith(".")]
        return sorted(each for each in found if each.is_file() and each.stat().st_size)
    except OSError as error:
        raise unreadable(path, error) from error


def _refuse(error: OSError) -> None:
    raise error


def what_it_holds(path: Path) -> str:
    """Of a file that no reader knows, what it is, in words for a sentence ("holds ...")."""
    try:
        kind = kind_of(path)
        if kind is None:
            return "neither JSON, nor Parquet, Arrow or a zip of JSON"
        first = next((parsed(text.raw) for text in records(path, [])), None)
    except (StoreError, ValueError) as error:
        return f"nothing that can be read: {str(error).rstrip('.')}"
    names = ", ".join(list(first)[:6]) if isinstance(first, dict) else ""
    return f"records with the fields {names}" if names else "no records"


@lru_cache(maxsize=1024)
def usable_key(project: str, agent: str) -> PartitionKey:
    """A partition key from any two names; what cannot be part of one is replaced, and a cut name keeps its hash."""
    try:
        return make_key(project, agent)
    except PartitionError:
        return make_key(_usable(project), _usable(agent))


def _usable(name: str) -> str:
    plain = name.lower().replace("..", "-").strip("-_. ")
    try:
        return make_key(plain, _OTHER).project
    except PartitionError:
        digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:8]
        kept = "".join(letter for letter in plain if letter.isascii() and letter.isalnum())[:80]
        return f"{kept or 'name'}-{digest}"


def text(value: Any) -> str | None:
    """A name or an id in a record: text that is not empty, or a whole number."""
    found = scalar(value)
    return clean_text(found) if found is not None and found.strip() else None


class Sample(NamedTuple):
    """What a file holds, the outline of its first records, and what kept it from being read, if anything did."""

    kind: Kind | None
    records: list[Any]
    error: StoreError | None = None


def sampled(path: Path) -> Sample:
    """The beginning of a file, looked at once.

    Raises:
        StoreError: the file cannot be opened.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return _sample(path, stat.st_size, stat.st_mtime_ns)


def _gathered(group: _Group, place: Place, ident: Ident) -> None:
    group.places.append(place)
    group.session = group.session or ident.session
    group.project = group.project or ident.project
    group.agent = group.agent or ident.agent


def _outlined(decoder: msgspec.json.Decoder[Any], found: Text) -> Record | None:
    """A record's outlined fields; null for one that does not fit, or in which what is left undecoded is no list."""
    if not isinstance(found.raw, bytes | msgspec.Raw):
        return None
    try:
        outlined = msgspec.structs.asdict(decoder.decode(found.raw))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    texts = [value for value in outlined.values() if isinstance(value, msgspec.Raw)]
    return outlined if all(bytes(memoryview(value)[:1]) == b"[" for value in texts) else None


def _storable(value: Any, chat: Chat) -> Any:
    """A value without half emoji; one nested too deeply is left out and counted."""
    try:
        return mended_unicode(value, chat.damage)
    except ValueError:
        chat.damage["invalid_context"] += 1
        return None


@lru_cache(maxsize=4096)
def _sample(path: Path, size: int, changed: int) -> Sample:
    kind = kind_of(path)
    found: list[Any] = []
    try:
        for text, _ in zip(records(path, [], kind) if kind else (), range(_PROBED_RECORDS), strict=False):
            try:
                found.append(_cut(parsed(text.raw)))
            except ValueError:
                continue
    except StoreError as error:
        return Sample(kind, found, error)
    return Sample(kind, found)


def _cut(value: Any, depth: int = 5) -> Any:
    """A value cut down to what detection looks at."""
    if isinstance(value, dict):
        return {key: _cut(each, depth - 1) for key, each in value.items()} if depth else {}
    if isinstance(value, list):
        return [_cut(each, depth - 1) for each in value[:5]] if depth else []
    return value[:200] if isinstance(value, str) else value
