"""Attention along a prefix tree: each token sees itself and its ancestors, but no other rows.

A tree lies in a sequence in depth-first order, as runs of nodes without a fork. The queries of a
run are multiplied only with the keys of this run and of the runs above it. So pairs of tokens of
different rows cost nothing. On a GPU one kernel attends for all runs (`varlen_attention`).
Elsewhere each run is computed by itself, and so is a layer with a window that is shorter than a
row: a window counts the tokens of the row, and not the earlier tokens of the sequence.

Layouts belong to `tree_layout`, and attention without gradients to `cpu_attention`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from agent_pipeline._compat.transformers import attention_name, current_sdpa, set_attention
from agent_pipeline.engine.tree_layout import Layout
from agent_pipeline.engine.tree_support import TREE_ATTENTION
from agent_pipeline.engine.varlen_attention import attend_spans, supports_spans
from agent_pipeline.errors import ModelError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

QUERIES = 128
"""Number of queries whose attention weights are computed at a time on a CPU.

Their weights stay in the cache, and few of the computed pairs are masked.
"""

KEPT_BYTES = 16 << 20
"""Maximum size of a layer's attention weights that are kept for the backward pass.

The weights of a longer tree are computed again. With 30 layers this is half a gigabyte.
"""


def attend_along_trees(causal: "PreTrainedModel") -> None:
    """Give a model an attention function that follows a tree if the forward pass has a tree.

    Without a tree the attention is PyTorch's own (sdpa). The layout travels with the forward pass,
    so a pass that gradient checkpointing repeats has the layout too.
    """
    import torch

    if attention_name(causal) == TREE_ATTENTION:
        return

    def attend(
        module: "torch.nn.Module",
        query: "torch.Tensor",
        key: "torch.Tensor",
        value: "torch.Tensor",
        attention_mask: "torch.Tensor | None",
        **options: Any,
    ) -> "tuple[torch.Tensor, None]":
        layout: Layout | None = options.pop("prefix_tree", None)
        if layout is None:
            return current_sdpa()(module, query, key, value, attention_mask, **options)
        layout.followed["attention"] += 1
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        dropout = options.get("dropout", 0.0)
        window = _find_window(module, layout, options)
        if window is None and not dropout and supports_spans(query, key, value):
            output = attend_spans(query, key, value, layout.spans(query.device), scale)
            return output.transpose(1, 2), None
        layout.run_by_run = True
        queries = query.split(layout.run_lengths, dim=2)
        keys = key.split(layout.run_lengths, dim=2)
        values = value.split(layout.run_lengths, dim=2)
        outputs = []
        for run, runs_above in enumerate(layout.ancestors):
            seen_keys = torch.cat([keys[index] for index in (*runs_above, run)], dim=2)
            seen_values = torch.cat([values[index] for index in (*runs_above, run)], dim=2)
            if window is not None:
                most_keys = layout.run_lengths[run] + window - 1
                seen_keys = seen_keys[:, :, -most_keys:]
                seen_values = seen_values[:, :, -most_keys:]
            if dropout or query.device.type != "cpu":
                output = _attend_by_kernel(
                    queries[run], seen_keys, seen_values, layout, scale, dropout, window
                )
            else:
                output = _attend_by_products(
                    queries[run], seen_keys, seen_values, layout, scale, window
                )
            outputs.append(output)
        return torch.cat(outputs, dim=2).transpose(1, 2), None

    set_attention(causal, TREE_ATTENTION, attend)


def _find_window(module: "torch.nn.Module", layout: Layout, options: dict[str, Any]) -> int | None:
    """Return how many tokens a layer's attention sees, or None if it sees all tokens of a path.

    Raises:
        ModelError: the layer has another window than the model's configuration says.
    """
    layer = getattr(module, "layer_idx", None)
    window = layout.windows[layer] if layout.windows and layer is not None else None
    narrow_window = _drop_wide_window(window, layout)
    if "sliding_window" in options:
        layer_window = _drop_wide_window(options["sliding_window"], layout)
        if layer_window != narrow_window:
            raise ModelError(
                f"Layer {layer} of this model attends to {layer_window or 'all'} tokens, but its "
                f"configuration says {narrow_window or 'all'}: report this as a bug of "
                "agent-pipeline."
            )
    return narrow_window


def _drop_wide_window(window: int | None, layout: Layout) -> int | None:
    """Return a window, or None if every path of the layout fits into the window."""
    return None if not window or window >= layout.longest_path else window


def _attend_by_kernel(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    layout: Layout,
    scale: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> "torch.Tensor":
    """Return the attention output for the queries of a run, computed by PyTorch's fused kernels.

    Args:
        query: The queries of the run, (1, heads, length, size).
        key: The keys of the runs above and of the run, (1, key heads, above + length, size).
        value: The values of the same nodes, (1, key heads, above + length, value size).
        layout: The layout of the tree.
        scale: The factor of the scores.
        dropout: The share of weights that is dropped.
        window: How many tokens a query sees; None if it sees all tokens of its path.

    Returns:
        The output, (1, heads, length, value size).
    """
    from torch.nn.functional import scaled_dot_product_attention

    length, above = query.shape[2], key.shape[2] - query.shape[2]
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    # Without a mask, the kernel computes no masked pairs.
    has_mask = above > 0 or (window is not None and window < length)
    mask = layout.mask(length, above, query, window) if has_mask else None
    return scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal=mask is None, scale=scale
    )


def _attend_by_products(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    layout: Layout,
    scale: float,
    window: int | None = None,
) -> "torch.Tensor":
    """Return the attention output for the queries of a run, computed by matrix products.

    Shapes are as in `_attend_by_kernel`.

    On a CPU the products take 0.6 of the fused kernel's time in float32 if oneDNN multiplies,
    because that kernel multiplies by MKL. By MKL the products take as long as the kernel. The
    weights are kept for the backward pass if they are few (`KEPT_BYTES`), else computed again.

    As in FlashAttention (Dao et al. 2022), scores and their gradients are float32. The weights and
    their gradients have the type of keys and values when they are multiplied by these.
    """
    import torch

    with torch.autocast(query.device.type, enabled=False):  # it would round what is float32 here
        output: torch.Tensor = _run_attention().apply(query, key, value, layout, scale, window)
        return output


@dataclass(frozen=True)
class _QueryBlock:
    """A block of queries of a run.

    Attributes:
        queries: Which queries of the run these are.
        keys: Which keys the queries see.
        rows: The queries as rows, (key heads, heads per key × queries, size). Heads that share keys
            are one matrix.
    """

    queries: slice
    keys: slice
    rows: "torch.Tensor"


def _split_queries(
    queries: "torch.Tensor", keys: "torch.Tensor", window: int | None
) -> Iterator[_QueryBlock]:
    """Split the queries of a run into blocks of `QUERIES`.

    Args:
        queries: The queries, (key heads, heads per key, length, size).
        keys: The keys, (key heads, above + length, size).
        window: How many tokens a query sees; None if it sees all tokens of its path.
    """
    length = queries.shape[2]
    above = keys.shape[1] - length
    for begin in range(0, length, QUERIES):
        block = slice(begin, min(begin + QUERIES, length))
        first_key = 0 if window is None else max(0, above + begin - window + 1)
        seen = slice(first_key, above + block.stop)
        yield _QueryBlock(block, seen, queries[:, :, block].flatten(1, 2))


def _masked_scores(
    rows: "torch.Tensor",
    keys: "torch.Tensor",
    query_count: int,
    layout: Layout,
    window: int | None,
) -> "torch.Tensor":
    """Return the attention scores of a block's queries.

    The last `query_count` keys belong to the queries themselves.
    """
    scores = rows @ keys.transpose(1, 2)
    key_count = keys.shape[1]
    if window is not None and key_count > window:
        scores_by_query = scores.unflatten(1, (-1, query_count))
        scores_by_query += layout.mask(query_count, key_count - query_count, scores, window)
        return scores
    own_scores = scores.unflatten(1, (-1, query_count))[..., -query_count:]
    own_scores += layout.mask(query_count, 0, scores)
    return scores


@cache
def _run_attention() -> "type[torch.autograd.Function]":
    import torch

    class RunAttention(torch.autograd.Function):
        """The attention of one run.

        Its weights are either kept or computed again for the backward pass.
        """

        @staticmethod
        def forward(
            ctx: Any,
            query: "torch.Tensor",
            key: "torch.Tensor",
            value: "torch.Tensor",
            layout: Layout,
            scale: float,
            window: int | None,
        ) -> "torch.Tensor":
            queries, keys, values = query[0].unflatten(0, (key.shape[1], -1)), key[0], value[0]
            # In some models values are shorter than keys.
            output = queries.new_empty(*queries.shape[:3], values.shape[2])
            weight_bytes = layout.count_pairs(window) * query.shape[1] * queries.itemsize
            keeps_weights = weight_bytes <= KEPT_BYTES
            kept: list[torch.Tensor] = []
            exact_keys = keys.float()
            for block in _split_queries(queries.float() * scale, keys, window):
                query_count = block.queries.stop - block.queries.start
                scores = _masked_scores(
                    block.rows, exact_keys[:, block.keys], query_count, layout, window
                )
                weights = scores.softmax(-1)
                if not keeps_weights:
                    # The logarithm of the softmax's denominator, from the largest weight.
                    log_sum = scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log_()
                    kept.append(log_sum)
                weights = weights.to(values.dtype)
                output[:, :, block.queries] = (weights @ values[:, block.keys]).unflatten(
                    1, (queries.shape[1], -1)
                )
                if keeps_weights:
                    kept.append(weights)
            ctx.save_for_backward(queries, keys, values, output, *kept)
            ctx.layout, ctx.scale, ctx.window = layout, scale, window
            ctx.keeps_weights = keeps_weights
            return output.flatten(0, 1)[None]

        @staticmethod
        def backward(ctx: Any, gradient: "torch.Tensor") -> "tuple[torch.Tensor | None, ...]":
            queries, keys, values, output, *kept = ctx.saved_tensors
            gradient = gradient[0].unflatten(0, queries.shape[:2])
            # What the softmax subtracts from each score's gradient.
            mean_gradient = (gradient.float() * output).sum(-1, keepdim=True) * ctx.scale
            query_gradient = torch.empty_like(queries)
            key_gradient = torch.zeros_like(keys, dtype=torch.float32)
            value_gradient = torch.zeros_like(values, dtype=torch.float32)
            exact_keys, exact_values = keys.float(), values.float()
            blocks = _split_queries(queries, keys, ctx.window)
            for block, kept_part in zip(blocks, kept, strict=True):
                weights = kept_part
                if not ctx.keeps_weights:
                    query_count = block.queries.stop - block.queries.start
                    scores = _masked_scores(
                        block.rows.float() * ctx.scale,
                        exact_keys[:, block.keys],
                        query_count,
                        ctx.layout,
                        ctx.window,
                    )
                    weights = scores.sub_(kept_part).exp_().to(values.dtype)
                output_gradient = gradient[:, :, block.queries].flatten(1, 2)
                value_gradient[:, block.keys] += weights.transpose(1, 2) @ output_gradient
                weight_gradient = (
                    output_gradient.float()
                    * ctx.scale
                    @ exact_values[:, block.keys].transpose(1, 2)
                )
                block_mean = mean_gradient[:, :, block.queries].flatten(1, 2)
                score_gradient = weight_gradient.sub_(block_mean).mul_(weights).to(keys.dtype)
                query_gradient[:, :, block.queries] = (
                    score_gradient @ keys[:, block.keys]
                ).unflatten(1, (queries.shape[1], -1))
                key_gradient[:, block.keys] += score_gradient.transpose(1, 2) @ block.rows
            return (
                query_gradient.flatten(0, 1)[None],
                key_gradient.to(keys.dtype)[None],
                value_gradient.to(values.dtype)[None],
                None,
                None,
                None,
            )

    return RunAttention
