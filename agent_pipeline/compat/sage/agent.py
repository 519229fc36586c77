"""An agent's model, trained and evaluated in one object: SAGE's names over the rooms below.

The adapter is the one that the asset `sft_adapter` would train from the same rows and numbers: same
template, same masks, same trainer.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agent_pipeline.compat.models import base_model, copied_model
from agent_pipeline.compat.sage.coresets import CoresetSelector
from agent_pipeline.compat.sage.rl import judged_rows
from agent_pipeline.compat.samples import Row, rows_only
from agent_pipeline.engine.scoring import average_losses
from agent_pipeline.errors import DataError, ModelError
from agent_pipeline.evaluation.answer_scoring import score
from agent_pipeline.evaluation.model_comparison import measure_answers
from agent_pipeline.evaluation.rollouts import practice
from agent_pipeline.evaluation.samples import as_text, turn_samples
from agent_pipeline.evaluation.turns import TurnAnswerer
from agent_pipeline.progress import Progress, silent
from agent_pipeline.selection.buffer import OnlineContinualLearner
from agent_pipeline.sessions.session import encode_json
from agent_pipeline.storage.filesystem import write_atomically
from agent_pipeline.tokenization.encoding import encode_row, split_into_trained_rows
from agent_pipeline.training.config import FURTHER, TrainingConfig
from agent_pipeline.training.on_policy_steps import train_on_policy
from agent_pipeline.training.preference_steps import train_preferences
from agent_pipeline.training.provenance import FurtherInput, SftInput
from agent_pipeline.training.report import TrainingReport
from agent_pipeline.training.sft import train_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MODEL = "model"
BUFFER = "replay_buffer.json"
USUAL_CORESET = 1000


@dataclass(frozen=True)
class AgentSFTConfig:
    """How an agent's model is trained.

    `train_data` and `eval_data` are anything that `samples.read_samples` takes: a file, a data set,
    a list of rows or of trajectories; they may share no conversation. `max_seq_length` in tokens.
    The learning rate of 2e-5 is one for every weight: with LoRA ten to fifty times it is usual.

    `use_coreset_selection` trains on `coreset_target_size` rows (`None`: half of them, at most
    1,000), chosen by any strategy of `selection`; the losses that some ask for are the base
    model's. `use_online_continual` takes the rows in their order, as a stream of batches: each is
    mixed with rows of earlier ones, `continual_replay_ratio` of the whole, and then shown to the
    buffer; the buffer stays in `output_dir`, so that the next training replays what this one saw.
    `max_steps` above 0 ends a training early.

    Raises SettingsError for a value that cannot work.
    """

    base_model: str
    train_data: object
    eval_data: object = None
    output_dir: str = "./agent_sft_output"
    num_epochs: float = 3
    batch_size: int = 8
    learning_rate: float = 2e-5
    gradient_accumulation_steps: int = 4
    max_seq_length: int = 2048
    use_lora: bool = True
    lora_r: int = 16
    lora_alpha: int = 32
    use_dora: bool = False
    use_lora_plus: bool = False
    lora_plus_lr_ratio: float = 16.0
    use_coreset_selection: bool = False
    coreset_strategy: str = "hybrid"
    coreset_target_size: int | None = None
    use_online_continual: bool = False
    continual_buffer_size: int = 2048
    continual_replay_ratio: float = 0.25
    max_steps: int = 0
    seed: int = 42

    def __post_init__(self) -> None:
        self.training()
        if self.use_coreset_selection:
            CoresetSelector(
                self.coreset_strategy,
                USUAL_CORESET if self.coreset_target_size is None else self.coreset_target_size,
            )
        if self.use_online_continual:
            self.learner()

    def training(self) -> TrainingConfig:
        """The options of the training itself, under our names for them. Raises SettingsError."""
        return TrainingConfig.translated({**vars(self), "in_order": self.use_online_continual})

    def learner(self) -> OnlineContinualLearner:
        """An empty buffer. Raises SettingsError."""
        return OnlineContinualLearner(
            self.continual_buffer_size, self.continual_replay_ratio, seed=self.seed
        )


@dataclass(frozen=True)
class TrainingResult:
    """What came of a training. Losses in nats an assistant's token: of the last step, and of
    `eval_data` (`None` without any).

    `counts`: `records` given, `rows` of them, `coreset` chosen, `replayed` from the buffer,
    `trained`; `report` is `training.json`.
    """

    model_path: str
    final_loss: float
    eval_loss: float | None
    steps: int
    counts: dict[str, int]
    report: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class EvalResult:
    """How a model does on turns of its agent. `accuracy`: the share of turns that are right, a call
    by name and arguments, an answer by its words; `loss` in nats an assistant's token. `details`
    has the accuracies apart, and every turn with what was said.
    """

    accuracy: float
    loss: float | None
    num_samples: int
    details: dict[str, Any] = field(repr=False)


class AgentSFTTrainer:
    """Trains, evaluates, keeps and takes up again one agent's model."""

    def __init__(self, config: AgentSFTConfig, progress: Progress = silent) -> None:
        self.config = config
        self.model_path: Path | None = None
        self._progress = progress
        self._loaded: TurnAnswerer | None = None

    def train(self) -> TrainingResult:
        """Train; the model lies in the folder `model` of `output_dir`, complete or not at all. One
        that was killed goes on where it was.

        Raises DataError for data that cannot be trained on, ModelError for a base model that
        cannot, SettingsError.
        """
        config, base = self.config, base_model(self.config.base_model)
        rows, counted = rows_only(config.train_data)
        heldout = rows_only(config.eval_data, "select")[0] if config.eval_data is not None else []
        counts = {**counted}
        contents = {row["content_sha256"] for row in rows}
        if both := sum(row["content_sha256"] in contents for row in heldout):
            raise DataError(
                f"{both} of {len(heldout)} conversations of eval_data are in train_data too: take "
                f"them out of one of the two."
            )
        if config.use_coreset_selection:
            rows = self._coreset(rows)
            counts["coreset"] = len(rows)
        out_dir = Path(config.output_dir).expanduser()
        learner = None
        if config.use_online_continual:
            learner = self._buffer(out_dir)
            stream: list[Row] = []
            for start in range(0, len(rows), config.batch_size):
                batch = rows[start : start + config.batch_size]
                stream += learner.mix_with_replay(batch)
                learner.update_buffer(batch)
            counts["replayed"] = len(stream) - len(rows)
            rows = stream
        building = out_dir / ".training"
        building.mkdir(parents=True, exist_ok=True)
        report = train_adapter(
            SftInput(rows, base, config.training()), building, heldout, self._progress
        )
        self._put_in_place(building)
        if learner is not None:
            write_atomically(
                out_dir / BUFFER, encode_json({"seen": learner.seen, "rows": learner.buffer})
            )
        return _result(report, out_dir, counts, report.heldout["after"] if report.heldout else None)

    def prefer(
        self,
        data: Iterable[Mapping[str, object]],
        method: Literal["dpo", "kto"] = "dpo",
        **options: object,
    ) -> TrainingResult:
        """Train the adapter on from judgments, as `dpo_adapter` and `kto_adapter` do; the model in
        `output_dir` is replaced.

        `data` are rows of `preference_dataset` (dpo) or `kto_dataset` (kto), `options` those of the
        asset. The kinds of decision are watched on `eval_data`.

        Raises:
            ModelError: no adapter was trained or loaded. DataError: too few rows can be trained on,
            or they made right decisions less probable from the start. SettingsError: an option does
            not exist, or is out of range.
        """
        rows, base = judged_rows(data), base_model(self.config.base_model)
        config = FURTHER[method](**options)

        def train(adapter_dir: Path, out_dir: Path, select: list[Row]) -> TrainingReport:
            further_input = FurtherInput(method, rows, base, adapter_dir, config, select=select)
            return train_preferences(further_input, out_dir, progress=self._progress)

        return self._go_on(method, len(rows), train)

    def practise(
        self,
        data: object = None,
        method: Literal["grpo", "sdft", "distill"] = "grpo",
        world: str = "",
        **options: object,
    ) -> TrainingResult:
        """Train the adapter on from what it writes itself, as `grpo_adapter`, `sdft_adapter` and
        `distill_adapter` do; the model in `output_dir` is replaced.

        `data` are conversations (by default those of the configuration), `world` the agent's
        (`package.module:Class`; grpo without one is rewarded by the logged turns), `options` those
        of the asset. The kinds of decision are watched on `eval_data`.

        Raises: as `prefer`.
        """
        rows, base = (
            rows_only(self.config.train_data if data is None else data)[0],
            base_model(self.config.base_model),
        )
        config = FURTHER[method](**options)
        practised = practice(rows, config, world)
        teacher = base_model(named) if (named := getattr(config, "teacher_model", "")) else None

        def train(adapter_dir: Path, out_dir: Path, select: list[Row]) -> TrainingReport:
            further_input = FurtherInput(
                method,
                practised.rows,
                base,
                adapter_dir,
                config,
                select=select,
                details=practised.details,
            )
            return train_on_policy(further_input, out_dir, practised.play, teacher, self._progress)

        return self._go_on(method, len(practised.rows), train)

    def _go_on(
        self, method: str, records: int, train: Callable[[Path, Path, list[Row]], TrainingReport]
    ) -> TrainingResult:
        """Put what `train` makes of the adapter in the model's place."""
        if self.model_path is None or not (self.model_path / "adapter_config.json").is_file():
            raise ModelError(
                "There is no adapter to train on: call train() with use_lora, or load_model(path), "
                "first."
            )
        select = (
            rows_only(self.config.eval_data, "select")[0]
            if self.config.eval_data is not None
            else []
        )
        out_dir = Path(self.config.output_dir).expanduser()
        building = out_dir / f".{method}"
        building.mkdir(parents=True, exist_ok=True)
        report = train(self.model_path, building, select)
        self._put_in_place(building)
        return _result(report, out_dir, {"records": records})

    def _put_in_place(self, building: Path) -> None:
        """Replace the model in `output_dir`."""
        self.model_path, self._loaded = building.with_name(MODEL), None
        shutil.rmtree(self.model_path, ignore_errors=True)
        building.rename(self.model_path)

    def evaluate(
        self, data: object = None, max_samples: int = 0, max_new_tokens: int = 96
    ) -> EvalResult:
        """The model (before any training: the base model) on every assistant turn of `data`, or of
        the configuration's `eval_data`.

        `max_samples` above 0: so many turns at most, spread over tasks. Raises DataError,
        ModelError.
        """
        data = self.config.eval_data if data is None else data
        if data is None:
            raise DataError(
                "There is nothing to evaluate on: give data, or eval_data in the configuration."
            )
        rows, _ = rows_only(data, "test")
        samples, counts = turn_samples(rows, max_samples)
        questions = [
            question
            for sample in samples
            if (question := self.answering.question(sample, max_new_tokens))
        ]
        if not questions:
            raise DataError(
                f"There is no turn to evaluate on: {len(rows)} rows, {counts['turns']} turns, none "
                f"of which fits: raise max_length."
            )
        rows = split_into_trained_rows(self.answering.renderer, rows)
        fitting = [
            encoded
            for row in rows
            if (encoded := encode_row(self.answering.renderer, row, self.answering.max_length))
        ]
        read = self.answering.forward(fitting, questions)
        prompts = [
            (question.sample, reply)
            for question, reply in zip(questions, read.replies, strict=True)
        ]
        scores = [score(sample, reply.text, reply.cut) for sample, reply in prompts]
        details: dict[str, object] = msgspec.to_builtins(
            measure_answers([sample.task_key for sample, _ in prompts], scores)
        )
        details["counts"] = {
            **counts,
            "dropped": len(samples) - len(questions),
            "rows_dropped": len(rows) - len(fitting),
        }
        details["samples"] = [
            {
                "session_id": sample.session_id,
                "task_key": sample.task_key,
                "turn_index": sample.turn_index,
                "expected": as_text(sample),
                "actual": reply.text,
                "right": answer_score.right,
            }
            for (sample, reply), answer_score in zip(prompts, scores, strict=True)
        ]
        return EvalResult(
            sum(answer_score.right for answer_score in scores) / len(scores),
            average_losses(read.losses),
            len(scores),
            details,
        )

    def save_model(self, path: str | Path) -> str:
        """Copy the trained adapter (or whole model), with tokenizer and template, to a directory,
        and return it.

        Raises ModelError where nothing was trained or loaded.
        """
        if self.model_path is None:
            raise ModelError(
                "There is no trained model to save: call train() or load_model(path) first."
            )
        return copied_model(self.model_path, path)

    def load_model(self, path: str | Path) -> None:
        """Take up a model that `save_model` or `train` left. Raises ModelError where there is
        none.
        """
        path = Path(path).expanduser()
        if not any((path / name).is_file() for name in ("adapter_config.json", "config.json")):
            raise ModelError(
                f"{path} holds no trained model: give a directory that save_model wrote."
            )
        self.model_path, self._loaded = path, None

    @property
    def model(self) -> "PreTrainedModel":
        """The model in memory: trained, loaded, or the base."""
        return self.answering.model

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """Its tokenizer, with the training template."""
        return self.answering.renderer.tokenizer

    @property
    def answering(self) -> TurnAnswerer:
        """The model with its tokenizer and template, loaded at its first use. Raises ModelError."""
        if self._loaded is None:
            self._loaded = TurnAnswerer.of(
                base_model(self.config.base_model),
                self.model_path,
                self.config.max_seq_length,
                self._progress,
            )
        return self._loaded

    def _coreset(self, rows: list[Row]) -> list[Row]:
        target_size = self.config.coreset_target_size
        size = min(USUAL_CORESET, math.ceil(len(rows) / 2)) if target_size is None else target_size
        return CoresetSelector(self.config.coreset_strategy, size, seed=self.config.seed).select(
            rows, self.config.base_model
        )

    def _buffer(self, out_dir: Path) -> OnlineContinualLearner:
        """The buffer that the last training in this folder left; an empty one where there was
        none.
        """
        path = out_dir / BUFFER
        if not path.is_file():
            return self.config.learner()
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            rows, seen = stored["rows"], stored["seen"]
        except (ValueError, KeyError, OSError) as error:
            raise DataError(
                f"The replay buffer {path} cannot be read ({error}): remove it to begin anew."
            ) from error
        # Not with the seed of the last time: it would draw the same rows again.
        return replace(
            self.config.learner(),
            seed=self.config.seed + seen,
            buffer=rows[: self.config.continual_buffer_size],
            seen=seen,
        )


def _result(
    report: TrainingReport, out_dir: Path, counts: Mapping[str, int], eval_loss: float | None = None
) -> TrainingResult:
    counts = {**counts, "trained": report.rows["trained"]}
    return TrainingResult(
        str(out_dir / MODEL), report.loss_last, eval_loss, report.steps, counts, report.to_json()
    )
