"""The tables `judged_sessions` and `curated_sessions`. Each is derived from the table before it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.drift import Drift, measure_drift
from agent_pipeline.ingestion.volume import MIN_COUNT_TO_COMPARE, VolumeError
from agent_pipeline.judging.curation import Curation, CurationBounds, OwnSessions, curate_rows
from agent_pipeline.judging.free_opinions import ScoreScales
from agent_pipeline.judging.judge_checks import (
    JudgeCheck,
    SampledSession,
    check_judge,
    draw_number,
)
from agent_pipeline.judging.judging_run import JudgingRun
from agent_pipeline.judging.labels import Labels, is_about
from agent_pipeline.judging.llm_client import SpendLimits
from agent_pipeline.judging.llm_judge import LlmJudge
from agent_pipeline.judging.measures import parse_measures
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.preconditions import NO_PRECONDITIONS, Preconditions
from agent_pipeline.judging.rows import JudgedRow
from agent_pipeline.judging.verdict_policy import (
    JudgedSession,
    Opinion,
    VerdictPolicy,
    name_group,
)
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
"""Number of redacted reasons that are kept in memory, because many sessions have the same reason.
"""


@dataclass(frozen=True)
class CuratedTable:
    """The table `curated_sessions` before it is committed.

    Attributes:
        table: The staged table.
        curation: The decisions.
        drift: The differences between the verdicts and reasons of new sessions and of the last
            table.
    """

    table: StagedTable
    curation: Curation
    drift: Drift


def judge_partition(
    lake: Lake,
    key: PartitionKey,
    options: JudgingOptions,
    labels: Labels,
    redactor: Redactor,
    open_judge: Callable[[SpendLimits], LlmJudge],
    least_precision: float = 0.0,
) -> tuple[StagedTable, JudgingRun]:
    """Judge every session of a partition's table `sessions`.

    Private data in the reasons of people, measures and the language model is replaced by
    pseudonyms, as in sessions.

    Args:
        lake: The lake that has the table.
        key: The partition.
        options: The options of judging.
        labels: People's labels.
        redactor: Replaces private data.
        open_judge: Returns the language model. It is called only if the model may decide.
        least_precision: The lowest precision of a trusted machine judge. 0 trusts a language model
            without a check.

    Returns:
        The staged table, and the run with its counts.

    Raises:
        DataError: There is no such table, or the table is damaged.
        VolumeError: Most of the labels of the last run are missing.
        SettingsError: An option is wrong, or the language model's endpoint cannot be used at all.
    """
    run = JudgingRun.from_options(options, labels)
    _check_labels(lake, key, labels, options.smallest_share)
    labels.leave_out_shared(_find_shared(lake, key, labels))
    labels.redact(redactor)
    run.redact = lru_cache(REASONS_IN_MEMORY)(redactor.redact_text)
    run.scales = _measure_scales(lake, key)
    has_llm = run.policy.has_judge("llm")
    with open_judge(options.limits) if has_llm else nullcontext() as run.llm:
        if least_precision:
            _check_judges(lake, key, run, least_precision)
        return judge_sessions(lake, key, run), run


def _measure_scales(lake: Lake, key: PartitionKey) -> ScoreScales:
    """Return the scales of the scores in the table `sessions`."""
    rows = to_rows(read_batches(lake.open("sessions", key), ["score", "scores"]))
    return ScoreScales.measure((row["score"], row["scores"]) for row in rows)


def _check_judges(lake: Lake, key: PartitionKey, run: JudgingRun, least: float) -> None:
    """Check the machine judges of a run on the sessions that were drawn at random.

    The sessions are judged as if nobody had labelled them. The language model's answers are cached,
    so the run that follows does not pay for them again.

    Args:
        lake: The lake that has the table `sessions`.
        key: The partition.
        run: The run. Its checks are set.
        least: The lowest precision of a trusted judge.
    """
    groups = [name_group(group) for group in run.policy.machine_groups]
    sampled: list[SampledSession] = []
    if groups and run.labels.drawn_below:
        file = lake.open("sessions", key)
        drawn = _find_drawn(file, run.labels.drawn_below)
        probe = JudgingRun(
            run.measures,
            run.policy,
            Labels(),
            run.llm,
            redact=run.redact,
            checks=(),
            scales=run.scales,
        )
        rows = to_rows(
            batch.filter(pc.is_in(batch["session_id"], drawn)) for batch in read_batches(file)
        )
        pairs = (
            (row["session_id"], restore_session(row))
            for row in rows
            if row["error"] is None and not row["archived"]
        )
        for session_id, judged in probe.judge(pairs):
            is_addressed = any(turn.addresses_judge for turn in judged.turns)
            if not is_addressed and judged.verdict_by != "policy":
                session = _sample_session(session_id, judged.opinions, run.policy, run.labels)
                sampled += [session] if session else []
        run.checked_sessions = frozenset(drawn.to_pylist())
    run.checks = [check_judge(group, sampled, least) for group in groups]


def _find_drawn(file: pq.ParquetFile, drawn_below: float) -> pa.Array:
    """Return the ids of the sessions whose random number is below a bound."""
    ids = file.read(["session_id"])["session_id"].to_pylist()
    drawn = [session_id for session_id in ids if draw_number(session_id) < drawn_below]
    return pa.array(drawn, pa.string())


def _sample_session(
    session_id: str, opinions: Mapping[str, Opinion], policy: VerdictPolicy, labels: Labels
) -> SampledSession | None:
    """Return a session for the check of machine judges.

    Args:
        session_id: The session.
        opinions: The judges' opinions.
        policy: The order of the judges.
        labels: People's labels.

    Returns:
        The session, or `None` if no machine judge decides that it is good.
    """
    machine = policy.find_machine_verdict(opinions)
    if machine is None or machine.verdict != "acceptable":
        return None
    label = labels.by_id.get(session_id)
    return SampledSession(draw_number(session_id), machine.judge, label.judgment if label else None)


def read_judge_checks(
    lake: Lake, key: PartitionKey, policy: VerdictPolicy, labels: Labels, least: float
) -> list[JudgeCheck]:
    """Check the machine judges on the opinions in the table `judged_sessions`.

    No judge is asked. So a language model that has not judged the drawn sessions has fewer labels
    than in the next run.

    Args:
        lake: The lake.
        key: The partition.
        policy: The order of the judges.
        labels: People's labels.
        least: The lowest precision of a trusted judge.

    Returns:
        One check per group of machine judges. There is none without the table.
    """
    groups = [name_group(group) for group in policy.machine_groups]
    if not (groups and least and lake.has("judged_sessions", key)):
        return []
    file = lake.open("judged_sessions", key)
    columns = ["session_id", "opinions", "turns", "verdict_by", "error", "archived"]
    sampled: list[SampledSession] = []
    for row in to_rows(read_batches(file, columns)) if labels.drawn_below else ():
        is_drawn = draw_number(row["session_id"]) < labels.drawn_below
        is_judged = row["error"] is None and not row["archived"] and row["verdict_by"] != "policy"
        is_addressed = any(turn["addresses_judge"] for turn in row["turns"])
        if is_drawn and is_judged and not is_addressed:
            opinions = {judge: Opinion(**opinion) for judge, opinion in row["opinions"].items()}
            session = _sample_session(row["session_id"], opinions, policy, labels)
            sampled += [session] if session else []
    return [check_judge(group, sampled, least) for group in groups]


def _check_labels(lake: Lake, key: PartitionKey, labels: Labels, smallest_share: float) -> None:
    """Check that most labels of the last table still exist for the sessions that still exist.

    Raises:
        VolumeError: The share of the labels that is left is smaller than `smallest_share`.
    """
    if not (smallest_share and lake.has("judged_sessions", key)):
        return
    try:
        file = lake.open("judged_sessions", key)
        rows = to_rows(read_batches(file, ["session_id", "opinions"]))
        labelled = [row["session_id"] for row in rows if "label" in row["opinions"]]
    # a damaged table is replaced without a comparison
    except (DataError, pa.ArrowException, OSError):
        return
    labelled = _find_present(lake, key, labelled)
    left_count = sum(session_id in labels.by_id for session_id in labelled)
    if len(labelled) >= MIN_COUNT_TO_COMPARE and left_count < smallest_share * len(labelled):
        raise VolumeError("judged_sessions", key, "labels", len(labelled), left_count)


def _find_shared(lake: Lake, key: PartitionKey, labels: Labels) -> dict[str, PartitionKey]:
    """Return the sessions whose labels may belong to a session of another agent in the lake.

    Returns:
        The other agent, by session id.
    """
    if not labels.partial_keys:
        return {}
    session_ids = _find_present(lake, key, list(labels.partial_keys))
    if not session_ids:
        return {}
    shared: dict[str, PartitionKey] = {}
    for other_key in lake.partitions("tables", "sessions"):
        if other_key == key:
            continue
        possible = [
            session_id
            for session_id in session_ids
            if is_about(*labels.partial_keys[session_id], other_key)
        ]
        if possible:
            shared |= dict.fromkeys(_find_present(lake, other_key, possible), other_key)
    return shared


def _find_present(lake: Lake, key: PartitionKey, session_ids: list[str]) -> list[str]:
    """Return those of the given ids that belong to a session of the partition.

    A damaged table counts as empty, because its own run replaces it.
    """
    column = make_column(session_ids, pa.field("session_id", pa.string()))
    try:
        stored_ids = lake.open("sessions", key).read(["session_id"])["session_id"]
        present: list[str] = column.filter(pc.is_in(column, stored_ids)).to_pylist()
    except (DataError, pa.ArrowException, OSError):
        return []
    return present


def judge_sessions(lake: Lake, key: PartitionKey, run: JudgingRun) -> StagedTable:
    """Judge every session of the table `sessions` in one run, and stage a table with the verdicts.

    Args:
        lake: The lake that has the table.
        key: The partition.
        run: The judges.

    Raises:
        DataError, SettingsError: As in `judge_partition`.
    """
    stored_rows = to_rows(read_batches(lake.open("sessions", key)))
    judged = run.judge((row, restore_session(row)) for row in stored_rows)

    def make_rows() -> Iterator[JudgedRow]:
        for row, judged_session in judged:
            yield cast(JudgedRow, row | make_verdict_columns(judged_session))

    return lake.stage("judged_sessions", key, to_batches(make_rows(), JUDGED), JUDGED)


def make_verdict_columns(judged: JudgedSession) -> dict[str, object]:
    """Return the columns that `judged_sessions` adds to `sessions`."""
    return judged._asdict() | {
        "measures": {name: result._asdict() for name, result in judged.measures.items()},
        "opinions": {judge: opinion._asdict() for judge, opinion in judged.opinions.items()},
        "turns": [turn._asdict() for turn in judged.turns],
    }


def curate_sessions(
    lake: Lake,
    key: PartitionKey,
    required_measures: Sequence[str],
    bounds: CurationBounds,
    leak_patterns: Sequence[str],
    own_sessions: OwnSessions | None = None,
    preconditions: Preconditions = NO_PRECONDITIONS,
) -> CuratedTable:
    """Decide how every session of the table `judged_sessions` is used.

    Args:
        lake: The lake that has the table.
        key: The partition.
        required_measures: The measures that a good session must pass.
        bounds: The limits on the kept sessions.
        leak_patterns: Regular expressions that match verdicts in a text.
        own_sessions: How sessions of models of this lake are treated; None treats them as others.
        preconditions: The preconditions that the calls of a good session must not break.

    Raises:
        DataError: There is no such table, or the table is damaged or from an older version.
        SettingsError: A required measure or a pattern cannot be parsed.
    """
    # A measure may be written differently in the table than in the settings.
    required = [measure.name for measure in parse_measures(required_measures)]
    # The file stays open, so that both readings see the same file even if it is replaced.
    judged = lake.open("judged_sessions", key, JUDGED)
    curation, rows = curate_rows(
        lambda: cast(Iterator[JudgedRow], to_rows(read_batches(judged))),
        required,
        bounds,
        leak_patterns,
        own_sessions,
        preconditions,
    )
    table = lake.stage("curated_sessions", key, to_batches(rows, CURATED), CURATED)
    return CuratedTable(table, curation, measure_drift(lake, "curated_sessions", key, table))
