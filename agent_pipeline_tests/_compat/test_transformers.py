"""The private parts of transformers do what the hooks need, and have no public replacement yet."""

import inspect

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Trainer

from agent_pipeline._compat.transformers import (
    attention_name,
    cache_argument,
    current_sdpa,
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
