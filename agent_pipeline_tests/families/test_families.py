"""Every family is trained, exported and compared as docs/families.md says."""

import pytest

from agent_pipeline_tests.families.table import DOC, HEAD, SUBJECTS, Subject, line

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_converter")]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_family_goes_the_whole_way_as_the_table_says(subject: Subject, tmp_path):
    assert line(subject, tmp_path) in DOC.read_text(encoding="utf-8").splitlines()


def test_the_table_holds_every_family_and_no_other():
    text = DOC.read_text(encoding="utf-8")
    assert text.startswith(HEAD) and [each.split(" | ")[0][2:] for each in text.removeprefix(HEAD).splitlines()] == [
        subject.name for subject in SUBJECTS
    ]
