"""Damaged copies of a store's files: cut, bits flipped, parts lost or doubled; values of wrong types, nested deeply, huge, half emoji, NaN.

The same seed gives the same damage. `must_survive` is what every reader owes them.
"""

import io
import json
import os
import random
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.ingestion.reading import ReadingOptions, fingerprint_partition, read_sessions
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.tables import SESSIONS, make_session_row, to_batches
from agent_pipeline.sources.formats.file_source import FileSource
from agent_pipeline_tests.sources.samples import table

COUNT = int(os.environ.get("DAMAGED_INPUTS") or 40)
"""Damaged inputs a reader. No name of ours: settings refuse a variable that they do not know."""

SECONDS = 10.0
_DEEP = "@@deep@@"
_OPTIONS = ReadingOptions(redaction=RedactionOptions(enabled=False))


def damaged(raw: bytes, seed: int) -> bytes:
    """A file with one to three kinds of damage."""
    chance = random.Random(seed)
    if raw[:4] == b"PK\x03\x04" and chance.random() < 0.7:
        return _inside_zip(raw, chance)
    if raw[:6] in (b"PAR1\x15\x04", b"ARROW1") and chance.random() < 0.7:
        return _inside_table(raw, chance)
    for _ in range(chance.randint(1, 3)):
        raw = chance.choice(_KINDS)(raw, chance)
    return raw


def must_survive(reader: type[FileSource], path: Path) -> int:
    """Read a store to its end and write it as a table; the number of sessions, 0 for a store that is refused with one sentence."""
    began = time.process_time()  # whatever else the machine does
    rows = 0
    try:
        reader.detect(path)
        source = reader(path)
        for key in source.partitions():
            sessions = list(read_sessions(source, key, _OPTIONS))
            assert len({session.session_id for session in sessions}) == len(sessions), (
                f"{key} has two sessions of one id"
            )
            rows += sum(
                batch.num_rows for batch in to_batches(map(make_session_row, sessions), SESSIONS)
            )
            assert fingerprint_partition(source.stored(key))[1] == len(sessions)
        assert rows or source.notes, f"{path} holds nothing, and nobody says why"
        for note in source.notes:
            note.encode("utf-8")
    except (StoreError, PartitionError) as error:
        sentence = str(error)
        assert sentence.strip().endswith("."), sentence
        rows = 0
    took = time.process_time() - began
    assert took < SECONDS, f"{path} took {took:.1f} s"
    return rows


def survivors(reader: type[FileSource], whole: bytes, folder: Path, suffix: str) -> int:
    """How many of `COUNT` damaged copies of a file can be read."""
    read = 0
    for seed in range(COUNT):
        path = folder / f"damaged{suffix}"
        path.write_bytes(damaged(whole, seed))
        read += must_survive(reader, path) > 0
        path.unlink()
    return read


def _cut(raw: bytes, chance: random.Random) -> bytes:
    return raw[: chance.randint(0, len(raw))]


def _flipped(raw: bytes, chance: random.Random) -> bytes:
    made = bytearray(raw)
    for _ in range(chance.randint(1, 20) if made else 0):
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    return bytes(made)


def _lost(raw: bytes, chance: random.Random) -> bytes:
    begin = chance.randint(0, len(raw))
    return raw[:begin] + raw[begin + chance.randint(1, 200) :]


def _doubled(raw: bytes, chance: random.Random) -> bytes:
    begin = chance.randint(0, len(raw))
    return raw[:begin] + raw[begin : begin + chance.randint(1, 2000)] + raw[begin:]


def _bytes(raw: bytes, chance: random.Random) -> bytes:
    begin = chance.randint(0, len(raw))
    return (
        raw[:begin]
        + chance.choice(
            [b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\n", b"NaN", b"{", b'"', b"\\ud83d", b"1e999"]
        )
        + raw[begin:]
    )


def _retyped(raw: bytes, chance: random.Random) -> bytes:
    """Some values replaced by values of other types, in one record or in the whole document."""
    rows = raw.split(b"\n")
    at = chance.randrange(len(rows))
    try:
        text = _with_other_values(json.loads(rows[at]), chance)
        return b"\n".join([*rows[:at], text, *rows[at + 1 :]])
    except (ValueError, RecursionError):
        pass
    try:
        return _with_other_values(json.loads(raw), chance)
    except (ValueError, RecursionError):
        return _flipped(raw, chance)


_KINDS: list[Callable[[bytes, random.Random], bytes]] = [
    _cut,
    _flipped,
    _lost,
    _doubled,
    _bytes,
    _retyped,
    _retyped,
    _retyped,
    _retyped,
]


def _with_other_values(value: Any, chance: random.Random) -> bytes:
    holder = [value]
    for _ in range(chance.randint(1, 8)):
        node: Any = holder
        while True:
            name = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if isinstance(node[name], dict | list) and node[name] and chance.random() < 0.85:
                node = node[name]
                continue
            if chance.random() < 0.2 and isinstance(node, dict):
                node[
                    chance.choice(["type", "role", "id", "", "\0", "content", "name", "\udc80"])
                ] = _other_value(chance)
            elif chance.random() < 0.2 and isinstance(node, dict):
                del node[name]
            else:
                node[name] = _other_value(chance)
            break
        if not isinstance(holder[0], dict | list) or not holder[0]:
            break
    depth = chance.choice([50, 150, 5000, 100_000])
    deep = chance.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth])
    return json.dumps(holder[0]).replace(json.dumps(_DEEP), deep).encode()


def _other_value(chance: random.Random) -> Any:
    return chance.choice(
        [
            None, True, False, 0, -1, 3.7, 10**30, 10**400, 9e18, -(10**18), float("nan"), float("inf"), "", " ", "\0", "a\0b", "\ud83d",
            "{", "[]", "C", "1e999", "2026-99-99", "../../etc", "x" * 300_000, "é" * 5000, _DEEP, [], {}, [None], [[]], [{}], ["a", 1],
            {"type": []}, {"role": "assistant"}, {"id": {"id": []}}, {"": ""}, {"content": [{"type": {}}]}, [{"type": "text"}],
            [{"role": "tool", "content": 5}], [{"type": "tool_use", "id": [], "name": {}, "input": 5}],
        ]
    )  # fmt: skip


def _inside_table(raw: bytes, chance: random.Random) -> bytes:
    """A table that is whole, with a column of JSON texts whose values are damaged."""
    source = pa.BufferReader(raw)
    rows = (
        pq.read_table(source) if raw[:4] == b"PAR1" else pa.ipc.open_file(source).read_all()
    ).to_pylist()
    name = chance.choice(list(rows[0]))
    for row in rows:
        row[name] = _retyped(json.dumps(row[name], default=str).encode(), chance).decode(
            "utf-8", "replace"
        )
    return table(rows, arrow=raw[:4] != b"PAR1")


def _inside_zip(raw: bytes, chance: random.Random) -> bytes:
    """A zip that is whole, of which one file is damaged or gone."""
    sink = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(raw)) as found,
        zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as made,
    ):
        names = found.namelist()
        chosen, gone = chance.choice(names), chance.random() < 0.1
        for name in names:
            if name != chosen:
                made.writestr(name, found.read(name))
            elif not gone:
                made.writestr(name, chance.choice(_KINDS)(found.read(name), chance))
    return sink.getvalue()
