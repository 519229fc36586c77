"""The report of a training run, as the file `training.json` and in the adapter's manifest.

The steps write it (`sft`, `further_steps`), and other packages read it from the manifest of an
adapter. A field that only some steps write is `UNSET` in the reports of the other steps, and then
its key is missing in the JSON. Fields that older versions did not write get defaults.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from agent_pipeline.datasets.verdicts import VerdictCounts
from agent_pipeline.errors import DataError
from agent_pipeline.models.threads import ThreadUse
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.structs import convert_value


class LogEntry(TypedDict, total=False):
    """An entry in the trainer's log. Each training method writes only the figures that it has.

    Attributes:
        step: The optimizer step.
        epoch: The epochs so far, as a fraction.
        loss: The training loss.
        mean_token_accuracy: The share of trained tokens that are the model's likeliest.
        reward_accuracy: The share of pairs whose chosen turn has the higher reward.
        reward_margin: The mean reward of the chosen turn minus the mean of the rejected turn.
        reward: The mean reward.
        reward_std: The standard deviation of the reward.
        done: The share of tasks that are done.
        harm: The share of tasks in which harm is done.
        kl: The divergence from the reference, in nats.
        moved: How far the model has moved from the reference, in nats.
        grad_norm: The norm of the gradient.
        learning_rate: The learning rate.
    """

    step: int
    epoch: float
    loss: float
    mean_token_accuracy: float
    reward_accuracy: float
    reward_margin: float
    reward: float
    reward_std: float
    done: float
    harm: float
    kl: float
    moved: float
    grad_norm: float
    learning_rate: float


class BaseName(msgspec.Struct, frozen=True):
    """The name and the revision of a base model."""

    name: str = ""
    revision: str = ""


class Look(msgspec.Struct, frozen=True):
    """One measurement of all kinds of decisions while the adapter is trained.

    Attributes:
        step: The optimizer step.
        select: The probability of the right decision on the split `select`, by kind.
    """

    step: int
    select: dict[str, float]


class DecisionLooks(msgspec.Struct, frozen=True):
    """All measurements of the kinds of decisions during a training step.

    Attributes:
        before: The probability of the right decision before the step, by kind.
        looks: The measurements during the step.
    """

    before: dict[str, float]
    looks: list[Look] = []


class VariationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of varied rows. A row is counted once per epoch.

    Attributes:
        rows: All rows of all epochs; 0 if no option varies the rows of an epoch.
        epochs: The number of epochs whose rows were varied separately.
        permuted: The rows whose tools stand in another order.
        masked: The rows with other names of tools or parameters.
        extended: The rows with added tools.
        names_in_text: The names that stay because a text of the row mentions them.
        unchanged: The rows that stay because the varied row does not fit into `max_length`.
        joined_rows: The rows per epoch that hold several sessions.
        joined_sessions: The sessions in these rows.
    """

    rows: int = 0
    epochs: int = 0
    permuted: int = 0
    masked: int = 0
    extended: int = 0
    names_in_text: int = 0
    unchanged: int = 0
    joined_rows: int = 0
    joined_sessions: int = 0

    def describe(self) -> str:
        """Return what was varied as a phrase, such as `masked names in 40 of 100 rows`."""
        parts = [
            f"{what} in {count} of {self.rows} rows"
            for what, count in (
                ("another order of the tools", self.permuted),
                ("masked names", self.masked),
                ("extra tools", self.extended),
            )
            if count
        ]
        if self.joined_rows:
            parts.append(f"{self.joined_sessions} sessions joined into {self.joined_rows} rows")
        return "; ".join(parts) or "none"


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a training run: the model, the data, the method, and the results.

    Attributes:
        identity: The identity of the training run.
        method: The step, such as `dpo`; not of supervised fine-tuning.
        reference: The identity of the adapter that the step continued from.
        base: The base model.
        template: The facts of the chat template (`ChatTemplate.to_report`).
        config: The options of the run.
        device: Where the model was trained.
        steps: The number of optimizer steps.
        loss_first: The loss of the first entry of the log.
        loss_last: The loss of the last entry of the log.
        log_history: The trainer's log.
        versions: The versions of the libraries.
        rows: The counts of rows: in, trained, and left out by reason.
        kernels: The package whose layers the model had on a GPU.
        row_by_row: Why the rows were trained one by one, and not as trees of prefixes.
        replay: The counts of replayed rows.
        rehearsed: The number of the base model's own answers.
        variation: The counts of varied rows; only of supervised fine-tuning with varied rows.
        weights_of_step: The optimizer step whose weights were kept.
        decisions: How the kinds of decision changed.
        stopped_by: The kinds of decision that fell and stopped the training.
        row_ids: The ids of the rows, in the order of training.
        kinds: The counts of examples, by kind.
        tokens: The tokens of one epoch.
        trained_tokens: The tokens of one epoch that have a loss.
        longest_row_tokens: The tokens of the longest row.
        heldout: Figures of rows that were never trained on; `None` if there are no such rows.
        seconds: How long the run took, since its last start.
        tokens_per_second: The tokens that were trained on per second, padding not counted.
        threads: The threads of the training on a CPU, and the measured rate of matrix products.
        matrix_share: The operations that the row tokens need, as a share of the measured rate. Row
            tokens that share a prefix are computed once and count each time.
        resumed_from: The optimizer step at which the run resumed; 0 if it was never killed.
        verdicts: Who judged the sessions of the rows, of all steps up to this step.
    """

    identity: str = ""
    method: str | UnsetType = UNSET
    reference: str | UnsetType = UNSET
    base: BaseName = BaseName()
    template: dict[str, Any] = {}
    config: dict[str, Any] = {}
    device: str = ""
    steps: int = 0
    loss_first: float = math.nan
    loss_last: float = math.nan
    log_history: list[LogEntry] = []
    versions: dict[str, str] = {}
    rows: dict[str, Any] = {}
    kernels: str | UnsetType = UNSET
    row_by_row: str | UnsetType = UNSET
    replay: dict[str, Any] | UnsetType = UNSET
    rehearsed: int | UnsetType = UNSET
    variation: VariationReport | UnsetType = UNSET
    weights_of_step: int | UnsetType = UNSET
    decisions: DecisionLooks | UnsetType = UNSET
    stopped_by: list[str] | UnsetType = UNSET
    row_ids: list[str] = []
    kinds: dict[str, dict[str, int]] | UnsetType = UNSET
    tokens: int | UnsetType = UNSET
    trained_tokens: int | UnsetType = UNSET
    longest_row_tokens: int = 0
    heldout: dict[str, Any] | UnsetType | None = UNSET
    seconds: float | UnsetType = UNSET
    tokens_per_second: float | UnsetType = UNSET
    threads: ThreadUse | UnsetType = UNSET
    matrix_share: float | UnsetType = UNSET
    resumed_from: int | UnsetType = UNSET
    verdicts: VerdictCounts | UnsetType = UNSET

    @property
    def template_reason(self) -> str:
        """Return the rows' chat template and why it was chosen, or an empty text if unknown."""
        return str(self.template.get("why", ""))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, without the fields that are not set."""
        values: dict[str, object] = msgspec.to_builtins(self)
        return values


class SkippedReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a step that did not train an adapter.

    Attributes:
        skipped: The reason.
        rows: The counts of rows.
    """

    skipped: str
    rows: dict[str, Any] = {}


StepReport: TypeAlias = TrainingReport | SkippedReport
"""The report of a training step, which may have trained no adapter."""


def parse_step_report(report: Mapping[str, object]) -> StepReport:
    """Return a report from its JSON form.

    Raises:
        msgspec.ValidationError: the JSON is no report of a training step.
    """
    if "skipped" in report:
        return convert_value(report, SkippedReport)
    return convert_value(report, TrainingReport)


def read_step_report(adapter: Artifact) -> StepReport:
    """Read the report of a training step, which may not have trained an adapter.

    Raises:
        DataError: the report is of an older version and cannot be read.
    """
    return adapter.read_report(parse_step_report)


def read_training_report(adapter: Artifact) -> TrainingReport:
    """Read the training report of an adapter.

    Raises:
        DataError: the step trained nothing, or the report is of an older version and cannot be
            read.
    """
    report = read_step_report(adapter)
    if isinstance(report, SkippedReport):
        raise DataError(
            f"The step {adapter.asset} {adapter.identity[:16]} of {adapter.key} trained nothing: "
            f"{report.skipped}"
        )
    return report
