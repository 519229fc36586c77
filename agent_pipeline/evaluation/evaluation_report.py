"""The report of an evaluation, as it is stored in the manifest of the artifact `evaluation`.

How the figures are computed is in `evaluate` and `model_comparison`. The fields keep the names that
they had in the first version, and fields that older versions did not write get defaults.
"""

from collections.abc import Mapping

import msgspec

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.intervals import ReportedDifference
from agent_pipeline.storage.artifacts import Artifact


class AnswerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a model's answers. A mean is `None` if no turn can say.

    Attributes:
        right_decision: The share of turns with the right class of four.
        call_recall: The share of calls at turns that expect a call.
        call_recall_interval: Its 95 % interval over tasks.
        over_call: The share of calls at turns that expect none; the fewer the better.
        over_call_interval: Its 95 % interval over tasks.
        tool_name_accuracy: The share of expected calls with the right tools.
        arguments_accuracy: The share of expected calls with the right arguments.
        exact_call_accuracy: The share of expected calls that do exactly the same.
        lenient_call_accuracy: The share of expected calls that a reader takes for the same.
        answer_accuracy: Of the turns that expect no call, the share with the right class and the
            right values.
        decisions: The turns by expected class, and by the class of the reply.
        invalid_calls: The calls that cannot be read.
        truncated: The wrong turns that the limit on new tokens ended.
    """

    right_decision: float | None = None
    call_recall: float | None = None
    call_recall_interval: tuple[float, float] | None = None
    over_call: float | None = None
    over_call_interval: tuple[float, float] | None = None
    tool_name_accuracy: float | None = None
    arguments_accuracy: float | None = None
    exact_call_accuracy: float | None = None
    lenient_call_accuracy: float | None = None
    answer_accuracy: float | None = None
    decisions: dict[str, dict[str, int]] = {}
    invalid_calls: int = 0
    truncated: int = 0

    def figure(self, name: str) -> float | None:
        """Return the figure of this name; `None` if it was not measured."""
        value: float | None = getattr(self, name, None)
        return value


class ModelFigures(AnswerFigures, frozen=True, kw_only=True):
    """The figures of a model in an evaluation: of its answers, and of one forward pass.

    Attributes:
        heldout_loss: The loss on the held-out rows, in nats per assistant token.
        decision_auc: The area under the curve of P(call).
        verified_calls: The share of turns with a call that the model writes as it was recorded,
            token for token.
        verified: The answers that are the recorded ones.
        unended_calls: The whole calls after which the model did not end its turn.
    """

    heldout_loss: float | None = None
    decision_auc: float | None = None
    verified_calls: float | None = None
    verified: int = 0
    unended_calls: int = 0


class ToolFigures(msgspec.Struct, frozen=True):
    """The figures of the turns at which one tool was expected first.

    Attributes:
        n: The number of turns.
        base: The base model's figures.
        adapter: The adapter's figures.
    """

    n: int
    base: AnswerFigures
    adapter: AnswerFigures


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is worth reading.

    Attributes:
        kind: What the adapter changed: `gained`, `lost`, `both wrong` or `both right`.
        session_id: The id of the session.
        prompt_tail: The end of the prompt.
        expected: What the agent did.
        base_answer: The base model's answer.
        adapter_answer: The adapter's answer.
    """

    kind: str = ""
    session_id: str = ""
    prompt_tail: str = ""
    expected: str = ""
    base_answer: str = ""
    adapter_answer: str = ""


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter compared with the base model that it was trained from. It holds no times.

    Attributes:
        base: The base model's figures.
        adapter: The adapter's figures.
        differences: By figure, adapter − base over tasks; `None` if it cannot be measured.
        device: The device and type that the models ran in.
        n: The answered turns.
        n_calls: The answered turns that expect a call.
        tasks: The number of their tasks.
        counts: How the turns were chosen, and how many did not fit.
        by_tool: The figures by the tool that is expected first.
        examples: A few turns that are worth reading.
    """

    base: ModelFigures
    adapter: ModelFigures
    differences: dict[str, ReportedDifference | None]
    device: str = ""
    n: int = 0
    n_calls: int = 0
    tasks: int = 0
    counts: dict[str, int] = {}
    by_tool: dict[str, ToolFigures] = {}
    examples: list[Example] = []


def read_evaluation_report(evaluation: Artifact) -> EvaluationReport:
    """Return the report of an artifact `evaluation`.

    Raises:
        DataError: The report is of an older version and cannot be read.
    """
    try:
        return parse_evaluation_report(evaluation.manifest["report"])
    except msgspec.ValidationError as error:
        raise DataError(
            f"The report of the evaluation {evaluation.identity[:16]} of {evaluation.key} cannot "
            f"be read ({error}): it is of an older version. Materialize evaluation again."
        ) from error


def parse_evaluation_report(report: Mapping[str, object]) -> EvaluationReport:
    """Return a report from its JSON form. Fields that older versions did not write get defaults.

    Raises:
        msgspec.ValidationError: The JSON is no report of an evaluation.
    """
    return msgspec.convert(report, EvaluationReport)
