"""The layout of a prefix tree in a sequence: runs of nodes without a fork, in depth-first order.

Attention along a layout belongs to `tree_attention`, and states along a layout to `tree_states`.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from agent_pipeline.engine.prefix_tree import IntArray, PrefixTree
from agent_pipeline.engine.varlen_attention import Spans, find_spans

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PathHistory:
    """The nodes of all runs, each run preceded by the last nodes of the path above it.

    Attributes:
        nodes: The node in each column, (n,). One more than the last node stands for "before the
            first token".
        own: The columns of the runs' own nodes, in the order of the nodes, (nodes,).
    """

    nodes: "torch.Tensor"
    own: "torch.Tensor"


@dataclass(eq=False)
class Layout:
    """The positions of a tree's nodes in a sequence. A layout of `fixed` spans has no runs.

    Attributes:
        run_lengths: The number of nodes of each run.
        ancestors: For each run, the runs above it, from the root to the parent.
        fixed: The start and the end of each run in the sequence. They are computed when a GPU needs
            them for the first time.
        windows: For each layer, how many tokens its attention sees. None if it sees all tokens.
            Empty if this holds for all layers.
        followed: By kind of computation, how many layers of a forward pass followed this layout.
        run_by_run: Whether a layer was computed for each run by itself.
    """

    run_lengths: list[int]
    ancestors: list[list[int]]
    fixed: Spans | None = None
    windows: tuple[int | None, ...] = ()
    followed: Counter[str] = field(default_factory=Counter)
    run_by_run: bool = False
    _masks: "dict[tuple[int, int, int | None], torch.Tensor]" = field(default_factory=dict)
    _histories: dict[int, PathHistory] = field(default_factory=dict)

    @property
    def attended(self) -> bool:
        """True if an attention followed this layout in the last forward pass."""
        return self.followed["attention"] > 0

    @cached_property
    def lengths_above(self) -> list[int]:
        """Return the number of nodes above each run."""
        return [sum(self.run_lengths[run] for run in runs_above) for runs_above in self.ancestors]

    @cached_property
    def longest_path(self) -> int:
        """Return the number of nodes on the longest path from a root to a leaf."""
        if self.fixed is not None:
            return self.fixed.most_keys
        path_ends = zip(self.run_lengths, self.lengths_above, strict=True)
        return max(length + above for length, above in path_ends)

    @cached_property
    def parents(self) -> list[int | None]:
        """Return the run above each run; None for the first run of a row."""
        return [runs_above[-1] if runs_above else None for runs_above in self.ancestors]

    def count_pairs(self, window: int | None) -> int:
        """Return the number of pairs of a query and a key in the same row, masked pairs included.

        Args:
            window: How many tokens a query sees; None if it sees all tokens of its path.
        """
        pairs = 0
        for length, above in zip(self.run_lengths, self.lengths_above, strict=True):
            keys = length + above
            if window is not None:
                keys = min(keys, length + window - 1)
            pairs += length * keys
        return pairs

    def to(self, device: "torch.device | str") -> "Layout":
        """Return the same layout for another device.

        Its tensors are created when a layer first needs them.
        """
        return self

    def mask(
        self, length: int, above: int, like: "torch.Tensor", window: int | None = None
    ) -> "torch.Tensor":
        """Return the mask of a run: −∞ for a key that a query does not see, and otherwise 0.

        Args:
            length: The number of nodes of the run.
            above: The number of nodes above the run that the run's queries see.
            like: A tensor with the type and device of the mask.
            window: How many tokens a query sees; None if it sees all tokens of its path.

        Returns:
            The mask, (length, above + length).
        """
        import torch

        key = (length, above, window)
        if key not in self._masks:
            full = like.new_full((length, above + length), -torch.inf)
            mask = full.triu(above + 1)
            if window is not None:
                mask = mask + full.tril(above - window)
            self._masks[key] = mask
        return self._masks[key]

    def spans(self, device: "torch.device") -> Spans:
        """Return the spans of the queries and keys of each run, as tensors on a device."""
        if self.fixed is None:
            self.fixed = find_spans(self.run_lengths, self.ancestors, device)
        return self.fixed

    def history(self, tokens: int, device: "torch.device") -> PathHistory:
        """Return the nodes of all runs, each run preceded by the last `tokens` nodes of its path.

        Args:
            tokens: How many nodes precede a run. If the path is shorter, "before the first token"
                fills the columns.
            device: Where the result is stored.
        """
        import torch

        if tokens not in self._histories:
            ends = list(accumulate(self.run_lengths))
            nothing = ends[-1]
            columns: list[IntArray] = []
            own_columns: list[IntArray] = []
            column_count = 0
            for run, runs_above in enumerate(self.ancestors):
                above = [
                    np.arange(ends[index] - self.run_lengths[index], ends[index])
                    for index in runs_above
                ]
                path = np.concatenate([np.full(tokens, nothing), *above])
                run_nodes = np.arange(ends[run] - self.run_lengths[run], ends[run])
                columns += [path[len(path) - tokens :], run_nodes]
                own_columns.append(column_count + tokens + np.arange(len(run_nodes)))
                column_count += tokens + len(run_nodes)
            self._histories[tokens] = PathHistory(
                torch.from_numpy(np.concatenate(columns)).to(device),
                torch.from_numpy(np.concatenate(own_columns)).to(device),
            )
        return self._histories[tokens]


def lay_out(tree: PrefixTree) -> Layout:
    """Compute the layout of a tree."""
    node_count = len(tree.tokens)
    is_not_below_previous = tree.parents[1:] != np.arange(node_count - 1)
    ends_elsewhere = tree.ends[1:] != tree.ends[:-1]
    forks = np.flatnonzero(is_not_below_previous | ends_elsewhere) + 1
    starts = np.concatenate([[0], forks])
    ends = tree.ends[starts]
    ancestors = [np.flatnonzero((starts < start) & (start < ends)).tolist() for start in starts]
    return Layout(np.diff([*starts, node_count]).tolist(), ancestors)
