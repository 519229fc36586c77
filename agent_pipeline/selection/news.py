"""What is new to train on since the last training: the table `trained_sessions` beside `curated_sessions`."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.sessions.tables import CURATED, required, stored_batches, to_rows
from agent_pipeline.storage.lake import Lake, StagedTable

TRAINED_TABLE = "trained_sessions"
TRAINED = pa.schema(
    [
        *map(CURATED.field, ("session_id", "content_sha256", "use")),
        *required(pa.string(), verdict_sha256="sha256 (hex) of verdict, use and turns: what training heeds of the judges"),
    ]
)


class Trained(NamedTuple):
    """A session with a verdict, as a training has it."""

    content_sha256: str
    use: str
    verdict_sha256: str


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


def stage_trained(lake: Lake, key: PartitionKey, rule: TrainingRule | None) -> StagedTable | Waiting:
    """Stage the sessions that a training can use, each with its verdict; by the `rule` of a night, only if it need not wait.

    Raises:
        DataError: a table was never made, or is damaged.
    """
    if rule and rule.ends and datetime.now(UTC) >= rule.ends:
        return Waiting("The night's minutes (night.minutes) are over")
    now = judged_sessions(lake, key)
    if rule and rule.needed:
        found = news(last_trained(lake, key), now, rule.uses)
        if found.waits_for(rule.needed):
            why = f"{found.sessions} of the {rule.needed} sessions (new_sessions) came, changed or went since the last training"
            return Waiting(why, found.sessions)
    return lake.stage(TRAINED_TABLE, key, table_of(now).to_batches(), TRAINED)


def judged_sessions(lake: Lake, key: PartitionKey) -> dict[str, Trained]:
    """The sessions of `curated_sessions` that have a verdict, by id. One without is new when it gets one.

    Raises:
        DataError: the table was never made, or is damaged.
    """
    columns = ["session_id", "content_sha256", "verdict", "use", "turns"]
    return {
        row["session_id"]: Trained(row["content_sha256"], row["use"], sha256_of([row["verdict"], row["use"], row["turns"]]))
        for row in to_rows(stored_batches(lake.open("curated_sessions", key), columns))
        if row["verdict"] is not None
    }


def last_trained(lake: Lake, key: PartitionKey) -> dict[str, Trained]:
    """The sessions of the last training, by id; none where there was none. Raises DataError where the table is damaged."""
    if not lake.has(TRAINED_TABLE, key):
        return {}
    table = lake.open(TRAINED_TABLE, key, TRAINED).read()
    return {row.pop("session_id"): Trained(**row) for row in table.to_pylist()}


def table_of(sessions: dict[str, Trained]) -> pa.Table:
    """The sessions as a table of `TRAINED`, in the order of their ids."""
    return pa.Table.from_pylist([{"session_id": name, **each._asdict()} for name, each in sorted(sessions.items())], schema=TRAINED)


def news(before: dict[str, Trained], now: dict[str, Trained], uses: Collection[str]) -> News:
    """What differs; `uses` are those that the agent's trainings have a use for (`positive`, `negative`)."""
    moved = verdicts = 0
    for name in before.keys() | now.keys():
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if old and new and old.content_sha256 == new.content_sha256:
            verdicts += 1
        else:
            moved += any(each is not None and each.use in uses for each in (old, new))
    return News(moved, verdicts)
