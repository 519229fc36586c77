"""What each judged session may be used for, and where it may be neither a good nor a bad answer, the first reason why.

The order of the reasons is the order of the tests: state of the record, damage, what must not be trained on, verdict, measures,
repetitions, the limit. A session that somebody judged good is never a bad answer, whatever measures it misses.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from math import inf
from operator import add
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from agent_pipeline.errors import DataError
from agent_pipeline.judging.beginnings import beginnings_of, is_among
from agent_pipeline.judging.leaks import leak_patterns, without_leaks
from agent_pipeline.judging.policy import VERIFIERS
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.tables import restore_session
from agent_pipeline.sessions.transcript import count_characters


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
    SERVED_MODEL = "served_model"
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
        return (
            Use.POSITIVE
            if self.reason is None
            else Use.NEGATIVE
            if self.reason is Reason.UNACCEPTABLE
            else Use.NEITHER
        )

    def columns(self) -> dict[str, Any]:
        """The columns that `curated_sessions` adds."""
        same = {
            name: getattr(self, name)
            for name in ("missed_measures", "duplicate_of", "continued_by")
        }
        reason = {"drop_reason": self.reason and self.reason.value, "drop_detail": self.detail}
        return {"kept": self.use is Use.POSITIVE, "use": self.use.value} | reason | same


class Bounds(NamedTuple):
    """How much is kept (0: no limit): sessions, the latest first, and characters of one session."""

    max_sessions: int = 0
    max_characters: int = 0


NOBODY, VERIFIER, PERSON = range(3)


class Candidate(NamedTuple):
    """What curation looks at of a session: what is decided of it on its own, and what decides beside others.

    `authority` is that of who gave the verdict: `PERSON`, `VERIFIER` (another judge) or `NOBODY`. `beginnings` are hashes of the
    conversation up to each of its messages; the last one is the whole.
    """

    decision: Decision
    content_sha256: str
    created_at: datetime | None = None
    authority: int = PERSON
    beginnings: Sequence[int] = ()

    @property
    def session_id(self) -> str:
        return self.decision.session_id


class Decisions(Sequence[Decision]):
    """What is decided of every session, in the order of the input.

    It holds columns, and no object a session: the bytes of each id and 17 more. While sessions are compared (`curate`) also 8 bytes of
    each message, a hash of all up to it, and 53 a session.
    """

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        ids, ends, contents, authority = bytearray(), array("q", [0]), bytearray(), bytearray()
        reasons, times, hashes, until = bytearray(), array("d"), array("Q"), array("q", [0])
        self._notes: dict[
            int, tuple[str | None, Sequence[str]]
        ] = {}  # detail and missed measures, where there are any
        shared: dict[Any, Any] = {}
        for at, (own, content, created_at, own_authority, beginnings) in enumerate(candidates):
            ids += own.session_id.encode()
            ends.append(len(ids))
            contents += xxhash.xxh3_128_digest(content.encode())
            authority.append(own_authority)
            reasons.append(_REASONS.index(own.reason))
            times.append(created_at.timestamp() if created_at else inf)
            hashes.extend(beginnings if own.use is not Use.NEITHER else ())
            until.append(len(hashes))
            if own.detail or own.missed_measures:
                note = (own.detail, tuple(own.missed_measures))
                self._notes[at] = shared.setdefault(note, note)
        n = len(authority)
        self.ids = pa.Array.from_buffers(
            pa.large_string(), n, [None, pa.py_buffer(ends), pa.py_buffer(ids)]
        )
        self.reasons, self.authority = (
            np.frombuffer(reasons, np.uint8),
            np.frombuffer(authority, np.uint8),
        )
        self.times, self.hashes, self.until = (
            np.frombuffer(times),
            np.frombuffer(hashes, np.uint64),
            np.frombuffer(until, np.int64),
        )
        """`hashes` are the sessions' beginnings, those of a session up to its place in `until`."""
        binary = pa.Array.from_buffers(pa.binary(16), n, [None, pa.py_buffer(contents)])
        self.contents = binary.dictionary_encode().indices.to_numpy()
        self.rank = np.empty(n, np.int64)
        self.rank[pc.sort_indices(self.ids).to_numpy()] = np.arange(n)
        self.duplicate_of, self.continued_by = np.full(n, -1, np.int32), np.full(n, -1, np.int32)

    def __len__(self) -> int:
        return len(self.reasons)

    def __getitem__(self, at: Any) -> Any:
        at = range(len(self))[at]
        detail, missed = self._notes.get(at, (None, ()))
        others = (
            self.ids[int(of)].as_py() if (of := column[at]) >= 0 else None
            for column in (self.duplicate_of, self.continued_by)
        )
        return Decision(self.ids[at].as_py(), _REASONS[self.reasons[at]], detail, missed, *others)

    def having(self, *uses: Use) -> np.ndarray:
        """(n,) bool: which sessions have one of these uses, as far as it is decided."""
        return np.isin(self.reasons, [_CODES[use] for use in uses])

    def drop(self, places: Any, reason: Reason, detail: str | None = None) -> None:
        """Decide that sessions are neither."""
        self.reasons[places] = _REASONS.index(reason)
        if detail is not None:
            self._notes |= dict.fromkeys(np.atleast_1d(places).tolist(), (detail, ()))


