"""Conversion between sessions and Arrow tables, and the schemas of the lake's first three tables.

Building Arrow columns from Python values belongs here too, because `pyarrow.array` imports pandas.
The schemas of other tables belong to the packages that write them.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from operator import attrgetter
from typing import Any, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.session import (
    Message,
    Session,
    Thought,
    Tool,
    ToolsOrigin,
    encode_json,
    encode_tools,
    hash_content,
)

ROWS_PER_BATCH = 1000
CHARACTERS_PER_BATCH = 64 << 20
"""Total number of characters in a record batch above which the next batch begins.

A thousand sessions with a megabyte of output each are too much to hold in memory.
"""

_UTC = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

DESCRIPTION = b"description"
"""Metadata key of a column's description.

Dagster's UI shows the description. `storage.tables` removes it from the files.
"""


def define_required(kind: pa.DataType, **descriptions: str) -> list[pa.Field]:
    """Return non-null columns of one type, given a description for each column."""
    return [
        pa.field(name, kind, nullable=False, metadata={DESCRIPTION: description})
        for name, description in descriptions.items()
    ]


def define_optional(kind: pa.DataType, **descriptions: str) -> list[pa.Field]:
    """Return nullable columns of one type, given a description for each column."""
    return [
        pa.field(name, kind, metadata={DESCRIPTION: description})
        for name, description in descriptions.items()
    ]


_TEXT, _NUMBER, _FLAG, _JSON = pa.string(), pa.float64(), pa.bool_(), pa.json_()

SESSIONS = pa.schema(
    [
        *define_required(_TEXT, session_id="id of the session in the store"),
        *define_required(
            _TEXT, project="name of the project, which is the first part of the partition"
        ),
        *define_required(
            _TEXT, agent="name of the agent, which is the second part of the partition"
        ),
        *define_required(
            _TEXT, source="name of the reader (the store format) that read the session"
        ),
        *define_required(_TEXT, content_sha256="sha256 (hex) of the messages and tools"),
        *define_required(
            _TEXT,
            task_key="key of the task; all sessions of a task (its trials) have the same key",
        ),
        *define_optional(_TEXT, task_id="name of the task in the store"),
        *define_optional(_TEXT, trial="number or name of the trial within the task"),
        *define_optional(_UTC, created_at="time at which the session began (UTC)"),
        *define_required(_FLAG, archived="whether the store marks the session as archived"),
        *define_required(
            _JSON, messages="OpenAI chat messages; the arguments of a tool call are a JSON string"
        ),
        *define_required(_JSON, tools="tools that the agent had, as OpenAI function schemas"),
        *define_required(
            _TEXT,
            tools_origin=(
                "origin of the tools: source (the store), settings, inferred (from the calls) or "
                "none"
            ),
        ),
        *define_optional(_TEXT, model_id="name of the model that wrote the last answer"),
        *define_optional(_TEXT, judgment="verdict in the store: acceptable or unacceptable"),
        *define_optional(_NUMBER, score="score or reward in the store"),
        *define_required(
            _JSON,
            scores=(
                "other metrics in the store, by name; the setting `metrics` says which direction "
                "is better"
            ),
        ),
        *define_optional(_FLAG, attack_succeeded="whether the agent obeyed a prompt injection"),
        *define_optional(
            _FLAG,
            ends_on_tool="whether the session ended with a tool call that needs no result",
        ),
        *define_optional(
            _TEXT,
            error=(
                "failure of the infrastructure, such as a lost connection; not an error of the "
                "agent"
            ),
        ),
        *define_optional(_UTC, ended_at="time at which the session ended (UTC)"),
        *define_required(_JSON, usage="token counts, by name"),
        *define_optional(_NUMBER, cost_usd="cost in US dollars"),
        *define_optional(
            _TEXT, parent_session_id="id of the session that started this session as a sub-agent"
        ),
        *define_required(
            _JSON,
            reasoning=(
                "recorded thoughts, each with its text and the index of the message that follows it"
            ),
        ),
        *define_required(_JSON, damage="damage in the recorded session, as counts by kind"),
        *define_optional(_TEXT, broken="kind of damage because of which the session is dropped"),
        *define_required(
            _JSON,
            skipped=(
                "content that chat messages cannot contain (images, files), as counts by type"
            ),
        ),
        *define_required(_JSON, context="all further fields of the session in the store"),
    ]
)

TURN = pa.struct(
    [
        pa.field("tool_error", pa.bool_()),
        pa.field("refused", pa.bool_()),
        pa.field("breaks_schema", pa.bool_()),
        pa.field("repeated_call", pa.bool_()),
        pa.field("corrected_later", pa.bool_()),
        pa.field("addresses_judge", pa.bool_()),
        pa.field("failed_measures", pa.list_(pa.string())),
    ]
)
"""Arrow type of the facts about one turn, with the fields of `judging.turn_facts.TurnFacts`."""

JUDGED = pa.schema(
    [
        *SESSIONS,
        *define_optional(
            _TEXT, verdict="acceptable or unacceptable; null if nobody judged the session"
        ),
        *define_optional(
            _TEXT,
            verdict_by=(
                "judge that gave the verdict, such as label, judgment, score, metrics, llm or "
                "unverified"
            ),
        ),
        *define_optional(
            _TEXT, verdict_name="names of the metrics, measures or model that gave the verdict"
        ),
        *define_optional(_TEXT, verdict_reasons="reasons for the verdict"),
        *define_optional(_NUMBER, verdict_score="score that the judge gave, 0 to 1"),
        *define_optional(
            _JSON,
            measures=(
                "result of each measure (automatic test), by name: passed, score (0 to 1), reason"
            ),
        ),
        *define_optional(
            _JSON, opinions="opinion of each judge: its verdict, its reason, and the judge's name"
        ),
        *define_optional(pa.list_(TURN), turns="facts about each turn of the agent, in order"),
    ]
)

CURATED = pa.schema(
    [
        *JUDGED,
        *define_required(
            _FLAG, kept="whether the session is used as a training example (its use is positive)"
        ),
        *define_required(
            _TEXT,
            use=(
                "use for training: positive (a good example), negative (a bad example) or neither"
            ),
        ),
        *define_optional(_TEXT, drop_reason="first reason why the use is not positive"),
        *define_optional(
            _TEXT,
            drop_detail=(
                "detail of the reason: the kind of damage, the measure, the limit or the error"
            ),
        ),
        *define_required(
            _JSON, missed_measures="required measures that failed, or that have no result"
        ),
        *define_optional(_TEXT, duplicate_of="id of the kept session that has the same content"),
        *define_optional(_TEXT, continued_by="id of the session that continues this session"),
        *define_optional(
            _FLAG,
            served_model=(
                "whether the session contains an answer of a model that this pipeline trained"
            ),
        ),
    ]
)


class SessionRow(TypedDict):
    """One row of `SESSIONS` with decoded JSON columns."""

    session_id: str
    project: str
    agent: str
    source: str
    content_sha256: str
    task_key: str
    task_id: str | None
    trial: str | None
    created_at: datetime | None
    archived: bool
    messages: list[Message]
    tools: list[Tool]
    tools_origin: ToolsOrigin
    model_id: str | None
    judgment: str | None
    score: float | None
    scores: dict[str, float]
    attack_succeeded: bool | None
    ends_on_tool: bool
    error: str | None
    ended_at: datetime | None
    usage: dict[str, int]
    cost_usd: float | None
    parent_session_id: str | None
    reasoning: list[Thought]
    damage: dict[str, int]
    broken: str | None
    skipped: dict[str, int]
    context: JsonObject


EncodedRow = list[Any]
"""A row's values in the order of a schema, with the JSON columns encoded."""
SizedRow = tuple[Sequence[object], int]
"""An encoded row, and its number of characters."""

