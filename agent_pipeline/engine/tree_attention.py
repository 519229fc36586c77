"""Attention along a tree of prefixes: a token sees its ancestors and itself, and nothing of other rows.

A tree lies in a sequence in depth-first order, as runs of nodes without a fork. A run's queries meet the keys of the runs above it and its
own only, so pairs of tokens of different rows cost nothing. On a GPU one kernel attends for all runs (`spans`), elsewhere each is computed
by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from agent_pipeline.engine.prefix_tree import PrefixTree
from agent_pipeline.engine.scoring import TREE_ATTENTION
from agent_pipeline.engine.varlen_attention import Spans, attend_spans, spans_of, takes_spans

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

QUERIES = 128
"""Queries whose weights are computed at once on a CPU: they stay in its cache, and of the pairs that are masked few are computed."""

KEPT_BYTES = 16 << 20
"""Weights of a layer that are kept for the way back; of a longer tree they are computed again. Half a gigabyte in 30 layers."""


@dataclass(eq=False)
class Layout:
    """How a tree lies in a sequence: the lengths of its runs, and for each run those above it.

    `attended` is set by the attention that follows it, and `run_by_run` where a layer's is computed for each run by itself. A layout of
    `fixed` spans has no runs.
    """

    runs: list[int]
    ancestors: list[list[int]]
    fixed: Spans | None = None
    attended: bool = False
    run_by_run: bool = False
    _masks: "dict[tuple[int, int], torch.Tensor]" = field(default_factory=dict)

    @cached_property
    def pairs(self) -> int:
        """Pairs of a query and a key in the same row, those that are masked within a run included."""
        above = (sum(self.runs[each] for each in ancestors) for ancestors in self.ancestors)
        return sum(
            length * (length + before) for length, before in zip(self.runs, above, strict=True)
        )

    def to(self, device: "torch.device | str") -> "Layout":
        """Itself: it holds no tensors before a model's attention has asked for some."""
        return self

    def mask(self, length: int, above: int, like: "torch.Tensor") -> "torch.Tensor":
        """(length, above + length) for a run below `above` nodes: −∞ where a token comes later in the run, else 0."""
        import torch

        if (length, above) not in self._masks:
            self._masks[length, above] = like.new_full((length, above + length), -torch.inf).triu(
                above + 1
            )
        return self._masks[length, above]

    def spans(self, device: "torch.device") -> Spans:
        """Where its runs' queries and keys lie, on a device."""
        if self.fixed is None:
            self.fixed = spans_of(self.runs, self.ancestors, device)
        return self.fixed


def layout_of(tree: PrefixTree) -> Layout:
    """The layout of a tree."""
    forks = (
        np.flatnonzero(
            (tree.parents[1:] != np.arange(len(tree.tokens) - 1))
            | (tree.ends[1:] != tree.ends[:-1])
        )
        + 1
    )
    starts = np.concatenate([[0], forks])
    ends = tree.ends[starts]
    ancestors = [np.flatnonzero((starts < start) & (start < ends)).tolist() for start in starts]
    return Layout(np.diff([*starts, len(tree.tokens)]).tolist(), ancestors)


def attend_along_trees(causal: "PreTrainedModel") -> None:
    """Give the model an attention in which a token sees its ancestors in the tree and itself; without a tree it is PyTorch's own (sdpa).

    The layout travels with the forward pass, so that a pass repeated for gradient checkpointing has it too.
    """
    import torch
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config = causal.config.get_text_config()
    if config._attn_implementation == TREE_ATTENTION:
        return

    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **more: Any,
    ) -> tuple[torch.Tensor, None]:
        layout = more.pop("prefix_tree", None)
        if layout is None:
            plain = ALL_ATTENTION_FUNCTIONS["sdpa"](
                module, query, key, value, attention_mask, **more
            )
            return cast("tuple[torch.Tensor, None]", plain)
        layout.attended = True
        scale, dropout = more.get("scaling") or query.shape[-1] ** -0.5, more.get("dropout", 0.0)
        if not dropout and takes_spans(query, key, value):
            return attend_spans(query, key, value, layout.spans(query.device), scale).transpose(
                1, 2
            ), None
        layout.run_by_run = True
        attention = _fused if dropout or query.device.type != "cpu" else _by_products
        queries, keys, values = (each.split(layout.runs, dim=2) for each in (query, key, value))
        outputs = [
            attention(
                queries[index],
                torch.cat([keys[each] for each in (*above, index)], dim=2),
                torch.cat([values[each] for each in (*above, index)], dim=2),
                layout,
                scale,
                dropout,
            )
            for index, above in enumerate(layout.ancestors)
        ]
        return torch.cat(outputs, dim=2).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register(TREE_ATTENTION, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(TREE_ATTENTION, sdpa_mask)
    config._attn_implementation = TREE_ATTENTION


def _fused(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    layout: Layout,
    scale: float,
    dropout: float,
) -> "torch.Tensor":
    """(1, heads, length, size): what the queries of a run see in all keys and values above it and its own, by PyTorch's fused kernels."""
    from torch.nn.functional import scaled_dot_product_attention

    length, above = query.shape[2], key.shape[2] - query.shape[2]
    repeats = query.shape[1] // key.shape[1]
    key, value = (
        each.repeat_interleave(repeats, dim=1) if repeats > 1 else each for each in (key, value)
    )
    mask = (
        layout.mask(length, above, query) if above else None
    )  # without one, the kernel computes no masked pairs
    return scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal=mask is None, scale=scale
    )


