"""The asset `replay_buffer`: what was trained on in earlier nights, so that a later one can have some of it again."""

from collections import Counter

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.config.assets import ReplayConfig
from agent_pipeline.datasets.ledger import read_ledger
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import counts_table
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import asset_options, version
from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.forgotten import BlockList
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import Redactor
from agent_pipeline.selection.buffer import HeldOut, Row, remember, said
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import stored_batches, to_rows, to_table
from agent_pipeline.storage.lake import Lake

BUFFER = "replay_buffer"


@dg.asset(**asset_options("coresets", {"parquet"}, options=ReplayConfig), deps=["curated_sessions"])
def replay_buffer(
    context: dg.AssetExecutionContext,
    sft_dataset: pa.Table,
    sft_coreset: pa.Table,
    workspace: dg.ResourceParam[Workspace],
) -> dg.MaterializeResult:
    """A uniform choice of all rows that were ever trained on, tonight's included: those whose sessions have the lowest hashes.

    It is updated before the training that reads it: training leaves out what is among its own rows, so that what it replays is of earlier
    nights. Made again from the same tables it has the same bytes, and the adapter the same identity; a training that read the buffer of the
    night before, and left its own behind, would be another one each time.

    It holds rows, not row ids as a coreset does, since it must give back sessions that the store has no more: their text is nowhere else.
    So they stay in the lake until a later row has a lower hash, they are forgotten, or `buffer_size` says so; they are redacted anew by
    tonight's settings. A session that the store still has is remembered as it is tonight, and let go where it is no training row tonight.
    No row of a task that is held out stays, by the split's ledger.
    """
    with user_errors():
        config = in_force(context, workspace, ReplayConfig)
        lake, key = workspace.open_lake(), agent_key(context)
        forgotten = BlockList.read(lake)
        stored = read_buffer(lake, key)
        before = [row for row in stored if not forgotten.has(row["session_id"], key)]
        chosen = chosen_rows(sft_dataset, sft_coreset)
        ids = pa.array([*chosen["session_id"].to_pylist(), *(row["session_id"] for row in before)], pa.string())
        training = sft_dataset.filter(pc.equal(sft_dataset["split"], "train"))
        tonight = {row["session_id"]: row for row in to_rows(training.filter(pc.is_in(training["session_id"], ids)))}
        met = set(lake.open("curated_sessions", key).read(["session_id"])["session_id"].to_pylist())
        redactor, redacted = Redactor(workspace.settings().redaction_options), Counter[str]()
        current = [row if row["session_id"] in met else _redacted(row, redactor, key, redacted) for row in before]
        held_out = held_out_rows(workspace, key, sft_dataset)
        rows, counts = remember(current, tonight, chosen["session_id"].to_pylist(), met, held_out, config.buffer_size)
        staged = lake.stage(BUFFER, key, to_table(rows, SFT).to_batches(), SFT)
        return dg.MaterializeResult(
            value=staged,
            data_version=version(staged.sha256),
            metadata={
                "rows_before": len(stored),
                "forgotten": len(stored) - len(before),
                "trained_on_tonight": len(chosen),
                "what_became_of_them": counts_table(counts, "row"),
                "redacted_anew": counts_table(redacted, "kind"),
            },
        )


@dg.asset_check(asset=replay_buffer, partitions_def=AGENTS, blocking=True)
def nothing_held_out_is_replayed(context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.AssetCheckResult:
    """No remembered row has a task of the select or test side, or says the same as a row that is held out."""
    with user_errors():
        lake, key = workspace.open_lake(), agent_key(context)
        dataset = lake.open("sft_dataset", key).read()
        held_out = held_out_rows(workspace, key, dataset)
        found = [row["session_id"] for row in read_buffer(lake, key) if held_out(row)]
    return dg.AssetCheckResult(passed=not found, metadata={"held_out": len(found), "sessions": ", ".join(found[:20])})


def chosen_rows(dataset: pa.Table, coreset: pa.Table) -> pa.Table:
    """The training rows that the coreset chose, of the table that holds them.

    Raises:
        DataError: some are not in it.
    """
    chosen = coreset.filter(coreset["chosen"])["row_id"]
    rows = dataset.filter(pc.and_(pc.equal(dataset["split"], "train"), pc.is_in(dataset["row_id"], chosen.combine_chunks())))
    if missing := len(chosen) - len(rows):
        raise DataError(f"{missing} chosen rows are no longer in sft_dataset: materialize sft_coreset again.")
    return rows


def read_buffer(lake: Lake, key: PartitionKey) -> list[Row]:
    """The rows of the buffer as it is; none where there was never one.

    Raises:
        DataError: it is damaged.
    """
    if not lake.has(BUFFER, key):
        return []
    try:
        rows = list(to_rows(stored_batches(lake.open(BUFFER, key))))
    except (DataError, pa.ArrowException, OSError) as error:
        raise DataError(
            f"The replay buffer of {key} at {lake.table(BUFFER, key)} is damaged: put a copy of it back, or delete it, and it begins anew "
            "with the rows of tonight."
        ) from error
    return [dict.fromkeys(SFT.names) | row for row in rows]


def held_out_rows(workspace: Workspace, key: PartitionKey, dataset: pa.Table) -> HeldOut:
    """Tells rows of a task that the ledger has on the select or test side, or that say the same as a row of those sides."""
    split = workspace.settings().split
    ledger = read_ledger(workspace.open_lake(), key, SplitSizes(split.test, split.select))
    texts = {said(row) for row in to_rows(dataset.filter(pc.not_equal(dataset["split"], "train")))}
    return lambda row: ledger.of(row["task_key"]) != "train" or said(row) in texts


def _redacted(row: Row, redactor: Redactor, key: PartitionKey, counts: Counter[str]) -> Row:
    """A row of a session that the store has no more, by tonight's settings; itself where they find nothing."""
    session = Session(
        session_id=row["session_id"],
        project=key.project,
        agent=key.agent,
        source=BUFFER,
        messages=row["messages"],
        tools=row["tools"],
        task_key=row["task_key"],
    )
    found = redactor.redact(session)
    if not found and session.task_key == row["task_key"]:
        return row
    counts.update(found)
    return row | {
        "messages": session.messages,
        "tools": session.tools,
        "task_key": session.task_key,
        "content_sha256": session.content_sha256(),
    }
