"""Kahneman-Tversky optimisation (Ethayarajh et al. 2024): a completion is good or bad by itself. TRL's `KTOTrainer`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_pipeline.engine.scoring import encoded_losses
from agent_pipeline.training.preference_examples import Example

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Kto:
    """w·(1 − σ(±(βr − βz))), + for good completions and − for bad ones: r is a completion's log-probability beyond the reference's, z how
    far the model has moved, measured on completions that follow other prompts than their own."""

    beta: float
    trained_rows = 1

    def moved(self, causal: "PreTrainedModel", step: Sequence[Example]) -> float:
        """An estimate of the divergence from the reference, in nats; never below 0."""
        now = encoded_losses(causal, [example.rows[1] for example in step])
        gains = [
            -(each.loss or 0.0) * each.trained_tokens - example.reference[1]
            for each, example in zip(now, step, strict=True)
        ]
        return max(0.0, sum(gains) / len(gains))

    def loss(
        self,
        log_probs: "torch.Tensor",
        examples: Sequence[Example],
        step: Sequence[Example],
        moved: float,
    ) -> tuple["torch.Tensor", dict[str, float]]:
        """The mean over the completions of a step."""
        weights = log_probs.new_tensor([example.weight for example in examples])
        signs = log_probs.new_tensor([1.0 if example.good else -1.0 for example in examples])
        gains = log_probs[:, 0] - log_probs.new_tensor(
            [example.reference[0] for example in examples]
        )
        rewards = signs * self.beta * (gains - moved)
        loss = (weights * (1 - rewards.sigmoid())).sum() / len(step)
        return loss, {
            "reward": float(rewards.detach().sum()) / len(step),
            "moved": moved * len(examples) / len(step),
        }

    def figures(
        self, examples: Sequence[Example], log_probs: Sequence[tuple[float, float]]
    ) -> dict[str, Any]:
        """`reward_auc`: how often a good completion gained more than a bad one (None where there are none of a kind)."""
        gains = [
            (each.good, now[0] - each.reference[0])
            for each, now in zip(examples, log_probs, strict=True)
        ]
        good, bad = (
            [gain for is_good, gain in gains if is_good is wanted] for wanted in (True, False)
        )
        wins = sum((one > other) + 0.5 * (one == other) for one in good for other in bad)
        return {
            "good": len(good),
            "bad": len(bad),
            "reward_auc": wins / (len(good) * len(bad)) if good and bad else None,
        }
