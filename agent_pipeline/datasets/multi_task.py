"""One data set of several agents (01 B6): their SFT rows, mixed by weights, each row on the side where it was.

Which rows is decided on a few hashes a row; the conversations are read once more for those that were taken. The training side is mixed by
the weights. The held-out sides hold every row of the agents that take part: they measure, and no weight makes an agent easier to measure.

Each agent's own split knows nothing of the others' tasks. What would stand on two sides here (a task's key, an exact text, or all that
users said before the agent answered, in two agents) stays on the side that is held out more: test, then select, then train.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from agent_pipeline.datasets.curated import shelf
from agent_pipeline.datasets.mixing import MixerConfig, MultiTaskMixer, TaskSample, TaskShare
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.splits import SPLITS
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.tables import stored_batches, to_rows
from agent_pipeline.storage.lake import Lake

ASSET, SOURCE = "multi_task_dataset", "sft_dataset"

MULTI_TASK = pa.schema([*SFT, pa.field("project", pa.string(), nullable=False), pa.field("agent", pa.string(), nullable=False)])
"""The columns of `SFT`, and whose the row is. `row_id` is the agent's with `project/agent:` before it."""

Row = dict[str, Any]

_IDS = ["row_id", "session_id", "task_key", "split"]
_RANK: dict[str, int] = {split: rank for rank, split in enumerate(SPLITS)}


class Candidate(NamedTuple):
    """What is known of a row before it is taken: its agent, ids and side, and hashes of its text and of what the agent was asked first."""

    key: PartitionKey
    row_id: str
    session_id: str
    task_key: str
    split: str
    text: bytes
    asked: bytes | None


@dataclass
class Mix:
    """Which rows were taken, in their order; `shares` of the training side by agent, `sides` the rows taken by agent and side."""

    taken: list[tuple[PartitionKey, str]] = field(default_factory=list)
    shares: dict[str, TaskShare] = field(default_factory=dict)
    sides: dict[str, Counter[str]] = field(default_factory=dict)


def weights_of(keys: Sequence[PartitionKey], weights: Mapping[str, float]) -> dict[PartitionKey, float]:
    """The weight of each agent that has one: that of its name, else of the first pattern (`tau/*`) that fits it; each agent has it whole.

    Raises:
        SettingsError: a name or a pattern fits no agent.
    """
    found: dict[PartitionKey, float] = {}
    for key in keys:
        fitting = [pattern for pattern in weights if fnmatchcase(str(key), pattern)]
        if str(key) in weights or fitting:
            found[key] = weights[str(key)] if str(key) in weights else weights[fitting[0]]
    for pattern in weights:
        if not any(fnmatchcase(str(key), pattern) for key in keys):
            known = ", ".join(map(str, keys)) or "none"
            raise SettingsError(f"The weight of {pattern!r} in [mixing] fits no agent: known are {known}.")
    return found


def candidates(lake: Lake, key: PartitionKey) -> Iterator[Candidate]:
    """Every row of an agent's SFT table; memory holds a batch of them.

    Raises:
        DataError: there is no such table, or it is damaged.
    """
    read = stored_batches(lake.open(SOURCE, key), [*_IDS, "messages", "tools"])
    return (_candidate(key, row) for row in to_rows(read, raw=True))


def candidates_of_mixed(lake: Lake) -> Iterator[Candidate]:
    """Every row of the mixed table. Raises as `candidates`."""
    read = stored_batches(lake.open(ASSET, None), [*_IDS, "project", "agent", "messages", "tools"])
    return (_candidate(PartitionKey(row["project"], row["agent"]), row) for row in to_rows(read, raw=True))


