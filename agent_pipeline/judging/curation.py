"""Decisions on how each judged session is used, with the first reason against the session.

The reasons are checked in this order: state of the record, damage, content that must not be
trained, verdict, preconditions, measures, repetitions, limits. A session that was judged good is
never used as a bad answer, even if it fails measures. Comparing sessions belongs to `repetitions`,
and judging to `verdict_policy`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, NamedTuple

import numpy as np

from agent_pipeline.errors import DataError
from agent_pipeline.judging.decisions import (
    NOBODY,
    PERSON,
    VERIFIER,
    CurationCandidate,
    CurationDecision,
    Decisions,
    DropReason,
    SessionUse,
)
from agent_pipeline.judging.preconditions import NO_PRECONDITIONS, Preconditions
from agent_pipeline.judging.repetitions import (
    drop_bad_beginnings,
    drop_continued,
    drop_duplicates,
    hash_beginnings,
    hash_without_call_ids,
)
from agent_pipeline.judging.rows import CuratedRow, JudgedRow
from agent_pipeline.judging.verdict_leaks import compile_leak_patterns, remove_leaks
from agent_pipeline.judging.verdict_policy import VERIFIERS, VerdictSource
from agent_pipeline.sessions.session import Message, list_answering_models
from agent_pipeline.sessions.tables import restore_session
from agent_pipeline.sessions.transcript import count_characters


class CurationBounds(NamedTuple):
    """Limits on the number of kept sessions. 0 means no limit.

    Attributes:
        max_sessions: Maximum number of sessions. The latest sessions are kept.
        max_characters: Maximum number of characters per session.
    """

    max_sessions: int = 0
    max_characters: int = 0


def curate(candidates: Iterable[CurationCandidate], max_sessions: int = 0) -> Decisions:
    """Decide how every session is used, and return the decisions in the order of the input.

    If several sessions have the same content, one of them is kept (`repetitions.drop_duplicates`).
    If a session begins with the whole of another session of the same use, the shorter session is
    dropped. If a session begins with the whole of a session that was judged bad, the longer session
    may be dropped. It is dropped if a person judged the shorter session, or if no judge verified
    the longer session. A longer session that a person judged good is kept.
    """
    decisions = Decisions(candidates)
    drop_duplicates(decisions)
    drop_bad_beginnings(decisions, PERSON)
    drop_bad_beginnings(decisions, VERIFIER)
    drop_continued(decisions)
    if max_sessions:
        _drop_earlier_sessions(decisions, max_sessions)
    decisions.forget_comparisons()
    return decisions


def _drop_earlier_sessions(decisions: Decisions, max_sessions: int) -> None:
    """Drop all good sessions except for the latest sessions.

    Sessions without a time count as the earliest.
    """
    positive = np.flatnonzero(decisions.has_use(SessionUse.POSITIVE))
    times = decisions.times[positive]
    age = np.where(times == inf, inf, -times)
    latest_first = positive[np.lexsort((decisions.rank[positive], age))]
    decisions.drop(latest_first[max_sessions:], DropReason.MAX_SESSIONS, str(max_sessions))


_WITH_DETAIL = (
    DropReason.BROKEN,
    DropReason.PRECONDITION,
    DropReason.MEASURE,
    DropReason.UNMEASURED,
)
"""The drop reasons that are counted by their detail."""


ServedModelSessions = Literal["drop", "judged", "keep"]
"""Which sessions of the lake's own models may be trained on: none, those that no machine judged
good, or all.
"""

JUDGES_OF_OWN_SESSIONS: tuple[VerdictSource, ...] = ("label", "judgment", "score", "metrics")
"""Judges that are no machine: a person, and the store's judgment, score or declared metric."""


@dataclass(frozen=True)
class OwnSessions:
    """How curation treats sessions in which a model of this lake answered.

    Attributes:
        is_from_served_model: Returns whether a model of this lake answered in a row's session.
        setting: Which of these sessions may be trained on; they are counted in any case.
    """

    is_from_served_model: Callable[[JudgedRow], bool]
    setting: ServedModelSessions = "judged"

    def may_train(self, row: JudgedRow) -> bool:
        """Return whether a session in which a model of the lake answered may be trained on.

        A language model or a measure as judge may like the mistakes of the model, and the next
        model would learn them. So with `judged`, the session must be good, and a person or the
        store must have said so. A bad session is not used as a bad answer either.
        """
        if self.setting == "judged":
            return row["verdict"] == "acceptable" and row["verdict_by"] in JUDGES_OF_OWN_SESSIONS
        return self.setting == "keep"


