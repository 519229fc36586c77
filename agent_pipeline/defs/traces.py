"""Assets of the stage `traces`: what the agents left behind, read, judged and curated."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import dagster as dg
import pyarrow as pa

from agent_pipeline.config.assets import CurationConfig, JudgingConfig, SessionsConfig
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import bars, counted, counts_table, preview, weeks
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import asset_options, version
from agent_pipeline.ingestion.ingestion import ingest
from agent_pipeline.judging import Judged, Panel, Policy, parse_measures
from agent_pipeline.judging.agreement import Agreement
from agent_pipeline.judging.client import Limits, LlmClient
from agent_pipeline.judging.curation import (
    Bounds,
    Candidate,
    Reason,
    curate,
    failed_calling,
    leak_patterns,
    without_leaks,
)
from agent_pipeline.redaction import Redactor
from agent_pipeline.sessions.repair import repair_policy
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.tables import CURATED, JUDGED, row_session, stored_batches, to_batches, to_rows
from agent_pipeline.sessions.text import characters


@dg.observable_source_asset(
    partitions_def=AGENTS,
    group_name="traces",
    description="The agents' own session store. External: it is observed, never written. Its data version is the fingerprint of a "
    "partition's sessions, items and verdicts, and of the labels that people gave them.",
    tags={"stage": "traces"},
)
def session_store(context: dg.OpExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.DataVersionsByPartition:
    with user_errors():
        source = workspace.open_store()
        known = context.instance.get_dynamic_partitions(AGENTS.name or "")
        keys = [key for key in source.partitions() if str(key) in known]
        return dg.DataVersionsByPartition({str(key): workspace.fingerprint(source, key)[0] for key in keys})


@dg.asset(**asset_options("traces", {"parquet", "bronze"}, options=SessionsConfig), deps=[session_store])
def sessions(context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
    """Every session of the agent in one canonical form, one row each: archived, empty and damaged ones too.

    Calls are paired with their results by position; damage is counted by kind; missing tool schemas are inferred from the calls. Secrets
    and personal data are pseudonyms.
    """
    with user_errors():
        config = in_force(context, workspace, SessionsConfig)
        key = agent_key(context)
        source = workspace.open_store()
        policy = repair_policy(config.repair)
        options = replace(workspace.settings().reading(key), repair=policy)
        found = ingest(source, key, options, workspace.open_lake())
        for note in dict.fromkeys(source.notes):
            context.log.warning(note)
        return dg.MaterializeResult(
            value=found.table,
            data_version=version(found.table.sha256),
            metadata={
                "sessions": found.table.rows,
                "copied_from_the_last_table": found.copied,
                "forgotten": found.forgotten,
                "source": source.name,
                "judgments": counts_table(found.counts["judgment"], "judgment"),
                "damage": counts_table(_treated(found.counts["damage"], policy), "kind of damage, and what was done"),
                "left_out": counts_table(found.counts["skipped"], "item type without a place in a chat"),
                "redacted": counts_table(found.redacted, "kind of private data"),
                "tools_from": counts_table(found.counts["tools"], "origin of tool schemas"),
                "notes": "\n".join(dict.fromkeys(source.notes)) or "none",
                "preview": preview(found.first),
            },
        )


@dg.asset_check(asset=sessions, partitions_def=AGENTS, blocking=True)
def nothing_private_was_written(context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.AssetCheckResult:
    """What was written, looked through once more with the same detectors: they find nothing. A find is shown by its kind, never itself."""
    with user_errors():
        options = workspace.settings().redaction_options
        redactor = Redactor(options)
        found: Counter[str] = Counter()
        where: list[str] = []
        rows = 0
        for row in to_rows(stored_batches(workspace.open_lake().open("sessions", agent_key(context)))):
            rows += 1
            if kinds := redactor.finds(row_session(row)).values():
                found.update(kinds)
                where.append(row["session_id"])
    return dg.AssetCheckResult(
        passed=not found,
        description="Redaction is switched off: nothing was looked for." if not options.enabled else None,
        metadata={"sessions": rows, "found": counts_table(found, "kind of private data"), "in_sessions": json.dumps(where[:20])},
    )


def _treated(damage: Counter[str], policy: Mapping[str, str]) -> Counter[str]:
    """Counts of damage with what the policy did about each kind; kinds of a source's own are only counted."""
    return Counter({f"{kind}: {policy.get(kind, 'keep')}": count for kind, count in damage.items()})


