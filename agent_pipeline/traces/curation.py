"""Which sessions are kept, and for each other one the first reason why not.

The order of the reasons is the order of the tests: state of the record, damage, verdict, measures, duplicates, the limit. A session dropped
for its verdict or by a measure stays available beside the kept ones: it is what a preference pair's rejected side is made of.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

BREAKING = ("invalid_item", "invalid_arguments", "orphan_output", "unanswered_call", "mismatched_call_id", "invalid_context")
"""Damage that drops a session; the other kinds are mended with certainty when the items are read.

A result that names another call may be another call's; a context that cannot be read may have named the task, and so the side of the split.
"""

BAD_ANSWER = "unacceptable"
"""The drop reason of a session that is clean but not good; `measure:<name>` are its siblings."""


class Candidate(NamedTuple):
    """What curation looks at: a session without its text.

    `passed_measures` (null: whoever asks does not know) tells a required measure that was not taken from one that passed.
    """

    session_id: str
    content_sha256: str
    created_at: datetime | None
    archived: bool
    messages: int
    error: str | None
    damage: dict[str, int]
    verdict: str | None
    failed_measures: Sequence[str]
    passed_measures: Sequence[str] | None = None


class Decision(NamedTuple):
    """`reason` is null for a kept session; `detail` says more (which session it repeats, how much damage)."""

    session_id: str
    reason: str | None
    detail: str | None


def curate(candidates: Iterable[Candidate], required_measures: Sequence[str] = (), max_sessions: int = 0) -> list[Decision]:
    """Decide on every session; the result is in the order of the input and as long.

    Of several sessions with the same content the better judged is kept, then the earlier. `max_sessions` (0: no limit) keeps the first in
    the order of time. A dropped one's detail names the session that it repeats.
    """
    everyone = list(candidates)
    decisions = {one.session_id: _alone(one, required_measures) for one in everyone}
    first: dict[str, str] = {}
    kept = 0
    for one in sorted(everyone, key=lambda each: (decisions[each.session_id].reason is not None, *_preference(each))):
        decision = decisions[one.session_id]
        if decision.reason is not None and not is_bad_answer(decision.reason):
            continue
        original = first.setdefault(one.content_sha256, one.session_id)
        if original != one.session_id:
            decisions[one.session_id] = Decision(one.session_id, "duplicate_of", original)
    if max_sessions:
        for one in sorted(everyone, key=lambda each: (_time(each), each.session_id)):
            if decisions[one.session_id].reason is None:
                kept += 1
                if kept > max_sessions:
                    decisions[one.session_id] = Decision(one.session_id, "max_sessions", f"limit {max_sessions}")
    return [decisions[one.session_id] for one in everyone]


def is_bad_answer(reason: str | None) -> bool:
    """Whether a session was dropped for what the agent did, not for what is wrong with the record."""
    return reason is not None and (reason == BAD_ANSWER or reason.startswith("measure:"))


def _alone(one: Candidate, required: Sequence[str]) -> Decision:
    """The first reason that a session carries in itself."""
    if one.archived:
        return Decision(one.session_id, "archived", None)
    if not one.messages:
        return Decision(one.session_id, "empty", None)
    for kind in BREAKING:
        if count := one.damage.get(kind, 0):
            return Decision(one.session_id, f"broken:{kind}", f"{count} times")
    if one.error is not None:
        return Decision(one.session_id, "infrastructure_error", one.error)
    if one.verdict is None:
        return Decision(one.session_id, "unjudged", None)
    if one.verdict != "acceptable":
        return Decision(one.session_id, BAD_ANSWER, None)
    for name in required:
        if name in one.failed_measures:
            return Decision(one.session_id, f"measure:{name}", None)
        if one.passed_measures is not None and name not in one.passed_measures:
            return Decision(one.session_id, f"unmeasured:{name}", None)  # null is not zero: neither good nor bad
    return Decision(one.session_id, None, None)


def _preference(one: Candidate) -> tuple[bool, float, str]:
    return (one.verdict != "acceptable", _time(one), one.session_id)


def _time(one: Candidate) -> float:
    return one.created_at.timestamp() if one.created_at else float("inf")
