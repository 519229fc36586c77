"""Training steps that continue to train an adapter from preferences: DPO on pairs, KTO on sessions.

The adapter that training starts from is the reference. The losses belong to `trainers.preferences`,
and how rows become tokens to `preference_examples`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from agent_pipeline.engine.prefix_tree import build_prefix_tree
from agent_pipeline.engine.scoring import without_adapter
from agent_pipeline.engine.tree_support import explain_row_by_row
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.progress import Progress, silent
from agent_pipeline.tokenization.encoding import Counted
from agent_pipeline.training.further_steps import (
    FurtherStep,
    NothingTrained,
    StepContext,
    StepTrainer,
    continue_training,
)
from agent_pipeline.training.preference_examples import (
    EncodeFunction,
    PreferenceExample,
    Row,
    compute_log_probs,
    encode_pairs,
    encode_sessions,
    set_reference,
)
from agent_pipeline.training.provenance import FurtherInput
from agent_pipeline.training.report import TrainingReport
from agent_pipeline.training.sft import check_train_split, count_tokens
from agent_pipeline.training.trainers.common import make_shared_arguments
from agent_pipeline.training.trainers.preferences import (
    Dpo,
    Kto,
    Objective,
    build_preference_trainer,
)


@dataclass(frozen=True)
class PreferenceMethod:
    """A training method that learns from preferences.

    Attributes:
        row_name: What its rows are called in messages.
        encode: Makes examples of rows.
        objective: Makes the loss from the options.
    """

    row_name: str
    encode: EncodeFunction
    objective: Callable[[Any], Objective]


METHODS = {
    "dpo": PreferenceMethod(
        "pairs", encode_pairs, lambda config: Dpo(config.beta, config.sft_weight)
    ),
    "kto": PreferenceMethod("judged sessions", encode_sessions, lambda config: Kto(config.beta)),
}


def train_preferences(
    further_input: FurtherInput,
    out_dir: Path,
    heldout: Sequence[Row] = (),
    progress: Progress = silent,
) -> TrainingReport:
    """Continue to train an adapter from preferences, and save the new adapter in `out_dir`.

    Args:
        further_input: The method (dpo or kto), the rows of its data set, the adapter and the
            options.
        out_dir: The directory of the new adapter.
        heldout: Judged rows of other splits. The report has how they are ranked.
        progress: Is called after each row and each step.

    Returns:
        The report.

    Raises:
        NothingTrained: fewer than `min_rows` rows can be trained on, no session is good, or a kind
            of decision fell at the first measurement.
        DataError: a row is not of the split `train`.
        ModelError: the base model or the adapter cannot be loaded.
    """
    check_train_split(further_input.rows)
    config, rows = further_input.config, further_input.rows
    method = METHODS[further_input.method]
    renderer = load_renderer(further_input.adapter_dir, further_input.base.trust_remote_code)
    encoded = method.encode(renderer, rows, config.max_length, progress)
    if len(encoded.rows) < config.min_rows:
        raise NothingTrained(
            f"{further_input.method} needs {config.min_rows} {method.row_name}, but only "
            f"{len(encoded.rows)} of {len(rows)} can be used for training: judge more trials of "
            f"the same tasks, or lower `min_rows`. {encoded.first_dropped}".rstrip(),
            encoded.counts,
        )

    if not any(example.good for example in encoded.rows):
        raise NothingTrained(
            f"All {len(encoded.rows)} sessions of {further_input.method} are bad, so training "
            "would make every answer of the agent less probable: judge more sessions, or set "
            "`kto_dataset.all_sessions` to true, so that the good sessions of pairs count too.",
            encoded.counts,
        )

    def build(context: StepContext) -> StepTrainer:
        return _build_trainer(further_input, context, renderer, encoded, heldout, progress)

    step = FurtherStep(further_input, renderer, encoded.counts, build)
    return continue_training(step, out_dir)


def _build_trainer(
    further_input: FurtherInput,
    context: StepContext,
    renderer: ChatRenderer,
    encoded: Counted[PreferenceExample],
    heldout: Sequence[Row],
    progress: Progress,
) -> StepTrainer:
    """Return a trainer whose reference model is the adapter before this step."""
    from transformers import TrainingArguments

    config, model = further_input.config, context.model
    method = METHODS[further_input.method]
    objective = method.objective(config)
    examples = set_reference(model, encoded.rows, progress)
    heldout_encoded = method.encode(renderer, heldout, config.max_length, silent)
    heldout_examples = set_reference(model, heldout_encoded.rows)
    batch_size = config.per_device_train_batch_size
    step_rows = [row for example in examples[:batch_size] for row in example.rows]
    step_tokens = len(build_prefix_tree(step_rows).tokens)
    arguments = TrainingArguments(
        **make_shared_arguments(
            config, context.device, context.work_dir, len(examples), step_tokens
        ),
        gradient_checkpointing_kwargs={"use_reentrant": False},
        per_device_train_batch_size=batch_size,
        save_steps=config.stop_steps,
    )
    trainer = build_preference_trainer(
        model, examples, objective, arguments, progress, [context.fall_callback]
    )

    def complete_report(report: TrainingReport) -> TrainingReport:
        rows_by_kind = Counter(example.kind for example in examples)
        trained_rows = [
            row for example in examples for row in example.rows[: objective.trained_rows]
        ]
        longest = max(len(row.input_ids) for example in examples for row in example.rows)
        ranking = None
        if heldout_examples:
            log_probs = compute_log_probs(trainer.model, heldout_examples)
            ranking = objective.report(heldout_examples, log_probs)
        return msgspec.structs.replace(
            report,
            row_ids=[example.row_id for example in examples],
            row_by_row=explain_row_by_row(without_adapter(trainer.model), longest) or UNSET,
            kinds={kind: {"rows": count} for kind, count in sorted(rows_by_kind.items())},
            **count_tokens(trained_rows),
            heldout=ranking,
        )

    return StepTrainer(trainer, complete_report)
