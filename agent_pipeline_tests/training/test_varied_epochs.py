"""Varied rows in training: their masks, their trees, their epochs, and what is reported of them."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from agent_pipeline.datasets.variation import Variation, vary_rows
from agent_pipeline.engine import prefix_tree, tree_loss
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.tokenization.encoding import encode_row, encode_rows
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.provenance import SftInput
from agent_pipeline.training.varied_epochs import (
    count_epochs,
    find_variation,
    join_rows,
    list_steps,
    vary_epochs,
)
from agent_pipeline_tests.datasets.test_joining import session
from agent_pipeline_tests.datasets.varied import rows as made_rows
from agent_pipeline_tests.tiny import with_jinja
from agent_pipeline_tests.training.test_replay import batches  # noqa: F401
from agent_pipeline_tests.training.test_tree_training import gradients_row_by_row
from agent_pipeline_tests.training.world import TRAINING, row, train_adapter

ALL = Variation(permutes_tools=True, masked_names=1, extra_tools=1)
VARIED = TRAINING.changed(
    num_train_epochs=2,
    masked_names=1,
    extra_tools=1,
    per_device_train_batch_size=2,
    max_length=1024,
)
ROWS = [row(number) for number in range(6)]


@pytest.fixture
def encoded(tiny_renderer):
    return encode_rows(tiny_renderer, ROWS, 512).rows


@settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(made=made_rows(), seed=st.integers(0, 1000))
def test_the_mask_of_a_varied_row_covers_the_assistants_tokens_and_no_others(
    tiny_renderer, made, seed
):
    (varied,) = vary_rows([made], ALL, seed, 0, [0])
    encoded = encode_row(tiny_renderer, varied.row, 4096).encoded
    trained = [
        token for token, counts in zip(encoded.input_ids, encoded.trained, strict=True) if counts
    ]
    text = tiny_renderer.render(varied.row["messages"], varied.row["tools"])
    turns = re.findall(r"(?<=<\|im_start\|>assistant\n).*?<\|im_end\|>", text, re.DOTALL)
    assert tiny_renderer.decode(trained) == "".join(turns)


@pytest.mark.slow
def test_the_gradients_of_varied_rows_are_those_of_the_rows_one_by_one(tiny_base, tiny_renderer):
    import torch

    varied = vary_rows(ROWS, ALL, 1, 0, [0, 0, 1, 1, 2, 2])
    assert all(each.is_changed for each in varied)
    encoded = [encode_row(tiny_renderer, each.row, 1024).encoded for each in varied]
    model = load_model(tiny_base, probe_device()).train()
    expected = gradients_row_by_row(model, encoded)
    model.zero_grad()
    trees = [
        tree_loss.tree_tensors(group.tree)
        for group in prefix_tree.trees_of_step(encoded, prefix_tree.MAX_NODES)
    ]
    total = sum(tree["weights"].sum() for tree in trees)
    for tree in trees:
        (tree_loss.tree_loss(model, tree) / total).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_rows_of_a_step_share_the_prefix_with_their_tools(tiny_renderer, encoded):
    varied = vary_epochs(tiny_renderer, encoded, 0, VARIED)
    steps = list_steps(len(encoded), 0, VARIED, 0)
    texts = [tiny_renderer.decode(each.input_ids) for each in varied.epochs[0]]
    prefixes = {step: set() for step in steps}
    for step, text in zip(steps, texts, strict=True):
        prefixes[step].add(text.partition("<|im_start|>user")[0])
    assert {len(shown) for shown in prefixes.values()} == {1}
    assert len(set.union(*prefixes.values())) == 3


def test_rows_do_not_vary_if_all_shares_are_zero(tiny_renderer, encoded):
    """The template sorts the tools, so their order cannot vary either."""
    config = VARIED.changed(masked_names=0, extra_tools=0)
    assert not find_variation(config, tiny_renderer)
    varied = vary_epochs(tiny_renderer, encoded, 0, config)
    assert varied.epochs == [[each.encoded for each in encoded]] and not varied.is_varied
    assert [each.row for each in join_rows(tiny_renderer, ROWS, config)] == ROWS


def test_a_template_that_does_not_sort_shows_the_tools_in_other_orders(tiny_renderer):
    """Each optimizer step has one order, in which its rows share their prefix."""
    renderer = with_jinja(
        tiny_renderer, tiny_renderer.template.jinja.replace(" | sort(case_sensitive=true)", "")
    )
    unsorted = ChatRenderer(
        renderer.tokenizer,
        type(renderer.template)(**vars(renderer.template) | {"sorts_tools": False}),
    )
    names = ("weather", "forecast", "alarm")
    tools = [
        {"type": "function", "function": {**ROWS[0]["tools"][0]["function"], "name": name}}
        for name in names
    ]
    rows = [each | {"tools": tools} for each in ROWS]
    encoded = encode_rows(unsorted, rows, 1024).rows
    config = TRAINING.changed(num_train_epochs=3, per_device_train_batch_size=1, max_length=1024)
    varied = vary_epochs(unsorted, encoded, 0, config)
    orders = {
        tuple(re.findall(r'"name":"(\w+)","desc', unsorted.decode(each.input_ids)))
        for epoch in varied.epochs
        for each in epoch
    }
    assert len(orders) > 3 and {frozenset(order) for order in orders} == {frozenset(names)}
    assert varied.report.permuted > 0 and varied.report.masked == 0
    assert not vary_epochs(tiny_renderer, encoded, 0, config).is_varied


def test_a_varied_row_that_is_too_long_stays_as_it_was(tiny_renderer, encoded):
    limit = max(len(each.encoded.input_ids) for each in encoded)
    varied = vary_epochs(tiny_renderer, encoded, 0, VARIED.changed(max_length=limit))
    assert varied.report.unchanged > 0
    for epoch in varied.epochs:
        assert max(len(each.input_ids) for each in epoch) <= limit
    counted = varied.report.unchanged + varied.report.extended
    assert counted == varied.report.rows == 12


@pytest.mark.parametrize(
    ("options", "epochs"),
    [({}, 2), ({"num_train_epochs": 2.5}, 3), ({"max_steps": 3}, 1), ({"max_steps": 4}, 2)],
)
def test_as_many_epochs_are_varied_as_are_trained(options, epochs):
    assert count_epochs(6, VARIED.changed(**options)) == epochs


def test_the_options_are_part_of_the_identity(tiny_base):
    plain = SftInput(ROWS, tiny_base, TRAINING).identity
    for name in ("masked_names", "extra_tools", "joined_sessions"):
        assert SftInput(ROWS, tiny_base, TRAINING.changed(**{name: 0.5})).identity != plain


@pytest.mark.slow
def test_each_epoch_trains_its_own_variation_of_every_row(
    tiny_base,
    tiny_renderer,
    tmp_path,
    batches,  # noqa: F811
):
    report = train_adapter(ROWS, tiny_base, VARIED, tmp_path)
    expected = vary_epochs(tiny_renderer, encode_rows(tiny_renderer, ROWS, 512).rows, 0, VARIED)
    for epoch in range(2):
        shown = [ids for step in batches[3 * epoch : 3 * epoch + 3] for ids in step]
        assert sorted(shown) == sorted(each.input_ids for each in expected.epochs[epoch])
        steps = list_steps(6, 0, VARIED, epoch)
        for row_index, each in enumerate(expected.epochs[epoch]):
            assert each.input_ids in batches[3 * epoch + steps[row_index]]
    assert report.steps == 6 and report.row_ids == [each["row_id"] for each in ROWS]
    assert report.variation.rows == 12 and report.variation.extended == 12
    stored = json.loads((tmp_path / "training.json").read_text())["variation"]
    assert stored["masked"] == report.variation.masked > 0
    assert "extra tools in 12 of 12 rows" in report.variation.describe()


@pytest.mark.slow
def test_joined_sessions_are_trained_once_and_all_named(tiny_base, tmp_path):
    """`forget` finds the adapter by the sessions of its rows."""
    rows = [
        session(number, f"K{100 + number}") | {"split": "train", "content_sha256": str(number)}
        for number in range(6)
    ]
    config = TRAINING.changed(num_train_epochs=1, joined_sessions=1.0)
    sft_input = SftInput(rows, tiny_base, config)
    report = train_adapter(rows, tiny_base, config, tmp_path)
    assert sorted(report.row_ids) == sorted(each["row_id"] for each in rows)
    assert report.variation.joined_sessions > 3
    assert report.rows["trained"] < len(rows)
    assert sft_input.made_from()["sessions"] == [each["session_id"] for each in rows]


@pytest.mark.slow
def test_a_report_without_varied_rows_does_not_name_them(tiny_base, tmp_path):
    config = TrainingConfig(**TRAINING.model_dump() | {"max_steps": 1})
    assert train_adapter(ROWS[:2], tiny_base, config, tmp_path).variation is UNSET
