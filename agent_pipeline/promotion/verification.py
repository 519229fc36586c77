"""Who judged the sessions that a candidate was trained on, and those that decide on it. A decision promotes only verified models."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from agent_pipeline.datasets.verdicts import UNKNOWN_JUDGE, count_verdicts
from agent_pipeline.judging.decisions import SessionUse
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.tables import DATASET
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.chain import find_trained_adapters

UNVERIFIED = "unverified"
"""The judge of a session that nobody judged."""


def verdicts_on_training(lake: Lake, key: PartitionKey, export: Artifact) -> dict[str, Any]:
    """Count the verdicts on the sessions that an export was trained on, by who gave them.

    The report of the last training of the chain has the counts of all its trainings. If an older version wrote it, the sessions are looked
    up in today's tables; a session that is not there counts as `unknown`.

    Returns:
        Counts as of `count_verdicts`; no verdicts if it is not known what the export was trained on.

    Raises:
        DataError: a table is damaged.
    """
    adapters = find_trained_adapters(lake, key, export.manifest["made_from"]["adapter"])
    if adapters and (counts := adapters[-1].manifest["report"].get("verdicts")):
        return dict(counts)
    sessions = {
        session
        for adapter in adapters
        for session in adapter.manifest["made_from"].get("sessions", ())
    }
    judges = dict.fromkeys(sessions, UNKNOWN_JUDGE)
    if sessions and lake.has("curated_sessions", key):
        file = lake.open("curated_sessions", key)
        wanted = ["session_id", "verdict_by", "use"]
        if set(wanted) <= set(file.schema_arrow.names):
            for session, judge, use in zip(*file.read(wanted).columns, strict=True):
                if (name := session.as_py()) in judges:
                    # Older versions let measures alone find a session good.
                    by_measures = judge.as_py() == "measures" and use.as_py() == SessionUse.POSITIVE
                    judges[name] = UNVERIFIED if by_measures else judge.as_py() or UNKNOWN_JUDGE
    return dict(count_verdicts(Counter(judges.values())))


def is_verified(verdicts: Mapping[str, Any]) -> bool:
    """Return whether somebody verified every session: there are verdicts, and none is by nobody or by somebody unknown."""
    return (
        bool(verdicts["verdicts"])
        and not verdicts["by"].get(UNVERIFIED)
        and not verdicts["by"].get(UNKNOWN_JUDGE)
    )


def unverified_held_out_tasks(lake: Lake, key: PartitionKey) -> int:
    """Count the tasks of the split `select` that have a session that nobody verified.

    Raises:
        DataError: the table is damaged.
    """
    if not lake.has(DATASET, key):
        return 0
    file = lake.open(DATASET, key)
    wanted = ["split", "task_key", "verdict_by"]
    if not set(wanted) <= set(file.schema_arrow.names):  # of an older version
        return 0
    rows = file.read(wanted).to_pylist()
    return len(
        {
            row["task_key"]
            for row in rows
            if row["split"] == "select" and row["verdict_by"] == UNVERIFIED
        }
    )
