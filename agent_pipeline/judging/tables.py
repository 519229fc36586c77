"""The tables `judged_sessions` and `curated_sessions`, each made by one function of the table before it."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.drift import Drift, measure_drift
from agent_pipeline.ingestion.volume import MIN_COUNT_TO_COMPARE, VolumeError
from agent_pipeline.judging.client import Limits
from agent_pipeline.judging.curation import Bounds, Curation, curate_rows
from agent_pipeline.judging.labels import Labels, is_about
from agent_pipeline.judging.llm import LlmJudge
from agent_pipeline.judging.measures import parse_measures
from agent_pipeline.judging.panel import JudgingOptions, Panel
from agent_pipeline.judging.policy import Judged
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import Redactor
from agent_pipeline.sessions.tables import (
    CURATED,
    JUDGED,
    make_column,
    read_batches,
    restore_session,
    to_batches,
    to_rows,
)
from agent_pipeline.storage.lake import Lake, StagedTable

REASONS_IN_MEMORY = 1 << 14
"""Most reasons of measures are the same for many sessions."""


def judge(
    lake: Lake,
    key: PartitionKey,
    options: JudgingOptions,
    labels: Labels,
    redactor: Redactor,
    open_judge: Callable[[Limits], LlmJudge],
) -> tuple[StagedTable, Panel]:
    """Judge every session of the table `sessions`; `open_judge` gives the language model, where it is among those who decide.

    What is private in the reasons of people, measures and the language model becomes pseudonyms, as in sessions.

    Returns the table, not yet in its place, and the panel, which counted what its judges said.

    Raises:
        DataError: there is no such table, or it is damaged.
        VolumeError: most of what people said at the last run is gone.
        SettingsError: an option is wrong, or the language model's endpoint cannot be used at all.
    """
    panel = Panel.of(options, labels)
    _check_labels(lake, key, labels, options.smallest_share)
    labels.leave_out_shared(_shared(lake, key, labels))
    labels.redact(redactor)
    panel.redact = lru_cache(REASONS_IN_MEMORY)(redactor.redact_text)
    with open_judge(options.limits) if panel.policy.has("llm") else nullcontext() as panel.llm:
        return judge_sessions(lake, key, panel), panel


def _check_labels(lake: Lake, key: PartitionKey, labels: Labels, smallest_share: float) -> None:
    """Compare the labels with those of the last table, of the sessions that are still there; raises VolumeError."""
    if not (smallest_share and lake.has("judged_sessions", key)):
        return
    try:
        last = to_rows(read_batches(lake.open("judged_sessions", key), ["session_id", "opinions"]))
        labelled = [row["session_id"] for row in last if "label" in row["opinions"]]
    except (DataError, pa.ArrowException, OSError):  # a damaged table is replaced, not compared
        return
    labelled = _present(lake, key, labelled)
    left = sum(session_id in labels.by_id for session_id in labelled)
    if len(labelled) >= MIN_COUNT_TO_COMPARE and left < smallest_share * len(labelled):
        raise VolumeError("judged_sessions", key, "labels", len(labelled), left)


def _shared(lake: Lake, key: PartitionKey, labels: Labels) -> dict[str, PartitionKey]:
    """The sessions whose labels may as well be about another agent's session of that id, by that agent, as far as the lake has them."""
    shared: dict[str, PartitionKey] = {}
    named = _present(lake, key, list(labels.whose)) if labels.whose else []
    for other in lake.partitions("tables", "sessions") if named else ():
        meant = [session_id for session_id in named if is_about(*labels.whose[session_id], other)]
        if other != key and meant:
            shared |= dict.fromkeys(_present(lake, other, meant), other)
    return shared


def _present(lake: Lake, key: PartitionKey, session_ids: list[str]) -> list[str]:
    """Those of the ids that a session of the lake's has; none where its table is damaged, which its own run replaces."""
    named = make_column(session_ids, pa.field("session_id", pa.string()))
    try:
        return named.filter(
            pc.is_in(named, lake.open("sessions", key).read(["session_id"])["session_id"])
        ).to_pylist()
    except (DataError, pa.ArrowException, OSError):
        return []


def judge_sessions(lake: Lake, key: PartitionKey, panel: Panel) -> StagedTable:
    """Write the verdicts of a panel on every session of the table `sessions`. Raises as `judge`."""
    judged = panel.judge(
        (row, restore_session(row)) for row in to_rows(read_batches(lake.open("sessions", key)))
    )
    return lake.stage(
        "judged_sessions",
        key,
        to_batches((row | verdict_columns(each) for row, each in judged), JUDGED),
        JUDGED,
    )


def verdict_columns(judged: Judged) -> dict[str, Any]:
    """The columns that `judged_sessions` adds."""
    return judged._asdict() | {
        "measures": {name: result._asdict() for name, result in judged.measures.items()},
        "opinions": {name: opinion._asdict() for name, opinion in judged.opinions.items()},
        "turns": [turn._asdict() for turn in judged.turns],
    }


def curate_sessions(
    lake: Lake,
    key: PartitionKey,
    required_measures: list[str],
    bounds: Bounds,
    verdict_leaks: list[str],
    is_own: Callable[[dict[str, Any]], bool] | None = None,
    keep_own: bool = False,
) -> tuple[StagedTable, Curation, Drift]:
    """Decide what every session of the table `judged_sessions` may be used for, and write the decisions.

    `is_own` and `keep_own` are those of `curate_rows`.

    Returns the table, not yet in its place, the decisions, and how the new sessions' verdicts and reasons differ from the last table's.

    Raises:
        DataError: there is no such table, or it is damaged or an older version's.
        SettingsError: a required measure or a pattern cannot be read.
    """
    required = [each.name for each in parse_measures(required_measures)]  # as the table spells them
    judged = lake.open(
        "judged_sessions", key, JUDGED
    )  # held open: both readings are of the same file, whatever takes its place
    curation, rows = curate_rows(
        lambda: to_rows(read_batches(judged)), required, bounds, verdict_leaks, is_own, keep_own
    )
    table = lake.stage("curated_sessions", key, to_batches(rows, CURATED), CURATED)
    return table, curation, measure_drift(lake, "curated_sessions", key, table)
