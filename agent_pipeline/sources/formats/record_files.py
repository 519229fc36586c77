"""Files of records, whose kind is recognized by their first bytes.

A file holds JSON lines, a JSON document, a Parquet or Arrow table, a zip of JSON files, or a
database. Lines are read one by one; documents and tables are loaded completely. Each record can be
read again from its location.
"""

import json
import os
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec

from agent_pipeline.errors import StoreError
from agent_pipeline.sources.base import add_note, changed, file_signature, unreadable
from agent_pipeline.sources.formats import limits
from agent_pipeline.sources.formats.databases import Traces
from agent_pipeline.sources.formats.fields import RepeatedKeyError, parsed
from agent_pipeline.sources.formats.limits import TooLargeError
from agent_pipeline.sources.formats.table_files import Rows
from agent_pipeline.structs import json_decoder

Kind = Literal["lines", "document", "table", "zip", "database"]

CACHED_BYTES = 64 << 20
"""Total size in bytes of the files that stay in memory, so that their records can be read again."""

_HEADS: dict[bytes, Kind] = {
    b"PAR1": "table",
    b"ARRO": "table",
    b"\xff\xff\xff\xff": "table",
    b"PK\x03\x04": "zip",
    b"SQLi": "database",
}
_BUFFER = 1 << 20
_KEPT_RECORDS = 200
_BOM = b"\xef\xbb\xbf"
_PROBED_LINES = 20
_KEPT_OF_TORN = 64 << 10
"""Number of bytes that are kept of a torn record that is too large. These bytes probably contain
the session id.
"""
_ELEMENTS = json_decoder(list[msgspec.Raw])
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    KeyError,
    ValueError,
)


class RecordLocation(NamedTuple):
    """The location of a record in a file.

    Attributes:
        path: The file.
        position: The byte offset of a line, or the index of any other record.
        part: The index of an inner record inside that record.
        size: The length of a line in bytes, or 0 for any other record.
    """

    path: Path
    position: int
    part: int = 0
    size: int = 0

    def __str__(self) -> str:
        """Return the location as text.

        The text is part of session ids, so its form must never change.
        """
        return (
            f"Place(path={self.path!r}, at={self.position!r}, part={self.part!r}, "
            f"size={self.size!r})"
        )


