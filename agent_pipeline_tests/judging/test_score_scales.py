"""Scores on a scale that goes above 1: the worst of five stars is no success."""

import math
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.judging import JudgingRun, Labels
from agent_pipeline.judging.free_opinions import SCORE, ScoreScales
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


def judge_scores(
    tmp_path: Path, scores: list[float], **options: Any
) -> tuple[list[str | None], JudgingRun]:
    sessions = [session(session_id=f"{i:03}", score=score) for i, score in enumerate(scores)]
    lake = Lake(str(tmp_path / f"lake{next(NUMBERS)}"))
    return judged_verdicts(lake, sessions, **options)


def measure(scores: list[float]) -> ScoreScales:
    return ScoreScales.measure((score, {}) for score in scores)


@given(st.lists(st.integers(1, 5), min_size=3, max_size=8))
@settings(max_examples=15)
def test_stars(tmp_path_factory, stars):
    """With five stars, one star was the only value that the default limits called good."""
    tmp_path, scores = tmp_path_factory.getbasetemp(), [float(value) for value in stars]
    verdicts, run = judge_scores(tmp_path, scores)
    is_scale_clear = max(stars) > 1
    good = None if is_scale_clear else "acceptable"
    assert verdicts == [good if value == 1 else None for value in stars]
    assert bool(run.scales.above_1) is is_scale_clear
    assert any("score_acceptable" in note for note in run.describe(KEY)) is (max(stars) > 1)
    verdicts, run = judge_scores(tmp_path, scores, score_acceptable=4.0, score_unacceptable=2.0)
    expected = ["acceptable" if s >= 4 else "unacceptable" if s <= 2 else None for s in stars]
    assert verdicts == expected
    assert not any("score_acceptable" in note for note in run.describe(KEY))


@given(
    st.sampled_from([(1, 5), (0, 5), (0, 10), (-2, 2)]),
    st.integers(15, 80),
    st.randoms(use_true_random=False),
)
def test_integer_scales_are_clear(ends, count, random):
    """A scale of integers is clear if its values are evenly spread."""
    low, high = ends
    scores = [float(low + index % (high - low + 1)) for index in range(count)]
    random.shuffle(scores)
    assert measure(scores).above_1 == {SCORE}


@given(
    st.lists(st.sampled_from([0.0, 1.0, 1 + 2e-16]) | st.floats(0, 1), max_size=60),
    st.lists(st.floats(1.001, 1.9), max_size=60),
    st.lists(st.floats(2, 5), max_size=2),
)
def test_bonus_is_no_scale(plain, bonus, outliers):
    """Scores from 0 to 1 with a bonus, and at most two outliers, keep their verdicts."""
    scales = measure([0.0, *plain, *bonus, *outliers, math.nan, math.inf])
    assert not scales.above_1
    assert scales.counts_above_1.get(SCORE, 0) == len(bonus) + len(outliers)


@pytest.mark.parametrize(
    ("scores", "limits", "expected"),
    [
        ([0.9] * 94 + [1.2] * 6, (0.8, 0.2), {"acceptable": 100}),
        (
            [2.0, -2.0, 0.0, 1.0, -1.0] * 4,
            (0.5, -0.5),
            {"acceptable": 8, "unacceptable": 8, None: 4},
        ),
        ([1.0] * 15 + [0.0] * 4 + [1.05], None, {"acceptable": 15, "unacceptable": 4, None: 1}),
        ([1.0000000000000002] * 20, None, {"acceptable": 20}),
        (
            [1.0] * 85 + [0.0] * 5 + [1.2] * 10,
            None,
            {"acceptable": 85, "unacceptable": 5, None: 10},
        ),
        ([1.0, 2.0, 0.0] * 5, (1.0, 0.0), {"acceptable": 10, "unacceptable": 5}),
        ([1.0, 2.0, 0.0] * 5, None, {"unacceptable": 5, None: 10}),
    ],
)
def test_limits_and_bonus(tmp_path, scores, limits, expected):
    """Limits that a user set are obeyed, and a bonus removes no verdict from other sessions."""
    options = dict(zip(("score_acceptable", "score_unacceptable"), limits or (), strict=False))
    verdicts, _ = judge_scores(tmp_path, scores, **options)
    assert Counter(verdicts) == expected
    metrics = [session(session_id=f"{i:03}", scores={"m": s}) for i, s in enumerate(scores)]
    by_metric, _ = judged_verdicts(
        Lake(str(tmp_path / "metrics")), metrics, metrics={"m": "higher"}, **options
    )
    assert by_metric == verdicts


