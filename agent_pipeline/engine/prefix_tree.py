"""Prefix trees: rows of tokens in which a prefix that several rows share is stored only once.

All rows of an agent begin with its system prompt and tools, and the trials of a task also share the
first messages. A model that reads from left to right computes the same states after the same
tokens, so it needs to read a shared prefix only once. What is computed over a tree belongs to
`tree_loss`, `tree_attention` and `scoring`.
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix

import numpy as np
import numpy.typing as npt

from agent_pipeline.tokenization.loss_masks import Encoded

IntArray = npt.NDArray[np.int64]

MAX_NODES = 4096
"""Maximum number of nodes per tree if the backward pass recomputes activations.

A step with more nodes is split into several trees.
"""


def shared_prefix_length(rows: Sequence[Sequence[object]]) -> int:
    """Return the number of leading elements (tokens or characters) that are equal in all rows."""
    return len(commonprefix(rows))  # type: ignore[arg-type]  # noqa: RUF071  of any sequences


@dataclass(frozen=True)
class RowNodes:
    """The nodes of a tree that one row trains.

    Attributes:
        row_index: The index of the row in the rows that the tree was made of.
        nodes: The nodes of the row's trained tokens, (trained tokens,).
    """

    row_index: int
    nodes: IntArray


@dataclass(frozen=True)
class PrefixTree:
    """A prefix tree of tokens, in depth-first order.

    Node i is an ancestor of node j, or j itself, exactly if i ≤ j < `ends[i]`.

    Attributes:
        tokens: The token of each node, (nodes,).
        parents: The parent of each node, (nodes,); −1 for the first token of a row.
        depths: The position of each node in its rows, (nodes,), from 0.
        ends: The node after the last descendant of each node, (nodes,).
        trained: The trained tokens of each row, in the order in which the tree completes the rows.
    """

    tokens: IntArray
    parents: IntArray
    depths: IntArray
    ends: IntArray
    trained: list[RowNodes]


def pad_tree(tree: PrefixTree, unit: int) -> PrefixTree:
    """Return the tree, padded to a multiple of `unit` nodes.

    The added nodes (token 0) form a separate last row, in which nothing is trained.
    """
    node_count = len(tree.tokens)
    added_depths = np.arange(-node_count % unit)
    added_parents = np.where(added_depths == 0, -1, node_count + added_depths - 1)
    added_ends = np.full_like(added_depths, node_count + len(added_depths))
    return replace(
        tree,
        tokens=np.concatenate([tree.tokens, np.zeros_like(added_depths)]),
        parents=np.concatenate([tree.parents, added_parents]),
        depths=np.concatenate([tree.depths, added_depths]),
        ends=np.concatenate([tree.ends, added_ends]),
    )


@dataclass(frozen=True)
class NodeCount:
    """The number of nodes that the tree of some rows would have, counted without building the tree.

    Attributes:
        rows: The token ids of the rows, sorted.
        nodes: The number of nodes.
    """

    rows: tuple[list[int], ...] = ()
    nodes: int = 0

    def with_rows(self, added_rows: Sequence[Encoded]) -> "NodeCount":
        """Return the node count of a tree that also contains `added_rows`.

        A row adds the tokens that it does not share with its neighbours in sorted order.
        """
        rows, nodes = list(self.rows), self.nodes
        for row in added_rows:
            ids = ids_up_to_last_trained(row)
            position = bisect(rows, ids)
            neighbours = rows[max(position - 1, 0) : position + 1]
            shared_lengths = [shared_prefix_length([ids, neighbour]) for neighbour in neighbours]
            nodes += len(ids) - max(shared_lengths, default=0)
            rows.insert(position, ids)
        return NodeCount(tuple(rows), nodes)


def ids_up_to_last_trained(row: Encoded) -> list[int]:
    """Return the token ids of a row up to its last trained token."""
    last_trained = max(position for position, is_trained in enumerate(row.trained) if is_trained)
    return row.input_ids[: last_trained + 1]


def build_prefix_tree(rows: Sequence[Encoded]) -> PrefixTree:
    """Build the prefix tree of rows.

    The tokens after the last trained token of each row are left out.

    Each row needs a trained token beyond its first token, because nothing predicts the first.
    """
    trained_positions = [np.flatnonzero(row.trained[1:]) + 1 for row in rows]
    ids_of_rows = [ids_up_to_last_trained(row) for row in rows]
    capacity = sum(len(ids) for ids in ids_of_rows)
    tokens, parents, depths, ends = np.empty((4, capacity), dtype=np.int64)
    trained: list[RowNodes] = []
    path = previous_ids = np.zeros(0, dtype=np.int64)
    node_count = 0
    # In sorted order, each row shares its longest prefix with the row before it.
    for row_index in sorted(range(len(rows)), key=lambda index: ids_of_rows[index]):
        ids = np.array(ids_of_rows[row_index])
        compared = min(len(ids), len(previous_ids))
        is_same = ids[:compared] == previous_ids[:compared]
        shared = int(np.append(is_same, False).argmin())
        ends[path[shared:]] = node_count
        new_nodes = np.arange(node_count, node_count + len(ids) - shared)
        path = np.concatenate([path[:shared], new_nodes])
        tokens[new_nodes] = ids[shared:]
        depths[new_nodes] = np.arange(shared, len(ids))
        parents[new_nodes] = np.append(-1, path)[shared : len(ids)]
        trained.append(RowNodes(row_index, path[trained_positions[row_index]]))
        node_count += len(new_nodes)
        previous_ids = ids
    ends[path] = node_count
    return PrefixTree(
        tokens[:node_count], parents[:node_count], depths[:node_count], ends[:node_count], trained
    )


@dataclass(frozen=True)
class TreeOfRows:
    """A prefix tree, and the indices of the rows from which it was built."""

    tree: PrefixTree
    row_indices: list[int]


def trees_of_step(rows: Sequence[Encoded], max_nodes: int = MAX_NODES) -> list[TreeOfRows]:
    """Lay out the rows of one optimizer step as prefix trees of at most `max_nodes` nodes each.

    A longer row becomes a separate tree.
    """
    groups = group_units([[row] for row in rows], max_nodes)
    return [
        TreeOfRows(build_prefix_tree([rows[index] for index in group]), group) for group in groups
    ]


def group_units(units: Sequence[Sequence[Encoded]], max_nodes: int = MAX_NODES) -> list[list[int]]:
    """Combine units (rows that must be in the same tree) into groups that each fit into one tree.

    Units are sorted first, so that units with a long common prefix share a group. A unit that is
    larger than `max_nodes` becomes a separate group.

    Returns:
        The indices of the units in each group.
    """
    order = sorted(range(len(units)), key=lambda index: units[index][0].input_ids)
    groups: list[list[int]] = []
    node_count = NodeCount()
    for index in order:
        larger_count = node_count.with_rows(units[index])
        if groups and larger_count.nodes <= max_nodes:
            groups[-1].append(index)
        else:
            groups.append([index])
            larger_count = NodeCount().with_rows(units[index])
        node_count = larger_count
    return groups
