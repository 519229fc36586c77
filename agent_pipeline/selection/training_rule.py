"""The rule that decides whether a night trains an agent, and the table `trained_sessions`.

The rule compares the sessions that can be trained now with the sessions of the last training run.
The choice of the training rows belongs to `coresets`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sessions.tables import (
    CURATED,
    define_required,
    is_sorted,
    make_column,
    make_scalar,
    read_batches,
    to_batches,
    to_rows,
)
from agent_pipeline.storage.lake import Lake, StagedTable
from agent_pipeline.storage.tables import MAX_ROW_GROUP

TRAINED_TABLE = "trained_sessions"
TRAINED = pa.schema(
    [
        *map(CURATED.field, ("session_id", "content_sha256", "use")),
        *define_required(
            pa.string(),
            verdict_sha256=(
                "sha256 (hex) of the verdict, the use and the facts about turns; if it changes, "
                "the session counts as changed"
            ),
        ),
    ]
)


@dataclass(frozen=True)
class SessionChanges:
    """The changes in an agent's sessions between two training runs.

    Attributes:
        sessions: The number of trainable sessions that were added, changed or removed.
        verdicts: The number of sessions with the same content but a different verdict.
    """

    sessions: int
    verdicts: int

    def waits_for(self, needed: int) -> bool:
        """Return whether a training run has to wait for more sessions.

        If a verdict changed, the run does not wait.
        """
        return not self.verdicts and self.sessions < needed


@dataclass(frozen=True)
class TrainingRule:
    """The rule that decides whether a night trains an agent.

    Attributes:
        uses: The `use` of the sessions that the night trains.
        needed: The number of new sessions that are required for training. 0 means that the night
            does not wait.
        ends: The time at which the night ends, or None.
        changed_requests: What the newest sessions ask that the agent was not trained for. If
            something changed, a single new session is enough.
    """

    uses: Collection[str]
    needed: int
    ends: datetime | None = None
    changed_requests: Sequence[str] = ()


@dataclass(frozen=True)
class Waiting:
    """The reason why a night does not train an agent.

    Attributes:
        why: The reason.
        sessions: The number of new sessions so far, or None if the night is over.
    """

    why: str
    sessions: int | None = None


def stage_trained_sessions(
    lake: Lake, key: PartitionKey, rule: TrainingRule | None
) -> StagedTable | Waiting:
    """Stage a table of the sessions that a training run can use, each with its verdict.

    Args:
        lake: The lake.
        key: The agent.
        rule: The rule of a night. None means that this is not a nightly run.

    Returns:
        The staged table, or the reason why the night does not train the agent.

    Raises:
        DataError: a table does not exist, or is damaged.
    """
    if rule and rule.ends and datetime.now(UTC) >= rule.ends:
        return Waiting("The time limit of the night (night.minutes) is over")
    now = read_judged_sessions(lake, key)
    if rule and rule.needed:
        before = pa.Table.from_batches([], TRAINED)
        if lake.has(TRAINED_TABLE, key):
            before = lake.open(TRAINED_TABLE, key, TRAINED).read()
        changes = compare_sessions(before, now, rule.uses)
        needed = min(rule.needed, 1) if rule.changed_requests else rule.needed
        if changes.waits_for(needed):
            why = (
                f"Since the last training, {changes.sessions} sessions are new, changed or gone, "
                f"and {rule.needed} are needed (new_sessions)"
            )
            return Waiting(why, changes.sessions)
    return lake.stage(TRAINED_TABLE, key, now.to_batches(), TRAINED)


def read_judged_sessions(lake: Lake, key: PartitionKey) -> pa.Table:
    """Return the sessions of `curated_sessions` that have a verdict, ordered by id.

    A session without a verdict counts as new when it gets one.

    Raises:
        DataError: the table does not exist, or is damaged.
    """
    columns = ["session_id", "content_sha256", "verdict", "verdict_by", "use", "turns"]
    rows = (
        {name: row[name] for name in TRAINED.names[:-1]} | {"verdict_sha256": _hash_verdict(row)}
        for row in to_rows(read_batches(lake.open("curated_sessions", key), columns))
        if row["verdict"] is not None
    )
    table = pa.Table.from_batches(to_batches(rows, TRAINED, MAX_ROW_GROUP), TRAINED)
    return table if is_sorted(table["session_id"]) else table.sort_by("session_id")


def _hash_verdict(row: Mapping[str, object]) -> str:
    """Return a hash of those results of the judges on which training depends.

    If a session is verified later, its hash changes although its verdict stays.
    """
    mark = ["unverified"] if row["verdict_by"] == "unverified" else []
    return hash_json([row["verdict"], row["use"], row["turns"], *mark])


def compare_sessions(before: pa.Table, now: pa.Table, uses: Collection[str]) -> SessionChanges:
    """Compare two tables that have the schema `TRAINED`.

    Args:
        before: The sessions of the last training run.
        now: The current sessions.
        uses: The `use` of the sessions that are trained (`positive`, `negative`).
    """
    useful = make_column(list(uses), TRAINED.field("use"))
    indices = pc.index_in(now["session_id"], before["session_id"])  # null if the session is new

    def is_same(name: str) -> pa.ChunkedArray:
        equal = pc.equal(now[name], before[name].take(indices))
        return pc.fill_null(equal, make_scalar(False, pa.bool_()))

    has_same_content = is_same("content_sha256")
    was_useful = pc.is_in(before["use"].take(indices), useful)
    is_or_was_useful = pc.or_(pc.is_in(now["use"], useful), was_useful)
    came_or_changed = pc.and_not(is_or_was_useful, has_same_content)
    went = pc.and_not(
        pc.is_in(before["use"], useful), pc.is_in(before["session_id"], now["session_id"])
    )
    has_same_verdict = pc.and_(is_same("use"), is_same("verdict_sha256"))
    has_other_verdict = pc.and_not(has_same_content, has_same_verdict)
    return SessionChanges(
        _count_true(came_or_changed) + _count_true(went), _count_true(has_other_verdict)
    )


def _count_true(flags: pa.ChunkedArray) -> int:
    return int(pc.sum(flags, min_count=0).as_py())
