"""What is new to train on since the last training: the table `trained_sessions` beside `curated_sessions`."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

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
            verdict_sha256="sha256 (hex) of verdict, use and turns: what training heeds of the judges",
        ),
    ]
)


class News(NamedTuple):
    """Sessions that may be trained on and came, changed or went; and sessions of the same content that are judged otherwise."""

    sessions: int
    verdicts: int

    def waits_for(self, needed: int) -> bool:
        """Whether a training waits for more: a changed verdict never waits."""
        return not self.verdicts and self.sessions < needed


class TrainingRule(NamedTuple):
    """What decides whether a night trains an agent: the `use` of the sessions that it trains on, how many new ones it waits for (0: for
    none), and when it ends."""

    uses: Collection[str]
    needed: int
    ends: datetime | None = None


class Waiting(NamedTuple):
    """Why a night does not train an agent, and how many of the sessions that it waits for came; `None`: the night is over."""

    why: str
    sessions: int | None = None


def stage_trained(
    lake: Lake, key: PartitionKey, rule: TrainingRule | None
) -> StagedTable | Waiting:
    """Stage the sessions that a training can use, each with its verdict; by the `rule` of a night, only if it need not wait.

    Raises:
        DataError: a table was never made, or is damaged.
    """
    if rule and rule.ends and datetime.now(UTC) >= rule.ends:
        return Waiting("The night's minutes (night.minutes) are over")
    now = judged_sessions(lake, key)
    if rule and rule.needed:
        before = (
            lake.open(TRAINED_TABLE, key, TRAINED).read()
            if lake.has(TRAINED_TABLE, key)
            else pa.Table.from_batches([], TRAINED)
        )
        found = news(before, now, rule.uses)
        if found.waits_for(rule.needed):
            why = f"{found.sessions} of the {rule.needed} sessions (new_sessions) came, changed or went since the last training"
            return Waiting(why, found.sessions)
    return lake.stage(TRAINED_TABLE, key, now.to_batches(), TRAINED)


def judged_sessions(lake: Lake, key: PartitionKey) -> pa.Table:
    """The sessions of `curated_sessions` that have a verdict, by id. One without is new when it gets one.

    Raises:
        DataError: the table was never made, or is damaged.
    """
    columns = ["session_id", "content_sha256", "verdict", "verdict_by", "use", "turns"]
    rows = (
        {name: row[name] for name in TRAINED.names[:-1]} | {"verdict_sha256": _verdict_sha256(row)}
        for row in to_rows(read_batches(lake.open("curated_sessions", key), columns))
        if row["verdict"] is not None
    )
    table = pa.Table.from_batches(to_batches(rows, TRAINED, MAX_ROW_GROUP), TRAINED)
    return table if is_sorted(table["session_id"]) else table.sort_by("session_id")


def _verdict_sha256(row: Mapping[str, Any]) -> str:
    """The hash of what training heeds of the judges: a session that somebody verifies is news, although its verdict stays."""
    mark = ["unverified"] if row["verdict_by"] == "unverified" else []
    return hash_json([row["verdict"], row["use"], row["turns"], *mark])


def news(before: pa.Table, now: pa.Table, uses: Collection[str]) -> News:
    """What differs between two tables of `TRAINED`; `uses` are those that the agent's trainings have a use for (`positive`, `negative`)."""
    useful = make_column(list(uses), TRAINED.field("use"))
    at = pc.index_in(now["session_id"], before["session_id"])  # null: the session is new
    same, same_use, same_verdict = (
        pc.fill_null(pc.equal(now[name], before[name].take(at)), make_scalar(False, pa.bool_()))
        for name in ("content_sha256", "use", "verdict_sha256")
    )
    moved = pc.and_not(
        pc.or_(pc.is_in(now["use"], useful), pc.is_in(before["use"].take(at), useful)), same
    )
    gone = pc.and_not(
        pc.is_in(before["use"], useful), pc.is_in(before["session_id"], now["session_id"])
    )
    turned = pc.and_not(same, pc.and_(same_use, same_verdict))
    came_or_went, verdicts = (
        sum(pc.sum(each, min_count=0).as_py() for each in flags)
        for flags in ((moved, gone), (turned,))
    )
    return News(came_or_went, verdicts)
