"""Replay: rows of earlier nights mixed into new ones, so that a model does not forget.

There are two ways to keep a bounded, uniform choice of all rows seen. `reservoir` (Vitter 1985, algorithm R) depends on the order of rows,
and counts a row that is seen twice twice. `hash` keeps the rows with the lowest seeded hashes of their ids: it is as uniform, idempotent,
the same in any order, and mergeable, because the choice of a union is the choice of the choices.

Between nights the pipeline keeps a buffer by hash (`remember`) and draws from it what a night's training has not got itself (`draw`).
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, Literal

from agent_pipeline.errors import SettingsError
from agent_pipeline.selection.embeddings import conversation_text
from agent_pipeline.sessions.session import hash_json

Row = dict[str, Any]
HeldOut = Callable[[Row], bool]
"""Whether a row may never be trained on: its task is in another split, or its conversation is that of a row which is."""


def checked_ratio(ratio: float) -> Fraction:
    """A replay ratio as the fraction that was meant: 0.1 is a tenth.

    Raises:
        SettingsError: it is not a share from 0 to below 1.
    """
    fraction = Fraction(ratio).limit_denominator(10**6) if 0 <= ratio < 1 else Fraction(1)
    if fraction == 1:
        raise SettingsError(
            f"The replay_ratio is {ratio}: set it to a share of each batch from 0 to below 1."
        )
    return fraction


def due(new: int, ratio: Fraction) -> int:
    """How many replayed rows belong beside `new` rows for `ratio` of the whole: rounded down, so that the share is never exceeded."""
    return int(new * ratio / (1 - ratio))


def spread(new: int, replayed: int) -> list[bool]:
    """Which places of an order of `new + replayed` rows are for replayed ones: so evenly that every run of rows, of whatever length and
    wherever it begins, has their share to less than a row. (A line of that slope, drawn in whole numbers: Bresenham 1965.)"""
    total = new + replayed
    return [(place + 1) * replayed // total > place * replayed // total for place in range(total)]


def conversation_sha256(row: Row) -> str:
    """sha256 (hex) of what was said and done in a row's conversation, whichever system prompt it has and whichever turns are trained."""
    return hash_json(conversation_text(row["messages"]))


def row_key(row: Row) -> str:
    """A row's identity: its session's id, else its own, else the hash of its content."""
    return str(row.get("session_id") or row.get("row_id") or hash_json(row))


def hash_place(key: str, seed: int) -> bytes:
    """A key's place in the seeded order, uniform over keys (sha256)."""
    return hashlib.sha256(f"{seed}\0{key}".encode("utf-8", "backslashreplace")).digest()


def bottom_k(rows: Iterable[Row], size: int, seed: int = 0) -> list[Row]:
    """At most `size` rows, one for each key: those of the lowest seeded hashes, lowest first.

    Order-free, idempotent and mergeable: `bottom_k([*bottom_k(a, k), *bottom_k(b, k)], k) == bottom_k([*a, *b], k)`. Of two versions of a
    row the one with the lower content hash stays, so that order does not matter for them either.
    """
    by_key: dict[str, Row] = {}
    for row in rows:
        before = by_key.setdefault(row_key(row), row)
        if before is not row and before != row:
            by_key[row_key(row)] = min(before, row, key=hash_json)
    return [
        by_key[key] for key in sorted(by_key, key=lambda key: (hash_place(key, seed), key))[:size]
    ]


