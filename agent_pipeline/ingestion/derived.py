"""Search for private data in derived tables that the table `sessions` does not contain.

Every text of `sessions` has already been searched (`privacy_scan`). A text of another table is
therefore searched only if `sessions` does not contain an equal text. Such texts are a judge's
reason, a text of the settings, or the form that a dataset gives a call. Most rows of a dataset are
copies, and recognizing a copy takes a twentieth of the time of a search. As in `sessions`, ids and
hashes are not searched.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import Redactor
from agent_pipeline.sessions.tables import is_json_type
from agent_pipeline.storage.lake import Lake

_Hashes: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""Hashes of texts, as an array of shape (texts,)."""

ID_COLUMNS = frozenset(
    {
        "session_id",
        "rejected_session_id",
        "parent_session_id",
        "duplicate_of",
        "continued_by",
        "row_id",
    }
)
"""Columns that contain only session ids."""

TEXTS_PER_SEARCH = 500
_ROWS_PER_BATCH = 1000


@dataclass(frozen=True)
class DerivedScan:
    """The result of searching a derived table for private data.

    Attributes:
        rows: Number of rows in the table.
        texts: Number of texts in the rows.
        searched: Number of texts that were searched, because `sessions` does not contain them.
        kinds: Counts of the private values that were found, by kind.
        columns: The columns in which private values were found.
    """

    rows: int
    texts: int
    searched: int
    kinds: Counter[str]
    columns: list[str]


def scan_derived(
    lake: Lake, asset: str, key: PartitionKey | None, redactor: Redactor
) -> DerivedScan:
    """Search for private data in those texts of a table that do not occur in `sessions`.

    Args:
        lake: The lake with the tables.
        asset: The table to search.
        key: The partition. None searches the rows of all agents.
        redactor: Finds private values.

    Raises:
        DataError: The table is missing or damaged.
        RedactionError: The detectors cannot be used.
    """
    file = lake.open(asset, key)
    known_hashes = _hash_known_texts(lake, key)
    kinds: Counter[str] = Counter()
    columns: set[str] = set()
    texts = searched = 0
    for batch in file.iter_batches(_ROWS_PER_BATCH):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not _is_searched(name, column.type):
                continue
            column_texts = list(_list_texts(column))
            texts += len(column_texts)
            new_texts = _find_unknown(column_texts, known_hashes)
            searched += len(new_texts)
            for start in range(0, len(new_texts), TEXTS_PER_SEARCH):
                finds = redactor.finds_in_texts(new_texts[start : start + TEXTS_PER_SEARCH])
                if finds:
                    kinds.update(finds.values())
                    columns.add(name)
    return DerivedScan(file.metadata.num_rows, texts, searched, kinds, sorted(columns))


def _find_unknown(texts: list[str], known_hashes: _Hashes) -> list[str]:
    """Return the distinct texts whose hashes are not among the known hashes.

    `known_hashes` must be sorted.
    """
    distinct = list(dict.fromkeys(texts))
    if not distinct or not len(known_hashes):
        return distinct
    hashes = np.fromiter(map(hash, distinct), np.int64, len(distinct))
    positions = np.searchsorted(known_hashes, hashes)
    positions = np.minimum(positions, len(known_hashes) - 1)
    is_unknown = known_hashes[positions] != hashes
    return [distinct[index] for index in np.flatnonzero(is_unknown)]


def _hash_known_texts(lake: Lake, key: PartitionKey | None) -> _Hashes:
    """Return the sorted hashes of the texts in `sessions`, for one or for all partitions."""
    keys = [key] if key else lake.partitions("tables", "sessions")
    hashes = [_hash_session_texts(lake, key) for key in keys if lake.has("sessions", key)]
    return np.unique(np.concatenate(hashes)) if hashes else np.empty(0, np.int64)


_last_hashes: dict[str, _Hashes] = {}
"""Hashes of the texts of the table that was searched last, by its path and version.

They are kept because a run searches several tables of one partition.
"""


def _hash_session_texts(lake: Lake, key: PartitionKey) -> _Hashes:
    """Return the sorted hashes of all texts in one table `sessions`."""
    path = lake.table("sessions", key)
    status = path.stat()
    version = f"{path} {status.st_size} {getattr(status, 'st_mtime_ns', status.st_mtime)}"
    if version not in _last_hashes:
        hashes = array("q")
        for batch in lake.open("sessions", key).iter_batches(_ROWS_PER_BATCH):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if _is_searched(name, column.type):
                    hashes.extend(map(hash, _list_texts(column)))
        _last_hashes.clear()
        _last_hashes[version] = np.unique(np.array(hashes, np.int64))
    return _last_hashes[version]


def _is_searched(name: str, data_type: pa.DataType) -> bool:
    """Return whether a column contains texts other than ids and hashes."""
    return name not in ID_COLUMNS and not name.endswith("sha256") and _holds_text(data_type)


def _holds_text(data_type: pa.DataType) -> bool:
    """Return whether values of an Arrow type contain texts."""
    if (
        is_json_type(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
    ):
        return True
    if pa.types.is_list(data_type):
        return _holds_text(data_type.value_type)
    if pa.types.is_struct(data_type):
        return any(_holds_text(field.type) for field in data_type)
    return pa.types.is_dictionary(data_type) and _holds_text(data_type.value_type)


def _list_texts(column: pa.Array) -> Iterator[str]:
    """Yield the texts in a column, including the keys and values of its JSON."""
    is_json = is_json_type(column.type)
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    for value in storage.to_pylist():
        if value is not None:
            yield from _list_leaves(msgspec.json.decode(value) if is_json else value)


def _list_leaves(value: object) -> Iterator[str]:
    """Yield all texts inside a nested value.

    A JSON text, such as a call's arguments, counts as one text.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _list_leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _list_leaves(inner)
