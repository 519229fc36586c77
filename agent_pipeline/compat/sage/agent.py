"""The trainer of an agent's model, with the names of SAGE.

The adapter is the adapter that the asset `sft_adapter` trains from the same rows and options. The
training itself belongs to `training`, and the figures to `evaluation`.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from agent_pipeline.compat.models import copy_model, find_base_model
from agent_pipeline.compat.sage.config import AgentSFTConfig, EvalResult, TrainingResult
from agent_pipeline.compat.sage.rl import add_row_defaults
from agent_pipeline.compat.samples import Row, read_conversations
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
from agent_pipeline.training.config import FURTHER
from agent_pipeline.training.on_policy_steps import train_on_policy
from agent_pipeline.training.preference_steps import train_preferences
from agent_pipeline.training.provenance import FurtherInput, SftInput
from agent_pipeline.training.report import TrainingReport
from agent_pipeline.training.sft import train_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MODEL_FOLDER = "model"
BUFFER_FILE = "replay_buffer.json"


class AgentSFTTrainer:
    """A trainer of an agent's model, which also evaluates, saves and loads the model.

    Attributes:
        config: The options.
        model_path: The directory of the model; None before a model was trained or loaded.
    """

    def __init__(self, config: AgentSFTConfig, progress: Progress = silent) -> None:
        self.config = config
        self.model_path: Path | None = None
        self._progress = progress
        self._answerer: TurnAnswerer | None = None

    def train(self) -> TrainingResult:
        """Train the model. If an earlier run was killed, resume it.

        Raises:
            DataError: The data cannot be trained on, or training and evaluation data overlap.
            ModelError: The base model cannot be trained.
            SettingsError: The settings are invalid.
        """
        config, base = self.config, find_base_model(self.config.base_model)
        samples = read_conversations(config.train_data)
        rows, counts = samples.rows, dict(samples.counts)
        heldout = self._read_eval_rows("select")
        contents = {row["content_sha256"] for row in rows}
        shared_count = sum(row["content_sha256"] in contents for row in heldout)
        if shared_count:
            raise DataError(
                f"{shared_count} of {len(heldout)} conversations of `eval_data` are also in "
                "`train_data`: remove them from one of the two datasets."
            )
        if config.use_coreset_selection:
            rows = config.make_selector(len(rows)).select(rows, config.base_model)
            counts["coreset"] = len(rows)
        learner = None
        if config.use_online_continual:
            learner = self._load_buffer()
            stream = _mix_batches(learner, rows, config.batch_size)
            counts["replayed"] = len(stream) - len(rows)
            rows = stream
        sft_input = SftInput(rows, base, config.make_training_config())
        build_dir = self._make_build_dir(".training")
        report = train_adapter(sft_input, build_dir, heldout, self._progress)
        self._replace_model(build_dir)
        if learner is not None:
            content = encode_json({"seen": learner.seen, "rows": learner.buffer})
            write_atomically(self._output_dir / BUFFER_FILE, content)
        eval_loss = report.heldout["after"] if report.heldout else None
        return self._make_result(report, counts, eval_loss)

    def prefer(
        self,
        data: Iterable[Mapping[str, object]],
        method: Literal["dpo", "kto"] = "dpo",
        **options: object,
    ) -> TrainingResult:
        """Continue to train the adapter from preferences, and replace the model in `output_dir`.

        The assets `dpo_adapter` and `kto_adapter` do the same. Training stops early if the model
        gets worse on `eval_data`.

        Args:
            data: Rows of `preference_dataset` (dpo) or `kto_dataset` (kto).
            method: The method.
            **options: Settings of the asset.

        Raises:
            ModelError: No adapter was trained or loaded.
            DataError: Too few rows can be trained on, or the model got worse from the start.
            SettingsError: An option does not exist, or is out of range.
        """
        rows, base = add_row_defaults(data), find_base_model(self.config.base_model)
        config = FURTHER[method](**options)

        def train(adapter_dir: Path, out_dir: Path, select: list[Row]) -> TrainingReport:
            further_input = FurtherInput(method, rows, base, adapter_dir, config, select=select)
            return train_preferences(further_input, out_dir, progress=self._progress)

        return self._train_further(method, len(rows), train)

    def practise(
        self,
        data: object = None,
        method: Literal["grpo", "sdft", "distill"] = "grpo",
        world: str = "",
        **options: object,
    ) -> TrainingResult:
        """Continue to train the adapter on its own texts, and replace the model in `output_dir`.

        The assets `grpo_adapter`, `sdft_adapter` and `distill_adapter` do the same. Training stops
        early if the model gets worse on `eval_data`.

        Args:
            data: Conversations; by default `train_data`.
            method: The method.
            world: The agent's world, as `package.module:Class`. Without a world, grpo is rewarded
                by the logged turns.
            **options: Settings of the asset.

        Raises:
            PipelineError: See `prefer`.
        """
        data = self.config.train_data if data is None else data
        rows, base = read_conversations(data).rows, find_base_model(self.config.base_model)
        config = FURTHER[method](**options)
        practised = practice(rows, config, world)
        teacher_name = getattr(config, "teacher_model", "")
        teacher = find_base_model(teacher_name) if teacher_name else None

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

        return self._train_further(method, len(practised.rows), train)

    def evaluate(
        self, data: object = None, max_samples: int = 0, max_new_tokens: int = 96
    ) -> EvalResult:
        """Let the model answer at every agent turn. Before training, the base model answers.

        Args:
            data: Conversations; by default `eval_data`.
            max_samples: The largest number of turns, spread over the tasks; 0 for all.
            max_new_tokens: The longest reply, in tokens.

        Raises:
            DataError: There is no data, or no turn fits.
            ModelError: The model cannot be loaded.
        """
        data = self.config.eval_data if data is None else data
        if data is None:
            raise DataError("There is no data to evaluate on: pass `data`, or set `eval_data`.")
        rows, answerer = read_conversations(data, "test").rows, self.answerer
        samples, counts = turn_samples(rows, max_samples)
        prepared = [answerer.question(sample, max_new_tokens) for sample in samples]
        questions = [question for question in prepared if question is not None]
        if not questions:
            raise DataError(
                f"None of the {counts['turns']} turns in {len(rows)} rows fits into "
                "`max_seq_length`: raise `max_seq_length`."
            )
        rows = split_into_trained_rows(answerer.renderer, rows)
        encoded = [encode_row(answerer.renderer, row, answerer.max_length) for row in rows]
        fitting_rows = [row for row in encoded if row is not None]
        forward_pass = answerer.forward(fitting_rows, questions)
        asked_samples = [question.sample for question in questions]
        replies = forward_pass.replies
        scores = [
            score(sample, reply.text, reply.cut)
            for sample, reply in zip(asked_samples, replies, strict=True)
        ]
        figures = measure_answers([sample.task_key for sample in asked_samples], scores)
        details: dict[str, object] = msgspec.to_builtins(figures)
        details["counts"] = {
            **counts,
            "dropped": len(samples) - len(questions),
            "rows_dropped": len(rows) - len(fitting_rows),
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
            for sample, reply, answer_score in zip(asked_samples, replies, scores, strict=True)
        ]
        accuracy = sum(answer_score.right for answer_score in scores) / len(scores)
        return EvalResult(accuracy, average_losses(forward_pass.losses), len(scores), details)

    def save_model(self, path: str | Path) -> str:
        """Copy the trained model with its tokenizer and chat template, and return the copy's path.

        Raises:
            ModelError: No model was trained or loaded.
        """
        if self.model_path is None:
            raise ModelError(
                "There is no trained model to save: call `train()` or `load_model(path)` first."
            )
        return copy_model(self.model_path, path)

    def load_model(self, path: str | Path) -> None:
        """Load a model that `save_model` or `train` wrote, and use it.

        Raises:
            ModelError: The directory holds no model.
        """
        path = Path(path).expanduser()
        if not any((path / name).is_file() for name in ("adapter_config.json", "config.json")):
            raise ModelError(
                f"{path} does not contain a trained model: give a directory that `save_model` "
                "wrote.",
                path=path,
            )
        self.model_path, self._answerer = path, None

    @property
    def model(self) -> "PreTrainedModel":
        """Return the model in memory: the trained or loaded model, or the base model."""
        return self.answerer.model

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """Return the tokenizer, with the chat template for training."""
        return self.answerer.renderer.tokenizer

    @property
    def answerer(self) -> TurnAnswerer:
        """Return the model with its tokenizer and chat template, which is loaded on first use."""
        if self._answerer is None:
            base = find_base_model(self.config.base_model)
            self._answerer = TurnAnswerer.of(
                base, self.model_path, self.config.max_seq_length, self._progress
            )
        return self._answerer

    @property
    def _output_dir(self) -> Path:
        return Path(self.config.output_dir).expanduser()

    def _make_build_dir(self, name: str) -> Path:
        build_dir = self._output_dir / name
        build_dir.mkdir(parents=True, exist_ok=True)
        return build_dir

    def _read_eval_rows(self, split: str) -> list[Row]:
        data = self.config.eval_data
        return [] if data is None else read_conversations(data, split).rows

    def _train_further(
        self,
        method: str,
        record_count: int,
        train: Callable[[Path, Path, list[Row]], TrainingReport],
    ) -> TrainingResult:
        """Run a further training step on the adapter, and replace the model by the result."""
        if self.model_path is None or not (self.model_path / "adapter_config.json").is_file():
            raise ModelError(
                "There is no adapter to continue from: first call `train()` with `use_lora`, or "
                "`load_model(path)`."
            )
        select = self._read_eval_rows("select")
        build_dir = self._make_build_dir(f".{method}")
        report = train(self.model_path, build_dir, select)
        self._replace_model(build_dir)
        return self._make_result(report, {"records": record_count})

    def _replace_model(self, build_dir: Path) -> None:
        """Replace the model in `output_dir` by the model that was just trained."""
        self.model_path, self._answerer = self._output_dir / MODEL_FOLDER, None
        shutil.rmtree(self.model_path, ignore_errors=True)
        build_dir.rename(self.model_path)

    def _make_result(
        self, report: TrainingReport, counts: Mapping[str, int], eval_loss: float | None = None
    ) -> TrainingResult:
        return TrainingResult(
            str(self._output_dir / MODEL_FOLDER),
            report.loss_last,
            eval_loss,
            report.steps,
            {**counts, "trained": report.rows["trained"]},
            report.to_json(),
        )

    def _load_buffer(self) -> OnlineContinualLearner:
        """Return the replay buffer of the last training run in `output_dir`, or an empty buffer."""
        learner, path = self.config.make_learner(), self._output_dir / BUFFER_FILE
        if not path.is_file():
            return learner
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            rows, seen = stored["rows"], stored["seen"]
        except (ValueError, KeyError, OSError) as error:
            raise DataError(
                f"The replay buffer {path} cannot be read ({error}): delete it to start with an "
                f"empty buffer.",
                path=path,
            ) from error
        # The seed of the last run would draw the same rows again.
        seed = self.config.seed + seen
        return replace(learner, seed=seed, buffer=rows[: learner.buffer_size], seen=seen)


def _mix_batches(learner: OnlineContinualLearner, rows: list[Row], batch_size: int) -> list[Row]:
    """Return a stream of batches with added replay rows, and offer each batch to the buffer."""
    stream: list[Row] = []
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        stream += learner.mix_with_replay(batch)
        learner.update_buffer(batch)
    return stream
