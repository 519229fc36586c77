"""Attention on a CPU by matrix products, without gradients.

Heads that share keys and values are one matrix. PyTorch's fused kernel has a block of queries for
each head, and also computes the products that a mask hides. For one to three queries of 16
sequences of 450 tokens (9 heads over 3, two cores) the kernel took 2.1 ms per layer, and the
products 0.5 to 1.1 ms.

Two more things make attention fast here:

- In a tree of prefixes, a block of queries sees few of the keys before it. Only those are
  multiplied.
- A prefix that all sequences share (an agent's system prompt and tools) is read once for all of
  them, not once per sequence (Hydragen: Juravsky et al. 2024).

Attention with gradients belongs to `tree_attention`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from agent_pipeline._compat.transformers import original_sdpa, replaced_sdpa

if TYPE_CHECKING:
    import torch
    from transformers import Cache

FEW_QUERIES = 16
"""Maximum number of new tokens per sequence for which attention scores of several sequences are
stored.

With more new tokens, the fused kernel is faster.
"""

BLOCK = 128
"""Maximum number of queries of one sequence for which attention scores are stored.

The scores of several heads then stay in a core's cache.
"""

SEQUENCES_AT_ONCE = 16
"""Number of sequences whose keys are converted to float32 at a time, so that the keys fit into the
cache.

Converting all of 64 sequences at once took 1.25 times as long.
"""


@dataclass(eq=False)
class SharedPrefix:
    """The attention states of the tokens with which all sequences of a batch begin.

    The shared prefix travels with the forward pass. Some models do not pass on the argument, or
    attend to states that are not in the cache (latent attention). The layers of such models are
    missing in `attended`.

    Attributes:
        layers: The keys and values of each layer, (1, heads, tokens, size).
        cache: The cache with the tokens behind the prefix.
        attended: The layers whose attention has used the prefix.
    """

    layers: "list[tuple[torch.Tensor, torch.Tensor]]"
    cache: "Cache"
    attended: set[int] = field(default_factory=set)

    @property
    def tokens(self) -> int:
        """Return the number of tokens in the shared prefix."""
        return int(self.layers[0][0].shape[2])

    @property
    def is_attended(self) -> bool:
        """True if the attention of every layer has used the shared prefix."""
        return len(self.attended) == len(self.layers)


@contextmanager
def grouped_attention() -> Iterator[None]:
    """Temporarily make models on a CPU use `attend`, if their attention is PyTorch's (sdpa)."""
    with replaced_sdpa(attend):
        yield


def attend(
    module: "torch.nn.Module | None",
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    attention_mask: "torch.Tensor | None",
    scaling: float | None = None,
    **options: Any,
) -> "tuple[torch.Tensor, None]":
    """Compute attention.

    The parameters are the same as for the attention functions of transformers.

    On another device than a CPU, with gradients, or with a mask for each head, transformers' own
    function attends.

    Args:
        module: The attention module of the layer.
        query: The queries, (sequences, heads, queries, size).
        key: The keys, (sequences, key heads, keys, size).
        value: The values, (sequences, key heads, keys, value size).
        attention_mask: True, or 0, if a query sees a key; (sequences, 1, queries, keys) or None.
        scaling: The factor of the scores.
        **options: Options of transformers. With a `shared_prefix`, keys, values and mask are those
            of the tokens behind the prefix.

    Returns:
        The output, (sequences, queries, heads, value size), and None instead of the weights.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    mask = attention_mask
    prefix: SharedPrefix | None = options.pop("shared_prefix", None)
    prefix_states = None
    layer = cast("int", getattr(module, "layer_idx", -1))
    uses_prefix = (
        prefix is not None
        and mask is not None
        and layer >= 0
        and key is prefix.cache.layers[layer].keys
    )
    if uses_prefix:
        assert prefix is not None and mask is not None
        prefix.attended.add(layer)
        prefix_states = prefix.layers[layer]
        if len(query) == 1 or query.shape[2] > FEW_QUERIES:
            key, value, mask = _prepend_prefix(prefix_states, key, value, mask)
            prefix_states = None
    has_mask_per_head = mask is not None and mask.shape[1] > 1
    if query.device.type != "cpu" or torch.is_grad_enabled() or has_mask_per_head:
        return original_sdpa()(module, query, key, value, mask, scaling=scaling, **options)

    sequence_count, heads, query_count, _ = query.shape
    if mask is None and query_count == 1:
        return _multiply(query, key, value, None, scaling), None
    if mask is None or (sequence_count > 1 and query_count > FEW_QUERIES):
        output = scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=heads > key.shape[1],
        )
        return output.transpose(1, 2), None
    if sequence_count > 1:
        visible = mask[..., : key.shape[2]]
        return _multiply(query, key, value, visible, scaling, prefix_states), None
    outputs = []
    for queries, block in zip(
        query.split(BLOCK, 2), _find_visible_keys(mask, key.shape[2]), strict=True
    ):
        seen_keys, seen_values = key[:, :, block.keys], value[:, :, block.keys]
        outputs.append(_multiply(queries, seen_keys, seen_values, block.mask, scaling))
    return torch.cat(outputs, dim=1), None


def _prepend_prefix(
    prefix_states: "tuple[torch.Tensor, torch.Tensor]",
    key: "torch.Tensor",
    value: "torch.Tensor",
    mask: "torch.Tensor",
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Return keys, values and mask with the shared prefix prepended to each sequence.

    Args:
        prefix_states: The keys and values of the prefix, (1, key heads, tokens, size).
        key: The keys behind the prefix, (sequences, key heads, keys, size).
        value: The values behind the prefix.
        mask: The mask of these keys. Every query sees the whole prefix.
    """
    import torch

    prefix_key, prefix_value = prefix_states
    sequence_count = len(key)
    key = torch.cat([prefix_key.expand(sequence_count, -1, -1, -1), key], 2)
    value = torch.cat([prefix_value.expand(sequence_count, -1, -1, -1), value], 2)
    one_column = mask[..., :1]
    if mask.dtype == torch.bool:
        visible = torch.ones_like(one_column)
    else:
        visible = torch.zeros_like(one_column)
    visible = visible.expand(*mask.shape[:3], prefix_key.shape[2])
    return key, value, torch.cat([visible, mask], -1)


