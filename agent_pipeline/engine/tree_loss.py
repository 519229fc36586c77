"""TRL's SFTTrainer over trees of prefixes: what the rows of an optimizer step share is computed once, forward and backward.

The rows of an agent begin with one system prompt and one list of tools, and the trials of a task with the same turns. A causal model
computes the same states for the same prefix, so a step's rows are laid out as one sequence in which each distinct prefix stands once. Every
token attends to its own ancestors only, and positions count the depth in the row (tree attention: Miao et al. 2024, SpecInfer). The
output head runs at the trained positions only. The gradients are those of row-by-row training, up to the order of floating-point sums.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from agent_pipeline.engine import processes
from agent_pipeline.engine.cuda_graphs import Graphs, takes_graphs
from agent_pipeline.engine.prefix_tree import NodeCount, PrefixTree, padded_tree, prefix_tree
from agent_pipeline.engine.scoring import cached_rows, causal_of, takes_trees
from agent_pipeline.engine.tree_attention import attend_along_trees, layout_of
from agent_pipeline.errors import DataError, ModelError
from agent_pipeline.tokenization.loss_masks import Encoded

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader
    from transformers import PreTrainedModel
    from trl import SFTTrainer

MAX_NODES = 4096
"""Nodes of one tree where activations are recomputed on the way back; a step with more of them is split into several trees."""

HEAD_ROWS = 512
"""Trained positions whose logits are held at once: 100 MB of float32 for a vocabulary of 49,152."""

UNIT = 64
"""Nodes of a tree, and positions at which it is trained, are padded to multiples of this on a CPU: what its libraries keep for each size of
a product is little then, and memory that was given back fits again. A GPU's trees are padded otherwise (`graphs`)."""


def trees_of_step(
    rows: Sequence[Encoded], max_nodes: int = MAX_NODES
) -> list[tuple[PrefixTree, list[int]]]:
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
    tree = NodeCount()
    for index in order:
        larger = tree.with_rows(units[index])
        if groups and larger.nodes <= max_nodes:
            groups[-1].append(index)
        else:
            groups.append([index])
            larger = NodeCount().with_rows(units[index])
        tree = larger
    return groups


def shared_fraction(rows: Sequence[Encoded], step_rows: int, max_nodes: int = MAX_NODES) -> float:
    """The fraction of tokens that trees leave to compute, for steps of `step_rows` consecutive rows; 1.0 where nothing is shared."""
    steps = [rows[start : start + step_rows] for start in range(0, len(rows), step_rows)]
    nodes = sum(len(tree.tokens) for step in steps for tree, _ in trees_of_step(step, max_nodes))
    return nodes / max(sum(len(row.input_ids) for row in rows), 1)


def trains_as_trees(model: "PreTrainedModel", rows: Sequence[Encoded]) -> bool:
    """Whether trees are exact for this model. Rows that share nothing are packed: a tree with several roots."""
    import torch

    one_gpu = (
        processes.count() > 1 or torch.cuda.device_count() < 2
    )  # with several, transformers splits each batch
    return one_gpu and takes_trees(model, max(len(row.input_ids) for row in rows))


def tree_tensors(tree: PrefixTree, device: str = "cpu") -> dict[str, Any]:
    """The model's inputs for a tree on a kind of device, and what attention and the loss need.

    `input_ids` and `position_ids` are (1, nodes), `layout` is a `Layout`. `predictors` (n,) are the nodes whose state predicts a trained
    node, `targets` (n,) its token, `weights` (n,) the number of rows that train it, 0 for padding. `row_of` and `place_of` (m,)
    name, for each trained token of each row, the row and the place in `targets`.
    """
    import torch

    unit = UNIT if device == "cpu" else 1
    tree = padded_tree(tree, unit)
    nodes_of_rows = np.concatenate([row for _, row in tree.trained])
    trained, places = np.unique(nodes_of_rows, return_inverse=True)
    unused = (0, -len(trained) % unit)
    return {
        "input_ids": torch.from_numpy(tree.tokens)[None],
        "position_ids": torch.from_numpy(tree.depths)[None],
        "layout": layout_of(tree),
        "predictors": torch.from_numpy(np.pad(tree.parents[trained], unused)),
        "targets": torch.from_numpy(np.pad(tree.tokens[trained], unused)),
        "weights": torch.from_numpy(np.pad(np.bincount(places), unused)).to(torch.float32),
        "row_of": torch.from_numpy(
            np.repeat([index for index, _ in tree.trained], [len(row) for _, row in tree.trained])
        ),
        "place_of": torch.from_numpy(places),
    }


