"""The counts of who judged a candidate's training sessions and the sessions that decide on it.

Only a model whose training sessions were all verified may promote itself (`approval`).
"""

from collections import Counter
from collections.abc import Sequence

from agent_pipeline.datasets.verdicts import UNKNOWN_JUDGE, VerdictCounts, count_verdicts
from agent_pipeline.judging.decisions import SessionUse
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.tables import DATASET
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.chain import find_trained_adapters
from agent_pipeline.training.report import TrainingReport, read_step_report

UNVERIFIED = "unverified"
"""The judge of a session that nobody judged."""


def count_training_verdicts(lake: Lake, key: PartitionKey, export: Artifact) -> VerdictCounts:
    """Count the verdicts on an export's training sessions, by who gave them.

    The report of the last training run in the chain has the counts of all training runs. If an
    older version wrote the report, the sessions are looked up in the current tables. A session that
    is not in the tables counts as `unknown`.

    Returns:
        The counts. They are empty if the export's training sessions are not known.

    Raises:
        DataError: A table is damaged.
    """
    adapters = find_trained_adapters(lake, key, export.manifest["made_from"]["adapter"])
    if adapters:
        report = read_step_report(adapters[-1])
        if isinstance(report, TrainingReport) and report.verdicts:
            return report.verdicts
    judges_by_session = _find_judges(lake, key, adapters)
    return count_verdicts(Counter(judges_by_session.values()))


def _find_judges(lake: Lake, key: PartitionKey, adapters: Sequence[Artifact]) -> dict[str, str]:
    """Return who judged each training session, from the current table of curated sessions."""
    sessions = {
        session
        for adapter in adapters
        for session in adapter.manifest["made_from"].get("sessions", ())
    }
    judges_by_session = dict.fromkeys(sessions, UNKNOWN_JUDGE)
    if not sessions or not lake.has("curated_sessions", key):
        return judges_by_session
    file = lake.open("curated_sessions", key)
    columns = ["session_id", "verdict_by", "use"]
    if not set(columns) <= set(file.schema_arrow.names):
        return judges_by_session
    for row in file.read(columns).to_pylist():
        if row["session_id"] in judges_by_session:
            # Older versions accepted a session as good because of its measures alone.
            by_measures = row["verdict_by"] == "measures" and row["use"] == SessionUse.POSITIVE
            judge = UNVERIFIED if by_measures else row["verdict_by"] or UNKNOWN_JUDGE
            judges_by_session[row["session_id"]] = judge
    return judges_by_session


def is_verified(verdicts: VerdictCounts) -> bool:
    """Return whether somebody verified every session.

    The result is false if there are no verdicts, or if the origin of a verdict is missing or
    unknown.
    """
    judges = verdicts["by"]
    return (
        bool(verdicts["verdicts"]) and not judges.get(UNVERIFIED) and not judges.get(UNKNOWN_JUDGE)
    )


def count_unverified_tasks(lake: Lake, key: PartitionKey) -> int:
    """Count the tasks of the split `select` that have a session that nobody verified.

    Raises:
        DataError: The table is damaged.
    """
    if not lake.has(DATASET, key):
        return 0
    file = lake.open(DATASET, key)
    columns = ["split", "task_key", "verdict_by"]
    if not set(columns) <= set(file.schema_arrow.names):  # a table of an older version
        return 0
    unverified_tasks = {
        row["task_key"]
        for row in file.read(columns).to_pylist()
        if row["split"] == "select" and row["verdict_by"] == UNVERIFIED
    }
    return len(unverified_tasks)
