"""Sessions as Arrow tables: the schemas of the lake's first three tables, and the way there and back.

`messages` and `tools` are JSON columns (`pa.json_()`, Parquet's JSON logical type): a nested list of structs would add
`tool_calls: null` to every message, which some chat templates render as a tool call.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.sessions.session import Session, encode_json, hash_content

ROWS_PER_BATCH = 1000
CHARACTERS_PER_BATCH = 64 << 20
"""A batch with more text than this ends early: a thousand sessions with outputs of a megabyte are no batch to hold in memory."""

_UTC = pa.timestamp("us", tz="UTC")
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)

DESCRIPTION = b"description"
"""The key of a column's metadata that says what it holds. Dagster's UI shows it; no file has it (`storage.tables`)."""


def define_required(kind: pa.DataType, **columns: str) -> list[pa.Field]:
    """Columns of a type that are never null, each with its description."""
    return [
        pa.field(name, kind, nullable=False, metadata={DESCRIPTION: text})
        for name, text in columns.items()
    ]


def define_optional(kind: pa.DataType, **columns: str) -> list[pa.Field]:
    """Columns of a type that are null where nothing is known, each with its description."""
    return [pa.field(name, kind, metadata={DESCRIPTION: text}) for name, text in columns.items()]


_TEXT, _NUMBER, _FLAG, _JSON = pa.string(), pa.float64(), pa.bool_(), pa.json_()

SESSIONS = pa.schema(
    [
        *define_required(_TEXT, session_id="the session, by its id in the store"),
        *define_required(_TEXT, project="the project: the first part of the partition"),
        *define_required(_TEXT, agent="the agent: the second part of the partition"),
        *define_required(_TEXT, source="the reader that read it"),
        *define_required(_TEXT, content_sha256="sha256 (hex) of messages and tools"),
        *define_required(
            _TEXT, task_key="the task; its trials share it, and a split holds whole tasks"
        ),
        *define_optional(_TEXT, task_id="the task, as the store names it"),
        *define_optional(_TEXT, trial="which trial of its task it is"),
        *define_optional(_UTC, created_at="when it began (UTC)"),
        *define_required(_FLAG, archived="the store says that it is archived"),
        *define_required(
            _JSON,
            messages="the conversation: OpenAI chat messages; a call's arguments are a JSON text",
        ),
        *define_required(_JSON, tools="the tools that the agent had: OpenAI function schemas"),
        *define_required(
            _TEXT,
            tools_origin="where tools is from: source, settings, inferred (from the calls), none",
        ),
        *define_optional(_TEXT, model_id="the model that the agent used"),
        *define_optional(_TEXT, judgment="the store's verdict: acceptable or unacceptable"),
        *define_optional(_NUMBER, score="the store's score or reward"),
        *define_required(
            _JSON, scores="the store's other metrics, by name; whether more is better is a setting"
        ),
        *define_optional(_FLAG, attack_succeeded="it obeyed an injected instruction"),
        *define_optional(
            _FLAG,
            ends_on_tool="by the store's rules its last call ended it, so no answer is missing",
        ),
        *define_optional(_TEXT, error="a failure of the infrastructure, not of the agent"),
        *define_optional(_UTC, ended_at="when it ended (UTC)"),
        *define_required(_JSON, usage="counts of tokens, by name"),
        *define_optional(_NUMBER, cost_usd="what it cost, in US dollars"),
        *define_optional(
            _TEXT, parent_session_id="the session that started this one as a sub-agent"
        ),
        *define_required(
            _JSON,
            reasoning="recorded thoughts: the index of the message that each precedes, and the text",
        ),
        *define_required(_JSON, damage="what was wrong with the record: counts by kind"),
        *define_optional(_TEXT, broken="the kind of damage for which it is dropped"),
        *define_required(
            _JSON, skipped="counts of what a chat has no place for (images, files), by type"
        ),
        *define_required(_JSON, context="other fields that the store has of it"),
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
"""The facts about one turn: `judging.turns.TurnFacts`."""

JUDGED = pa.schema(
    [
        *SESSIONS,
        *define_optional(_TEXT, verdict="acceptable or unacceptable; null: nobody decided"),
        *define_optional(
            _TEXT,
            verdict_by="label, judgment, score, metrics, measures, llm, policy, or unverified",
        ),
        *define_optional(
            _TEXT, verdict_name="that judge's own name: metrics, measures, or the model"
        ),
        *define_optional(_TEXT, verdict_reasons="why it decided so"),
        *define_optional(_NUMBER, verdict_score="how good the session is, 0 to 1, by who decided"),
        *define_optional(
            _JSON, measures="every measure's result, by name: passed, score (0 to 1), reason"
        ),
        *define_optional(_JSON, opinions="every judge's opinion, by judge: verdict, reason, name"),
        *define_optional(
            pa.list_(TURN), turns="facts about each of the agent's messages, in their order"
        ),
    ]
)

CURATED = pa.schema(
    [
        *JUDGED,
        *define_required(_FLAG, kept="use is positive"),
        *define_required(_TEXT, use="positive: an example; negative: a bad answer; neither"),
        *define_optional(_TEXT, drop_reason="the first reason why it is not positive"),
        *define_optional(
            _TEXT, drop_detail="the kind of damage, the measure, the limit or the error"
        ),
        *define_required(
            _JSON, missed_measures="required measures that failed or could not be taken"
        ),
        *define_optional(
            _TEXT, duplicate_of="the session with the same content that is kept in its place"
        ),
        *define_optional(_TEXT, continued_by="the session that goes on where this one ends"),
    ]
)


def is_json_type(data_type: pa.DataType) -> bool:
    """Whether a column's values are JSON texts."""
    return isinstance(data_type, pa.BaseExtensionType) and data_type.extension_name == "arrow.json"


