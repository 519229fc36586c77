"""Texts as the base model sees them."""

import numpy as np
import pytest

from agent_pipeline.engine import hidden_states as module
from agent_pipeline.engine.hidden_states import (
    encode_texts,
    group_by_length,
    hidden_state_encoder,
)
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model

TEXTS = ["How is Oslo?", "", "It is sunny in Rome, and it will be for days.", "half of \ud83d"]


@pytest.fixture(scope="module")
def model(tiny_base):
    return load_model(tiny_base, probe_device())


def states(model, tokenizer, text, size=None) -> np.ndarray:
    """The sum over tokens, one window at a time, from the model's own list of hidden states."""
    import torch

    ids = tokenizer(text, add_special_tokens=False).input_ids
    total = np.zeros(256)
    for start in range(0, len(ids), size or len(ids)):
        window = torch.tensor([[tokenizer.bos_token_id, *ids[start : start + (size or len(ids))]]])
        with torch.no_grad():
            total += (
                model(input_ids=window, output_hidden_states=True)
                .hidden_states[-1][0, 1:]
                .sum(0)
                .numpy()
            )
    return total


def test_a_vector_is_the_mean_of_the_last_layer_over_the_texts_own_tokens(
    tiny_base, model, tiny_renderer
):
    found = encode_texts(TEXTS, tiny_base)
    assert found.shape == (4, 256) and found.dtype == np.float32 and not found[1].any()
    for text, vector in zip(TEXTS, found, strict=True):
        if text:
            total = states(model, tiny_renderer.tokenizer, text.replace("\ud83d", "?"))
            assert vector == pytest.approx(total / np.linalg.norm(total), abs=2e-5)


def test_a_text_does_not_depend_on_those_beside_it(tiny_base):
    together = encode_texts([*TEXTS, "x " * 300], tiny_base)
    assert np.allclose(together[2], encode_texts(TEXTS[2:3], tiny_base)[0], atol=2e-5)


def test_a_long_text_is_read_to_its_end(tiny_base, model, tiny_renderer, monkeypatch):
    monkeypatch.setattr(module, "BATCH_TOKENS", 8)
    found = encode_texts([TEXTS[2]], tiny_base)[0]
    assert len(tiny_renderer.tokenizer(TEXTS[2], add_special_tokens=False).input_ids) > 7
    total = states(model, tiny_renderer.tokenizer, TEXTS[2], size=7)
    assert found == pytest.approx(total / np.linalg.norm(total), abs=2e-5)


def test_an_encoder_says_which_model_it_is(tiny_base):
    assert hidden_state_encoder(tiny_base).origin == {
        "form": "hidden_states 1",
        "revision": tiny_base.revision,
    }


def test_batches_hold_texts_of_alike_length_up_to_a_limit():
    assert group_by_length([5, 900, 6, 7, 3000], 1000) == [[0, 2, 3], [1], [4]]
