"""Direct preference optimisation (Rafailov et al. 2023), its chosen completions anchored by their own loss (RPO, Pang et al. 2024).

TRL's `DPOTrainer` with `loss_type=["sigmoid", "sft"]`; an example counts by its weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_pipeline.training.preference_examples import Example

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Dpo:
    """−w·log σ(β(r_chosen − r_rejected)), where r is a completion's log-probability beyond the reference's, plus `sft_weight` times the
    mean loss of a chosen token."""

    beta: float
    sft_weight: float
    trained_rows = 2

    def moved(self, causal: "PreTrainedModel", step: Sequence[Example]) -> float:
        """DPO compares completions of one prompt, so how far the model has moved cancels out."""
        return 0.0

    def loss(
        self,
        log_probs: "torch.Tensor",
        examples: Sequence[Example],
        step: Sequence[Example],
        moved: float,
    ) -> tuple["torch.Tensor", dict[str, float]]:
        """The mean over the pairs of a step, and over the chosen tokens of a step."""
        from torch.nn.functional import logsigmoid

        weights = log_probs.new_tensor([example.weight for example in examples])
        rewards = self.beta * (
            log_probs - log_probs.new_tensor([example.reference for example in examples])
        )
        margins = rewards[:, 0] - rewards[:, 1]
        chosen_tokens = sum(sum(example.rows[0].trained) for example in step)
        anchor = -(weights * log_probs[:, 0]).sum() / chosen_tokens
        loss = -(weights * logsigmoid(margins)).sum() / len(step) + self.sft_weight * anchor
        return loss, {
            "reward_margin": float(margins.detach().sum()) / len(step),
            "reward_accuracy": float((margins.detach() > 0).sum()) / len(step),
        }

    def figures(
        self, examples: Sequence[Example], log_probs: Sequence[tuple[float, float]]
    ) -> dict[str, Any]:
        """`reward_accuracy`: how often the chosen turn gained more than the rejected one; `chosen_is_likelier`: how often it has the higher
        probability, before and after."""
        gains = [
            now[0] - each.reference[0] - now[1] + each.reference[1]
            for each, now in zip(examples, log_probs, strict=True)
        ]
        return {
            "pairs": len(examples),
            "reward_accuracy": sum(gain > 0 for gain in gains) / len(examples),
            "reward_margin": self.beta * sum(gains) / len(examples),
            "chosen_is_likelier": {
                "before": sum(each.reference[0] > each.reference[1] for each in examples)
                / len(examples),
                "after": sum(chosen > rejected for chosen, rejected in log_probs) / len(examples),
            },
        }
