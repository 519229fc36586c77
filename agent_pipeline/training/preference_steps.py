"""Training an adapter on from preferences: DPO on pairs, KTO on judged sessions. The adapter that it starts from is the reference."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.engine.prefix_tree import prefix_tree
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import Device
from agent_pipeline.progress import Progress, silent
from agent_pipeline.training.config import PreferenceTraining, resolve_size_defaults
from agent_pipeline.training.further_steps import NothingTrained, Start, origin_of, train_on
from agent_pipeline.training.preference_examples import (
    Encode,
    Row,
    encode_pairs,
    encode_sessions,
    log_probs,
    with_reference,
)
from agent_pipeline.training.sft import only_train, token_counts
from agent_pipeline.training.trainers.common import shared_arguments
from agent_pipeline.training.trainers.dpo import Dpo
from agent_pipeline.training.trainers.kto import Kto
from agent_pipeline.training.trainers.preferences import Objective, preference_trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer, TrainerCallback


@dataclass(frozen=True)
class Method:
    """A way to learn from preferences: what its rows are called, how they are read, what is optimised by its options."""

    rows: str
    encode: Encode
    objective: Callable[[Any], Objective]


METHODS = {
    "dpo": Method("pairs", encode_pairs, lambda config: Dpo(config.beta, config.sft_weight)),
    "kto": Method("judged sessions", encode_sessions, lambda config: Kto(config.beta)),
}


def train_preferences(
    method: str,
    rows: Sequence[Row],
    base: BaseModel,
    adapter_dir: Path,
    config: PreferenceTraining,
    out_dir: Path,
    select: Sequence[Row] = (),
    heldout: Sequence[Row] = (),
    progress: Progress = silent,
    reference: str = "",
) -> dict[str, Any]:
    """Train the adapter in `adapter_dir` on from the `rows` (train split) and leave the new one in `out_dir`; the report is returned.

    `method` is a name of `METHODS`, and the rows are those of `preference_dataset` (dpo) or `kto_dataset` (kto). `select` are SFT rows of
    the split `select`, on whose turns the kinds of decision are measured while it trains. `heldout` are judged rows of other splits; the
    report says how they are ranked. `reference` names the adapter in `adapter_dir`. A killed training goes on from its last checkpoint.

    Raises:
        NothingTrained: fewer than `config.min_rows` rows can be trained on, or a kind of decision fell at the first look.
        DataError: one of the rows is not of the split `train`.
        ModelError: base or adapter cannot be loaded.
    """
    only_train(rows)
    config = type(config)(**resolve_size_defaults(config.model_dump(), method, base))
    of = METHODS[method]
    renderer = load_renderer(adapter_dir, base.trust_remote_code)
    encoded = of.encode(renderer, rows, config.max_length, progress)
    if len(encoded.rows) < config.min_rows:
        raise NothingTrained(
            f"{method} needs {config.min_rows} {of.rows}, and {len(encoded.rows)} of {len(rows)} can be trained on: judge more trials of "
            f"the same tasks, or lower min_rows. {encoded.first_dropped}".rstrip(),
            encoded.counts,
        )
    objective = of.objective(config)

    def build(
        model: "PreTrainedModel", device: Device, work_dir: Path, watch: "TrainerCallback"
    ) -> "tuple[Trainer, Callable[[], dict[str, Any]]]":
        from transformers import TrainingArguments

        examples = with_reference(model, encoded.rows, progress)
        held = with_reference(model, of.encode(renderer, heldout, config.max_length, silent).rows)
        step_rows = [
            row
            for example in examples[: config.per_device_train_batch_size]
            for row in example.rows
        ]
        arguments = TrainingArguments(
            **shared_arguments(
                config, device, work_dir, len(examples), len(prefix_tree(step_rows).tokens)
            ),
            gradient_checkpointing_kwargs={"use_reentrant": False},
            per_device_train_batch_size=config.per_device_train_batch_size,
            save_steps=config.stop_steps,
        )
        trainer = preference_trainer(model, examples, objective, arguments, progress, [watch])
        return trainer, lambda: {
            "row_ids": [example.row_id for example in examples],
            "kinds": {
                kind: {"rows": count}
                for kind, count in sorted(Counter(each.kind for each in examples).items())
            },
            **token_counts(
                [row for example in examples for row in example.rows[: objective.trained_rows]]
            ),
            "heldout": objective.figures(held, log_probs(trainer.model, held)) if held else None,
        }

    origin = origin_of(method, rows, select, base, reference, config)
    return train_on(
        Start(base, adapter_dir, renderer, origin),
        config,
        out_dir,
        select,
        encoded.counts,
        build,
    )