def tree_loss(causal: "PreTrainedModel", inputs: dict[str, Any]) -> "torch.Tensor":
    """The sum of the negative log-likelihood, in nats, of every trained token of every row in a tree."""
    return (token_losses(causal, inputs) * inputs["weights"]).sum()


def row_log_probs(causal: "PreTrainedModel", inputs: dict[str, Any], rows: int) -> "torch.Tensor":
    """(rows,): the log-probability, in nats, of each row's trained tokens."""
    log_probs = -token_losses(causal, inputs)[inputs["place_of"]]
    return log_probs.new_zeros(rows).index_add(0, inputs["row_of"], log_probs)


def token_losses(causal: "PreTrainedModel", inputs: dict[str, Any]) -> "torch.Tensor":
    """(n,): the negative log-likelihood, in nats, of each trained node of a tree.

    Raises:
        ModelError: the model does not hand the layout to its attention.
    """
    import torch

    body, head, layout = (
        getattr(causal, causal.base_model_prefix),
        causal.get_output_embeddings(),
        inputs["layout"],
    )
    attend_along_trees(causal)
    # A mask of four dimensions is taken as it is. Without one, transformers makes one of all pairs of nodes, which nothing looks at.
    mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=inputs["input_ids"].device)
    given = {name: inputs[name] for name in ("input_ids", "position_ids")} | {
        "attention_mask": mask
    }
    hidden = body(**given, prefix_tree=layout, use_cache=False).last_hidden_state[0]
    if not layout.attended:
        raise ModelError(
            f"{type(causal).__name__} cannot be trained over trees of prefixes: report this as a bug of agent-pipeline."
        )
    states = hidden.index_select(0, inputs["predictors"]).split(HEAD_ROWS)
    return torch.cat(
        [
            head_losses(head, *part)
            for part in zip(states, inputs["targets"].split(HEAD_ROWS), strict=True)
        ]
    )


