"""The loss of each row."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.engine import scoring
from agent_pipeline.engine.prefix_tree import build_prefix_tree
from agent_pipeline.engine.scoring import (
    RowLoss,
    average_losses,
    compute_losses,
    compute_losses_of_base,
)
from agent_pipeline.engine.tree_loss import row_log_probs, tree_tensors
from agent_pipeline.engine.tree_support import supports_passes
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.tokenization.loss_masks import Encoded, encode_conversation
from agent_pipeline_tests.training.world import row


@pytest.fixture(scope="module")
def model(tiny_base):
    return load_model(tiny_base, probe_device())


def test_the_loss_is_that_of_the_model_with_all_its_logits(model, tiny_renderer):
    import torch

    rows = [
        encode_conversation(
            tiny_renderer,
            row(n)["messages"] + row(n + 1)["messages"][1:] * (n % 3),
            row(n)["tools"],
        )
        for n in range(6)
    ]
    for encoded, ours in zip(rows, compute_losses(model, rows), strict=True):
        ids, labels = torch.tensor([encoded.input_ids]), torch.tensor([encoded.labels])
        with torch.no_grad():
            theirs = model(input_ids=ids, labels=labels).loss.item()
        assert ours.loss == pytest.approx(theirs, rel=1e-5) and ours.trained_tokens == sum(
            encoded.trained
        )


def test_a_row_with_nothing_to_learn_or_too_long_has_no_loss(tiny_base):
    silent = {
        **row(0),
        "messages": [
            {"role": "user", "content": "x" * 4000},
            {"role": "assistant", "content": "y"},
        ],
    }
    losses = compute_losses_of_base([silent, row(1)], tiny_base)
    assert losses[0] == RowLoss(None, 0) and losses[1].loss > 0
    assert average_losses(losses) == losses[1].loss and average_losses(losses[:1]) is None


def test_a_model_with_more_than_a_head_is_scored_by_its_own_logits(tiny_renderer):
    import torch
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    gemma = Gemma2ForCausalLM(Gemma2Config(
        vocab_size=len(tiny_renderer.tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, final_logit_softcapping=0.5,
    )).eval()  # fmt: skip
    encoded = encode_conversation(tiny_renderer, row(0)["messages"], [])
    with torch.no_grad():
        theirs = gemma(
            input_ids=torch.tensor([encoded.input_ids]), labels=torch.tensor([encoded.labels])
        ).loss.item()
    assert compute_losses(gemma, [encoded])[0].loss == pytest.approx(theirs, rel=1e-5)


def conversation(rng: random.Random, prompt: list[int], first: list[int]) -> Encoded:
    """A prompt, a first message, then turns of which the assistant's are trained."""
    ids, trained = [*prompt, *first], [False] * (len(prompt) + len(first))
    for turn in range(rng.randrange(1, 4)):
        length = rng.randrange(1, 30)
        ids += [rng.randrange(3, 120) for _ in range(length)]
        trained += [turn % 2 == 0] * length
    return Encoded(ids, trained, [])


def agents_rows(seed: int = 0, prompt: int = 60) -> list[Encoded]:
    """Rows of two agents, five tasks each, some of them tried more than once, and one row twice."""
    rng = random.Random(seed)
    rows = []
    for _ in range(2):
        shared = [rng.randrange(3, 120) for _ in range(prompt)]
        for _ in range(5):
            first = [rng.randrange(3, 120) for _ in range(10)]
            rows += [conversation(rng, shared, first) for _ in range(rng.randrange(1, 4))]
    rng.shuffle(rows)
    return [*rows, rows[0]]


def tiny(name: str, **more):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    values = {
        **sizes,
        "head_dim": 8,
        "vocab_size": 128,
        "initializer_range": 0.5,
        "pad_token_id": 0,
        **more,
    }
    config = AutoConfig.for_model(
        name, **{key: value for key, value in values.items() if value is not None}
    )
    return AutoModelForCausalLM.from_config(config).eval()


def one_by_one(model, rows: list[Encoded]) -> list[float]:
    import torch

    with torch.no_grad():
        return [
            model(
                input_ids=torch.tensor([row.input_ids]), labels=torch.tensor([row.labels])
            ).loss.item()
            for row in rows
        ]


GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "head_dim": None}
# Latent attention: values are shorter than keys.
LATENT = {
    "head_dim": None,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
}
LATENT |= {"v_head_dim": 12, "first_k_dense_replace": 2}


@pytest.mark.parametrize(
    ("name", "more", "takes_passes"),
    [
        ("llama", {}, True),
        ("llama", {"attn_implementation": "eager"}, True),
        ("qwen2", {}, True),
        ("qwen3", {}, True),
        ("smollm3", {}, True),
        ("gpt2", GPT2, True),
        ("deepseek_v3", LATENT, True),
        ("mistral", {"sliding_window": 4096}, True),
        ("mistral", {"sliding_window": 16}, False),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
            False,
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
            False,
        ),
        ("granite", {"logits_scaling": 8.0}, True),
        ("falcon", {"alibi": True, "head_dim": None}, False),
        ("mamba", {"head_dim": None}, False),
        (
            "gpt_oss",
            {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4096},
            False,
        ),
    ],
)
def test_each_kind_of_model_gives_the_losses_of_its_rows_read_one_by_one(
    monkeypatch, name, more, takes_passes
):
    monkeypatch.setattr(scoring, "CPU_NODES", 37)
    model, rows = tiny(name, **more), agents_rows()
    ours = compute_losses(model, rows)
    assert [row.loss for row in ours] == pytest.approx(one_by_one(model, rows), abs=1e-4)
    assert supports_passes(model, max(len(row.input_ids) for row in rows)) == takes_passes
    if takes_passes:  # as training sees them
        log_probs = row_log_probs(model, tree_tensors(build_prefix_tree(rows)), len(rows)).tolist()
        assert log_probs == pytest.approx(
            [-row.loss * row.trained_tokens for row in ours], rel=1e-4
        )


def test_what_rows_share_goes_through_the_model_once(monkeypatch):
    model, rows, read = tiny("llama"), agents_rows(), []
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    compute_losses(model, rows)
    prefixes = {
        tuple(row.input_ids[: end + 1])
        for row in rows
        for end in range(max(i for i, on in enumerate(row.trained) if on) + 1)
    }
    assert sum(read) == len(prefixes) < 0.6 * sum(len(row.input_ids) for row in rows)


def test_losses_of_a_model_in_training_are_without_dropout_and_leave_it_in_training():
    model, rows = tiny("llama", attention_dropout=0.5), agents_rows()
    model.gradient_checkpointing_enable()
    expected = compute_losses(model, rows)
    model.train()
    assert compute_losses(model, rows) == expected and model.training


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=2, max_size=8),
        min_size=1,
        max_size=8,
    )
)
def test_a_prefix_tree_holds_each_prefix_once_and_each_rows_trained_tokens(drawn):
    rows = [
        Encoded([token for token, _ in row], [on for _, on in row], [])
        for row in drawn
        if any(on for _, on in row[1:])
    ]
    tree = build_prefix_tree(rows)

    def path(node: int) -> list[int]:
        return [
            *(path(tree.parents[node]) if tree.parents[node] >= 0 else []),
            int(tree.tokens[node]),
        ]

    paths = [path(node) for node in range(len(tree.tokens))]
    assert (
        len({tuple(each) for each in paths}) == len(paths)
        and [len(each) - 1 for each in paths] == tree.depths.tolist()
    )
    assert sorted(row_nodes.row_index for row_nodes in tree.trained) == list(range(len(rows)))
    for row_nodes in tree.trained:
        row, nodes_of_row = rows[row_nodes.row_index], row_nodes.nodes
        assert [paths[node] for node in nodes_of_row] == [
            row.input_ids[: at + 1] for at, on in enumerate(row.trained) if on and at
        ]
    last_nodes = [int(row_nodes.nodes[-1]) for row_nodes in tree.trained]
    assert last_nodes == sorted(last_nodes)
    nodes = np.arange(len(paths))
    above = (nodes[:, None] <= nodes) & (nodes < tree.ends[:, None])
    assert above.tolist() == [[paths[j][: len(paths[i])] == paths[i] for j in nodes] for i in nodes]
