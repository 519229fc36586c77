"""Ingestion: writing the table `sessions` from one partition of a store.

One pass over the store creates the table. Up to two more passes (`unify_trials`) redact values that
only another trial of the task marks as private. Then the inferred tools are completed, and the
regression checks compare the table with the last one. The code of a single pass belongs to
`table_pass`.

The table `sessions_seen` next to it records a hash of each session's data in the store, and the
facts that a run needs about a session that it does not read again. After a change of the code, the
settings or the readers, all sessions are read again.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.drift import Drift, measure_drift
from agent_pipeline.ingestion.growth import check_growth
from agent_pipeline.ingestion.reading import Preparation, ReadingOptions, hash_makers
from agent_pipeline.ingestion.seen_sessions import (
    SEEN_SCHEMA,
    SEEN_TABLE,
    TABLE_SHA256,
    read_seen_sessions,
    share_call_texts,
)
from agent_pipeline.ingestion.table_pass import (
    LastTable,
    PrivateValues,
    TablePass,
    combine_batches,
)
from agent_pipeline.ingestion.volume import check_volume
from agent_pipeline.json_types import JsonObject
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Tool, encode_tools, hash_content
from agent_pipeline.sessions.tables import ROWS_PER_BATCH, SESSIONS, make_column, to_rows
from agent_pipeline.sources.base import TraceSource
from agent_pipeline.storage.lake import Lake, StagedTable
from agent_pipeline.structs import decode_json

_MADE_BY, _TOOLS = b"made_by", b"tools"
"""Metadata keys of the table `sessions_seen`."""

_PREVIEW_ROWS = 5


@dataclass(frozen=True)
class IngestionResult:
    """A table that has been written but not committed, with counts for the report.

    Attributes:
        table: The table.
        counts: Counts by name (`damage`, `skipped`, `judgment`, `tools`).
        redacted: Counts of redacted values, by kind.
        first: The first sessions.
        copied: Number of sessions that were copied from the last table.
        forgotten: Number of the store's sessions that are on the block list.
        drift: The differences between the tools of the new sessions and of the last table.
    """

    table: StagedTable
    counts: dict[str, Counter[str]]
    redacted: Counter[str]
    first: list[JsonObject]
    copied: int
    forgotten: int
    drift: Drift


@dataclass(frozen=True)
class PassResult:
    """The result of one pass over a store, and the table that the pass wrote."""

    table_pass: TablePass
    table: StagedTable


def ingest(
    source: TraceSource,
    key: PartitionKey,
    options: ReadingOptions,
    lake: Lake,
    smallest_share: float = 0.0,
    largest_growth: float = 0.0,
) -> IngestionResult:
    """Read a partition and write its table `sessions`, which the caller commits.

    The table `sessions_seen` is committed at once. It names the table that it describes, and
    readers ignore it if the current table is a different one.

    Args:
        source: The store.
        key: The partition.
        options: The settings of the partition.
        lake: The lake.
        smallest_share: The table is refused if less than this share of the last table's sessions
            or verdicts is left; 0 allows any loss.
        largest_growth: The table is refused if more than this multiple of the last table's sessions
            is new; 0 allows any growth.

    Raises:
        DataError: The store lost sessions while it was read, or a guard refuses the table.
        PipelineError: Reading, preparing or writing fails; see `TraceSource.sessions`,
            `Preparation` and `Lake.stage`.
    """
    makers = hash_makers(options, source)
    last = _open_last_table(lake, key, makers)
    table_pass = TablePass(key, Preparation(options), BlockList.read(lake), last)
    result = _stage_pass(table_pass, source, key, lake)
    result = unify_trials(result, source, key, lake)
    table_pass, table = result.table_pass, result.table
    preparation = table_pass.preparation
    for row in to_rows(table_pass.seen.select(["session_id", "redacted", "private_id"])):
        preparation.note(row["session_id"], _decode_counts(row["redacted"]), row["private_id"])
    tools = table_pass.infer_tools()
    if table_pass.tools is not None and tools != table_pass.tools:
        # Later sessions may show more tools or arguments than the first batch did.
        table = lake.stage("sessions", key, _replace_tools(table, tools), SESSIONS)
    check_volume(lake, key, table, smallest_share, source.notes)
    check_growth(lake, key, table, largest_growth)
    tool_drift = measure_drift(lake, "sessions", key, table)
    source.notes.extend(preparation.notes(key))
    metadata = {
        _MADE_BY: makers.encode(),
        TABLE_SHA256: table.sha256.encode(),
        _TOOLS: encode_tools(tools),
    }
    schema = SEEN_SCHEMA.with_metadata(metadata)
    seen = table_pass.seen.cast(schema).combine_chunks()
    lake.stage(SEEN_TABLE, key, seen.to_batches(max_chunksize=ROWS_PER_BATCH), schema).commit()
    return IngestionResult(
        table=table,
        counts=_count_sessions(table),
        redacted=preparation.redacted,
        first=_read_first_rows(table),
        copied=len(table_pass.copied_ids),
        forgotten=table_pass.forgotten,
        drift=tool_drift,
    )


def unify_trials(
    result: PassResult, source: TraceSource, key: PartitionKey, lake: Lake
) -> PassResult:
    """Redact a value in all trials of a task if any trial of the task marks the value as private.

    A name that one trial marks as private may occur in another trial without such a mark. Only
    tasks that changed are examined, in two steps. First, the copied sessions of these tasks are
    read again, because their private values are not stored. Then the rows that still contain a
    value from another trial are made again without it.

    Args:
        result: The first pass and its table.
        source: The store.
        key: The partition.
        lake: The lake.

    Returns:
        The last pass and its table. They are the first ones if no trial contains a private value of
        another trial.
    """
    tasks = result.table_pass.find_changed_tasks()
    copies = result.table_pass.find_copies(tasks)
    if copies:
        result = _repeat_pass(result, copies, source, key, lake)
    private_values = result.table_pass.find_private_values(tasks, result.table)
    if private_values:
        result = _repeat_pass(result, private_values, source, key, lake)
    return result


def _stage_pass(
    table_pass: TablePass, source: TraceSource, key: PartitionKey, lake: Lake
) -> PassResult:
    """Run one pass over a store, and write its table."""
    batches = table_pass.make_batches(source.stored(key))
    return PassResult(table_pass, lake.stage("sessions", key, batches, SESSIONS))


def _repeat_pass(
    result: PassResult,
    rebuilt: PrivateValues,
    source: TraceSource,
    key: PartitionKey,
    lake: Lake,
) -> PassResult:
    """Run another pass, which builds some sessions again, and delete the previous pass's table.

    Args:
        result: The previous pass and its table.
        rebuilt: The sessions to build again, with the private values of other trials.
        source: The store.
        key: The partition.
        lake: The lake.
    """
    table_pass = result.table_pass.start_next(result.table, rebuilt)
    next_result = _stage_pass(table_pass, source, key, lake)
    result.table.file.unlink()
    table_pass.check_complete()
    return next_result


def _open_last_table(lake: Lake, key: PartitionKey, makers: str) -> LastTable | None:
    """Return the last table, or None if its rows cannot be copied."""
    last = read_seen_sessions(lake, key)
    if last is None or last.seen.schema.metadata.get(_MADE_BY) != makers.encode():
        return None
    try:
        tools = msgspec.json.decode(last.seen.schema.metadata[_TOOLS])
        return LastTable.open(last.file, share_call_texts(last.seen), tools)
    except (DataError, KeyError, TypeError, ValueError):  # a damaged table is created again
        return None


def _replace_tools(staged: StagedTable, tools: list[Tool]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a table with newly inferred tools, then delete the table."""
    file = pq.ParquetFile(staged.file)
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, use_threads=False)
        yield combine_batches(_fill_in_tools(table, tools))
    staged.file.unlink()


