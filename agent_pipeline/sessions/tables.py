"""Sessions as Arrow tables: the schemas of the lake's first three tables, and the way there and back.

`messages` and `tools` are JSON columns (`pa.json_()`, Parquet's JSON logical type): a nested list of structs would add
`tool_calls: null` to every message, which some chat templates render as a tool call.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from agent_pipeline.errors import DataError
from agent_pipeline.sessions.session import Session, content_sha256, json_bytes

if TYPE_CHECKING:
    import pyarrow.parquet as pq

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
        pa.field("ends_on_tool", pa.bool_()),
        pa.field("error", pa.string()),
        pa.field("ended_at", _UTC),
        pa.field("usage", pa.json_(), nullable=False),
        pa.field("cost_usd", pa.float64()),
        pa.field("parent_session_id", pa.string()),
        pa.field("reasoning", pa.json_(), nullable=False),
        pa.field("damage", pa.json_(), nullable=False),
        pa.field("broken", pa.string()),
        pa.field("skipped", pa.json_(), nullable=False),
        pa.field("context", pa.json_(), nullable=False),
    ]
)

TURN = pa.struct(
    [
        pa.field("tool_error", pa.bool_()),
        pa.field("refused", pa.bool_()),
        pa.field("breaks_schema", pa.bool_()),
        pa.field("repeated_call", pa.bool_()),
        pa.field("corrected_later", pa.bool_()),
        pa.field("failed_measures", pa.list_(pa.string())),
    ]
)
"""The facts about one turn: `judging.turns.TurnFacts`."""

JUDGED = pa.schema(
    [
        *SESSIONS,
        pa.field("verdict", pa.string()),  # acceptable, unacceptable; null: nobody decided
        pa.field("verdict_by", pa.string()),  # label, judgment, score, metrics, measures, llm, policy
        pa.field("verdict_name", pa.string()),  # the deciding judge's own name: of a metric, of measures, of the model
        pa.field("verdict_reasons", pa.string()),
        pa.field("verdict_score", pa.float64()),  # how good the session is, 0 to 1, by whoever decided
        pa.field("measures", pa.json_()),
        pa.field("opinions", pa.json_()),
        pa.field("turns", pa.list_(TURN)),  # one for each of the agent's messages, in their order
    ]
)

CURATED = pa.schema(
    [
        *JUDGED,
        pa.field("kept", pa.bool_(), nullable=False),  # use == "positive"
        pa.field("use", pa.string(), nullable=False),  # positive, negative, neither
        pa.field("drop_reason", pa.string()),  # a value of judging.curation.Reason
        pa.field("drop_detail", pa.string()),  # the kind of damage, the measure, the limit, the error
        pa.field("missed_measures", pa.json_(), nullable=False),  # required measures that failed or could not be taken
        pa.field("duplicate_of", pa.string()),
        pa.field("continued_by", pa.string()),
    ]
)


def is_json(data_type: pa.DataType) -> bool:
    """Whether a column's values are JSON texts."""
    return isinstance(data_type, pa.BaseExtensionType) and data_type.extension_name == "arrow.json"


_FIELDS = [name for name in SESSIONS.names if name != "content_sha256"]
_HASH, MESSAGES, TOOLS, ORIGIN = map(SESSIONS.get_field_index, ("content_sha256", "messages", "tools", "tools_origin"))
"""Places in a row of `SESSIONS`."""
_JSON_PLACES = [at for at, field in enumerate(SESSIONS) if is_json(field.type)]
_VALUES = attrgetter(*(name if name != "content_sha256" else "session_id" for name in SESSIONS.names))


def session_row(session: Session) -> dict[str, Any]:
    """A session as a row of `SESSIONS`."""
    return {name: getattr(session, name) for name in _FIELDS} | {"content_sha256": session.content_sha256()}


