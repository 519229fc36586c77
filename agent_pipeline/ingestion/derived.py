"""The search of tables that are made from `sessions` for private data that `sessions` does not hold.

The check of `sessions` has searched every text of that table. So a text of another table is searched only if no text of
`sessions` is the same: a judge's reason, a text of the settings, a form that a data set gives a call. The rows of a data
set are mostly copies, and to recognise a copy costs a twentieth of a search. Ids and hashes stay, as they do in `sessions`.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import Redactor
from agent_pipeline.sessions.tables import is_json_type
from agent_pipeline.storage.lake import Lake

IDS = frozenset(
    {
        "session_id",
        "rejected_session_id",
        "parent_session_id",
        "duplicate_of",
        "continued_by",
        "row_id",
    }
)
"""Columns that hold nothing but ids of sessions."""

TEXTS_PER_SEARCH = 500
_ROWS = 1000


class DerivedScan(NamedTuple):
    """What a search of a derived table found.

    Attributes:
        rows: how many rows the table has.
        texts: how many texts they hold.
        searched: how many of the texts were searched, because `sessions` does not hold them.
        kinds: how often a private value was found, by kind.
        columns: the columns in which private values were found.
    """

    rows: int
    texts: int
    searched: int
    kinds: Counter[str]
    columns: list[str]


def scan_derived(
    lake: Lake, asset: str, key: PartitionKey | None, redactor: Redactor
) -> DerivedScan:
    """Search the texts of a table that stand in no row of `sessions`.

    Args:
        lake: where the tables are.
        asset: the table to search.
        key: its partition; without one the rows are of all agents.
        redactor: what is private.

    Raises:
        DataError: the table is missing or damaged.
        RedactionError: the detectors cannot be used.
    """
    file = lake.open(asset, key)
    known = _known_texts(lake, key)
    kinds: Counter[str] = Counter()
    columns: set[str] = set()
    texts = searched = 0
    for batch in file.iter_batches(_ROWS):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not _is_searched(name, column.type):
                continue
            leaves = list(_texts_of(column))
            texts += len(leaves)
            new = _unknown(leaves, known)
            searched += len(new)
            for start in range(0, len(new), TEXTS_PER_SEARCH):
                if finds := redactor.finds_in_texts(new[start : start + TEXTS_PER_SEARCH]):
                    kinds.update(finds.values())
                    columns.add(name)
    return DerivedScan(file.metadata.num_rows, texts, searched, kinds, sorted(columns))


def _unknown(leaves: list[str], known: np.ndarray) -> list[str]:
    """Return the texts, each once, whose hashes are not among the sorted hashes `known`."""
    distinct = list(dict.fromkeys(leaves))
    if not distinct:
        return []
    hashes = np.fromiter(map(hash, distinct), np.int64, len(distinct))
    if not len(known):
        return distinct
    places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return [distinct[index] for index in np.flatnonzero(known[places] != hashes)]


def _known_texts(lake: Lake, key: PartitionKey | None) -> np.ndarray:
    """Return the sorted hashes of the texts in the tables `sessions` of a partition, or of all partitions."""
    keys = [key] if key else lake.partitions("tables", "sessions")
    parts = [_texts_of_sessions(lake, each) for each in keys if lake.has("sessions", each)]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


_LAST: dict[str, np.ndarray] = {}
"""The hashes of the texts of the last table, by its path and version: a run searches several tables of one partition."""


def _texts_of_sessions(lake: Lake, key: PartitionKey) -> np.ndarray:
    """Return the sorted hashes of the texts in a table `sessions`."""
    path = lake.table("sessions", key)
    status = path.stat()
    version = f"{path} {status.st_size} {getattr(status, 'st_mtime_ns', status.st_mtime)}"
    if version not in _LAST:
        hashes = array("q")
        for batch in lake.open("sessions", key).iter_batches(_ROWS):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if _is_searched(name, column.type):
                    hashes.extend(map(hash, _texts_of(column)))
        _LAST.clear()
        _LAST[version] = np.unique(np.array(hashes, np.int64))
    return _LAST[version]


def _is_searched(name: str, data_type: pa.DataType) -> bool:
    return name not in IDS and not name.endswith("sha256") and _holds_text(data_type)


def _holds_text(data_type: pa.DataType) -> bool:
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


def _texts_of(column: pa.Array) -> Iterator[str]:
    """Yield the texts in a column, and those in its JSON: names and values."""
    json = is_json_type(column.type)
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    for value in storage.to_pylist():
        if value is not None:
            yield from _leaves(msgspec.json.decode(value) if json else value)


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts in a value. A text that is JSON itself, such as a call's arguments, is one text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
