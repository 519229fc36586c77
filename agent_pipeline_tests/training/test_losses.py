"""The loss of each row."""

import pytest

from agent_pipeline.training.config import probe_device
from agent_pipeline.training.loading import load_model
from agent_pipeline.training.losses import RowLoss, batches_by_length, encoded_losses, mean_loss, row_losses
from agent_pipeline.training.masks import encode
from agent_pipeline_tests.training.world import row


@pytest.fixture(scope="module")
def model(tiny_base):
    return load_model(tiny_base, probe_device())


def test_the_loss_is_that_of_the_model_with_all_its_logits(model, tiny_tokenizer):
    import torch

    rows = [encode(tiny_tokenizer, row(n)["messages"] + row(n + 1)["messages"][1:] * (n % 3), row(n)["tools"]) for n in range(6)]
    for encoded, ours in zip(rows, encoded_losses(model, rows), strict=True):
        ids, labels = torch.tensor([encoded.input_ids]), torch.tensor([encoded.labels])
        with torch.no_grad():
            theirs = model(input_ids=ids, labels=labels).loss.item()
        assert ours.loss == pytest.approx(theirs, rel=1e-5) and ours.trained_tokens == sum(encoded.trained)


def test_a_row_with_nothing_to_learn_or_too_long_has_no_loss(tiny_base):
    silent = {**row(0), "messages": [{"role": "user", "content": "x" * 4000}, {"role": "assistant", "content": "y"}]}
    losses = row_losses([silent, row(1)], tiny_base)
    assert losses[0] == RowLoss(None, 0) and losses[1].loss > 0
    assert mean_loss(losses) == losses[1].loss and mean_loss(losses[:1]) is None


def test_a_model_with_more_than_a_head_is_scored_by_its_own_logits(tiny_tokenizer):
    import torch
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    gemma = Gemma2ForCausalLM(Gemma2Config(
        vocab_size=len(tiny_tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, final_logit_softcapping=0.5,
    )).eval()  # fmt: skip
    encoded = encode(tiny_tokenizer, row(0)["messages"], [])
    with torch.no_grad():
        theirs = gemma(input_ids=torch.tensor([encoded.input_ids]), labels=torch.tensor([encoded.labels])).loss.item()
    assert encoded_losses(gemma, [encoded])[0].loss == pytest.approx(theirs, rel=1e-5)


def test_batches_hold_rows_of_alike_length_up_to_a_limit():
    assert batches_by_length([5, 900, 6, 7, 3000], 1000) == [[0, 2, 3], [1], [4]]
