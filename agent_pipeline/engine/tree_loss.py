"""The loss of rows that are laid out as prefix trees, with its gradients.

The rows of an agent begin with one system prompt and one list of tools, and the trials of a task
with the same turns. A causal model computes the same states for the same prefix. The rows of an
optimizer step are therefore laid out as one sequence in which each distinct prefix exists once.
Every token attends to its own ancestors only, and positions count the depth in the row (tree
attention: Miao et al. 2024, SpecInfer). The output head runs at the trained positions only. The
gradients are those of row-by-row training, up to the order of floating-point sums.

The trainer that uses this loss belongs to `training.trainers`, the layout of attention to
`tree_attention`, and losses without gradients to `scoring`.
"""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np

from agent_pipeline.engine.prefix_tree import MAX_NODES, PrefixTree, pad_tree, trees_of_step
from agent_pipeline.engine.scoring import cached_rows, without_adapter
from agent_pipeline.engine.tree_layout import Layout, lay_out
from agent_pipeline.engine.tree_pass import OutputHead, read_tree
from agent_pipeline.engine.tree_support import explain_row_by_row
from agent_pipeline.tokenization.loss_masks import Encoded

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

HEAD_ROWS = 512
"""Number of trained positions whose logits are in memory at the same time. For 49,152 tokens, the
logits take 100 MB of float32.
"""

UNIT = 64
"""Multiple to which the nodes and the trained positions of a tree are padded on a CPU.

CPU libraries keep buffers for each size of a product. With few sizes these buffers stay small, and
freed memory can be reused. The trees of a GPU are padded in `cuda_graphs`.
"""


class TreeTensors(TypedDict):
    """A tree as tensors: the model's inputs, and the inputs of attention and of the loss.

    Keys:
        input_ids: The tokens, (1, nodes).
        position_ids: The depths, (1, nodes).
        layout: How attention sees the tree.
        predictors: The nodes whose states predict a trained node, (n,).
        targets: The token of each trained node, (n,).
        weights: How many rows train each node, (n,) float32; 0 for padding.
        row_of: For each trained token of each row, the index of the row, (m,).
        place_of: For each trained token of each row, its position in `targets`, (m,).
    """

    input_ids: "torch.Tensor"
    position_ids: "torch.Tensor"
    layout: Layout
    predictors: "torch.Tensor"
    targets: "torch.Tensor"
    weights: "torch.Tensor"
    row_of: "torch.Tensor"
    place_of: "torch.Tensor"


def share_rows(rows: Sequence[Encoded], process_count: int) -> list[list[Encoded]]:
    """Distribute the rows of an optimizer step among processes.

    The shares have about equally many tokens, and rows with a common prefix stay together.

    Returns:
        The rows of each process, in the order of the ranks. A share may be empty.
    """
    ordered_rows = sorted(rows, key=lambda row: row.input_ids)
    ends = list(accumulate(len(row.input_ids) for row in ordered_rows))
    shares: list[list[Encoded]] = [[] for _ in range(process_count)]
    for row, end in zip(ordered_rows, ends, strict=True):
        middle = end - len(row.input_ids) / 2
        rank = min(int(middle * process_count / ends[-1]), process_count - 1)
        shares[rank].append(row)
    return shares


def shared_fraction(rows: Sequence[Encoded], step_rows: int, max_nodes: int = MAX_NODES) -> float:
    """Return the fraction of tokens that remain to be computed if steps are laid out as trees.

    Args:
        rows: The rows of a training run, in order.
        step_rows: Rows per optimizer step.
        max_nodes: Maximum number of nodes per tree.

    Returns:
        The fraction; 1.0 if the rows share nothing.
    """
    nodes = 0
    for start in range(0, len(rows), step_rows):
        trees = trees_of_step(rows[start : start + step_rows], max_nodes)
        nodes += sum(len(group.tree.tokens) for group in trees)
    return nodes / max(sum(len(row.input_ids) for row in rows), 1)


def trains_as_trees(
    model: "PreTrainedModel", rows: Sequence[Encoded], process_count: int = 1
) -> bool:
    """Return whether training on trees gives exact results for this model."""
    return explain_no_trees(model, rows, process_count) is None


def explain_no_trees(
    model: "PreTrainedModel", rows: Sequence[Encoded], process_count: int = 1
) -> str | None:
    """Return why this model is trained row by row; None if it is trained on trees.

    Rows that share nothing are packed: their tree has several roots. If one process sees several
    GPUs, transformers splits each batch among them, and the rows of a step never meet.

    Args:
        model: The model. It can be on the meta device.
        rows: The rows of a training run.
        process_count: The number of processes.
    """
    import torch

    if process_count == 1 and torch.cuda.device_count() > 1:
        return "one process computes on several GPUs"
    return explain_row_by_row(without_adapter(model), max(len(row.input_ids) for row in rows))


