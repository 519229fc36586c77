"""The list of an agent's sessions in the lake, with filters.

What happened to one session belongs to `explain`.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from agent_pipeline.errors import SettingsError
from agent_pipeline.json_types import JsonObject
from agent_pipeline.keys import PartitionKey
from agent_pipeline.options import did_you_mean
from agent_pipeline.sessions.tables import read_batches, to_rows
from agent_pipeline.storage.lake import Lake

_COLUMNS = ("session_id", "task_key", "created_at", "source", "damage")
_STAGES = {
    "curated_sessions": ("verdict", "verdict_by", "use", "drop_reason", "drop_detail"),
    "judged_sessions": ("verdict", "verdict_by"),
    "sessions": (),
}
"""The tables that contain every session, the last stage first, with their additional columns."""
NO_VERDICT = "none"
"""Value of the filter for sessions without a verdict."""

VERDICTS = ("acceptable", "unacceptable", NO_VERDICT)
"""Values of the filter by verdict."""


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A session of an agent.

    Attributes:
        session_id: The session's id.
        partition: The agent's partition.
        created_at: The time (UTC) at which the session began; null if it is not known.
        source: The reader that read the session.
        task_key: The task of the session.
        verdict: `acceptable` or `unacceptable`; null if nobody judged the session.
        verdict_by: The judge.
        use: `positive`, `negative` or `neither`; null before curation.
        drop_reason: The reason why the session is not a training example.
        drop_detail: The kind of damage, the measure, the limit or the error.
        damage: The damage in the record: counts by kind.
    """

    session_id: str
    partition: str
    created_at: str | None
    source: str
    task_key: str
    verdict: str | None = None
    verdict_by: str | None = None
    use: str | None = None
    drop_reason: str | None = None
    drop_detail: str | None = None
    damage: dict[str, int] = {}


class SessionList(msgspec.Struct, frozen=True):
    """The sessions that match a filter.

    Attributes:
        matching: The number of sessions that match.
        total: The number of sessions of the agents.
        sessions: The newest of the matching sessions, up to the limit.
    """

    matching: int
    total: int
    sessions: list[SessionSummary]


@dataclass(frozen=True)
class SessionFilter:
    """The sessions that a list contains. An empty text stands for every session.

    Attributes:
        dropped: The reason why the session is not a training example.
        damage: A kind of damage.
        verdict: The verdict, or `none` for sessions without a verdict.
    """

    dropped: str = ""
    damage: str = ""
    verdict: str = ""

    def accepts(self, session: SessionSummary) -> bool:
        """Return whether a session is in the list."""
        return (
            self.dropped in ("", session.drop_reason)
            and (not self.damage or self.damage in session.damage)
            and self.verdict in ("", session.verdict or NO_VERDICT)
        )


@dataclass
class _Counts:
    """The values of all sessions that were read, by which an unknown filter is found."""

    total: int = 0
    matching: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    damage: Counter[str] = field(default_factory=Counter)


def list_sessions(
    lake: Lake, keys: Sequence[PartitionKey], wanted: SessionFilter, limit: int
) -> SessionList:
    """Return the newest sessions that match a filter. Memory holds only the listed sessions.

    Args:
        lake: The lake.
        keys: The agents.
        wanted: The filter.
        limit: The largest number of sessions to list.

    Raises:
        SettingsError: The filter has an unknown verdict, or no session has the reason or the damage
            of the filter.
        DamageError: A table is damaged.
    """
    if wanted.verdict and wanted.verdict not in VERDICTS:
        raise SettingsError(
            f"There is no verdict {wanted.verdict!r}{did_you_mean(wanted.verdict, VERDICTS)}"
        )
    counts = _Counts()
    newest = heapq.nlargest(
        limit,
        _read_matching(lake, keys, wanted, counts),
        key=lambda session: (session.created_at or "", session.session_id),
    )
    for name, value, known in (
        ("drop reason", wanted.dropped, counts.dropped),
        ("damage", wanted.damage, counts.damage),
    ):
        if value and value not in known:
            others = did_you_mean(value, known) if known else ", because no session has one."
            raise SettingsError(f"No session has the {name} {value!r}{others}")
    return SessionList(counts.matching, counts.total, newest)


def _read_matching(
    lake: Lake, keys: Sequence[PartitionKey], wanted: SessionFilter, counts: _Counts
) -> Iterator[SessionSummary]:
    """Yield the sessions that match the filters.

    `counts` counts all sessions, by their reason to be dropped and by their damage.
    """
    for key in keys:
        stage = next((asset for asset in _STAGES if lake.has(asset, key)), None)
        if stage is None:
            continue
        columns = [*_COLUMNS, *_STAGES[stage]]
        for row in to_rows(read_batches(lake.open(stage, key), columns)):
            session = _summarize(row, key)
            counts.total += 1
            if session.drop_reason:
                counts.dropped[session.drop_reason] += 1
            counts.damage.update(session.damage.keys())
            if wanted.accepts(session):
                counts.matching += 1
                yield session


def _summarize(row: JsonObject, key: PartitionKey) -> SessionSummary:
    """Return a row of a table as a summary."""
    created = row["created_at"]
    return SessionSummary(
        session_id=row["session_id"],
        partition=str(key),
        created_at=created.isoformat() if created else None,
        source=row["source"],
        task_key=row["task_key"],
        verdict=row.get("verdict"),
        verdict_by=row.get("verdict_by"),
        use=row.get("use"),
        drop_reason=row.get("drop_reason"),
        drop_detail=row.get("drop_detail"),
        damage={name: count for name, count in row["damage"].items() if count},
    )
