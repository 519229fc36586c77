"""Assets of the stage `traces`: what the agents left behind, read, judged and curated."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import dagster as dg
import pyarrow as pa
from pydantic import Field

from agent_pipeline.defs.metadata import bars, counted, counts_table, preview
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.specs import asset_options, version
from agent_pipeline.failures import user_errors
from agent_pipeline.traces.curation import Candidate, curate
from agent_pipeline.traces.judging import MEASURES, judge
from agent_pipeline.traces.partitions import parse_key
from agent_pipeline.traces.reading import fingerprint, read_sessions
from agent_pipeline.traces.tables import CURATED, JUDGED, SESSIONS, row_session, session_row, to_batches, to_rows


@dg.observable_source_asset(
    partitions_def=AGENTS,
    group_name="traces",
    description="The agents' own session store. External: it is observed, never written. Its data version is the fingerprint of a "
    "partition's sessions, items and verdicts.",
    tags={"stage": "traces"},
)
def session_store(context: dg.OpExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.DataVersionsByPartition:
    with user_errors():
        source = workspace.open_store()
        known = context.instance.get_dynamic_partitions(AGENTS.name or "")
        keys = [key for key in source.partitions() if str(key) in known]
        return dg.DataVersionsByPartition({str(key): fingerprint(source.sessions(key))[0] for key in keys})


@dg.asset(**asset_options("traces", {"parquet", "bronze"}), deps=[session_store])
def sessions(context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
    """Every session of the agent in one canonical form, one row each: archived, empty and damaged ones too.

    Calls are paired with their results by position; damage is counted by kind; missing tool schemas are inferred from the calls.
    """
    with user_errors():
        key = agent_key(context)
        source = workspace.open_store()
        options = workspace.settings().reading(key)
        seen: dict[str, Counter[str]] = {name: Counter() for name in ("damage", "skipped", "judgment", "tools")}
        shown: list[dict[str, Any]] = []

        def rows() -> Iterator[dict[str, Any]]:
            for session in read_sessions(source, key, options):
                seen["damage"].update(session.damage)
                seen["skipped"].update(session.skipped)
                seen["judgment"].update(counted([session.judgment]))
                seen["tools"].update([session.tools_origin])
                shown.extend([] if len(shown) >= 5 else [{"session_id": session.session_id, "messages": session.messages}])
                yield session_row(session)

        staged = workspace.open_lake().stage("sessions", key, to_batches(rows(), SESSIONS), SESSIONS)
        for note in dict.fromkeys(source.notes):
            context.log.warning(note)
        return dg.MaterializeResult(
            value=staged,
            data_version=version(staged.sha256),
            metadata={
                "sessions": staged.rows,
                "source": source.name,
                "judgments": counts_table(seen["judgment"], "judgment"),
                "damage": counts_table(seen["damage"], "kind of damage"),
                "left_out": counts_table(seen["skipped"], "item type without a place in a chat"),
                "tools_from": counts_table(seen["tools"], "origin of tool schemas"),
                "notes": "\n".join(dict.fromkeys(source.notes)) or "none",
                "preview": preview(shown),
            },
        )


class JudgingConfig(dg.Config):
    """How a verdict is reached."""

    measures: list[str] = Field(
        default=["ended_with_answer", "no_tool_error_at_end", "all_calls_answered"],
        description=f"Measures to take of every session; registered: {', '.join(sorted(MEASURES))}.",
    )
    when_unjudged: Literal["exclude", "measures"] = Field(
        default="exclude",
        description="What a session without a judgment is: without a verdict (exclude), or judged by whether all measures pass (measures).",
    )


@dg.asset(**asset_options("traces", {"parquet", "silver"}))
def judged_sessions(
    context: dg.AssetExecutionContext, sessions: pa.RecordBatchReader, config: JudgingConfig, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """The sessions with one verdict each, who gave it, and what every measure found. Null is no verdict, never a bad one."""
    with user_errors():
        verdicts: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        untaken: Counter[str] = Counter()

        def rows() -> Iterator[dict[str, Any]]:
            for row in to_rows(sessions):
                judged = judge(row_session(row), config.measures, config.when_unjudged)
                verdicts.update(counted([judged.verdict]))
                failed.update(name for name, result in judged.measures.items() if result.passed is False)
                untaken.update(f"{name} {result.reason}" for name, result in judged.measures.items() if result.passed is None)
                measures = {name: result._asdict() for name, result in judged.measures.items()}
                yield row | {"verdict": judged.verdict, "verdict_by": judged.verdict_by, "measures": measures}

        staged = workspace.open_lake().stage("judged_sessions", agent_key(context), to_batches(rows(), JUDGED), JUDGED)
        return dg.MaterializeResult(
            value=staged,
            data_version=version(staged.sha256),
            metadata={
                "verdicts": counts_table(verdicts, "verdict"),
                "measures_failed": counts_table(failed, "measure"),
                "measures_not_taken": counts_table(untaken, "measure and why"),
            },
        )


class CurationConfig(dg.Config):
    """What is kept."""

    required_measures: list[str] = Field(
        default=["ended_with_answer", "all_calls_answered"], description="Measures that a session must pass beside its verdict."
    )
    max_sessions: int = Field(default=0, ge=0, description="Keep at most so many sessions, the earliest; 0 is no limit.")


@dg.asset(**asset_options("traces", {"parquet", "silver"}))
def curated_sessions(
    context: dg.AssetExecutionContext, judged_sessions: pa.RecordBatchReader, config: CurationConfig, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """Every judged session with `kept`, and for a dropped one the first reason why. Only rows with `kept` are for training on."""
    with user_errors():
        rows = list(to_rows(judged_sessions))
        decisions = curate((_candidate(row) for row in rows), config.required_measures, config.max_sessions)
        decided = (
            row | {"kept": decision.reason is None, "drop_reason": decision.reason, "drop_detail": decision.detail}
            for row, decision in zip(rows, decisions, strict=True)
        )
        staged = workspace.open_lake().stage("curated_sessions", agent_key(context), to_batches(decided, CURATED), CURATED)
        where = counted(decision.reason or "kept" for decision in decisions)
        return dg.MaterializeResult(
            value=staged,
            data_version=version(staged.sha256),
            metadata={
                "sessions": len(rows),
                "kept": where["kept"],
                "dropped": len(rows) - where["kept"],
                "reasons": counts_table(where),
                "where_sessions_went": bars(where, f"{parse_key(context.partition_key)}: where {len(rows)} sessions went"),
            },
        )


def _candidate(row: dict[str, Any]) -> Candidate:
    return Candidate(
        session_id=row["session_id"],
        content_sha256=row["content_sha256"],
        created_at=row["created_at"],
        archived=row["archived"],
        messages=sum(message["role"] != "system" for message in row["messages"]),
        error=row["error"],
        damage=row["damage"],
        verdict=row["verdict"],
        failed_measures=[name for name, result in row["measures"].items() if result["passed"] is False],
        passed_measures=[name for name, result in row["measures"].items() if result["passed"] is True],
    )


@dg.asset_check(asset=curated_sessions, partitions_def=AGENTS, blocking=True)
def every_session_is_kept_or_dropped_with_a_reason(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """What was read is what was kept and dropped, session by session, and no dropped one lacks its reason."""
    with user_errors():
        lake, key = workspace.open_lake(), agent_key(context)
        read = lake.open("sessions", key).read(["session_id"])["session_id"].to_pylist()
        rows = lake.open("curated_sessions", key).read(["session_id", "kept", "drop_reason"]).to_pylist()
    lost = sorted(set(read) ^ {row["session_id"] for row in rows})
    unexplained = [row["session_id"] for row in rows if row["kept"] == (row["drop_reason"] is not None)]
    return dg.AssetCheckResult(
        passed=not lost and not unexplained and len(read) == len(rows),
        metadata={
            "read": len(read),
            "kept": sum(row["kept"] for row in rows),
            "dropped": sum(not row["kept"] for row in rows),
            "lost": json.dumps(lost[:20]),
            "without_a_reason": json.dumps(unexplained[:20]),
        },
    )
