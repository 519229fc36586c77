"""JSON lines on disk: UTF-8, one object a line, keys in the order given, put in place whole or not at all."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from upath import UPath

from agent_pipeline.storage.filesystem import Filesystem


def json_line(record: Any) -> str:
    """One record as a line with its newline.

    Raises:
        ValueError: it has a NaN or an infinity, which are no JSON.
    """
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


_OF_THE_TABLE = {"split", "score", "created_at"}


def trainers_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Rows of a split as lines of the file that trainers read; JSON columns may be `msgspec.Raw`.

    The split (the file's name says it), what only selection uses (the JSON reader of `datasets` takes times for local ones) and keys
    without a value are left out; `tools` stays, because LLaMA-Factory needs the key in every row of a file with tools.
    """
    for row in rows:
        kept = {name: value for name, value in row.items() if name == "tools" or (name not in _OF_THE_TABLE and value is not None)}
        yield msgspec.json.encode(kept) + b"\n"


def write_atomically(path: Path, data: bytes) -> Path:
    """A file with these bytes: readers see the old one or this one, never a part of it. Folders are made where they are missing.

    Raises:
        OSError: the disk is full, or not ours to write.
    """
    target = UPath(path.absolute())
    Filesystem(target.parent).write(target, data)
    return path