_FIELDS = [name for name in SESSIONS.names if name != "content_sha256"]
_HASH, MESSAGES, TOOLS, ORIGIN = map(
    SESSIONS.get_field_index, ("content_sha256", "messages", "tools", "tools_origin")
)
"""Places in a row of `SESSIONS`."""
_JSON_PLACES = [at for at, field in enumerate(SESSIONS) if is_json_type(field.type)]
_VALUES = attrgetter(
    *(name if name != "content_sha256" else "session_id" for name in SESSIONS.names)
)


def make_session_row(session: Session) -> dict[str, Any]:
    """A session as a row of `SESSIONS`."""
    return {name: getattr(session, name) for name in _FIELDS} | {
        "content_sha256": session.hash_content()
    }


def encode_row(session: Session) -> list[Any]:
    """A session's values in the order of `SESSIONS`, JSON columns encoded, as `make_session_batch` takes them."""
    row = list(_VALUES(session))
    for at in _JSON_PLACES:
        value = row[at]
        row[at] = (
            encode_json(value) if value else b"[]" if type(value) is list else b"{}"
        )  # most of them are empty
    return row


def restore_session(row: dict[str, Any]) -> Session:
    """A row of any table that has the columns of `SESSIONS` as a session; columns that were not read have their defaults."""
    return Session(**{name: decode_json(row[name]) for name in _FIELDS if name in row})


def decode_json(value: Any) -> Any:
    """A value of a JSON column that was read as `msgspec.Raw`; any other as it is."""
    return msgspec.json.decode(value) if type(value) is msgspec.Raw else value


def to_batches(
    rows: Iterable[dict[str, Any]], schema: pa.Schema, size: int = ROWS_PER_BATCH
) -> Iterator[pa.RecordBatch]:
    """Rows as record batches of at most `size`, JSON columns encoded; memory holds one batch at a time.

    A nullable column that a row does not have is null: the row may be of a table that was written before there was such a column.
    """
    names = [(field.name, is_json_type(field.type)) for field in schema]
    nulls = {field.name: None for field in schema if field.nullable}
    chunk: list[list[Any]] = []
    characters = 0
    for given in rows:
        row = nulls | given
        chunk.append(
            [
                encode_json(row[name]) if json and row[name] is not None else row[name]
                for name, json in names
            ]
        )
        characters += sum(len(value) for value in chunk[-1] if isinstance(value, str | bytes))
        if len(chunk) == size or characters >= CHARACTERS_PER_BATCH:
            yield make_batch(chunk, schema)
            chunk, characters = [], 0
    if chunk:
        yield make_batch(chunk, schema)


