"""Losses and gradients of trees on a GPU, replayed from CUDA graphs.

A pass of a small model, forward and back, is thousands of kernels of some microseconds, which Python starts one by one while the GPU waits.
A graph of them starts at once (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs). Its shapes are fixed, so trees are padded
to few sizes: with nodes of a run of their own, which no other sees and which nothing predicts.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from operator import ge
from typing import TYPE_CHECKING, Any

from agent_pipeline.engine import processes
from agent_pipeline.engine.scoring import causal_of
from agent_pipeline.engine.tree_attention import Layout
from agent_pipeline.engine.varlen_attention import Spans
from agent_pipeline.errors import first_line

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

LEAST = 512, 256, 16, 1024
"""The least nodes, predictors, runs and keys of a graph."""

ROOM = 1.5
"""A tree is padded to so many times its nodes rather than get a graph of its own. What is captured must pay: a training is some dozens of
steps, and what is padded costs less than what Python starts one by one."""

Size = tuple[int, int, int, int]
"""Nodes, predictors, runs and keys."""

ERROR = 0.05
"""Relative, of all gradients. Those of the same tree differ by 0.01 in bfloat16, since a GPU sums in no fixed order; others by 0.5 and
more."""


class Graphs:
    """The gradients of a loss over trees, by a graph for each size of tree.

    The first tree is computed without, and shows whether attention takes fixed shapes (`spans`). So is the first tree of a size: its graph
    is captured, and compared with that. One that differs, or cannot be captured, ends the use of graphs.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        loss: "Callable[[PreTrainedModel, dict[str, Any]], torch.Tensor]",
    ) -> None:
        self._causal, self._loss = causal_of(model), loss
        self._parameters = [
            parameter for parameter in model.parameters() if parameter.requires_grad
        ]
        self._graphs: dict[Size, Graph] = {}
        self._on: bool | None = None

    def add_gradients(self, inputs: dict[str, Any], total: float) -> "torch.Tensor":
        """Add the gradient of the tree's loss / `total` to each parameter's; that loss is returned."""
        import torch

        loss, *gradients = torch._foreach_mul(self._results_by_size(inputs), 1 / total)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return loss

    def _results_by_size(self, inputs: dict[str, Any]) -> "list[torch.Tensor]":
        layout: Layout = inputs["layout"]
        if not self._on:
            results = self._results(inputs)
            self._on = not layout.run_by_run if self._on is None else False
            return results
        counts = counts_of(inputs, layout.spans(inputs["input_ids"].device))
        size = min((each for each in self._graphs if fits(counts, each)), default=None)
        if size:
            return self._graphs[size].replay(padded(inputs, counts, size))
        size = size_of(counts)
        return self._captured(size, padded(inputs, counts, size))

    def _results(self, inputs: dict[str, Any]) -> "list[torch.Tensor]":
        """The loss, and the gradient of each parameter."""
        import torch

        device, dtype = inputs["input_ids"].device.type, self._causal.dtype
        # What autocast keeps of a pass would lie in a graph's memory.
        with torch.autocast(device, dtype, enabled=dtype != torch.float32, cache_enabled=False):
            loss = self._loss(self._causal, inputs)
        # A parameter that no token meets (a vision tower's) has the gradient 0.
        return [loss.detach(), *torch.autograd.grad(loss, self._parameters, materialize_grads=True)]

    def _captured(self, size: Size, tensors: dict[str, Any]) -> "list[torch.Tensor]":
        import torch

        results = self._results(tensors)
        pool = next((graph.pool for graph in self._graphs.values()), None)
        try:
            graph = self._graphs[size] = capture(self._results, tensors, pool)
            pairs = list(zip(graph.replay(tensors), results, strict=True))[1:]
        except RuntimeError as error:  # out of memory, too
            return self._without_graphs(
                results, f"CUDA graphs cannot be captured here ({first_line(error)})"
            )
        off, size_of_all = (
            float(torch.stack([each.norm() for each in some]).norm())
            for some in ([a - b for a, b in pairs], results[1:])
        )
        if not off <= ERROR * size_of_all:
            return self._without_graphs(
                results, "CUDA graphs make other gradients here than PyTorch without"
            )
        return results

    def _without_graphs(self, results: "list[torch.Tensor]", reason: str) -> "list[torch.Tensor]":
        logging.getLogger(__name__).warning("%s: they are not used.", reason)
        self._on, self._graphs = False, {}
        return results


