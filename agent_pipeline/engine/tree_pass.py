"""One forward pass of a model over a prefix tree, and the logits of its states.

Losses belong to `tree_loss` (with gradients) and `scoring` (without).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent_pipeline.engine.tree_attention import attend_along_trees
from agent_pipeline.engine.tree_layout import Layout
from agent_pipeline.engine.tree_states import carry_states_along_trees
from agent_pipeline.engine.tree_support import expected_computations, find_layer_kinds
from agent_pipeline.errors import ModelError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def read_tree(
    causal: "PreTrainedModel",
    input_ids: "torch.Tensor",
    position_ids: "torch.Tensor",
    layout: Layout,
) -> "torch.Tensor":
    """Return the last hidden state of each node of a tree, (nodes, hidden size).

    Args:
        causal: The model, without an adapter around it.
        input_ids: The tokens, (1, nodes).
        position_ids: The depths, (1, nodes).
        layout: The layout of the tree.

    Raises:
        ModelError: the model does not hand the layout to all of its layers.
    """
    import torch

    body = getattr(causal, causal.base_model_prefix)
    attend_along_trees(causal)
    carry_states_along_trees(causal)
    layout.windows = find_layer_kinds(causal.config).windows
    layout.followed.clear()
    # transformers uses a mask of four dimensions as it is. Without a mask, it makes one of all
    # pairs of nodes, which nothing reads. Layers with a state take no such mask.
    unused_mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=input_ids.device)
    output = body(
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=unused_mask,
        prefix_tree=layout,
        use_cache=False,
    )
    expected = expected_computations(causal)
    is_plain = not any(layout.windows) and expected.keys() == {"attention"}
    if layout.followed != expected and not (is_plain and layout.attended):
        raise ModelError(
            f"{type(causal).__name__} cannot be read as a tree of prefixes: report this as a "
            "bug of agent-pipeline."
        )
    states: torch.Tensor = output.last_hidden_state[0]
    return states


class OutputHead:
    """A model's output head, including the functions that some models apply to the logits.

    Args:
        causal: The model, without an adapter around it.
    """

    def __init__(self, causal: "PreTrainedModel") -> None:
        config = causal.config.get_text_config()
        self._module = causal.get_output_embeddings()
        self._divisor: float | None = getattr(config, "logits_scaling", None)
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)

    def __call__(self, states: "torch.Tensor") -> "torch.Tensor":
        """Return the logits, (n, vocabulary), of states, (n, hidden size)."""
        logits: torch.Tensor = self._module(states)
        if self._divisor:
            logits = logits / self._divisor
        if self._cap:
            logits = (logits / self._cap).tanh() * self._cap
        return logits

    def parameters(self) -> "Iterator[torch.nn.Parameter]":
        """Yield the weights of the head."""
        yield from self._module.parameters()
