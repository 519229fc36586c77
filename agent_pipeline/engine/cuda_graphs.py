"""Losses and gradients of prefix trees on a GPU, computed by replaying CUDA graphs.

A forward and backward pass of a small model is thousands of kernels of a few microseconds. Python
starts them one by one while the GPU waits. A graph of them starts at once
(https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs). The shapes of a graph are fixed,
so trees are padded to few sizes. The padding is a separate run: no other run sees it, and it
predicts nothing.

The loss itself belongs to `tree_loss`.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_pipeline._compat.torch import multiply_all
from agent_pipeline.engine.scoring import without_adapter
from agent_pipeline.engine.tree_layout import Layout
from agent_pipeline.engine.tree_loss import TreeTensors
from agent_pipeline.engine.tree_support import attends_to_all_tokens
from agent_pipeline.engine.varlen_attention import Spans
from agent_pipeline.errors import first_line

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    LossFunction = Callable[[PreTrainedModel, TreeTensors], torch.Tensor]

MAX_PADDING = 1.5
"""Maximum ratio of padded nodes to real nodes. A tree with a higher ratio gets a CUDA graph of its
own.

A capture must pay off: a training run has some dozens of steps, and computing padding costs less
than letting Python start kernels one by one.
"""

MAX_GRADIENT_ERROR = 0.05
"""Maximum relative difference between the gradients of a CUDA graph and of PyTorch without a graph.

Gradients of the same tree differ by 0.01 in bfloat16, because a GPU sums in no fixed order. Wrong
gradients differ by 0.5 and more.
"""


@dataclass(frozen=True, order=True)
class TreeSize:
    """The sizes of the tensors of a tree or of a CUDA graph.

    Attributes:
        nodes: The number of nodes.
        predictors: The number of nodes that predict a trained node.
        runs: The number of runs.
        keys: The number of keys, over all runs.
    """

    nodes: int
    predictors: int
    runs: int
    keys: int


SMALLEST_GRAPH = TreeSize(nodes=512, predictors=256, runs=16, keys=1024)


class CudaGraphs:
    """A cache of CUDA graphs, one per tree size, that compute gradients of a loss over trees.

    The first tree is computed without a graph, and shows whether attention has fixed shapes
    (`varlen_attention`). The first tree of each size is also computed without a graph. Its graph is
    captured and compared with that result. If a graph differs or cannot be captured, no graphs are
    used from then on.

    Args:
        model: The model. Its parameters that need a gradient get one.
        loss_function: Computes the loss of a tree.
    """

    def __init__(self, model: "PreTrainedModel", loss_function: "LossFunction") -> None:
        self._causal, self._loss_function = without_adapter(model), loss_function
        self._parameters = [
            parameter for parameter in model.parameters() if parameter.requires_grad
        ]
        self._graphs: dict[TreeSize, CapturedGraph] = {}
        self._uses_graphs: bool | None = None  # None: no tree has been computed yet

    def add_gradients(self, tensors: TreeTensors, total: float) -> "torch.Tensor":
        """Add the gradients of the tree's loss, divided by `total`, to the parameters' gradients.

        Returns:
            The loss divided by `total`.
        """
        loss, *gradients = multiply_all(self._compute(tensors), 1 / total)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad = parameter.grad.add_(gradient)
        return loss

    def _compute(self, tensors: TreeTensors) -> "list[torch.Tensor]":
        """Return the loss and each parameter's gradient, computed by a CUDA graph if possible."""
        layout = tensors["layout"]
        if not self._uses_graphs:
            results = self._compute_without_graph(tensors)
            if self._uses_graphs is None:
                self._uses_graphs = not layout.run_by_run
            return results
        size = measure_tree(tensors, layout.spans(tensors["input_ids"].device))
        fitting_sizes = [graph_size for graph_size in self._graphs if fits(size, graph_size)]
        if fitting_sizes:
            graph_size = min(fitting_sizes)
            return self._graphs[graph_size].replay(pad_tensors(tensors, size, graph_size))
        graph_size = choose_graph_size(size)
        return self._capture_and_compare(graph_size, pad_tensors(tensors, size, graph_size))

    def _compute_without_graph(self, tensors: TreeTensors) -> "list[torch.Tensor]":
        import torch

        device, dtype = tensors["input_ids"].device.type, self._causal.dtype
        # The tensors that autocast caches during a pass would lie in the memory of a graph.
        with torch.autocast(device, dtype, enabled=dtype != torch.float32, cache_enabled=False):
            loss = self._loss_function(self._causal, tensors)
        # A parameter that no token meets (a vision tower's) has the gradient 0.
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        return [loss.detach(), *gradients]

    def _capture_and_compare(
        self, graph_size: TreeSize, tensors: TreeTensors
    ) -> "list[torch.Tensor]":
        """Capture the CUDA graph for a tree size.

        Return the results that were computed without the graph.
        """
        results = self._compute_without_graph(tensors)
        pool = next((graph.pool for graph in self._graphs.values()), None)
        try:
            graph = capture(self._compute_without_graph, tensors, pool)
            self._graphs[graph_size] = graph
            graph_results = graph.replay(tensors)
            differences = [
                by_graph - without
                for by_graph, without in zip(graph_results[1:], results[1:], strict=True)
            ]
        except RuntimeError as error:  # out of memory, too
            self._stop_using_graphs(f"CUDA graphs cannot be captured here ({first_line(error)})")
            return results
        if not total_norm(differences) <= MAX_GRADIENT_ERROR * total_norm(results[1:]):
            self._stop_using_graphs("CUDA graphs make other gradients here than PyTorch without")
        return results

    def _stop_using_graphs(self, reason: str) -> None:
        logging.getLogger(__name__).warning("%s: they are not used.", reason)
        self._uses_graphs, self._graphs = False, {}