def _fill_in_tools(table: pa.Table, tools: list[Tool]) -> pa.Table:
    """Return a table in which rows that lack their own tools get the inferred tools."""
    origins = table["tools_origin"].to_pylist()
    if not any(origin in ("none", "inferred") for origin in origins):
        return table
    inferred_text = encode_tools(tools)
    inferred_origin = "inferred" if tools else "none"
    texts = table["tools"].to_pylist()
    hashes = table["content_sha256"].to_pylist()
    messages = table["messages"]
    for index, origin in enumerate(origins):
        if origin in ("none", "inferred"):
            origins[index] = inferred_origin
            texts[index] = inferred_text.decode()
            hashes[index] = hash_content(messages[index].as_py().encode(), inferred_text)
    columns = {"tools": texts, "tools_origin": origins, "content_sha256": hashes}
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        column = table.schema.field(index)
        table = table.set_column(index, column, make_column(values, column))
    return table


def _count_sessions(staged: StagedTable) -> dict[str, Counter[str]]:
    """Count the sessions of a table.

    Damage and skipped content are counted by kind. Sessions are counted by the source's judgment
    (`judgment`) and by the origin of their tools (`tools`).
    """
    table = pq.ParquetFile(staged.file).read(["damage", "skipped", "judgment", "tools_origin"])
    return {
        "damage": _add_up_counts(table["damage"]),
        "skipped": _add_up_counts(table["skipped"]),
        "judgment": _count_values(table["judgment"]),
        "tools": _count_values(table["tools_origin"]),
    }


def _add_up_counts(column: pa.ChunkedArray) -> Counter[str]:
    """Add up the counts in a JSON column that holds counts by kind."""
    sums: Counter[str] = Counter()
    for entry in pc.value_counts(column.cast(pa.string())).to_pylist():
        for kind, count in msgspec.json.decode(entry["values"]).items():
            sums[kind] += count * entry["counts"]
    return sums


def _count_values(column: pa.ChunkedArray) -> Counter[str]:
    """Count how often each value occurs in a column.

    Nulls are counted as `none`.
    """
    entries = pc.value_counts(column).to_pylist()
    return Counter({entry["values"] or "none": entry["counts"] for entry in entries})


def _read_first_rows(staged: StagedTable) -> list[JsonObject]:
    """Return the ids and messages of a table's first sessions."""
    batches = pq.ParquetFile(staged.file).iter_batches(
        batch_size=_PREVIEW_ROWS, columns=["session_id", "messages"]
    )
    first_batch = next(batches, None)
    return [] if first_batch is None else list(to_rows([first_batch]))


@lru_cache(maxsize=1024)
def _decode_counts(text: str) -> dict[str, int]:
    """Decode the counts in a JSON text."""
    return decode_json(text, dict[str, int])
