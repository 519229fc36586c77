"""Layers with a state along a prefix tree: short convolutions, gated delta rules, state spaces.

Such a layer reads a sequence from left to right and carries a state. In a tree, the state at the
beginning of a run is the state at the end of the run above it, and gradients flow back along the
same way. The layers' own code stays as it is. It calls functions of its module, such as
`causal_conv1d_fn`, and passes on the arguments of the forward pass. In a pass over a tree, these
functions are called run by run.

`STATE_LAYERS` lists the classes of layers that were compared with rows that are read one by one.
Which models can be read as a tree belongs to `tree_support`.

References: Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464), Mamba-2 (Dao and Gu 2024, arXiv
2405.21060). The package tree-recurrence (Axolotl AI, Apache-2.0) follows trees in the same
functions; on a CPU it reads each path again from its root.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_pipeline._compat.transformers import follow_layout, looks_up_functions
from agent_pipeline.engine.tree_layout import Layout

if TYPE_CHECKING:
    import torch

CPU_CHUNK = 64
"""Maximum number of tokens per chunk of a scan on a CPU.

A chunk is padded, and computes all pairs of its tokens. The result does not depend on the size.
"""

LayerFunction = Callable[..., Any]
"""A function of transformers that a layer calls."""

TreeFunction = Callable[..., Any]
"""A function that gets a function of transformers, a layout, and the arguments of the function."""


def convolve_runs(
    convolve: LayerFunction,
    layout: Layout,
    states: "torch.Tensor",
    weight: "torch.Tensor",
    *args: object,
    **options: object,
) -> "torch.Tensor":
    """Compute a short causal convolution along a tree.

    Args:
        convolve: The convolution of a sequence.
        layout: The layout of the tree.
        states: The states, (1, channels, nodes).
        weight: The weights, (channels, width).
        *args: Further arguments of the convolution.
        **options: Further options of the convolution.

    Returns:
        The output, (1, channels, nodes).
    """
    import torch

    layout.followed["convolution"] += 1
    layout.run_by_run = True
    history = layout.history(weight.shape[-1] - 1, states.device)
    with_zero = torch.nn.functional.pad(states, (0, 1))
    columns = with_zero.index_select(2, history.nodes)
    output: torch.Tensor = convolve(columns, weight, *args, **options)
    return output.index_select(2, history.own)


def scan_gated_delta_rule(
    scan: LayerFunction,
    layout: Layout,
    *projections: "torch.Tensor",
    g: "torch.Tensor",
    beta: "torch.Tensor",
    **options: Any,
) -> "tuple[torch.Tensor, None]":
    """Compute a gated delta rule along a tree.

    Args:
        scan: The gated delta rule of a sequence, `chunk_gated_delta_rule`.
        layout: The layout of the tree.
        *projections: Queries, keys and values, (1, nodes, heads, size) each.
        g: The logarithm of the decay, (1, nodes, heads).
        beta: The share that is written, (1, nodes, heads).
        **options: Further options of the scan.

    Returns:
        The output, (1, nodes, heads, size), and None instead of a state.
    """
    options |= {"initial_state": None, "output_final_state": False}

    def scan_run(
        parts: "Sequence[torch.Tensor]", state: "torch.Tensor | None", has_children: bool
    ) -> "tuple[torch.Tensor, torch.Tensor | None]":
        query, key, value, decay, share = parts
        run_options = options | {"initial_state": state, "output_final_state": has_children}
        if query.device.type == "cpu":
            run_options["chunk_size"] = _choose_chunk(query.shape[1])
        output, final_state = scan(query, key, value, g=decay, beta=share, **run_options)
        return output, final_state

    return _scan_runs(layout, (*projections, g, beta), scan_run), None


def scan_state_space(
    scan: LayerFunction,
    layout: Layout,
    states: "torch.Tensor",
    dt: "torch.Tensor",
    A: "torch.Tensor",  # noqa: N803  transformers' name
    *projections: "torch.Tensor",
    **options: Any,
) -> "torch.Tensor":
    """Compute the scan of Mamba-2 along a tree.

    Args:
        scan: The scan of a sequence, `mamba_chunk_scan_combined`.
        layout: The layout of the tree.
        states: The states, (1, nodes, heads, size).
        dt: The step sizes, (1, nodes, heads).
        A: The decay of each head, (heads,).
        *projections: B and C, (1, nodes, groups, state size) each.
        **options: Further options of the scan.

    Returns:
        The output, (1, nodes, heads, size).
    """

    def scan_run(
        parts: "Sequence[torch.Tensor]", state: "torch.Tensor | None", has_children: bool
    ) -> "tuple[torch.Tensor, torch.Tensor | None]":
        run_states, run_dt, b, c = parts
        run_options = options | {"initial_states": state, "return_final_states": has_children}
        if run_states.device.type == "cpu":
            run_options["chunk_size"] = _choose_chunk(run_states.shape[1])
        result = scan(run_states, run_dt, A, b, c, **run_options)
        return result if has_children else (result, None)

    return _scan_runs(layout, (states, dt, *projections), scan_run)


def skip_fused_layer(
    fused: LayerFunction, layout: Layout, *args: object, **options: object
) -> None:
    """Return None instead of a layer's output.

    The layer then calls the convolution and the scan, which follow the tree.
    """


def _scan_runs(
    layout: Layout,
    tensors: "Sequence[torch.Tensor]",
    scan_run: "Callable[[Sequence[torch.Tensor], torch.Tensor | None, bool], tuple[torch.Tensor, torch.Tensor | None]]",  # noqa: E501
) -> "torch.Tensor":
    """Scan the runs of a tree, each from the final state of the run above it.

    Args:
        layout: The layout of the tree.
        tensors: The inputs of the scan, (1, nodes, ...) each.
        scan_run: Gets the inputs of a run, its first state, and whether its final state is needed.
            Returns the output and the final state.

    Returns:
        The output, (1, nodes, ...).
    """
    import torch

    layout.followed["scan"] += 1
    layout.run_by_run = True
    parts_of_tensors = [tensor.split(layout.run_lengths, dim=1) for tensor in tensors]
    parts_of_runs = zip(*parts_of_tensors, strict=True)
    with_children = set(layout.parents)
    final_states: dict[int | None, torch.Tensor | None] = {None: None}
    outputs = []
    for run, (parts, parent) in enumerate(zip(parts_of_runs, layout.parents, strict=True)):
        output, final_states[run] = scan_run(parts, final_states[parent], run in with_children)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def _choose_chunk(length: int) -> int:
    """Return the size of the chunks of a run, of which few tokens are padding."""
    return math.ceil(length / math.ceil(length / CPU_CHUNK))


SHORT_CONVOLUTION: Mapping[str, TreeFunction] = {"causal_conv1d_fn": convolve_runs}
GATED_DELTA_NET: Mapping[str, TreeFunction] = {
    "causal_conv1d_fn": convolve_runs,
    "torch_chunk_gated_delta_rule": scan_gated_delta_rule,
}
MAMBA_2: Mapping[str, TreeFunction] = {
    "causal_conv1d_fn": convolve_runs,
    "mamba2_chunk_scan": scan_state_space,
    "mamba2_split_conv1d_scan_combined": skip_fused_layer,
}

STATE_LAYERS: Mapping[str, Mapping[str, TreeFunction]] = {
    "Lfm2ShortConv": SHORT_CONVOLUTION,
    "Lfm2MoeShortConv": SHORT_CONVOLUTION,
    "Qwen3NextGatedDeltaNet": GATED_DELTA_NET,
    "Qwen3_5GatedDeltaNet": GATED_DELTA_NET,
    "Qwen3_5MoeGatedDeltaNet": GATED_DELTA_NET,
    "BambaMixer": MAMBA_2,
    "GraniteMoeHybridMambaLayer": MAMBA_2,
}
"""By class of layer, the functions of transformers that a pass over a tree replaces.

A class is in this table only if a test compares its loss and gradients with row by row.
"""


def list_state_layers(causal: "torch.nn.Module") -> "list[torch.nn.Module]":
    """Return the layers of a model whose state can follow a tree.

    A class of the same name in a model's own code (`trust_remote_code`) is another class.
    """
    return [
        module
        for module in causal.modules()
        if type(module).__name__ in STATE_LAYERS
        and type(module).__module__.startswith("transformers.models.")
        and looks_up_functions(type(module), STATE_LAYERS[type(module).__name__])
    ]


def carry_states_along_trees(causal: "torch.nn.Module") -> None:
    """Make the layers of a model follow a tree if the forward pass has a tree."""
    for layer_class in {type(module) for module in list_state_layers(causal)}:
        for name, function in STATE_LAYERS[layer_class.__name__].items():
            follow_layout(layer_class, name, function)
