"""The asset `replay_buffer`: what was trained on in earlier nights, so that a later one can have some of it again."""

import dagster as dg

from agent_pipeline.config.assets import ReplayConfig
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import counts_table
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import asset_options, version
from agent_pipeline.redaction import Redactor
from agent_pipeline.selection.replay import build_buffer, held_out_sessions


@dg.asset(**asset_options("coresets", {"parquet"}, options=ReplayConfig), deps=["curated_sessions", "sft_dataset", "sft_coreset"])
def replay_buffer(context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
    """A uniform choice of all rows that were ever trained on, this run's included: those whose sessions have the lowest hashes.

    It is updated before the training that reads it: training leaves out what is among its own rows, so that what it replays is of earlier
    nights. Made again from the same tables it has the same bytes, and the adapter the same identity; a training that read the buffer of the
    night before, and left its own behind, would be another one each time.

    It holds rows, not row ids as a coreset does, because it must give back sessions that the store no longer has: their text is nowhere
    else. They stay in the lake until a later row has a lower hash, they are forgotten, or `buffer_size` says so, and they are redacted anew
    by this run's settings. A session that the store still has is remembered as it is now, and let go where it is no training row
    any more. No row of a task that is held out stays, by the split's ledger.
    """
    with user_errors():
        size = in_force(context, workspace, ReplayConfig).buffer_size
        settings, redactor = workspace.settings(), Redactor(workspace.settings().redaction_options)
        buffer = build_buffer(workspace.open_lake(), agent_key(context), size, settings.split_sizes, redactor)
        return dg.MaterializeResult(
            value=buffer.table,
            data_version=version(buffer.table.sha256),
            metadata={
                "rows_before": buffer.before,
                "forgotten": buffer.forgotten,
                "trained_on": buffer.trained,
                "what_became_of_them": counts_table(buffer.counts, "row"),
                "redacted_anew": counts_table(buffer.redacted, "kind"),
            },
        )


@dg.asset_check(asset=replay_buffer, partitions_def=AGENTS, blocking=True)
def nothing_held_out_is_replayed(context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.AssetCheckResult:
    """No remembered row has a task of the select or test split, or says the same as a row that is held out."""
    with user_errors():
        sessions = held_out_sessions(workspace.open_lake(), agent_key(context), workspace.settings().split_sizes)
    return dg.AssetCheckResult(passed=not sessions, metadata={"held_out": len(sessions), "sessions": ", ".join(sessions[:20])})
