"""Scores on a scale that goes above 1: the worst of five stars is no success."""

from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.judging import JudgingRun, Labels, VerdictPolicy
from agent_pipeline.judging.free_opinions import ScoreScales
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.tables import judge_partition
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.tables import SESSIONS, make_session_row, to_batches, to_rows
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.judging.sessions import session

KEY = PartitionKey("p", "a")
NUMBERS = count()


def judged_verdicts(
    lake: Lake, sessions: list[Any], **options: Any
) -> tuple[list[str | None], JudgingRun]:
    """The verdicts of the sessions, judged as the asset judges them."""
    rows = map(make_session_row, sessions)
    lake.stage("sessions", KEY, to_batches(rows, SESSIONS), SESSIONS).commit()
    unredacted = Redactor(RedactionOptions(enabled=False))
    table, run = judge_partition(
        lake, KEY, JudgingOptions(**options), Labels(), unredacted, lambda limits: None
    )
    table.commit()
    file = lake.open("judged_sessions", KEY)
    return [row["verdict"] for row in to_rows(file.read(["verdict"]))], run


@given(st.lists(st.integers(1, 5), min_size=3, max_size=8))
@settings(max_examples=15)
def test_stars(tmp_path_factory, stars):
    """With five stars, one star was the only value that the default limits called good."""
    lake = Lake(str(tmp_path_factory.getbasetemp() / f"stars{next(NUMBERS)}"))
    sessions = [session(session_id=str(i), score=float(value)) for i, value in enumerate(stars)]
    verdicts, run = judged_verdicts(lake, sessions)
    if max(stars) == 1:
        assert set(verdicts) == {"acceptable"} and not run.scales.above_1
        return
    assert set(verdicts) == {None}
    assert any("score_acceptable" in note for note in run.describe(KEY))
    verdicts, run = judged_verdicts(lake, sessions, score_acceptable=4.0, score_unacceptable=2.0)
    expected = ["acceptable" if s >= 4 else "unacceptable" if s <= 2 else None for s in stars]
    assert verdicts == expected
    assert not any("score_acceptable" in note for note in run.describe(KEY))


def test_metric_on_a_high_scale(tmp_path):
    """A metric from 1 to 5, of which less is better: 1 is the best value, and was called bad."""
    sessions = [session(session_id=str(i), scores={"effort": float(i)}) for i in range(6)]
    verdicts, run = judged_verdicts(Lake(str(tmp_path)), sessions, metrics={"effort": "lower"})
    assert verdicts == ["acceptable", None, None, None, None, None]
    assert any("effort" in note for note in run.describe(KEY))
    verdicts, _ = judged_verdicts(Lake(str(tmp_path)), sessions, metrics={"effort": "<= 2"})
    assert verdicts == ["acceptable"] * 3 + ["unacceptable"] * 3


def test_one_bonus_changes_no_scale(tmp_path):
    """A hundred rewards of 0 and 1, and one of 1.5: the rewards mean what they meant."""
    rewards = [float(i % 2) for i in range(100)] + [1.5]
    sessions = [session(session_id=f"{i:03}", score=score) for i, score in enumerate(rewards)]
    verdicts, run = judged_verdicts(Lake(str(tmp_path)), sessions)
    assert verdicts == ["unacceptable", "acceptable"] * 50 + [None]
    assert not run.scales.above_1


def test_scales_by_name():
    scored: list[tuple[float | None, dict[str, float]]] = [
        (None, {"stars": 4.0, "share": 0.5}),
        (1.0, {"share": 1.0, "none": float("inf")}),
    ]
    assert ScoreScales.measure(scored).above_1 == {"stars"}
    assert VerdictPolicy().score_acceptable == 1
