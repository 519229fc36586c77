"""TRL's private parts do what the hooks need, and have no public replacement yet."""

import inspect
from types import SimpleNamespace

import torch
from trl import DistillationTrainer, GRPOTrainer, SFTTrainer
from trl.experimental.sdft import SDFTTrainer
from trl.experimental.sdft.sdft_trainer import DemonstrationTeacherContextBuilder

from agent_pipeline._compat.trl import (
    add_trained_tokens,
    count_trained_tokens,
    disable_dropout,
    sample_completions,
    start_token_count,
    tokenize_distillation,
    tokenize_self_distillation,
)


def test_token_counter():
    """`SFTTrainer` keeps its count in the attribute that the hook changes, and logs `num_tokens`."""
    source = inspect.getsource(SFTTrainer)
    assert "self._total_train_tokens" in source and '"num_tokens"' in source
    trainer = SimpleNamespace(_metrics={"train": {}})
    start_token_count(trainer)
    add_trained_tokens(trainer, 3)
    add_trained_tokens(trainer, 4)
    assert count_trained_tokens(trainer) == 7
    assert trainer._metrics["train"]["num_tokens"] == [7]


def test_sampling():
    """`GRPOTrainer` samples by a private method, and by no public one."""
    _, *parameters = inspect.signature(GRPOTrainer._generate_single_turn).parameters
    assert parameters[:4] == ["prompt_ids", "images", "multimodal_fields", "num_generations"]
    assert not hasattr(GRPOTrainer, "generate_single_turn")
    calls = []
    trainer = SimpleNamespace(
        _generate_single_turn=lambda *args: calls.append(args) or ([[7]], None)
    )
    assert sample_completions(trainer, ([1, 2],)) == [[7]]
    assert calls == [([[1, 2]], None, {}, 1)]


def test_self_distillation():
    """SDFT composes the teacher's prompt and tokenizes in the methods that the hook replaces."""
    compose = inspect.signature(DemonstrationTeacherContextBuilder._compose_teacher_prompt)
    assert list(compose.parameters)[1:] == ["prompt", "privileged_context"]
    assert "_tokenize_prompts(" in inspect.getsource(inspect.getmodule(SDFTTrainer))
    trainer = SimpleNamespace()
    tokenize_self_distillation(trainer, lambda texts: [[len(text)] for text in texts])
    builder = trainer.teacher_context_builder
    assert builder._compose_teacher_prompt("asked", "shown") == "shown"
    assert trainer._tokenize_prompts(["abc"]) == [[3]]


def test_distillation():
    """`DistillationTrainer` unpacks three results of the method that the hook replaces."""
    assert hasattr(DistillationTrainer, "_tokenize_prompts")
    trainer = SimpleNamespace()
    tokenize_distillation(trainer, lambda texts: [[len(text)] for text in texts])
    assert trainer._tokenize_prompts(["abc"]) == ([[3]], None, {})


def test_dropout():
    module = torch.nn.Sequential(torch.nn.Dropout(0.5))
    disable_dropout(module)
    assert module[0].p == 0
