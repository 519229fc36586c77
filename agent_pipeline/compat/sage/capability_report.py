"""The scores of capabilities, with the names of SAGE.

How they are measured belongs to `capabilities`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agent_pipeline.errors import ArgumentError


@dataclass(frozen=True)
class CapabilityScore:
    """The score of a capability.

    Attributes:
        capability: The capability.
        score: The score from 0 to 1; None if no sample can measure the capability.
        num_samples: How many values the score is the mean of.
        details: What these values are (`of`), and the parts of the score.
    """

    capability: str
    score: float | None
    num_samples: int
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CapabilityReport:
    """The scores of all capabilities that were measured."""

    scores: dict[str, CapabilityScore]

    @property
    def overall(self) -> float | None:
        """Return the mean of all capability scores that are not None."""
        scores = [capability.score for capability in self.scores.values()]
        return mean([value for value in scores if value is not None])

    def get_score(self, cap: str) -> float | None:
        """Return the score of a capability by its name.

        Raises:
            ArgumentError: The capability was not measured.
        """
        if cap not in self.scores:
            raise ArgumentError(
                f"The report does not have the capability {cap!r}: it has "
                f"{', '.join(self.scores) or 'none'}."
            )
        return self.scores[cap].score

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON values."""
        scores = {name: asdict(capability) for name, capability in self.scores.items()}
        return {"overall": self.overall, "scores": scores}

    def summary(self) -> str:
        """Return one line per capability."""
        lines = [
            f"{name:<22} {_format_score(capability.score)}  ({capability.num_samples} "
            f"{capability.details.get('of', 'samples')})"
            for name, capability in self.scores.items()
        ]
        return "\n".join([*lines, f"{'overall':<22} {_format_score(self.overall)}"])


def mean(numbers: Sequence[float]) -> float | None:
    """Return the mean of numbers, or None if there are no numbers."""
    return sum(numbers) / len(numbers) if numbers else None


def _format_score(value: float | None) -> str:
    return "   –" if value is None else f"{value:.2f}"
