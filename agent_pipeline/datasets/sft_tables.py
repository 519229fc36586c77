"""The two tables of SFT rows, and functions that read rows from both.

`sft_dataset` contains the splits that a training run may see: `train` and `select`.
`heldout_dataset` contains the split `test`. In a lake of an earlier version, `sft_dataset` contains
all splits, and there is no `heldout_dataset`; such a lake can be read too. All readers of SFT rows
use the functions of this module. Writing the tables belongs to `build`.
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
"""Splits of the table `heldout_dataset`.

The split `select` is in `sft_dataset`, because training steps after SFT use its rows for early
stopping. A held-out table with `select` would therefore influence training.
"""


SPLITS_SEEN_IN_TRAINING: tuple[Split, ...] = ("train", "select")
"""Splits of the table `sft_dataset`: `train` is used for training, and `select` decides when
training stops.
"""

SEEN_IN_TRAINING = pa.schema(SFT, {b"splits": ",".join(SPLITS_SEEN_IN_TRAINING).encode()})
"""Schema of `sft_dataset`, whose metadata states that the table does not contain the split `test`.

A table of an earlier version does not have the mark. Because of the mark, a deleted
`heldout_dataset` is an error, and never looks like an agent without held-out rows.
"""


def list_sft_tables(lake: Lake, key: PartitionKey | None) -> list[str]:
    """Return the tables that contain an agent's SFT rows.

    A lake of an earlier version has only one such table.
    """
    return [SFT_TABLE, HELDOUT_TABLE] if lake.has(HELDOUT_TABLE, key) else [SFT_TABLE]


def find_splits_by_table(
    lake: Lake, key: PartitionKey | None, splits: Collection[str] = SPLITS
) -> dict[str, list[str]]:
    """Return the tables to read for some splits, with the splits to read from each table.

    If there is a `heldout_dataset`, its splits are never taken from `sft_dataset`. This matters if
    an interrupted run of a new version left an `sft_dataset` with all splits.

    Raises:
        DataError: Rows of `heldout_dataset` are wanted, but the table is missing.
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
    """Check that an `sft_dataset` without a `heldout_dataset` comes from an earlier version.

    Raises:
        DataError: There is no `sft_dataset`, or it lacks the split `test`.
    """
    with lake.open(SFT_TABLE, key) as file:
        if b"splits" in (file.schema_arrow.metadata or {}):
            raise MissingError(
                f"There is no {HELDOUT_TABLE} of {key} at {lake.table(HELDOUT_TABLE, key)}: "
                f"materialize `{SFT_TABLE}` and `{HELDOUT_TABLE}` again."
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
    """Return the SFT rows of some splits, ordered by session across both tables.

    Memory holds one batch per table at a time.

    Args:
        lake: The lake that has the tables.
        key: The partition.
        splits: The splits to read.
        columns: The columns to read, in addition to the columns that choose and order the rows.
            Empty means all columns.
        raw: Whether JSON columns become `msgspec.Raw`.

    Raises:
        DataError: A table does not exist, or is damaged.
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
    """Return the columns with short values of all SFT rows as one table.

    The rows of `sft_dataset` come first.

    Raises:
        DataError: A table does not exist, or is damaged.
    """
    parts = []
    names = list(dict.fromkeys([*columns, "split"]))
    for table, table_splits in find_splits_by_table(lake, key).items():
        rows = lake.open(table, key).read(names)
        chosen = make_column(table_splits, SFT.field("split"))
        parts.append(rows.filter(pc.is_in(rows["split"], chosen)).select(list(columns)))
    return pa.concat_tables(parts)
