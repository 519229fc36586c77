"""Drift: what a table's new sessions show beside the version of the table that they join; and the guard on volume, which refuses a store
that lost most of its sessions, or of their verdicts, since the last run.

Compared are the agent's tools and the types of their arguments (of the table `sessions`), and the shares of verdicts and of reasons for
dropping (of `curated_sessions`). Old sessions stay in a store, so that the whole of a table hardly moves from night to night: the new ones
are compared with the whole of the last version.

Half a store and a verdict file that is gone look like a store that shrank. Without the guard the next tables would be empty, and the
replay buffer would let go what it remembers.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.json_text import parse_object
from agent_pipeline.sessions.session import dump_canonical_json
from agent_pipeline.sessions.tables import make_scalar, read_batches
from agent_pipeline.sessions.tool_schemas import JSON_TYPES
from agent_pipeline.storage.lake import Lake, StagedTable

LEAST_DIFFERENCE = 0.1
"""Two shares that differ by less are alike."""
CHANCE = 0.01
"""Two shares are alike where luck alone makes them differ so far more often than this (Fisher's exact test)."""
OFFERED_ALWAYS = 0.9
"""A tool is missed where at least this share of the last version's sessions with tools had it."""


class ToolChange(NamedTuple):
    """A tool that was added or removed, or whose schema changed.

    Of a changed schema `before` and `now` are the JSON schemas of the `argument` that differs, empty where there is none, with `*`
    before it where it is required. No argument is named where something else of the schema changed.
    """

    tool: str
    change: Literal["added", "removed", "schema"]
    argument: str = ""
    before: str = ""
    now: str = ""


class Share(NamedTuple):
    """The share of a value in the last version and in the new sessions.

    `what` is `verdict`, `drop_reason`, or an argument, as in `refund.order_id`; its values are the JSON types of calls, and `absent`.
    """

    what: str
    value: str
    before: float
    now: float
    moved: bool


class Drift(NamedTuple):
    """Of `sessions` sessions in the last version and `new` ones: what changed of the tools, and the shares; of arguments only those that
    moved."""

    sessions: int
    new: int
    tools: list[ToolChange]
    shares: list[Share]

    @property
    def moved(self) -> bool:
        """Whether anything changed that a person should look at."""
        return bool(self.tools) or any(share.moved for share in self.shares)


NO_DRIFT = Drift(0, 0, [], [])


def measure_drift(lake: Lake, asset: str, key: PartitionKey, staged: StagedTable) -> Drift:
    """Compare the new sessions of a staged table with the table that it will replace; `NO_DRIFT` where there is none that can be read."""
    if not lake.has(asset, key):
        return NO_DRIFT
    try:
        with lake.open(asset, key, staged.schema) as before, pq.ParquetFile(staged.file) as now:
            return compare_tables(before, now)
    except (
        DataError,
        pa.ArrowException,
        OSError,
    ):  # a damaged table, or one of an older version, is replaced, not compared
        return NO_DRIFT


def compare_tables(before: pq.ParquetFile, now: pq.ParquetFile) -> Drift:
    """The drift of the sessions that `now` has and `before` had not, or had with another content; and where so many verdicts turned or are
    gone that it is not a correction of a few, of those sessions too."""
    known, found = (file.read(["session_id"])["session_id"] for file in (before, now))
    at = pc.index_in(found, known)  # null: there was no such session
    same = pc.fill_null(
        pc.equal(*_both(before, now, "content_sha256", at)), make_scalar(False, pa.bool_())
    )
    if "verdict" in now.schema_arrow.names:
        was, verdict = _both(before, now, "verdict", at)
        turned = pc.and_(
            pc.and_(same, pc.is_valid(was)),
            pc.fill_null(pc.not_equal(was, verdict), make_scalar(True, pa.bool_())),
        )
        if (pc.sum(turned, min_count=0).as_py()) > LEAST_DIFFERENCE * len(known):
            same = pc.and_not(same, turned)
    new = pc.invert(same).combine_chunks()
    if not len(known) or not new.true_count:
        return Drift(len(known), 0, [], [])
    old, fresh = _profile(before), _profile(now, new)
    return Drift(
        len(known),
        new.true_count,
        list(_tool_changes(old, fresh)),
        [*_fates(old, fresh), *_argument_shares(old, fresh)],
    )


def _both(
    before: pq.ParquetFile, now: pq.ParquetFile, name: str, at: pa.ChunkedArray
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """A column of the sessions of `now`: as they were `before`, in the rows `at`, and as they are."""
    return before.read([name])[name].take(at), now.read([name])[name]


@dataclass
class _Profile:
    """Counts of sessions: by verdict and reason (`fates`), by offered tool; of tools by schema; of calls by argument and type."""

    fates: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    with_tools: int = 0
    offered: Counter[str] = field(default_factory=Counter)
    schemas: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    calls: Counter[str] = field(default_factory=Counter)
    arguments: dict[str, dict[str, Counter[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Counter))
    )


class _Called(msgspec.Struct):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct):
    function: _Called


class _Message(msgspec.Struct):
    """What a message calls; its text is skipped."""

    tool_calls: list[_ToolCall] = []


_MESSAGES = msgspec.json.Decoder(list[_Message])


def _profile(file: pq.ParquetFile, wanted: pa.Array | None = None) -> _Profile:
    """The counts of a table's sessions, or of those that are wanted."""
    fates = [name for name in ("verdict", "drop_reason") if name in file.schema_arrow.names]
    profile, start = _Profile(), 0
    for batch in read_batches(file, fates or ["tools", "messages"]):
        rows = batch if wanted is None else batch.filter(wanted.slice(start, batch.num_rows))
        start += batch.num_rows
        for name in fates:
            profile.fates[name].update(
                value or {"verdict": "none", "drop_reason": "kept"}[name]
                for value in rows[name].to_pylist()
            )
        if fates:
            continue
        for each in pc.value_counts(rows["tools"].storage).to_pylist():
            tools = _schemas(each["values"])
            profile.with_tools += each["counts"] * bool(tools)
            for tool, schema in tools.items():
                profile.offered[tool] += each["counts"]
                profile.schemas[tool][schema] += each["counts"]
        for text in rows["messages"].storage:
            for message in _MESSAGES.decode(text.as_py()):
                for call in message.tool_calls:
                    _count_call(profile, call.function)
    return profile


def _count_call(profile: _Profile, called: _Called) -> None:
    if (arguments := parse_object(called.arguments)) is not None:
        profile.calls[called.name] += 1
        for argument, value in arguments.items():
            profile.arguments[called.name][argument][JSON_TYPES[type(value)]] += 1


@lru_cache(maxsize=256)
def _schemas(tools: str) -> dict[str, str]:
    """The schema of each tool's arguments, as canonical JSON."""
    functions = [tool.get("function") for tool in msgspec.json.decode(tools)]
    return {
        each["name"]: dump_canonical_json(each.get("parameters") or {})
        for each in functions
        if isinstance(each, dict) and "name" in each
    }


def _tool_changes(old: _Profile, new: _Profile) -> Iterator[ToolChange]:
    for tool in sorted(old.offered.keys() | new.offered.keys()):
        if not old.offered[tool]:
            yield ToolChange(tool, "added")
        elif not new.offered[tool]:
            if new.with_tools and old.offered[tool] >= OFFERED_ALWAYS * old.with_tools:
                yield ToolChange(tool, "removed")
        elif other := {
            schema: count
            for schema, count in new.schemas[tool].items()
            if schema not in old.schemas[tool]
        }:
            was, now = (
                _arguments(max(counts, key=counts.__getitem__))
                for counts in (old.schemas[tool], other)
            )
            changed = [
                name for name in sorted(was.keys() | now.keys()) if was.get(name) != now.get(name)
            ]
            yield from (
                ToolChange(tool, "schema", name, was.get(name, ""), now.get(name, ""))
                for name in changed or [""]
            )


def _arguments(schema: str) -> dict[str, str]:
    """The schema of each argument as JSON, without its description; `*` before it marks a required one."""
    parsed: dict[str, Any] = msgspec.json.decode(schema)
    properties, required = parsed.get("properties"), parsed.get("required")
    if not isinstance(properties, dict):
        return {}
    marks = dict.fromkeys(required, "*") if isinstance(required, list) else {}
    return {
        name: marks.get(name, "") + dump_canonical_json(_undescribed(each))
        for name, each in properties.items()
    }


def _undescribed(schema: Any) -> Any:
    return (
        {key: part for key, part in schema.items() if key != "description"}
        if isinstance(schema, dict)
        else schema
    )


def _fates(old: _Profile, new: _Profile) -> Iterator[Share]:
    for what in old.fates:
        yield from _shares(
            what, old.fates[what], old.fates[what].total(), new.fates[what], new.fates[what].total()
        )


def _argument_shares(old: _Profile, new: _Profile) -> Iterator[Share]:
    for tool in sorted(old.calls.keys() & new.calls.keys()):
        for argument in sorted(old.arguments[tool].keys() | new.arguments[tool].keys()):
            was, now = _types(old, tool, argument), _types(new, tool, argument)
            shares = _shares(f"{tool}.{argument}", was, old.calls[tool], now, new.calls[tool])
            yield from (share for share in shares if share.moved)


def _types(profile: _Profile, tool: str, argument: str) -> dict[str, int]:
    """How many calls gave the argument each JSON type, or left it out."""
    types = profile.arguments[tool][argument]
    return {**types, "absent": profile.calls[tool] - types.total()}


def _shares(
    what: str, old: Mapping[str, int], all_old: int, new: Mapping[str, int], all_new: int
) -> Iterator[Share]:
    for value in sorted(old.keys() | new.keys()):
        was, now = old.get(value, 0), new.get(value, 0)
        yield Share(what, value, was / all_old, now / all_new, _differ(was, all_old, now, all_new))


def _differ(some: int, of: int, others: int, of_others: int) -> bool:
    if abs(some / of - others / of_others) < LEAST_DIFFERENCE:
        return False
    from scipy.stats import fisher_exact

    return bool(fisher_exact([[some, of - some], [others, of_others - others]]).pvalue < CHANCE)


FEW = 10
"""Of fewer sessions or verdicts than this, losing half says nothing."""


class VolumeError(DataError):
    """There are too few of `what` (`sessions`, `verdicts`, `metrics`, `labels`): `now`, where the last run had `before`."""

    def __init__(
        self,
        asset: str,
        key: PartitionKey,
        what: str,
        before: int,
        now: int,
        notes: Sequence[str] = (),
    ) -> None:
        self.what, self.before, self.now = what, before, now
        super().__init__(
            f"{asset} of {key} was not replaced: there are {now:,} {what}, and the last run read {before:,}. Look for what is missing; "
            f"if so few are right, run once with --set {asset}.smallest_share=0."
            + "".join(f" {note}" for note in notes[:3])
        )


def check_volume(
    lake: Lake,
    key: PartitionKey,
    staged: StagedTable,
    smallest_share: float,
    notes: Sequence[str] = (),
) -> None:
    """Compare a staged table with the one that it would replace; `notes` are what the reader noted, shown with the error.

    If the last table is damaged, the tables that were made of it tell what it held.

    Raises:
        VolumeError: the share of sessions, of those with a recorded verdict, or of those with metrics that is left is smaller; the staged
            table is removed.
        DataError: the last table is damaged, and nothing tells what it held; the staged table is removed.
    """
    if not (smallest_share and lake.has("sessions", key)):
        return
    before = next(
        (
            counts
            for asset in _TABLES_WITH_COUNTS
            if (counts := _last_counts(lake, asset, key)) is not None
        ),
        None,
    )
    if before is None:
        staged.file.unlink()
        raise DataError(
            f"sessions of {key} was not replaced: its last table at {lake.table('sessions', key)} is damaged, so nobody can tell whether "
            "the store has lost sessions. Put a copy of it back, or run once with --set sessions.smallest_share=0."
        )
    now = _counts(pq.ParquetFile(staged.file))
    for what, count in before.items():
        if count >= FEW and now[what] < smallest_share * count:
            staged.file.unlink()
            raise VolumeError("sessions", key, what, count, now[what], notes)


_TABLES_WITH_COUNTS = ("sessions", "judged_sessions", "curated_sessions")


def _last_counts(lake: Lake, asset: str, key: PartitionKey) -> Counter[str] | None:
    """The counts of a table of the last run; None if there is none that can be read."""
    try:
        with lake.open(asset, key) as file:
            return _counts(file)
    except (DataError, pa.ArrowException, OSError, KeyError):
        return None


def _counts(file: pq.ParquetFile) -> Counter[str]:
    """How many sessions there are, how many have a verdict (the source's judgment or score), and how many metrics: those of a platform are
    on every session, and would hide that the verdicts are gone."""
    counts: Counter[str] = Counter()
    for batch in read_batches(file, ["judgment", "score", "scores"]):
        judged = pc.or_(pc.is_valid(batch["judgment"]), pc.is_valid(batch["score"]))
        scored = pc.greater(
            pc.binary_length(batch["scores"].storage), make_scalar(len("{}"), pa.int64())
        )
        counts["sessions"] += batch.num_rows
        counts.update(
            {
                name: pc.sum(each, min_count=0).as_py()
                for name, each in (("verdicts", judged), ("metrics", scored))
            }
        )
    return counts
