"""The private parts of transformers do what the hooks need, and have no public replacement yet."""

import inspect

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Trainer

from agent_pipeline._compat.transformers import (
    attends_by_interface,
    attention_name,
    cache_argument,
    current_sdpa,
    follow_layout,
    looks_up_functions,
    original_sdpa,
    preallocated_cache,
    render_jinja,
    replaced_sdpa,
    set_attention,
    set_sampler,
)

IDS = torch.tensor([[1, 2, 3, 4]])


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return LlamaForCausalLM(config).eval()


def test_attention_name(model):
    """The configuration still has no public attribute for the attention in use."""
    assert attention_name(model) == "sdpa"
    assert not hasattr(model.config, "attn_implementation")


def test_set_attention(model):
    """A loaded model calls the new function in each layer, with the mask of sdpa."""
    calls = []

    def attend(module, query, key, value, attention_mask, **options):
        calls.append(module.layer_idx)
        return original_sdpa()(module, query, key, value, attention_mask, **options)

    with torch.no_grad():
        expected = model(IDS).logits
        set_attention(model, "test_attention", attend)
        assert torch.equal(model(IDS).logits, expected)
    assert calls == [0, 1] and attention_name(model) == "test_attention"


def test_replaced_sdpa(model):
    """All models use the replacement for a while, also if an error ends that while."""
    before, calls = current_sdpa(), []

    def attend(module, *args, **options):
        calls.append(module.layer_idx)
        return original_sdpa()(module, *args, **options)

    with pytest.raises(KeyError), torch.no_grad(), replaced_sdpa(attend):
        model(IDS)
        raise KeyError
    assert calls == [0, 1] and current_sdpa() is before


@pytest.mark.parametrize("columns", [1, 4, 9])
def test_preallocated_cache(model, columns):
    """The cache gives the logits of a `DynamicCache`, also if it has to grow."""
    width, more_columns = columns, 2
    cache = preallocated_cache(columns, more_columns)
    with torch.no_grad():
        expected = model(IDS).logits
        for position in range(4):
            tokens = position + 1
            if tokens > width:
                width = tokens + more_columns
            mask = torch.full((1, 1, 1, width), torch.finfo(torch.float32).min)
            mask[..., :tokens] = 0
            logits = model(
                IDS[:, position:tokens],
                attention_mask=mask,
                position_ids=torch.tensor([[position]]),
                **cache_argument(cache),
            ).logits
            assert cache.layers[0].keys.shape[2] == width
            torch.testing.assert_close(logits[:, 0], expected[:, position])


@pytest.mark.filterwarnings("error")
def test_cache_argument(model):
    """The model reads from the cache that it is handed, and warns of no name that will be gone."""
    cache = DynamicCache()
    with torch.no_grad():
        expected = model(IDS).logits
        model(IDS[:, :2], **cache_argument(cache))
        logits = model(IDS[:, 2:], **cache_argument(cache)).logits
    assert cache.get_seq_length() == 4
    torch.testing.assert_close(logits, expected[:, 2:])


def test_dynamic_cache_copies(model):
    """The need for a cache of our own: a `DynamicCache` copies all states with every token."""
    cache = DynamicCache()
    with torch.no_grad():
        model(IDS[:, :2], **cache_argument(cache))
        before = cache.layers[0].keys
        model(IDS[:, 2:3], **cache_argument(cache))
    assert cache.layers[0].keys.data_ptr() != before.data_ptr()


def test_sampler():
    """The trainer asks its private method for the sampler, and still has no argument for it."""
    trainer = Trainer.__new__(Trainer)
    set_sampler(trainer, "a sampler")
    assert trainer._get_train_sampler() == "a sampler"
    assert "_get_train_sampler" in inspect.getsource(Trainer.get_train_dataloader)
    assert not [
        name for name in inspect.signature(Trainer.__init__).parameters if "sampler" in name
    ]


def test_an_empty_conversation_is_rendered():
    """`apply_chat_template` needs a tokenizer, and refuses what comes before a greeting."""
    assert render_jinja("{{ bos }}{% for m in messages %}{{ m }}{% endfor %}", []) == ""
    text = render_jinja("{{ bos }}|{{ tools }}", [], None, special_tokens={"bos": "<s>"})
    assert text == "<s>|None"


def test_follow_layout():
    """A layer calls the replacement of a function of its module, which may have no layout."""
    from transformers import Lfm2Config, Lfm2ForCausalLM
    from transformers.models.lfm2 import modeling_lfm2

    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=["conv", "full_attention"],
    )
    lfm2, layouts = Lfm2ForCausalLM(config).eval(), []

    def follow(original, layout, *args, **options):
        layouts.append(layout)
        return original(*args, **options)

    layer_class = type(lfm2.model.layers[0].conv)
    assert looks_up_functions(layer_class, ["causal_conv1d_fn"])
    assert not looks_up_functions(layer_class, ["mamba2_chunk_scan"])
    function = inspect.unwrap(modeling_lfm2.causal_conv1d_fn)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(modeling_lfm2, "causal_conv1d_fn", function)
        expected = lfm2(IDS).logits
        follow_layout(layer_class, "causal_conv1d_fn", follow)
        replacement = modeling_lfm2.causal_conv1d_fn
        follow_layout(layer_class, "causal_conv1d_fn", follow)
        assert modeling_lfm2.causal_conv1d_fn is replacement
        assert torch.equal(lfm2(IDS).logits, expected) and not layouts
        assert torch.equal(lfm2(IDS, prefix_tree="layout").logits, expected)
    assert layouts == ["layout"]


def test_attends_by_interface(model):
    """Qwen3.5 still does not say that its attention goes through the table of functions."""
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5 import Qwen3_5ForCausalLM

    with torch.device("meta"):
        qwen = Qwen3_5ForCausalLM(Qwen3_5TextConfig(num_hidden_layers=4, hidden_size=64))
    assert attends_by_interface(model)
    assert not qwen.is_backend_compatible() and attends_by_interface(qwen)