_REASONS = (None, *Reason)
_CODES = {Use.POSITIVE: 0, Use.NEGATIVE: _REASONS.index(Reason.UNACCEPTABLE)}


def curate(candidates: Iterable[Candidate], max_sessions: int = 0) -> Decisions:
    """Decide on every session; the result is in the order of the input and as long.

    Of several sessions with the same content the one that a person judged is kept, then one that another judge verified, then the better
    judged, then the earlier. A session that another one of the same use (or a positive one) begins with and goes on from is dropped: it
    would be trained on twice. What begins with all of a session that was found bad is not an example if a person found it bad, or if nobody
    verified the longer one, unless a person found that one good.
    """
    decisions = Decisions(candidates)
    _drop_duplicates(decisions)
    _drop_bad_beginnings(decisions, PERSON)
    _drop_bad_beginnings(decisions, VERIFIER)
    _drop_beginnings(decisions)
    if max_sessions:
        positive = np.flatnonzero(decisions.having(Use.POSITIVE))
        times = decisions.times[positive]
        latest_first = positive[
            np.lexsort((decisions.rank[positive], np.where(times == inf, inf, -times)))
        ]
        decisions.drop(latest_first[max_sessions:], Reason.MAX_SESSIONS, str(max_sessions))
    del (
        decisions.authority,
        decisions.times,
        decisions.hashes,
        decisions.until,
        decisions.contents,
        decisions.rank,
    )
    return decisions


class Curation(NamedTuple):
    """The decisions on a table's sessions in its order, whose text had verdicts taken out, and how many a model of the lake made."""

    decisions: Decisions
    stripped: set[str]
    by_served_model: int = 0

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
    is_own: Callable[[dict[str, Any]], bool] | None = None,
    keep_own: bool = False,
) -> tuple[Curation, Iterator[dict[str, Any]]]:
    """Curate rows of `judged_sessions`: the decisions, and the rows of `curated_sessions`.

    `is_own` says which rows a model of this lake made. They are dropped unless `keep_own`, and counted in any case.
    `read` opens the same rows anew each time. They are read twice, because what a session repeats is known only when all have been seen;
    memory holds no texts but a batch's, and of the others `Decisions`.

    Raises:
        DataError: the second reading gives other sessions than the first.
    """
    patterns = leak_patterns(verdict_leaks)
    stripped, own = set[str](), 0

    def candidates() -> Iterator[Candidate]:
        nonlocal own
        for row in read():
            own += (by_own := is_own is not None and is_own(row))
            messages, lines, leak = without_leaks(row["messages"], patterns)
            if lines:
                stripped.add(row["session_id"])
                row = _with_messages(row, messages)
            yield candidate_of(
                row, leak, required_measures, bounds.max_characters, by_own and not keep_own
            )

    decisions = curate(candidates(), bounds.max_sessions)

    def rows() -> Iterator[dict[str, Any]]:
        for row, decision in zip(read(), decisions, strict=True):
            if row["session_id"] != decision.session_id:
                raise DataError(
                    f"judged_sessions changed while it was curated (at session {row['session_id']}): run it again."
                )
            if decision.session_id in stripped:
                row = _with_messages(row, without_leaks(row["messages"], patterns)[0])
            yield row | decision.columns()

    return Curation(decisions, stripped, own), rows()


def candidate_of(
    row: dict[str, Any],
    leak: str | None = None,
    required: Sequence[str] = (),
    max_characters: int = 0,
    own: bool = False,
) -> Candidate:
    """What curation holds of a row of `judged_sessions`; `leak` is a verdict that stands in its text and cannot be taken out, `own` says
    that a model of this lake made it."""
    decision = _own_decision(row, leak, required, max_characters, own)
    by = row["verdict_by"]
    authority = PERSON if by == "label" else VERIFIER if by in VERIFIERS else NOBODY
    return Candidate(
        decision,
        row["content_sha256"],
        row["created_at"],
        authority,
        beginnings_of(row["messages"]),
    )


def stopped_calling(row: dict[str, Any]) -> bool:
    """Whether a bad session is one whose agent called to the end (it was stopped after so many steps, say).

    Only the last message's calls have no results, and a judge that saw what came of the session (not its measures) found it bad.
    """
    if (
        row["broken"] != "unanswered_call"
        or not row["messages"]
        or row["verdict"] != "unacceptable"
    ):
        return False  # "unanswered_call" is the last of `repair.KINDS`: any other damage is named before it
    seen = any(
        opinion["verdict"] == "unacceptable"
        for name, opinion in row["opinions"].items()
        if name != "measures"
    )
    return seen and row["damage"].get("unanswered_call") == len(
        row["messages"][-1].get("tool_calls") or ()
    )