@dataclass
class Curation:
    """The decisions on how the sessions of a table are used.

    Attributes:
        decisions: The decisions, in the order of the table.
        stripped: The sessions from whose text verdicts were removed.
        by_served_model: The sessions that a model of the lake answered, at least in part.
    """

    decisions: Decisions
    stripped: set[str]
    by_served_model: set[str] = field(default_factory=set)

    @property
    def kept_by_served_model(self) -> int:
        """Return the number of good sessions with answers of a model of the lake."""
        return sum(
            decision.reason is None and decision.session_id in self.by_served_model
            for decision in (self.decisions if self.by_served_model else ())
        )

    @property
    def reasons(self) -> list[str]:
        """Return the drop reason of every session, or `kept` if the session is good."""
        return [decision.reason.value if decision.reason else "kept" for decision in self.decisions]

    @property
    def counts_with_detail(self) -> Counter[str]:
        """Return the number of sessions for each drop reason, including its detail.

        The name of the damage or the measure follows the reason after a colon.
        """
        counts: Counter[str] = Counter()
        for decision in self.decisions:
            reason = decision.reason.value if decision.reason else "kept"
            if decision.reason in _WITH_DETAIL:
                reason += f":{decision.detail}"
            counts[reason] += 1
        return counts


def curate_rows(
    read_rows: Callable[[], Iterable[JudgedRow]],
    required_measures: Sequence[str],
    bounds: CurationBounds,
    leak_patterns: Sequence[str],
    own_sessions: OwnSessions | None = None,
    preconditions: Preconditions = NO_PRECONDITIONS,
) -> tuple[Curation, Iterator[CuratedRow]]:
    """Decide how each row of `judged_sessions` is used.

    The rows are read twice, because a session's repetitions are only known when all sessions have
    been read. Memory holds the texts of one batch, and the `Decisions` on all sessions.

    Args:
        read_rows: Opens the rows; it is called twice and must return the same rows.
        required_measures: Names of measures that a good session must pass.
        bounds: How much is kept.
        leak_patterns: Regular expressions of verdicts in the text.
        own_sessions: How sessions of models of this lake are treated; None treats them as others.
        preconditions: The preconditions that the calls of a good session must not break.

    Returns:
        The decisions, and an iterator of the rows of `curated_sessions`. The iterator raises
        DataError if the second reading gives other sessions than the first.
    """
    patterns = compile_leak_patterns(leak_patterns)
    rules = CurationRules(
        patterns, required_measures, bounds.max_characters, own_sessions, preconditions
    )
    stripped: set[str] = set()
    served: set[str] = set()

    def make_candidates() -> Iterator[CurationCandidate]:
        for row in read_rows():
            checked = check_row(row, rules)
            if checked.is_served:
                served.add(row["session_id"])
            if checked.is_stripped:
                stripped.add(row["session_id"])
            yield checked.candidate

    decisions = curate(make_candidates(), bounds.max_sessions)

    def make_rows() -> Iterator[CuratedRow]:
        for row, decision in zip(read_rows(), decisions, strict=True):
            session_id = row["session_id"]
            if session_id != decision.session_id:
                raise DataError(
                    "The table `judged_sessions` changed while it was curated (at the session "
                    f"{session_id}): materialize `curated_sessions` again.",
                    asset="judged_sessions",
                )
            if session_id in stripped:
                cleaned = remove_leaks(row["messages"], patterns)
                row = _replace_messages(row, cleaned.messages)
            marked = {"served_model": session_id in served}
            curated_row: Any = {**row, **decision.make_columns(), **marked}
            yield curated_row

    return Curation(decisions, stripped, served), make_rows()


@dataclass(frozen=True)
class CurationRules:
    """The rules that decide on a session alone, without a comparison with other sessions.

    Attributes:
        leak_patterns: Patterns of verdicts in the text.
        required_measures: Names of measures that a good session must pass.
        max_characters: Maximum number of characters per session. 0 means no limit.
        own_sessions: How sessions of models of this lake are treated; None treats them as others.
        preconditions: The preconditions that the calls of a good session must not break.
    """

    leak_patterns: Sequence[re.Pattern[str]] = ()
    required_measures: Sequence[str] = ()
    max_characters: int = 0
    own_sessions: OwnSessions | None = None
    preconditions: Preconditions = NO_PRECONDITIONS


class CheckedRow(NamedTuple):
    """A row after the check of the session alone.

    Attributes:
        row: The row, without verdicts in its text.
        candidate: The facts for the comparison with other sessions.
        is_stripped: Whether a verdict was removed from the text.
        is_served: Whether a model of this lake answered in the session.
    """

    row: JudgedRow
    candidate: CurationCandidate
    is_stripped: bool
    is_served: bool