def encoded_row(session: Session) -> list[Any]:
    """A session's values in the order of `SESSIONS`, JSON columns encoded, as `encoded_batch` takes them."""
    row = list(_VALUES(session))
    for at in _JSON_PLACES:
        value = row[at]
        row[at] = json_bytes(value) if value else b"[]" if type(value) is list else b"{}"  # most of them are empty
    return row


def row_session(row: dict[str, Any]) -> Session:
    """A row of any table that has the columns of `SESSIONS` as a session; columns that were not read have their defaults."""
    return Session(**{name: _decoded(row[name]) for name in _FIELDS if name in row})


def _decoded(value: Any) -> Any:
    return msgspec.json.decode(value) if type(value) is msgspec.Raw else value


def to_batches(rows: Iterable[dict[str, Any]], schema: pa.Schema, size: int = ROWS_PER_BATCH) -> Iterator[pa.RecordBatch]:
    """Rows as record batches of at most `size`, JSON columns encoded; memory holds one batch at a time.

    A nullable column that a row does not have is null: the row may be of a table that was written before there was such a column.
    """
    names = [(field.name, is_json(field.type)) for field in schema]
    nulls = {field.name: None for field in schema if field.nullable}
    chunk: list[list[Any]] = []
    characters = 0
    for given in rows:
        row = nulls | given
        chunk.append([json_bytes(row[name]) if json and row[name] is not None else row[name] for name, json in names])
        characters += sum(len(value) for value in chunk[-1] if isinstance(value, str | bytes))
        if len(chunk) == size or characters >= CHARACTERS_PER_BATCH:
            yield _batch(chunk, schema)
            chunk, characters = [], 0
    if chunk:
        yield _batch(chunk, schema)


def to_table(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as one table."""
    return pa.Table.from_batches(to_batches(rows, schema), schema=schema)


def to_rows(batches: pa.Table | Iterable[pa.RecordBatch], raw: bool = False) -> Iterator[dict[str, Any]]:
    """Rows of a table or of batches, JSON columns decoded; with `raw` as `msgspec.Raw`, which encoders hand on letter by letter."""
    if isinstance(batches, pa.Table):
        batches = batches.to_batches(max_chunksize=ROWS_PER_BATCH)
    read: Callable[[str], Any] = msgspec.Raw if raw else msgspec.json.decode
    for batch in batches:
        json_columns = [field.name for field in batch.schema if is_json(field.type)]
        for row in batch.to_pylist():
            for name in json_columns:
                row[name] = read(row[name]) if isinstance(row[name], str) else row[name]
            yield row


def stored_batches(file: "pq.ParquetFile", columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, a row group at a time: a reader of several holds what it read of each until the end (pyarrow 26)."""
    for group in range(file.num_row_groups):
        yield from file.iter_batches(batch_size=ROWS_PER_BATCH, row_groups=[group], columns=columns)


def encoded_batch(rows: list[list[Any]], tools: bytes) -> pa.RecordBatch:
    """Encoded rows as one batch; those without tools are given the JSON of what was inferred, and all of them their content's hash."""
    if not rows:
        return pa.RecordBatch.from_pylist([], SESSIONS)
    origin = "inferred" if tools != b"[]" else "none"
    for row in rows:
        if row[ORIGIN] == "none":
            row[TOOLS], row[ORIGIN] = tools, origin
        row[_HASH] = content_sha256(row[MESSAGES], row[TOOLS])
    return _batch(rows, SESSIONS)


def _batch(rows: list[list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [column(list(values), field) for values, field in zip(zip(*rows, strict=True), schema, strict=True)], schema=schema
    )


def column(values: list[Any], field: pa.Field) -> pa.Array:
    """Values as a column; those of a JSON column are encoded already.

    Raises:
        DataError: they are longer together than an Arrow array can hold.
    """
    array = pa.array(values, field.type)
    if isinstance(array, pa.ChunkedArray):
        raise DataError(f"{len(values)} values of {field.name} have more than 2 GB together: cut the sessions that are so long.")
    return array
