"""Cells of a review that a spreadsheet would take for formulas."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.judging.csv_cells import from_cell, to_cell
from agent_pipeline.judging.labels import read_labels
from agent_pipeline.judging.review import REVIEW_COLUMNS, sample_sessions, write_review
from agent_pipeline.keys import PartitionKey
from agent_pipeline_tests.judging.test_review import row

FORMULAS = ["=1+2", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "'=1", "＝1"]


@given(st.text(alphabet="=+-@'\t\r a＝") | st.text())
def test_round_trip(text: str) -> None:
    """A cell begins as no formula does, and its text can be had back."""
    cell = to_cell(text)
    assert from_cell(cell) == text
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "＝"))


@pytest.mark.parametrize("formula", FORMULAS)
def test_review(tmp_path: Path, formula: str) -> None:
    """Every column of a review is guarded, and a label of a session with such an id is found."""
    messages = [{"role": "user", "content": formula}, {"role": "assistant", "content": formula}]
    rows, _ = sample_sessions([row(formula, messages=messages)], 1)
    path = tmp_path / "review.csv"
    write_review(path, rows)
    with path.open(encoding="utf-8-sig", newline="") as file:
        cells = list(csv.DictReader(file))
    assert not [
        cell
        for cell in cells[0].values()
        if cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))
    ]
    cells[0]["judgment"] = "acceptable"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, REVIEW_COLUMNS)
        writer.writeheader()
        writer.writerows(cells)
    assert list(read_labels(path, PartitionKey("shop", "support")).by_id) == [formula.strip()]
