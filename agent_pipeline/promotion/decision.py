"""The types of a decision: its inputs in addition to the scores, and its result.

Decisions are stored in the ledger. Attributes and reasons that were renamed keep their first names
there, so that ledgers of all versions can be read. The rules are in `rules`, and the sentences that
explain the reasons are in `decision_wording`.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Literal

import msgspec

Outcome = Literal["promote", "hold", "reject", "cannot decide", "keep", "roll back"]
"""`keep` and `roll back` are the outcomes of a probation check, the others those of a candidate."""


class SanityAnswer(msgspec.Struct, frozen=True):
    """The answers of the base model and the candidate to one sanity question.

    Attributes:
        question: The question, or the name of a turn of another partition.
        group: The group of questions that is compared as a whole.
        base: Whether the base model's answer is good.
        candidate: Whether the candidate's answer is good.
        base_answer: The base model's text; empty for turns of other partitions.
        candidate_answer: The candidate's text; empty for turns of other partitions.
    """

    question: str
    group: str
    base: bool
    candidate: bool
    base_answer: str = ""
    candidate_answer: str = ""


class VerifiedVerdicts(msgspec.Struct, frozen=True):
    """The numbers of verdicts on a candidate's training sessions.

    Attributes:
        verified: The number of verdicts by a person, a score or a judge.
        total: The number of all verdicts; 0 if it is not known who judged the sessions.
    """

    verified: int
    total: int


class DecisionFacts(msgspec.Struct, frozen=True):
    """The inputs of the decision rules in addition to the scores of both models.

    Attributes:
        earlier_decisions: The number of tests of the partition in this year before this one.
        is_first_champion: Whether there is no champion yet, so that the baseline is the base model.
        share_turned_bad: The share of the champion's training sessions whose verdict is now "bad".
        newer_tasks: The tasks whose sessions all began after the champion was trained.
        sanity_answers: The answers to the sanity questions.
        worse_than_base: Sentences about episodes in which the candidate does less than its base
            model.
        without_end: Sentences about too many episodes of the candidate that were cut off.
        unverified: The verdicts on the training sessions if at least one is not verified; otherwise
            `None`.
        unverified_tasks: The number of deciding tasks with a session that nobody verified.
    """

    earlier_decisions: int = 0
    is_first_champion: bool = False
    share_turned_bad: float = 0.0
    newer_tasks: Collection[str] = ()
    sanity_answers: Sequence[SanityAnswer] = ()
    worse_than_base: Sequence[str] = ()
    without_end: Sequence[str] = ()
    unverified: VerifiedVerdicts | None = None
    unverified_tasks: int = 0


class ReasonKind(StrEnum):
    """Kinds of reasons for an outcome. Ledgers store these values, so they never change."""

    GAIN = "gain"
    NO_GAIN = "no gain"
    WORSE = "worse"
    SAME_ANSWERS = "same answers"
    TOO_FEW_TASKS = "too few tasks"
    CALLS_WITHOUT_REGARD = "separation"
    REGRESSION = "guard"
    REGRESSION_WITHIN_CHANCE = "within chance"
    NOT_A_NUMBER = "not a number"
    HARM_ABOVE_LIMIT = "harm"
    MORE_HARM_THAN_BASE = "harm beside the base"
    HARM_NOT_EXCLUDED = "unseen harm"
    POSSIBLE_HARM_ABOVE_LIMIT = "hidden harm"
    POSSIBLE_HARM_ABOVE_CHAMPION = "hidden harm beside the rival"
    NO_TASK_DONE = "no task done"
    EPISODES = "base"
    HELD_BY_PERSON = "held"
    VERDICTS_TURNED = "turned"
    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    TOO_FEW_NEWER_TASKS = "too few newer tasks"
    CONTRADICTED = "contradicted"
    NOT_CONTRADICTED = "not contradicted"
    WORSE_IN_PRODUCTION = "worse in production"
    NO_WORLD = "no world"
    HARM_NOT_MEASURED = "harm not measured"
    TASKS_NOT_PLAYED = "tasks not played"
    UNVERIFIED_SESSIONS = "unverified"
    UNVERIFIED_HELD_OUT_TASKS = "unverified held-out tasks"
    HARM_IN_VARIANT = "harm in a variant"
    POSSIBLE_HARM_IN_VARIANT = "hidden harm in a variant"
    FEWER_TASKS_IN_VARIANT = "fewer tasks in a variant"
    UNDECIDED_FROM_LOGS = "undecided from logs"


SUSPECTED_HARM = "suspected harm"
"""The figure of a reason about episodes that end with a change that is probably harmful."""


class DecisionReason(msgspec.Struct, frozen=True, rename={"baseline": "rival"}):
    """One reason for an outcome.

    Attributes:
        kind: The kind of the reason.
        name: The name of the figure that the rule checked.
        against: The outcome that the reason leads to.
        candidate: The candidate's value.
        baseline: The baseline's value; `None` if the rule does not compare with a baseline.
        limit: The limit of the rule; `None` if there is no limit.
    """

    kind: ReasonKind
    name: str
    against: Outcome
    candidate: float | None = None
    baseline: float | None = None
    limit: float | None = None


class Figure(msgspec.Struct, frozen=True, rename={"baseline": "rival"}):
    """One figure of a decision: the means of both models, and their difference.

    Attributes:
        name: The name of the figure.
        candidate: The candidate's mean.
        baseline: The mean of the champion, or of the base model if there is no champion.
        difference: The difference candidate − baseline.
        low: The lower end of the difference's 95 % interval over tasks.
        high: The upper end of the interval.
        samples: The number of compared turns, rows or episodes.
        tasks: The number of their tasks.
        visible: The smallest gain that this decision could have detected.
    """

    name: str
    candidate: float
    baseline: float
    difference: float
    low: float | None
    high: float | None
    samples: int
    tasks: int
    visible: float | None = None


class Decision(
    msgspec.Struct, frozen=True, kw_only=True, rename={"p_value": "p", "allowed_error": "error"}
):
    """A decision on a candidate, or the result of a probation check.

    Attributes:
        outcome: The outcome.
        p_value: The probability of such a gain between two equally good models; `None` if nothing
            was tested.
        allowed_error: The part of the yearly error budget that this decision may use.
        more_tasks: The number of additional tasks that are needed to detect the sought gain.
        figures: The measured figures. The deciding figure comes first.
        reasons: The reasons. The reasons for the outcome come first.
        tasks: The number of compared held-out tasks; 0 in decisions of older versions.
        needed_tasks: The number of tasks that are needed to detect the sought gain; 0 in decisions
            of older versions.
    """

    outcome: Outcome
    p_value: float | None
    allowed_error: float
    more_tasks: int
    figures: tuple[Figure, ...]
    reasons: tuple[DecisionReason, ...]
    tasks: int = 0
    needed_tasks: int = 0
