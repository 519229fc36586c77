"""Replay: rows of earlier nights mixed into new ones, so that a model does not forget.

Two ways to keep a bounded, uniform choice of all rows seen. `reservoir` (Vitter 1985, algorithm R) is the classic: it depends on the
order of rows, and a row seen twice counts twice. `hash` keeps the rows with the lowest seeded hashes of their ids: as uniform, and besides
idempotent, the same in any order, and mergeable over partitions: the choice of a union is the choice of the choices.
"""

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from agent_pipeline.errors import SettingsError
from agent_pipeline.traces.session import sha256_of

Row = dict[str, Any]


def row_key(row: Row) -> str:
    """A row's identity: its session's id, else its own, else the hash of its content."""
    return str(row.get("session_id") or row.get("row_id") or sha256_of(row))


def hash_place(key: str, seed: int) -> bytes:
    """A key's place in the seeded order, uniform over keys (sha256)."""
    return hashlib.sha256(f"{seed}\0{key}".encode("utf-8", "backslashreplace")).digest()


def bottom_k(rows: Iterable[Row], size: int, seed: int = 0) -> list[Row]:
    """At most `size` rows, one for each key: those of the lowest seeded hashes, lowest first.

    Order-free, idempotent and mergeable: `bottom_k([*bottom_k(a, k), *bottom_k(b, k)], k) == bottom_k([*a, *b], k)`. Of two versions of a
    row the one with the lower content hash is kept, so that order does not matter for them either.
    """
    found: dict[str, Row] = {}
    for row in rows:
        before = found.setdefault(row_key(row), row)
        if before is not row and before != row:
            found[row_key(row)] = min(before, row, key=sha256_of)
    return [found[key] for key in sorted(found, key=lambda key: (hash_place(key, seed), key))[:size]]


@dataclass
class OnlineContinualLearner:
    """A bounded buffer of rows seen, and batches mixed with rows of it (SAGE's names and defaults).

    `replay_ratio` is the share of replayed rows in a mixed batch, at least 0 and below 1. A buffer is restored by `update_buffer` with the
    `hash` strategy; with `reservoir`, give `buffer` and `seen` back as they were.
    """

    buffer_size: int = 2048
    replay_ratio: float = 0.25
    selection_strategy: Literal["reservoir", "hash"] = "reservoir"
    seed: int = 0
    buffer: list[Row] = field(default_factory=list)
    seen: int = 0

    def __post_init__(self) -> None:
        if self.buffer_size < 1:
            raise SettingsError(f"The buffer_size of replay is {self.buffer_size}: set it to 1 or more.")
        if not 0 <= self.replay_ratio < 1:
            raise SettingsError(f"The replay_ratio is {self.replay_ratio}: set it to a share of each batch from 0 to below 1.")
        if self.selection_strategy not in ("reservoir", "hash"):
            raise SettingsError(f"There is no replay selection_strategy {self.selection_strategy!r}: choose reservoir or hash.")
        self._random = random.Random(self.seed)
        ratio = Fraction(self.replay_ratio).limit_denominator(10**6)
        self._a_new_row = ratio / (1 - ratio)
        self._owed = Fraction(0)

    def mix_with_replay(self, batch: Sequence[Row]) -> list[Row]:
        """`batch`, then so many rows of the buffer that they are `replay_ratio` of the whole; the buffer does not change.

        Where that is no whole number of rows, the rest is carried to the next batch: any run of batches is exact to less than a row. From a
        buffer smaller than that, rows come more than once; from an empty one none do, and nothing is owed.
        """
        if not self.buffer:
            return list(batch)
        self._owed += len(batch) * self._a_new_row
        count = int(self._owed)
        self._owed -= count
        replayed: list[Row] = []
        while len(replayed) < count:
            replayed += self.get_replay_samples(count - len(replayed))
        return [*batch, *replayed]

    def update_buffer(self, batch: Iterable[Row]) -> None:
        """Show the buffer rows of a batch (new ones: replayed rows were seen already)."""
        if self.selection_strategy == "hash":
            rows = list(batch)
            self.seen += len(rows)
            self.buffer = bottom_k([*self.buffer, *rows], self.buffer_size, self.seed)
            return
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
        self.buffer, self.seen, self._owed = [], 0, Fraction(0)
