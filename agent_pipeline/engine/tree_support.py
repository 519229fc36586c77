"""Which models can be read as a prefix tree with the results of their rows, and why others cannot.

A model is read as a tree only if each kind of its layers is known. An unknown kind of layer is a
reason to read row by row. How layers compute a tree belongs to `tree_attention` and `tree_states`.
"""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_pipeline._compat.transformers import attends_by_interface, attention_name
from agent_pipeline.engine.tree_states import STATE_LAYERS, list_state_layers

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

TREE_ATTENTION = "prefix_tree"
"""Name under which `tree_attention` registers its attention function with transformers."""

ATTENTION_KINDS = ("full_attention", "sliding_attention")
"""Kinds of layers whose attention can follow a tree, by transformers' names."""

STATE_KINDS = ("conv", "linear_attention", "mamba")
"""Kinds of layers that have a state, by transformers' names."""

TOKEN_KINDS = ("mlp", "moe")
"""Kinds of layers that compute each token by itself, by transformers' names."""


@dataclass(frozen=True)
class LayerKinds:
    """The kinds of a model's layers.

    Attributes:
        names: The kind of each layer, by transformers' names.
        windows: How many tokens the attention of each layer sees; None if it sees all tokens.
    """

    names: tuple[str, ...]
    windows: tuple[int | None, ...]


def find_layer_kinds(config: "PreTrainedConfig") -> LayerKinds:
    """Return the kinds of the layers of a model's text part."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    text_config = config.get_text_config()
    window: int | None = getattr(text_config, "sliding_window", None)
    names: list[str] | None = getattr(text_config, "layer_types", None)
    if names is None:
        names = []
        for layer in DynamicCache(config=text_config).layers:
            if type(layer) is DynamicLayer:
                names.append("full_attention")
            elif type(layer) is DynamicSlidingWindowLayer and layer.sliding_window == window:
                names.append("sliding_attention")
            else:
                names.append(type(layer).__name__)
    windows = tuple(window if name == "sliding_attention" else None for name in names)
    return LayerKinds(tuple(names), windows)


def explain_row_by_row(causal: "PreTrainedModel", longest: int) -> str | None:
    """Return why rows of up to `longest` tokens must be read one by one.

    Return None if they can be read as a tree with the same result. The state of a token must then
    depend only on the token's path and on positions. That needs attention through transformers'
    interface without sinks, layers with a known state, and rotations that do not change with the
    length.

    Args:
        causal: The model, without an adapter around it. It can be on the meta device.
        longest: The number of tokens of the longest row.
    """
    config = causal.config.get_text_config()
    rotations = str(getattr(config, "rope_parameters", None))
    softcap = getattr(config, "attn_logit_softcapping", None)
    is_bidirectional = getattr(config, "use_bidirectional_attention", None) in (True, "all")
    # gpt-oss has sinks: a score that belongs to no token, in each softmax.
    has_sinks = any(name.endswith(".sinks") for name, _ in causal.named_parameters())
    # ALiBi models without the interface make their own mask.
    has_interface = causal.is_backend_compatible() or (
        bool(list_state_layers(causal)) and attends_by_interface(causal)
    )
    reasons = {
        "its logits are scaled in a way that is not known": not _is_head_known(config),
        "its rotations change with the length": "dynamic" in rotations or "longrope" in rotations,
        "its attention cannot be replaced": not has_interface
        or attention_name(causal) not in ("sdpa", "eager", TREE_ATTENTION),
        "its attention scores are capped": softcap is not None,
        "its attention sees later tokens": is_bidirectional,
        "its attention has sinks": has_sinks,
    }
    unknown_layer = _find_unknown_layer(causal, longest)
    if unknown_layer is not None:
        return unknown_layer
    return next((reason for reason, applies in reasons.items() if applies), None)


def _is_head_known(config: "PreTrainedConfig") -> bool:
    """Return whether `tree_pass.OutputHead` computes the logits of such a model."""
    if getattr(config, "logit_scale", None):
        return False
    # HyperCLOVA X multiplies where Granite divides.
    is_granite = str(config.model_type).startswith("granite")
    return is_granite or not getattr(config, "logits_scaling", None)


def _find_unknown_layer(causal: "PreTrainedModel", longest: int) -> str | None:
    """Return a sentence about the first layer that cannot follow a tree, or None."""
    kinds = find_layer_kinds(causal.config)
    for name in kinds.names:
        if name not in (*ATTENTION_KINDS, *STATE_KINDS, *TOKEN_KINDS):
            chunk = getattr(causal.config.get_text_config(), "attention_chunk_size", None)
            if name == "chunked_attention" and chunk and chunk >= longest:
                continue
            return f"it has layers of the kind {name}"
    if "sliding_attention" in kinds.names and None in (
        window
        for name, window in zip(kinds.names, kinds.windows, strict=True)
        if name == "sliding_attention"
    ):
        return "it has sliding windows of an unknown size"
    state_layers = list_state_layers(causal)
    states = sum(name in STATE_KINDS for name in kinds.names)
    if states != len(state_layers):
        return f"it has {states} layers with a state, of which {len(state_layers)} are known"
    known = {id(part) for layer in state_layers for part in layer.modules()}
    for name, module in causal.named_modules():
        if id(module) not in known and _looks_recurrent(module):
            return f"its module {name} ({type(module).__name__}) seems to carry a state"
    return None


def _looks_recurrent(module: "torch.nn.Module") -> bool:
    """Return whether a module has a state-space decay, or is a causal depthwise convolution."""
    import torch

    if "A_log" in dict(module.named_parameters(recurse=False)):
        return True
    if not isinstance(module, torch.nn.Conv1d) or not isinstance(module.padding, tuple):
        return False
    width = module.kernel_size[0]
    is_depthwise = module.groups == module.in_channels > 1
    return bool(is_depthwise and width > 1 and module.padding[0] == width - 1)


def expected_computations(causal: "PreTrainedModel") -> Counter[str]:
    """Return how many layers of a forward pass must follow a tree, by kind of computation.

    The names are those of `tree_layout.Layout.followed`.
    """
    kinds = find_layer_kinds(causal.config)
    counts: Counter[str] = Counter()
    counts["attention"] = sum(name not in (*STATE_KINDS, *TOKEN_KINDS) for name in kinds.names)
    for layer in list_state_layers(causal):
        functions = STATE_LAYERS[type(layer).__name__]
        counts["convolution"] += "causal_conv1d_fn" in functions
        counts["scan"] += len(functions) > 1
    return +counts


def supports_passes(causal: "PreTrainedModel", longest: int) -> bool:
    """Return whether a tree can be read in several passes, with the attention states of a cache.

    That needs a model without states, and without a window that is shorter than the longest row.
    """
    return explain_row_by_row(causal, longest) is None and attends_to_all_tokens(causal, longest)


def attends_to_all_tokens(causal: "PreTrainedModel", longest: int) -> bool:
    """Return whether every layer attends to all tokens of a row of `longest` tokens.

    A layer with a shorter window does not, nor does a layer with a state instead of attention.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    for layer in DynamicCache(config=causal.config.get_text_config()).layers:
        has_wide_window = (
            type(layer) is DynamicSlidingWindowLayer and layer.sliding_window >= longest
        )
        if type(layer) is not DynamicLayer and not has_wide_window:
            return False
    return True
