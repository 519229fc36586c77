"""Uses of private parts of transformers: functions of layers, caches and samplers.

What attends, caches or samples with these belongs to `engine` and `training.trainers`.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import Cache, PreTrainedModel, Trainer

    AttentionFunction = Callable[..., tuple[torch.Tensor, None]]


def attention_name(causal: "PreTrainedModel") -> str:
    """Return the name of the attention implementation that a model uses, such as `sdpa`.

    `config.attn_implementation` can be set, but only the private attribute tells what is in use.
    """
    return str(causal.config.get_text_config()._attn_implementation)


def set_attention(causal: "PreTrainedModel", name: str, attention: "AttentionFunction") -> None:
    """Make a loaded model use our own attention function.

    `set_attn_implementation` would look for a kernel of this name on the hub. The mask of the new
    attention is that of `sdpa`.

    Args:
        causal: The model, without an adapter around it.
        name: The name under which the function is registered.
        attention: The function, with the parameters of transformers' attention functions.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)
    causal.config.get_text_config()._attn_implementation = name


def current_sdpa() -> "AttentionFunction":
    """Return the function that models currently call for the attention `sdpa`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    function: AttentionFunction = ALL_ATTENTION_FUNCTIONS["sdpa"]
    return function


def original_sdpa() -> "AttentionFunction":
    """Return the original function of transformers for the attention `sdpa`."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    function: AttentionFunction = sdpa_attention_forward
    return function


def looks_up_functions(layer_class: type, names: Iterable[str]) -> bool:
    """Return whether a class of layers looks up functions of these names in its own module.

    Only then can `follow_layout` replace the functions. In another version of transformers, a layer
    may have its own code instead, or a package may replace the layer's `forward`.
    """
    forward = inspect.unwrap(layer_class.forward)  # type: ignore[attr-defined]
    module = sys.modules[layer_class.__module__]
    looked_up = forward.__code__.co_names
    return forward.__module__ == layer_class.__module__ and all(
        name in looked_up and hasattr(module, name) for name in names
    )


def attends_by_interface(causal: "PreTrainedModel") -> bool:
    """Return whether all attention of a model goes through transformers' table of functions.

    Most models say so by `is_backend_compatible`. Qwen3.5 and Bamba do not, but each of their
    attention modules looks up its function in the table.
    """
    if causal.is_backend_compatible():
        return True
    attention_classes = {
        type(module) for module in causal.modules() if type(module).__name__.endswith("Attention")
    }
    return bool(attention_classes) and all(
        looks_up_functions(attention_class, ["ALL_ATTENTION_FUNCTIONS"])
        for attention_class in attention_classes
    )


def follow_layout(layer_class: type, name: str, follow: Callable[..., object]) -> None:
    """Replace a function that a class of layers looks up in its own module.

    Models have no interface for the functions of layers with a state, as they have for attention.
    If the forward pass has no layout (`prefix_tree`), the replacement calls the original function.

    Args:
        layer_class: The class of layers.
        name: The name of the function.
        follow: Gets the original function, the layout, and the arguments of the function.
    """
    module = sys.modules[layer_class.__module__]
    original = getattr(module, name)
    if getattr(original, "follows_layout", False):
        return

    @wraps(original)
    def replacement(*args: object, prefix_tree: object = None, **options: object) -> object:
        if prefix_tree is None:
            return original(*args, **options)
        return follow(original, prefix_tree, *args, **options)

    vars(replacement)["follows_layout"] = True
    setattr(module, name, replacement)


@contextmanager
def replaced_sdpa(attention: "AttentionFunction") -> Iterator[None]:
    """Temporarily replace the attention function `sdpa` of all models.

    A registration under another name would need a change to the configuration of each model, and
    models that are loaded in between would miss the change.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = attention
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = before


def cache_argument(cache: "Cache") -> "dict[str, Cache]":
    """Return the keyword argument that hands a cache to a model's `forward`.

    transformers 5.24 renamed `past_key_values` to `cache`. The old name warns, and ends with 5.40.
    """
    from transformers.modeling_outputs import BaseModelOutputWithPast

    names = {field.name for field in fields(BaseModelOutputWithPast)}
    return {"cache" if "cache" in names else "past_key_values": cache}


def preallocated_cache(columns: int, more_columns: int) -> "Cache":
    """Return a cache whose layers have room for `columns` tokens from the beginning.

    Attention sees all columns, the unused ones included. A `DynamicCache` copies all keys and
    values with every token, which takes as long as their use. A `StaticCache` cannot be cropped,
    and cannot drop sequences.

    Args:
        columns: Tokens that the layers have room for.
        more_columns: Tokens by which a full layer grows.
    """
    from transformers import Cache
    from transformers.cache_utils import DynamicLayer

    class PreallocatedLayer(DynamicLayer):
        """The keys and values of a layer. Only the first `used` columns are in use."""

        used = 0

        def update(
            self,
            key_states: "torch.Tensor",
            value_states: "torch.Tensor",
            *args: object,
            **kwargs: object,
        ) -> "tuple[torch.Tensor, torch.Tensor]":
            end = self.used + key_states.shape[-2]
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
                room = max(columns, end)
                self.keys = _with_room(key_states[:, :, :0], room)
                self.values = _with_room(value_states[:, :, :0], room)
            elif end > self.keys.shape[-2]:
                self.keys = _with_room(self.keys, end + more_columns)
                self.values = _with_room(self.values, end + more_columns)
            self.keys[:, :, self.used : end] = key_states
            self.values[:, :, self.used : end] = value_states
            self.used = end
            return self.keys, self.values

        def get_seq_length(self) -> int:
            return self.used

        def crop(self, tokens_to_remove: int) -> None:
            """Remove the last tokens. `tokens_to_remove` is negative, as in `DynamicLayer`."""
            self.used += tokens_to_remove

    return Cache(layer_class_to_replicate=PreallocatedLayer)


def _with_room(states: "torch.Tensor", columns: int) -> "torch.Tensor":
    """Return states, (sequences, heads, tokens, size), padded with zeros to `columns` tokens.

    Attention multiplies unused columns by 0, so these must hold numbers.
    """
    wide = states.new_zeros(*states.shape[:2], columns, states.shape[3])
    wide[:, :, : states.shape[2]] = states
    return wide


def set_sampler(trainer: "Trainer", sampler: object) -> None:
    """Make a trainer read its training rows in the order of our own sampler.

    transformers has no argument for a sampler: subclasses override `_get_train_sampler`. The
    trainer is TRL's, so an instance attribute is shorter than a subclass of each.
    """
    trainer._get_train_sampler = lambda dataset=None: sampler


def render_jinja(
    jinja: str,
    messages: "Sequence[Mapping[str, object]]",
    tools: "Sequence[Mapping[str, object]] | None" = None,
    *,
    add_generation_prompt: bool = False,
    special_tokens: "Mapping[str, str] | None" = None,
) -> str:
    """Return a conversation as text, rendered by a chat template.

    `apply_chat_template` cannot be used: it refuses an empty conversation, which is what comes
    before a greeting of the assistant, and it needs a tokenizer. `render_jinja` calls the function
    below, which transformers does not document.

    Args:
        jinja: The chat template.
        messages: The conversation.
        tools: The tools that the template shows.
        add_generation_prompt: Whether the text ends where the assistant is to answer.
        special_tokens: Special tokens that the template may name, such as `bos_token`.

    Raises:
        Exception: Whatever the template raises; a template is a program.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, _ = render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=jinja,
        add_generation_prompt=add_generation_prompt,
        **(special_tokens or {}),
    )
    return str(texts[0])