def total_norm(tensors: "Sequence[torch.Tensor]") -> float:
    """Return the norm of all tensors, taken together as one vector."""
    import torch

    return float(torch.stack([tensor.norm() for tensor in tensors]).norm())


def supports_graphs(model: "PreTrainedModel") -> bool:
    """Return whether every pass of the model starts the same GPU kernels.

    The model must be on a GPU, have no dropout, have no experts that are chosen by what the model
    reads, and keep its activations for the backward pass. A trained head computes its logits again.
    Windows and layers with a state are computed run by run, which makes other kernels of each tree.
    """
    import torch

    causal = without_adapter(model)
    if model.device.type != "cuda" or causal.is_gradient_checkpointing:
        return False
    config = causal.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or sys.maxsize
    if not attends_to_all_tokens(causal, longest):
        return False
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout) and module.p:
            return False
        if name.rpartition(".")[2] == "experts":
            return False
    head = causal.get_output_embeddings()
    return not any(parameter.requires_grad for parameter in head.parameters())


@dataclass(frozen=True)
class CapturedGraph:
    """A computation that was captured as a CUDA graph.

    Attributes:
        inputs: The tensors that the pass reads.
        results: The tensors that the pass writes: the loss, and the gradient of each parameter.
        start: Starts the pass.
        pool: The memory that all graphs share.
    """

    inputs: TreeTensors
    results: "list[torch.Tensor]"
    start: Callable[[], None]
    pool: object

    def replay(self, tensors: TreeTensors) -> "list[torch.Tensor]":
        """Return the results for another tree that has the size of the captured tree.

        The next replay of any graph of the pool overwrites them.
        """
        for graph_input, tensor in zip(
            _input_tensors(self.inputs), _input_tensors(tensors), strict=True
        ):
            graph_input.copy_(tensor)
        self.start()
        return self.results


