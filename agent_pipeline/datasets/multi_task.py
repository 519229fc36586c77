"""One data set of several agents: their SFT rows, mixed by weights, each row in the split where it was.

Which rows are taken is decided on a few hashes a row; then the conversations of those are read once more. The rows to train on are mixed by
the weights. The held-out splits hold every row of the agents that take part: they measure, and no weight makes an agent easier to measure.

Each agent's own split knows nothing of the others' tasks. What would be in two splits here (a task's key, an exact text, or everything that
users wrote before the agent answered, in two agents) stays where it is held out more: `test`, then `select`, then `train`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from sys import intern
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.datasets.build import Built, Kind, build
from agent_pipeline.datasets.curated import spilled
from agent_pipeline.datasets.mixing import (
    MixerConfig,
    MultiTaskMixer,
    Strategy,
    TaskSample,
    TaskShare,
)
from agent_pipeline.datasets.publishing import ConversationFileOptions
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.splits import SPLITS, first_request
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.tables import define_required, read_batches, to_rows
from agent_pipeline.storage.lake import Lake

ASSET, SOURCE = "multi_task_dataset", "sft_dataset"

MULTI_TASK = pa.schema(
    [
        *SFT,
        *define_required(
            pa.string(),
            project="the project of the row's agent",
            agent="the agent that the row is from",
        ),
    ]
)
"""The columns of `SFT`, and the agent of the row. `row_id` is the agent's with `project/agent:` before it."""

_KIND = Kind(
    ASSET, MULTI_TASK, "messages", "Conversations of several agents, to imitate.", "text-generation"
)

Row = dict[str, Any]

_IDS = ["row_id", "task_key", "split"]
_RANK: dict[str, int] = {split: rank for rank, split in enumerate(SPLITS)}


class Candidate(NamedTuple):
    """What is known of a row before it is taken: its agent, ids and split, and hashes of its text and of the first request."""

    key: PartitionKey
    row_id: str
    task_key: str
    split: str
    text: bytes
    request: bytes | None


@dataclass
class Mix:
    """Which rows were taken, in their order; `shares` of the training split by agent; how many rows were taken, by agent and split."""

    taken: list[tuple[PartitionKey, str]] = field(default_factory=list)
    shares: dict[str, TaskShare] = field(default_factory=dict)
    splits: dict[str, Counter[str]] = field(default_factory=dict)


def build_multi_task(
    lake: Lake,
    known: Sequence[PartitionKey],
    weights: Mapping[str, float],
    strategy: Strategy,
    seed: int,
    total: int | None,
    files: ConversationFileOptions,
) -> tuple[Built, Mix, list[PartitionKey]]:
    """Build `multi_task_dataset` from the SFT rows of the `known` agents that have a weight; also which rows it has, and the agents that
    have no SFT rows yet.

    Raises:
        SettingsError: a weight fits no agent, or no agent has a weight above 0.
        DataError: no agent has rows to train on, or a table is damaged.
        SplitError: something is in two splits.
        ExportError: the hub refuses.
    """
    weighted = weights_of(known, weights)
    keys = [key for key, weight in weighted.items() if weight]
    if not keys:
        raise SettingsError(
            f"[mixing] gives none of the {len(known)} known agents a weight above 0: give weights, as {{'*' = 1}}."
        )
    missing = [key for key in keys if not lake.has(SOURCE, key)]
    if len(missing) == len(keys):
        raise DataError(
            f"None of the agents {', '.join(map(str, keys[:20]))} has an {SOURCE}: materialize {SOURCE} of them first."
        )
    counts = Counter(
        agents=len(keys),
        agents_without_a_weight=len(known) - len(keys),
        agents_without_an_sft_dataset=len(missing),
    )
    config = MixerConfig(
        {str(key): weighted[key] for key in keys}, strategy, seed=seed, total_samples=total or None
    )
    mixed = mix(
        {key: [] if key in missing else list(candidates(lake, key)) for key in keys}, config, counts
    )
    shown = ", ".join(f"{name} = {weight:g}" for name, weight in weights.items())
    filters = [
        f"training rows mixed by the strategy {strategy}, weights {shown}",
        "rows that another agent holds out more are left out; equal conversations are taken once",
    ]
    rows, agents = mixed_rows(lake, mixed.taken), [key for key in keys if key not in missing]
    built = build(lake, None, _KIND, rows, counts, filters, files, agents, crossing_requests)
    return built, mixed, missing


def weights_of(
    keys: Sequence[PartitionKey], weights: Mapping[str, float]
) -> dict[PartitionKey, float]:
    """The weight of each agent that has one: that of its name, else of the first pattern (`tau/*`) that fits it.

    Raises:
        SettingsError: a name or a pattern fits no agent.
    """
    fitting = {
        key: next(
            (
                pattern
                for pattern in (str(key), *weights)
                if pattern in weights and fnmatchcase(str(key), pattern)
            ),
            None,
        )
        for key in keys
    }
    for pattern in weights:
        if not any(fnmatchcase(str(key), pattern) for key in keys):
            known = ", ".join(map(str, keys)) or "none"
            raise SettingsError(
                f"The weight of {pattern!r} in [mixing] fits no agent: known are {known}."
            )
    return {key: weights[pattern] for key, pattern in fitting.items() if pattern is not None}


def candidates(lake: Lake, key: PartitionKey) -> Iterator[Candidate]:
    """Every row of an agent's SFT table; memory holds a batch of them.

    Raises:
        DataError: there is no such table, or it is damaged.
    """
    read = read_batches(lake.open(SOURCE, key), [*_IDS, "messages", "tools"])
    return (_candidate(key, row) for row in to_rows(read, raw=True))


