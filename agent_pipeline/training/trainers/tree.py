"""TRL's SFTTrainer over trees of prefixes: what the rows of an optimizer step share is computed once, forward and backward.

The rows of an agent begin with one system prompt and one list of tools, and the trials of a task with the same turns. A causal model
computes the same states for the same prefix, so a step's rows are laid out as one sequence in which each distinct prefix stands once. A
mask shows every token its own ancestors only, and positions count the depth in the row (tree attention: Miao et al. 2024, SpecInfer). The
output head runs at the trained positions only. The gradients are those of row-by-row training, up to the order of floating-point sums.
"""

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent_pipeline.errors import DataError
from agent_pipeline.training.losses import takes_trees
from agent_pipeline.training.masks import Encoded
from agent_pipeline.training.prefixes import PrefixTree, prefix_tree

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from trl import SFTTrainer

MAX_NODES = 4096
"""Nodes of one tree: its attention mask takes 64 MB of float32. A step with more of them is split into several trees."""

WORTHWHILE = 0.8
"""Trees are trained where at most this share of the tokens is left in them: their attention computes masked pairs too, and a node costs
about 1.2 times a token of a batch (SmolLM2-135M, rows of 350 tokens, 2 cores)."""

HEAD_ROWS = 512
"""Trained positions whose logits are held at once: 100 MB of float32 for a vocabulary of 49,152."""


def trees_of_step(rows: Sequence[Encoded], max_nodes: int = MAX_NODES) -> list[tuple[PrefixTree, list[int]]]:
    """Lay out the rows of one optimizer step as trees of at most `max_nodes` nodes each; a longer row is a tree of its own.

    Returns each tree with the indices of its rows.
    """
    groups = grouped([[row] for row in rows], max_nodes)
    return [(prefix_tree([rows[index] for index in group]), group) for group in groups]


def grouped(units: Sequence[Sequence[Encoded]], max_nodes: int = MAX_NODES) -> list[list[int]]:
    """Indices of units (rows that must share a tree) in groups, whose trees have at most `max_nodes` nodes; a larger unit is one by itself.

    Units are sorted first, so that those with the longest common prefix share a group.
    """
    order = sorted(range(len(units)), key=lambda index: units[index][0].input_ids)
    groups: list[list[int]] = []
    for index in order:
        if groups and len(prefix_tree([row for each in [*groups[-1], index] for row in units[each]]).tokens) <= max_nodes:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def shared_fraction(rows: Sequence[Encoded], step_rows: int) -> float:
    """The fraction of tokens that trees leave to compute, for steps of `step_rows` consecutive rows; 1.0 where nothing is shared."""
    steps = [rows[start : start + step_rows] for start in range(0, len(rows), step_rows)]
    nodes = sum(len(tree.tokens) for step in steps for tree, _ in trees_of_step(step))
    return nodes / max(sum(len(row.input_ids) for row in rows), 1)


def trains_as_trees(model: "PreTrainedModel", rows: Sequence[Encoded], step_rows: int) -> bool:
    """Whether trees are exact for this model and leave less to compute: a row by itself costs less than a tree that shares nothing."""
    import torch

    one_process = int(os.environ.get("WORLD_SIZE", "1")) == 1 and torch.cuda.device_count() < 2
    longest = max(len(row.input_ids) for row in rows)
    return one_process and takes_trees(model, longest) and shared_fraction(rows, step_rows) <= WORTHWHILE


def tree_tensors(tree: PrefixTree, dtype: "torch.dtype") -> dict[str, Any]:
    """The model's inputs for a tree, and what the loss needs.

    `input_ids` and `position_ids` are (1, nodes), `attention_mask` is (1, 1, nodes, nodes) and additive. `predictors` (n,) are the nodes
    whose state predicts a trained node, `targets` (n,) its token, `weights` (n,) the number of rows that train it. `row_of` and `place_of`
    (m,) name, for each trained token of each row, the row and the place in `targets`.
    """
    import numpy as np
    import torch

    nodes = np.arange(len(tree.tokens))
    visible = torch.from_numpy((nodes[None, :] <= nodes[:, None]) & (nodes[:, None] < tree.ends[None, :]))
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)
    nodes_of_rows = np.concatenate([row for _, row in tree.trained])
    trained, places, weights = np.unique(nodes_of_rows, return_inverse=True, return_counts=True)
    return {
        "input_ids": torch.from_numpy(tree.tokens)[None],
        "position_ids": torch.from_numpy(tree.depths)[None],
        "attention_mask": mask[None, None],
        "predictors": torch.from_numpy(tree.parents[trained]),
        "targets": torch.from_numpy(tree.tokens[trained]),
        "weights": torch.from_numpy(weights).to(torch.float32),
        "row_of": torch.from_numpy(np.repeat([index for index, _ in tree.trained], [len(row) for _, row in tree.trained])),
        "place_of": torch.from_numpy(places),
    }