def to_table(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as one table."""
    return pa.Table.from_batches(to_batches(rows, schema), schema=schema)


def to_rows(
    batches: pa.Table | Iterable[pa.RecordBatch], raw: bool = False
) -> Iterator[dict[str, Any]]:
    """Rows of a table or of batches, JSON columns decoded; with `raw` as `msgspec.Raw`, which encoders hand on letter by letter."""
    if isinstance(batches, pa.Table):
        batches = batches.to_batches(max_chunksize=ROWS_PER_BATCH)
    read: Callable[[str], Any] = msgspec.Raw if raw else msgspec.json.decode
    for batch in batches:
        json_columns = [field.name for field in batch.schema if is_json_type(field.type)]
        times = [field.name for field in batch.schema if field.type == _UTC]
        for name in times:  # pyarrow imports pandas to make datetimes, as in `make_column`
            batch = batch.set_column(
                batch.schema.get_field_index(name), name, batch[name].cast(pa.int64())
            )
        for row in batch.to_pylist():
            for name in json_columns:
                row[name] = read(row[name]) if isinstance(row[name], str) else row[name]
            for name in times:
                row[name] = None if row[name] is None else _EPOCH + row[name] * _MICROSECOND
            yield row


def read_batches(
    file: pq.ParquetFile, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, a row group at a time: a reader of several holds what it read of each until the end (pyarrow 26)."""
    for group in range(file.num_row_groups):
        yield from file.iter_batches(batch_size=ROWS_PER_BATCH, row_groups=[group], columns=columns)


def is_sorted(ids: pa.ChunkedArray) -> bool:
    """Whether ids are sorted, as the pipeline writes them."""
    return bool(pc.all(pc.less_equal(ids[:-1], ids[1:]), min_count=0).as_py())


def make_session_batch(rows: list[list[Any]], tools: bytes) -> pa.RecordBatch:
    """Encoded rows as one batch; those without tools are given the JSON of what was inferred, and all of them their content's hash."""
    if not rows:
        return make_batch([], SESSIONS)
    origin = "inferred" if tools != b"[]" else "none"
    for row in rows:
        if row[ORIGIN] == "none":
            row[TOOLS], row[ORIGIN] = tools, origin
        row[_HASH] = hash_content(row[MESSAGES], row[TOOLS])
    return make_batch(rows, SESSIONS)


def make_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as one batch; each has its values in the schema's order, those of JSON columns encoded."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [make_column(values, field) for values, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


def make_column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Values as a column; those of a JSON column are encoded already.

    Its buffers are put together here: `pyarrow.array` imports pandas, a quarter of a second and 60 MB in every process.

    Raises:
        DataError: they are longer together than an Arrow array can hold.
    """
    kind = field.type
    if is_json_type(kind):
        return pa.ExtensionArray.from_storage(
            kind, make_column(values, pa.field(field.name, kind.storage_type))
        )
    nulls = values.count(None)
    buffers: list[Any] = [_bits(value is not None for value in values) if nulls else None]
    children: list[pa.Array] = []
    try:
        if pa.types.is_struct(kind):
            children = [
                make_column([value and value[each.name] for value in values], each) for each in kind
            ]
        elif pa.types.is_list(kind):
            buffers.append(_ends(value or () for value in values))
            children = [
                make_column([each for value in values for each in value or ()], kind.value_field)
            ]
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            texts = [
                b"" if value is None else value if type(value) is bytes else value.encode()
                for value in values
            ]
            buffers += [_ends(texts), b"".join(texts)]
        elif pa.types.is_boolean(kind):
            buffers.append(_bits(_FLAGS[value] for value in values))
        elif kind == _UTC:
            buffers.append(
                array(
                    "q",
                    [0 if value is None else (value - _EPOCH) // _MICROSECOND for value in values],
                )
            )
        else:
            buffers.append(array(_CODES[kind], [0 if value is None else value for value in values]))
    except OverflowError:
        raise DataError(
            f"{len(values)} values of {field.name} have more than 2 GB together: cut the sessions that are so long."
        ) from None
    known = [None if each is None else pa.py_buffer(each) for each in buffers]
    return pa.Array.from_buffers(kind, len(values), known, nulls, children=children)


def make_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A value to compare a column with: pyarrow imports pandas to make one of Python's."""
    return make_column([value], pa.field("value", kind))[0]


_FLAGS = {None: False, False: False, True: True}
_CODES = {pa.float64(): "d", pa.int64(): "q"}


def _ends(values: Iterable[Sized]) -> "array[int]":
    return array("i", accumulate(map(len, values), initial=0))


def _bits(flags: Iterable[bool]) -> Any:
    return np.packbits(np.fromiter(flags, bool), bitorder="little")
