"""Losses of rows without gradients: how probable a model considers the assistant's tokens.

A loss is a mean negative log-likelihood in nats. A prefix that rows share (an agent's system prompt
and tools) goes through the model once (`prefix_tree`), without padding. The output head is applied
at the trained positions only. A model with windows or states reads whole trees, in one pass each. A
model that cannot be computed as a tree reads row by row.

Losses with gradients belong to `tree_loss`; which rows are chosen by their loss belongs to
`selection`.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from agent_pipeline._compat.transformers import cache_argument
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.engine.cpu_attention import grouped_attention
from agent_pipeline.engine.prefix_tree import (
    IntArray,
    PrefixTree,
    build_prefix_tree,
    trees_of_step,
)
from agent_pipeline.engine.tree_layout import lay_out
from agent_pipeline.engine.tree_pass import OutputHead, read_tree
from agent_pipeline.engine.tree_support import explain_row_by_row, supports_passes
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.models.threads import follow_load
from agent_pipeline.progress import Progress, silent
from agent_pipeline.tokenization.encoding import encode_row, split_into_trained_rows
from agent_pipeline.tokenization.loss_masks import Encoded

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache, PreTrainedModel

GPU_NODES = 8192
"""Number of tokens per forward pass over a prefix tree on a GPU.

