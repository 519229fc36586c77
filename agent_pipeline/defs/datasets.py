"""Assets of the stage `datasets`: curated sessions in the forms that trainers read."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import dagster as dg
import pyarrow as pa

from agent_pipeline.datasets.preferences import PREFERENCES, preference_rows
from agent_pipeline.datasets.sft import SFT, sft_rows
from agent_pipeline.datasets.sharegpt import SHAREGPT, sharegpt_rows
from agent_pipeline.datasets.splits import SPLITS, SplitSizes, overlaps
from agent_pipeline.defs.metadata import counted, counts_table, histogram, preview
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.specs import asset_options, version
from agent_pipeline.failures import user_errors
from agent_pipeline.traces.curation import is_bad_answer
from agent_pipeline.traces.session import Session, sha256_of
from agent_pipeline.traces.tables import row_session, to_rows, to_table


@dg.asset(**asset_options("datasets", {"parquet", "dataset"}))
def sft_dataset(
    context: dg.AssetExecutionContext, curated_sessions: pa.RecordBatchReader, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """Conversations to imitate (`messages`, `tools`), one a kept session, each on the side that its task belongs to for ever."""
    with user_errors():
        counts: Counter[str] = Counter()
        kept = (row_session(row) for row in to_rows(curated_sessions) if row["kept"])
        rows = list(sft_rows(kept, _sizes(workspace), counts))
        return _stored(context, workspace, "sft_dataset", rows, SFT, counts, "messages")


@dg.asset(**asset_options("datasets", {"parquet", "dataset"}))
def preference_dataset(
    context: dg.AssetExecutionContext, curated_sessions: pa.RecordBatchReader, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """Pairs of a good and a bad trial of one task from one prompt (`prompt`, `chosen`, `rejected`, `tools`), for DPO."""
    with user_errors():
        good: list[Session] = []
        bad: list[Session] = []
        for row in to_rows(curated_sessions):
            if row["kept"] or is_bad_answer(row["drop_reason"]):
                (good if row["kept"] else bad).append(row_session(row))
        counts: Counter[str] = Counter()
        rows = list(preference_rows(good, bad, _sizes(workspace), counts))
        return _stored(context, workspace, "preference_dataset", rows, PREFERENCES, counts, "prompt")


@dg.asset(**asset_options("datasets", {"parquet", "dataset"}))
def sharegpt_dataset(
    context: dg.AssetExecutionContext, sft_dataset: pa.RecordBatchReader, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """The SFT rows as ShareGPT conversations, calls as `function_call` and results as `observation`."""
    with user_errors():
        rows = list(sharegpt_rows(to_rows(sft_dataset)))
        return _stored(context, workspace, "sharegpt_dataset", rows, SHAREGPT, Counter(rows=len(rows)), "conversations")


def _stored(
    context: dg.AssetExecutionContext,
    workspace: Workspace,
    asset: str,
    rows: list[dict[str, Any]],
    schema: pa.Schema,
    counts: Counter[str],
    text: str,
) -> dg.MaterializeResult:
    """Stage the table, write its JSONL files, and say what is in them."""
    lake, key = workspace.open_lake(), agent_key(context)
    staged = lake.stage(asset, key, to_table(rows, schema).to_batches(), schema)
    for split in SPLITS:
        lake.write_jsonl(asset, key, split, _plain(row for row in rows if row["split"] == split))
    lengths = [sum(len(message.get("content") or message.get("value") or "") for message in row[text]) for row in rows]
    return dg.MaterializeResult(
        value=staged,
        data_version=version(staged.sha256),
        metadata={
            "rows": len(rows),
            "counts": counts_table(counts, "what"),
            "splits": counts_table(counted(row["split"] for row in rows), "split"),
            "tasks": len({row["task_key"] for row in rows}),
            "jsonl": dg.MetadataValue.path(str(lake.jsonl(asset, key))),
            "preview": preview(rows, text),
            "lengths": histogram(lengths, f"{asset}: text of a row", "characters"),
        },
    )


def _plain(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows without what a file name says already."""
    for row in rows:
        yield {name: value for name, value in row.items() if name != "split"}


def _sizes(workspace: Workspace) -> SplitSizes:
    split = workspace.settings().split
    return SplitSizes(test=split.test, select=split.select).checked()


@dg.asset_check(asset=sft_dataset, partitions_def=AGENTS, blocking=True)
def nothing_stands_on_two_sides_of_the_split(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """No session, no task and no exact text is in more than one of train, select and test."""
    with user_errors():
        rows = to_rows(workspace.open_lake().open("sft_dataset", agent_key(context)).iter_batches())
        # The text is the row's, not the session's: two sessions may differ only in what was cut off their end.
        found = overlaps(row | {"content_sha256": sha256_of([row["messages"], row["tools"]])} for row in rows)
    return dg.AssetCheckResult(
        passed=not any(found.values()), metadata={name: ", ".join(values[:20]) or "none" for name, values in found.items()}
    )
