"""The types of a decision: what goes into it besides the scores, and what comes out.

Decisions are stored in the ledger. Attributes and reasons that were renamed keep their first
names there, so that ledgers of all versions are read. The rules are in `rules`, the sentences that
explain a reason in `decision_wording`.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Literal

import msgspec

Outcome = Literal["promote", "hold", "reject", "cannot decide", "keep", "roll back"]
"""`keep` and `roll back` are the outcomes of a probation check, the others those of a candidate."""


class SanityAnswer(msgspec.Struct, frozen=True):
    """The answers of base model and candidate to one sanity question.

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
    """A count of the verdicts on the sessions that a candidate was trained on.

    Attributes:
        verified: The verdicts by a person, a score or a judge.
        total: All verdicts; 0 if it is not known who judged the sessions.
    """

    verified: int
    total: int


class DecisionFacts(msgspec.Struct, frozen=True):
    """What the rules look at besides the scores of both models.

    Attributes:
        earlier_decisions: The decisions of this year on the partition.
        is_first_champion: Whether there is no champion yet, so that the baseline is the base model.
        share_turned_bad: Of the sessions that the champion was trained on, the share whose verdict
            is "bad" now.
        newer_tasks: The tasks whose sessions all began after the champion was trained.
        sanity_answers: The answers to the sanity questions.
        worse_than_base: What the candidate's episodes show it does less than its base model.
        without_end: That too many of the candidate's episodes have no end.
        unverified: The verdicts on the training sessions, if not all are verified; `None` if all
            are.
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
    """A rule that gives reasons. The values are stored in ledgers and never change."""

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
    NO_WORLD = "no world"
    HARM_NOT_MEASURED = "harm not measured"
    UNVERIFIED_SESSIONS = "unverified"
    UNVERIFIED_HELD_OUT_TASKS = "unverified held-out tasks"


class DecisionReason(msgspec.Struct, frozen=True, rename={"baseline": "rival"}):
    """One reason for an outcome.

    Attributes:
        kind: The rule that gives the reason.
        name: The figure that the rule looked at.
        against: The outcome that the reason is for.
        candidate: The candidate's value.
        baseline: The baseline's value; `None` if the rule compares with no baseline.
        limit: The limit of the rule; `None` if it has none.
    """

    kind: ReasonKind
    name: str
    against: Outcome
    candidate: float | None = None
    baseline: float | None = None
    limit: float | None = None


class Figure(msgspec.Struct, frozen=True, rename={"baseline": "rival"}):
    """A mean of both models, and their difference.

    Attributes:
        name: What is measured.
        candidate: The candidate's mean.
        baseline: The mean of the champion, or of the base model if there is no champion.
        difference: Candidate − baseline.
        low: The lower end of the difference's 95 % interval over tasks.
        high: The upper end.
        samples: The turns, rows or episodes that were compared.
        tasks: The number of their tasks.
        visible: The smallest gain that this decision could have seen.
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
        outcome: What was decided.
        p_value: The chance of such a gain between two equally good models; `None` if nothing was
            tested.
        allowed_error: What this decision might spend of the yearly error budget.
        more_tasks: The tasks that are missing to see the gain that is sought.
        figures: The measured figures; the figure that decides comes first.
        reasons: The reasons; those for the outcome come first.
        tasks: The held-out tasks that were compared; 0 in decisions of older versions.
        needed_tasks: The tasks needed to see the gain that is sought; 0 in decisions of older
            versions.
    """

    outcome: Outcome
    p_value: float | None
    allowed_error: float
    more_tasks: int
    figures: tuple[Figure, ...]
    reasons: tuple[DecisionReason, ...]
    tasks: int = 0
    needed_tasks: int = 0
