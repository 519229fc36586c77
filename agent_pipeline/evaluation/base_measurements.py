"""What identifies a measurement of a base model, so that the measurement can be reused.

The base model answers the same held-out turns every night. A measurement is made again only if
something changes that affects it. Where measurements are kept belongs to `compute`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.tokenization.loss_masks import Encoded

if TYPE_CHECKING:
    from agent_pipeline.evaluation.turns import Question

BASE_MEASUREMENTS = "base_measurements"
"""Name of the stored artifacts that hold measurements of a base model."""

Measured = TypeVar("Measured")


class BaseStore(Protocol):
    """A store of a base model's measurements."""

    def measure(
        self, fingerprint: str, result_type: type[Measured], compute: Callable[[], Measured]
    ) -> Measured:
        """Return a stored measurement, or compute and store it.

        Args:
            fingerprint: A hash of everything that affects the measurement.
            result_type: The type of the measurement, which msgspec can encode.
            compute: Measures the base model.
        """
        ...


class MemoryStore:
    """A store in memory. Adapters that are evaluated with the same store ask their base once."""

    def __init__(self) -> None:
        self._measurements: dict[str, Any] = {}

    def measure(
        self, fingerprint: str, result_type: type[Measured], compute: Callable[[], Measured]
    ) -> Measured:
        """Return a measurement. The arguments are those of `BaseStore`."""
        if fingerprint not in self._measurements:
            self._measurements[fingerprint] = compute()
        measurement: Measured = self._measurements[fingerprint]
        return measurement


def fingerprint_of_base(
    base: BaseModel,
    jinja: str,
    rows: Sequence[Encoded],
    questions: "Sequence[Question]",
    answered: Sequence[int],
) -> str:
    """Return a hash of everything that affects the base model's losses and answers.

    Args:
        base: The base model.
        jinja: The chat template.
        rows: The held-out rows as tokens.
        questions: All questions.
        answered: The positions of the questions that are answered.
    """
    turns = [
        [
            question.row.input_ids,
            question.limit,
            question.too_tight,
            [branch.input_ids for branch in question.branches],
        ]
        for question in questions
    ]
    encoded_rows = [[row.input_ids, row.trained] for row in rows]
    return hash_json([base.name, base.revision, jinja, encoded_rows, turns, list(answered)])
