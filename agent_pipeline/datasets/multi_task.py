"""One dataset of several agents: their SFT rows, mixed by weights, each row in its own split.

A few hashes of each row determine which rows are taken; then the conversations of these rows are
read once more. The training rows are mixed by the weights. The held-out splits contain every row of
the agents that take part, because they are used for measuring, and no weight makes an agent easier
to measure.

The split of one agent does not depend on the tasks of the other agents. Therefore, two agents may
have the same task key, exact text or first request in different splits. (The first request is
everything that users wrote before the agent answered.) Such rows are kept only in the split that is
held out most: `test`, then `select`, then `train`. Computing the proportions belongs to `mixing`.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from sys import intern
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.datasets.build import BuiltDataset, CardFacts, DatasetKind, build_dataset
from agent_pipeline.datasets.curated import spill_rows
from agent_pipeline.datasets.mixing import (
    MixerConfig,
    MixingStrategy,
    MultiTaskMixer,
    TaskSample,
    TaskShare,
)
from agent_pipeline.datasets.publishing import ConversationFileOptions
from agent_pipeline.datasets.sft import SFT, SftRow
from agent_pipeline.datasets.sft_tables import (
    SFT_TABLE,
    filter_splits,
    find_splits_by_table,
    read_sft_rows,
)
from agent_pipeline.datasets.splits import SPLITS, Split, find_first_request
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.tables import define_required, read_batches, to_rows
from agent_pipeline.storage.lake import Lake

MIXED_TABLE = "multi_task_dataset"

MULTI_TASK = pa.schema(
    [
        *SFT,
        *define_required(
            pa.string(),
            project="project of the agent that the row is from",
            agent="agent that the row is from",
        ),
    ]
)
"""Columns of `multi_task_dataset`: the columns of `SFT`, and the agent of the row.