@dataclass(frozen=True)
class _VisibleKeys:
    """The keys that at least one query of a block can see.

    Attributes:
        keys: The indices of the keys, (n,).
        mask: The mask of these keys, (1, 1, queries, n).
    """

    keys: "torch.Tensor"
    mask: "torch.Tensor"


@lru_cache(maxsize=1)  # all layers of a pass get the same mask
def _find_visible_keys(mask: "torch.Tensor", key_count: int) -> list[_VisibleKeys]:
    """Return the visible keys for each block of `BLOCK` queries."""
    import torch

    blocks = []
    for block_mask in mask[..., :key_count].split(BLOCK, 2):
        if block_mask.dtype == torch.bool:
            is_visible = block_mask
        else:
            is_visible = block_mask > torch.finfo(block_mask.dtype).min
        keys = is_visible.any(2)[0, 0].nonzero()[:, 0]
        blocks.append(_VisibleKeys(keys, block_mask[..., keys]))
    return blocks


def _multiply(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    mask: "torch.Tensor | None",
    scaling: float | None,
    prefix_states: "tuple[torch.Tensor, torch.Tensor] | None" = None,
) -> "torch.Tensor":
    """Compute attention by matrix products.

    Args:
        query: The queries, (sequences, heads, queries, size).
        key: The keys, (sequences, key heads, keys, size).
        value: The values, (sequences, key heads, keys, value size).
        mask: The mask, (sequences, 1, queries, keys), or None.
        scaling: The factor of the scores.
        prefix_states: Keys and values that all sequences see before their own.

    Returns:
        The output, (sequences, queries, heads, value size).
    """
    import torch

    sequence_count, heads, query_count, size = query.shape
    key_heads = key.shape[1]
    scale = size**-0.5 if scaling is None else scaling
    grouped = (query.float() * scale).reshape(sequence_count, key_heads, -1, size)
    score_parts = [
        queries @ keys.float().transpose(2, 3)
        for queries, keys in zip(
            grouped.split(SEQUENCES_AT_ONCE), key.split(SEQUENCES_AT_ONCE), strict=True
        )
    ]
    scores = torch.cat(score_parts) if len(score_parts) > 1 else score_parts[0]
    if mask is not None:
        scores = _mask_scores(scores, mask, query_count)
    if prefix_states is not None:
        prefix_keys, prefix_values = (states[0].float() for states in prefix_states)
        all_queries = grouped.transpose(0, 1).flatten(1, 2)
        prefix_scores = all_queries @ prefix_keys.transpose(1, 2)
        prefix_scores = prefix_scores.unflatten(1, (sequence_count, -1)).transpose(0, 1)
        scores = torch.cat([prefix_scores, scores], -1)
    # Weights may be rounded, as fused kernels do. Scores may not: in a score of 50, bfloat16 leaves
    # errors of a tenth.
    weights = scores.softmax(-1)
    output = weights[..., -key.shape[2] :].to(value.dtype) @ value
    if prefix_states is not None:
        prefix_weights = weights[..., : prefix_values.shape[1]].transpose(0, 1).flatten(1, 2)
        prefix_output = (prefix_weights @ prefix_values).unflatten(1, (sequence_count, -1))
        output = output + prefix_output.transpose(0, 1)
    return output.view(sequence_count, heads, query_count, -1).transpose(1, 2).to(query.dtype)


def _mask_scores(scores: "torch.Tensor", mask: "torch.Tensor", query_count: int) -> "torch.Tensor":
    """Return attention scores in which the scores of hidden keys are the lowest possible number.

    The lowest number is not −∞: padding before the first token of a sequence sees nothing, and a
    softmax of −∞ alone is not a number.

    Args:
        scores: The scores, (sequences, key heads, heads per key × queries, keys); may be changed.
        mask: The mask, (sequences, 1, queries, keys).
        query_count: The number of queries per sequence.
    """
    import torch

    sequence_count, key_heads, _, key_count = scores.shape
    rows = scores.view(sequence_count, key_heads, -1, query_count, key_count)
    row_mask, lowest = mask[:, :, None], torch.finfo(rows.dtype).min
    if row_mask.dtype == torch.bool:
        rows = rows.masked_fill_(~row_mask, lowest)
    else:
        rows = rows.add_(row_mask).clamp_(min=lowest)
    return rows.view_as(scores)