def takes_graphs(model: "PreTrainedModel") -> bool:
    """Whether each pass of the model does the same with other numbers: it is on a GPU, drops nothing by chance, has no experts that are
    chosen by what it reads, and keeps what it computes for the way back (a trained head computes its logits again)."""
    import torch

    if model.device.type != "cuda" or causal_of(model).is_gradient_checkpointing:
        return False
    by_chance = any(isinstance(module, torch.nn.Dropout) and module.p for module in model.modules())
    experts = any(name.rpartition(".")[2] == "experts" for name, _ in model.named_modules())
    head = causal_of(model).get_output_embeddings()
    return (
        not by_chance
        and not experts
        and not any(parameter.requires_grad for parameter in head.parameters())
    )


@dataclass(frozen=True)
class Graph:
    """A captured pass: the tensors that it reads, those that it writes, and the memory that all graphs share."""

    inputs: dict[str, Any]
    results: "list[torch.Tensor]"
    start: Callable[[], None]
    pool: Any

    def replay(self, inputs: dict[str, Any]) -> "list[torch.Tensor]":
        """The results for other inputs of the same size; they are overwritten by the next replay of any graph of the pool."""
        for own, given in zip(_tensors(self.inputs), _tensors(inputs), strict=True):
            own.copy_(given)
        self.start()
        return self.results


def capture(
    results: "Callable[[dict[str, Any]], list[torch.Tensor]]", inputs: dict[str, Any], pool: Any
) -> Graph:
    """The graph of what computes `results` of inputs of this size."""
    import torch

    graph = torch.cuda.CUDAGraph()
    # With several processes another thread of this one watches over their messages, and asks the GPU how far they are.
    with torch.cuda.graph(
        graph, pool=pool, capture_error_mode="thread_local" if processes.count() > 1 else "global"
    ):
        written = results(inputs)
    return Graph(inputs, written, graph.replay, graph.pool())


def _tensors(inputs: dict[str, Any]) -> "list[torch.Tensor]":
    spans: Spans = inputs["layout"].fixed
    own = [each for name, each in inputs.items() if name != "layout"]
    return [
        *own,
        *(each for each in (spans.keys, spans.queries_end, spans.keys_end) if each is not None),
    ]


def counts_of(inputs: dict[str, Any], spans: Spans) -> Size:
    """The nodes, predictors, runs and keys of a tree, and of the run of padding that is added to it, one node at least."""
    nodes = inputs["input_ids"].shape[1]
    keys = nodes if spans.keys is None else len(spans.keys)
    return nodes + 1, len(inputs["predictors"]), len(spans.queries_end), keys + 1


def size_of(counts: Size) -> Size:
    """A graph's size for a tree: its nodes up to a power of two or one and a half of it, and the others, which cost little, up to a power
    of two. There are keys for each node that is added."""
    nodes, predictors, runs, keys = (
        max(count, least) for count, least in zip(counts, LEAST, strict=True)
    )
    half = 1 << (nodes - 1).bit_length() - 2
    nodes = -(-nodes // half) * half
    return (
        nodes,
        power_of_two(predictors),
        power_of_two(runs),
        power_of_two(keys + nodes - counts[0]),
    )


def power_of_two(count: int) -> int:
    """The least that is not below `count`."""
    return 1 << (count - 1).bit_length()


def fits(counts: Size, size: Size) -> bool:
    """Whether a tree is padded to a graph of this size: it has room, and not too much."""
    added = size[0] - counts[0]
    return all(map(ge, size, (*counts[:3], counts[3] + added))) and size[0] <= max(
        LEAST[0], ROOM * counts[0]
    )


def padded(inputs: dict[str, Any], counts: Size, size: Size) -> dict[str, Any]:
    """A tree's tensors, padded to a size. The nodes that are added are a run of their own, which sees all keys that are added; the runs
    after it are empty."""
    import torch
    from torch.nn.functional import pad

    spans: Spans = inputs["layout"].fixed
    nodes = counts[0] - 1
    keys = (
        torch.arange(nodes, device=spans.queries_end.device) if spans.keys is None else spans.keys
    )
    queries_end, keys_end = (
        pad(ends, (0, size[2] - counts[2] + 1), value=end)
        for ends, end in ((spans.queries_end, size[0]), (spans.keys_end, size[3]))
    )
    more, predicting = (0, size[0] - nodes), (0, size[1] - counts[1])
    fixed = Spans(
        pad(keys, (0, size[3] - len(keys)), value=nodes), queries_end, keys_end, size[0], size[3]
    )
    return {
        "input_ids": pad(inputs["input_ids"], more),
        "position_ids": pad(inputs["position_ids"], more),
        "predictors": pad(inputs["predictors"], predicting, value=nodes),
        "targets": pad(inputs["targets"], predicting),
        "weights": pad(inputs["weights"], predicting),
        "layout": Layout([], [], fixed=fixed),
    }
