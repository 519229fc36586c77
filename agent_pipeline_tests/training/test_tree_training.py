"""Training over trees of prefixes gives the gradients of training row by row."""

import json

import pytest

from agent_pipeline.engine import prefix_tree, tree_attention, tree_layout, tree_loss
from agent_pipeline.engine.prefix_tree import build_prefix_tree, pad_tree
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import silent
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.trainers.sft import SftJob, build_trainer
from agent_pipeline_tests.training.world import row

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows(tiny_renderer) -> list[Encoded]:
    encoded = encode_rows(tiny_renderer, [row(index) for index in range(6)], 512).rows
    # A row that is there twice counts twice.
    return [encoded_row.encoded for encoded_row in (*encoded, encoded[0])]


def gradients_row_by_row(model, rows: list[Encoded]) -> dict:
    import torch

    model.zero_grad()
    weights = [torch.tensor(each.trained)[1:].float() for each in rows]
    for each, counts in zip(rows, weights, strict=True):
        ids = torch.tensor([each.input_ids])
        losses = torch.nn.functional.cross_entropy(
            model(input_ids=ids).logits[0, :-1], ids[0, 1:], reduction="none"
        )
        ((losses * counts).sum() / sum(each.sum() for each in weights)).backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


@pytest.mark.parametrize(
    ("max_nodes", "frozen_head", "recomputed"),
    [(prefix_tree.MAX_NODES, False, False), (300, True, False), (1, False, True)],
)
def test_the_gradients_of_a_step_are_those_of_its_rows(
    tiny_base, rows, max_nodes, frozen_head, recomputed, monkeypatch
):
    import torch

    model = load_model(tiny_base, probe_device()).train()
    model.get_output_embeddings().weight.requires_grad_(not frozen_head)
    if recomputed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    expected = gradients_row_by_row(model, rows)
    model.zero_grad()
    monkeypatch.setattr(tree_loss, "HEAD_ROWS", 7)
    trees = [
        tree_loss.tree_tensors(each.tree) for each in prefix_tree.trees_of_step(rows, max_nodes)
    ]
    total = sum(each["weights"].sum() for each in trees)
    assert float(total) == pytest.approx(sum(sum(each.trained) for each in rows))
    for each in trees:
        (tree_loss.tree_loss(model, each) / total).backward()
    trained = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    assert trained.keys() == expected.keys()
    for name, parameter in trained.items():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_both_trainers_reach_the_same_loss(tiny_base, tiny_renderer, rows, tmp_path, monkeypatch):
    config = TrainingConfig(
        num_train_epochs=2,
        learning_rate=4e-3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_length=512,
        lora_r=4,
    )
    history = {}
    for as_trees in (True, False):
        monkeypatch.setattr(
            "agent_pipeline.training.trainers.sft.trains_as_trees", lambda *_, value=as_trees: value
        )
        model = load_model(tiny_base, probe_device())
        trainer = build_trainer(
            SftJob(rows, config, probe_device(), tmp_path / str(as_trees)),
            model,
            tiny_renderer.tokenizer,
            silent,
        )
        trainer.train()
        history[as_trees] = [
            entry[name]
            for entry in trainer.state.log_history
            for name in ("loss", "grad_norm")
            if "loss" in entry
        ]
    assert len(history[True]) == len(history[False]) == 8
    assert history[True] == pytest.approx(history[False], rel=2e-3)


def test_rows_that_share_nothing_are_packed_into_one_sequence_with_little_padding(tiny_base, rows):
    import torch

    model = load_model(tiny_base, probe_device()).train()
    alone = [
        Encoded(
            [number, *range(600 - number, 560 + 3 * number, -1)],
            [False] + [True] * (40 - 4 * number),
            [],
        )
        for number in (1, 2, 3)
    ]
    assert (
        tree_loss.trains_as_trees(model, alone)
        and json.dumps(tree_loss.shared_fraction(alone, 3)) == "1.0"
    )
    (group,) = prefix_tree.trees_of_step(alone)
    tensors = tree_loss.tree_tensors(group.tree)
    tokens = sum(len(each.input_ids) for each in alone)
    assert tokens <= tensors["input_ids"].numel() < tokens + tree_loss.UNIT
    expected = gradients_row_by_row(model, alone)
    model.zero_grad()
    (tree_loss.tree_loss(model, tensors) / tensors["weights"].sum()).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kept_bytes", [0, tree_attention.KEPT_BYTES])
@pytest.mark.parametrize("above", [7, 0])
@pytest.mark.parametrize("of_type", ["float32", "bfloat16"])
def test_attention_by_products_is_the_fused_one(of_type, above, kept_bytes, monkeypatch):
    import torch

    monkeypatch.setattr(tree_attention, "QUERIES", 5)
    monkeypatch.setattr(tree_attention, "KEPT_BYTES", kept_bytes)
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (1, 6, 13, 8),
        (1, 2, above + 13, 8),
        (1, 2, above + 13, 4),
    )  # 13 queries of 3 heads a key, whose values are shorter
    given = [
        torch.randn(shape, generator=generator).to(getattr(torch, of_type)).requires_grad_()
        for shape in shapes
    ]
    outcome = {}
    for attention in (tree_attention._attend_by_kernel, tree_attention._attend_by_products):
        output = attention(*given, tree_layout.Layout([13], [[]]), 0.3)
        outcome[attention] = [output, *torch.autograd.grad((output.float() ** 2).sum(), given)]
    close = {"rtol": 1e-5, "atol": 1e-5} if of_type == "float32" else {"rtol": 0.05, "atol": 0.05}
    for one, other in zip(*outcome.values(), strict=True):
        torch.testing.assert_close(one, other, **close)


@pytest.mark.parametrize("recomputed", ["off", "on"])
def test_a_tree_keeps_no_more_activations_than_two_batches_have(
    tiny_base, tiny_renderer, rows, tmp_path, monkeypatch, recomputed
):
    monkeypatch.setattr("agent_pipeline.training.trainers.sft.STORED_TOKENS", 1)
    config = TrainingConfig(
        gradient_accumulation_steps=len(rows),
        gradient_checkpointing=recomputed,
        max_length=512,
        lora_r=4,
    )
    model = load_model(tiny_base, probe_device())
    trainer = build_trainer(
        SftJob(rows, config, probe_device(), tmp_path), model, tiny_renderer.tokenizer, silent
    )
    sizes = [
        each["input_ids"].numel() - tree_loss.UNIT
        for each in next(iter(trainer.get_train_dataloader()))["trees"]
    ]
    two_batches = 2 * max(len(each.input_ids) for each in rows)
    assert len(sizes) > 1 and max(sizes) <= two_batches, (sizes, two_batches)


@pytest.mark.parametrize("unit", [1, 7, 64])
def test_padding_is_a_row_of_its_own_that_trains_nothing(unit):
    given = build_prefix_tree(
        [
            Encoded([1, 2, 3, 4], [False, False, True, True], []),
            Encoded([1, 2, 5], [False, False, True], []),
        ]
    )
    tree_of_unit = pad_tree(given, unit)
    nodes = len(given.tokens)
    assert len(tree_of_unit.tokens) == nodes + -nodes % unit
    assert (
        tree_of_unit.trained is given.trained
        and (tree_of_unit.parents[:nodes] == given.parents).all()
    )
    layout = tree_layout.lay_out(tree_of_unit)
    assert sum(layout.run_lengths) == len(tree_of_unit.tokens)
    if nodes % unit:
        assert layout.run_lengths[-1] == -nodes % unit and layout.ancestors[-1] == []
        assert tree_of_unit.depths[nodes:].tolist() == list(range(-nodes % unit))
