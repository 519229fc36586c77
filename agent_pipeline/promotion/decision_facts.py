"""Collection of a decision's inputs in addition to the scores, such as verdicts and newer tasks."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.verdicts import VerdictCounts
from agent_pipeline.ingestion.volume import MIN_COUNT_TO_COMPARE
from agent_pipeline.judging.decisions import SessionUse
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.comparison import Comparison
from agent_pipeline.promotion.decision import DecisionFacts, VerifiedVerdicts
from agent_pipeline.promotion.verified_verdicts import (
    count_unverified_tasks,
    is_verified,
)
from agent_pipeline.reports.episode_report import (
    find_fewer_tasks,
    find_unended,
    read_episode_report,
)
from agent_pipeline.selection.tables import DATASET, read_dataset_rows
from agent_pipeline.sessions.tables import read_batches
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.chain import find_trained_adapters

USES = pa.schema([("session_id", pa.string()), ("use", pa.string())])


def collect_facts(
    lake: Lake,
    key: PartitionKey,
    champion: Artifact | None,
    compared: Comparison,
    verdicts: VerdictCounts,
) -> DecisionFacts:
    """Return all inputs of the decision rules in addition to the scores.

    The number of earlier decisions is not included. This number is counted when the ledger is
    written.

    Args:
        lake: The lake.
        key: The partition.
        champion: The champion, if there is one.
        compared: The artifacts of both models.
        verdicts: The verdicts on the candidate's training sessions.

    Raises:
        DataError: A table is damaged, or an older version wrote it.
    """
    facts = collect_facts_since(lake, key, champion)
    episodes = read_episode_report(compared.episodes[0]) if compared.episodes[0] else None
    unverified = None
    if not is_verified(verdicts):
        unverified = VerifiedVerdicts(verdicts["verified"], verdicts["verdicts"])
    return msgspec.structs.replace(
        facts,
        sanity_answers=compared.sanity_answers,
        worse_than_base=find_fewer_tasks(episodes) if episodes else (),
        without_end=find_unended(episodes) if episodes else (),
        unverified=unverified,
        unverified_tasks=count_unverified_tasks(lake, key),
    )


def collect_facts_since(lake: Lake, key: PartitionKey, champion: Artifact | None) -> DecisionFacts:
    """Return the changed verdicts and the newer tasks since a champion's adapter was trained.

    Raises:
        DataError: A table is damaged, or an older version wrote it.
    """
    if champion is None:
        return DecisionFacts(is_first_champion=True)
    adapters = find_trained_adapters(lake, key, champion.manifest["made_from"]["adapter"])
    return DecisionFacts(
        share_turned_bad=_share_turned_bad(lake, key, adapters),
        newer_tasks=_find_newer_tasks(lake, key, adapters),
    )


def _share_turned_bad(lake: Lake, key: PartitionKey, adapters: Sequence[Artifact]) -> float:
    """Return the share of the training sessions whose verdict is now bad.

    Only sessions that are still in the store count. With fewer than `MIN_COUNT_TO_COMPARE` such
    sessions, the share is 0.
    """
    sessions = {
        session
        for adapter in adapters
        for session in adapter.manifest["made_from"].get("sessions", ())
    }
    session_ids = pa.array(sessions, pa.string())
    uses: Counter[str] = Counter()
    if len(session_ids) and lake.has("curated_sessions", key):
        for batch in read_batches(lake.open("curated_sessions", key, USES), USES.names):
            in_training = batch.filter(pc.is_in(batch["session_id"], session_ids))
            uses.update(in_training["use"].to_pylist())
    return uses[SessionUse.NEGATIVE] / uses.total() if uses.total() >= MIN_COUNT_TO_COMPARE else 0.0


def _find_newer_tasks(lake: Lake, key: PartitionKey, adapters: Sequence[Artifact]) -> set[str]:
    """Return the tasks of the split `select` whose sessions all began after the last training run.

    Sessions without a time count as older.
    """
    trained_at = [
        entry.when
        for adapter in adapters[-1:]
        for entry in lake.history(adapter.asset, key)
        if entry.latest == adapter.identity and entry.when
    ]
    if not trained_at or not lake.has(DATASET, key):
        return set()
    trained = datetime.fromisoformat(min(trained_at))
    newer: set[str] = set()
    older: set[str] = set()
    for row in read_dataset_rows(lake, key, ("select",), columns=["task_key", "created_at"]):
        is_newer = row["created_at"] is not None and row["created_at"] > trained
        (newer if is_newer else older).add(row["task_key"])
    return newer - older
