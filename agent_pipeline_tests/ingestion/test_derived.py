"""The search of tables that are made from `sessions`: what is new in them is searched, and copies are not."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.ingestion.derived import _list_leaves, scan_derived
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import JUDGED, SESSIONS, TURN, make_session_row, to_table
from agent_pipeline.storage.lake import Lake

KEY = PartitionKey("shop", "support")
PRIVATE = "write to ann.lee@shop.io"
FACTS = {field.name: None for field in TURN}


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor(RedactionOptions())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def row(text: str = "hello", **columns: Any) -> dict[str, Any]:
    """Return a row of `sessions`, with more columns."""
    session = Session(
        session_id="s", project="shop", agent="support", source="test", task_key="t",
        messages=[{"role": "user", "content": text}],
    )  # fmt: skip
    return make_session_row(session) | columns


def put(lake: Lake, asset: str, schema: pa.Schema, *rows: dict[str, Any]) -> None:
    lake.stage(asset, KEY, to_table(rows, schema).to_batches(), schema).commit()


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        ({"verdict_reasons": PRIVATE}, ["verdict_reasons"]),
        ({"measures": {"m": {"passed": False, "reason": PRIVATE}}}, ["measures"]),
        ({"opinions": {PRIVATE: {"verdict": None}}}, ["opinions"]),
        ({"turns": [FACTS | {"failed_measures": [PRIVATE]}]}, ["turns"]),
        ({"duplicate_of": PRIVATE}, []),
        ({"verdict_reasons": "the task is done"}, []),
    ],
)
def test_new_texts(lake, redactor, columns, where):
    """The blocking check searched `sessions` only, and a judge's reason reached every table after it."""
    put(lake, "sessions", SESSIONS, row())
    empty = {"verdict": "acceptable", "measures": {}, "opinions": {}, "turns": []}
    put(lake, "judged_sessions", JUDGED, row(**(empty | columns)))
    scan = scan_derived(lake, "judged_sessions", KEY, redactor)
    assert scan.columns == where and sum(scan.kinds.values()) == len(where)


def test_copies_are_not_searched(lake, redactor):
    put(lake, "sessions", SESSIONS, row(PRIVATE))
    put(lake, "sft_dataset", SESSIONS, row(PRIVATE))
    scan = scan_derived(lake, "sft_dataset", KEY, redactor)
    assert scan.texts > 5 and scan.searched == 0 and not scan.kinds


def test_without_sessions_all_texts_are_searched(lake, redactor):
    put(lake, "replay_buffer", SESSIONS, row(PRIVATE))
    assert scan_derived(lake, "replay_buffer", KEY, redactor).kinds == {"EMAIL": 1}


def test_a_new_version_of_sessions_is_read(lake, redactor):
    put(lake, "sessions", SESSIONS, row(PRIVATE))
    put(lake, "sft_dataset", SESSIONS, row(PRIVATE))
    assert not scan_derived(lake, "sft_dataset", KEY, redactor).kinds
    put(lake, "sessions", SESSIONS, row("something else"))
    assert scan_derived(lake, "sft_dataset", KEY, redactor).kinds == {"EMAIL": 1}


VALUES = st.recursive(
    st.text() | st.integers() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES, st.text(min_size=1))
def test_every_text_of_a_value_is_seen(value, text):
    assert text in set(_list_leaves({"a": [value, {text: 1}]}))
    assert text in set(_list_leaves([value, {"a": [[text]]}]))
