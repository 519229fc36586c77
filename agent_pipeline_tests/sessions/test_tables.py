"""Sessions as Arrow tables and back."""

import json
import subprocess
import sys
from datetime import UTC, datetime

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sessions import tables
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import (
    SESSIONS,
    TURN,
    make_column,
    make_session_row,
    restore_session,
    to_batches,
    to_rows,
    to_table,
)

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(codec="utf-8")),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3),
    ),
    max_leaves=10,
)
ONE = pa.schema([pa.field("value", pa.json_())])


def test_a_session_comes_back_as_it_went():
    session = Session(
        session_id="s",
        project="p",
        agent="a",
        source="test",
        messages=[{"role": "user", "content": "ü\0"}, {"role": "assistant", "content": ""}],
        tools=[{"type": "function", "function": {"name": "f"}}],
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        task_id="1",
        score=0.0,
        damage={"x": 1},
        context={"a": [1, None]},
        archived=True,
    )
    (row,) = to_rows(to_table([make_session_row(session)], SESSIONS))
    assert restore_session(row) == session
    assert restore_session(row).hash_content() == row["content_sha256"] == session.hash_content()
    assert "tool_calls" not in row["messages"][0]


@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), max_size=3))
def test_tools_keep_the_order_of_their_keys(tools):
    """A model was trained on schemas with sorted keys, and was served with the client's order: it
    then wrote the arguments of another tool.
    """
    session = Session(
        session_id="s",
        project="p",
        agent="a",
        source="test",
        messages=[],
        tools=tools,
        tools_origin="recorded",
    )
    written = json.dumps(tools)
    (row,) = to_rows(to_table([make_session_row(session)], SESSIONS))
    assert json.dumps(row["tools"]) == written
    batch = tables.make_session_batch([tables.encode_row(session)], b"[]")
    (row,) = to_rows(pa.table(batch))
    assert json.dumps(row["tools"]) == written
    assert restore_session(row).hash_content() == row["content_sha256"]


@given(st.lists(JSON, max_size=5))
def test_json_columns_keep_every_value(values):
    table = to_table([{"value": value} for value in values], ONE)
    assert [row["value"] for row in to_rows(table)] == values


def test_what_is_no_json_becomes_null_so_that_others_can_read_the_lake(tmp_path):
    file = tmp_path / "t.parquet"
    pq.write_table(to_table([{"value": {"a": float("nan"), "b": [float("-inf"), 1.5]}}], ONE), file)
    ((text,),) = duckdb.sql(f"SELECT json_extract(value, '$') FROM '{file}'").fetchall()
    assert json.loads(text) == {"a": None, "b": [None, 1.5]}


def test_a_batch_ends_at_its_number_of_rows_or_its_size(monkeypatch):
    monkeypatch.setattr(tables, "CHARACTERS_PER_BATCH", 100)
    rows = [{"value": "x" * 60} for _ in range(5)] + [{"value": 1}] * 7
    sizes = [batch.num_rows for batch in to_batches(rows, ONE, size=3)]
    assert sizes == [2, 2, 3, 3, 2]
    assert [row["value"] for row in to_rows(to_batches(rows, ONE, size=3))] == [
        row["value"] for row in rows
    ]


def test_no_rows_are_an_empty_table_of_the_schema():
    assert to_table([], SESSIONS).schema.equals(SESSIONS)
    assert list(to_batches([], SESSIONS)) == []


def test_a_nullable_column_that_a_row_does_not_have_is_null_and_no_other_may_lack():
    schema = pa.schema(
        [
            pa.field("a", pa.string(), nullable=False),
            pa.field("b", pa.float64()),
            pa.field("c", pa.json_()),
        ]
    )
    assert list(to_rows(to_table([{"a": "x"}, {"a": "y", "b": 0.5, "c": []}], schema))) == [
        {"a": "x", "b": None, "c": None},
        {"a": "y", "b": 0.5, "c": []},
    ]
    with pytest.raises(KeyError, match="a"):
        to_table([{"b": 1.0}], schema)


def test_raw_columns_are_handed_on_letter_by_letter():
    schema = pa.schema([pa.field("a", pa.json_()), pa.field("b", pa.string())])
    table = to_table(
        [{"a": msgspec.Raw(b'{"z": 1.0,"a":"\\u00fc"}'), "b": "{}"}, {"a": None, "b": None}], schema
    )
    rows = list(to_rows(table, raw=True))
    assert (
        bytes(rows[0]["a"]) == b'{"z": 1.0,"a":"\\u00fc"}'
        and rows[0]["b"] == "{}"
        and rows[1] == {"a": None, "b": None}
    )
    assert to_table(rows, schema).equals(table)


FACTS = {
    "tool_error": True,
    "refused": None,
    "breaks_schema": False,
    "repeated_call": True,
    "corrected_later": False,
    "addresses_judge": None,
}
TURNS = [FACTS | {"failed_measures": names} for names in ([], None, ["a", "b"])]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["ü", "", "\0", b"bytes"]),
        (pa.binary(), [b"\xff", b""]),
        (pa.bool_(), [True, False] * 9),
        (pa.int64(), [0, -(2**63), 2**63 - 1]),
        (pa.float64(), [0.5, -0.0, float("inf"), 3]),
        (
            pa.timestamp("us", tz="UTC"),
            [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 2, 3, 4, 5, tzinfo=UTC)],
        ),
        (pa.list_(pa.string()), [["a", None], [], ["ü"]]),
        (pa.list_(TURN), [TURNS, [], TURNS[1:]]),
    ],
)
def test_a_column_is_what_pyarrow_makes_of_its_values(kind, values):
    for some in (values, [None, *values, None], [None], []):
        made = make_column(some, pa.field("x", kind))
        made.validate(full=True)
        assert made.equals(pa.array(some, kind)) and made.null_count == some.count(None)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.string(), 1), (pa.bool_(), "yes"), (pa.float64(), "1.5"), (pa.int64(), 1.5)],
)
def test_a_value_of_another_type_is_refused(kind, value):
    with pytest.raises((TypeError, AttributeError, KeyError)):
        make_column([value], pa.field("x", kind))


def test_rows_are_written_and_read_without_pandas():
    program = f"""
import sys
from datetime import UTC, datetime
from agent_pipeline.sessions.tables import CURATED, to_rows, to_table
row = {{name: None for name in CURATED.names}} | {{"turns": {TURNS!r}, "created_at": datetime.now(UTC), "kept": True}}
assert list(to_rows(to_table([row], CURATED))) == [row] and "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