def crossing(found: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    """The rows that another agent has on a side that is held out more, by what they have in common: task, exact text, or request."""
    every = list(found)
    crossed: dict[str, list[Candidate]] = {}
    for kind in ("task_key", "text", "asked"):
        sides: dict[Any, dict[str, set[PartitionKey]]] = defaultdict(lambda: defaultdict(set))
        for each in every:
            sides[getattr(each, kind)][each.split].add(each.key)
        sides.pop(None, None)
        crossed[kind] = [each for each in every if _is_held_out_by_another(each, sides.get(getattr(each, kind), {}))]
    return crossed


def mix(found: Mapping[PartitionKey, Sequence[Candidate]], config: MixerConfig, counts: Counter[str]) -> Mix:
    """Choose the rows. `config` has a weight for each agent, by name; agents of weight 0 are to be left out before.

    `counts` gets `rows_of_the_agents` = `rows` + `left_out_as_<what>_on_a_side_held_out_more` + `equal_to_another_row` + `not_needed`.

    Raises:
        DataError: no agent has a row to train on.
    """
    every = [each for rows in found.values() for each in rows]
    counts["rows_of_the_agents"] += len(every)
    left_out: set[tuple[PartitionKey, str]] = set()
    for kind, rows in crossing(every).items():
        new = {(each.key, each.row_id) for each in rows} - left_out
        counts[f"left_out_as_{_CROSSING[kind]}_on_a_side_held_out_more"] += len(new)
        left_out |= new
    made = Mix(sides={str(key): Counter() for key in sorted(found)})
    for split in SPLITS:
        pools = {
            str(key): [
                TaskSample(str(key), {"text": each.text.hex()}, each.row_id)
                for each in rows
                if each.split == split and (key, each.row_id) not in left_out
            ]
            for key, rows in found.items()
        }
        if not any(pools.values()):
            if split == "train":
                raise DataError(f"There is nothing to mix: no agent of {', '.join(map(str, sorted(found)))} has a row to train on.")
            continue
        mixer = MultiTaskMixer(config if split == "train" else MixerConfig(config.task_weights, "proportional", seed=config.seed))
        keys = {str(key): key for key in found}
        for sample in mixer.mix(pools):
            made.taken.append((keys[sample.task_type], sample.source))
            made.sides[sample.task_type][split] += 1
        made.shares = made.shares or mixer.report
        counts["equal_to_another_row"] += sum(share.duplicates for share in mixer.report.values())
        counts["not_needed"] += sum(share.available - share.taken for share in mixer.report.values())
    counts["rows"] += len(made.taken)
    return made


def mixed_rows(lake: Lake, taken: Sequence[tuple[PartitionKey, str]]) -> Iterator[Row]:
    """Rows of `MULTI_TASK`, those that were taken, in their order; memory holds a batch of an agent's rows.

    Each agent's table is read once, from its beginning to its end; until their turn comes, rows lie in a file beside this table.
    """
    wanted: dict[PartitionKey, set[str]] = defaultdict(set)
    for key, row_id in taken:
        wanted[key].add(row_id)
    places: dict[tuple[PartitionKey, str], int] = {}
    with shelf(lake, ASSET, None) as kept:
        for key in sorted(wanted):
            for row in to_rows(stored_batches(lake.open(SOURCE, key), SFT.names), raw=True):
                if row["row_id"] in wanted[key]:
                    named = {"row_id": f"{key}:{row['row_id']}", "project": key.project, "agent": key.agent}
                    places[key, row["row_id"]] = kept.put(row | named)
        for one in taken:
            yield kept.take(places[one])


_CROSSING = {"task_key": "its_task", "text": "its_text", "asked": "its_request"}


def _is_held_out_by_another(one: Candidate, sides: Mapping[str, Collection[PartitionKey]]) -> bool:
    return any(_RANK[split] > _RANK[one.split] and set(keys) - {one.key} for split, keys in sides.items())


def _candidate(key: PartitionKey, row: Row) -> Candidate:
    text = sha256(bytes(row["messages"]) + b"\n" + bytes(row["tools"])).digest()
    row_id, session_id, task_key, split = (row[name] for name in _IDS)
    return Candidate(key, row_id, session_id, task_key, split, text, _asked(msgspec.json.decode(row["messages"])))


def _asked(messages: Sequence[Message]) -> bytes | None:
    """A hash of what users said before the agent answered them, case and white space folded; null where they said nothing."""
    said: list[str] = []
    for message in messages:
        if message["role"] == "assistant" and said:
            break
        if message["role"] == "user" and message["content"].strip():
            said.append(" ".join(message["content"].lower().split()))
    return sha256("\n".join(said).encode("utf-8")).digest() if said else None
