"""Drift: differences between a table's new sessions and the last version of the table.

For the table `sessions`, the agent's tools and the types of their arguments are compared. For the
table `curated_sessions`, the shares of verdicts and drop reasons are compared. Old sessions stay in
a store, so the table as a whole hardly changes from one night to the next. Therefore, only the new
sessions are compared with all sessions of the last version. The regression checks that refuse a
table belong to `volume` and `growth`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.json_types import JsonObject
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.json_text import parse_object
from agent_pipeline.sessions.session import dump_canonical_json
from agent_pipeline.sessions.tables import make_scalar, read_batches
from agent_pipeline.sessions.tool_schemas import JSON_TYPES
from agent_pipeline.storage.lake import Lake, StagedTable
from agent_pipeline.structs import json_decoder

MIN_DIFFERENCE = 0.1
"""Smallest difference between two shares that is reported as a change."""
MAX_P_VALUE = 0.01
"""Largest p-value (Fisher's exact test) with which two shares count as different."""
MIN_OFFERED_SHARE = 0.9
"""Minimum share of the last version's sessions that had a tool. If fewer sessions had the tool, its
absence does not count as a removal.
"""

_VERDICT_COLUMNS = ("verdict", "drop_reason")
_VALUES_OF_NULL = {"verdict": "none", "drop_reason": "kept"}


class ToolChange(NamedTuple):
    """A tool that was added, was removed, or has a changed schema.

    Attributes:
        tool: The tool.
        change: The kind of change.
        argument: The argument that changed, or an empty text if another part of the schema changed.
        before: The JSON schema of the argument before the change, with `*` in front if the argument
            was required. It is empty if there was no such argument.
        now: The JSON schema of the argument after the change, in the same form.
    """

    tool: str
    change: Literal["added", "removed", "schema"]
    argument: str = ""
    before: str = ""
    now: str = ""


class Share(NamedTuple):
    """The share of one value in the last version of a table, and its share in the new sessions.

    Attributes:
        what: `verdict`, `drop_reason`, or an argument such as `refund.order_id`.
        value: The value. For an argument, the values are the JSON types in calls, and `absent`.
        before: The share in the last version.
        now: The share in the new sessions.
        moved: Whether the shares differ significantly.
    """

    what: str
    value: str
    before: float
    now: float
    moved: bool


class Drift(NamedTuple):
    """The differences between the new sessions of a table and the last version of the table.

    Attributes:
        sessions: Number of sessions in the last version.
        new: Number of new sessions.
        tools: The changes of tools.
        shares: The shares. Shares of arguments are included only if they changed significantly.
    """

    sessions: int
    new: int
    tools: list[ToolChange]
    shares: list[Share]

    @property
    def moved(self) -> bool:
        """True if anything has changed that a user should examine."""
        return bool(self.tools) or any(share.moved for share in self.shares)


NO_DRIFT = Drift(0, 0, [], [])


def measure_drift(lake: Lake, asset: str, key: PartitionKey, staged: StagedTable) -> Drift:
    """Compare the new sessions of a staged table with the table that the staged table will replace.

    Args:
        lake: The lake.
        asset: The table.
        key: The partition.
        staged: The new table.

    Returns:
        The drift, or `NO_DRIFT` if there is no table to compare with.
    """
    if not lake.has(asset, key):
        return NO_DRIFT
    try:
        with lake.open(asset, key, staged.schema) as before, pq.ParquetFile(staged.file) as now:
            return compare_tables(before, now)
    except (DataError, pa.ArrowException, OSError):
        return NO_DRIFT  # a damaged table, or a table of an older version, is replaced


def compare_tables(before: pq.ParquetFile, now: pq.ParquetFile) -> Drift:
    """Return the drift of the sessions that are new or whose content changed.

    If a significant share of the verdicts changed, the sessions with a changed verdict are compared
    too. Fewer changed verdicts are only corrections.
    """
    count_before = before.metadata.num_rows
    is_new = _find_new_sessions(before, now)
    if not count_before or not is_new.true_count:
        return Drift(count_before, 0, [], [])
    profile_before, profile_now = _make_profile(before), _make_profile(now, is_new)
    shares = [
        *_compare_verdicts(profile_before, profile_now),
        *_compare_arguments(profile_before, profile_now),
    ]
    changes = list(_find_tool_changes(profile_before, profile_now))
    return Drift(count_before, is_new.true_count, changes, shares)


def _find_new_sessions(before: pq.ParquetFile, now: pq.ParquetFile) -> pa.Array:
    """Return a flag for each row of `now` that tells whether its session is compared."""
    ids_before = before.read(["session_id"])["session_id"]
    ids_now = now.read(["session_id"])["session_id"]
    rows_before = pc.index_in(ids_now, ids_before)  # null if the session is new

    def read_column(name: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Return a column for the sessions of `now`: the last values and the new values."""
        return before.read([name])[name].take(rows_before), now.read([name])[name]

    has_same_content = pc.fill_null(
        pc.equal(*read_column("content_sha256")), make_scalar(False, pa.bool_())
    )
    is_old = has_same_content
    if "verdict" in now.schema_arrow.names:
        verdicts_before, verdicts_now = read_column("verdict")
        differs = pc.fill_null(
            pc.not_equal(verdicts_before, verdicts_now), make_scalar(True, pa.bool_())
        )
        had_verdict = pc.and_(has_same_content, pc.is_valid(verdicts_before))
        has_new_verdict = pc.and_(had_verdict, differs)
        if pc.sum(has_new_verdict, min_count=0).as_py() > MIN_DIFFERENCE * len(ids_before):
            is_old = pc.and_not(has_same_content, has_new_verdict)
    return pc.invert(is_old).combine_chunks()


@dataclass
class _Profile:
    """Counts over the sessions of a table.

    Attributes:
        verdicts: Number of sessions by value, for the columns `verdict` and `drop_reason`.
        with_tools: Number of sessions with tools.
        offered: Number of sessions by offered tool.
        schemas: Number of sessions by tool and schema.
        calls: Number of calls by tool.
        arguments: Number of calls by tool, argument and JSON type.
    """

    verdicts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    with_tools: int = 0
    offered: Counter[str] = field(default_factory=Counter)
    schemas: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    calls: Counter[str] = field(default_factory=Counter)
    arguments: dict[str, dict[str, Counter[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Counter))
    )


class _CalledFunction(msgspec.Struct):
    """The name and the arguments of a tool call."""

    name: str
    arguments: str


class _CallInMessage(msgspec.Struct):
    """The parts of a tool call in a message that are needed to measure drift."""

    function: _CalledFunction


class _CallingMessage(msgspec.Struct):
    """A message of which only the tool calls are decoded."""

    tool_calls: list[_CallInMessage] = []


_MESSAGES_DECODER = json_decoder(list[_CallingMessage])


def _make_profile(file: pq.ParquetFile, is_counted: pa.Array | None = None) -> _Profile:
    """Count the tools, calls and verdicts of a table's sessions.

    Args:
        file: The table.
        is_counted: A flag for each row: whether it is counted. None counts all rows.
    """
    verdict_columns = [name for name in _VERDICT_COLUMNS if name in file.schema_arrow.names]
    profile = _Profile()
    first_row = 0
    for batch in read_batches(file, verdict_columns or ["tools", "messages"]):
        rows = batch
        if is_counted is not None:
            rows = batch.filter(is_counted.slice(first_row, batch.num_rows))
        first_row += batch.num_rows
        for name in verdict_columns:
            values = [value or _VALUES_OF_NULL[name] for value in rows[name].to_pylist()]
            profile.verdicts[name].update(values)
        if not verdict_columns:
            _count_tools(profile, rows)
            _count_calls(profile, rows)
    return profile


def _count_tools(profile: _Profile, rows: pa.RecordBatch) -> None:
    """Count the sessions in which each tool was available, and each tool's schemas."""
    for entry in pc.value_counts(rows["tools"].storage).to_pylist():
        schemas, sessions = _read_schemas(entry["values"]), entry["counts"]
        if schemas:
            profile.with_tools += sessions
        for tool, schema in schemas.items():
            profile.offered[tool] += sessions
            profile.schemas[tool][schema] += sessions


def _count_calls(profile: _Profile, rows: pa.RecordBatch) -> None:
    """Count the tool calls, and the types of their arguments."""
    for text in rows["messages"].storage:
        for message in _MESSAGES_DECODER.decode(text.as_py()):
            for call in message.tool_calls:
                arguments = parse_object(call.function.arguments)
                if arguments is None:
                    continue
                tool = call.function.name
                profile.calls[tool] += 1
                for argument, value in arguments.items():
                    profile.arguments[tool][argument][JSON_TYPES[type(value)]] += 1


@lru_cache(maxsize=256)
def _read_schemas(tools: str) -> dict[str, str]:
    """Return the JSON schema of each tool's arguments as canonical JSON, by tool name."""
    schemas = {}
    for tool in msgspec.json.decode(tools):
        function = tool.get("function")
        if isinstance(function, dict) and "name" in function:
            schemas[function["name"]] = dump_canonical_json(function.get("parameters") or {})
    return schemas


def _find_tool_changes(before: _Profile, now: _Profile) -> Iterator[ToolChange]:
    """Yield the tools that were added, were removed, or have a changed schema."""
    for tool in sorted(before.offered.keys() | now.offered.keys()):
        if not before.offered[tool]:
            yield ToolChange(tool, "added")
        elif not now.offered[tool]:
            was_usual = before.offered[tool] >= MIN_OFFERED_SHARE * before.with_tools
            if now.with_tools and was_usual:
                yield ToolChange(tool, "removed")
        else:
            yield from _compare_schemas(tool, before.schemas[tool], now.schemas[tool])


def _compare_schemas(tool: str, before: Counter[str], now: Counter[str]) -> Iterator[ToolChange]:
    """Yield the arguments whose schema differs between the last version and the new sessions.

    The most common schema of the last version is compared with the most common new schema.

    Args:
        tool: The tool.
        before: Number of sessions of the last version, by schema.
        now: Number of new sessions, by schema.
    """
    new_schemas = {schema: count for schema, count in now.items() if schema not in before}
    if not new_schemas:
        return
    arguments_before = _read_argument_schemas(max(before, key=before.__getitem__))
    arguments_now = _read_argument_schemas(max(new_schemas, key=new_schemas.__getitem__))
    changed = [
        name
        for name in sorted(arguments_before.keys() | arguments_now.keys())
        if arguments_before.get(name) != arguments_now.get(name)
    ]
    for name in changed or [""]:
        yield ToolChange(
            tool, "schema", name, arguments_before.get(name, ""), arguments_now.get(name, "")
        )


def _read_argument_schemas(schema: str) -> dict[str, str]:
    """Return the JSON schema of each argument of a tool, without the argument's description.

    The schema of a required argument has `*` in front.
    """
    parsed: JsonObject = msgspec.json.decode(schema)
    properties, required = parsed.get("properties"), parsed.get("required")
    if not isinstance(properties, dict):
        return {}
    required_names = required if isinstance(required, list) else []
    schemas = {}
    for name, argument in properties.items():
        mark = "*" if name in required_names else ""
        schemas[name] = mark + dump_canonical_json(_drop_description(argument))
    return schemas


def _drop_description(schema: object) -> object:
    """Return a JSON schema without its description."""
    if not isinstance(schema, dict):
        return schema
    return {key: value for key, value in schema.items() if key != "description"}


def _compare_verdicts(before: _Profile, now: _Profile) -> Iterator[Share]:
    """Yield the shares of each verdict and drop reason, before and now."""
    for column, counts_before in before.verdicts.items():
        counts_now = now.verdicts[column]
        yield from _compare_counts(
            column,
            _Counts(counts_before, counts_before.total()),
            _Counts(counts_now, counts_now.total()),
        )


def _compare_arguments(before: _Profile, now: _Profile) -> Iterator[Share]:
    """Yield the shares of argument types that changed significantly."""
    for tool in sorted(before.calls.keys() & now.calls.keys()):
        for argument in sorted(before.arguments[tool].keys() | now.arguments[tool].keys()):
            shares = _compare_counts(
                f"{tool}.{argument}",
                _count_types(before, tool, argument),
                _count_types(now, tool, argument),
            )
            yield from (share for share in shares if share.moved)


@dataclass(frozen=True)
class _Counts:
    """Counts by value, and the total number of the counted sessions or calls."""

    by_value: Mapping[str, int]
    total: int


def _count_types(profile: _Profile, tool: str, argument: str) -> _Counts:
    """Count a tool's calls by the JSON type of one argument, or by its absence."""
    types, calls = profile.arguments[tool][argument], profile.calls[tool]
    return _Counts({**types, "absent": calls - types.total()}, calls)


def _compare_counts(what: str, before: _Counts, now: _Counts) -> Iterator[Share]:
    """Yield the share of each value, before and now.

    Args:
        what: The name of what was counted.
        before: The counts of the last version.
        now: The counts of the new sessions.
    """
    for value in sorted(before.by_value.keys() | now.by_value.keys()):
        count_before, count_now = before.by_value.get(value, 0), now.by_value.get(value, 0)
        share_before, share_now = count_before / before.total, count_now / now.total
        moved = abs(share_before - share_now) >= MIN_DIFFERENCE and _differ_significantly(
            [count_before, before.total - count_before], [count_now, now.total - count_now]
        )
        yield Share(what, value, share_before, share_now, moved)


def _differ_significantly(before: list[int], now: list[int]) -> bool:
    """Return whether two pairs of counts (with and without a value) differ significantly."""
    from scipy.stats import fisher_exact

    return bool(fisher_exact([before, now]).pvalue < MAX_P_VALUE)
