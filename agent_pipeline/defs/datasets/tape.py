"""The asset `tape`: what tools and users answered in recorded sessions, for replayed episodes."""

import dagster as dg

from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import counts_table, table
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.specs import asset_options, version
from agent_pipeline.evaluation.tape import record_tape


@dg.asset(
    **asset_options("datasets", {"parquet"}),
    deps=["judged_sessions"],
)
def tape(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """One row per step of a recorded session: a message of the user, a tool call with its result,
    or an answer. The world `replayed` uses these rows to answer a model.

    The world finds the recorded result of a call by the tool, the canonical arguments, and the
    successful writes before the call. The table leaves out broken and archived sessions, copies,
    successful attacks, and sessions that a model played.
    """
    with user_errors():
        settings, key = workspace.settings(), agent_key(context)
        recorded = record_tape(
            workspace.open_lake(), key, settings.split_sizes, settings.reads(key)
        )
        effects = [
            [
                effect.tool,
                "writes" if effect.writes else "reads",
                effect.described_reason,
                str(effect.calls),
            ]
            for effect in recorded.effects
        ]
        return dg.MaterializeResult(
            value=recorded.table,
            data_version=version(recorded.table.sha256),
            metadata={
                "sessions": recorded.sessions,
                "steps": recorded.table.rows,
                "tools": table(["tool", "effect", "reason", "calls"], effects),
                "left_out": counts_table(recorded.left_out, "why"),
            },
        )