_SESSION_FIELDS = [name for name in SESSIONS.names if name != "content_sha256"]
_HASH_INDEX = SESSIONS.get_field_index("content_sha256")
MESSAGES_INDEX = SESSIONS.get_field_index("messages")
TOOLS_INDEX = SESSIONS.get_field_index("tools")
TOOLS_ORIGIN_INDEX = SESSIONS.get_field_index("tools_origin")


def is_json_type(data_type: pa.DataType) -> bool:
    """Return whether a column's values are JSON texts."""
    return isinstance(data_type, pa.BaseExtensionType) and data_type.extension_name == "arrow.json"


_JSON_INDICES = [index for index, field in enumerate(SESSIONS) if is_json_type(field.type)]
_read_values = attrgetter(
    *(name if name != "content_sha256" else "session_id" for name in SESSIONS.names)
)
"""Function that returns a session's values in the column order of `SESSIONS`, except for the
content hash.
"""


def make_session_row(session: Session) -> JsonObject:
    """Convert a session into a row of `SESSIONS` (`SessionRow`)."""
    row: JsonObject = {name: getattr(session, name) for name in _SESSION_FIELDS}
    row["content_sha256"] = session.hash_content()
    return row


def encode_row(session: Session) -> EncodedRow:
    """Return a session's values in the column order of `SESSIONS`, for `make_session_batch`."""
    row = list(_read_values(session))
    for index in _JSON_INDICES:
        row[index] = _encode_json_value(row[index], index == TOOLS_INDEX)
    return row