def tree_loss(causal: "PreTrainedModel", inputs: dict[str, "torch.Tensor"]) -> "torch.Tensor":
    """The summed negative log-likelihood, in nats, of every trained token of every row in a tree."""
    return (token_losses(causal, inputs) * inputs["weights"]).sum()


def row_log_probs(causal: "PreTrainedModel", inputs: dict[str, "torch.Tensor"], rows: int) -> "torch.Tensor":
    """(rows,): the log-probability, in nats, of each row's trained tokens."""
    log_probs = -token_losses(causal, inputs)[inputs["place_of"]]
    return log_probs.new_zeros(rows).index_add(0, inputs["row_of"], log_probs)


def token_losses(causal: "PreTrainedModel", inputs: dict[str, "torch.Tensor"]) -> "torch.Tensor":
    """(n,): the negative log-likelihood, in nats, of each trained node of a tree."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.checkpoint import checkpoint

    body, head = getattr(causal, causal.base_model_prefix), causal.get_output_embeddings()
    names = ("input_ids", "position_ids", "attention_mask")
    hidden = body(**{name: inputs[name] for name in names}, use_cache=False).last_hidden_state[0]

    def part(states: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        return cross_entropy(head(states).float(), targets, reduction="none")

    columns = (hidden[inputs["predictors"]], inputs["targets"])
    parts = zip(*(column.split(HEAD_ROWS) for column in columns), strict=True)
    return torch.cat([checkpoint(part, *each, use_reentrant=False) for each in parts])


def tree_trainer(*args: Any, **kwargs: Any) -> "SFTTrainer":
    """An `SFTTrainer` whose batch holds all rows of an optimizer step and is computed as trees; takes SFTTrainer's arguments.

    `per_device_train_batch_size` is the number of rows of a step, and `gradient_accumulation_steps` is 1. The data set has the columns
    `input_ids` and `labels`.
    """
    import torch
    from trl import SFTTrainer

    class TreeTrainer(SFTTrainer):
        def training_step(
            self, model: "torch.nn.Module", inputs: dict[str, Any], num_items_in_batch: "torch.Tensor | int | None" = None
        ) -> "torch.Tensor":
            model.train()
            wrapped: Any = self.accelerator.unwrap_model(model)
            causal = wrapped.get_base_model() if hasattr(wrapped, "get_base_model") else wrapped
            total = sum(float(tree["weights"].sum()) for tree in inputs["trees"])
            step_loss = torch.zeros((), device=self.args.device)
            for tree in inputs["trees"]:
                tensors = {name: tensor.to(self.args.device) for name, tensor in tree.items()}
                with self.compute_loss_context_manager():
                    loss = tree_loss(causal, tensors) / total
                self.accelerator.backward(loss)
                step_loss += loss.detach()
            self._total_train_tokens += inputs["row_tokens"]
            self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
            return step_loss

    return TreeTrainer(*args, data_collator=collate_trees, **kwargs)


def collate_trees(rows: list[dict[str, list[int]]]) -> dict[str, Any]:
    """The rows of one optimizer step (columns `input_ids`, `labels`) as the tensors of their trees."""
    import torch

    encoded = [Encoded(row["input_ids"], [label != -100 for label in row["labels"]], []) for row in rows]
    trees = [tree_tensors(tree, torch.float32) for tree, _ in trees_of_step(encoded)]
    return {"trees": trees, "row_tokens": sum(len(row.input_ids) for row in encoded)}


def prove_tree_labels(trainer: "SFTTrainer", rows: list[Encoded]) -> None:
    """Check, on the first batch of the trainer's own data loader, that following each trained node to its root gives our rows' tokens.

    Raises:
        DataError: a tree trains a token that no row trains there, or fewer of them.
    """
    batch: dict[str, Any] = next(iter(trainer.get_train_dataloader()))
    expected: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        expected.update(tuple(row.input_ids[: at + 1]) for at in range(1, len(row.input_ids)) if row.trained[at])
    for tree in batch["trees"]:
        visible = tree["attention_mask"][0, 0] == 0
        for predictor, target, weight in zip(tree["predictors"], tree["targets"], tree["weights"], strict=True):
            path = tree["input_ids"][0][visible[predictor]]
            if expected[(*path.tolist(), int(target))] < int(weight):
                raise DataError("A tree of prefixes trains other tokens than its rows: report this as a bug of agent-pipeline.")
