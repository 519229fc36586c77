"""The numbers of held-out tasks on the pages are those of the decision."""

import re

import pytest

from agent_pipeline.promotion.error_budget import count_tasks_for_decision
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline_tests.docs.pages import DOCS

GUIDE = DOCS / "how-to" / "no-simulator.md"
COLUMNS = ((0.2, 0), (0.1, 0), (0.1, 9), (0.1, 99))
"""The gain sought and the number of earlier decisions of each column."""

ROWS = [
    [int(cell) for cell in line.strip("|").split("|")]
    for line in GUIDE.read_text(encoding="utf-8").splitlines()
    if re.fullmatch(r"\|( \d+ \|){5}", line)
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} turns")
def test_table_of_the_guide(row: list[int]) -> None:
    turns, *counts = row
    assert counts == [
        count_tasks_for_decision(PromotionPolicy(gain_sought=gain), earlier, turns)
        for gain, earlier in COLUMNS
    ]


@pytest.mark.parametrize("page", ["how-to/no-simulator.md", "tutorials/your-first-agent.md"])
def test_sentences_name_the_number_for_two_turns(page: str) -> None:
    assert ROWS
    text = (DOCS / page).read_text(encoding="utf-8")
    assert f"about {count_tasks_for_decision(PromotionPolicy(), 0, 2)} " in text
