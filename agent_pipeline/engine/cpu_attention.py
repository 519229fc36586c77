"""Attention of a CPU by matrix products, in which heads that share keys and values are one matrix, without gradients.

PyTorch's fused kernel has a block of queries for each head, and computes what a mask hides. For one to three queries of 16 sequences of 450
tokens (9 heads over 3, two cores) it took 2.1 ms a layer, and the products 0.5 to 1.1. Of a tree of prefixes a block of queries sees few of
the keys that lie before it, and only those are multiplied. What all sequences begin with (an agent's system prompt and tools) is read once
for all of them, not once for each (Hydragen: Juravsky et al. 2024).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch
    from transformers import Cache

FEW_QUERIES = 16
"""The most new tokens of each of several sequences for which scores are stored; with more, the fused kernel is the faster one."""

BLOCK = 128
"""The most queries of one sequence for which scores are stored: those of several heads stay in a core's cache."""

LINES = 16
"""Sequences whose keys are made float32 at once: these stay in a processor's cache. All of 64 at once took 1.25 times as long."""


@dataclass(eq=False)
class SharedPrefix:
    """What all sequences of a batch begin with: the keys and values of each layer, (1, heads, tokens, size), which stand before those in
    `cache`. It travels with the forward pass. `attended` are the layers whose attention takes it: not those of a model that keeps it to
    itself, or that attends to something else than its cache holds (latent attention)."""

    layers: "list[tuple[torch.Tensor, torch.Tensor]]"
    cache: "Cache"
    attended: set[int] = field(default_factory=set)

    @property
    def tokens(self) -> int:
        """How many tokens it stands for."""
        return self.layers[0][0].shape[2]

    @property
    def is_attended(self) -> bool:
        """Whether each layer takes it."""
        return len(self.attended) == len(self.layers)


@contextmanager
def grouped_attention() -> Iterator[None]:
    """Let models on a CPU attend by `attend` for a while, where they ask for PyTorch's attention (sdpa) through transformers' interface."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = before


def attend(
    module: "torch.nn.Module | None",
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    attention_mask: "torch.Tensor | None",
    scaling: float | None = None,
    **more: Any,
) -> "tuple[torch.Tensor, None]":
    """(sequences, queries, heads, size), as transformers asks of an attention; the mask is true, or 0, where a query sees a key. Elsewhere
    than on a CPU, with gradients or with a mask for each head, it is transformers' own. With a `shared_prefix` (`SharedPrefix`), keys,
    values and mask are of what follows it."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    mask, prefix, above = attention_mask, more.pop("shared_prefix", None), None
    layer = cast("int", getattr(module, "layer_idx", -1))
    if (
        prefix is not None
        and mask is not None
        and layer >= 0
        and key is prefix.cache.layers[layer].keys
    ):
        prefix.attended.add(layer)
        above = prefix.layers[layer]
        if len(query) == 1 or query.shape[2] > FEW_QUERIES:
            key, value = (
                torch.cat([each.expand(len(query), -1, -1, -1), own], 2)
                for each, own in zip(above, (key, value), strict=True)
            )
            seen_by_all = (
                torch.zeros_like(mask[..., :1])
                if mask.dtype != torch.bool
                else torch.ones_like(mask[..., :1])
            )
            mask, above = (
                torch.cat([seen_by_all.expand(*mask.shape[:3], above[0].shape[2]), mask], -1),
                None,
            )
    if (
        query.device.type != "cpu"
        or torch.is_grad_enabled()
        or (mask is not None and mask.shape[1] > 1)
    ):
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **more)

    (lines, heads, queries, _), shared = query.shape, key.shape[1]
    if mask is None and queries == 1:
        return _products(query, key, value, None, scaling), None
    if mask is None or (lines > 1 and queries > FEW_QUERIES):
        seen = scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=heads > shared,
        )
        return seen.transpose(1, 2), None
    if lines > 1:
        return _products(query, key, value, mask[..., : key.shape[2]], scaling, above), None
    parts = []
    for some, (at, hidden) in zip(query.split(BLOCK, 2), _blocks(mask, key.shape[2]), strict=True):
        parts.append(_products(some, key[:, :, at], value[:, :, at], hidden, scaling))
    return torch.cat(parts, dim=1), None


@lru_cache(maxsize=1)  # all layers of a pass are given the same mask
def _blocks(mask: "torch.Tensor", keys: int) -> "list[tuple[torch.Tensor, torch.Tensor]]":
    """Of each block of queries: the keys that some of them see, and the mask of these."""
    import torch

    blocks = []
    for hidden in mask[..., :keys].split(BLOCK, 2):
        visible = hidden if hidden.dtype == torch.bool else hidden > torch.finfo(hidden.dtype).min
        at = visible.any(2)[0, 0].nonzero()[:, 0]
        blocks.append((at, hidden[..., at]))
    return blocks


def _products(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    mask: "torch.Tensor | None",
    scaling: float | None,
    above: "tuple[torch.Tensor, torch.Tensor] | None" = None,
) -> "torch.Tensor":
    """`above` are the keys and values that all sequences see before their own."""
    import torch

    (lines, heads, queries, size), shared = query.shape, key.shape[1]
    scale = size**-0.5 if scaling is None else scaling
    grouped = (query.float() * scale).reshape(lines, shared, -1, size)
    parts = [
        some @ keys.float().transpose(2, 3)
        for some, keys in zip(grouped.split(LINES), key.split(LINES), strict=True)
    ]
    scores = torch.cat(parts) if len(parts) > 1 else parts[0]
    if mask is not None:
        rows = scores.view(lines, shared, -1, queries, key.shape[2])
        # Not −∞: padding before a sequence's first token sees nothing, and would be no number.
        hidden, nothing = mask[:, :, None], torch.finfo(rows.dtype).min
        rows = (
            rows.masked_fill_(~hidden, nothing)
            if hidden.dtype == torch.bool
            else rows.add_(hidden).clamp_(min=nothing)
        )
        scores = rows.view_as(scores)
    if above is not None:
        keys, values = (each[0].float() for each in above)
        of_all = (
            (grouped.transpose(0, 1).flatten(1, 2) @ keys.transpose(1, 2))
            .unflatten(1, (lines, -1))
            .transpose(0, 1)
        )
        scores = torch.cat([of_all, scores], -1)
    # Weights may be rounded, as fused kernels do; scores may not: of one of 50, bfloat16 leaves errors of a tenth.
    weights = scores.softmax(-1)
    seen = weights[..., -key.shape[2] :].to(value.dtype) @ value
    if above is not None:
        common = weights[..., : values.shape[1]].transpose(0, 1).flatten(1, 2) @ values
        seen = seen + common.unflatten(1, (lines, -1)).transpose(0, 1)
    return seen.view(lines, heads, queries, -1).transpose(1, 2).to(query.dtype)
