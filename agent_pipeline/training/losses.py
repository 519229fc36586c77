"""How surprised a model is by each row: the mean negative log-likelihood of the assistant's tokens, in nats.

What rows begin with in common (an agent's system prompt and tools) goes through the model once (`prefixes`), without padding; the head
(49,152 columns, in SmolLM2) is applied at the trained positions only. Models whose attention cannot be told which tokens a token follows
read row by row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.progress import Progress, silent
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.config import probe_device
from agent_pipeline.training.encoding import encode_row
from agent_pipeline.training.loading import load_model
from agent_pipeline.training.masks import Encoded
from agent_pipeline.training.prefixes import PrefixTree, prefix_tree
from agent_pipeline.training.templates import load_tokenizer

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PreTrainedModel

GPU_NODES = 2048
"""Tokens of a pass over a prefix tree on a GPU."""

CPU_NODES = 512
"""Tokens of a pass over a prefix tree on a CPU: matrix products are at full speed, and few of the pairs that attention sees are masked."""

HEAD_ROWS = 128
"""Positions whose loss is computed at once: with 152,000 words, 78 MB of float32 logits."""


@dataclass(frozen=True)
class RowLoss:
    """`loss`: mean over `trained_tokens`, nats a token; None for a row with no trained token, or one that does not fit."""

    loss: float | None
    trained_tokens: int


def mean_loss(losses: Sequence[RowLoss]) -> float | None:
    """The mean over all trained tokens of all rows (not the mean of the rows' means); None where there is none."""
    tokens = sum(row.trained_tokens for row in losses if row.loss is not None)
    return sum(row.loss * row.trained_tokens for row in losses if row.loss is not None) / tokens if tokens else None


def encoded_losses(model: "PreTrainedModel", rows: Sequence[Encoded | None], progress: Progress = silent) -> list[RowLoss]:
    """The loss of each encoded row under a model in memory (an adapter that is on counts, dropout does not); None rows have none."""
    import torch

    # The first token has nothing before it that could predict it.
    losses = [RowLoss(None, sum(row.trained[1:]) if row else 0) for row in rows]
    wanted = [index for index, row in enumerate(losses) if row.trained_tokens]
    scored = [row for row, loss in zip(rows, losses, strict=True) if row and loss.trained_tokens]
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    tree = prefix_tree(scored) if scored and takes_trees(causal, max(len(row.input_ids) for row in scored)) else None
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            each = _over_tree(causal, tree) if tree else _row_by_row(causal, scored)
            for done, (index, loss) in enumerate(each, 1):
                losses[wanted[index]] = RowLoss(loss, losses[wanted[index]].trained_tokens)
                progress(done, len(wanted), "rows scored by loss")
    finally:
        if training:
            model.train()
    return losses


def _has_more_than_a_head(causal: "PreTrainedModel") -> bool:
    config = causal.config.get_text_config()
    return any(getattr(config, name, None) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"))


def takes_trees(causal: "PreTrainedModel", longest: int) -> bool:
    """Whether what a token becomes depends on nothing but the tokens that a mask shows it and their positions: attention of transformers'
    own interface in all layers, no window shorter than the longest row, and rotations that do not change with the length."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    config = causal.config.get_text_config()
    if not causal.is_backend_compatible() or config._attn_implementation not in ("sdpa", "eager") or _has_more_than_a_head(causal):
        return False
    if any(kind in str(getattr(config, "rope_parameters", None)) for kind in ("dynamic", "longrope")):
        return False
    layers = DynamicCache(config=config).layers
    return all(
        type(layer) is DynamicLayer or (type(layer) is DynamicSlidingWindowLayer and layer.sliding_window >= longest) for layer in layers
    )


def _over_tree(causal: "PreTrainedModel", tree: PrefixTree) -> Iterator[tuple[int, float]]:
    """(row, loss) of every row, when the last of its tokens has been read; each node of the tree is read once.

    Tree attention (Miao et al. 2024, SpecInfer): a pass reads the next nodes in depth-first order, and a mask shows each of them its
    ancestors. What is kept of a pass are the keys and values of the tokens that later nodes descend from.
    """
    import numpy as np
    import torch
    from transformers import DynamicCache

    body, device = getattr(causal, causal.base_model_prefix), causal.device
    size = CPU_NODES if device.type == "cpu" else GPU_NODES
    losses = np.full(len(tree.tokens), np.nan)
    wanted = np.unique(np.concatenate([nodes for _, nodes in tree.trained]))
    wanted = wanted[np.argsort(tree.parents[wanted], kind="stable")]
    follows = tree.parents[wanted]
    cache, seen, complete = DynamicCache(), np.zeros(0, dtype=np.int64), 0
    for start in range(0, len(tree.tokens), size):
        stop = min(start + size, len(tree.tokens))
        nodes = np.arange(start, stop)
        kept = np.flatnonzero(tree.ends[seen] > start)
        for layer in cache.layers:
            layer.keys, layer.values = (each[:, :, torch.from_numpy(kept).to(device)] for each in (layer.keys, layer.values))
        seen = np.concatenate([seen[kept], nodes])
        visible = torch.from_numpy((seen <= nodes[:, None]) & (nodes[:, None] < tree.ends[seen])).to(device)
        hidden = body(
            input_ids=torch.from_numpy(tree.tokens[nodes])[None].to(device),
            position_ids=torch.from_numpy(tree.depths[nodes])[None].to(device),
            attention_mask=torch.zeros(visible.shape, dtype=causal.dtype, device=device).masked_fill_(
                ~visible, torch.finfo(causal.dtype).min
            )[None, None],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[0]
        about = wanted[slice(*np.searchsorted(follows, [start, stop]))]
        where = torch.from_numpy(tree.parents[about] - start).to(device)
        losses[about] = _token_losses(causal.get_output_embeddings(), hidden[where], torch.from_numpy(tree.tokens[about]))
        while complete < len(tree.trained) and tree.trained[complete][1][-1] < stop:
            index, row_nodes = tree.trained[complete]
            yield index, float(losses[row_nodes].mean())
            complete += 1


def _row_by_row(causal: "PreTrainedModel", rows: Sequence[Encoded]) -> Iterator[tuple[int, float]]:
    """(row, loss) of every row, for models whose attention cannot be told which tokens a token follows."""
    import torch

    for index, row in enumerate(rows):
        ids = torch.tensor(row.input_ids, device=causal.device)
        trained = torch.tensor([at for at, on in enumerate(row.trained) if on and at], device=causal.device)
        # The logits at position t are about token t + 1.
        logits = causal(input_ids=ids[None], use_cache=False, logits_to_keep=trained - 1).logits[0]
        yield index, float(_token_losses(lambda part: part, logits, ids[trained]).mean())


def _token_losses(head: "Callable[[torch.Tensor], torch.Tensor]", states: "torch.Tensor", targets: "torch.Tensor") -> "np.ndarray":
    """(n,) float64: −log p of each target under the head's logits at its row of `states`, a few rows at a time."""
    import torch
    from torch.nn.functional import cross_entropy

    parts = zip(states.split(HEAD_ROWS), targets.to(states.device).split(HEAD_ROWS), strict=True)
    return torch.cat([cross_entropy(head(some).float(), about, reduction="none").cpu() for some, about in parts]).double().numpy()


def row_losses(
    rows: list[dict[str, Any]],
    base: BaseModel,
    adapter_dir: Path | None = None,
    progress: Progress = silent,
    max_length: int = 2048,
) -> list[RowLoss]:
    """The loss of each SFT row, in order, under the base model or, with `adapter_dir`, under the adapter.

    Rows are shortened as in training; one that cannot be trained on has no loss. Raises ModelError.
    """
    tokenizer, _ = load_tokenizer(adapter_dir or base.path, base.trust_remote_code)
    encoded = [encode_row(tokenizer, row, max_length) for row in rows]
    model = load_model(base, probe_device(), adapter_dir)
    return encoded_losses(model, [row.encoded if row else None for row in encoded], progress)
