"""The label file of a review: whole lines whatever happens, and the agreement of annotators."""

from collections import Counter
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging import Label, read_labels
from agent_pipeline.judging.annotations import (
    Annotation,
    append_annotation,
    compare_annotators,
    estimate_kappa_interval,
    find_review_file,
    read_annotations,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline_tests.interruptions import run_python

KEY = PartitionKey("shop", "support")


def annotation(
    session_id: str, judgment: str, annotator: str = "ana", **fields: object
) -> Annotation:
    return msgspec.structs.replace(
        Annotation(session_id, *KEY, judgment, "", annotator, "2026-01-01T00:00:00+00:00"), **fields
    )


def marks(path: Path, annotator: str = "ana") -> dict[str, str]:
    return {name: entry.mark for name, entry in read_annotations(path, KEY)[annotator].items()}


def test_labels(tmp_path: Path) -> None:
    """The lines of a review are labels; unsure withdraws a label, and a skip changes nothing."""
    path = find_review_file(tmp_path)
    lines = [
        annotation("s1", "acceptable", reason="fine"),
        annotation("s2", "unacceptable"),
        annotation("s3", "acceptable"),
        annotation("s3", "unsure"),
        annotation("s4", "", skipped=True),
        annotation("s5", "", reason="only a note"),
        annotation("s2", "", skipped=True),
    ]
    for line in lines:
        append_annotation(path, line)
    labels = read_labels(tmp_path, KEY)
    assert labels.by_id == {"s1": Label("acceptable", "fine"), "s2": Label("unacceptable")}
    assert not labels.notes
    assert marks(tmp_path) == {
        "s1": "acceptable", "s2": "skip", "s3": "unsure", "s4": "skip", "s5": "",
    }  # fmt: skip


def test_withdrawn_label(tmp_path: Path) -> None:
    """Who becomes unsure withdraws a label of this person only, not that of another."""
    (tmp_path / "labels.csv").write_text("session_id,judgment\ns1,unacceptable\n")
    path = find_review_file(tmp_path)
    steps = [
        (annotation("s1", "acceptable", "ana"), "acceptable"),
        (annotation("s1", "unsure", "ben"), "acceptable"),
        (annotation("s1", "acceptable", "ben"), "acceptable"),
        (annotation("s1", "unsure", "ana"), "acceptable"),
        (annotation("s1", "unsure", "ben"), "unacceptable"),
    ]
    for line, verdict in steps:
        append_annotation(path, line)
        label = read_labels(tmp_path, KEY).by_id.get("s1")
        # Files without project and agent are about the only agent with this session.
        assert label and label.judgment == verdict, line


def test_other_agents(tmp_path: Path) -> None:
    path = find_review_file(tmp_path)
    append_annotation(path, annotation("s1", "acceptable", agent="intern"))
    assert read_annotations(tmp_path, KEY) == {}
    assert read_annotations(tmp_path / "missing", KEY) == {}


def test_csv_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as error:
        find_review_file(tmp_path / "labels.csv")
    assert error.value.setting == "labels"


@given(st.binary(max_size=80))
def test_torn_line(tmp_path_factory: pytest.TempPathFactory, torn: bytes) -> None:
    """A line that a power failure cut off never takes the next line with it."""
    path = tmp_path_factory.mktemp("labels") / "review.jsonl"
    append_annotation(path, annotation("s1", "acceptable"))
    path.write_bytes(path.read_bytes() + torn.replace(b"\n", b""))
    append_annotation(path, annotation("s2", "unacceptable", reason="zwei\nZeilen \u2028"))
    assert path.read_bytes().split(b"\n")[-2] == msgspec.json.encode(
        annotation("s2", "unacceptable", reason="zwei\nZeilen \u2028")
    )


FOUR_WRITERS = """
import multiprocessing, sys
from pathlib import Path
from agent_pipeline_tests.judging.test_annotations import annotation, append_annotation

def append_many(path, annotator):
    for index in range(100):
        append_annotation(path, annotation(f"s{index}", "acceptable", annotator, reason="x" * 3000))

context = multiprocessing.get_context("fork")
path, *names = sys.argv[1:]
writers = [context.Process(target=append_many, args=(Path(path), name)) for name in names]
for writer in writers:
    writer.start()
for writer in writers:
    writer.join()
print([writer.exitcode for writer in writers])
"""
"""Forks of a process without threads: a fork of the test's process may wait for ever for a lock."""


def test_concurrent_annotators(tmp_path: Path) -> None:
    """Four processes that append at the same time lose nothing."""
    path = find_review_file(tmp_path)
    names = ["ana", "ben", "cleo", "dan"]
    assert run_python(FOUR_WRITERS, str(path), *names) == "[0, 0, 0, 0]\n"
    assert {name: len(read_annotations(path, KEY)[name]) for name in names} == dict.fromkeys(
        names, 100
    )
    assert len(path.read_bytes().splitlines()) == 400


def test_agreement() -> None:
    """Kappa is that of Cohen's own example; unsure and skipped sessions are left out."""
    table = {("acceptable", "acceptable"): 20, ("acceptable", "unacceptable"): 5}
    table |= {("unacceptable", "acceptable"): 10, ("unacceptable", "unacceptable"): 15}
    ana, ben = {}, {}
    for index, pair in enumerate(pair for pair, count in table.items() for _ in range(count)):
        ana[f"s{index}"] = annotation(f"s{index}", pair[0])
        ben[f"s{index}"] = annotation(f"s{index}", pair[1], "ben")
    ana["x"], ben["x"] = annotation("x", "unsure"), annotation("x", "acceptable", "ben")
    (agreement,) = compare_annotators({"ana": ana, "ben": ben, "cleo": {}})
    assert (agreement.sessions, agreement.agreed) == (50, 35)
    assert agreement.kappa == pytest.approx(0.4)
    assert agreement.low is not None and agreement.high is not None
    assert -1 <= agreement.low < 0.4 < agreement.high <= 1


def test_full_agreement() -> None:
    """50 equal judgments do not prove that two annotators always agree."""
    low, high = estimate_kappa_interval(
        Counter({("acceptable", "acceptable"): 30, ("unacceptable", "unacceptable"): 20})
    )
    assert 0.8 < low < 0.95 and high <= 1


def test_interval_coverage() -> None:
    """The interval has the true kappa in 92 to 98 of 100 samples of 50 sessions."""
    rng = np.random.default_rng(1)
    verdicts = ("acceptable", "unacceptable")
    for shares in ([0.5, 0.1, 0.1, 0.3], [0.8, 0.05, 0.05, 0.1]):
        expected = (shares[0] + shares[1]) * (shares[0] + shares[2])
        expected += (shares[2] + shares[3]) * (shares[1] + shares[3])
        kappa = (shares[0] + shares[3] - expected) / (1 - expected)
        covered = 0
        for counts in rng.multinomial(50, shares, 300):
            pairs = Counter(dict(zip(product(verdicts, verdicts), counts.tolist(), strict=True)))
            low, high = estimate_kappa_interval(pairs)
            covered += low <= kappa <= high
        assert 0.92 <= covered / 300 <= 0.98, shares
