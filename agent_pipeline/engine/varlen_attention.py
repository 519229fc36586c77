"""Attention of all runs of a tree at once, by a GPU's kernel for sequences of different lengths: PyTorch's FlashAttention (`varlen_attn`).

Each run is a sequence. Its keys are those of the runs above it and its own, laid out one run after the other; the kernel's causal mask is
aligned to their end, so a query sees its ancestors and itself.
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

ERROR = 0.02
"""Relative. bfloat16 is off by some 0.004 here; a mask that is aligned otherwise, or heads that share other keys, by 0.5 and more."""


@dataclass(frozen=True)
class Spans:
    """`keys` (n,): the nodes whose keys each run sees, one run after the other; None where these are all nodes in order. `queries_end` and
    `keys_end` (runs + 1,) int32: where the queries and keys of each run end, from 0. `most_queries` and `most_keys`: those of a run."""

    keys: "torch.Tensor | None"
    queries_end: "torch.Tensor"
    keys_end: "torch.Tensor"
    most_queries: int
    most_keys: int


def spans_of(
    runs: Sequence[int], ancestors: Sequence[Sequence[int]], device: "torch.device | str"
) -> Spans:
    """The spans of runs of these lengths, below those in `ancestors`."""
    import torch

    ends = [0, *accumulate(runs)]
    nodes = [
        np.concatenate([np.arange(ends[each], ends[each + 1]) for each in (*above, run)])
        for run, above in enumerate(ancestors)
    ]
    lengths = [len(each) for each in nodes]
    keys = torch.from_numpy(np.concatenate(nodes)).to(device) if any(ancestors) else None
    queries_end, keys_end = (
        torch.tensor(each, dtype=torch.int32, device=device)
        for each in (ends, [0, *accumulate(lengths)])
    )
    return Spans(keys, queries_end, keys_end, max(runs), max(lengths))


def takes_spans(query: "torch.Tensor", key: "torch.Tensor", value: "torch.Tensor") -> bool:
    """Whether `attend_spans` is there for tensors like these, (1, heads, nodes, size), and right: tried once for each shape of heads."""
    shapes = query.shape[1], key.shape[1], query.shape[3], value.shape[3]
    return (
        query.device.type == "cuda"
        and query.dtype == key.dtype == value.dtype
        and _is_right(*shapes, query.dtype, query.device)
    )


def attend_spans(
    query: "torch.Tensor", key: "torch.Tensor", value: "torch.Tensor", spans: Spans, scale: float
) -> "torch.Tensor":
    """(1, heads, nodes, size): what each query sees in the keys and values of its span."""
    from torch.nn.attention.varlen import varlen_attn

    queries, keys, values = (each[0].transpose(0, 1) for each in (query, key, value))
    if spans.keys is not None:
        keys, values = (_rows().apply(each, spans.keys) for each in (keys, values))
    # Before PyTorch 2.12 the kernel takes fewer key heads without a word.
    grouped: dict[str, Any] = (
        {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
    )
    places = spans.queries_end, spans.keys_end, spans.most_queries, spans.most_keys
    seen: torch.Tensor = varlen_attn(
        queries, keys, values, *places, scale=scale, window_size=(-1, 0), **grouped
    )
    return seen.transpose(0, 1)[None]


@cache
def _rows() -> "type[torch.autograd.Function]":
    import torch

    class Rows(torch.autograd.Function):
        """Rows of a tensor, each as often as it is named. Gradients of a node from many runs are summed in float32."""

        @staticmethod
        def forward(ctx: Any, of: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(rows)
            ctx.shape = of.shape
            return of.index_select(0, rows)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            total = torch.zeros(ctx.shape, dtype=torch.float32, device=gradient.device)
            return total.index_add_(0, ctx.saved_tensors[0], gradient.float()).to(
                gradient.dtype
            ), None

    return Rows


@cache
def _is_right(
    heads: int,
    shared: int,
    size: int,
    value_size: int,
    dtype: "torch.dtype",
    device: "torch.device",
) -> bool:
    """Whether the kernel takes such heads, and makes of a small tree what attention with a mask makes of it, gradients included."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    runs, ancestors = [20, 7, 9, 5], [[], [0], [0, 1], [0]]
    sees = torch.zeros(sum(runs), sum(runs), dtype=torch.bool)
    starts = [0, *accumulate(runs)]
    for run, above in enumerate(ancestors):
        rows = slice(starts[run], starts[run + 1])
        for each in above:
            sees[rows, starts[each] : starts[each + 1]] = True
        sees[rows, rows] = torch.ones(runs[run], runs[run], dtype=torch.bool).tril()
    generator = torch.Generator().manual_seed(0)
    shapes = (heads, size), (shared, size), (shared, value_size), (heads, value_size)
    drawn = [
        torch.randn(1, count, len(sees), width, generator=generator).to(device, dtype)
        for count, width in shapes
    ]

    def results(by_spans: bool) -> list[torch.Tensor]:
        query, key, value, gradient = (each.clone().requires_grad_() for each in drawn)
        if by_spans:
            seen = attend_spans(query, key, value, spans_of(runs, ancestors, device), size**-0.5)
        else:
            keys, values = (
                each.float().repeat_interleave(heads // shared, 1) for each in (key, value)
            )
            seen = scaled_dot_product_attention(query.float(), keys, values, sees.to(device)).to(
                dtype
            )
        return [seen, *torch.autograd.grad(seen, (query, key, value), gradient)]

    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            pairs = [
                (one.double(), other.double())
                for one, other in zip(results(True), results(False), strict=True)
            ]
    except (
        ImportError,
        RuntimeError,
        TypeError,
        ValueError,
    ):  # an older PyTorch or GPU, heads of another size
        return False
    return all(bool((one - other).norm() <= ERROR * other.norm()) for one, other in pairs)
