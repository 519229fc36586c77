"""Files of records: JSON lines, one JSON document, a Parquet or Arrow table, a zip of JSON; told apart by their first bytes.

A record is passed on as the JSON text that it is, to be decoded by whoever needs it, as far as it is needed. Lines stream, and each can be
read again by its place; documents and tables are loaded whole. Of a document that is cut off, the complete records at its beginning are
taken. What could not be read is said in a sentence.
"""

import json
import os
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agent_pipeline.errors import StoreError
from agent_pipeline.sources.base import add_note, unreadable

Kind = Literal["lines", "document", "table", "zip"]

CACHED_BYTES = 64 << 20
"""Documents of at most this size together are kept for reading a record again."""
MEMBER_BYTES = 1 << 30
"""No file inside a zip may be larger: a few kilobytes can claim to be petabytes."""

_HEADS: dict[bytes, Kind] = {b"PAR1": "table", b"ARRO": "table", b"\xff\xff\xff\xff": "table", b"PK\x03\x04": "zip"}
_BUFFER = 1 << 20
_BOM = b"\xef\xbb\xbf"
_PROBED_LINES = 20
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError, ValueError)


class Place(NamedTuple):
    """Where a record is: a line's byte offset and size, else its number; `part`: which of the records that the record holds."""

    path: Path
    at: int
    part: int = 0
    size: int = 0


class Text(NamedTuple):
    """A record as it was found: its place in the file, its size there, and the JSON text, or the value itself where there is none."""

    at: int
    size: int
    raw: Any


