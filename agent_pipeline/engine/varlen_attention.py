"""Attention of all runs of a tree in one GPU kernel: PyTorch's FlashAttention (`varlen_attn`).

The kernel attends within many sequences of different lengths at once. Each run of a tree is a
sequence for the kernel. Its keys are those of the runs above it and its own, one run after the
other. The kernel aligns its causal mask to the end of the keys, so a query sees its ancestors and
itself. Attention run by run belongs to `tree_attention`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

MAX_KERNEL_ERROR = 0.02
"""Maximum relative error of the attention kernel.

In bfloat16 the error is about 0.004. A mask with another alignment, or heads that share other keys,
give 0.5 and more.
"""


@dataclass(frozen=True)
class Spans:
    """The positions of the queries and of the keys of each run.

    Attributes:
        keys: The nodes whose keys each run sees, one run after the other, (n,). None if these are
            all nodes in order.
        queries_end: Where the queries of each run end, (runs + 1,) int32, from 0.
        keys_end: Where the keys of each run end, (runs + 1,) int32, from 0.
        most_queries: Largest number of queries of a run.
        most_keys: Largest number of keys of a run.
    """

    keys: "torch.Tensor | None"
    queries_end: "torch.Tensor"
    keys_end: "torch.Tensor"
    most_queries: int
    most_keys: int


def find_spans(
    run_lengths: Sequence[int], ancestors: Sequence[Sequence[int]], device: "torch.device | str"
) -> Spans:
    """Compute the spans of several runs.

    Args:
        run_lengths: The number of nodes of each run.
        ancestors: For each run, the runs above it.
        device: Where the tensors of the spans are stored.
    """
    import torch

    run_ends = [0, *accumulate(run_lengths)]
    seen_nodes = []
    for run, runs_above in enumerate(ancestors):
        ranges = [np.arange(run_ends[index], run_ends[index + 1]) for index in (*runs_above, run)]
        seen_nodes.append(np.concatenate(ranges))
    key_counts = [len(nodes) for nodes in seen_nodes]
    key_ends = [0, *accumulate(key_counts)]
    keys = None
    if any(ancestors):
        keys = torch.from_numpy(np.concatenate(seen_nodes)).to(device)
    return Spans(
        keys,
        torch.tensor(run_ends, dtype=torch.int32, device=device),
        torch.tensor(key_ends, dtype=torch.int32, device=device),
        max(run_lengths),
        max(key_counts),
    )


def supports_spans(query: "torch.Tensor", key: "torch.Tensor", value: "torch.Tensor") -> bool:
    """Return whether `attend_spans` works and gives right results for tensors like these.

    The kernel is tried once for each shape of heads.

    Args:
        query: The queries, (1, heads, nodes, size).
        key: The keys, (1, key heads, nodes, size).
        value: The values, (1, key heads, nodes, value size).
    """
    if query.device.type != "cuda" or not query.dtype == key.dtype == value.dtype:
        return False
    shape = HeadShape(query.shape[1], key.shape[1], query.shape[3], value.shape[3])
    return _is_right(shape, query.dtype, query.device)


@dataclass(frozen=True)
class HeadShape:
    """The shape of a layer's attention heads.

    Attributes:
        heads: The number of query heads.
        key_heads: The number of key heads.
        size: The size of a query and a key.
        value_size: The size of a value.
    """

    heads: int
    key_heads: int
    size: int
    value_size: int


def attend_spans(
    query: "torch.Tensor", key: "torch.Tensor", value: "torch.Tensor", spans: Spans, scale: float
) -> "torch.Tensor":
    """Return the attention output of each query over the keys and values of its span.

    Args:
        query: The queries, (1, heads, nodes, size).
        key: The keys, (1, key heads, nodes, size).
        value: The values, (1, key heads, nodes, value size).
        spans: Where the queries and keys of each run lie.
        scale: The factor of the scores.

    Returns:
        The output, (1, heads, nodes, value size).
    """
    from torch.nn.attention.varlen import varlen_attn

    # The kernel wants (nodes, heads, size).
    queries, keys, values = (
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
    )
    if spans.keys is not None:
        keys = _repeated_rows().apply(keys, spans.keys)
        values = _repeated_rows().apply(values, spans.keys)
    grouped: dict[str, object] = {}
    if "enable_gqa" in signature(varlen_attn).parameters:
        grouped["enable_gqa"] = True  # before PyTorch 2.12, fewer key heads need no option
    output: torch.Tensor = varlen_attn(
        queries,
        keys,
        values,
        spans.queries_end,
        spans.keys_end,
        spans.most_queries,
        spans.most_keys,
        scale=scale,
        window_size=(-1, 0),
        **grouped,
    )
    return output.transpose(0, 1)[None]


@cache
def _repeated_rows() -> "type[torch.autograd.Function]":
    import torch

    class RepeatedRows(torch.autograd.Function):
        """Rows of a tensor, each repeated as often as the index contains it.

        The gradients of a row that is named several times are summed in float32.
        """

        @staticmethod
        def forward(ctx: Any, source: "torch.Tensor", rows: "torch.Tensor") -> "torch.Tensor":
            ctx.save_for_backward(rows)
            ctx.shape = source.shape
            return source.index_select(0, rows)

        @staticmethod
        def backward(ctx: Any, gradient: "torch.Tensor") -> "tuple[torch.Tensor, None]":
            (rows,) = ctx.saved_tensors
            total = torch.zeros(ctx.shape, dtype=torch.float32, device=gradient.device)
            total.index_add_(0, rows, gradient.float())
            return total.to(gradient.dtype), None

    return RepeatedRows


@cache
def _is_right(shape: HeadShape, dtype: "torch.dtype", device: "torch.device") -> bool:
    """Return whether the kernel agrees with masked attention on a small tree, including gradients.

    An older PyTorch or GPU, or heads of an unsupported size, make the kernel raise. Then the answer
    is False.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    run_lengths, ancestors = [20, 7, 9, 5], [[], [0], [0, 1], [0]]
    visible = _visible_pairs(run_lengths, ancestors)
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (shape.heads, shape.size),
        (shape.key_heads, shape.size),
        (shape.key_heads, shape.value_size),
        (shape.heads, shape.value_size),
    )
    drawn = [
        torch.randn(1, heads, len(visible), size, generator=generator).to(device, dtype)
        for heads, size in shapes
    ]

    def outputs_and_gradients(use_kernel: bool) -> "list[torch.Tensor]":
        query, key, value, gradient = (tensor.clone().requires_grad_() for tensor in drawn)
        if use_kernel:
            spans = find_spans(run_lengths, ancestors, device)
            output = attend_spans(query, key, value, spans, shape.size**-0.5)
        else:
            repeats = shape.heads // shape.key_heads
            output = scaled_dot_product_attention(
                query.float(),
                key.float().repeat_interleave(repeats, 1),
                value.float().repeat_interleave(repeats, 1),
                visible.to(device),
            ).to(dtype)
        return [output, *torch.autograd.grad(output, (query, key, value), gradient)]

    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            pairs = list(
                zip(outputs_and_gradients(True), outputs_and_gradients(False), strict=True)
            )
    except (ImportError, RuntimeError, TypeError, ValueError):
        return False
    for by_kernel, by_mask in pairs:
        error = (by_kernel.double() - by_mask.double()).norm()
        if not error <= MAX_KERNEL_ERROR * by_mask.double().norm():
            return False
    return True


def _visible_pairs(
    run_lengths: Sequence[int], ancestors: Sequence[Sequence[int]]
) -> "torch.Tensor":
    """Return which nodes each node can see, as (nodes, nodes) bool."""
    import torch

    node_count = sum(run_lengths)
    visible = torch.zeros(node_count, node_count, dtype=torch.bool)
    starts = [0, *accumulate(run_lengths)]
    for run, runs_above in enumerate(ancestors):
        rows = slice(starts[run], starts[run + 1])
        for index in runs_above:
            visible[rows, starts[index] : starts[index + 1]] = True
        length = run_lengths[run]
        visible[rows, rows] = torch.ones(length, length, dtype=torch.bool).tril()
    return visible
