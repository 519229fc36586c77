"""Every family is trained, exported and compared as docs/families.md says.

A family takes ten seconds of two cores: one of each way (its own template or ours, a row a conversation or a turn) runs always,
the others with AGENT_PIPELINE_ALL_FAMILIES=1.
"""

import os

import pytest

from agent_pipeline_tests.families.table import DOC, HEAD, SUBJECTS, Subject, line

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_converter")]


ALWAYS = ("Qwen3, thinking or not", "Llama 3.1", "Gemma 3")
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


def test_the_table_holds_every_family_and_no_other():
    text = DOC.read_text(encoding="utf-8")
    assert text.startswith(HEAD) and [
        each.split(" | ")[0][2:] for each in text.removeprefix(HEAD).splitlines()
    ] == [subject.name for subject in SUBJECTS]
