"""What each judged session may be used for, and where it may be neither a good nor a bad answer, the first reason why.

The order of the reasons is the order of the tests: state of the record, damage, what must not be trained on, verdict, measures,
repetitions, the limit. A session that somebody judged good is never a bad answer, whatever measures it misses.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from math import inf
from operator import add
from typing import Any, NamedTuple

import xxhash

from agent_pipeline.errors import DataError
from agent_pipeline.judging.leaks import leak_patterns, without_leaks
from agent_pipeline.sessions.session import Message, canonical_json, is_trained, tool_calls
from agent_pipeline.sessions.tables import row_session
from agent_pipeline.sessions.text import characters


class Use(StrEnum):
    """What a session may be: a good answer, a bad answer (a pair's rejected side, a KTO row labelled false), or neither."""

    POSITIVE = "positive"
    NEGATIVE = "negative"
    NEITHER = "neither"


class Reason(StrEnum):
    """Why a session is dropped. `BROKEN`, `MEASURE` and `UNMEASURED` name the damage or the measure in the detail.

    `UNMEASURED` is a required measure that could not be taken.
    """

    ARCHIVED = "archived"
    EMPTY = "empty"
    BROKEN = "broken"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    ATTACK_SUCCEEDED = "attack_succeeded"
    VERDICT_LEAK = "verdict_leak"
    TOO_LONG = "too_long"
    UNJUDGED = "unjudged"
    UNACCEPTABLE = "unacceptable"
    MEASURE = "measure"
    UNMEASURED = "unmeasured"
    DUPLICATE = "duplicate"
    CONTINUED = "continued"
    BEGINS_BADLY = "begins_badly"
    MAX_SESSIONS = "max_sessions"


class Decision(NamedTuple):
    """A session's fate, in the columns of `curated_sessions`; a positive has no reason."""

    session_id: str
    reason: Reason | None = None
    detail: str | None = None
    missed_measures: Sequence[str] = ()
    duplicate_of: str | None = None
    continued_by: str | None = None

    @property
    def use(self) -> Use:
        return Use.POSITIVE if self.reason is None else Use.NEGATIVE if self.reason is Reason.UNACCEPTABLE else Use.NEITHER

    def columns(self) -> dict[str, Any]:
        """The columns that `curated_sessions` adds."""
        same = {name: getattr(self, name) for name in ("missed_measures", "duplicate_of", "continued_by")}
        reason = {"drop_reason": self.reason and self.reason.value, "drop_detail": self.detail}
        return {"kept": self.use is Use.POSITIVE, "use": self.use.value} | reason | same


class Bounds(NamedTuple):
    """How much is kept (0: no limit): sessions, the latest first, and characters of one session."""

    max_sessions: int = 0
    max_characters: int = 0


class Candidate(NamedTuple):
    """What curation holds of a session: what is decided of it on its own, and what decides beside others.

    `beginnings` are hashes of the conversation up to each of its messages; the last one is the whole.
    """

    decision: Decision
    content_sha256: str
    created_at: datetime | None = None
    by_person: bool = False
    beginnings: Sequence[int] = ()

    @property
    def session_id(self) -> str:
        return self.decision.session_id


def curate(candidates: Iterable[Candidate], max_sessions: int = 0) -> list[Decision]:
    """Decide on every session; the result is in the order of the input and as long.

    Of several sessions with the same content the one that a person judged is kept, then the better judged, then the earlier. A session
    that another one of the same use (or a positive one) begins with and goes on from is dropped: it would be trained on twice. What begins
    with all of a session that a person found bad is no example, unless a person found it good.
    """
    everyone = list(candidates)
    decisions = {each.session_id: each.decision for each in everyone}
    _drop_duplicates(everyone, decisions)
    _drop_bad_beginnings(everyone, decisions)
    _drop_beginnings(everyone, decisions)
    if max_sessions:
        positive = [each for each in everyone if decisions[each.session_id].use is Use.POSITIVE]
        latest_first = sorted(positive, key=lambda each: (-each.created_at.timestamp() if each.created_at else inf, each.session_id))
        for each in latest_first[max_sessions:]:
            decisions[each.session_id] = each.decision._replace(reason=Reason.MAX_SESSIONS, detail=str(max_sessions))
    return [decisions[each.session_id] for each in everyone]


class Curation(NamedTuple):
    """The decisions on a table's sessions in its order, and whose text had verdicts taken out."""

    decisions: list[Decision]
    stripped: set[str]

    @property
    def reasons(self) -> list[str]:
        """The reason of every session; positives are `kept`."""
        return [each.reason.value if each.reason else "kept" for each in self.decisions]

    @property
    def counts_with_detail(self) -> Counter[str]:
        """Sessions by reason; of a damage or a measure by its name too."""
        named = (Reason.BROKEN, Reason.MEASURE, Reason.UNMEASURED)
        details = [f":{each.detail}" if each.reason in named else "" for each in self.decisions]
        return Counter(map(add, self.reasons, details))


def curate_rows(
    read: Callable[[], Iterable[dict[str, Any]]],
    required_measures: Sequence[str],
    bounds: Bounds,
    verdict_leaks: Sequence[str],
) -> tuple[Curation, Iterator[dict[str, Any]]]:
    """Curate rows of `judged_sessions`: the decisions, and the rows of `curated_sessions`.

    `read` opens the same rows anew each time. They are read twice, because what a session repeats is known only when all have been seen;
    memory holds no texts but a batch's.

    Raises:
        DataError: the second reading gives other sessions than the first.
    """
    patterns = leak_patterns(verdict_leaks)
    candidates: list[Candidate] = []
    stripped: set[str] = set()
    for row in read():
        messages, lines, leak = without_leaks(row["messages"], patterns)
        if lines:
            stripped.add(row["session_id"])
            row = _with_messages(row, messages)
        candidates.append(candidate_of(row, leak, required_measures, bounds.max_characters))
    decisions = curate(candidates, bounds.max_sessions)

    def rows() -> Iterator[dict[str, Any]]:
        for row, decision in zip(read(), decisions, strict=True):
            if row["session_id"] != decision.session_id:
                raise DataError(f"judged_sessions changed while it was curated (at session {row['session_id']}): run it again.")
            if decision.session_id in stripped:
                row = _with_messages(row, without_leaks(row["messages"], patterns)[0])
            yield row | decision.columns()

    return Curation(decisions, stripped), rows()


def candidate_of(row: dict[str, Any], leak: str | None = None, required: Sequence[str] = (), max_characters: int = 0) -> Candidate:
    """What curation holds of a row of `judged_sessions`; `leak` is a verdict that stands in its text and cannot be taken out."""
    decision = _own_decision(row, leak, required, max_characters)
    return Candidate(decision, row["content_sha256"], row["created_at"], row["verdict_by"] == "label", _beginnings(row["messages"]))


def stopped_calling(row: dict[str, Any]) -> bool:
    """Whether a bad session is one whose agent called to the end (it was stopped after so many steps, say).

    Only the last message's calls have no results, and a judge that saw what came of the session (not its measures) found it bad.
    """
    if row["broken"] != "unanswered_call" or not row["messages"] or row["verdict"] != "unacceptable":
        return False  # "unanswered_call" is the last of `repair.KINDS`: any other damage is named before it
    seen = any(opinion["verdict"] == "unacceptable" for name, opinion in row["opinions"].items() if name != "measures")
    return seen and row["damage"].get("unanswered_call") == len(row["messages"][-1].get("tool_calls") or ())


def _own_decision(row: dict[str, Any], leak: str | None, required: Sequence[str], max_characters: int) -> Decision:
    """The first reason that a session carries in itself."""
    passed = {name: result["passed"] for name, result in row["measures"].items()}
    missed = [name for name in required if not passed.get(name)]
    failed = [name for name in missed if passed.get(name) is False]
    length = characters(row["messages"])
    tests: list[tuple[Any, Reason, str | None]] = [
        (row["archived"], Reason.ARCHIVED, None),
        (all(message["role"] == "system" for message in row["messages"]), Reason.EMPTY, None),
        (row["broken"] is not None and not stopped_calling(row), Reason.BROKEN, row["broken"]),
        (row["error"] is not None, Reason.INFRASTRUCTURE_ERROR, row["error"]),
        (row["attack_succeeded"], Reason.ATTACK_SUCCEEDED, None),
        (leak is not None, Reason.VERDICT_LEAK, leak),
        (max_characters and length > max_characters, Reason.TOO_LONG, str(length)),
        (row["verdict"] is None, Reason.UNJUDGED, None),
        (row["verdict"] != "acceptable", Reason.UNACCEPTABLE, None),
        (failed, Reason.MEASURE, next(iter(failed), None)),
        (missed, Reason.UNMEASURED, next(iter(missed), None)),
    ]
    reason, detail = next(((reason, detail) for holds, reason, detail in tests if holds), (None, None))
    return Decision(row["session_id"], reason, detail, missed)


def _drop_duplicates(everyone: list[Candidate], decisions: dict[str, Decision]) -> None:
    original: dict[str, str] = {}
    usable = [each for each in everyone if decisions[each.session_id].use is not Use.NEITHER]

    def standing(session: Candidate) -> tuple[bool, bool, float, str]:
        time = session.created_at.timestamp() if session.created_at else inf
        return (not session.by_person, decisions[session.session_id].use is Use.NEGATIVE, time, session.session_id)

    for each in sorted(usable, key=standing):
        first = original.setdefault(each.content_sha256, each.session_id)
        if first != each.session_id:
            decisions[each.session_id] = decisions[each.session_id]._replace(reason=Reason.DUPLICATE, detail=None, duplicate_of=first)


def _drop_bad_beginnings(everyone: list[Candidate], decisions: dict[str, Decision]) -> None:
    """Drop positives of which a person judged a beginning, the longest that one did, to be bad: what that says would be trained on."""
    seen = [each for each in everyone if each.by_person and each.beginnings and decisions[each.session_id].use is not Use.NEITHER]
    by_person = {each.beginnings[-1]: each.session_id for each in sorted(seen, key=lambda each: each.session_id)}
    for each in everyone if by_person else ():
        judged = next((by_person[beginning] for beginning in reversed(each.beginnings) if beginning in by_person), each.session_id)
        if decisions[each.session_id].use is Use.POSITIVE and not each.by_person and decisions[judged].use is Use.NEGATIVE:
            decisions[each.session_id] = decisions[each.session_id]._replace(reason=Reason.BEGINS_BADLY, detail=judged)


def _drop_beginnings(everyone: list[Candidate], decisions: dict[str, Decision]) -> None:
    """Drop sessions that are the beginning of a longer one: of a positive one, or both being negative."""
    for longer_use, shorter_uses in ((Use.POSITIVE, (Use.POSITIVE, Use.NEGATIVE)), (Use.NEGATIVE, (Use.NEGATIVE,))):
        whole: dict[int, list[str]] = {}
        for each in everyone:
            if each.beginnings and decisions[each.session_id].use in shorter_uses:
                whole.setdefault(each.beginnings[-1], []).append(each.session_id)
        for longer in sorted(everyone, key=lambda each: (-len(each.beginnings), each.session_id)):
            if decisions[longer.session_id].use is not longer_use:
                continue
            for beginning in longer.beginnings[:-1]:
                for shorter in whole.pop(beginning, ()):
                    decisions[shorter] = decisions[shorter]._replace(reason=Reason.CONTINUED, detail=None, continued_by=longer.session_id)


def _beginnings(messages: Sequence[Message]) -> list[int]:
    """Hashes of a conversation up to each of its messages, call ids aside; empty where the agent says nothing.

    A message that is not trained (`weight: 0`) is another than the same one trained: nobody else would train on what it leaves out.
    """
    if not any(message["role"] == "assistant" for message in messages):
        return []
    state, hashes = xxhash.xxh3_64(), []
    for message in messages:
        state.update(canonical_json([message["role"], message["content"], tool_calls([message]), is_trained(message)]).encode())
        hashes.append(state.intdigest())
    return hashes


def _with_messages(row: dict[str, Any], messages: list[Message]) -> dict[str, Any]:
    """A session's row with other messages, and the identity of those."""
    row = row | {"messages": messages}
    return row | {"content_sha256": row_session(row).content_sha256()}