def capture(
    compute: "Callable[[TreeTensors], list[torch.Tensor]]", tensors: TreeTensors, pool: object
) -> CapturedGraph:
    """Capture a computation as a CUDA graph.

    Args:
        compute: The computation.
        tensors: Its inputs. The graph reads these tensors at each replay.
        pool: The memory of the other graphs, or None.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    # With several processes, another thread of this process watches their messages and calls the
    # GPU meanwhile. That call must not end the capture.
    error_mode = "thread_local" if torch.distributed.is_initialized() else "global"
    with torch.cuda.graph(graph, pool=pool, capture_error_mode=error_mode):
        results = compute(tensors)
    return CapturedGraph(tensors, results, graph.replay, graph.pool())


def _input_tensors(tensors: TreeTensors) -> "list[torch.Tensor]":
    """Return all tensors of a tree and its layout, in a fixed order."""
    spans = tensors["layout"].fixed
    assert spans is not None
    input_tensors: list[torch.Tensor] = [
        tensor for name, tensor in tensors.items() if name != "layout"
    ]
    if spans.keys is not None:
        input_tensors.append(spans.keys)
    return [*input_tensors, spans.queries_end, spans.keys_end]


def measure_tree(tensors: TreeTensors, spans: Spans) -> TreeSize:
    """Return a tree's size with the smallest possible run of padding: one node and one key."""
    nodes = tensors["input_ids"].shape[1]
    keys = nodes if spans.keys is None else len(spans.keys)
    # `queries_end` begins with 0, so its length is the number of runs plus the run of padding.
    return TreeSize(nodes + 1, len(tensors["predictors"]), len(spans.queries_end), keys + 1)


def choose_graph_size(size: TreeSize) -> TreeSize:
    """Return the size of a new CUDA graph that has room for a tree.

    The nodes, which cost most, are rounded up to a power of two, or to one and a half of a power of
    two. The other sizes are rounded up to powers of two. Each node of padding also needs a key.
    """
    needed_nodes = max(size.nodes, SMALLEST_GRAPH.nodes)
    # Multiples of a quarter of the next power of two that are above its half: 3/4 of it, or all of
    # it.
    quarter = next_power_of_two(needed_nodes) // 4
    nodes = -(-needed_nodes // quarter) * quarter
    needed_keys = max(size.keys, SMALLEST_GRAPH.keys) + nodes - size.nodes
    return TreeSize(
        nodes,
        next_power_of_two(max(size.predictors, SMALLEST_GRAPH.predictors)),
        next_power_of_two(max(size.runs, SMALLEST_GRAPH.runs)),
        next_power_of_two(needed_keys),
    )


def next_power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`. `count` is at least 1."""
    return 1 << (count - 1).bit_length()


def fits(size: TreeSize, graph_size: TreeSize) -> bool:
    """Return whether a CUDA graph has room for a tree without too much padding."""
    added_nodes = graph_size.nodes - size.nodes
    has_room = (
        graph_size.nodes >= size.nodes
        and graph_size.predictors >= size.predictors
        and graph_size.runs >= size.runs
        and graph_size.keys >= size.keys + added_nodes
    )
    most_nodes = max(SMALLEST_GRAPH.nodes, MAX_PADDING * size.nodes)
    return has_room and graph_size.nodes <= most_nodes


def pad_tensors(tensors: TreeTensors, size: TreeSize, graph_size: TreeSize) -> TreeTensors:
    """Return the tensors of a tree, padded to the size of a CUDA graph.

    The added nodes form a separate run, which sees all added keys. The runs behind it are empty.

    Args:
        tensors: The tensors of the tree.
        size: The size of the tree, by `measure_tree`.
        graph_size: The size of the graph.
    """
    import torch
    from torch.nn.functional import pad

    spans = tensors["layout"].fixed
    assert spans is not None
    nodes = size.nodes - 1  # without the smallest run of padding
    keys = spans.keys
    if keys is None:
        keys = torch.arange(nodes, device=spans.queries_end.device)
    added_runs = (0, graph_size.runs - size.runs + 1)
    added_nodes = (0, graph_size.nodes - nodes)
    added_predictors = (0, graph_size.predictors - size.predictors)
    fixed = Spans(
        pad(keys, (0, graph_size.keys - len(keys)), value=nodes),
        pad(spans.queries_end, added_runs, value=graph_size.nodes),
        pad(spans.keys_end, added_runs, value=graph_size.keys),
        graph_size.nodes,
        graph_size.keys,
    )
    padded: dict[str, object] = {
        "input_ids": pad(tensors["input_ids"], added_nodes),
        "position_ids": pad(tensors["position_ids"], added_nodes),
        "predictors": pad(tensors["predictors"], added_predictors, value=nodes),
        "targets": pad(tensors["targets"], added_predictors),
        "weights": pad(tensors["weights"], added_predictors),
        "layout": Layout([], [], fixed=fixed),
    }
    return padded  # type: ignore[return-value]  # the loss of a step needs no `row_of`, `place_of`