def test_note_counts_a_few_scores_above_1(tmp_path):
    _, run = judge_scores(tmp_path, [1.0] * 15 + [1.05, 1.05])
    (note,) = run.describe(KEY)
    assert note.startswith("2 scores of p/a")


def test_limits_below_a_clear_scale_are_noted(tmp_path):
    """A limit of 0.8 calls every session of a scale from 1 to 5 good."""
    stars = [1.0, 2.0, 3.0, 4.0, 5.0]
    for limits, notes in (((0.8, 0.2), 1), ((4.0, 2.0), 0), ((1.0, 0.0), 0), ((0.5, -0.5), 0)):
        acceptable, unacceptable = limits
        _, run = judge_scores(
            tmp_path, stars, score_acceptable=acceptable, score_unacceptable=unacceptable
        )
        assert len(list(run.describe(KEY))) == notes


def test_limits_set_to_the_defaults_have_another_hash():
    """They give other verdicts on scores above 1, so the agent is judged and trained again."""
    plain, typed = JudgingOptions(), JudgingOptions(score_acceptable=1.0)
    assert "is_acceptable_set" not in plain.hashed() and plain.policy.has_default_acceptable
    assert plain.hashed() != typed.hashed() and not typed.policy.has_default_acceptable
    other = JudgingOptions(score_acceptable=0.8)
    assert other.hashed() == plain.hashed() | {"score_acceptable": 0.8}


def test_metric_on_a_high_scale(tmp_path):
    """A metric from 1 to 5, of which less is better: 1 is the best value, and was called bad."""
    sessions = [session(session_id=str(i), scores={"effort": float(i)}) for i in range(6)]
    verdicts, run = judged_verdicts(Lake(str(tmp_path)), sessions, metrics={"effort": "lower"})
    assert verdicts == ["acceptable", None, None, None, None, None]
    assert any("effort" in note for note in run.describe(KEY))
    verdicts, _ = judged_verdicts(Lake(str(tmp_path)), sessions, metrics={"effort": "<= 2"})
    assert verdicts == ["acceptable"] * 3 + ["unacceptable"] * 3


@pytest.mark.parametrize("limits", [{"score_unacceptable": 0.3}, {"score_acceptable": 0.8}])
def test_limits_of_a_score_are_not_those_of_stars(tmp_path, limits):
    """One set limit called every value of a metric from 1 to 5 good, without a note."""
    sessions = [session(session_id=str(i), scores={"stars": float(i)}) for i in range(1, 6)]
    lake = Lake(str(tmp_path))
    verdicts, run = judged_verdicts(lake, sessions, metrics={"stars": "higher"}, **limits)
    assert verdicts == [None] * 5
    assert any("stars" in note for note in run.describe(KEY))


@pytest.mark.parametrize("scores", [[1.0, 1, 1, 4, 5], [1.0] * 190 + [3.0] * 9])
def test_few_stars(tmp_path, scores):
    """The worst sessions of a small agent were good until the third session with more stars."""
    verdicts, _ = judge_scores(tmp_path, scores)
    assert set(verdicts) == {None}


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
        (2.0, {"stars": 5.0, "share": 1.0, "none": float("inf")}),
        (None, {"stars": 2.0}),
    ]
    scales = ScoreScales.measure(scored)
    assert scales.above_1 == {"stars", SCORE}
    assert scales.counts_above_1 == {SCORE: 1, "stars": 3}