# The labels are observed with the store: what changes in them is judged again.
@dg.asset(**asset_options("traces", {"parquet", "silver"}, options=JudgingConfig), deps=[session_store])
def judged_sessions(
    context: dg.AssetExecutionContext, sessions: pa.RecordBatchReader, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """The sessions with one verdict each, who gave it and why, what every measure found and every judge said.

    Null is no verdict, never a bad one.
    """
    with user_errors():
        config = in_force(context, workspace, JudgingConfig)
        key = agent_key(context)
        policy = Policy(config.decided_by, config.when_unjudged, config.score_acceptable, config.score_unacceptable)
        panel = Panel(parse_measures(config.measures), policy, workspace.labels(key), ask_llm=config.ask_llm)
        panel.labels.redact(Redactor(workspace.settings().redaction_options))
        limits = Limits(config.llm_max_requests, config.llm_max_tokens, config.llm_max_usd)
        asked = any("llm" in group for group in policy.groups)
        with workspace.open_judge(limits) if asked else nullcontext() as panel.llm:
            judged = panel.judge((row, row_session(row)) for row in to_rows(sessions))
            rows = (row | _verdict_columns(each) for row, each in judged)
            staged = workspace.open_lake().stage("judged_sessions", key, to_batches(rows, JUDGED), JUDGED)
        for note in panel.labels.notes:
            context.log.warning(note)
        return dg.MaterializeResult(
            value=staged,
            data_version=version(staged.sha256),
            metadata={
                "verdicts": counts_table(panel.verdicts, "verdict"),
                "measures_failed": counts_table(panel.failed, "measure"),
                "measures_not_taken": counts_table(panel.not_taken, "measure and why"),
                "agreement_with_people": _agreement_table(panel.agreement),
                "labels": "\n".join(panel.labels.notes) or f"{len(panel.labels.by_id)} read",
                **(_llm_spend(panel.llm.client) if panel.llm else {}),
            },
        )


def _verdict_columns(judged: Judged) -> dict[str, Any]:
    return {
        "verdict": judged.verdict,
        "verdict_by": judged.verdict_by,
        "verdict_reasons": judged.verdict_reasons,
        "measures": {name: result._asdict() for name, result in judged.measures.items()},
        "opinions": {name: opinion._asdict() for name, opinion in judged.opinions.items()},
    }


def _agreement_table(agreement: Agreement) -> dg.MetadataValue:
    """A line a judge: the sessions that people judged too, the confusion of the two, and Cohen's kappa."""
    lines = ["| beside people | sessions | agree | both good | both bad | too kind | too strict | kappa |", "|---|" + "---:|" * 7]
    for row in agreement.rows():
        kappa = "–" if row.kappa is None else f"{row.kappa:.2f}"
        counts = (row.both_acceptable, row.both_unacceptable, row.too_kind, row.too_strict)
        lines.append("| " + " | ".join(map(str, (row.name, row.sessions, f"{row.share:.0%}", *counts, kappa))) + " |")
    return dg.MetadataValue.md("\n".join(lines))


def _llm_spend(client: LlmClient) -> dict[str, Any]:
    spend = client.spend
    return {
        "llm": counts_table(client.counts, "questions"),
        "llm_requests": spend.requests,
        "llm_tokens": spend.input_tokens + spend.output_tokens,
        "llm_usd": spend.usd,
    }


@dg.asset(**asset_options("traces", {"parquet", "silver"}, options=CurationConfig))
def curated_sessions(
    context: dg.AssetExecutionContext, judged_sessions: pa.RecordBatchReader, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """Every judged session with `kept`, and for a dropped one the first reason why. Only rows with `kept` are for training on."""
    with user_errors():
        config = in_force(context, workspace, CurationConfig)
        lake, key = workspace.open_lake(), agent_key(context)
        patterns = leak_patterns(config.verdict_leaks)
        candidates: list[Candidate] = []
        stripped: set[str] = set()
        for row in to_rows(judged_sessions):
            messages, lines, leak = without_leaks(row["messages"], patterns)
            if lines:
                stripped.add(row["session_id"])
                row = _with_messages(row, messages)
            candidates.append(_candidate(row, leak))
        required = [each.name for each in parse_measures(config.required_measures)]  # in the spelling of the tables
        decisions = curate(candidates, required, Bounds(config.max_sessions, config.max_characters))

        def decided() -> Iterator[dict[str, Any]]:
            # Whom a session repeats is known when all have been seen: the table is read again, so that memory holds no texts but a batch's.
            again = to_rows(stored_batches(lake.open("judged_sessions", key)))
            for row, decision in zip(again, decisions, strict=True):
                if decision.session_id in stripped:
                    row = _with_messages(row, without_leaks(row["messages"], patterns)[0])
                yield row | {"kept": decision.reason is None, "drop_reason": decision.reason, "drop_detail": decision.detail}

        staged = lake.stage("curated_sessions", key, to_batches(decided(), CURATED), CURATED)
        where = counted(decision.reason or "kept" for decision in decisions)
        return dg.MaterializeResult(
            value=staged,
            data_version=version(staged.sha256),
            metadata={
                "sessions": len(decisions),
                "kept": where["kept"],
                "dropped": len(decisions) - where["kept"],
                "reasons": counts_table(where),
                "verdicts_taken_out_of_the_text": len(stripped),
                "where_sessions_went": bars(where, f"{key}: where {len(decisions)} sessions went"),
                "by_week": weeks(
                    (
                        (one.created_at, _kind(decision.reason) if decision.reason else "kept")
                        for one, decision in zip(candidates, decisions, strict=True)
                    ),
                    ["kept", *(_kind(reason) for reason in Reason)],
                    f"{key}: where they went, by week",
                ),
            },
        )


def _kind(reason: str) -> str:
    """A reason without the name that it may have after it: `broken:orphan_output` is `broken`."""
    return reason.partition(":")[0]


def _with_messages(row: dict[str, Any], messages: list[Message]) -> dict[str, Any]:
    """A session's row with other messages, and the identity of those."""
    row = row | {"messages": messages}
    return row | {"content_sha256": row_session(row).content_sha256()}


def _candidate(row: dict[str, Any], leak: str | None) -> Candidate:
    return Candidate(
        session_id=row["session_id"],
        content_sha256=row["content_sha256"],
        created_at=row["created_at"],
        archived=row["archived"],
        messages=sum(message["role"] != "system" for message in row["messages"]),
        error=row["error"],
        verdict=row["verdict"],
        failed_measures=[name for name, result in row["measures"].items() if result["passed"] is False],
        passed_measures=[name for name, result in row["measures"].items() if result["passed"] is True],
        broken=row["broken"],
        attack_succeeded=row["attack_succeeded"],
        leak=leak,
        characters=characters(row["messages"]),
        failed_calling=row["verdict"] == "unacceptable"
        and failed_calling(row["messages"], row["damage"], row["broken"], row["verdict_by"]),
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