def _encode_json_value(value: object, is_tools: bool) -> bytes:
    """Return a list or an object as JSON.

    Most values are empty, so the empty case is handled first, which is fast.
    """
    if value:
        return encode_tools(value) if is_tools else encode_json(value)
    return b"[]" if isinstance(value, list) else b"{}"


def restore_session(row: Mapping[str, object]) -> Session:
    """Restore the session from a row of any table that has the columns of `SESSIONS`.

    Columns that were not read get their default values.
    """
    return Session(**{name: decode_json(row[name]) for name in _SESSION_FIELDS if name in row})


def decode_json(value: object) -> Any:
    """Decode a value of a JSON column that was read as `msgspec.Raw`.

    Other values are returned unchanged.
    """
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


def to_batches(
    rows: Iterable[Mapping[str, object]], schema: pa.Schema, size: int = ROWS_PER_BATCH
) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches with encoded JSON columns.

    Memory holds one batch at a time. If a row lacks a nullable column, the value is null, because
    the row may come from a table that was written before the column existed.

    Args:
        rows: Rows with decoded JSON columns.
        schema: The schema of the batches.
        size: The maximum number of rows per batch.
    """
    names = schema.names
    nullable_columns = {field.name for field in schema if field.nullable}
    json_columns = {field.name for field in schema if is_json_type(field.type)}

    def encode_rows() -> Iterator[SizedRow]:
        for row in rows:
            encoded_row = []
            characters = 0
            for name in names:
                value = row.get(name) if name in nullable_columns else row[name]
                if value is not None and name in json_columns:
                    value = encode_tools(value) if name == "tools" else encode_json(value)
                encoded_row.append(value)
                if isinstance(value, str | bytes):
                    characters += len(value)
            yield encoded_row, characters

    return group_rows(encode_rows(), schema, size)


def group_rows(
    rows: Iterable[SizedRow], schema: pa.Schema, size: int = ROWS_PER_BATCH
) -> Iterator[pa.RecordBatch]:
    """Yield encoded rows as record batches. Memory holds one batch at a time.

    Args:
        rows: Rows as in `make_batch`, each with its number of characters.
        schema: The schema of the batches.
        size: The maximum number of rows per batch.
    """
    batch_rows: list[Sequence[object]] = []
    characters = 0
    for row, row_characters in rows:
        batch_rows.append(row)
        characters += row_characters
        if len(batch_rows) == size or characters >= CHARACTERS_PER_BATCH:
            yield make_batch(batch_rows, schema)
            batch_rows, characters = [], 0
    if batch_rows:
        yield make_batch(batch_rows, schema)


def to_table(rows: Iterable[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    """Convert rows into one Arrow table."""
    return pa.Table.from_batches(to_batches(rows, schema), schema=schema)


def to_rows(
    batches: pa.Table | Iterable[pa.RecordBatch], raw: bool = False
) -> Iterator[JsonObject]:
    """Yield the rows of a table or of batches, with decoded JSON columns.

    Args:
        batches: A table, or record batches.
        raw: Whether JSON columns become `msgspec.Raw`, which encoders copy without changes.
    """
    if isinstance(batches, pa.Table):
        batches = batches.to_batches(max_chunksize=ROWS_PER_BATCH)
    for batch in batches:
        json_columns = [field.name for field in batch.schema if is_json_type(field.type)]
        time_columns = [field.name for field in batch.schema if field.type == _UTC]
        # converted here, because pyarrow imports pandas to create datetimes
        for name in time_columns:
            index = batch.schema.get_field_index(name)
            batch = batch.set_column(index, name, batch[name].cast(pa.int64()))
        for row in batch.to_pylist():
            for name in json_columns:
                if isinstance(row[name], str):
                    row[name] = msgspec.Raw(row[name]) if raw else msgspec.json.decode(row[name])
            for name in time_columns:
                if row[name] is not None:
                    row[name] = _EPOCH + row[name] * _MICROSECOND
            yield row


def read_batches(
    file: pq.ParquetFile, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, one row group at a time.

    Args:
        file: The file.
        columns: The columns to read. None means all columns.
    """
    # A separate reader for each row group, because a reader of several groups keeps everything that
    # it has read (pyarrow 26).
    for group in range(file.num_row_groups):
        yield from file.iter_batches(batch_size=ROWS_PER_BATCH, row_groups=[group], columns=columns)


