"""The asset `replay_buffer`: rows of earlier training runs that later runs replay."""

import dagster as dg

from agent_pipeline.config.assets import ReplayConfig
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import counts_table
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import asset_options, check_result, version
from agent_pipeline.redaction import Redactor
from agent_pipeline.selection.buffer import describe_change
from agent_pipeline.selection.replay import build_buffer, list_held_out_sessions


@dg.asset(
    **asset_options("coresets", {"parquet"}, options=ReplayConfig),
    deps=["sft_coreset"],
)
def replay_buffer(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """A random sample of all rows that this agent was ever trained on. Later training runs replay
    these rows, so that the model does not forget old tasks.

    The sample also contains rows of sessions that are no longer in the store. To remove the rows of
    a session, run `agent-pipeline forget`. The sample never contains rows of held-out tasks.
    """
    # The rows with the lowest hashes of their sessions. It is updated before the training that
    # reads it, which leaves out its own rows: made again from the same tables it has the same
    # bytes, and the adapter the same identity.
    with user_errors():
        size = in_force(context, workspace, ReplayConfig).buffer_size
        settings, redactor = workspace.settings(), Redactor(workspace.settings().redaction_options)
        buffer = build_buffer(
            workspace.open_lake(), agent_key(context), size, settings.split_sizes, redactor
        )
        changes = {describe_change(change): count for change, count in buffer.counts.items()}
        return dg.MaterializeResult(
            value=buffer.table,
            data_version=version(buffer.table.sha256),
            metadata={
                "rows": buffer.table.rows,
                "rows_before": buffer.before,
                "forgotten": buffer.forgotten,
                "trained_on": buffer.trained,
                "what_became_of_them": counts_table(changes, "row"),
                "redacted_anew": counts_table(buffer.redacted, "kind"),
            },
        )


@dg.asset_check(asset=replay_buffer, partitions_def=AGENTS, blocking=True)
def nothing_held_out_is_replayed(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """Passes if no row of the buffer belongs to a held-out task or repeats a held-out row. If the
    check fails, delete the agent's table `replay_buffer`."""
    with user_errors():
        sessions = list_held_out_sessions(
            workspace.open_lake(), agent_key(context), workspace.settings().split_sizes
        )
    named = ", ".join(sessions[:20])
    why = (
        f"{len(sessions)} sessions in the buffer belong to held-out tasks ({named}): delete the "
        "table replay_buffer of this agent"
        if sessions
        else None
    )
    return check_result(not sessions, why, {"held_out": len(sessions), "sessions": named})
