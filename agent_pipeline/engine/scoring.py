"""How surprised a model is by each row: the mean negative log-likelihood of the assistant's tokens, in nats.

What rows begin with in common (an agent's system prompt and tools) goes through the model once (`prefixes`), without padding; the head
(49,152 columns, in SmolLM2) is applied at the trained positions only. Models whose attention cannot be told which tokens a token follows
read row by row.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agent_pipeline.engine.cpu_attention import grouped_attention
from agent_pipeline.engine.prefix_tree import PrefixTree, prefix_tree
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import Progress, silent
from agent_pipeline.tokenization.encoding import as_trained, encode_row
from agent_pipeline.tokenization.loss_masks import Encoded

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache, PreTrainedModel

GPU_NODES = 8192
"""Tokens of a pass over a prefix tree on a GPU: 1.5 times as fast as 2,048 (Qwen2.5-0.5B's shape, an H200)."""

CPU_NODES = 512
"""Tokens of a pass over a prefix tree on a CPU: matrix products are at full speed, and few of the pairs that attention sees are masked."""

TREE_ATTENTION = "prefix_tree"
"""The name of the attention that training over trees gives a model (`trainers.tree_attention`)."""

HEAD_ROWS = 128
"""Positions whose logits are held at once: with 152,000 words, 39 MB in bfloat16."""

CACHED_BYTES = 2 << 20
"""Logits, in float32, of which a loss is computed at once. What stays in a CPU's cache takes half of the time."""


@dataclass(frozen=True)
class RowLoss:
    """`loss`: mean over `trained_tokens`, nats a token; None for a row with no trained token, or one that does not fit."""

    loss: float | None
    trained_tokens: int


@dataclass(frozen=True)
class TokenScores:
    """What a model makes of a row's trained tokens, both (trained tokens,): `losses`, −log p in nats, and `best`, the token that it finds
    likeliest in each one's place.
    """

    losses: np.ndarray
    best: np.ndarray


@dataclass(frozen=True)
class Read:
    """Tokens that a model has read: `ids`, and the keys and values of each layer, (1, heads, tokens, size) each."""

    ids: list[int]
    layers: "list[tuple[torch.Tensor, torch.Tensor]]"

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return sum(each.nbytes for layer in self.layers for each in layer)


def mean_loss(losses: Sequence[RowLoss]) -> float | None:
    """The mean over all trained tokens of all rows (not the mean of the rows' means); None where there is none."""
    tokens = sum(row.trained_tokens for row in losses if row.loss is not None)
    return (
        sum(row.loss * row.trained_tokens for row in losses if row.loss is not None) / tokens
        if tokens
        else None
    )


def encoded_losses(
    model: "PreTrainedModel", rows: Sequence[Encoded | None], progress: Progress = silent
) -> list[RowLoss]:
    """The loss of each encoded row under a model in memory (an adapter that is on counts, dropout does not); None rows have none."""
    return [row_loss(scores) for scores in token_scores(model, rows, progress)]


def row_loss(scores: TokenScores | None) -> RowLoss:
    """The loss of a row whose tokens have these scores."""
    return RowLoss(float(scores.losses.mean()), len(scores.losses)) if scores else RowLoss(None, 0)


def token_scores(
    model: "PreTrainedModel",
    rows: Sequence[Encoded | None],
    progress: Progress = silent,
    then: Mapping[int, Callable[[TokenScores, Read | None], None]] | None = None,
) -> list[TokenScores | None]:
    """The scores of each encoded row's trained tokens; None for a None row, and for one without a trained token beyond its first.

    `then[i]` is called with the scores of row i as soon as they are there, and with what the model has read of it (None where rows are
    read one by one), which is not kept.
    """
    import torch

    # The first token has nothing before it that could predict it.
    scores: list[TokenScores | None] = [None] * len(rows)
    scored = {index: row for index, row in enumerate(rows) if row and any(row.trained[1:])}
    wanted, encoded = list(scored), list(scored.values())
    causal = causal_of(model)
    tree = (
        prefix_tree(encoded)
        if encoded and takes_trees(causal, max(len(row.input_ids) for row in encoded))
        else None
    )
    training = model.training
    model.eval()
    try:
        with torch.inference_mode(), grouped_attention():
            follow_up = {
                at: then[index] for at, index in enumerate(wanted) if then and index in then
            }
            by_row = (
                (at, _scores(lambda part: part, *trained_logits(causal, row)), None)
                for at, row in enumerate(encoded)
            )
            each = _over_tree(causal, tree, follow_up) if tree else by_row
            for done, (index, row_scores, read) in enumerate(each, 1):
                scores[wanted[index]] = row_scores
                progress(done, len(wanted), "rows scored by loss")
                if index in follow_up:
                    follow_up[index](row_scores, read)
    finally:
        if training:
            model.train()
    return scores


def causal_of(model: "PreTrainedModel") -> "PreTrainedModel":
    """The model itself, where an adapter wraps it."""
    causal: PreTrainedModel = model.get_base_model() if hasattr(model, "get_base_model") else model
    return causal


def takes_trees(causal: "PreTrainedModel", longest: int) -> bool:
    """Whether what a token becomes depends on nothing but the tokens that a mask shows it and their positions: attention of transformers'
    own interface in all layers, without sinks, no window shorter than the longest row, and rotations that do not change with the length."""
    config = causal.config.get_text_config()
    more_than_a_head = any(
        getattr(config, name, None)
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")
    )
    changing_rotations = any(
        kind in str(getattr(config, "rope_parameters", None)) for kind in ("dynamic", "longrope")
    )
    if not causal.is_backend_compatible() or config._attn_implementation not in (
        "sdpa",
        "eager",
        TREE_ATTENTION,
    ):
        return False
    sinks = any(
        name.endswith(".sinks") for name, _ in causal.named_parameters()
    )  # gpt-oss: a score of no token, in each softmax
    return not (more_than_a_head or changing_rotations or sinks) and sees_all(causal, longest)


def sees_all(causal: "PreTrainedModel", longest: int) -> bool:
    """Whether each layer attends to all tokens of a row: there is no shorter window, and no state that stands for the tokens before."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    layers = DynamicCache(config=causal.config.get_text_config()).layers
    return all(
        type(layer) is DynamicLayer
        or (type(layer) is DynamicSlidingWindowLayer and layer.sliding_window >= longest)
        for layer in layers
    )


def _over_tree(
    causal: "PreTrainedModel", tree: PrefixTree, kept: Container[int]
) -> Iterator[tuple[int, TokenScores, Read | None]]:
    """(row, scores, what was read of the rows in `kept`) of every row, when the last of its tokens has been read; each node of the tree is
    read once.

    Tree attention (Miao et al. 2024, SpecInfer): a pass reads the next nodes in depth-first order, and a mask shows each of them its
    ancestors. What is kept of a pass are the keys and values of the tokens that later nodes descend from.
    """
    import torch
    from transformers import DynamicCache

    body, device = getattr(causal, causal.base_model_prefix), causal.device
    size = CPU_NODES if device.type == "cpu" else GPU_NODES
    losses, best = np.full(len(tree.tokens), np.nan), np.zeros(len(tree.tokens), dtype=np.int64)
    wanted = np.unique(np.concatenate([nodes for _, nodes in tree.trained]))
    wanted = wanted[np.argsort(tree.parents[wanted], kind="stable")]
    follows = tree.parents[wanted]
    cache, seen, complete = DynamicCache(), np.zeros(0, dtype=np.int64), 0
    for start in range(0, len(tree.tokens), size):
        stop = min(start + size, len(tree.tokens))
        nodes = np.arange(start, stop)
        above = np.flatnonzero(tree.ends[seen] > start)
        for layer in cache.layers:
            layer.keys, layer.values = (
                each[:, :, torch.from_numpy(above).to(device)]
                for each in (layer.keys, layer.values)
            )
        seen = np.concatenate([seen[above], nodes])
        visible = torch.from_numpy(
            (seen <= nodes[:, None]) & (nodes[:, None] < tree.ends[seen])
        ).to(device)
        hidden = body(
            input_ids=torch.from_numpy(tree.tokens[nodes])[None].to(device),
            position_ids=torch.from_numpy(tree.depths[nodes])[None].to(device),
            attention_mask=torch.zeros(
                visible.shape, dtype=causal.dtype, device=device
            ).masked_fill_(~visible, torch.finfo(causal.dtype).min)[None, None],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[0]
        about = wanted[slice(*np.searchsorted(follows, [start, stop]))]
        where = torch.from_numpy(tree.parents[about] - start).to(device)
        scores = _scores(
            causal.get_output_embeddings(), hidden[where], torch.from_numpy(tree.tokens[about])
        )
        losses[about], best[about] = scores.losses, scores.best
        while complete < len(tree.trained) and tree.trained[complete][1][-1] < stop:
            index, row_nodes = tree.trained[complete]
            read = _read(cache, tree, seen, row_nodes[-1]) if index in kept else None
            yield index, TokenScores(losses[row_nodes], best[row_nodes]), read
            complete += 1


def _read(cache: "DynamicCache", tree: PrefixTree, seen: np.ndarray, node: int) -> Read:
    """The row that ends with a node, of a cache that holds the nodes `seen`."""
    import torch

    path = np.flatnonzero((seen <= node) & (node < tree.ends[seen]))
    at = torch.from_numpy(path).to(cache.layers[0].keys.device)
    return Read(
        tree.tokens[seen[path]].tolist(),
        [(layer.keys[:, :, at], layer.values[:, :, at]) for layer in cache.layers],
    )


def trained_logits(causal: "PreTrainedModel", row: Encoded) -> "tuple[torch.Tensor, torch.Tensor]":
    """The logits (trained tokens, vocabulary) about a row's trained tokens, and these tokens."""
    import torch

    ids = torch.tensor(row.input_ids, device=causal.device)
    trained = torch.tensor(
        [at for at, on in enumerate(row.trained) if on and at], device=causal.device
    )
    # The logits at position t are about token t + 1.
    return causal(input_ids=ids[None], use_cache=False, logits_to_keep=trained - 1).logits[0], ids[
        trained
    ]


def _scores(
    head: "Callable[[torch.Tensor], torch.Tensor]", states: "torch.Tensor", targets: "torch.Tensor"
) -> TokenScores:
    """The scores of each target under the head's logits at its row of `states`, a few rows at a time."""
    import torch
    from torch.nn.functional import cross_entropy

    losses, best = [], []
    for some, about in zip(
        states.split(HEAD_ROWS), targets.to(states.device).split(HEAD_ROWS), strict=True
    ):
        logits = head(some)
        few = cached_rows(logits)
        for part, of_part in zip(logits.split(few), about.split(few), strict=True):
            exact = part.float()
            losses.append(cross_entropy(exact, of_part, reduction="none").cpu())
            best.append(exact.argmax(-1).cpu())
    return TokenScores(torch.cat(losses).double().numpy(), torch.cat(best).numpy())


def cached_rows(logits: "torch.Tensor") -> int:
    """How many rows of logits are looked at at once: on a CPU, those that its cache holds in float32."""
    return (
        max(1, CACHED_BYTES // (4 * logits.shape[-1]))
        if logits.device.type == "cpu"
        else max(1, len(logits))
    )


def row_losses(
    rows: Iterable[dict[str, Any]],
    base: BaseModel,
    adapter_dir: Path | None = None,
    progress: Progress = silent,
    max_length: int = 2048,
) -> list[RowLoss]:
    """The loss of each SFT row, in order, under the base model or, with `adapter_dir`, under the adapter.

    Rows are shortened as in training; one that cannot be trained on has no loss. Raises ModelError.
    """
    renderer = load_renderer(adapter_dir or base.path, base.trust_remote_code)
    return losses_of(
        load_model(base, probe_device(), adapter_dir), renderer, rows, max_length, progress
    )


def losses_of(
    model: "PreTrainedModel",
    renderer: ChatRenderer,
    rows: Iterable[dict[str, Any]],
    max_length: int,
    progress: Progress = silent,
) -> list[RowLoss]:
    """The loss of each SFT row under a model in memory: that of all its turns, where each of them is a row of its own."""
    encoded = [
        [encode_row(renderer, part, max_length) for part in as_trained(renderer, [row])]
        for row in rows
    ]
    losses = iter(
        encoded_losses(
            model, [part.encoded if part else None for parts in encoded for part in parts], progress
        )
    )
    return [together([next(losses) for _ in parts]) for parts in encoded]


def together(losses: Sequence[RowLoss]) -> RowLoss:
    """The loss of several rows as one."""
    return RowLoss(mean_loss(losses), sum(each.trained_tokens for each in losses))
