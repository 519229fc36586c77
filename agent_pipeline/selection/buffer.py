"""The replay buffer: rows of earlier nights that are mixed with new rows to prevent forgetting.

There are two ways to keep a bounded, uniform sample of all rows seen. A reservoir (Vitter 1985,
algorithm R) depends on the order of rows, and counts a repeated row twice. Choosing the rows with
the lowest seeded hashes of their ids is equally uniform. It is also idempotent, does not depend on
the order, and can be merged: the choice of a union is the choice of the choices.

Between nights, the pipeline keeps a buffer by hash (`update_buffer`). It then draws rows from the
buffer that a night's own training rows do not contain (`draw_replay`). The tables of the lake
belong to `replay`.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import SettingsError
from agent_pipeline.selection.embeddings import format_conversation
from agent_pipeline.sessions.session import hash_json

Row: TypeAlias = DatasetRow
IsHeldOut = Callable[[Row], bool]
"""Function that returns whether a row must never be trained, because its task or its conversation
is held out.
"""


class BufferChange(StrEnum):
    """What became of rows of the replay buffer. Counts have these keys, so they never change."""

    NEW = "new"
    EARLIER = "of earlier nights"
    LOST_BY_STORE = "of earlier nights, gone from the store"
    NOT_TRAINED = "removed: no longer a training row"
    NOT_DRAWN = "removed: other rows have lower hashes"
    HELD_OUT = "removed: held out"
    JUDGED_BAD = "removed: judged bad under another id"


_DESCRIPTIONS: dict[str, str] = {
    BufferChange.LOST_BY_STORE: "of earlier nights, and no longer in the store",
    BufferChange.NOT_TRAINED: "removed, because it is no longer a training row",
    BufferChange.NOT_DRAWN: "removed, because the random sample chose other rows",
}


def describe_change(change: str) -> str:
    """Return what became of rows of the replay buffer, in the words that the UI shows."""
    return _DESCRIPTIONS.get(change, change)


class ReplayRatioError(SettingsError):
    """Raised if a replay ratio is below 0, or is 1 or more.

    Attributes:
        ratio: The ratio.
    """

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        super().__init__(
            f"The setting `replay_ratio` is {ratio}: set it to a share of each batch from 0 to "
            "below 1."
        )


def parse_ratio(ratio: float) -> Fraction:
    """Parse a replay ratio as the exact fraction that the user meant: 0.1 is one tenth.

    Raises:
        ReplayRatioError: the ratio is not a share from 0 to below 1.
    """
    fraction = Fraction(ratio).limit_denominator(10**6) if 0 <= ratio < 1 else Fraction(1)
    if fraction == 1:
        raise ReplayRatioError(ratio)
    return fraction


def count_replayed(new: int, ratio: Fraction) -> int:
    """Return the number of replayed rows that make up the share `ratio` of all rows, rounded down.

    `new` is the number of the other rows.
    """
    return int(new * ratio / (1 - ratio))


def spread_replayed(new: int, replayed: int) -> list[bool]:
    """Return the positions of the replayed rows in a sequence of `new + replayed` rows.

    The replayed rows are spread so evenly that every sequence of rows has its share, to less than
    one row. (The positions follow a line with this slope in whole numbers: Bresenham 1965.)
    """
    total = new + replayed
    return [
        (position + 1) * replayed // total > position * replayed // total
        for position in range(total)
    ]


def hash_spoken(row: Row) -> str:
    """Return the sha256 (hex) of the messages and calls in a row's conversation.

    The system prompt, and which turns are trained, do not change the hash.
    """
    return hash_json(format_conversation(row["messages"]))


def get_row_key(row: Row) -> str:
    """Return the key that identifies a row.

    The key is the id of the row's session. If this id is missing, the key is the row's own id, or
    else the hash of its content.
    """
    return str(row.get("session_id") or row.get("row_id") or hash_json(row))


def hash_key(key: str, seed: int) -> bytes:
    """Return the position that a key has in a seeded random order.

    The positions of keys are uniformly distributed (sha256).
    """
    return hashlib.sha256(f"{seed}\0{key}".encode("utf-8", "backslashreplace")).digest()


def keep_bottom_k(rows: Iterable[Row], size: int, seed: int = 0) -> list[Row]:
    """Return the rows whose keys have the lowest seeded hashes, lowest hash first.

    The choice does not depend on the order, is idempotent and can be merged:
    `keep_bottom_k([*keep_bottom_k(a, k), *keep_bottom_k(b, k)], k) == keep_bottom_k([*a, *b], k)`.

    Args:
        rows: The rows. If a row occurs in two versions, the version with the lower content hash
            counts.
        size: Maximum number of rows.
        seed: The seed of the hashes.
    """
    by_key: dict[str, Row] = {}
    for row in rows:
        before = by_key.setdefault(get_row_key(row), row)
        if before is not row and before != row:
            by_key[get_row_key(row)] = min(before, row, key=hash_json)
    lowest = sorted(by_key, key=lambda key: (hash_key(key, seed), key))[:size]
    return [by_key[key] for key in lowest]


@dataclass
class OnlineContinualLearner:
    """A replay buffer of limited size that also mixes its rows into batches.

    Names and defaults are those of SAGE. To restore a learner, set `buffer` and `seen` to the
    values that they had.

    Attributes:
        buffer_size: Maximum number of rows in the buffer.
        replay_ratio: The share of replayed rows in a mixed batch, at least 0 and below 1.
        selection_strategy: The method of choosing rows.
        seed: The seed of every random choice.
        buffer: The rows.
        seen: Number of rows that the buffer has seen so far.
    """

    buffer_size: int = 2048
    replay_ratio: float = 0.25
    selection_strategy: Literal["reservoir"] = "reservoir"
    seed: int = 0
    buffer: list[Row] = field(default_factory=list)
    seen: int = 0

    def __post_init__(self) -> None:
        if self.buffer_size < 1:
            raise SettingsError(
                f"The setting `buffer_size` of replay is {self.buffer_size}: set it to 1 or more."
            )
        self._ratio = parse_ratio(self.replay_ratio)
        if self.selection_strategy != "reservoir":
            raise SettingsError(
                f"There is no `selection_strategy` {self.selection_strategy!r} of replay: choose "
                "'reservoir'."
            )
        self._random = random.Random(self.seed)
        self._mixed = 0

    def mix_with_replay(self, batch: Sequence[Row]) -> list[Row]:
        """Return a batch, followed by rows of the buffer that make up `replay_ratio` of the whole.

        The buffer does not change. A fraction of a row is carried over to the next batch, so that a
        series of batches is exact to less than one row. If the buffer has too few rows, rows are
        repeated. An empty buffer provides no rows, and later batches do not make up for that.
        """
        if not self.buffer:
            return list(batch)
        before = count_replayed(self._mixed, self._ratio)
        count = count_replayed(self._mixed + len(batch), self._ratio) - before
        self._mixed += len(batch)
        replayed: list[Row] = []
        while len(replayed) < count:
            replayed += self.get_replay_samples(count - len(replayed))
        return [*batch, *replayed]

    def update_buffer(self, batch: Iterable[Row]) -> None:
        """Offer new rows to the buffer.

        Replayed rows must not be shown, because the buffer has already seen them.
        """
        for row in batch:
            self.seen += 1
            if len(self.buffer) < self.buffer_size:
                self.buffer.append(row)
                continue
            position = self._random.randrange(self.seen)
            if position < self.buffer_size:
                self.buffer[position] = row

    def get_replay_samples(self, n: int) -> list[Row]:
        """Return `n` rows of the buffer, drawn without replacement, or all rows if it has fewer."""
        return self._random.sample(self.buffer, min(max(n, 0), len(self.buffer)))

    def clear_buffer(self) -> None:
        """Remove all rows, and reset the number of rows seen."""
        self.buffer, self.seen, self._mixed = [], 0, 0


@dataclass(frozen=True)
class UpdatedBuffer:
    """The replay buffer after a night's training.

    Attributes:
        rows: The rows of the buffer.
        counts: Counts by outcome of the sessions in the previous buffer and of the chosen sessions.
    """

    rows: list[Row]
    counts: Counter[str]


def update_buffer(
    before: Iterable[Row],
    current: Mapping[str, Row],
    chosen: Collection[str],
    in_store: Collection[str],
    is_held_out: IsHeldOut,
    size: int,
) -> UpdatedBuffer:
    """Update the replay buffer after a night's training, and return it.

    It contains the rows with the lowest hashes among all rows that were ever trained. A session
    that is still in the store is stored in its current form. It is removed if curation no longer
    keeps it or if its task moved to another split. A session that the store has lost stays in its
    old form.

    Args:
        before: The buffer before the night.
        current: The current training rows by session. They must include all rows that are `chosen`
            or in the buffer.
        chosen: The sessions that the night trains.
        in_store: The sessions of the buffer that are still in the store.
        is_held_out: Returns whether a row may never be trained. Such a row is always removed.
        size: Maximum number of rows.
    """
    counts: Counter[str] = Counter()
    earlier = {row["session_id"]: row for row in before}
    now = {
        session: current.get(session, row)
        for session, row in earlier.items()
        if session in current or session not in in_store
    }
    counts[BufferChange.NOT_TRAINED] = len(earlier) - len(now)
    now |= {session: current[session] for session in chosen}
    usable = [row for row in now.values() if not is_held_out(row)]
    counts[BufferChange.HELD_OUT] = len(now) - len(usable)
    rows = keep_bottom_k(usable, size)
    counts[BufferChange.NOT_DRAWN] = len(usable) - len(rows)
    for row in rows:
        if row["session_id"] not in earlier:
            counts[BufferChange.NEW] += 1
        elif row["session_id"] in in_store:
            counts[BufferChange.EARLIER] += 1
        else:
            counts[BufferChange.LOST_BY_STORE] += 1
    return UpdatedBuffer(rows, +counts)


@dataclass(frozen=True)
class ReplayDraw:
    """The rows that are replayed next to a night's own rows.

    Attributes:
        rows: The rows.
        ratio: The share of the whole that was requested.
        got: The share of the whole that the rows make up.
        wanted: Number of rows that make up `ratio` of the whole.
        candidates: Number of rows that could be drawn.
        left_out: Number of the buffer's other rows, by reason.
    """

    rows: list[Row]
    ratio: float
    got: float
    wanted: int
    candidates: int
    left_out: dict[str, int]

    def report(self) -> dict[str, Any]:
        """Return the figures about the draw for a report, without the rows themselves."""
        return {
            "ratio": self.ratio,
            "got": self.got,
            "wanted": self.wanted,
            "candidates": self.candidates,
            "left_out": self.left_out,
            "replayed": len(self.rows),
            "could_not_be_had": self.wanted - len(self.rows),
        }

    def describe(self) -> str:
        """Return a sentence about the replayed rows, or the reason why no row is replayed."""
        if not self.ratio:
            return "nothing is replayed, because replay_ratio is 0"
        if not self.candidates:
            return "nothing is replayed, because all rows in the buffer are among the new rows"
        if not self.wanted:
            return f"nothing is replayed: {self.ratio:.1%} of the rows is less than one row"
        lacking = self.wanted - len(self.rows)
        why = f"{lacking} rows are missing" if lacking else "rounded down to whole rows"
        return (
            f"{len(self.rows)} rows of earlier nights are replayed, {self.got:.1%} of all rows "
            f"(the setting is {self.ratio:.1%}; {why})"
        )


def draw_replay(
    buffer: Iterable[Row],
    training: Sequence[Row],
    ratio: float,
    is_held_out: IsHeldOut,
    passed_over: Collection[str] = (),
) -> ReplayDraw:
    """Draw rows of the buffer that are trained together with the `training` rows.

    No drawn row is among the training rows, or has the same conversation as a training row or
    another drawn row. The seed of the hashes comes from the training rows, so that the choice
    differs between nights but is the same for the same night.

    Args:
        buffer: The buffer.
        training: The night's own rows.
        ratio: The share of the whole that the drawn rows should make up.
        is_held_out: Returns whether a row may never be trained.
        passed_over: Sessions that selection left out as duplicates of another row.
    """
    wanted = count_replayed(len(training), parse_ratio(ratio))
    training_sessions = {row["session_id"] for row in training}
    taken = {hash_spoken(row) for row in training}
    left_out: Counter[str] = Counter()
    candidates: list[Row] = []
    for row in sorted(buffer, key=lambda row: str(row["session_id"])):
        if row["session_id"] in training_sessions:
            left_out["among the new rows"] += 1
        elif is_held_out(row):
            left_out["held out"] += 1
        elif row["session_id"] in passed_over or hash_spoken(row) in taken:
            left_out["an equal row is replayed or new"] += 1
        else:
            taken.add(hash_spoken(row))
            candidates.append(row)
    identity = hash_json(sorted((row["row_id"], row["content_sha256"]) for row in training))
    rows = keep_bottom_k(candidates, wanted, seed=int(identity[:16], 16))
    got = len(rows) / (len(rows) + len(training)) if rows else 0.0
    return ReplayDraw(rows, ratio, got, wanted, len(candidates), dict(left_out))
