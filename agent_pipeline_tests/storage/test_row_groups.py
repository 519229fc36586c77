"""Row groups that are replaced: the table is what a script would write that decodes all of it, and elsewhere the bytes are the same."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.errors import DataError
from agent_pipeline.storage.row_groups import _footer, _write_struct, rewrite

OPTIONS: list[dict[str, Any]] = [
    {},
    {"compression": "zstd", "use_dictionary": ["session_id"], "write_statistics": ["session_id"]},
    {"write_page_index": True, "data_page_version": "2.0", "write_page_checksum": True, "compression": "none"},
    {"version": "1.0", "store_schema": False},
]


def table(rows: int) -> pa.Table:
    """Every kind of column that the lake has, and some that it has not."""
    texts = pa.array([f'{{"number":{number}}}' for number in range(rows)], pa.string())
    columns = {
        "session_id": pa.array([f"s{number}" for number in range(rows)], pa.string()),
        "messages": pa.ExtensionArray.from_storage(pa.json_(), texts),
        "score": pa.array([None if number % 3 == 0 else number / 2 for number in range(rows)], pa.float64()),
        "kept": pa.array([number % 2 == 0 for number in range(rows)], pa.bool_()),
        "vector": pa.array([[number, number] for number in range(rows)], pa.list_(pa.int64(), 2)),
        "nested": pa.array([{"a": [number] * (number % 3)} for number in range(rows)], pa.struct([("a", pa.list_(pa.int64()))])),
    }
    fields = [pa.field(name, column.type, nullable=name != "session_id") for name, column in columns.items()]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields, metadata={"made_by": "a test"}))


def written(rows: pa.Table, group: int, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    pq.write_table(rows, file, row_group_size=group, **options)
    return file.getvalue()


@given(rows=st.integers(1, 40), group=st.integers(1, 15), gone=st.sets(st.integers(0, 39)), options=st.sampled_from(OPTIONS))
def test_rows_that_go_leave_the_others_as_they_were(rows: int, group: int, gone: set[int], options: dict[str, Any]) -> None:
    before = written(table(rows), group, options)
    source = pq.ParquetFile(io.BytesIO(before))
    everything = source.read()
    groups = {}
    for number in range(source.num_row_groups):
        first, held = number * group, source.read_row_group(number)
        keep = [first + at not in gone for at in range(held.num_rows)]
        if not all(keep):
            groups[number] = held.filter(pa.array(keep))
    target = io.BytesIO()
    rewrite(io.BytesIO(before), target, groups, **options)
    after = pq.ParquetFile(io.BytesIO(target.getvalue()))
    wanted = everything.filter(pa.array([at not in gone for at in range(rows)]))
    assert after.read().equals(wanted) and after.metadata.num_rows == wanted.num_rows
    assert after.schema_arrow.equals(source.schema_arrow, check_metadata=True)
    assert after.num_row_groups == source.num_row_groups - sum(not each.num_rows for each in groups.values())


def test_other_readers_agree(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    before = written(table(1000), 100, {"compression": "zstd"})
    middle = pq.ParquetFile(io.BytesIO(before)).read_row_group(5)
    with path.open("wb") as target:
        rewrite(io.BytesIO(before), target, {0: middle.slice(0, 0), 5: middle.slice(1)}, compression="zstd")
    left = [*range(100, 500), *range(501, 1000)]
    scores = table(1000)["score"].to_pylist()
    found = duckdb.sql(f"SELECT count(*), min(score), sum(score) FROM '{path}'").fetchall()
    assert found == [(len(left), 50.0, sum(scores[at] or 0 for at in left))]
    assert polars.scan_parquet(path).filter(polars.col("session_id") == "s999").collect().height == 1
    assert polars.scan_parquet(path).filter(polars.col("session_id") == "s500").collect().height == 0


def test_the_bytes_of_other_row_groups_are_copied_and_the_same_input_gives_the_same_file() -> None:
    before = written(table(300), 100, {})
    middle = pq.ParquetFile(io.BytesIO(before)).read_row_group(1).slice(1)
    found = []
    for _ in range(2):
        target = io.BytesIO()
        rewrite(io.BytesIO(before), target, {1: middle})
        found.append(target.getvalue())
    start = pq.ParquetFile(io.BytesIO(before)).metadata.row_group(1).column(0)
    first = start.dictionary_page_offset or start.data_page_offset
    assert found[0] == found[1] and found[0][:first] == before[:first] and found[0] != before


@pytest.mark.parametrize("options", OPTIONS)
def test_a_footer_that_is_read_and_written_has_the_same_bytes(options: dict[str, Any]) -> None:
    file = written(table(25), 4, options)
    size = int.from_bytes(file[-8:-4], "little")
    text = bytearray()
    _write_struct(text, _footer(io.BytesIO(file)))
    assert bytes(text) == file[-8 - size : -8]


@pytest.mark.parametrize("file", [b"", b"PAR1", b"no table at all", b"PAR1\x00\x00\x00\x00PARE"])
def test_what_is_no_parquet_file_is_said_in_one_sentence(file: bytes) -> None:
    with pytest.raises(DataError, match="materialize its asset again"):
        rewrite(io.BytesIO(file), io.BytesIO(), {})


def test_a_file_that_is_cut_off_in_the_middle_is_no_table_without_its_end() -> None:
    file = written(table(100), 10, {})
    size = int.from_bytes(file[-8:-4], "little")
    cut = file[:200] + file[-8 - size :]
    with pytest.raises(DataError, match="cut off"):
        rewrite(io.BytesIO(cut), io.BytesIO(), {})


def test_it_needs_nothing_but_arrow() -> None:
    code = "import sys, agent_pipeline.storage.row_groups; print('dagster' in sys.modules, 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["False", "False"]