The `row_id` is the `row_id` of the agent's own table with `project/agent:` in front.
"""


class MultiTaskRow(SftRow):
    """A row of `multi_task_dataset`."""

    project: str
    agent: str


_MULTI_TASK = DatasetKind(
    asset=MIXED_TABLE,
    schema=MULTI_TASK,
    text="messages",
    description="Conversations of several agents that a model learns to imitate.",
    task="text-generation",
)

_ID_COLUMNS = ["row_id", "task_key", "split"]

_RANKS: dict[str, int] = {split: rank for rank, split in enumerate(SPLITS)}
"""Rank of each split. A higher rank means that a row must be kept further away from training."""


@dataclass(frozen=True)
class MixCandidate:
    """The facts about an SFT row that determine whether it becomes part of the mix.

    Attributes:
        key: The row's agent.
        row_id: The row's id in the agent's table.
        task_key: The row's task.
        split: The row's split.
        text: A hash of the conversation and the tools.
        request: A hash of the first request, or `None` if there is no request.
    """

    key: PartitionKey
    row_id: str
    task_key: str
    split: Split
    text: bytes
    request: bytes | None


@dataclass
class MixedRows:
    """The SFT rows that were chosen for a mix.

    Attributes:
        taken: The agent and the row id of each taken row, in the order of the table.
        shares: The result of mixing the split `train`, by agent.
        splits: Number of rows that were taken from each split, by agent.
    """

    taken: list[tuple[PartitionKey, str]] = field(default_factory=list)
    shares: dict[str, TaskShare] = field(default_factory=dict)
    splits: dict[str, Counter[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltMix:
    """A committed dataset that mixes the rows of several agents.

    Attributes:
        dataset: The dataset.
        mixed: The rows that were chosen for it.
        agents_without_rows: The agents with a weight that do not have an SFT dataset yet.
    """

    dataset: BuiltDataset
    mixed: MixedRows
    agents_without_rows: list[PartitionKey]


def build_multi_task(
    lake: Lake,
    known: Sequence[PartitionKey],
    weights: Mapping[str, float],
    strategy: MixingStrategy,
    seed: int,
    total: int | None,
    files: ConversationFileOptions,
) -> BuiltMix:
    """Build `multi_task_dataset` from the SFT rows of the agents that have a weight.

    Args:
        lake: The lake that has the agents' SFT datasets.
        known: All agents.
        weights: Weights by agent (`tau/airline`) or pattern (`tau/*`).
        strategy: The strategy for mixing the training rows.
        seed: The seed of the choice and of the order.
        total: Number of training rows to take. `None` or 0 takes as many as possible.
        files: The options of the published files.

    Raises:
        SettingsError: A weight fits no agent, or no agent has a weight above 0.
        DataError: No agent has rows to train on, or a table is damaged.
        SplitError: Something is in more than one split.
        ExportError: The hub refuses the folder.
    """
    weight_by_agent = find_weights(known, weights)
    keys = [key for key, weight in weight_by_agent.items() if weight]
    if not keys:
        raise SettingsError(
            f"[mixing] gives none of the {len(known)} known agents a weight above 0: add a "
            "weight, for example {'*' = 1}."
        )
    without_rows = [key for key in keys if not lake.has(SFT_TABLE, key)]
    if len(without_rows) == len(keys):
        raise DataError(
            f"None of the agents {', '.join(map(str, keys[:20]))} has an {SFT_TABLE}: materialize "
            f"`{SFT_TABLE}` for these agents first."
        )
    counts = Counter(
        agents=len(keys),
        agents_without_a_weight=len(known) - len(keys),
        agents_without_an_sft_dataset=len(without_rows),
    )
    config = MixerConfig(
        {str(key): weight_by_agent[key] for key in keys},
        strategy,
        seed=seed,
        total_samples=total or None,
    )
    candidates: dict[PartitionKey, Sequence[MixCandidate]] = {}
    for key in keys:
        candidates[key] = [] if key in without_rows else list(read_candidates(lake, key))
    mixed = choose_rows(candidates, config, counts)
    shown_weights = ", ".join(f"{name} = {weight:g}" for name, weight in weights.items())
    filters = [
        f"training rows mixed by the strategy {strategy}, weights {shown_weights}",
        "a training row is left out if it is held out for another agent; of equal conversations, "
        "one is kept",
    ]
    dataset = build_dataset(
        lake,
        None,
        _MULTI_TASK,
        read_mixed_rows(lake, mixed.taken),
        CardFacts(counts, filters, [key for key in keys if key not in without_rows]),
        files,
        find_request_overlaps,
    )
    return BuiltMix(dataset, mixed, without_rows)


def find_weights(
    keys: Sequence[PartitionKey], weights: Mapping[str, float]
) -> dict[PartitionKey, float]:
    """Return the weight of each agent to which the settings give a weight.

    An agent's own name takes precedence over patterns. If there is no weight for its name, the
    first matching pattern counts.

    Args:
        keys: The agents.
        weights: Weights by agent (`tau/airline`) or pattern (`tau/*`).

    Raises:
        SettingsError: A name or a pattern fits no agent.
    """
    for pattern in weights:
        if not any(fnmatchcase(str(key), pattern) for key in keys):
            known = ", ".join(map(str, keys)) or "none"
            raise SettingsError(
                f"The pattern {pattern!r} in [mixing] matches no agent: use the names of the "
                f"known agents ({known})."
            )
    weight_by_agent: dict[PartitionKey, float] = {}
    for key in keys:
        for pattern in (str(key), *weights):
            if pattern in weights and fnmatchcase(str(key), pattern):
                weight_by_agent[key] = weights[pattern]
                break
    return weight_by_agent


def read_candidates(lake: Lake, key: PartitionKey) -> Iterator[MixCandidate]:
    """Yield every SFT row of an agent as a candidate for the mix.

    Memory holds one batch of each table at a time.

    Raises:
        DataError: There is no such table, or a table is damaged.
    """
    columns = [*_ID_COLUMNS, "messages", "tools"]
    for row in read_sft_rows(lake, key, columns=columns, raw=True):
        yield _make_candidate(key, row)


def _make_candidate(key: PartitionKey, row: Mapping[str, Any]) -> MixCandidate:
    text = bytes(row["messages"]) + b"\n" + bytes(row["tools"])
    return MixCandidate(
        key=key,
        row_id=row["row_id"],
        task_key=row["task_key"],
        split=intern(row["split"]),  # type: ignore[arg-type]  # a text of the table is a `Split`
        text=sha256(text).digest(),
        request=_hash_request(msgspec.json.decode(row["messages"])),
    )


def _hash_request(messages: Sequence[Message]) -> bytes | None:
    """Return a hash of a row's first request, or `None` if the row does not contain a request.

    Case and white space are ignored.
    """
    request = find_first_request(messages)
    if not request:
        return None
    texts = [" ".join(message["content"].lower().split()) for message in request]
    return sha256("\n".join(texts).encode("utf-8")).digest()


def find_request_overlaps(file: pq.ParquetFile) -> dict[str, list[str]]:
    """Return the rows of a mixed table whose request another agent has in a higher split."""
    columns = [*_ID_COLUMNS, "project", "agent", "messages", "tools"]
    candidates = [
        _make_candidate(PartitionKey(row["project"], row["agent"]), row)
        for row in to_rows(read_batches(file, columns), raw=True)
    ]
    held_out_more = find_held_out_more(candidates)["request"]
    return {"request": [candidate.row_id for candidate in held_out_more]}


def find_held_out_more(candidates: Sequence[MixCandidate]) -> dict[str, list[MixCandidate]]:
    """Return the rows that another agent has in a split of higher rank.

    Returns:
        The rows by the value that the two agents share: `task_key`, `text` or `request`.
    """
    return {
        "task_key": _find_held_out(candidates, [row.task_key for row in candidates]),
        "text": _find_held_out(candidates, [row.text for row in candidates]),
        "request": _find_held_out(candidates, [row.request for row in candidates]),
    }


def _find_held_out(
    candidates: Sequence[MixCandidate], values: Sequence[Hashable | None]
) -> list[MixCandidate]:
    """Return the rows whose value another agent has in a split of higher rank.

    Args:
        candidates: All rows.
        values: The value of each row. Rows with the value `None` share nothing.
    """
    holders_by_value: dict[Hashable, frozenset[tuple[int, PartitionKey]]] = {}
    # Nearly all values have one holder, so each distinct set of holders is kept in memory only
    # once.
    shared_sets: dict[Hashable, frozenset[tuple[int, PartitionKey]]] = {}
    for candidate, value in zip(candidates, values, strict=True):
        if value is not None:
            holder = (_RANKS[candidate.split], candidate.key)
            holders = holders_by_value.get(value, frozenset()) | {holder}
            holders_by_value[value] = shared_sets.setdefault(holders, holders)
    held_out: list[MixCandidate] = []
    for candidate, value in zip(candidates, values, strict=True):
        own_rank = _RANKS[candidate.split]
        holders = holders_by_value.get(value, frozenset())
        if any(rank > own_rank and key != candidate.key for rank, key in holders):
            held_out.append(candidate)
    return held_out


_COMMON_PARTS = {"task_key": "its_task", "text": "its_text", "request": "its_request"}


def choose_rows(
    candidates: Mapping[PartitionKey, Sequence[MixCandidate]],
    config: MixerConfig,
    counts: Counter[str],
) -> MixedRows:
    """Choose the rows of the mixed dataset.

    Args:
        candidates: The rows of each agent that has a weight above 0.
        config: The rules of mixing, with a weight for each agent by name.
        counts: Receives `rows_of_the_agents`, which is the sum of `rows`,
            `left_out_as_<part>_is_held_out_more`, `equal_to_another_row` and `not_needed`.

    Raises:
        DataError: No agent has a row to train on.
    """
    all_candidates = [candidate for rows in candidates.values() for candidate in rows]
    counts["rows_of_the_agents"] += len(all_candidates)
    left_out: set[tuple[PartitionKey, str]] = set()
    for part, rows in find_held_out_more(all_candidates).items():
        held_out = {(candidate.key, candidate.row_id) for candidate in rows} - left_out
        counts[f"left_out_as_{_COMMON_PARTS[part]}_is_held_out_more"] += len(held_out)
        left_out |= held_out
    keys_by_name = {str(key): key for key in sorted(candidates)}
    mixed = MixedRows(splits={name: Counter() for name in keys_by_name})
    for split in SPLITS:
        pools = {
            name: [
                TaskSample(name, {"text": candidate.text.hex()}, candidate.row_id)
                for candidate in candidates[key]
                if candidate.split == split and (key, candidate.row_id) not in left_out
            ]
            for name, key in keys_by_name.items()
        }
        if not any(pools.values()):
            if split == "train":
                agents = ", ".join(keys_by_name)
                raise DataError(
                    f"There is nothing to mix, because the agents {agents} have no training rows: "
                    "see the drop reasons in their `curated_sessions`."
                )
            continue
        if split == "train":
            mixer = MultiTaskMixer(config)
        else:
            mixer = MultiTaskMixer(
                MixerConfig(config.task_weights, "proportional", seed=config.seed)
            )
        for sample in mixer.mix(pools):
            mixed.taken.append((keys_by_name[sample.task_type], sample.source))
            mixed.splits[sample.task_type][split] += 1
        if split == "train":
            mixed.shares = mixer.report
        for share in mixer.report.values():
            counts["equal_to_another_row"] += share.duplicates
            counts["not_needed"] += share.available - share.taken
    counts["rows"] += len(mixed.taken)
    return mixed


def read_mixed_rows(
    lake: Lake, taken: Sequence[tuple[PartitionKey, str]]
) -> Iterator[dict[str, object]]:
    """Yield the rows chosen for the mix as rows of `MULTI_TASK`, in the given order.

    Each agent's tables are read once, with one batch in memory at a time. Their rows are stored in
    a temporary file until they are yielded.

    Args:
        lake: The lake that has the agents' tables.
        taken: The agent and the row id of each row.

    Raises:
        DataError: A row is missing, because its table was replaced in the meantime.
    """
    row_ids_by_agent: dict[PartitionKey, set[str]] = defaultdict(set)
    for key, row_id in taken:
        row_ids_by_agent[key].add(row_id)
    row_indices: dict[tuple[PartitionKey, str], int] = {}

    def read_taken() -> Iterator[pa.RecordBatch]:
        for key in sorted(row_ids_by_agent):
            row_ids = pa.array(sorted(row_ids_by_agent[key]))
            for table, splits in find_splits_by_table(lake, key).items():
                stored_batches = read_batches(lake.open(table, key), SFT.names)
                for stored_batch in filter_splits(stored_batches, splits):
                    batch = stored_batch.filter(pc.is_in(stored_batch["row_id"], row_ids))
                    for row_id in batch["row_id"].to_pylist():
                        row_indices[key, row_id] = len(row_indices)
                    yield batch

    with spill_rows(lake, MIXED_TABLE, None, read_taken()) as read_row:
        missing = [(key, row_id) for key, row_id in taken if (key, row_id) not in row_indices]
        if missing:
            key, row_id = missing[0]
            raise DataError(
                f"{len(missing)} rows of {SFT_TABLE} were replaced during the mixing ({row_id} of "
                f"{key}): materialize `{MIXED_TABLE}` again."
            )
        for key, row_id in taken:
            yield read_row(row_indices[key, row_id]) | {
                "row_id": f"{key}:{row_id}",
                "project": key.project,
                "agent": key.agent,
            }
