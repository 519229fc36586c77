"""Layers with windows and states follow a tree: loss and gradients are those of the rows, one by one."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.engine import tree_states
from agent_pipeline.engine.generation import generate
from agent_pipeline.engine.prefix_tree import build_prefix_tree
from agent_pipeline.engine.scoring import compute_losses
from agent_pipeline.engine.tree_loss import tree_loss, tree_tensors
from agent_pipeline.engine.tree_support import explain_row_by_row
from agent_pipeline.errors import ModelError
from agent_pipeline.tokenization.loss_masks import Encoded

WINDOW = 6
STATE_LAYERS = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}
ROTATIONS = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
        "mrope_section": [2, 1, 1],
    }
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_expand": 2,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
CONVOLUTIONS = {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}
WINDOWS = {
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": WINDOW,
}


@dataclass(frozen=True)
class Family:
    """A kind of model: the name of its configuration, and the options that make it tiny."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "mistral": Family("mistral", {"sliding_window": WINDOW}),
    "qwen2": Family(
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "gemma3": Family("gemma3_text", {**WINDOWS, "query_pre_attn_scalar": 8}),
    "gemma4": Family(
        "gemma4_text",
        {
            **WINDOWS,
            "num_hidden_layers": 4,
            "layer_types": [*WINDOWS["layer_types"][1:], *WINDOWS["layer_types"][1:]],
            "global_head_dim": 16,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 4,
            "vocab_size_per_layer_input": 64,
            "final_logit_softcapping": 2.0,
        },
    ),
    "lfm2": Family("lfm2", CONVOLUTIONS),
    "lfm2_moe": Family(
        "lfm2_moe", {**CONVOLUTIONS, **EXPERTS, "num_dense_layers": 1, "use_expert_bias": False}
    ),
    "qwen3_5": Family("qwen3_5_text", {**STATE_LAYERS, **ROTATIONS}),
    "qwen3_5_moe": Family(
        "qwen3_5_moe_text",
        {**STATE_LAYERS, **ROTATIONS, **EXPERTS, "shared_expert_intermediate_size": 16},
    ),
    "qwen3_next": Family(
        "qwen3_next", {**STATE_LAYERS, **EXPERTS, "shared_expert_intermediate_size": 16}
    ),
    "granite4": Family(
        "granitemoehybrid",
        {
            **MAMBA,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 32,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 3.0,
        },
    ),
    "bamba": Family("bamba", {**MAMBA, "attn_layer_indices": [1]}),
}
"""The families that docs/explanation/training.md lists, and their close relatives."""


def tiny(family: Family):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    options = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 64,
        "initializer_range": 0.1,
        "pad_token_id": 0,
        "eos_token_id": None,
        "attention_dropout": 0.0,
        **family.options,
    }
    config = AutoConfig.for_model(family.name, **options)
    return AutoModelForCausalLM.from_config(config).train()


@st.composite
def rows_of_a_tree(draw) -> list[Encoded]:
    """Rows of which each begins with a part of an earlier row, or with nothing of it."""
    rows: list[Encoded] = []
    for _ in range(draw(st.integers(1, 5))):
        start: list[int] = []
        if rows:
            earlier = draw(st.sampled_from(rows)).input_ids
            start = earlier[: draw(st.integers(0, len(earlier)))]
        ids = [*start, *draw(st.lists(st.integers(1, 63), min_size=2, max_size=24))]
        trained = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
        rows.append(Encoded(ids, [*trained[:-1], True], []))
    return rows


@dataclass(frozen=True)
class Step:
    """The loss of a step, and the gradient of each weight."""

    loss: float
    gradients: dict


def step_of(model, losses) -> Step:
    model.zero_grad()
    loss = sum(losses)
    loss.backward()
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return Step(loss.item(), gradients)


def step_row_by_row(model, rows: list[Encoded]) -> Step:
    import torch

    losses = []
    for row in rows:
        ids = torch.tensor([row.input_ids])
        log_probs = torch.nn.functional.cross_entropy(
            model(input_ids=ids, use_cache=False).logits[0, :-1].float(),
            ids[0, 1:],
            reduction="none",
        )
        losses.append((log_probs * torch.tensor(row.trained[1:]).float()).sum())
    return step_of(model, losses)


