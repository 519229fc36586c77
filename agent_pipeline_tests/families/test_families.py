"""Every family is trained, exported and compared as docs/reference/model-families.md says.

A family takes ten seconds of two cores: one of each way (its own template or ours, a row a conversation or a turn) runs always,
the others with AGENT_PIPELINE_ALL_FAMILIES=1.
"""

import os

import pytest

from agent_pipeline_tests.families.subjects import ALL_SUBJECTS, SUBJECTS, Subject
from agent_pipeline_tests.families.table import DOC, line, read_page
from agent_pipeline_tests.families.trl_comparison import trl_line

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_converter")]


ALWAYS = ("Qwen3, thinking or not", "Llama 3.1", "Gemma 3")
COMPARED = ("Qwen2.5", "Qwen3.5, thinking", "Mistral Nemo", "DeepSeek V3")
OTHERS = pytest.mark.skipif(
    not os.environ.get("AGENT_PIPELINE_ALL_FAMILIES"),
    reason="set AGENT_PIPELINE_ALL_FAMILIES=1 for all families",
)


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(each, id=each.name, marks=() if each.name in ALWAYS else OTHERS)
        for each in SUBJECTS
    ],
)
def test_a_family_goes_the_whole_way_as_the_table_says(subject: Subject, tmp_path):
    assert line(subject, tmp_path) in DOC.read_text(encoding="utf-8").splitlines()


def test_all_tables_hold_every_family_and_no_other():
    """The page is written by the module `table`, and a family that is added must be in all tables."""
    names = [[row.split(" | ")[0][2:] for row in rows] for rows in read_page()]
    trained = [subject.name for subject in SUBJECTS]
    assert names == [trained, [subject.name for subject in ALL_SUBJECTS], trained]


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(each, id=each.name, marks=() if each.name in COMPARED else OTHERS)
        for each in SUBJECTS
    ],
)
def test_trls_functions_give_what_the_table_says(subject: Subject):
    """A failure means that TRL has changed: ours may be replaced if TRL's are now equal."""
    assert trl_line(subject) in DOC.read_text(encoding="utf-8").splitlines()