8,192 are 1.5 times as fast as 2,048 (Qwen2.5-0.5B's shape, an H200).
"""

CPU_NODES = 512
"""Number of tokens per forward pass over a prefix tree on a CPU.

Matrix products run at full speed, and few of the pairs that attention computes are masked.
"""

HEAD_ROWS = 128
"""Number of positions whose logits are in memory at the same time. For 152,000 tokens, the logits
take 39 MB in bfloat16.
"""

CACHED_BYTES = 2 << 20
"""Size in bytes of the float32 logits whose loss is computed at a time.

Logits that stay in a CPU's cache take half of the time.
"""


@dataclass(frozen=True)
class RowLoss:
    """The loss of one row under a model.

    Attributes:
        loss: Mean over the trained tokens, in nats per token. None if the row has no trained token
            or does not fit.
        trained_tokens: The number of trained tokens.
    """

    loss: float | None
    trained_tokens: int


@dataclass(frozen=True)
class TokenScores:
    """A model's predictions for the trained tokens of one row.

    Attributes:
        losses: −log p of each trained token in nats, (trained tokens,).
        best: The token that the model finds most probable in each place, (trained tokens,).
    """

    losses: npt.NDArray[np.float64]
    best: IntArray


@dataclass(frozen=True)
class ReadTokens:
    """Tokens that a model has read, with the attention states that later tokens need.

    Attributes:
        ids: The tokens.
        layers: The keys and values of each layer, (1, heads, tokens, size) each.
    """

    ids: list[int]
    layers: "list[tuple[torch.Tensor, torch.Tensor]]"

    @property
    def nbytes(self) -> int:
        """Return the memory of the attention states in bytes."""
        return sum(states.nbytes for layer in self.layers for states in layer)


ScoredCallback = Callable[[TokenScores, ReadTokens | None], None]
"""A function that receives the scores of a row, and the attention states of the row if they were
kept.
"""


@dataclass(frozen=True)
class _ScoredRow:
    """One row of a scoring pass.

    Attributes:
        row_index: The index of the row among the rows of the pass.
        scores: The scores of the row's trained tokens.
        read: The states of the row, or None if they were not kept.
    """

    row_index: int
    scores: TokenScores
    read: ReadTokens | None


def average_losses(losses: Sequence[RowLoss]) -> float | None:
    """Return the mean loss over all trained tokens of all rows, or None if no token is trained.

    This is not the mean of the rows' means: a row with more trained tokens counts more.
    """
    tokens = sum(row.trained_tokens for row in losses if row.loss is not None)
    if not tokens:
        return None
    return sum(row.loss * row.trained_tokens for row in losses if row.loss is not None) / tokens


def combine_losses(losses: Sequence[RowLoss]) -> RowLoss:
    """Return the loss of several rows, as if they were a single row."""
    return RowLoss(average_losses(losses), sum(row.trained_tokens for row in losses))


def average_scores(scores: TokenScores | None) -> RowLoss:
    """Return the mean loss of a row, given the scores of its trained tokens."""
    if scores is None:
        return RowLoss(None, 0)
    return RowLoss(float(scores.losses.mean()), len(scores.losses))


def compute_losses(
    model: "PreTrainedModel", rows: Sequence[Encoded | None], progress: Progress = silent
) -> list[RowLoss]:
    """Return the loss of each encoded row under a model in memory.

    An adapter that is switched on counts; dropout does not.

    Args:
        model: The model.
        rows: Encoded rows. A None row has no loss.
        progress: Is called after each row.
    """
    return [average_scores(scores) for scores in score_tokens(model, rows, progress)]


def score_tokens(
    model: "PreTrainedModel",
    rows: Sequence[Encoded | None],
    progress: Progress = silent,
    callbacks: Mapping[int, ScoredCallback] | None = None,
) -> list[TokenScores | None]:
    """Return the scores of the trained tokens of each encoded row.

    Args:
        model: A model in memory. Dropout is switched off while the model reads.
        rows: Encoded rows.
        progress: Is called after each row.
        callbacks: By row index, a function that is called as soon as the row is scored. It also
            gets the states of the row (None for a model with windows or states, and if rows are
            read one by one), which are not kept.

    Returns:
        The scores; None for a None row, and for a row without a trained token beyond its first.
    """
    import torch

    callbacks = callbacks or {}
    scores: list[TokenScores | None] = [None] * len(rows)
    scored_indices: list[int] = []
    encoded: list[Encoded] = []
    for row_index, row in enumerate(rows):
        # Nothing before the first token could predict it.
        if row and any(row.trained[1:]):
            scored_indices.append(row_index)
            encoded.append(row)
    callbacks_by_position = {
        position: callbacks[row_index]
        for position, row_index in enumerate(scored_indices)
        if row_index in callbacks
    }
    causal = without_adapter(model)
    longest = max((len(row.input_ids) for row in encoded), default=0)
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), grouped_attention():
            if encoded and supports_passes(causal, longest):
                scored_rows = _score_tree(
                    causal, build_prefix_tree(encoded), callbacks_by_position.keys()
                )
            elif encoded and explain_row_by_row(causal, longest) is None:
                scored_rows = _score_whole_trees(causal, encoded)
            else:
                scored_rows = _score_row_by_row(causal, encoded)
            for done, scored_row in enumerate(scored_rows, 1):
                scores[scored_indices[scored_row.row_index]] = scored_row.scores
                progress(done, len(encoded), "rows scored by loss")
                callback = callbacks_by_position.get(scored_row.row_index)
                if callback:
                    callback(scored_row.scores, scored_row.read)
    finally:
        if was_training:
            model.train()
    return scores


def without_adapter(model: "PreTrainedModel") -> "PreTrainedModel":
    """Return the causal model inside a `PeftModel`.

    Return the model itself if it has no adapter.
    """
    causal: PreTrainedModel = model.get_base_model() if hasattr(model, "get_base_model") else model
    return causal


def _score_row_by_row(causal: "PreTrainedModel", rows: Sequence[Encoded]) -> Iterator[_ScoredRow]:
    for row_index, row in enumerate(rows):
        follow_load(causal.device.type, causal.dtype)
        logits, targets = trained_logits(causal, row)
        yield _ScoredRow(row_index, _score_states(lambda part: part, logits, targets), None)


def _score_whole_trees(causal: "PreTrainedModel", rows: Sequence[Encoded]) -> Iterator[_ScoredRow]:
    """Yield the scores of every row. The rows are read as trees, each in one pass.

    A cache of a window or a state holds what the next token of one row needs, not what the next
    nodes of a tree need. So a tree is not read in several passes.
    """
    import torch

    device = causal.device
    for group in trees_of_step(rows):
        follow_load(device.type, causal.dtype)
        tree = group.tree
        states = read_tree(
            causal,
            torch.from_numpy(tree.tokens)[None].to(device),
            torch.from_numpy(tree.depths)[None].to(device),
            lay_out(tree),
        )
        trained_nodes = np.unique(np.concatenate([row.nodes for row in tree.trained]))
        predictors = torch.from_numpy(tree.parents[trained_nodes]).to(device)
        targets = torch.from_numpy(tree.tokens[trained_nodes])
        scores = _score_states(OutputHead(causal), states[predictors], targets)
        for row in tree.trained:
            places = np.searchsorted(trained_nodes, row.nodes)
            yield _ScoredRow(
                group.row_indices[row.row_index],
                TokenScores(scores.losses[places], scores.best[places]),
                None,
            )


def _score_tree(
    causal: "PreTrainedModel", tree: PrefixTree, kept: Container[int]
) -> Iterator[_ScoredRow]:
    """Yield the scores of every row of a tree as soon as the row's last token has been read.

    Each node of the tree is read once. A pass reads the next nodes in depth-first order, and a mask
    shows each node its ancestors (tree attention: Miao et al. 2024, SpecInfer). After a pass, only
    the keys and values of nodes that have later descendants are kept.

    Args:
        causal: The model, without an adapter around it.
        tree: The tree of the rows.
        kept: The rows whose states are yielded with their scores.
    """
    import torch
    from transformers import DynamicCache

    body, device = getattr(causal, causal.base_model_prefix), causal.device
    nodes_per_pass = CPU_NODES if device.type == "cpu" else GPU_NODES
    losses = np.full(len(tree.tokens), np.nan)
    best = np.zeros(len(tree.tokens), dtype=np.int64)
    # Trained nodes in the order of the nodes that predict them.
    trained_nodes = np.unique(np.concatenate([row.nodes for row in tree.trained]))
    trained_nodes = trained_nodes[np.argsort(tree.parents[trained_nodes], kind="stable")]
    predictors = tree.parents[trained_nodes]
    cache, cached_nodes, complete = DynamicCache(), np.zeros(0, dtype=np.int64), 0
    for start in range(0, len(tree.tokens), nodes_per_pass):
        follow_load(device.type, causal.dtype)
        stop = min(start + nodes_per_pass, len(tree.tokens))
        nodes = np.arange(start, stop)
        is_needed = np.flatnonzero(tree.ends[cached_nodes] > start)
        needed = torch.from_numpy(is_needed).to(device)
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, needed], layer.values[:, :, needed]
        cached_nodes = np.concatenate([cached_nodes[is_needed], nodes])
        is_ancestor = (cached_nodes <= nodes[:, None]) & (nodes[:, None] < tree.ends[cached_nodes])
        visible = torch.from_numpy(is_ancestor).to(device)
        mask = torch.zeros(visible.shape, dtype=causal.dtype, device=device)
        mask.masked_fill_(~visible, torch.finfo(causal.dtype).min)
        hidden = body(
            input_ids=torch.from_numpy(tree.tokens[nodes])[None].to(device),
            position_ids=torch.from_numpy(tree.depths[nodes])[None].to(device),
            attention_mask=mask[None, None],
            **cache_argument(cache),
            use_cache=True,
        ).last_hidden_state[0]
        first, last = np.searchsorted(predictors, [start, stop])
        predicted = trained_nodes[first:last]
        predictor_rows = torch.from_numpy(tree.parents[predicted] - start).to(device)
        scores = _score_states(
            OutputHead(causal),
            hidden[predictor_rows],
            torch.from_numpy(tree.tokens[predicted]),
        )
        losses[predicted], best[predicted] = scores.losses, scores.best
        while complete < len(tree.trained) and tree.trained[complete].nodes[-1] < stop:
            row = tree.trained[complete]
            read = None
            if row.row_index in kept:
                read = _read_tokens_above(cache, tree, cached_nodes, row.nodes[-1])
            yield _ScoredRow(row.row_index, TokenScores(losses[row.nodes], best[row.nodes]), read)
            complete += 1


def _read_tokens_above(
    cache: "DynamicCache", tree: PrefixTree, cached_nodes: IntArray, node: int
) -> ReadTokens:
    """Return the tokens on the path from the root to a node, with their attention states.

    Args:
        cache: The keys and values of the nodes in `cached_nodes`.
        tree: The tree.
        cached_nodes: The nodes in the cache, in its order.
        node: The last token of the row.
    """
    import torch

    path = np.flatnonzero((cached_nodes <= node) & (node < tree.ends[cached_nodes]))
    columns = torch.from_numpy(path).to(cache.layers[0].keys.device)
    return ReadTokens(
        tree.tokens[cached_nodes[path]].tolist(),
        [(layer.keys[:, :, columns], layer.values[:, :, columns]) for layer in cache.layers],
    )


def trained_logits(causal: "PreTrainedModel", row: Encoded) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return the logits for a row's trained tokens, and the trained tokens.

    Returns:
        The logits, (trained tokens, vocabulary), and the tokens, (trained tokens,).
    """
    import torch

    ids = torch.tensor(row.input_ids, device=causal.device)
    positions = [
        position for position, is_trained in enumerate(row.trained) if is_trained and position
    ]
    trained = torch.tensor(positions, device=causal.device)
    # The logits at position t are about token t + 1.
    output = causal(input_ids=ids[None], use_cache=False, logits_to_keep=trained - 1)
    return output.logits[0], ids[trained]


def _score_states(
    head: "Callable[[torch.Tensor], torch.Tensor]", states: "torch.Tensor", targets: "torch.Tensor"
) -> TokenScores:
    """Return the scores of target tokens under the head's logits, computed a few rows at a time.

    Args:
        head: Makes logits from states.
        states: Hidden states, (n, hidden size), or logits if `head` returns them unchanged.
        targets: Tokens, (n,).
    """
    import torch
    from torch.nn.functional import cross_entropy

    losses, best = [], []
    targets = targets.to(states.device)
    for states_part, targets_part in zip(
        states.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True
    ):
        logits = head(states_part)
        rows_at_once = cached_rows(logits)
        for few_logits, few_targets in zip(
            logits.split(rows_at_once), targets_part.split(rows_at_once), strict=True
        ):
            exact = few_logits.float()
            losses.append(cross_entropy(exact, few_targets, reduction="none").cpu())
            best.append(exact.argmax(-1).cpu())
    return TokenScores(torch.cat(losses).double().numpy(), torch.cat(best).numpy())


def cached_rows(logits: "torch.Tensor") -> int:
    """Return the number of rows of logits, (n, vocabulary), that are processed at a time.

    On a CPU these are the rows that its cache holds in float32; on a GPU all rows.
    """
    if logits.device.type == "cpu":
        return max(1, CACHED_BYTES // (4 * int(logits.shape[-1])))
    return max(1, len(logits))


def compute_losses_of_base(
    rows: Iterable[DatasetRow],
    base: BaseModel,
    adapter_dir: Path | None = None,
    progress: Progress = silent,
    max_length: int = 2048,
) -> list[RowLoss]:
    """Return the loss of each SFT row under a base model or an adapter on disk.

    Args:
        rows: SFT rows. They are shortened as in training; a row that cannot be trained on has no
            loss.
        base: The base model.
        adapter_dir: The adapter; None for the base model alone.
        progress: Is called after each row.
        max_length: Tokens per row.

    Raises:
        ModelError: the model cannot be loaded.
    """
    renderer = load_renderer(adapter_dir or base.path, base.trust_remote_code)
    model = load_model(base, probe_device(), adapter_dir)
    return compute_sft_losses(model, renderer, rows, max_length, progress)


def compute_sft_losses(
    model: "PreTrainedModel",
    renderer: ChatRenderer,
    rows: Iterable[DatasetRow],
    max_length: int,
    progress: Progress = silent,
) -> list[RowLoss]:
    """Return the loss of each SFT row under a model in memory.

    If the template makes a training row of each turn, the loss is that of all turns of the SFT row.

    Args:
        model: The model.
        renderer: The renderer of the model.
        rows: SFT rows.
        max_length: Tokens per row.
        progress: Is called after each training row.
    """
    parts_of_rows = [
        [
            encode_row(renderer, part, max_length)
            for part in split_into_trained_rows(renderer, [row])
        ]
        for row in rows
    ]
    encoded = [part.encoded if part else None for parts in parts_of_rows for part in parts]
    losses = iter(compute_losses(model, encoded, progress))
    return [combine_losses([next(losses) for _ in parts]) for parts in parts_of_rows]