def assert_equal_steps(step: Step, expected: Step) -> None:
    """Check that two steps are equal within 1e-4 of each weight's gradient.

    A gradient that is a millionth of all gradients is rounding.
    """
    total = sum(gradient.norm() ** 2 for gradient in expected.gradients.values()) ** 0.5
    assert step.loss == pytest.approx(expected.loss, rel=1e-4)
    assert step.gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        difference = (step.gradients[name] - gradient).norm()
        assert difference <= 1e-4 * gradient.norm() + 1e-6 * total, (name, difference)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    return tiny(FAMILIES[request.param])


@settings(max_examples=6)
@given(rows=rows_of_a_tree())
def test_a_step_over_a_tree(model, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_states, "CPU_CHUNK", 8)
        assert explain_row_by_row(model, max(len(row.input_ids) for row in rows)) is None
        step = step_of(model, [tree_loss(model, tree_tensors(build_prefix_tree(rows)))])
        assert_equal_steps(step, step_row_by_row(model, rows))


ROWS = [
    Encoded([*range(1, 30), *range(first, first + 9), first], [False] * 12 + [True] * 27, [])
    for first in (30, 40, 30, 50)
]
ROWS = [*ROWS, Encoded([*range(1, 12), 60, 61], [False] * 11 + [True] * 2, [])]


def test_a_step_with_recomputed_activations(model):
    """The pass that gradient checkpointing repeats follows the tree, too."""
    expected = step_row_by_row(model, ROWS)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    try:
        step = step_of(model, [tree_loss(model, tree_tensors(build_prefix_tree(ROWS)))])
    finally:
        model.gradient_checkpointing_disable()
    assert_equal_steps(step, expected)


def test_scores(model):
    """Rows of a model with windows or states are scored as trees, and what they share is read once."""
    read = []
    body = getattr(model, model.base_model_prefix)
    hook = body.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    losses = compute_losses(model, ROWS)
    hook.remove()
    expected = step_row_by_row(model, ROWS).loss
    total = sum(row.loss * row.trained_tokens for row in losses)
    assert total == pytest.approx(expected, rel=1e-4)
    assert read == [len(build_prefix_tree(ROWS).tokens)]


def test_generated_answers(model):
    """The prompts' shared prefix is read once, and answers are those of transformers' own search."""
    import torch

    prompts = [row.input_ids[:-2] for row in ROWS] + [[*range(1, 12)]]
    read = []
    body = getattr(model, model.base_model_prefix)
    hook = body.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    model.eval()
    answers = generate(model, prompts, [8] * len(prompts), stops=[])
    hook.remove()
    with torch.no_grad():
        expected = [
            model.generate(
                torch.tensor([prompt]), max_new_tokens=8, min_new_tokens=8, do_sample=False
            )[0, len(prompt) :].tolist()
            for prompt in prompts
        ]
    model.train()
    assert answers == expected
    assert read[0] == 10, "the prefix"
    assert max(read[1:]) < max(len(prompt) for prompt in prompts)


def test_a_layer_that_does_not_follow_the_tree(monkeypatch):
    """A layer that loses the layout on the way is an error, not a wrong loss."""
    model = tiny(FAMILIES["lfm2"])
    layer = model.model.layers[0].conv
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda hidden_states, **_: forward(hidden_states))
    with pytest.raises(ModelError):
        tree_loss(model, tree_tensors(build_prefix_tree(ROWS)))


def test_a_window_that_the_configuration_does_not_name():
    """A layer with another window than the configuration says is an error, not a wrong loss."""
    model = tiny(FAMILIES["gemma3"])
    model.model.layers[0].self_attn.sliding_window = WINDOW - 1
    with pytest.raises(ModelError):
        tree_loss(model, tree_tensors(build_prefix_tree(ROWS)))


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        (Family("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}), "sinks"),
        (Family("gemma3_text", {**WINDOWS, "use_bidirectional_attention": True}), "later tokens"),
        (Family("falcon_h1", {**MAMBA, "mamba_d_ssm": 64}), "hybrid"),
        (Family("cohere", {"logit_scale": 0.5}), "logits"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_models_that_are_read_row_by_row(family, reason):
    assert reason in explain_row_by_row(tiny(family), 64)


def test_a_layer_class_that_is_not_known(monkeypatch):
    """A subclass may compute something else, so it is read row by row."""
    model = tiny(FAMILIES["lfm2"])
    layer = model.model.layers[0].conv
    layer.__class__ = type("ShortConvOfSomeoneElse", (type(layer),), {})
    assert "of which 1 are known" in explain_row_by_row(model, 64)