def _by_products(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    layout: Layout,
    scale: float,
    _: float,
) -> "torch.Tensor":
    """The same as matrix products. On a CPU they take 0.6 of the fused kernel's time in float32 where oneDNN multiplies, since that kernel
    multiplies by MKL; by MKL they take as long as it. The weights are kept for the way back where they are few (`KEPT_BYTES`), else
    computed again.

    As in FlashAttention (Dao et al. 2022), scores and what they are changed by are float32 until they are weights, and the weights and
    their gradients are of the type of keys and values where they are multiplied by them.
    """
    import torch

    with torch.autocast(query.device.type, enabled=False):  # it would round what is float32 here
        return _attention_of_products().apply(query, key, value, layout, scale)


@cache
def _attention_of_products() -> "type[torch.autograd.Function]":
    import torch

    def blocks(
        queries: torch.Tensor, keys: torch.Tensor
    ) -> Iterator[tuple[slice, slice, torch.Tensor]]:
        """Of some queries at a time: which they are, which keys they see, and the queries. Heads that share keys are one matrix,
        (key heads, heads a key × queries, size)."""
        length, above = queries.shape[2], keys.shape[1] - queries.shape[2]
        for begin in range(0, length, QUERIES):
            some = slice(begin, min(begin + QUERIES, length))
            yield some, slice(0, above + some.stop), queries[:, :, some].flatten(1, 2)

    def fit(block: torch.Tensor, keys: torch.Tensor, own: int, layout: Layout) -> torch.Tensor:
        """How well each of a block's queries fits each key; the last `own` keys are the queries' own."""
        scores = block @ keys.transpose(1, 2)
        scores.unflatten(1, (-1, own))[..., -own:] += layout.mask(own, 0, scores)
        return scores

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            layout: Layout,
            scale: float,
        ) -> torch.Tensor:
            queries, keys, values = query[0].unflatten(0, (key.shape[1], -1)), key[0], value[0]
            output = queries.new_empty(
                *queries.shape[:3], values.shape[2]
            )  # in some models values are shorter than keys
            keep, kept = (
                layout.pairs * query.shape[1] * queries.itemsize <= KEPT_BYTES,
                list[torch.Tensor](),
            )
            exact = keys.float()
            for some, seen, block in blocks(queries.float() * scale, keys):
                scores = fit(block, exact[:, seen], some.stop - some.start, layout)
                weights = scores.softmax(-1)
                # The logarithm of the sum that weights were divided by, from where a weight is greatest.
                top = (
                    None
                    if keep
                    else scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log_()
                )
                weights = weights.to(values.dtype)
                output[:, :, some] = (weights @ values[:, seen]).unflatten(
                    1, (queries.shape[1], -1)
                )
                kept.append(weights if top is None else top)
            ctx.save_for_backward(queries, keys, values, output, *kept)
            ctx.layout, ctx.scale, ctx.keep = layout, scale, keep
            return output.flatten(0, 1)[None]

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            queries, keys, values, output, *kept = ctx.saved_tensors
            gradient = gradient[0].unflatten(0, queries.shape[:2])
            along = (gradient.float() * output).sum(-1, keepdim=True) * ctx.scale
            of_queries = torch.empty_like(queries)
            of_keys, of_values = (
                torch.zeros_like(each, dtype=torch.float32) for each in (keys, values)
            )
            exact_keys, exact_values = keys.float(), values.float()
            for (some, seen, block), weights in zip(blocks(queries, keys), kept, strict=True):
                if not ctx.keep:
                    scores = fit(
                        block.float() * ctx.scale,
                        exact_keys[:, seen],
                        some.stop - some.start,
                        ctx.layout,
                    )
                    weights = scores.sub_(weights).exp_().to(values.dtype)
                of_output = gradient[:, :, some].flatten(1, 2)
                of_values[:, seen] += weights.transpose(1, 2) @ of_output
                of_weights = of_output.float() * ctx.scale @ exact_values[:, seen].transpose(1, 2)
                of_scores = (
                    of_weights.sub_(along[:, :, some].flatten(1, 2)).mul_(weights).to(keys.dtype)
                )
                of_queries[:, :, some] = (of_scores @ keys[:, seen]).unflatten(
                    1, (queries.shape[1], -1)
                )
                of_keys[:, seen] += of_scores.transpose(1, 2) @ block
            return (
                of_queries.flatten(0, 1)[None],
                of_keys.to(keys.dtype)[None],
                of_values.to(values.dtype)[None],
                None,
                None,
            )

    return Attention
