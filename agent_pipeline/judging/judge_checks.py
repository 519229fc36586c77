"""Checks of machine judges against people's labels, from a random sample of sessions.

A machine judge is a language model or measures. Its verdicts count as verified only if its
precision is high enough: the share of the sessions that it finds good and that people find good,
too. The sample must be random, because people also label sessions on purpose, such as sessions on
which judges disagree.

Every session has a permanent random number (`draw_number`). A review proposes the sessions with the
lowest numbers, and stores the bound of the numbers as the `probability` of each proposed session.
So at any time, the labelled sessions below the first unlabelled session are a simple random sample
of all current sessions: each session was drawn with the same probability, and no weights are
needed. This is sampling with permanent random numbers (Ohlsson, Coordination of samples using
permanent random numbers, 1995).

The interval is Wilson's interval, as for the other shares of reports. It also holds for 25 labels
and for shares near 1, where the normal interval has no width.

Choosing the sessions belongs to `selection.label_proposals`, reading tables to `tables`.
"""

import hashlib
from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

import msgspec

from agent_pipeline.judging.labels import Verdict
from agent_pipeline.shares import wilson

NORMAL_QUANTILE_OF_90 = 1.644854
"""The two-sided 90 % quantile of the normal distribution. The lower end of the interval is then a
one-sided 95 % bound.
"""

_MAX_LABELS = 2000
"""Number of labels above which labelling is not worth proposing."""


def draw_number(session_id: str, salt: str = "") -> float:
    """Return the permanent random number of a session, from 0 to 1.

    The number depends on nothing but the id, so it is independent of every verdict.

    Args:
        session_id: The session.
        salt: Another salt gives other numbers, for repeated draws in a benchmark.
    """
    digest = hashlib.sha256(f"label sample{salt}:{session_id}".encode("utf-8", "replace")).digest()
    # A float has 53 bits, so more bits could round to 1.
    return (int.from_bytes(digest[:8], "big") >> 11) / (1 << 53)


class SampledSession(NamedTuple):
    """A session with a low random number that a machine judge finds good.

    Attributes:
        number: Its random number.
        judge: The group of machine judges that finds it good, such as `measures+llm`.
        label: A person's label, or `None`.
    """

    number: float
    judge: str
    label: Verdict | None


class JudgeCheck(msgspec.Struct, frozen=True):
    """The check of one machine judge, or of one group of machine judges.

    Attributes:
        judge: The name of the group, such as `measures+llm`.
        least_precision: The setting of this name.
        labels: The number of sessions in the sample.
        correct: The number of sessions in the sample that people find good.
        low: The lower end of the 90 % interval of the precision.
        high: The upper end of the interval.
        missing: The number of further labels that are needed if the share stays as it is. It is 0
            if the judge passes, and `None` if the share is too low for any number of labels.
    """

    judge: str
    least_precision: float
    labels: int
    correct: int
    low: float
    high: float
    missing: int | None

    @property
    def passed(self) -> bool:
        """Return whether the verdicts of the judge count as verified."""
        return self.low >= self.least_precision

    @property
    def precision(self) -> float | None:
        """Return the estimated precision, or `None` without labels."""
        return self.correct / self.labels if self.labels else None

    def describe(self) -> str:
        """Return a sentence without a full stop about the state of the check."""
        if not self.labels:
            state = "nobody has labelled a randomly drawn session that it finds good"
        else:
            state = (
                f"of {self.labels} sessions that it finds good, people find {self.correct} good "
                f"(precision {self.low:.2f} to {self.high:.2f}, needed {self.least_precision:g})"
            )
        if self.passed:
            return f"{self.judge} is trusted: {state}"
        if self.missing is None:
            advice = "improve the rubric, or choose another judge"
        else:
            advice = f"label {self.missing} more"
        return f"{self.judge} is not trusted: {state}; {advice}"


def check_judge(judge: str, sampled: Iterable[SampledSession], least: float) -> JudgeCheck:
    """Check a machine judge on a sample of sessions.

    Only the sessions below the first session without a label count, because only they are a random
    sample. A session that is missing because a person left it out may be a difficult session.

    Args:
        judge: The name of the group of judges.
        sampled: Sessions that machine judges find good, without order.
        least: The lowest precision of a trusted judge.
    """
    labels = correct = 0
    mine = [session for session in sampled if session.judge == judge]
    # Of two equal numbers, the unlabelled session comes first, so that the order is known.
    mine.sort(key=lambda session: (session.number, session.label or ""))
    for session in mine:
        if session.label is None:
            break
        labels += 1
        correct += session.label == "acceptable"
    low, high = 0.0, 1.0
    if labels:
        low, high = wilson(correct / labels, labels, NORMAL_QUANTILE_OF_90)
    missing = count_missing_labels(correct, labels, least)
    return JudgeCheck(judge, least, labels, correct, low, high, missing)


def count_missing_labels(correct: int, labels: int, least: float) -> int | None:
    """Return the number of further labels that a judge needs if its share of good sessions stays.

    Args:
        correct: The number of labelled sessions that people find good.
        labels: The number of labelled sessions. Without labels, the share is taken to be 1.
        least: The lowest precision of a trusted judge.

    Returns:
        The number, or `None` if it is too large, or no number is enough.
    """
    share = correct / labels if labels else 1.0
    if labels and wilson(share, labels, NORMAL_QUANTILE_OF_90)[0] >= least:
        return 0
    if share <= least < 1 or least >= 1:
        return None
    low, high = labels, _MAX_LABELS
    while high - low > 1:  # the lower end rises with the number of labels
        middle = (low + high) // 2
        if wilson(share, middle, NORMAL_QUANTILE_OF_90)[0] >= least:
            high = middle
        else:
            low = middle
    return None if high == _MAX_LABELS else ceil(high - labels)
