"""A search of every byte and value in the lake for texts, which proves that the texts are gone."""

import json
import zipfile
from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import escape

from agent_pipeline.storage.lake import Lake, LakeFile

_CHUNK = 8 << 20


def scan(lake: Lake, needles: Iterable[str]) -> dict[str, list[str]]:
    """Search all files of the lake for the texts `needles`. Return `{path: [needle, …]}`.

    Values of Parquet columns are searched as they are when decoded, nested ones too; everything
    else byte by byte, plain and as JSON and HTML write it; logs of Inspect (`.eval`) are unpacked.

    Raises:
        DataError: a table is damaged.
    """
    needles = list(needles)
    return {str(file.path): hits for file in lake.files() if (hits := found_in(file, needles))}


def found_in(file: LakeFile, needles: Iterable[str]) -> list[str]:
    """Return the searched texts that a file contains, sorted."""
    wanted = {needle: _spellings(needle) for needle in needles}
    longest = max(len(spelling) for spellings in wanted.values() for spelling in spellings)
    hits: set[str] = set()
    for part in _contents(file, longest):
        hits.update(
            needle
            for needle, spellings in wanted.items()
            if needle not in hits and any(spelling in part for spelling in spellings)
        )
    return sorted(hits)


def _spellings(text: str) -> set[bytes]:
    """Return the spellings of a text: unchanged, escaped for HTML, and escaped for JSON.

    JSON holds it without the quotes; characters beyond ASCII are plain or escaped.
    """
    escaped = (json.dumps(text, ensure_ascii=ascii)[1:-1].encode() for ascii in (False, True))
    return {
        text.encode("utf-8"),
        escape(text).encode("utf-8"),
        msgspec.json.encode(text)[1:-1],
        *escaped,
    }


def _contents(file: LakeFile, longest: int) -> Iterator[bytes]:
    """Yield the content of a file in parts.

    Each piece begins with the end of the piece before, so that no text is cut apart.
    """
    if file.path.suffix == ".parquet":
        with file.path.open("rb") as opened:
            table = pq.ParquetFile(opened)
            for number in range(table.num_row_groups):
                for column in table.read_row_group(number).columns:
                    for chunk in column.chunks:
                        plain = (
                            chunk.dictionary_decode()
                            if pa.types.is_dictionary(chunk.type)
                            else chunk
                        )
                        yield from (
                            buffer.to_pybytes() for buffer in plain.buffers() if buffer is not None
                        )
    if file.path.suffix == ".eval":
        with file.path.open("rb") as opened, zipfile.ZipFile(opened) as packed:
            yield from map(packed.read, packed.namelist())
    with file.path.open("rb") as opened:
        end = b""
        while part := opened.read(_CHUNK):
            yield end + part
            end = part[-longest:]
