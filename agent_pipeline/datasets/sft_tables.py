"""The two tables of SFT rows, and how readers get rows from both.

`sft_dataset` holds what a training run may see: the splits `train` and `select`. `heldout_dataset`
holds the split `test`. In a lake of an earlier version, `sft_dataset` holds all splits, and there
is no `heldout_dataset`; such a lake is read too. Readers of SFT rows use the functions of this
module. How the tables are written does not belong here (`build`).
"""

import heapq
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.splits import SPLITS, Split
from agent_pipeline.errors import MissingError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import make_column, read_batches, to_rows
from agent_pipeline.storage.lake import Lake

SFT_TABLE = "sft_dataset"
HELDOUT_TABLE = "heldout_dataset"

HELDOUT_SPLITS: tuple[Split, ...] = ("test",)
"""The splits of `heldout_dataset`.

The split `select` is in `sft_dataset`: training steps after SFT stop early by its rows, so a table
with `select` in it would flow into training.
"""


SPLITS_SEEN_IN_TRAINING: tuple[Split, ...] = ("train", "select")
"""The splits of `sft_dataset`: `train` is trained on, and `select` decides when to stop."""

SEEN_IN_TRAINING = pa.schema(SFT, {b"splits": ",".join(SPLITS_SEEN_IN_TRAINING).encode()})
"""The schema of `sft_dataset`, with a mark that the table lacks the split `test`.

A table of an earlier version has no mark. With the mark, a deleted `heldout_dataset` is an error,
and never looks like an agent without held-out rows.
"""


def list_sft_tables(lake: Lake, key: PartitionKey | None) -> list[str]:
    """Return the tables that hold an agent's SFT rows; a lake of an earlier version has one."""
    return [SFT_TABLE, HELDOUT_TABLE] if lake.has(HELDOUT_TABLE, key) else [SFT_TABLE]


def find_splits_by_table(
    lake: Lake, key: PartitionKey | None, splits: Collection[str] = SPLITS
) -> dict[str, list[str]]:
    """Return the tables to read for some splits, each with the splits to take from the table.

    If there is a `heldout_dataset`, its splits are never taken from `sft_dataset`, even if an
    interrupted run of a new version left an `sft_dataset` with all splits.

    Raises:
        DataError: Rows of `heldout_dataset` are wanted, and the table is gone.
    """
    splits_by_table: dict[str, list[str]] = {}
    has_heldout = lake.has(HELDOUT_TABLE, key)
    if not has_heldout and set(splits) & set(HELDOUT_SPLITS):
        _check_holds_all_splits(lake, key)
    for split in splits:
        table = HELDOUT_TABLE if has_heldout and split in HELDOUT_SPLITS else SFT_TABLE
        splits_by_table.setdefault(table, []).append(split)
    return splits_by_table


def _check_holds_all_splits(lake: Lake, key: PartitionKey | None) -> None:
    """Check that an `sft_dataset` without a `heldout_dataset` is of an earlier version.

    Raises:
        DataError: There is no `sft_dataset`, or it lacks the split `test`.
    """
    with lake.open(SFT_TABLE, key) as file:
        if b"splits" in (file.schema_arrow.metadata or {}):
            raise MissingError(
                f"There is no {HELDOUT_TABLE} of {key} at {lake.table(HELDOUT_TABLE, key)}: "
                f"materialize {SFT_TABLE} and {HELDOUT_TABLE} again."
            )


def filter_splits(
    batches: Iterator[pa.RecordBatch], splits: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches with only the rows of some splits."""
    chosen = make_column(list(splits), SFT.field("split"))
    for batch in batches:
        yield batch.filter(pc.is_in(batch["split"], chosen))


def read_sft_rows(
    lake: Lake,
    key: PartitionKey | None,
    splits: Collection[str] = SPLITS,
    columns: Sequence[str] = (),
    raw: bool = False,
) -> Iterator[dict[str, object]]:
    """Return the SFT rows of some splits, sorted by session as one table would have them.

    Memory holds one batch per table at a time.

    Args:
        lake: The lake that has the tables.
        key: The partition.
        splits: The splits to read.
        columns: The columns to read, besides those that choose and sort the rows; empty for all.
        raw: Whether JSON columns become `msgspec.Raw`.

    Raises:
        DataError: A table was never made, or is damaged.
    """
    splits_by_table = find_splits_by_table(lake, key, splits)
    names = list(dict.fromkeys([*columns, "split"])) if columns else None
    if names and len(splits_by_table) > 1:
        names = list(dict.fromkeys([*names, "session_id"]))
    sources = []
    for table, table_splits in splits_by_table.items():
        batches = read_batches(lake.open(table, key), names)
        sources.append(to_rows(filter_splits(batches, table_splits), raw))
    if len(sources) == 1:
        return sources[0]
    return heapq.merge(*sources, key=lambda row: row["session_id"])


def read_sft_columns(lake: Lake, key: PartitionKey | None, columns: Sequence[str]) -> pa.Table:
    """Return short columns of all SFT rows as one table, the rows of `sft_dataset` first.

    Raises:
        DataError: A table was never made, or is damaged.
    """
    parts = []
    names = list(dict.fromkeys([*columns, "split"]))
    for table, table_splits in find_splits_by_table(lake, key).items():
        rows = lake.open(table, key).read(names)
        chosen = make_column(table_splits, SFT.field("split"))
        parts.append(rows.filter(pc.is_in(rows["split"], chosen)).select(list(columns)))
    return pa.concat_tables(parts)