def check_row(row: JudgedRow, rules: CurationRules) -> CheckedRow:
    """Remove verdicts from the text of a row, and check the row's session alone."""
    own_sessions = rules.own_sessions
    is_served = own_sessions is not None and own_sessions.is_from_served_model(row)
    cleaned = remove_leaks(row["messages"], rules.leak_patterns)
    if cleaned.removed_lines:
        row = _replace_messages(row, cleaned.messages)
    candidate = make_candidate(
        row,
        cleaned.remaining_leak,
        rules.required_measures,
        rules.max_characters,
        own_sessions is not None and is_served and not own_sessions.may_train(row),
        rules.preconditions,
    )
    return CheckedRow(row, candidate, bool(cleaned.removed_lines), is_served)


def _replace_messages(row: JudgedRow, messages: list[Message]) -> JudgedRow:
    """Return the row of a session with new messages and the hash of its new content."""
    replaced: JudgedRow = {**row, "messages": messages}
    return {**replaced, "content_sha256": restore_session(replaced).hash_content()}


def make_candidate(
    row: JudgedRow,
    leak: str | None = None,
    required_measures: Sequence[str] = (),
    max_characters: int = 0,
    is_served: bool = False,
    preconditions: Preconditions = NO_PRECONDITIONS,
) -> CurationCandidate:
    """Return the facts about a row of `judged_sessions` on which curation depends.

    Args:
        row: The row.
        leak: A verdict in the row's text that cannot be removed.
        required_measures: Names of measures that a good session must pass.
        max_characters: Maximum number of characters per session. 0 means no limit.
        is_served: Whether the session is dropped because a model of this lake generated it.
        preconditions: The preconditions that the calls of a good session must not break.
    """
    passed = {name: result["passed"] for name, result in row["measures"].items()}
    missed = [name for name in required_measures if not passed.get(name)]
    failed = [name for name in missed if passed.get(name) is False]
    reason, detail = _find_reason(row, leak, max_characters, is_served)
    broken = None
    if reason is None and preconditions:
        broken = next(preconditions.find_broken(row["messages"], row["tools"]), None)
    if broken is not None:
        reason, detail = DropReason.PRECONDITION, broken.name
    elif reason is None and failed:
        reason, detail = DropReason.MEASURE, failed[0]
    elif reason is None and missed:
        reason, detail = DropReason.UNMEASURED, missed[0]
    return CurationCandidate(
        CurationDecision(row["session_id"], reason, detail, missed),
        hash_without_call_ids(row["messages"], row["tools"]),
        row["created_at"],
        find_authority(row["verdict_by"]),
        hash_beginnings(row["messages"]),
    )


def find_authority(verdict_by: str | None) -> int:
    """Return `PERSON`, `VERIFIER` or `NOBODY`, depending on who gave a verdict."""
    if verdict_by == "label":
        return PERSON
    return VERIFIER if verdict_by in VERIFIERS else NOBODY


def _find_reason(
    row: JudgedRow, leak: str | None, max_characters: int, is_served: bool
) -> tuple[DropReason | None, str | None]:
    """Return the first reason against a session, and the detail of that reason.

    Required measures are not checked here.
    """
    if row["archived"]:
        return DropReason.ARCHIVED, None
    if all(message["role"] == "system" for message in row["messages"]):
        return DropReason.EMPTY, None
    if row["broken"] is not None and not was_stopped_while_calling(row):
        return DropReason.BROKEN, row["broken"]
    if row["error"] is not None:
        return DropReason.INFRASTRUCTURE_ERROR, row["error"]
    if row["attack_succeeded"]:
        return DropReason.ATTACK_SUCCEEDED, None
    if leak is not None:
        return DropReason.VERDICT_LEAK, leak
    length = count_characters(row["messages"]) if max_characters else 0
    if length > max_characters:
        return DropReason.TOO_LONG, str(length)
    if is_served:
        return DropReason.SERVED_MODEL, ", ".join(list_answering_models(row)) or None
    if row["verdict"] is None:
        return DropReason.UNJUDGED, None
    # measures alone cannot make a session a good or bad example
    if row["verdict_by"] == "measures":
        return DropReason.MEASURE, row.get("verdict_name")
    if row["verdict"] != "acceptable":
        return DropReason.UNACCEPTABLE, None
    return None, None


def was_stopped_while_calling(row: JudgedRow) -> bool:
    """Return whether a bad session is damaged only because its agent was stopped during a call.

    Such an agent was stopped, for example at a limit of steps. Only the calls of the last message
    have no results, and a judge that saw the outcome of the session (not its measures) judged it
    bad.
    """
    # "unanswered_call" is the last kind in the list, so any other damage would be named instead.
    if row["broken"] != "unanswered_call" or not row["messages"]:
        return False
    if row["verdict"] != "unacceptable":
        return False
    found_bad = any(
        opinion["verdict"] == "unacceptable"
        for judge, opinion in row["opinions"].items()
        if judge != "measures"
    )
    last_calls = row["messages"][-1].get("tool_calls") or ()
    return found_bad and row["damage"].get("unanswered_call") == len(last_calls)
