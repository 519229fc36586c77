"""Sessions as Arrow tables: the schemas of the lake's first three tables, and the way there and back.

`messages` and `tools` are JSON columns (`pa.json_()`, Parquet's JSON logical type): a nested list of structs would add
`tool_calls: null` to every message, which some chat templates render as a tool call.
"""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from agent_pipeline.traces.session import Session

ROWS_PER_BATCH = 1000
CHARACTERS_PER_BATCH = 64 << 20
"""A batch with more text than this ends early: a thousand sessions with outputs of a megabyte are no batch to hold in memory."""

_UTC = pa.timestamp("us", tz="UTC")

SESSIONS = pa.schema(
    [
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("project", pa.string(), nullable=False),
        pa.field("agent", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("content_sha256", pa.string(), nullable=False),
        pa.field("task_key", pa.string(), nullable=False),
        pa.field("task_id", pa.string()),
        pa.field("trial", pa.string()),
        pa.field("created_at", _UTC),
        pa.field("archived", pa.bool_(), nullable=False),
        pa.field("messages", pa.json_(), nullable=False),
        pa.field("tools", pa.json_(), nullable=False),
        pa.field("tools_origin", pa.string(), nullable=False),
        pa.field("model_id", pa.string()),
        pa.field("judgment", pa.string()),
        pa.field("score", pa.float64()),
        pa.field("scores", pa.json_(), nullable=False),
        pa.field("attack_succeeded", pa.bool_()),
        pa.field("error", pa.string()),
        pa.field("ended_at", _UTC),
        pa.field("usage", pa.json_(), nullable=False),
        pa.field("cost_usd", pa.float64()),
        pa.field("parent_session_id", pa.string()),
        pa.field("reasoning", pa.json_(), nullable=False),
        pa.field("damage", pa.json_(), nullable=False),
        pa.field("skipped", pa.json_(), nullable=False),
        pa.field("context", pa.json_(), nullable=False),
    ]
)

JUDGED = (
    SESSIONS.append(pa.field("verdict", pa.string())).append(pa.field("verdict_by", pa.string())).append(pa.field("measures", pa.json_()))
)

CURATED = (
    JUDGED.append(pa.field("kept", pa.bool_(), nullable=False))
    .append(pa.field("drop_reason", pa.string()))
    .append(pa.field("drop_detail", pa.string()))
)


def session_row(session: Session) -> dict[str, Any]:
    """A session as a row of `SESSIONS`."""
    row = {name: getattr(session, name) for name in SESSIONS.names if name != "content_sha256"}
    row["content_sha256"] = session.content_sha256()
    return row


def row_session(row: dict[str, Any]) -> Session:
    """A row (of any table that has the columns of `SESSIONS`) as a session."""
    return Session(**{name: row[name] for name in SESSIONS.names if name != "content_sha256"})


def to_batches(rows: Iterable[dict[str, Any]], schema: pa.Schema, size: int = ROWS_PER_BATCH) -> Iterator[pa.RecordBatch]:
    """Rows as record batches of at most `size`, JSON columns encoded; memory holds one batch at a time."""
    chunk: list[list[Any]] = []
    characters = 0
    for row in rows:
        chunk.append([_encoded(row[field.name], field) for field in schema])
        characters += sum(len(value) for value in chunk[-1] if isinstance(value, str))
        if len(chunk) == size or characters >= CHARACTERS_PER_BATCH:
            yield _batch(chunk, schema)
            chunk, characters = [], 0
    if chunk:
        yield _batch(chunk, schema)


def to_table(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as one table."""
    return pa.Table.from_batches(to_batches(rows, schema), schema=schema)


def to_rows(batches: pa.Table | Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Rows of a table or of batches, JSON columns decoded."""
    if isinstance(batches, pa.Table):
        batches = batches.to_batches(max_chunksize=ROWS_PER_BATCH)
    for batch in batches:
        json_columns = [field.name for field in batch.schema if is_json(field.type)]
        for row in batch.to_pylist():
            for name in json_columns:
                row[name] = json.loads(row[name]) if isinstance(row[name], str) else row[name]
            yield row


def is_json(data_type: pa.DataType) -> bool:
    """Whether a column's values are JSON texts."""
    return isinstance(data_type, pa.BaseExtensionType) and data_type.extension_name == "arrow.json"


def _encoded(value: Any, field: pa.Field) -> Any:
    """A value as it is stored: that of a JSON column as JSON text."""
    if value is None or not is_json(field.type):
        return value
    try:
        return _json_text(value)
    except ValueError:
        return _json_text(_without_nan(value))


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str, allow_nan=False)


def _without_nan(value: Any) -> Any:
    """NaN and infinity are no JSON, and other readers of the lake refuse them: they are not known, so null."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _batch(rows: list[list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [_array(list(values), field) for values, field in zip(zip(*rows, strict=True), schema, strict=True)], schema=schema
    )


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    if not is_json(field.type):
        return pa.array(values, type=field.type)
    return pa.ExtensionArray.from_storage(field.type, pa.array(values, type=pa.string()))