def crossing_requests(file: pq.ParquetFile) -> dict[str, list[str]]:
    """The rows of a mixed table whose request another agent has in a split that is held out more."""
    rows = to_rows(read_batches(file, [*_IDS, "project", "agent", "messages", "tools"]), raw=True)
    found = crossing(_candidate(PartitionKey(row["project"], row["agent"]), row) for row in rows)
    return {"request": [each.row_id for each in found["request"]]}


def crossing(found: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    """The rows that another agent has in a split that is held out more, by what they have in common: task, exact text, or request."""
    every = list(found)
    crossed: dict[str, list[Candidate]] = {}
    for kind in ("task_key", "text", "request"):
        holders: dict[Any, frozenset[tuple[int, PartitionKey]]] = {None: frozenset()}
        alike: dict[
            Any, Any
        ] = {}  # nearly all of them have one holder: memory has each set of holders once
        for each in every:
            if (name := getattr(each, kind)) is not None:
                holding = holders.get(name, frozenset()) | {(_RANK[each.split], each.key)}
                holders[name] = alike.setdefault(holding, holding)
        crossed[kind] = [
            each
            for each in every
            if any(
                rank > _RANK[each.split] and key != each.key
                for rank, key in holders[getattr(each, kind)]
            )
        ]
    return crossed


def mix(
    found: Mapping[PartitionKey, Sequence[Candidate]], config: MixerConfig, counts: Counter[str]
) -> Mix:
    """Choose the rows. `config` has a weight for each agent, by name; agents of weight 0 are to be left out before.

    `counts` gets `rows_of_the_agents` = `rows` + `left_out_as_<what>_is_held_out_more` + `equal_to_another_row` + `not_needed`.

    Raises:
        DataError: no agent has a row to train on.
    """
    every = [each for rows in found.values() for each in rows]
    counts["rows_of_the_agents"] += len(every)
    left_out: set[tuple[PartitionKey, str]] = set()
    for kind, rows in crossing(every).items():
        new = {(each.key, each.row_id) for each in rows} - left_out
        counts[f"left_out_as_{_CROSSING[kind]}_is_held_out_more"] += len(new)
        left_out |= new
    keys = {str(key): key for key in sorted(found)}
    mixed = Mix(splits={name: Counter() for name in keys})
    for split in SPLITS:
        pools = {
            name: [
                TaskSample(name, {"text": each.text.hex()}, each.row_id)
                for each in found[key]
                if each.split == split and (key, each.row_id) not in left_out
            ]
            for name, key in keys.items()
        }
        if not any(pools.values()):
            if split == "train":
                raise DataError(
                    f"There is nothing to mix: no agent of {', '.join(map(str, sorted(found)))} has a row to train on."
                )
            continue
        mixer = MultiTaskMixer(
            config
            if split == "train"
            else MixerConfig(config.task_weights, "proportional", seed=config.seed)
        )
        for sample in mixer.mix(pools):
            mixed.taken.append((keys[sample.task_type], sample.source))
            mixed.splits[sample.task_type][split] += 1
        mixed.shares = mixed.shares or mixer.report
        counts["equal_to_another_row"] += sum(share.duplicates for share in mixer.report.values())
        counts["not_needed"] += sum(
            share.available - share.taken for share in mixer.report.values()
        )
    counts["rows"] += len(mixed.taken)
    return mixed


def mixed_rows(lake: Lake, taken: Sequence[tuple[PartitionKey, str]]) -> Iterator[Row]:
    """The taken rows of `MULTI_TASK`, in their order; memory holds a batch of an agent's rows.

    Each agent's table is read once; its rows lie in a temporary file until their turn comes.

    Raises:
        DataError: a row is gone, because its table was replaced meanwhile.
    """
    wanted: dict[PartitionKey, set[str]] = defaultdict(set)
    for key, row_id in taken:
        wanted[key].add(row_id)
    places: dict[tuple[PartitionKey, str], int] = {}

    def batches() -> Iterator[pa.RecordBatch]:
        for key in sorted(wanted):
            for batch in read_batches(lake.open(SOURCE, key), SFT.names):
                batch = batch.filter(pc.is_in(batch["row_id"], pa.array(sorted(wanted[key]))))
                for row_id in batch["row_id"].to_pylist():
                    places[key, row_id] = len(places)
                yield batch

    with spilled(lake, ASSET, None, batches()) as row:
        if gone := [f"{row_id} of {key}" for key, row_id in taken if (key, row_id) not in places]:
            raise DataError(
                f"{len(gone)} rows of {SOURCE} were replaced while they were mixed ({gone[0]}): materialize {ASSET} again."
            )
        for key, row_id in taken:
            taken_row = row(places[key, row_id])
            yield taken_row | {
                "row_id": f"{key}:{row_id}",
                "project": key.project,
                "agent": key.agent,
            }


_CROSSING = {"task_key": "its_task", "text": "its_text", "request": "its_request"}


def _candidate(key: PartitionKey, row: Row) -> Candidate:
    text = sha256(bytes(row["messages"]) + b"\n" + bytes(row["tools"])).digest()
    row_id, task_key, split = (row[name] for name in _IDS)
    return Candidate(
        key, row_id, task_key, intern(split), text, _request(msgspec.json.decode(row["messages"]))
    )


def _request(messages: Sequence[Message]) -> bytes | None:
    """A hash of the first request, case and white space folded; `None` where there is none."""
    texts = [" ".join(message["content"].lower().split()) for message in first_request(messages)]
    return sha256("\n".join(texts).encode("utf-8")).digest() if texts else None