def kind_of(path: Path) -> Kind | None:
    """Return the kind of a file, or None if the file holds no records.

    Raises:
        StoreError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4)
            if kind := _HEADS.get(head):
                return kind
            file.seek(len(_BOM) if head.startswith(_BOM) else 0)
            first = _first_text(file)
            if first[:1] not in (b"{", b"["):
                return None
            if _is_json(first):
                return (
                    "lines"
                    if first[:1] == b"{" or file.readline().lstrip()[:1] == b"["
                    else "document"
                )
            following = (file.readline() for _ in range(_PROBED_LINES))
            return (
                "lines"
                if first[:1] == b"{"
                and any(line[:1] == b"{" and _is_json(line) for line in following)
                else "document"
            )
    except OSError as error:
        raise unreadable(path, error) from error


def records(
    path: Path, notes: list[str], kind: Kind | None = None, torn: list[bytes] | None = None
) -> Iterator[tuple[RecordLocation, Any]]:
    """Yield every record of a file together with its location.

    Args:
        path: The file.
        notes: List to which a sentence about unreadable records is added.
        kind: The kind of the file, if the caller knows it.
        torn: List to which the text of each half-written record is added, before the next record is
            yielded.

    Raises:
        StoreError: Nothing of the file can be read.
    """
    torn = [] if torn is None else torn
    too_large: list[TooLargeError] = []
    kind = kind or kind_of(path)
    if kind is None:
        raise StoreError(
            f"{path} is not a JSON, JSON Lines, Parquet or Arrow file, and not a zip of JSON "
            "files: move the file out of the store."
        )
    broken = yielded = 0
    repeated: list[str] = []
    for location, raw in (
        _lines(path, notes, torn, too_large)
        if kind == "lines"
        else _elements(path, kind, notes, torn, too_large)
    ):
        try:
            value = parsed(raw)
        except TooLargeError as error:
            too_large.append(error)
            torn.append(_beginning(raw, torn))
        except ValueError as error:
            broken += 1
            repeated += [str(error)] if isinstance(error, RepeatedKeyError) else []
            torn.append(_beginning(raw, torn))
        else:
            yielded += 1
            yield location, value
    if broken > len(repeated):
        add_note(notes, f"{path}: {broken - len(repeated)} records are not JSON and were left out.")
    if repeated:
        add_note(
            notes,
            f"{path}: {len(repeated)} records were left out, because their content is ambiguous "
            f"({repeated[0]}).",
        )
    if too_large:
        largest = max(too_large, key=lambda error: error.needed)
        sentence = f"{path}: {len(too_large)} records are too large and were left out ({largest})."
        if not yielded:
            raise StoreError(sentence)
        add_note(notes, sentence)


class RecordReader:
    """A reader of records at known locations.

    The reader keeps the last documents and tables in memory, and one file of lines open. Spans do
    not name their session. Files that hold several spans are therefore read only while their
    signature is part of `indexed`. Otherwise, a span that replaced another span could end up in the
    wrong session.
    """

    def __init__(self, indexed: str = "") -> None:
        self._indexed = indexed
        self._loaded: OrderedDict[Path, Sequence[object] | Traces] = OrderedDict()
        self._open: tuple[Path, BinaryIO] | None = None

    def record(self, location: RecordLocation) -> Any:
        """Return the record at a location.

        Raises:
            StoreError: The file has changed since it was indexed.
        """
        path = location.path
        try:
            if not location.size:
                return parsed(self._records_of(path)[location.position])
            line = os.pread(self._lines_of(path).fileno(), location.size, location.position)
            return parsed(line if len(line) == location.size else b"")
        except TooLargeError as error:
            raise StoreError(f"{path} contains a record that is too large: {error}.") from error
        except (IndexError, OSError, ValueError) as error:
            raise changed(path) from error

    def close(self) -> None:
        """Close the open file, if there is one."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _lines_of(self, path: Path) -> BinaryIO:
        """Return an open file of JSON lines, from the cache if it is already open."""
        if self._open is None or self._open[0] != path:
            self.close()
            self._open = path, path.open("rb", buffering=0)
        return self._open[1]

    def _records_of(self, path: Path) -> Sequence[object] | Traces:
        """Return the records of a document, table, zip or database file."""
        if path not in self._loaded:
            self._loaded[path] = loaded = _loaded(path, kind_of(path), [])
            if (
                self._indexed
                and not isinstance(loaded, Traces)
                and len(loaded) > 1
                and file_signature(path) not in self._indexed
            ):
                raise changed(path)
            while (
                len(self._loaded) > 1
                and sum(loaded_path.stat().st_size for loaded_path in self._loaded) > CACHED_BYTES
            ):
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(path)
        return self._loaded[path]


def _is_json(line: bytes) -> bool:
    """Return whether a line is a JSON object or list."""
    try:
        return isinstance(parsed(line), dict | list)
    except RepeatedKeyError:
        return True
    except ValueError:
        return False


