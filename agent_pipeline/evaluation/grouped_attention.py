"""Attention of a CPU for a few new tokens of many sequences: heads that share keys and values are one matrix product with them.

PyTorch's fused kernel has a block of queries for each head. With one to three queries (16 sequences of 450 tokens, 9 heads over 3, two
cores) it took 2.1 ms a layer, and the products 0.5 to 1.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agent_pipeline.training.losses import TREE_ATTENTION, causal_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

GROUPED = "grouped"
FEW_QUERIES = 16
"""The most new tokens of a sequence for which scores are stored; with more, the fused kernel is the faster one."""


@contextmanager
def grouped_attention(model: "PreTrainedModel") -> Iterator[None]:
    """Let a model that computes on a CPU by PyTorch's attention (sdpa) attend by `attend`; another model is left as it is."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config = causal_of(model).config.get_text_config()
    before = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(GROUPED, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED, sdpa_mask)
    if model.device.type == "cpu" and before in ("sdpa", TREE_ATTENTION):
        config._attn_implementation = GROUPED
    try:
        yield
    finally:
        config._attn_implementation = before


def attend(
    module: "torch.nn.Module",
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    mask: "torch.Tensor | None",
    scaling: float | None = None,
    **_: Any,
) -> "tuple[torch.Tensor, None]":
    """(sequences, queries, heads, size), as transformers asks of an attention; `mask` is true, or 0, where a query sees a key."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    (lines, heads, queries, size), shared = query.shape, key.shape[1]
    if queries > FEW_QUERIES or (mask is None and queries > 1):
        causal = mask is None
        seen = scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scaling, enable_gqa=heads > shared)
        return seen.transpose(1, 2), None
    scale = size**-0.5 if scaling is None else scaling
    scores = (query * scale).reshape(lines, shared, -1, size) @ key.transpose(2, 3)
    if mask is not None:
        rows = scores.view(lines, shared, -1, queries, key.shape[2])
        hidden = mask[:, :, None, :, : key.shape[2]]
        # Not −∞: padding before a sequence's first token sees nothing, and would be no number.
        nothing = torch.finfo(rows.dtype).min
        rows = rows.masked_fill_(~hidden, nothing) if hidden.dtype == torch.bool else rows.add_(hidden).clamp_(min=nothing)
        scores = rows.view_as(scores)
    return (scores.softmax(-1) @ value).view(lines, heads, queries, -1).transpose(1, 2), None