def head_losses(
    head: "torch.nn.Module", states: "torch.Tensor", targets: "torch.Tensor"
) -> "torch.Tensor":
    """(n,): the cross-entropy of `head(states)` against each target. Logits are not stored.

    Where the head is not trained its gradient is made at once with the loss, a few rows at a time, in the logits' own memory: what stays
    in a CPU's cache takes half of the time. A trained head's logits are computed again on the way back.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.checkpoint import checkpoint

    def losses(states: torch.Tensor) -> torch.Tensor:
        return cross_entropy(head(states).float(), targets, reduction="none")

    class FrozenHead(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, states: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                leaf = states.detach().requires_grad_()
                logits = head(leaf)
            of_logits, computed = logits.detach(), []
            some = cached_rows(logits)
            for rows, about in zip(
                of_logits.split(some), targets[:, None].split(some), strict=True
            ):
                log_probs = rows.log_softmax(-1, dtype=torch.float32)
                computed.append(-log_probs.gather(1, about)[:, 0])
                rows.copy_(
                    log_probs.exp_().scatter_add_(1, about, log_probs.new_full(about.shape, -1.0))
                )
            (gradient,) = torch.autograd.grad(
                logits, leaf, of_logits
            )  # a position's loss depends on its own state only
            ctx.save_for_backward(gradient)
            return torch.cat(computed)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient[:, None].to(ctx.saved_tensors[0].dtype) * ctx.saved_tensors[0]

    if not torch.is_grad_enabled():
        return losses(states)
    trained = any(parameter.requires_grad for parameter in head.parameters())
    return checkpoint(losses, states, use_reentrant=False) if trained else FrozenHead.apply(states)


def tree_trainer(max_nodes: int, **kwargs: Any) -> "SFTTrainer":
    """An `SFTTrainer` whose batch holds all rows of an optimizer step and is computed as trees of at most `max_nodes` nodes; takes
    SFTTrainer's arguments.

    `per_device_train_batch_size` is the number of rows of a step, and `gradient_accumulation_steps` is 1. The data set has the columns
    `input_ids` and `labels`.
    """
    import torch
    from trl import SFTTrainer

    class TreeTrainer(SFTTrainer):
        @cached_property
        def graphs(self) -> Graphs | None:
            return Graphs(self.model, tree_loss) if takes_graphs(self.model) else None

        def get_train_dataloader(self) -> "DataLoader":
            loader = super().get_train_dataloader()
            if (
                processes.count() > 1
            ):  # each process reads all rows of a step, and no row twice to fill the last one
                of_all: Any = loader.batch_sampler
                of_all.num_processes, of_all.process_index, of_all.even_batches = 1, 0, False
            return loader

        def training_step(
            self,
            model: "torch.nn.Module",
            inputs: dict[str, Any],
            num_items_in_batch: "torch.Tensor | int | None" = None,
        ) -> "torch.Tensor":
            model.train()
            causal = causal_of(self.accelerator.unwrap_model(model))
            step_loss = torch.zeros((), device=self.args.device)
            for tree in inputs["trees"]:
                tensors = {name: tensor.to(self.args.device) for name, tensor in tree.items()}
                if self.graphs:
                    step_loss += self.graphs.add_gradients(tensors, inputs["total"])
                    continue
                with self.compute_loss_context_manager():
                    loss = tree_loss(causal, tensors) / inputs["total"]
                self.accelerator.backward(loss)
                step_loss += loss.detach()
            if processes.count() > 1:
                processes.sum_gradients(
                    [parameter for parameter in causal.parameters() if parameter.requires_grad],
                    step_loss,
                )
            self._total_train_tokens += inputs["row_tokens"]
            self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
            return step_loss

    return TreeTrainer(
        data_collator=partial(collate_trees, max_nodes, kwargs["model"].device.type), **kwargs
    )


def collate_trees(max_nodes: int, device: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows of one optimizer step (columns `input_ids`, `labels`): `trees`, the tensors of those trees that
    this process computes, and `total`, the number of trained tokens of all rows."""
    encoded = [
        Encoded(row["input_ids"], [label != -100 for label in row["labels"]], []) for row in rows
    ]
    parts = processes.shares(encoded, processes.count()) if processes.count() > 1 else [encoded]
    trees = [
        [tree_tensors(tree, device) for tree, _ in trees_of_step(part, max_nodes)] for part in parts
    ]
    total = sum(float(tree["weights"].sum()) for part in trees for tree in part)
    return {
        "trees": trees[processes.own_part()],
        "total": total,
        "row_tokens": sum(len(row.input_ids) for row in encoded),
    }


def prove_tree_labels(trainer: "SFTTrainer", rows: list[Encoded]) -> None:
    """Check, on the first batch of the trainer's own data loader, that following each trained node to its root gives our rows' tokens.

    Raises:
        DataError: a tree trains a token that no row trains there, or that fewer rows train.
    """
    batch: dict[str, Any] = next(iter(trainer.get_train_dataloader()))
    expected: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for row in rows:
        for at in range(1, len(row.input_ids)):
            if row.trained[at]:
                expected[tuple(row.input_ids[: at + 1])] += 1
    for tree in batch["trees"]:
        layout = tree["layout"]
        runs = [run.tolist() for run in tree["input_ids"][0].split(layout.runs)]
        starts = [sum(layout.runs[:index]) for index in range(len(runs))]
        for predictor, target, weight in zip(
            *(tree[name].tolist() for name in ("predictors", "targets", "weights")), strict=True
        ):
            run = bisect_right(starts, predictor) - 1
            above = [token for index in layout.ancestors[run] for token in runs[index]]
            if expected[(*above, *runs[run][: predictor - starts[run] + 1], target)] < weight * (
                1 - 1e-5
            ):
                raise DataError(
                    "A tree of prefixes trains other tokens than its rows: report this as a bug of agent-pipeline."
                )
