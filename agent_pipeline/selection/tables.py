"""The tables that selection reads from the lake and writes to it, a batch of rows in memory at a time."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.splits import LINEAGE_COLUMNS
from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import (
    define_optional,
    define_required,
    make_column,
    read_batches,
    to_rows,
)
from agent_pipeline.storage.lake import Lake

Row = dict[str, Any]

DATASET, CORESET_TABLE, BUFFER = "sft_dataset", "sft_coreset", "replay_buffer"
PICKS = "coreset.json"

CORESET = pa.schema(
    [
        *LINEAGE_COLUMNS[:-1],
        *define_required(pa.bool_(), chosen="whether the row is trained on"),
        *define_optional(pa.int64(), rank="its place among the chosen rows, from 1"),
        *define_optional(pa.float64(), score="what the strategy ranked it by"),
        *define_required(
            pa.string(), reason="why it was chosen, or was not: a word of the strategy"
        ),
        *define_optional(pa.string(), duplicate_of="the session whose row stands for this one"),
        *define_optional(pa.float64(), similarity="Jaccard similarity to that row, 0 to 1"),
    ]
)


def dataset_rows(
    lake: Lake,
    key: PartitionKey | None,
    splits: Collection[str] = ("train",),
    dataset: str = DATASET,
    columns: Sequence[str] = (),
) -> Iterator[Row]:
    """The rows of `sft_dataset`, or of another data set, of these splits. Only `columns` are read where any are named, beside those that choose the rows.

    Raises:
        DataError: the table was never made, or is damaged.
    """
    batches = read_batches(lake.open(dataset, key), [*columns, "split"] if columns else None)
    chosen = make_column(list(splits), SFT.field("split"))
    return to_rows(batch.filter(pc.is_in(batch["split"], chosen)) for batch in batches)


def read_sources(lake: Lake, key: PartitionKey) -> dict[str, str]:
    """Return the reader of each session of an agent; nothing if the sessions cannot be read."""
    try:
        with lake.open("sessions", key) as file:
            table = file.read(["session_id", "source"])
    except (DataError, pa.ArrowException, OSError):
        return {}
    return dict(zip(table["session_id"].to_pylist(), table["source"].to_pylist(), strict=True))


def read_coreset(lake: Lake, key: PartitionKey, columns: list[str] | None = None) -> pa.Table:
    """The table `sft_coreset`, which holds ids and no texts, or some columns of it.

    Raises:
        DataError: it was never made, is damaged, or was made before it had the columns that it has now.
    """
    return lake.open(CORESET_TABLE, key, CORESET).read(columns)


def chosen_rows(lake: Lake, key: PartitionKey) -> tuple[list[Row], set[str]]:
    """The training rows that the coreset chose, and the sessions that it left out because another row stands for them.

    Raises:
        DataError: some of the rows are no longer in the dataset.
    """
    coreset = read_coreset(lake, key)
    chosen = set(coreset.filter(coreset["chosen"])["row_id"].to_pylist())
    rows = [row for row in dataset_rows(lake, key) if row["row_id"] in chosen]
    if missing := chosen - {row["row_id"] for row in rows}:
        raise DataError(
            f"{len(missing)} chosen rows of {key} are no longer in sft_dataset: materialize sft_coreset again."
        )
    return rows, set(coreset.filter(pc.is_valid(coreset["duplicate_of"]))["session_id"].to_pylist())


def check_chosen_calls(lake: Lake, key: PartitionKey, rows: Iterable[Row]) -> None:
    """Check that an agent that makes calls is not trained on rows without one.

    Raises:
        DataError: the training rows of `sft_dataset` have calls, and the chosen rows have none.
    """
    if any("call" in (row.get("turn_classes") or ()) for row in rows):
        return
    calling = sum(
        "call" in (row.get("turn_classes") or ())
        for row in dataset_rows(lake, key, columns=["turn_classes"])
    )
    if calling:
        raise DataError(
            f"None of the chosen rows of {key} makes a call, although {calling:,} rows of sft_dataset do, so the model would learn not to "
            "call: raise sft_coreset.target_size, or choose another sft_coreset.strategy."
        )


def write_picks(coreset: pa.Table, folder: Path) -> None:
    """Write which rows a coreset chose, and the sessions for which another row stands, as JSON that `forget` can change."""
    picks = {
        "chosen": coreset.filter(coreset["chosen"]).select(["row_id", "session_id"]).to_pylist(),
        "duplicates": coreset.filter(pc.is_valid(coreset["duplicate_of"]))
        .select(["session_id"])
        .to_pylist(),
    }
    (folder / PICKS).write_text(json.dumps(picks, indent=1), encoding="utf-8")


def picked_rows(rows: Iterable[Row], folder: Path) -> tuple[list[Row], set[str]]:
    """Those of `rows` that `write_picks` wrote as chosen, and the sessions for which another row stands."""
    picks = json.loads((folder / PICKS).read_text(encoding="utf-8"))
    chosen = {each["row_id"] for each in picks["chosen"]}
    duplicates = {session["session_id"] for session in picks["duplicates"]}
    return [row for row in rows if row["row_id"] in chosen], duplicates


def read_buffer(lake: Lake, key: PartitionKey) -> list[Row]:
    """The rows of the replay buffer; none where there was never one.

    Raises:
        DataError: it is damaged.
    """
    if not lake.has(BUFFER, key):
        return []
    try:
        rows = list(to_rows(read_batches(lake.open(BUFFER, key))))
    except (DataError, pa.ArrowException, OSError) as error:
        raise DataError(
            f"The replay buffer of {key} at {lake.table(BUFFER, key)} is damaged: put a copy of it back, or delete it, and it begins anew "
            "with the next run's rows."
        ) from error
    return [dict.fromkeys(SFT.names) | row for row in rows]
