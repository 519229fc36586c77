"""Rows of tokens as a tree in which what several rows begin with is there once.

The rows of an agent all begin with its system prompt and tools, and the trials of a task with its first messages too: a model that reads
left to right makes the same of a token after the same tokens, and needs to read it once.
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix

import numpy as np

from agent_pipeline.tokenization.loss_masks import Encoded


def shared_prefix(rows: Sequence[Sequence[object]]) -> int:
    """How many elements (tokens, characters) all rows begin with alike."""
    return len(commonprefix(rows))  # type: ignore[arg-type]  # noqa: RUF071  of any sequences


@dataclass(frozen=True)
class PrefixTree:
    """`tokens`, `parents` (−1: a row's first token), `depths` and `ends` are (nodes,) int64, in depth-first order.

    Node i is an ancestor of node j, or j itself, exactly where i ≤ j < `ends[i]`. `trained`: for each row, in the order in which the tree
    completes them, its index and the nodes of its trained tokens.
    """

    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    ends: np.ndarray
    trained: list[tuple[int, np.ndarray]]


def padded_tree(tree: PrefixTree, unit: int) -> PrefixTree:
    """The tree with nodes of token 0 behind it, up to a multiple of `unit` nodes: a row of their own, in which nothing is trained."""
    nodes = len(tree.tokens)
    more = np.arange(-nodes % unit)
    return replace(
        tree,
        tokens=np.concatenate([tree.tokens, np.zeros_like(more)]),
        parents=np.concatenate([tree.parents, np.where(more == 0, -1, nodes + more - 1)]),
        depths=np.concatenate([tree.depths, more]),
        ends=np.concatenate([tree.ends, np.full_like(more, nodes + len(more))]),
    )


@dataclass(frozen=True)
class NodeCount:
    """How many nodes the tree of some rows has, without the tree. `rows` are sorted."""

    rows: tuple[list[int], ...] = ()
    nodes: int = 0

    def with_rows(self, more: Sequence[Encoded]) -> "NodeCount":
        """The count with these rows in the tree, too. A row adds what it does not share with those before and after it."""
        rows, nodes = list(self.rows), self.nodes
        for row in more:
            ids = up_to_last_trained(row)
            at = bisect(rows, ids)
            nodes += len(ids) - max(
                (shared_prefix([ids, each]) for each in rows[max(at - 1, 0) : at + 1]), default=0
            )
            rows.insert(at, ids)
        return NodeCount(tuple(rows), nodes)


def up_to_last_trained(row: Encoded) -> list[int]:
    """The tokens of a row without those that follow its last trained one."""
    return row.input_ids[: max(at for at, on in enumerate(row.trained) if on) + 1]


def prefix_tree(rows: Sequence[Encoded]) -> PrefixTree:
    """The tree of rows that each have a trained token beyond the first; what follows a row's last trained token is left out."""
    trained = [np.flatnonzero(row.trained[1:]) + 1 for row in rows]
    ids = [up_to_last_trained(row) for row in rows]
    tokens, parents, depths, ends = np.empty((4, sum(map(len, ids))), dtype=np.int64)
    nodes_of_rows: list[tuple[int, np.ndarray]] = []
    path = before = np.zeros(0, dtype=np.int64)
    count = 0
    # Of sorted rows each shares most with the one before it.
    for index in sorted(range(len(rows)), key=lambda index: ids[index]):
        row = np.array(ids[index])
        both = min(len(row), len(before))
        shared = int(np.append(row[:both] == before[:both], False).argmin())
        ends[path[shared:]] = count
        nodes = np.arange(count, count + len(row) - shared)
        path = np.concatenate([path[:shared], nodes])
        tokens[nodes] = row[shared:]
        depths[nodes] = np.arange(shared, len(row))
        parents[nodes] = np.append(-1, path)[shared : len(row)]
        nodes_of_rows.append((index, path[trained[index]]))
        count, before = count + len(nodes), row
    ends[path] = count
    return PrefixTree(tokens[:count], parents[:count], depths[:count], ends[:count], nodes_of_rows)
