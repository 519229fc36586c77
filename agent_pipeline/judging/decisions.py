"""The decisions of curation on all sessions of a table, stored in columns.

A table may have a million sessions, so memory holds no object per session. The rules that lead to a
decision belong to `curation` and `repetitions`.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash


class SessionUse(StrEnum):
    """How training uses a session: as a good answer, as a bad answer, or not at all.

    A bad answer is the rejected side of a preference pair, or a KTO row with the label false.
    """

    POSITIVE = "positive"
    NEGATIVE = "negative"
    NEITHER = "neither"


class DropReason(StrEnum):
    """A reason why training does not use a session as a good answer.

    For `BROKEN`, `PRECONDITION`, `MEASURE` and `UNMEASURED`, the detail names the damage, the
    precondition or the measure. `UNMEASURED` means that a required measure could not be taken.
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
    PRECONDITION = "precondition"
    MEASURE = "measure"
    UNMEASURED = "unmeasured"
    DUPLICATE = "duplicate"
    CONTINUED = "continued"
    BEGINS_BADLY = "begins_badly"
    MAX_SESSIONS = "max_sessions"


@dataclass(frozen=True)
class CurationDecision:
    """The decision on one session, with the columns of `curated_sessions` as attributes.

    Attributes:
        session_id: The session.
        reason: The reason why the session is not a good answer, or `None` if it is a good answer.
        detail: The kind of damage, the precondition, the measure, the limit or the error.
        missed_measures: The required measures that failed or could not be taken.
        duplicate_of: The id of the kept session with the same content.
        continued_by: The id of the longer session that begins with this whole session.
    """

    session_id: str
    reason: DropReason | None = None
    detail: str | None = None
    missed_measures: Sequence[str] = ()
    duplicate_of: str | None = None
    continued_by: str | None = None

    @property
    def use(self) -> SessionUse:
        """Return the use of the session that curation permits."""
        if self.reason is None:
            return SessionUse.POSITIVE
        if self.reason is DropReason.UNACCEPTABLE:
            return SessionUse.NEGATIVE
        return SessionUse.NEITHER

    def make_columns(self) -> dict[str, object]:
        """Return the columns that `curated_sessions` adds to `judged_sessions`."""
        return {
            "kept": self.use is SessionUse.POSITIVE,
            "use": self.use.value,
            "drop_reason": self.reason.value if self.reason else None,
            "drop_detail": self.detail,
            "missed_measures": self.missed_measures,
            "duplicate_of": self.duplicate_of,
            "continued_by": self.continued_by,
        }


NOBODY, VERIFIER, PERSON = range(3)
"""Levels of a verdict's authority: no judge, a judge that verified the session, or a person."""


@dataclass(frozen=True)
class CurationCandidate:
    """A session with the facts that are needed to compare it with other sessions.

    Attributes:
        decision: The decision on the session alone.
        content_sha256: The hash of the session's content without the ids of calls.
        created_at: The time when the session began.
        authority: `PERSON`, `VERIFIER` or `NOBODY`, depending on who gave the verdict.
        beginnings: Hashes of the conversation up to each of its messages (`hash_beginnings`).
    """

    decision: CurationDecision
    content_sha256: str
    created_at: datetime | None = None
    authority: int = PERSON
    beginnings: Sequence[int] = ()

    @property
    def session_id(self) -> str:
        """Return the id of the session."""
        return self.decision.session_id


_REASONS = (None, *DropReason)
_CODES = {reason: code for code, reason in enumerate(_REASONS)}
USE_CODES = {
    SessionUse.POSITIVE: _CODES[None],
    SessionUse.NEGATIVE: _CODES[DropReason.UNACCEPTABLE],
}
"""Codes in `Decisions.reasons` for the sessions of each use."""


