"""A step of several processes, each with a GPU of its own (data parallelism).

Each process reads all rows of an optimizer step in the same order and computes the gradients of its share, which are summed: a step is that
of one process, up to the order of sums. `training.launch` starts the processes; they know of each other by the variables that
`accelerate launch` sets.
"""

import os
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from agent_pipeline.tokenization.loss_masks import Encoded

if TYPE_CHECKING:
    import torch


def count() -> int:
    """The processes of this training."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def shares(rows: Sequence[Encoded], processes: int) -> list[list[Encoded]]:
    """The rows of a step for each process, of about as many tokens each. Rows that begin alike stay together."""
    ordered = sorted(rows, key=lambda row: row.input_ids)
    ends = list(accumulate(len(row.input_ids) for row in ordered))
    parts: list[list[Encoded]] = [[] for _ in range(processes)]
    for row, end in zip(ordered, ends, strict=True):
        middle = end - len(row.input_ids) / 2
        parts[min(int(middle * processes / ends[-1]), processes - 1)].append(row)
    return parts


def own_part() -> int:
    """Which of the shares is this process's."""
    return int(os.environ.get("RANK", "0"))


def sum_gradients(parameters: "Sequence[torch.nn.Parameter]", loss: "torch.Tensor") -> None:
    """Make each parameter's gradient, and the loss, the sum of those of all processes."""
    import torch
    from torch import distributed

    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    both = torch.cat(
        [loss.reshape(1).to(gradients[0].dtype), *(each.flatten() for each in gradients)]
    )
    distributed.all_reduce(both)
    loss.copy_(both[0])
    for parameter, gradient in zip(
        parameters, both[1:].split([each.numel() for each in parameters]), strict=True
    ):
        parameter.grad = gradient.view_as(parameter).contiguous()
