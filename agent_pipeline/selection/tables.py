"""The tables of the lake that selection reads and writes.

Memory holds one batch of rows at a time. Choosing rows belongs to `coresets` and `replay`.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.sft_tables import SFT_TABLE, filter_splits, read_sft_rows
from agent_pipeline.datasets.splits import LINEAGE_COLUMNS
from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import (
    define_optional,
    define_required,
    read_batches,
    to_rows,
)
from agent_pipeline.storage.lake import Lake

Row: TypeAlias = DatasetRow

DATASET, CORESET_TABLE, BUFFER = SFT_TABLE, "sft_coreset", "replay_buffer"
PICKS = "coreset.json"

CORESET = pa.schema(
    [
        *LINEAGE_COLUMNS[:-1],
        *define_required(pa.bool_(), chosen="whether the row is trained on"),
        *define_optional(pa.int64(), rank="position among the chosen rows, starting at 1"),
        *define_optional(pa.float64(), score="number by which the strategy ranked the row"),
        *define_required(pa.string(), reason="reason why the row was chosen or left out"),
        *define_optional(
            pa.string(), duplicate_of="id of the session whose row is used instead of this row"
        ),
        *define_optional(
            pa.float64(), similarity="Jaccard similarity to the row that is used instead, 0 to 1"
        ),
    ]
)


def read_dataset_rows(
    lake: Lake,
    key: PartitionKey | None,
    splits: Collection[str] = ("train",),
    dataset: str = DATASET,
    columns: Sequence[str] = (),
) -> Iterator[Row]:
    """Return the rows of some splits of a dataset, in the order of the table.

    SFT rows of the split `test` come from `heldout_dataset`. SFT rows of the other splits come from
    `sft_dataset`.

    Args:
        lake: The lake that has the dataset.
        key: The partition. None means a dataset of several agents.
        splits: The splits to read.
        dataset: The dataset. `sft_dataset` means the SFT rows of every split.
        columns: The columns to read, in addition to the columns that choose the rows. Empty means
            all columns.

    Raises:
        DataError: the table does not exist, or is damaged.
    """
    if dataset == DATASET:
        return cast(Iterator[Row], read_sft_rows(lake, key, splits, columns))
    batches = read_batches(lake.open(dataset, key), [*columns, "split"] if columns else None)
    return cast(Iterator[Row], to_rows(filter_splits(batches, splits)))


def read_sources(lake: Lake, key: PartitionKey) -> dict[str, str]:
    """Return the name of the reader of each session of an agent.

    The result is empty if the sessions cannot be read.
    """
    try:
        with lake.open("sessions", key) as file:
            table = file.read(["session_id", "source"])
    except (DataError, pa.ArrowException, OSError):
        return {}
    return dict(zip(table["session_id"].to_pylist(), table["source"].to_pylist(), strict=True))


def read_coreset(lake: Lake, key: PartitionKey, columns: list[str] | None = None) -> pa.Table:
    """Read the table `sft_coreset`.

    The table contains ids, but no texts.

    Args:
        lake: The lake.
        key: The agent.
        columns: The columns to read. None means all columns.

    Raises:
        DataError: the table does not exist, is damaged, or lacks columns of this version.
    """
    return lake.open(CORESET_TABLE, key, CORESET).read(columns)


@dataclass(frozen=True)
class ChosenRows:
    """The training rows that were chosen for a coreset.

    Attributes:
        rows: The rows.
        duplicated: The sessions that were left out because another row represents them.
    """

    rows: list[Row]
    duplicated: set[str]


class MissingRowsError(DataError):
    """Raised if rows that were chosen for a coreset are no longer in the dataset.

    Attributes:
        key: The agent.
        count: The number of missing rows.
    """

    def __init__(self, key: PartitionKey, count: int) -> None:
        self.key, self.count = key, count
        super().__init__(
            f"{count} chosen rows of {key} are no longer in sft_dataset: materialize "
            "`sft_coreset` again."
        )


class NoCallsError(DataError):
    """Raised if an agent makes tool calls, but none of its chosen rows contains a call.

    Attributes:
        key: The agent.
        calling: The number of training rows with calls.
    """

    def __init__(self, key: PartitionKey, calling: int) -> None:
        self.key, self.calling = key, calling
        super().__init__(
            f"None of the chosen rows of {key} contains a tool call, although {calling:,} rows of "
            "sft_dataset do, so the model would learn not to call: raise "
            "`sft_coreset.target_size`, or choose another `sft_coreset.strategy`."
        )


class DamagedBufferError(DataError):
    """Raised if a replay buffer cannot be read.

    Attributes:
        key: The agent.
        path: The table.
    """

    def __init__(self, key: PartitionKey, path: object) -> None:
        self.key, self.path = key, str(path)
        super().__init__(
            f"The replay buffer of {key} at {path} is damaged: restore it from a backup, or "
            "delete it, so that the next run begins a new buffer."
        )


def read_chosen_rows(lake: Lake, key: PartitionKey) -> ChosenRows:
    """Return the training rows that were chosen for the coreset.

    Raises:
        MissingRowsError: some of the rows are no longer in the dataset.
        DataError: a table is damaged or out of date.
    """
    coreset = read_coreset(lake, key)
    chosen = set(coreset.filter(coreset["chosen"])["row_id"].to_pylist())
    rows = [row for row in read_dataset_rows(lake, key) if row["row_id"] in chosen]
    missing = chosen - {row["row_id"] for row in rows}
    if missing:
        raise MissingRowsError(key, len(missing))
    duplicated = coreset.filter(pc.is_valid(coreset["duplicate_of"]))
    return ChosenRows(rows, set(duplicated["session_id"].to_pylist()))


def check_chosen_calls(lake: Lake, key: PartitionKey, rows: Iterable[Row]) -> None:
    """Check that an agent that makes tool calls is not trained only on rows without calls.

    Args:
        lake: The lake.
        key: The agent.
        rows: The chosen rows.

    Raises:
        NoCallsError: the training rows of `sft_dataset` have calls, but the chosen rows have none.
    """
    if any("call" in (row.get("turn_classes") or ()) for row in rows):
        return
    calling = sum(
        "call" in (row.get("turn_classes") or ())
        for row in read_dataset_rows(lake, key, columns=["turn_classes"])
    )
    if calling:
        raise NoCallsError(key, calling)


def write_picks(coreset: pa.Table, folder: Path) -> None:
    """Write the chosen rows and the duplicates of a coreset as JSON, which `forget` can change."""
    chosen = coreset.filter(coreset["chosen"])
    duplicates = coreset.filter(pc.is_valid(coreset["duplicate_of"]))
    picks = {
        "chosen": chosen.select(["row_id", "session_id"]).to_pylist(),
        "duplicates": duplicates.select(["session_id"]).to_pylist(),
    }
    (folder / PICKS).write_text(json.dumps(picks, indent=1), encoding="utf-8")


def keep_picks(rows: Iterable[Row], folder: Path) -> ChosenRows:
    """Return the rows that a file of `write_picks` in a folder lists as chosen."""
    picks = json.loads((folder / PICKS).read_text(encoding="utf-8"))
    chosen = {row["row_id"] for row in picks["chosen"]}
    duplicated = {session["session_id"] for session in picks["duplicates"]}
    return ChosenRows([row for row in rows if row["row_id"] in chosen], duplicated)


def read_buffer(lake: Lake, key: PartitionKey) -> list[Row]:
    """Return the rows of the replay buffer, or an empty list if there is no buffer.

    Raises:
        DamagedBufferError: the buffer is damaged.
    """
    if not lake.has(BUFFER, key):
        return []
    try:
        rows = list(to_rows(read_batches(lake.open(BUFFER, key))))
    except (DataError, pa.ArrowException, OSError) as error:
        raise DamagedBufferError(key, lake.table(BUFFER, key)) from error
    return [cast(Row, dict.fromkeys(SFT.names) | row) for row in rows]