class Decisions(Sequence[CurationDecision]):
    """The decisions on all sessions, in the order of the input.

    Memory holds the bytes of each session id and 17 more bytes per session. While sessions are
    compared, memory also holds 53 bytes per session and 8 bytes per message. A session's index is
    its position in the input.

    Attributes:
        ids: (sessions,) The session ids.
        reasons: (sessions,) uint8, the code of each session's reason.
        duplicate_of: (sessions,) int32, the index of the kept session, or −1.
        continued_by: (sessions,) int32, the index of the longer session, or −1.
        authority: (sessions,) uint8, the authority of each verdict.
        times: (sessions,) Seconds since 1970, or infinity if the time is unknown.
        contents: (sessions,) int32, equal for sessions with equal content.
        rank: (sessions,) int64, the position of each session in the order of the ids.
        hashes: (beginnings,) uint64, the hashes of all sessions' beginnings, one session after
            another.
        hash_offsets: (sessions + 1,) int64, where the beginnings of each session start in `hashes`.
    """

    def __init__(self, candidates: Iterable[CurationCandidate]) -> None:
        ids, id_offsets = bytearray(), array("q", [0])
        reasons, authority, contents = bytearray(), bytearray(), bytearray()
        times = array("d")
        hashes, hash_offsets = array("Q"), array("q", [0])
        self._notes: dict[int, tuple[str | None, Sequence[str]]] = {}
        """The detail and the missed measures, by session index, for sessions that have a detail or
        missed measures.
        """
        equal_notes: dict[Any, Any] = {}  # many sessions share one note
        for session_index, candidate in enumerate(candidates):
            decision = candidate.decision
            ids += decision.session_id.encode()
            id_offsets.append(len(ids))
            reasons.append(_CODES[decision.reason])
            authority.append(candidate.authority)
            contents += xxhash.xxh3_128_digest(candidate.content_sha256.encode())
            times.append(candidate.created_at.timestamp() if candidate.created_at else inf)
            if decision.use is not SessionUse.NEITHER:
                hashes.extend(candidate.beginnings)
            hash_offsets.append(len(hashes))
            if decision.detail or decision.missed_measures:
                note = (decision.detail, tuple(decision.missed_measures))
                self._notes[session_index] = equal_notes.setdefault(note, note)
        count = len(reasons)
        id_buffers = [None, pa.py_buffer(id_offsets), pa.py_buffer(ids)]
        self.ids = pa.Array.from_buffers(pa.large_string(), count, id_buffers)
        self.reasons = np.frombuffer(reasons, np.uint8)
        self.authority = np.frombuffer(authority, np.uint8)
        self.times = np.frombuffer(times)
        self.hashes = np.frombuffer(hashes, np.uint64)
        self.hash_offsets = np.frombuffer(hash_offsets, np.int64)
        content_hashes = pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(contents)])
        self.contents = content_hashes.dictionary_encode().indices.to_numpy()
        self.rank = np.empty(count, np.int64)
        self.rank[pc.sort_indices(self.ids).to_numpy()] = np.arange(count)
        self.duplicate_of = np.full(count, -1, np.int32)
        self.continued_by = np.full(count, -1, np.int32)

    def __len__(self) -> int:
        return len(self.reasons)

    def __getitem__(self, index: Any) -> Any:
        session_index = range(len(self))[index]
        detail, missed_measures = self._notes.get(session_index, (None, ()))
        return CurationDecision(
            session_id=self.ids[session_index].as_py(),
            reason=_REASONS[self.reasons[session_index]],
            detail=detail,
            missed_measures=missed_measures,
            duplicate_of=self._name_session(self.duplicate_of[session_index]),
            continued_by=self._name_session(self.continued_by[session_index]),
        )

    def _name_session(self, session_index: int) -> str | None:
        if session_index < 0:
            return None
        session_id: str = self.ids[int(session_index)].as_py()
        return session_id

    def has_use(self, *uses: SessionUse) -> np.ndarray:
        """Return which sessions currently have one of the given uses, as (sessions,) bool."""
        return np.isin(self.reasons, [USE_CODES[use] for use in uses])

    def drop(self, sessions: Any, reason: DropReason, detail: str | None = None) -> None:
        """Record that some sessions are used neither as good nor as bad answers.

        Args:
            sessions: The index of a session, or an array of indices.
            reason: The reason why the sessions are dropped.
            detail: The detail of the reason.
        """
        self.reasons[sessions] = _CODES[reason]
        if detail is not None:
            self._notes |= dict.fromkeys(np.atleast_1d(sessions).tolist(), (detail, ()))

    def count_beginnings(self) -> np.ndarray:
        """Return the number of beginnings that each session has, as (sessions,) int64."""
        return np.diff(self.hash_offsets)

    def find_owners(self) -> np.ndarray:
        """Return the index of the session that each beginning is from, as (beginnings,) int32."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.count_beginnings())

    def hash_whole(self, sessions: np.ndarray) -> np.ndarray:
        """Return the hash of the whole conversation for each session that has beginnings."""
        hashes: np.ndarray = self.hashes[self.hash_offsets[sessions + 1] - 1]
        return hashes

    def forget_comparisons(self) -> None:
        """Free the columns that are needed only to compare sessions."""
        del self.authority, self.times, self.contents, self.rank
        del self.hashes, self.hash_offsets