def is_sorted(ids: pa.ChunkedArray) -> bool:
    """Return whether session ids are in ascending order, as in files that the pipeline writes."""
    return bool(pc.all(pc.less_equal(ids[:-1], ids[1:]), min_count=0).as_py())


def make_session_batch(rows: list[EncodedRow], inferred_tools: bytes) -> pa.RecordBatch:
    """Return encoded rows of `SESSIONS` as one batch, with the content hashes filled in.

    Args:
        rows: Rows from `encode_row`. They are changed in place.
        inferred_tools: JSON of the tools that are used for sessions without tools.
    """
    inferred_origin = "none" if inferred_tools == b"[]" else "inferred"
    for row in rows:
        if row[TOOLS_ORIGIN_INDEX] == "none":
            row[TOOLS_INDEX] = inferred_tools
            row[TOOLS_ORIGIN_INDEX] = inferred_origin
        row[_HASH_INDEX] = hash_content(row[MESSAGES_INDEX], row[TOOLS_INDEX])
    return make_batch(rows, SESSIONS)


def make_batch(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows into one record batch.

    Args:
        rows: Rows with values in the schema's order. The values of JSON columns are encoded.
        schema: The schema of the batch.
    """
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [make_column(values, field) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def make_column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Convert values into an Arrow column.

    The buffers are built here, because `pyarrow.array` imports pandas, which takes a quarter of a
    second and 60 MB in every process.

    Args:
        values: The values. The values of a JSON column are encoded.
        field: The column's name and type.

    Raises:
        DataError: The total length of the values is more than an Arrow array can hold.
    """
    kind = field.type
    if is_json_type(kind):
        storage = make_column(values, pa.field(field.name, kind.storage_type))
        return pa.ExtensionArray.from_storage(kind, storage)
    null_count = values.count(None)
    validity = _pack_bits(value is not None for value in values) if null_count else None
    buffers: list[Any] = [validity]
    children: list[pa.Array] = []
    try:
        if pa.types.is_struct(kind):
            for child in kind:
                child_values = [value and value[child.name] for value in values]
                children.append(make_column(child_values, child))
        elif pa.types.is_list(kind):
            buffers.append(_make_offsets(value or () for value in values))
            elements = [element for value in values for element in value or ()]
            children.append(make_column(elements, kind.value_field))
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            # Not in a function, because the call would take most of the time.
            texts = [
                value.encode() if isinstance(value, str) else b"" if value is None else value
                for value in values
            ]
            buffers += [_make_offsets(texts), b"".join(texts)]
        elif pa.types.is_boolean(kind):
            buffers.append(_pack_bits(_FLAG_BITS[value] for value in values))
        elif kind == _UTC:
            times = [0 if value is None else (value - _EPOCH) // _MICROSECOND for value in values]
            buffers.append(array("q", times))
        else:
            numbers = [0 if value is None else value for value in values]
            buffers.append(array(_TYPE_CODES[kind], numbers))
    except OverflowError:
        raise DataError(
            f"{len(values)} values of the column {field.name} have more than 2 GB in total: "
            "shorten the longest sessions."
        ) from None
    arrow_buffers = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, len(values), arrow_buffers, null_count, children=children)


def make_scalar(value: object, kind: pa.DataType) -> pa.Scalar:
    """Return a value as an Arrow scalar, for comparisons with a column.

    pyarrow itself would import pandas to convert a Python value.
    """
    return make_column([value], pa.field("value", kind))[0]


_FLAG_BITS = {None: False, False: False, True: True}
_TYPE_CODES = {pa.float64(): "d", pa.int64(): "q"}
"""Type codes of `array.array` for numeric types."""


def _make_offsets(values: Iterable[Sized]) -> "array[int]":
    """Return the offsets at which each value begins and the last value ends, in Arrow's format."""
    return array("i", accumulate(map(len, values), initial=0))


def _pack_bits(flags: Iterable[bool]) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Return flags packed into bits, in Arrow's format."""
    return np.packbits(np.fromiter(flags, bool), bitorder="little")