def _own_decision(
    row: dict[str, Any], leak: str | None, required: Sequence[str], max_characters: int, own: bool
) -> Decision:
    """The first reason that a session carries in itself."""
    passed = {name: result["passed"] for name, result in row["measures"].items()}
    missed = [name for name in required if not passed.get(name)]
    failed = [name for name in missed if passed.get(name) is False]
    length = count_characters(row["messages"])
    tests: list[tuple[Any, Reason, str | None]] = [
        (row["archived"], Reason.ARCHIVED, None),
        (all(message["role"] == "system" for message in row["messages"]), Reason.EMPTY, None),
        (row["broken"] is not None and not stopped_calling(row), Reason.BROKEN, row["broken"]),
        (row["error"] is not None, Reason.INFRASTRUCTURE_ERROR, row["error"]),
        (row["attack_succeeded"], Reason.ATTACK_SUCCEEDED, None),
        (leak is not None, Reason.VERDICT_LEAK, leak),
        (max_characters and length > max_characters, Reason.TOO_LONG, str(length)),
        (own, Reason.SERVED_MODEL, row.get("model_id")),
        (row["verdict"] is None, Reason.UNJUDGED, None),
        (
            row["verdict_by"] == "measures",
            Reason.MEASURE,
            row.get("verdict_name"),
        ),  # measures alone make no example, good or bad
        (row["verdict"] != "acceptable", Reason.UNACCEPTABLE, None),
        (failed, Reason.MEASURE, next(iter(failed), None)),
        (missed, Reason.UNMEASURED, next(iter(missed), None)),
    ]
    reason, detail = next(
        ((reason, detail) for holds, reason, detail in tests if holds), (None, None)
    )
    return Decision(row["session_id"], reason, detail, missed)


def _drop_duplicates(all_: Decisions) -> None:
    usable = np.flatnonzero(all_.having(Use.POSITIVE, Use.NEGATIVE))
    standing = (
        all_.rank,
        all_.times,
        all_.having(Use.NEGATIVE),
        PERSON - all_.authority,
    )  # the last decides first
    usable = usable[np.lexsort([each[usable] for each in standing])]
    _, first, content = np.unique(all_.contents[usable], return_index=True, return_inverse=True)
    original = usable[first[content]]
    copies = original != usable
    all_.drop(usable[copies], Reason.DUPLICATE)
    all_.duplicate_of[usable[copies]] = original[copies]


def _drop_bad_beginnings(all_: Decisions, by: int) -> None:
    """Drop positives of less authority of which a judge of this authority judged a beginning, the longest that one did, to be bad."""
    seen = np.flatnonzero(
        (all_.authority == by) & all_.having(Use.POSITIVE, Use.NEGATIVE) & (np.diff(all_.until) > 0)
    )
    seen = seen[np.argsort(-all_.rank[seen])]
    hashes, first = np.unique(all_.hashes[all_.until[seen + 1] - 1], return_index=True)
    owner = np.repeat(np.arange(len(all_), dtype=np.int32), np.diff(all_.until))
    found = np.flatnonzero(
        (all_.having(Use.POSITIVE) & (all_.authority < by))[owner] & is_among(all_.hashes, hashes)
    )
    longest = found[np.diff(owner[found], append=len(all_)) > 0]
    judged = seen[first[np.searchsorted(hashes, all_.hashes[longest])]]
    bad = all_.having(Use.NEGATIVE)[judged]
    for place, of in zip(owner[longest[bad]], judged[bad], strict=True):
        all_.drop(place, Reason.BEGINS_BADLY, all_.ids[int(of)].as_py())


def _drop_beginnings(all_: Decisions) -> None:
    """Drop sessions that are the beginning of a longer one: of a positive one, or both being negative."""
    lengths = np.diff(all_.until)
    owner = np.repeat(np.arange(len(all_), dtype=np.int32), lengths)
    goes_on = np.ones(len(owner), bool)
    goes_on[all_.until[1:][lengths > 0] - 1] = False
    for longer_use, shorter_uses in (
        (Use.POSITIVE, (Use.POSITIVE, Use.NEGATIVE)),
        (Use.NEGATIVE, (Use.NEGATIVE,)),
    ):
        shorter = np.flatnonzero(all_.having(*shorter_uses) & (lengths > 0))
        ends = all_.hashes[all_.until[shorter + 1] - 1]
        found = np.flatnonzero(
            goes_on & all_.having(longer_use)[owner] & is_among(all_.hashes, ends)
        )
        whole: dict[int, list[int]] = {}
        for place in shorter[is_among(ends, all_.hashes[found])].tolist():
            whole.setdefault(int(all_.hashes[all_.until[place + 1] - 1]), []).append(place)
        for at in found[
            np.lexsort((found, all_.rank[owner[found]], -lengths[owner[found]]))
        ].tolist():
            if all_.reasons[owner[at]] == _CODES[longer_use] and (
                places := whole.pop(int(all_.hashes[at]), None)
            ):
                all_.drop(places, Reason.CONTINUED)
                all_.continued_by[places] = owner[at]


def _with_messages(row: dict[str, Any], messages: list[Message]) -> dict[str, Any]:
    """A session's row with other messages, and the identity of those."""
    row = row | {"messages": messages}
    return row | {"content_sha256": restore_session(row).hash_content()}
