"""The report of an evaluation, as it is stored in the manifest of the artifact `evaluation`.

The figures are computed in `evaluate` and `model_comparison`. The fields keep the names of the
first version. A field that an older version did not write gets its default.
"""

from collections.abc import Mapping

import msgspec

from agent_pipeline.evaluation.intervals import ReportedDifference
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.structs import convert_value


class AnswerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a model's answers. A share is `None` if it does not apply to any turn.

    Attributes:
        right_decision: The share of turns whose class (of four classes) is right.
        call_recall: The share of calls among the turns that expect a call.
        call_recall_interval: The 95 % interval of `call_recall` over tasks.
        over_call: The share of calls among the turns that do not expect a call; lower is better.
        over_call_interval: The 95 % interval of `over_call` over tasks.
        tool_name_accuracy: The share of turns with the right tools among the turns that expect a
            call.
        arguments_accuracy: The share of turns with the right arguments among the turns that expect
            a call.
        exact_call_accuracy: The share of turns whose calls have exactly the same effect, among the
            turns that expect a call.
        lenient_call_accuracy: The share of turns whose calls a reader would regard as the same,
            among the turns that expect a call.
        answer_accuracy: The share of turns with the right class and the right values, among the
            turns that do not expect a call.
        decisions: The number of turns by expected class and by class of the reply.
        invalid_calls: The number of calls that cannot be parsed.
        truncated: The number of wrong turns that the token limit ended.
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
        """Return the figure with a given name, or `None` if it was not measured."""
        value: float | None = getattr(self, name, None)
        return value


class ModelFigures(AnswerFigures, frozen=True, kw_only=True):
    """The figures of a model in an evaluation, from its answers and from one forward pass.

    Attributes:
        heldout_loss: The loss on the held-out rows, in nats per assistant token.
        decision_auc: The area under the ROC curve of P(call).
        verified_calls: The share of turns with a call that the model writes exactly as recorded,
            token for token.
        verified: The number of answers that are identical to the recorded answer.
        unended_calls: The number of complete calls after which the model did not end its turn.
    """

    heldout_loss: float | None = None
    decision_auc: float | None = None
    verified_calls: float | None = None
    verified: int = 0
    unended_calls: int = 0


class ToolFigures(msgspec.Struct, frozen=True):
    """Both models' figures at the turns whose first expected call uses a given tool.

    Attributes:
        n: The number of turns.
        base: The base model's figures.
        adapter: The adapter's figures.
    """

    n: int
    base: AnswerFigures
    adapter: AnswerFigures


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is shown as an example in the report.

    Attributes:
        kind: The kind of example: `gained`, `lost`, `both wrong` or `both right`.
        session_id: The id of the session.
        prompt_tail: The end of the prompt.
        expected: The agent's recorded turn.
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
    """The comparison of an adapter with its base model.

    The report contains no times.

    Attributes:
        base: The base model's figures.
        adapter: The adapter's figures.
        differences: The difference adapter − base over tasks, by figure; `None` if it cannot be
            measured.
        device: The device and the number type of the models.
        n: The number of answered turns.
        n_calls: The number of answered turns that expect a call.
        tasks: The number of tasks of the answered turns.
        counts: The numbers of turns that were found, left out and chosen.
        by_tool: The figures by the first expected tool.
        examples: A few example turns.
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
    return evaluation.read_report(parse_evaluation_report)


def parse_evaluation_report(report: Mapping[str, object]) -> EvaluationReport:
    """Return a report from its JSON form. Fields that older versions did not write get defaults.

    Raises:
        msgspec.ValidationError: The JSON is not the report of an evaluation.
    """
    return convert_value(report, EvaluationReport)
