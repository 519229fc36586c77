"""The search for private data in files and texts that leave the lake: exports, cards, pages and
logs.

Tables are searched in `ingestion.privacy_scan` and `ingestion.derived`. Here, each file format is
read properly: the metadata of a GGUF file, the members of an archive, the strings of a JSON text.
The vocabulary of a tokenizer is not searched, because it comes from the base model.
"""

import gzip
import json
import struct
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from agent_pipeline.errors import PrivateDataError
from agent_pipeline.redaction import Redactor

TEXT_SUFFIXES = frozenset(
    {
        ".txt", ".md", ".json", ".jsonl", ".html", ".htm", ".csv", ".tsv", ".yaml", ".yml", ".toml", ".ini", ".jinja", ".log",
        ".xml", ".py", "",
    }
)  # fmt: skip
"""Suffixes of text files. A file without a suffix, such as a Modelfile, counts as a text file."""

_VOCABULARY = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type")
_STRING, _ARRAY = 8, 9
_NUMBER_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""The kinds of values in a GGUF file (`gguf.GGUFValueType`), and the bytes of numbers by kind."""

_CHUNK = 1 << 20
_OVERLAP = 400


def finds_in_files(
    files: Mapping[str, Path], redactor: Redactor, allowed: Collection[str] = ()
) -> dict[str, Counter[str]]:
    """Count the private values in files, by the file's name and by kind. Files without private
    values are left out.

    Args:
        files: The files to search, by the names to report.
        redactor: The redactor that decides which values are private.
        allowed: Values that are not reported, such as made-up values.

    Raises:
        RedactionError: A detector raised an exception.
    """
    finds = {}
    for name, path in files.items():
        if kinds := kinds_in_texts(texts_of_file(path), redactor, allowed):
            finds[name] = kinds
    return finds


def kinds_in_texts(
    texts: Iterable[str], redactor: Redactor, allowed: Collection[str] = ()
) -> Counter[str]:
    """Count the different private values in texts, by kind.

    Args:
        texts: The texts.
        redactor: The redactor that decides which values are private.
        allowed: Values that are not counted, such as made-up values.
    """
    values: dict[str, str] = {}
    for text in texts:
        values |= redactor.finds_in_texts([text])
    return Counter(kind for value, kind in values.items() if value not in allowed)


def refuse_private(
    what: str,
    redactor: Redactor,
    files: Mapping[str, Path] | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Raise an error if files or texts that will be served or published contain private data.

    Args:
        what: The name of the product, for the error message.
        redactor: The redactor that decides which values are private.
        files: The files, by the names to report.
        texts: Texts that are not in files yet, by the names to report.

    Raises:
        PrivateDataError: A file or a text contains private data.
        RedactionError: A detector raised an exception.
    """
    finds = finds_in_files(files or {}, redactor)
    for name, text in (texts or {}).items():
        if kinds := kinds_in_texts([text], redactor):
            finds[name] = kinds
    if finds:
        raise PrivateDataError(what, finds)


def texts_of_file(path: Path) -> Iterator[str]:
    """Yield the texts in a file. A file of numbers, such as model weights, yields nothing."""
    if path.suffix == ".gguf":
        yield from _texts_of_gguf(path)
    elif path.suffix == ".safetensors":
        yield from _metadata_of_safetensors(path)
    elif path.suffix in (".eval", ".zip"):
        yield from _texts_of_archive(path)
    elif path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as opened:
            yield from _chunks(opened)
    elif path.name == "tokenizer.json":
        yield from _texts_of_tokenizer(path)
    elif path.suffix.lower() in TEXT_SUFFIXES:
        with path.open(encoding="utf-8", errors="replace") as opened:
            yield from _chunks(opened)


def _chunks(opened: Any) -> Iterator[str]:
    """Yield an open text in pieces that overlap, so that every value is complete in at least one
    piece.
    """
    end = ""
    while piece := opened.read(_CHUNK):
        yield end + piece
        end = piece[-_OVERLAP:]


def _texts_of_archive(path: Path) -> Iterator[str]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            yield name
            with archive.open(name) as member:
                yield member.read().decode("utf-8", "replace")


def _texts_of_gguf(path: Path) -> Iterator[str]:
    """Yield the texts in the metadata of a GGUF file, except its vocabulary."""
    try:
        with path.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
            yield from _GgufMetadata(content).texts()
    except (ValueError, RecursionError, OSError):  # not a GGUF, cut off, or damaged
        with path.open("rb") as opened:
            yield opened.read(_CHUNK).decode("utf-8", "replace")


class _GgufMetadata:
    """The metadata of a GGUF file, read from its beginning to its end.

    The reader of the package `gguf` makes several arrays of each token of the vocabulary, which
    takes seconds per file.

    Args:
        content: The content of the file.

    Raises:
        ValueError: The content is not a GGUF file, it is cut off, or it is damaged.
    """

    def __init__(self, content: mmap) -> None:
        if content[:4] != b"GGUF":
            raise ValueError("not a GGUF file")
        self._content, self._position = content, 4
        # The version is a small number in the byte order of the machine that wrote the file.
        self._order = ">" if content[4:6] == b"\0\0" else "<"
        if self._read_number("I") not in (2, 3):
            raise ValueError("an unknown version of GGUF")

    def texts(self) -> Iterator[str]:
        """Yield the texts with their names."""
        self._read_number("Q")  # tensors
        for _ in range(self._read_number("Q")):
            name = self._read_text().decode("utf-8", "replace")
            for text in self._read_texts(self._read_number("I")):
                if name not in _VOCABULARY:
                    yield f"{name}: {text.decode('utf-8', 'replace')}"

    def _read_texts(self, kind: int) -> Iterator[bytes]:
        """Read a value, and yield the texts in it."""
        if kind == _STRING:
            yield self._read_text()
        elif kind == _ARRAY:
            kind_of_items, count = self._read_number("I"), self._read_number("Q")
            if kind_of_items in (_STRING, _ARRAY):
                for _ in range(count):
                    yield from self._read_texts(kind_of_items)
            else:
                self._read(count * self._size(kind_of_items))
        else:
            self._read(self._size(kind))

    @staticmethod
    def _size(kind: int) -> int:
        if kind not in _NUMBER_SIZES:
            raise ValueError(f"an unknown kind of value, {kind}")
        return _NUMBER_SIZES[kind]

    def _read_text(self) -> bytes:
        start, end = self._read(self._read_number("Q"))
        return self._content[start:end]

    def _read_number(self, code: str) -> int:
        number: int
        start, _ = self._read(struct.calcsize(code))
        (number,) = struct.unpack_from(self._order + code, self._content, start)
        return number

    def _read(self, size: int) -> tuple[int, int]:
        """Move the position, and return the range [start, end) of the bytes that were passed.

        A damaged file may give any size.
        """
        start, end = self._position, self._position + size
        if end > len(self._content):
            raise ValueError("the file is cut off")
        self._position = end
        return start, end


def _metadata_of_safetensors(path: Path) -> Iterator[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as opened:
            yield json.dumps(opened.metadata() or {}, ensure_ascii=False)
    except SafetensorError:  # the check of its sha256 refuses such a file
        return


def _texts_of_tokenizer(path: Path) -> Iterator[str]:
    try:
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        yield path.read_text(encoding="utf-8", errors="replace")
        return
    if isinstance(tokenizer, dict) and isinstance(tokenizer.get("model"), dict):
        tokenizer["model"] = {
            name: value
            for name, value in tokenizer["model"].items()
            if name not in ("vocab", "merges")
        }
    yield json.dumps(tokenizer, ensure_ascii=False)