def tree_tensors(tree: PrefixTree, device: str = "cpu") -> TreeTensors:
    """Convert a tree into tensors, padded for a type of device (`cpu` or `cuda`)."""
    import torch

    unit = UNIT if device == "cpu" else 1
    tree = pad_tree(tree, unit)
    nodes_of_rows = np.concatenate([row.nodes for row in tree.trained])
    trained_nodes, places = np.unique(nodes_of_rows, return_inverse=True)
    padding = (0, -len(trained_nodes) % unit)
    row_indices = np.repeat(
        [row.row_index for row in tree.trained], [len(row.nodes) for row in tree.trained]
    )
    return {
        "input_ids": torch.from_numpy(tree.tokens)[None],
        "position_ids": torch.from_numpy(tree.depths)[None],
        "layout": lay_out(tree),
        "predictors": torch.from_numpy(np.pad(tree.parents[trained_nodes], padding)),
        "targets": torch.from_numpy(np.pad(tree.tokens[trained_nodes], padding)),
        "weights": torch.from_numpy(np.pad(np.bincount(places), padding)).to(torch.float32),
        "row_of": torch.from_numpy(row_indices),
        "place_of": torch.from_numpy(places),
    }


def move_tensors(tensors: TreeTensors, device: "torch.device | str") -> TreeTensors:
    """Copy the tensors of a tree to a device."""
    values = cast("dict[str, Any]", tensors)
    moved = {name: value.to(device) for name, value in values.items()}
    return cast("TreeTensors", moved)


def tree_loss(causal: "PreTrainedModel", tensors: TreeTensors) -> "torch.Tensor":
    """Return the negative log-likelihood in nats, summed over the trained tokens of all rows."""
    return (token_losses(causal, tensors) * tensors["weights"]).sum()


def row_log_probs(
    causal: "PreTrainedModel", tensors: TreeTensors, row_count: int
) -> "torch.Tensor":
    """Return the log-probability in nats of the trained tokens of each row, (row_count,)."""
    log_probs = -token_losses(causal, tensors)[tensors["place_of"]]
    return log_probs.new_zeros(row_count).index_add(0, tensors["row_of"], log_probs)


def token_losses(causal: "PreTrainedModel", tensors: TreeTensors) -> "torch.Tensor":
    """Return the negative log-likelihood in nats of each trained node of a tree, (n,).

    Raises:
        ModelError: the model does not hand the layout to all of its layers.
    """
    import torch

    nodes = read_tree(causal, tensors["input_ids"], tensors["position_ids"], tensors["layout"])
    head = OutputHead(causal)
    states = nodes.index_select(0, tensors["predictors"])
    state_parts = states.split(HEAD_ROWS)
    target_parts = tensors["targets"].split(HEAD_ROWS)
    return torch.cat(
        [
            head_losses(head, state_part, target_part)
            for state_part, target_part in zip(state_parts, target_parts, strict=True)
        ]
    )


def head_losses(
    head: OutputHead, states: "torch.Tensor", targets: "torch.Tensor"
) -> "torch.Tensor":
    """Return the cross-entropy of `head(states)` against each target, without storing all logits.

    If the head is frozen, its gradient is computed together with the loss. If the head is trained,
    its logits are computed again in the backward pass.

    Args:
        head: The output head.
        states: Hidden states, (n, hidden size).
        targets: Tokens, (n,).

    Returns:
        The losses in nats, (n,).
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.checkpoint import checkpoint

    def losses(states: "torch.Tensor") -> "torch.Tensor":
        return cross_entropy(head(states).float(), targets, reduction="none")

    if not torch.is_grad_enabled():
        return losses(states)
    if any(parameter.requires_grad for parameter in head.parameters()):
        recomputed: torch.Tensor = checkpoint(losses, states, use_reentrant=False)
        return recomputed
    frozen: torch.Tensor = _frozen_head_losses().apply(states, head, targets)
    return frozen


@cache
def _frozen_head_losses() -> "type[torch.autograd.Function]":
    import torch

    class FrozenHeadLosses(torch.autograd.Function):
        """The losses of an output head whose weights need no gradient.

        The gradient of the states is computed in the forward pass, a few rows at a time, in the
        memory of the logits. Rows that fit into a CPU's cache take half of the time.
        """

        @staticmethod
        def forward(
            ctx: Any, states: "torch.Tensor", head: OutputHead, targets: "torch.Tensor"
        ) -> "torch.Tensor":
            with torch.enable_grad():
                leaf = states.detach().requires_grad_()
                logits = head(leaf)
            logit_gradients, losses = logits.detach(), []
            rows_at_once = cached_rows(logits)
            parts = zip(
                logit_gradients.split(rows_at_once),
                targets[:, None].split(rows_at_once),
                strict=True,
            )
            for rows, row_targets in parts:
                log_probs = rows.log_softmax(-1, dtype=torch.float32)
                losses.append(-log_probs.gather(1, row_targets)[:, 0])
                # The gradient of cross-entropy: the probabilities, minus 1 at the target.
                minus_one = log_probs.new_full(row_targets.shape, -1.0)
                rows.copy_(log_probs.exp_().scatter_add_(1, row_targets, minus_one))
            # A position's loss depends on its own state only, so one gradient serves all positions.
            (gradient,) = torch.autograd.grad(logits, leaf, logit_gradients)
            ctx.save_for_backward(gradient)
            return torch.cat(losses)

        @staticmethod
        def backward(ctx: Any, loss_gradients: "torch.Tensor") -> "tuple[torch.Tensor, None, None]":
            (gradient,) = ctx.saved_tensors
            return loss_gradients[:, None].to(gradient.dtype) * gradient, None, None

    return FrozenHeadLosses