def parsed(raw: Any) -> Any:
    """The value of a JSON text; NaN, control characters, half emoji and bytes that are no UTF-8 are let in, to be mended later.

    What is neither bytes nor `msgspec.Raw` is a value already.

    Raises:
        ValueError: it is no JSON.
    """
    if not isinstance(raw, bytes | msgspec.Raw):
        return raw
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        return json.loads(bytes(raw).decode("utf-8", "surrogateescape"), strict=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def kind_of(path: Path) -> Kind | None:
    """What a file holds; null for what holds no records.

    Raises:
        StoreError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4)
            if kind := _HEADS.get(head):
                return kind
            file.seek(len(_BOM) if head.startswith(_BOM) else 0)
            first = _first_line(file)
            if first[:1] not in (b"{", b"["):
                return None
            if _parses(first):
                return "lines" if first[:1] == b"{" or file.readline().lstrip()[:1] == b"[" else "document"
            following = (file.readline() for _ in range(_PROBED_LINES))
            return "lines" if first[:1] == b"{" and any(line[:1] == b"{" and _parses(line) for line in following) else "document"
    except OSError as error:
        raise unreadable(path, error) from error


def records(path: Path, notes: list[str], kind: Kind | None = None) -> Iterator[Text]:
    """Every record of a file; what is left out is noted.

    Raises:
        StoreError: nothing of the file can be read.
    """
    kind = kind or kind_of(path)
    if kind == "lines":
        yield from _lines(path, notes)
    elif kind is not None:
        for at, value in enumerate(_loaded(path, kind, notes)):
            yield Text(at, 0, value)
    else:
        raise StoreError(f"{path} holds no JSON, JSON lines, Parquet, Arrow or zip of JSON: take it out of the store.")


class Records:
    """Reads records again by their places; keeps the last documents and tables, and one file of lines open."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Path, Any] = OrderedDict()
        self._kinds: dict[Path, Kind | None] = {}
        self._open: tuple[Path, BinaryIO] | None = None

    def get(self, place: Place) -> Any:
        """The record at a place that `records` gave.

        Raises:
            StoreError: the file has changed since.
            ValueError: the record's text is no JSON (the index pass does not look so closely).
        """
        return parsed(self.text(place))

    def text(self, place: Place) -> Any:
        """The JSON text of the record at a place, or its value where there is no text (a table's row); raises StoreError as `get` does."""
        path = place.path
        kind = self._kinds[path] if path in self._kinds else self._kinds.setdefault(path, kind_of(path))
        try:
            if kind == "lines":
                raw: Any = os.pread(self._file(path).fileno(), place.size, place.at)
                if len(raw) != place.size:
                    raise IndexError("it is shorter than it was")
            else:
                raw = self._held(path, kind)[place.at]
        except (IndexError, OSError) as error:
            raise StoreError(f"{path} has changed while it was read ({error}): run again when nothing writes to it.") from error
        return raw

    def close(self) -> None:
        """Close the file that is open, if any."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _file(self, path: Path) -> BinaryIO:
        if self._open is None or self._open[0] != path:
            self.close()
            self._open = path, path.open("rb", buffering=0)
        return self._open[1]

    def _held(self, path: Path, kind: Kind | None) -> Any:
        if path not in self._kept:
            self._kept[path] = _loaded(path, kind, [])
            while len(self._kept) > 1 and sum(each.stat().st_size for each in self._kept) > CACHED_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(path)
        return self._kept[path]


def _first_line(file: BinaryIO) -> bytes:
    for line in file:
        if line.strip():
            return line.strip()
    return b""


def _parses(line: bytes) -> bool:
    try:
        return isinstance(parsed(line), dict | list)
    except ValueError:
        return False


def _lines(path: Path, notes: list[str]) -> Iterator[Text]:
    broken: list[int] = []
    try:
        with path.open("rb", buffering=_BUFFER) as file:
            at = 0
            for number, line in enumerate(file, 1):
                if line[:1] == b"{":
                    yield Text(at, len(line), line)
                    at += len(line)
                    continue
                text = line.removeprefix(_BOM).strip()
                if text[:1] in (b"{", b"["):
                    yield Text(at + line.index(text), len(text), text)
                elif text:
                    broken.append(number)
                at += len(line)
    except OSError as error:
        raise unreadable(path, error) from error
    if broken:
        add_note(notes, f"{path}: {len(broken)} lines hold no JSON object and were left out (the first is line {broken[0]}).")


def _loaded(path: Path, kind: Kind | None, notes: list[str]) -> Any:
    """A file as a sequence of its records."""
    if kind == "table":
        return _Rows(path)
    return Archive(path) if kind == "zip" else _document(path, notes)


def _document(path: Path, notes: list[str]) -> list[Any]:
    """The elements of a JSON list, or the one value that a document is, as texts where the document is sound."""
    try:
        raw = path.read_bytes().removeprefix(_BOM)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        return _ELEMENTS.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        value = parsed(raw)
        return value if isinstance(value, list) else [value]
    except ValueError as error:
        complete = _complete(raw.decode("utf-8", "surrogateescape"))
        if not complete:
            raise StoreError(f"{path} is no JSON ({error}): it may be cut off, so take it out or restore it.") from error
        add_note(notes, f"{path} is cut off or damaged ({error}): the first {len(complete)} records were read, the rest was left out.")
        return complete


def _complete(text: str) -> list[Any]:
    """The values at the beginning of a list that does not end, or of values written one after another."""
    found: list[Any] = []
    decoder, at = json.JSONDecoder(strict=False), 0
    while True:
        while at < len(text) and (text[at].isspace() or text[at] == "," or (text[at] == "[" and not found)):
            at += 1
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return found
        found.append(value)


class Archive:
    """A zip of JSON files as Inspect writes it: its records are those in the folder `samples`; `member` reads any other.

    Raises:
        StoreError: it is no whole zip.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._zip() as archive:
            names = sorted({info.filename for info in archive.infolist()})
        self._names = [name for name in names if name.startswith("samples/") and name.endswith(".json")]

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, row: int) -> bytes:
        return self.member(self._names[row])

    def member(self, name: str) -> bytes:
        """The text of a file in the zip; raises what the class raises."""
        with self._zip() as archive:
            size = archive.getinfo(name).file_size
            if size > MEMBER_BYTES:
                raise StoreError(f"{self._path}: {name!r} is too large ({size} bytes): take the file out of the store.")
            return archive.read(name)

    @contextmanager
    def _zip(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self._path) as archive:
                yield archive
        except OSError as error:
            raise unreadable(self._path, error) from error
        except _ZIP_ERRORS as error:
            raise StoreError(f"{self._path} is no whole zip ({error}): restore it, or take it out of the store.") from error


class _Rows:
    """A table's rows as records; a column of JSON texts is decoded, and what JSON has no form for is written as text."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                head = file.read(4)
            if head == b"PAR1":
                self._table = pq.read_table(path)
            else:
                with pa.OSFile(str(path)) as file:  # no memory map: a file that shrinks under one ends the process
                    self._table = (pa.ipc.open_file if head == b"ARRO" else pa.ipc.open_stream)(file).read_all()
            self._table.validate(full=True)  # Arrow trusts the offsets in a file, and would read outside of it
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = (str(error).splitlines() or ["no reason given"])[0]
            raise StoreError(f"{path} is no whole Parquet or Arrow file ({reason}): restore it, or take it out.") from error

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        if row >= len(self):
            raise IndexError(row)
        try:
            values = msgspec.to_builtins(self._table.slice(row, 1).to_pylist()[0], str_keys=True, enc_hook=str)
        except (pa.ArrowException, UnicodeError, ValueError, TypeError, OverflowError) as error:
            raise StoreError(f"A row of a table cannot be read (row {row}: {error}): restore the file, or take it out.") from error
        for name, value in values.items():
            if isinstance(value, str) and value[:1] in ("{", "["):
                try:
                    values[name] = parsed(value.encode("utf-8", "surrogateescape"))
                except ValueError:
                    continue
        return values
