"""Limits on what a file may hold unpacked: small hostile files take little memory, and large honest ones are read."""

import contextlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import StoreError
from agent_pipeline.sources.benchmarks.inspect_ai import InspectSource
from agent_pipeline.sources.formats import limits
from agent_pipeline.sources.formats.arrow_messages import unpacked_sizes
from agent_pipeline.sources.formats.fields import parsed
from agent_pipeline.sources.formats.limits import TooLargeError
from agent_pipeline.sources.formats.parquet_pages import read_page_headers
from agent_pipeline.sources.formats.plain import OpenAIChatSource
from agent_pipeline.sources.formats.record_files import Archive, records
from agent_pipeline.sources.formats.sqlite import read_only
from agent_pipeline_tests.sources.samples import inspect_header, inspect_sample

MOST_MEMORY_MB = 500
MB = 1 << 20

READ = """
import re, sys
from pathlib import Path
from agent_pipeline.errors import StoreError
from agent_pipeline.sources.opening import open_source, parse_location
try:
    source = open_source(parse_location(sys.argv[1]))
    for key in source.partitions():
        for session in source.sessions(key):
            print("session", len(session.messages), dict(session.damage))
    print(*source.notes, sep="\\n")
except StoreError as error:
    print("refused:", error)
status = Path("/proc/self/status").read_text()  # getrusage counts what the parent had before it started us
print("peak", int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) // 1024)
"""


def read_in_process(path: Path | str) -> tuple[str, int]:
    """Read a store (a path, or a server's address) in a process of its own.

    Returns:
        What was printed, and the most memory in MB.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    text, _, peak = done.stdout.rpartition("peak ")
    return text, int(peak)


def zipped(path: Path, members: dict[str, Iterator[bytes] | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, parts in members.items():
            with archive.open(name, "w") as member:
                for part in [parts] if isinstance(parts, bytes) else parts:
                    member.write(part)
    return path


def log(path: Path, sample: Iterator[bytes] | bytes) -> Path:
    return zipped(
        path,
        {"header.json": json.dumps(inspect_header()).encode(), "samples/1_epoch_1.json": sample},
    )


def sample_with(begin: bytes, repeated: bytes, size: int, end: bytes) -> Iterator[bytes]:
    """The JSON of a sample that has one more field, made of repeated bytes."""
    yield json.dumps(inspect_sample(1, "C")).encode()[:-1] + b', "more": ' + begin
    block = repeated * (MB // len(repeated))
    for _ in range(size // len(block)):
        yield block
    yield end + b"}"


def zip_of_empty_lists(folder: Path) -> Path:
    return log(folder / "lists.eval", sample_with(b"[", b"[],", 600 * MB, b"[]]"))


def zip_of_one_text(folder: Path) -> Path:
    return log(folder / "text.eval", sample_with(b'"', b"a", 600 * MB, b'"'))


def zip_just_below_the_limit(folder: Path) -> Path:
    text = b"a" * (100 * MB)
    sample = json.dumps(
        inspect_sample(
            1,
            "C",
            messages=[{"role": "user", "content": "@"}, {"role": "assistant", "content": "yes"}],
        )
    )
    return log(folder / "below.eval", sample.encode().replace(b'"@"', b'"' + text + b'"'))


def zip_of_deep_lists(folder: Path) -> Path:
    return log(folder / "deep.eval", sample_with(b"", b"[", 300 * MB, b"1"))


def zip_that_lies(folder: Path) -> Path:
    """A zip that states a small size for a member that is large."""
    path = zip_of_one_text(folder)
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(io.BytesIO(bytes(raw))) as archive:
        real = archive.getinfo("samples/1_epoch_1.json").file_size
    stated = real.to_bytes(4, "little")
    at = raw.find(stated)
    while at >= 0:
        raw[at : at + 4] = (1000).to_bytes(4, "little")
        at = raw.find(stated, at + 4)
    path.write_bytes(raw)
    return path


def zip_in_a_zip(folder: Path) -> Path:
    inner = zip_of_one_text(folder).read_bytes()
    (folder / "text.eval").unlink()
    return log(folder / "nested.eval", inner)


def attachments_named_often(folder: Path) -> Path:
    message = {"role": "user", "content": "attachment://aa"}
    sample = inspect_sample(
        1,
        "C",
        messages=[message] * 20_000 + [{"role": "assistant", "content": "yes"}],
        attachments={"aa": "a" * MB},
    )
    return log(folder / "often.eval", json.dumps(sample).encode())


def array_of_numbers(folder: Path) -> Path:
    path = folder / "array.json"
    path.write_bytes(b"[" + b"1," * (20 * MB) + b"1]")
    return path


def array_of_lists(folder: Path) -> Path:
    path = folder / "array.json"
    path.write_bytes(b'[{"messages": [' + b"[]," * (10 * MB) + b"[]]}]")
    return path


def line_with_holes(folder: Path) -> Path:
    path = folder / "holes.jsonl"
    path.write_bytes(
        b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}\n{"messages": "'
    )
    os.truncate(path, 1 << 30)
    return path


def document_with_holes(folder: Path) -> Path:
    path = folder / "holes.json"
    path.write_bytes(b'[\n{"messages": "')
    os.truncate(path, 1 << 30)
    return path


def one_text(times: int, size: int = MB) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), ["a" * size])


def parquet_of_one_row(folder: Path) -> Path:
    """One conversation of a thousand messages, all of them the same long text."""
    messages = pa.StructArray.from_arrays(
        [pa.array(["user", "assistant"] * 500), one_text(1000)], ["role", "content"]
    )
    table = pa.table({"messages": pa.ListArray.from_arrays([0, 1000], messages)})
    pq.write_table(table, folder / "rows.parquet", compression="zstd")
    return folder / "rows.parquet"


def parquet_of_many_rows(folder: Path) -> Path:
    """A thousand short conversations with the same long text in another column."""
    messages = [[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]] * 1000
    table = pa.table({"messages": messages, "note": one_text(1000)})
    pq.write_table(table, folder / "rows.parquet", compression="zstd")
    return folder / "rows.parquet"


def parquet_of_one_text(folder: Path) -> Path:
    """A text that is packed to a thousandth."""
    table = pa.table({"messages": ["a" * (400 * MB)]})
    pq.write_table(
        table,
        folder / "rows.parquet",
        compression="zstd",
        write_statistics=False,
        use_dictionary=False,
    )
    return folder / "rows.parquet"


def packed_arrow(folder: Path) -> Path:
    table = pa.table({"messages": [["a" * (700 * MB)]]})
    with pa.ipc.new_file(
        folder / "rows.arrow", table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_table(table)
    return folder / "rows.arrow"


def varint(number: int, length: int = 1) -> bytes:
    """A signed number in Thrift's compact protocol, filled up to a length."""
    rest, parts = number << 1, []
    while rest >= 0x80 or len(parts) < length - 1:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*parts, rest])