def _lines_in(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield each line of a file with its full length in bytes.

    Only the beginning of a line is yielded if the line is too long.
    """
    longest = limits.longest_line()
    while line := file.readline(longest):
        length = len(line)
        if length == longest and not line.endswith(b"\n"):
            line = line[:_KEPT_OF_TORN]
            while rest := file.readline(_BUFFER):
                length += len(rest)
                if rest.endswith(b"\n"):
                    break
        yield line, length


def _first_text(file: BinaryIO) -> bytes:
    """Return the first line that is not blank.

    If the line is too long, return only its beginning.
    """
    return next((line.strip() for line, _ in _lines_in(file) if line.strip()), b"")


def _lines(
    path: Path, notes: list[str], torn: list[bytes], too_large: list[TooLargeError]
) -> Iterator[tuple[RecordLocation, bytes]]:
    """Yield each JSON line of a file with its location."""
    broken: list[int] = []
    offset = 0
    try:
        with path.open("rb", buffering=_BUFFER) as file:
            for line_number, (line, length) in enumerate(_lines_in(file), 1):
                text = line.removeprefix(_BOM).strip()
                if length > len(line):
                    too_large.append(TooLargeError(2 * length, limits.largest_record()))
                    torn.append(_beginning(text, torn))
                elif text[:1] in (b"{", b"["):
                    yield RecordLocation(path, offset + line.index(text[:1]), 0, len(text)), text
                elif text:
                    broken.append(line_number)
                    torn.append(_beginning(text, torn))
                offset += length
    except OSError as error:
        raise unreadable(path, error) from error
    if broken:
        add_note(
            notes,
            f"{path}: {len(broken)} lines do not contain a JSON object and were left out (the "
            f"first is line {broken[0]}).",
        )


def _beginning(raw: Any, torn: list[bytes]) -> bytes:
    """Return the beginning of an unreadable record, which may name its session.

    If very many records are unreadable, the text is not kept.
    """
    return bytes(memoryview(raw)[:_KEPT_OF_TORN]) if len(torn) < _KEPT_RECORDS else b""


def _elements(
    path: Path, kind: Kind, notes: list[str], torn: list[bytes], too_large: list[TooLargeError]
) -> Iterator[tuple[RecordLocation, object]]:
    """Yield each record of a file that is loaded completely, with its location."""
    rest: list[bytes] = []
    loaded = _loaded(path, kind, notes, rest)
    if isinstance(loaded, Traces):
        yield from ((RecordLocation(path, row), value) for row, value in loaded.items())
    else:
        for index in range(len(loaded)):
            try:
                value = loaded[index]
            except TooLargeError as error:
                too_large.append(error)
                torn.append(b"")
            else:
                yield RecordLocation(path, index), value
    if isinstance(loaded, Rows) and loaded.has_empty_keys:
        sentence = (
            "its objects have the keys of all rows, so keys with a null value were treated as "
            "missing keys"
        )
        add_note(
            notes,
            f"{path}: {sentence}. To keep real null values, store arguments as JSON text.",
        )
    torn += rest


def _loaded(
    path: Path, kind: Kind | None, notes: list[str], rest: list[bytes] | None = None
) -> Sequence[object] | Traces:
    """Load the records of a document, table, zip or database."""
    if kind == "table":
        return Rows(path)
    if kind == "database":
        return Traces(path)
    return Archive(path) if kind == "zip" else _document(path, notes, rest)


def _document(path: Path, notes: list[str], rest: list[bytes] | None = None) -> list[Any]:
    """Return the values of a JSON document.

    The values are the elements of a list, the only value of the document, or several values in a
    row. If the document is cut off, its complete values are returned, and `rest` gets an empty
    text.
    """
    try:
        limits.check_file(path)
        raw = path.read_bytes().removeprefix(_BOM)
        limits.check_elements(raw)
    except OSError as error:
        raise unreadable(path, error) from error
    except TooLargeError as error:
        raise StoreError(f"{path} is too large: {error}.") from error
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        return _ELEMENTS.decode(raw)
    try:
        value = parsed(raw)
        return value if isinstance(value, list) else [value]
    except TooLargeError as error:
        raise StoreError(f"{path} is too large: {error}.") from error
    except ValueError as error:
        values, is_whole = _values_in(raw.decode("utf-8", "surrogateescape"))
        if not values:
            raise StoreError(
                f"{path} is not JSON ({error}) and may be cut off: restore the file, or move the "
                "file out of the store."
            ) from error
        if not is_whole:
            add_note(
                notes,
                f"{path} is cut off or damaged ({error}): the first {len(values)} records were "
                "read, and the rest was left out.",
            )
            if rest is not None:
                rest.append(b"")
        return values


def _values_in(text: str) -> tuple[list[object], bool]:
    """Return the complete JSON values in a text, and whether the text contains nothing else.

    The text is a list without its end, or several values in a row.
    """
    values: list[object] = []
    decoder, position, in_list = json.JSONDecoder(strict=False), 0, False
    while True:
        while position < len(text) and (
            text[position].isspace()
            or text[position] == ","
            or (text[position] == "[" and not values)
        ):
            in_list |= text[position] == "["
            position += 1
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return values, position == len(text) and not in_list
        values.append(value)


class Archive(Sequence[bytes]):
    """A zip of JSON files, as Inspect AI writes it.

    Its records are the files in the folder `samples`; `member` reads any other file.

    Raises:
        StoreError: The file is not a whole zip.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._zip() as archive:
            limits.check_archive(path, archive.infolist())
            names = sorted({info.filename for info in archive.infolist()})
        self._names = [
            name for name in names if name.startswith("samples/") and name.endswith(".json")
        ]

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, row: Any) -> Any:
        return self.member(self._names[row])

    def member(self, name: str) -> bytes:
        """Return the text of a file in the zip archive.

        Raises:
            StoreError: The file is not a whole zip.
            TooLargeError: The text would need too much memory.
        """
        with self._zip() as archive:
            return limits.read_member(archive, name)

    @contextmanager
    def _zip(self) -> Iterator[zipfile.ZipFile]:
        """Open the zip archive, and raise a `StoreError` if this fails."""
        try:
            with zipfile.ZipFile(self._path) as archive:
                yield archive
        except OSError as error:
            raise unreadable(self._path, error) from error
        except TooLargeError:
            raise
        except _ZIP_ERRORS as error:
            raise StoreError(
                f"{self._path} is not a complete zip ({error}): restore it, or move the file out "
                "of the store."
            ) from error