@dataclass
class OnlineContinualLearner:
    """A bounded buffer of rows seen, and batches mixed with rows of it (SAGE's names and defaults).

    `replay_ratio` is the share of replayed rows in a mixed batch, at least 0 and below 1. To restore a buffer, give back `buffer` and
    `seen` as they were.
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
                f"The buffer_size of replay is {self.buffer_size}: set it to 1 or more."
            )
        self._ratio = checked_ratio(self.replay_ratio)
        if self.selection_strategy != "reservoir":
            raise SettingsError(
                f"There is no replay selection_strategy {self.selection_strategy!r}: choose reservoir."
            )
        self._random = random.Random(self.seed)
        self._mixed = 0

    def mix_with_replay(self, batch: Sequence[Row]) -> list[Row]:
        """`batch`, then so many rows of the buffer that they are `replay_ratio` of the whole; the buffer does not change.

        Where that is not a whole number of rows, the rest is carried to the next batch: any run of batches is exact to less than a row.
        From a buffer smaller than that, rows come more than once; from an empty one none do, and nothing is owed.
        """
        if not self.buffer:
            return list(batch)
        count = due(self._mixed + len(batch), self._ratio) - due(self._mixed, self._ratio)
        self._mixed += len(batch)
        replayed: list[Row] = []
        while len(replayed) < count:
            replayed += self.get_replay_samples(count - len(replayed))
        return [*batch, *replayed]

    def update_buffer(self, batch: Iterable[Row]) -> None:
        """Show the buffer rows of a batch (new ones: replayed rows were seen already)."""
        for row in batch:
            self.seen += 1
            if len(self.buffer) < self.buffer_size:
                self.buffer.append(row)
            elif (place := self._random.randrange(self.seen)) < self.buffer_size:
                self.buffer[place] = row

    def get_replay_samples(self, n: int) -> list[Row]:
        """`n` rows of the buffer, drawn without repetition; all of them, in a drawn order, where it has fewer."""
        return self._random.sample(self.buffer, min(max(n, 0), len(self.buffer)))

    def clear_buffer(self) -> None:
        """Forget every row, and that any was seen."""
        self.buffer, self.seen, self._mixed = [], 0, 0


def remember(
    before: Iterable[Row],
    current: Mapping[str, Row],
    chosen: Collection[str],
    in_store: Collection[str],
    held_out: HeldOut,
    size: int,
) -> tuple[list[Row], Counter[str]]:
    """The buffer after a night, and what became of each row: those of the lowest hashes among all that were ever trained on.

    `before` is the buffer as it was; `current` the training rows of today's table by session, at least those that are `chosen` (trained
    on) or in the buffer; `in_store` those of the buffer that the store has. A session that the store still has is remembered as it is now,
    and let go where curation keeps it no longer or its task moved; one that the store has no more stays as it was. What is held out is let
    go, whatever it is. The counts add up to the sessions of the buffer before and those chosen.
    """
    counts: Counter[str] = Counter()
    earlier = {row["session_id"]: row for row in before}
    now = {
        session: current.get(session, row)
        for session, row in earlier.items()
        if session in current or session not in in_store
    }
    counts["let go: no longer a training row"] = len(earlier) - len(now)
    now |= {session: current[session] for session in chosen}
    usable = [row for row in now.values() if not held_out(row)]
    counts["let go: held out"] = len(now) - len(usable)
    rows = bottom_k(usable, size)
    counts["let go: others have lower hashes"] = len(usable) - len(rows)
    for row in rows:
        known, here = row["session_id"] in earlier, row["session_id"] in in_store
        counts[
            "new"
            if not known
            else "of earlier nights"
            if here
            else "of earlier nights, gone from the store"
        ] += 1
    return rows, +counts


@dataclass(frozen=True)
class Draw:
    """Rows to replay beside a night's own, and how they came about.

    `wanted` rows make `ratio` of the whole; there were `candidates`, and `left_out` counts the buffer's other rows by reason. `got` is the
    share that the drawn rows have.
    """

    rows: list[Row]
    ratio: float
    got: float
    wanted: int
    candidates: int
    left_out: dict[str, int]

    def report(self) -> dict[str, Any]:
        """Everything but the rows, for people."""
        values = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "rows"
        }
        return values | {
            "replayed": len(self.rows),
            "could_not_be_had": self.wanted - len(self.rows),
        }

    def sentence(self) -> str:
        """What is replayed, or why nothing is."""
        if not self.ratio:
            return "nothing is replayed: replay_ratio is 0"
        if not self.candidates:
            return "nothing is replayed: the buffer has no row of an earlier night that is not among the new ones"
        if not self.wanted:
            return f"nothing is replayed: {self.ratio:.1%} of so few rows is less than one"
        lacking = self.wanted - len(self.rows)
        why = f"{lacking} more could not be had" if lacking else "in whole rows, rounded down"
        return f"{len(self.rows)} rows of earlier nights are replayed, {self.got:.1%} of all ({self.ratio:.1%} asked; {why})"


def draw(
    buffer: Iterable[Row],
    training: Sequence[Row],
    ratio: float,
    held_out: HeldOut,
    passed_over: Collection[str] = (),
) -> Draw:
    """Rows of the buffer to train on beside the `training` rows: as many as make `ratio` of the whole, or all there are.

    None of them is among those, or says and does the same as one of them or as another replayed one; nor is its session one of
    `passed_over` (sessions of which selection found that another row stands for them). Which ones are drawn differs from night to
    night and is the same for the same night: a seeded hash, the seed being the training rows.
    """
    wanted = due(len(training), checked_ratio(ratio))
    ours = {row["session_id"] for row in training}
    taken = {conversation_sha256(row) for row in training}
    left_out: Counter[str] = Counter()
    candidates: list[Row] = []
    for row in sorted(buffer, key=lambda row: row["session_id"]):
        if row["session_id"] in ours:
            left_out["among the new rows"] += 1
        elif held_out(row):
            left_out["held out"] += 1
        elif row["session_id"] in passed_over or conversation_sha256(row) in taken:
            left_out["another row stands for it"] += 1
        else:
            taken.add(conversation_sha256(row))
            candidates.append(row)
    night = int(
        hash_json(sorted((row["row_id"], row["content_sha256"]) for row in training))[:16], 16
    )
    rows = bottom_k(candidates, wanted, night)
    got = len(rows) / (len(rows) + len(training)) if rows else 0.0
    return Draw(rows, ratio, got, wanted, len(candidates), dict(left_out))
