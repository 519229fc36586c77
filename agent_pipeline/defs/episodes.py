"""The asset `episodes`: does the model do the job? It plays held-out tasks in the agent's world."""

from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.config.assets import EpisodesConfig
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.models import artifact_made, heldout
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import ARTIFACTS, CANDIDATE, asset_options, version
from agent_pipeline.defs.worker_client import run_worker
from agent_pipeline.evaluation.episode_report import PAGE, shown, table
from agent_pipeline.sessions.tables import to_rows
from agent_pipeline.storage.lake import Artifact


@dg.asset(
    **asset_options("exports", {"llama", "report"}, ARTIFACTS, options=EpisodesConfig),
    ins={"adapter": dg.AssetIn(CANDIDATE)},
    check_specs=[
        dg.AssetCheckSpec(
            "model_does_the_job",
            asset="episodes",
            partitions_def=AGENTS,
            description="It does no fewer tasks than its base, and changes the world wrongly no more often.",
        )
    ],
)
def episodes(
    context: dg.AssetExecutionContext,
    judged_sessions: pa.Table,
    sft_dataset: pa.Table,
    adapter: Artifact,
    gguf_export: Artifact,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """The model plays the held-out tasks in the agent's world to their end, beside its base and the recorded agent.

    The figures: tasks done where the model must act and where it must not, and harm; every transcript is kept. Nothing is played for an
    agent without a world."""
    with user_errors():
        agent = workspace.settings().agents.get(context.partition_key)
        if agent is None or not agent.world:
            context.log.info(f"{context.partition_key} has no world to play in: the setting agents.*.world names one (docs/episodes.md).")
            passed = dg.AssetCheckResult(check_name="model_does_the_job", passed=True, metadata={"world": "none"})
            return dg.MaterializeResult(metadata={"world": "none"}, check_results=[passed])
        config = in_force(context, workspace, EpisodesConfig)
        rows = heldout(sft_dataset, context.partition_key)
        params = {
            "world": agent.world,
            "adapter": adapter.reference,
            "gguf_export": gguf_export.identity if config.model == "gguf" else None,
            "gguf": str(gguf_export.path / f"model-{config.gguf}.gguf") if config.model == "gguf" else "",
            "config": config.model_dump(),
            "recorded": recorded_sessions(judged_sessions, {row["task_key"] for row in rows}),
        }
        made = run_worker(context, pipes, workspace, "episodes", rows, params)
        artifact, report = artifact_made(context, workspace, "episodes", made), made["report"]
        workspace.open_lake().set_latest(artifact, who=f"run {context.run_id}")
        return dg.MaterializeResult(
            data_version=version(made["identity"]),
            metadata={
                "reused": made["reused"],
                "figures": dg.MetadataValue.md(table(report)),
                "transcripts": dg.MetadataValue.path(str(artifact.path / PAGE)),
                "report": dg.MetadataValue.json(report),
            },
            check_results=[
                dg.AssetCheckResult(
                    check_name="model_does_the_job",
                    passed=not report["against"],
                    severity=dg.AssetCheckSeverity.ERROR,
                    metadata={
                        "done": shown(report["players"]["model"]["done"]),
                        "harm": shown(report["players"]["model"]["harm"]),
                        "against": report["against"],
                    },
                )
            ],
        )


def recorded_sessions(judged: pa.Table, tasks: set[str]) -> dict[str, list[dict[str, Any]]]:
    """The messages of the first whole recorded session of each task."""
    whole = pc.and_(pc.is_in(judged["task_key"], pa.array(sorted(tasks), pa.string())), pc.is_null(judged["broken"]))
    rows = sorted(to_rows(judged.filter(whole)), key=lambda row: (row["trial"] or "", row["session_id"]))
    return {row["task_key"]: row["messages"] for row in reversed(rows)}