def parquet_that_lies(folder: Path) -> Path:
    """A footer that states a small size for a text that is large: the page's own header does not."""
    table = pa.table({"messages": ["a" * (300 * MB)]})
    path = folder / "rows.parquet"
    options = {"compression": "zstd", "write_statistics": False, "use_dictionary": False}
    pq.write_table(table, path, **options)
    with pq.ParquetFile(path) as file:
        stated = varint(file.metadata.row_group(0).column(0).total_uncompressed_size)
    raw = path.read_bytes()
    begin, end = raw[: len(raw) // 2], raw[len(raw) // 2 :]
    assert stated in end
    path.write_bytes(begin + end.replace(stated, varint(1000, len(stated))))
    with pq.ParquetFile(path) as file:
        assert file.metadata.row_group(0).column(0).total_uncompressed_size == 1000
    return path


HOSTILE: list[Callable[[Path], Path]] = [
    zip_of_empty_lists,
    zip_of_one_text,
    zip_of_deep_lists,
    zip_that_lies,
    zip_in_a_zip,
    attachments_named_often,
    array_of_numbers,
    array_of_lists,
    line_with_holes,
    document_with_holes,
    parquet_of_one_row,
    parquet_of_many_rows,
    parquet_of_one_text,
    parquet_that_lies,
    packed_arrow,
]


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_memory_of_hostile_files(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """A small file takes at most 500 MB of memory, and a sentence says why it was not read."""
    text, peak = read_in_process(make(tmp_path))
    assert peak <= MOST_MEMORY_MB, (peak, text)
    assert text.strip()


def gzip_of(repeated: bytes, size: int) -> bytes:
    """JSON with a field of repeated bytes, packed with gzip."""
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    parts = [packer.compress(b'{"data": [')]
    block = repeated * (MB // len(repeated))
    parts += [packer.compress(block) for _ in range(size // len(block))]
    return b"".join([*parts, packer.compress(b"[]]}"), packer.flush()])


ANSWERS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "gzip of blanks": ("gzip", lambda: gzip_of(b" ", 700 * MB)),
    "gzip of lists": ("gzip", lambda: gzip_of(b"[],", 100 * MB)),
    "plain blanks": ("identity", lambda: b'{"data": [' + b" " * (200 * MB)),
    "plain lists": ("identity", lambda: b'{"data": [' + b"[]," * (5 * MB) + b"[]]}"),
    "unknown packing": ("br", lambda: b"brotli"),
    "gzip that ends early": ("gzip", lambda: gzip_of(b" ", MB)[:-20]),
    "no gzip": ("gzip", lambda: b"plain"),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("platform", ["phoenix", "langfuse", "mlflow"])
def test_memory_of_hostile_servers(answer: str, platform: str) -> None:
    """An answer of a server takes at most 500 MB of memory, and one sentence says why it was not read."""
    if platform != "phoenix" and not answer.startswith("gzip of"):
        pytest.skip("all platforms share the reading of answers")
    encoding, make = ANSWERS[answer]
    body = make()

    class Hostile(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Encoding", encoding)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    Thread(target=server.serve_forever, daemon=True).start()
    text, peak = read_in_process(f"{platform}+http://127.0.0.1:{server.server_port}")
    server.shutdown()
    assert peak <= MOST_MEMORY_MB, (peak, text)
    assert text.startswith("refused: ") and text.count("\n") == 1, text
    assert ("largest_record_mb" in text) == (len(body) > 10_000), text


def test_memory_below_the_limit(tmp_path: Path) -> None:
    """A packed sample that is just small enough to be read takes no more memory than that either."""
    text, peak = read_in_process(zip_just_below_the_limit(tmp_path))
    assert text.startswith("session 2"), text
    assert peak <= MOST_MEMORY_MB


@pytest.fixture
def small_limit() -> Iterator[None]:
    limits.set_largest_record(1)
    yield
    limits.set_largest_record(limits.DEFAULT_MB)


def test_large_packed_samples(tmp_path: Path) -> None:
    """A log of 24 MB of varied text in one sample is read whole."""
    texts = [
        f"Line {number} of the report, with the value {number * 7919 % 104729}."
        for number in range(500_000)
    ]
    history = [
        {"role": "user", "content": " ".join(texts)},
        {"role": "assistant", "content": "Done."},
    ]
    path = log(
        tmp_path / "large.eval", json.dumps(inspect_sample(1, "C", messages=history)).encode()
    )
    source = InspectSource(path)
    (session,) = [session for key in source.partitions() for session in source.sessions(key)]
    assert len(session.messages[0]["content"]) > 20 * MB
    assert not session.damage


@pytest.mark.usefixtures("small_limit")
def test_large_lines_beside_small_limit(tmp_path: Path) -> None:
    """A record that is not packed may be larger than the limit for packed ones: it is as large on the disk."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": "word " * 80_000},
                {"role": "assistant", "content": "yes"},
            ]
        }
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    source = OpenAIChatSource(path)
    assert [len(list(source.sessions(key))) for key in source.partitions()] == [1]


@pytest.mark.usefixtures("small_limit")
def test_large_sample_among_others(tmp_path: Path) -> None:
    """A sample that is too large is left out with a note, and the others are read."""
    large = json.dumps(inspect_sample(2, "C", more="a" * (3 * MB))).encode()
    good = json.dumps(inspect_sample(1, "C")).encode()
    members = {
        "header.json": json.dumps(inspect_header()).encode(),
        "samples/1_epoch_1.json": good,
        "samples/2_epoch_1.json": large,
    }
    path = zipped(tmp_path / "log.eval", members)
    notes: list[str] = []
    torn: list[bytes] = []
    assert [record["id"] for _, record in records(path, notes, torn=torn)] == [1]
    assert len(torn) == 1
    assert limits.SETTING in notes[0]


@pytest.mark.usefixtures("small_limit")
def test_archive_of_many_members(tmp_path: Path) -> None:
    """The files of a zip are limited together, too: parts of it can be named by many files."""
    members = {f"samples/{number}.json": b"[" + b" " * MB for number in range(8)}
    with pytest.raises(StoreError, match="8 MB"):
        Archive(zipped(tmp_path / "log.eval", members))


def test_missing_attachment(tmp_path: Path) -> None:
    """A message whose attachment is missing is a text that was cut away."""
    path = log(tmp_path / "log.eval", json.dumps(inspect_sample(1, "C", attachments={})).encode())
    source = InspectSource(path)
    (session,) = [session for key in source.partitions() for session in source.sessions(key)]
    assert session.damage["cut_text"] == 1


@pytest.mark.usefixtures("small_limit")
def test_large_database_values(tmp_path: Path) -> None:
    """A database whose value is larger than the limit is refused with the setting's name."""
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE texts (id INTEGER, text TEXT GENERATED ALWAYS AS (hex(zeroblob(9000000))) VIRTUAL)"
        )
        connection.execute("INSERT INTO texts (id) VALUES (1)")
    connection.close()
    with pytest.raises(StoreError, match=limits.SETTING), read_only(path) as opened:
        opened.execute("SELECT text FROM texts").fetchall()


def test_endless_database_views(tmp_path: Path) -> None:
    """A view in the place of a table cannot give rows without end."""
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE VIEW traces AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
        )
    connection.close()
    with pytest.raises(StoreError), read_only(path) as opened:
        opened.execute("SELECT * FROM traces").fetchall()


def test_setting_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that are loaded apply to all readers of the process."""
    monkeypatch.setenv("AGENT_PIPELINE_LARGEST_RECORD_MB", "7")
    try:
        load_settings()
        assert limits.largest_record() == 7 * MB
    finally:
        limits.set_largest_record(limits.DEFAULT_MB)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


def memory_of(value: Any) -> int:
    """The bytes of a value and of all that is in it, with what the garbage collector adds to containers."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + 16 + sum(memory_of(name) + memory_of(inner) for name, inner in value.items())
    return size + 16 + sum(map(memory_of, value)) if isinstance(value, list) else size


@given(JSON)
def test_need_of_json(value: Any) -> None:
    """The bound on a value's memory holds, but for the constant part of its texts and numbers."""
    text = json.dumps([value] * 50).encode()
    decoded = parsed(text)
    atoms = text.count(b'"') // 2 + text.count(b",") + 1
    assert memory_of(decoded) <= limits.json_need(text) + 80 * atoms


def test_dense_json() -> None:
    """JSON that is nothing but brackets is refused by its need, long before it is decoded."""
    with pytest.raises(TooLargeError) as caught:
        parsed(b"[" + b"[]," * (6 * MB) + b"[]]")
    assert caught.value.needed > caught.value.allowed


@given(
    st.lists(st.text(max_size=200), min_size=1),
    st.sampled_from([None, "lz4", "zstd"]),
    st.booleans(),
)
def test_unpacked_sizes_of_arrow(texts: list[str], packing: str | None, is_file: bool) -> None:
    """The sizes that are read from Arrow's messages are those of the table in memory, packed or not."""
    table = pa.table({"text": texts * 20, "number": list(range(20 * len(texts)))})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.arrow"
        new = pa.ipc.new_file if is_file else pa.ipc.new_stream
        with new(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=packing)) as writer:
            writer.write_table(table)
        assert table.nbytes <= sum(unpacked_sizes(path, is_file)) <= table.nbytes + 1024


@given(
    st.lists(st.text(max_size=300), min_size=1, max_size=30),
    st.sampled_from(["none", "snappy", "gzip", "zstd"]),
    st.sampled_from(["1.0", "2.0"]),
    st.booleans(),
    st.integers(1, 500),
)
def test_page_headers_of_parquet(
    texts: list[str], packing: str, version: str, has_dictionary: bool, page_size: int
) -> None:
    """The page headers of an honest file state what its footer states."""
    table = pa.table({"text": texts * 20, "lists": [[1, None], None] * (10 * len(texts))})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(
            table,
            path,
            compression=packing,
            data_page_version=version,
            use_dictionary=has_dictionary,
            data_page_size=page_size,
            write_batch_size=7,
        )
        with pq.ParquetFile(path) as file:
            for number in range(file.metadata.row_group(0).num_columns):
                chunk = file.metadata.row_group(0).column(number)
                pages = list(read_page_headers(path, chunk))
                assert 0 < sum(page.unpacked for page in pages) <= chunk.total_uncompressed_size
                assert sum(page.values for page in pages) >= chunk.num_values
