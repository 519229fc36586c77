"""Training of all weights of a model on sessions, with the names of omniagents.

The trained tokens and the chat template are those of the asset `sft_adapter`. Adapters belong to
`compat.sage.agent`.
"""

import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from agent_pipeline.compat.models import copy_model, find_base_model
from agent_pipeline.compat.omniagents.sessions import export_traces_for_sft
from agent_pipeline.compat.samples import Row, read_samples
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import ArgumentError, DataError, ExportError
from agent_pipeline.export.gguf_export import ExportOptions, ExportRows, export_whole
from agent_pipeline.export.ollama import create
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import Progress, silent
from agent_pipeline.tokenization.encoding import DropReason, encode_rows
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.sft import save_trained
from agent_pipeline.training.trainers.common import limit_warmup, make_shared_arguments
from agent_pipeline.training.trainers.sft import build_trl_trainer

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import SFTConfig
    from trl import SFTTrainer as TrlTrainer

DTYPES = ("bfloat16", "float16", "float32", "auto")
COMPARED_CONVERSATIONS = 8
"""Number of training conversations on which an exported GGUF file is compared with the model."""
GREETING: Row = {"messages": [{"role": "user", "content": "Hello"}], "tools": []}


@dataclass(frozen=True)
class SFTTrainingConfig:
    """Options of a training run. Names that also exist in TRL have the same meaning as in TRL.

    Attributes:
        per_device_batch_size: Rows per forward pass.
        warmup_ratio: Share of the steps in which the learning rate rises.
        max_length: The longest row, in tokens.
        packing: Whether several rows fill one sequence.
        output_dir: The directory of the model.
    """

    num_train_epochs: float = 1
    per_device_batch_size: int = 2
    gradient_accumulation_steps: int = 4
    learning_rate: float = 2e-5
    max_grad_norm: float = 1.0
    warmup_ratio: float = 0.1
    max_length: int = 2048
    packing: bool = False
    output_dir: str = "./sft_output"
    save_strategy: str = "no"
    logging_steps: float = 10
    report_to: str = "none"

    def to_trl_config(self, **changes: object) -> "SFTConfig":
        """Convert the options into TRL's configuration. `changes` are options of TRL.

        The configuration uses bfloat16 only if the device supports it.
        """
        from trl import SFTConfig

        config = TrainingConfig.translated(vars(self))
        shared = make_shared_arguments(
            config,
            probe_device(),
            Path(self.output_dir),
            0,
            config.per_device_train_batch_size * self.max_length,
        )
        ours = {
            "per_device_train_batch_size": config.per_device_train_batch_size,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
            "max_length": self.max_length,
            "packing": self.packing,
            "save_strategy": self.save_strategy,
            "logging_steps": self.logging_steps,
            "report_to": self.report_to,
        }
        return SFTConfig(**(shared | ours | changes))


@dataclass
class SFTTrainingResult:
    """The result of a training run.

    Attributes:
        model_path: The directory of the model.
        metrics: The metrics of TRL, and the counts of the rows.
        final_loss: The loss that was logged last, in nats per token.
        trainer: TRL's trainer, with the model in memory.
        conversations: Training conversations on which an exported model is compared.
        longest_row: The tokens of the longest row.
    """

    model_path: str
    metrics: dict[str, Any]
    final_loss: float | None
    trainer: "TrlTrainer"
    conversations: list[Row] = field(default_factory=list, repr=False)
    longest_row: int = 0

    def save_model(self, path: str | Path) -> str:
        """Copy the model with its tokenizer and chat template, and return the path of the copy."""
        return copy_model(Path(self.model_path), path)

    def to_ollama(
        self,
        model_name: str,
        *,
        model_path: str | Path | None = None,
        llama_cpp_path: str | None = None,
        quantization: str = "q8_0",
    ) -> str:
        """Convert the model to GGUF, compare the file with the model, and register it with Ollama.

        The comparison is that of the asset `gguf_export`. The GGUF file, its Modelfile and
        `parity.json` stay in the folder `gguf` of the model.

        Args:
            model_name: The name of the model in Ollama.
            model_path: The directory of another model to convert.
            llama_cpp_path: The directory of llama.cpp.
            quantization: The type of the weights in the GGUF file.

        Returns:
            The path of the GGUF file.

        Raises:
            ExportError: A step failed, or Ollama is missing.
        """
        source = Path(model_path or self.model_path).expanduser()
        folder = source / "gguf"
        folder.mkdir(parents=True, exist_ok=True)
        report = export_whole(
            BaseModel(str(source), source, "", load_settings().trust_remote_code),
            folder,
            ExportRows(self.conversations or [GREETING]),
            ExportOptions(
                outtypes=(quantization,),
                longest_row=self.longest_row,
                llama_cpp_path=llama_cpp_path,
            ),
        )
        gguf = folder / f"model-{quantization}.gguf"
        if not report.ok:
            raise ExportError(
                f"The file {gguf} gives other answers than the model, so it was not registered "
                f"with Ollama: see the differences in {folder / 'parity.json'}.",
                path=gguf,
            )
        registered = create(model_name, folder / "Modelfile")
        if not registered.created:
            raise ExportError(
                f"The model was converted to {gguf}, but `ollama create` failed. {registered.text}",
                path=gguf,
            )
        return str(gguf)


class SFTTrainer:
    """A trainer that trains all weights of a model.

    Args:
        model_name: An id of the Hugging Face Hub, a directory, or the embedded base model. An error
            is raised when the model is first used.
        config: The options.
        torch_dtype: The type of the weights. If the device does not support a 16-bit type, float32
            is used, with a warning.
        device_map: The device map of transformers. It is used only if there is a GPU.
        progress: The progress to report to.

    Raises:
        ArgumentError: The type of the weights does not exist.
    """

    def __init__(
        self,
        model_name: str,
        *,
        config: SFTTrainingConfig | None = None,
        torch_dtype: "str | torch.dtype" = "bfloat16",
        device_map: object = "auto",
        progress: Progress = silent,
    ) -> None:
        self.model_name = model_name
        self.config = config or SFTTrainingConfig()
        self.torch_dtype = str(torch_dtype).removeprefix("torch.")
        if self.torch_dtype not in DTYPES:
            raise ArgumentError(
                f"The option `torch_dtype` is {self.torch_dtype!r}: choose one of "
                f"{', '.join(DTYPES)}."
            )
        self.device_map = device_map
        self._progress = progress

    @cached_property
    def model(self) -> "PreTrainedModel":
        """Return the model in memory, which is loaded when it is first used."""
        device = probe_device()
        device_map = self.device_map if device.name != "cpu" else None
        return load_model(self._base, device, dtype=self._choose_dtype(), device_map=device_map)

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """Return the tokenizer, with the chat template for training and a pad token."""
        return self._renderer.tokenizer

    @cached_property
    def _renderer(self) -> ChatRenderer:
        return load_renderer(self._base.path, self._base.trust_remote_code)

    @cached_property
    def _base(self) -> BaseModel:
        return find_base_model(self.model_name)

    def train(self, dataset: "Dataset | object") -> SFTTrainingResult:
        """Train on conversations or texts, and write the model to `output_dir`.

        Args:
            dataset: Data that `samples.read_samples` accepts. If a record has a prompt and a
                completion, only the completion is trained on.

        Raises:
            DataError: No record can be trained on.
            ModelError: The model cannot be loaded.
        """
        samples, limit = read_samples(dataset), self.config.max_length
        rows = encode_rows(self._renderer, samples.rows, limit, self._progress)
        texts = [
            encode_text(self.tokenizer, prompt, completion) for prompt, completion in samples.texts
        ]
        fitting_texts = [text for text in texts if len(text.input_ids) <= limit]
        tokens = [row.encoded for row in rows.rows] + fitting_texts
        dropped = {reason: rows.counts[f"dropped_{reason}"] for reason in get_args(DropReason)}
        counts = samples.counts + Counter(dropped)
        counts += Counter(
            truncated=rows.counts["truncated"], too_long=len(texts) - len(fitting_texts)
        )
        if not tokens:
            reason = (
                rows.first_dropped or f"They are longer than max_length ({limit} tokens): raise it."
            )
            raise DataError(
                f"None of {counts['records']} records can be used for training. {reason}"
            )
        # All rows fit. TRL's own truncation would cut answers in the middle.
        arguments = self.config.to_trl_config(max_length=limit if self.config.packing else None)
        trainer = build_trl_trainer(self.model, self.tokenizer, tokens, arguments, self._progress)
        limit_warmup(trainer)
        metrics = trainer.train().metrics
        out_dir = Path(self.config.output_dir).expanduser()
        save_trained(trainer.model, self._renderer, self._base, out_dir)
        tools = {row["row_id"]: row["tools"] for row in samples.rows}
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return SFTTrainingResult(
            model_path=str(out_dir),
            metrics={**metrics, "steps": trainer.state.global_step, "data": dict(counts)},
            final_loss=losses[-1] if losses else metrics.get("train_loss"),
            trainer=trainer,
            conversations=[
                {"messages": row.messages, "tools": tools[row.row_id]}
                for row in rows.rows[:COMPARED_CONVERSATIONS]
            ],
            longest_row=max(len(encoded.input_ids) for encoded in tokens),
        )

    def train_from_traces(
        self, project_slug: str, agent_slug: str, **filters: Any
    ) -> SFTTrainingResult:
        """Train on the sessions that pass the filters of `export_traces_for_sft`.

        The metrics have the counts of all sessions.

        Raises:
            NoSessionsError: No session passes. The message has the counts. It is a ValueError.
            PipelineError: See `export_traces_for_sft` and `train`.
        """
        counts: Counter[str] = Counter()
        rows = export_traces_for_sft(project_slug, agent_slug, counts=counts, **filters)
        result = self.train(rows)
        result.metrics["sessions"] = dict(counts)
        return result

    def _choose_dtype(self) -> object:
        import torch

        if self.torch_dtype in ("bfloat16", "float16") and not probe_device().bf16:
            warnings.warn(
                f"This device does not support {self.torch_dtype}, so the weights are float32.",
                stacklevel=3,
            )
            return torch.float32
        return self.torch_dtype if self.torch_dtype == "auto" else getattr(torch, self.torch_dtype)


def train_sft(
    model_name: str,
    project_slug: str,
    agent_slug: str,
    *,
    config: SFTTrainingConfig | None = None,
    torch_dtype: "str | torch.dtype" = "bfloat16",
    device_map: object = "auto",
    **filters: object,
) -> SFTTrainingResult:
    """Train all weights of a model on the sessions of an agent, in one call.

    Args:
        model_name: The model; see `SFTTrainer`.
        project_slug: The project.
        agent_slug: The agent.
        config: The options.
        torch_dtype: The type of the weights; see `SFTTrainer`.
        device_map: The device map of transformers.
        **filters: The filters of `export_traces_for_sft`.
    """
    trainer = SFTTrainer(model_name, config=config, torch_dtype=torch_dtype, device_map=device_map)
    return trainer.train_from_traces(project_slug, agent_slug, **filters)


def encode_text(tokenizer: "PreTrainedTokenizerBase", prompt: str, completion: str) -> Encoded:
    """Return the tokens of a prompt and its completion, in which only the completion is trained.

    The token that ends a text is trained too.
    """
    encoding = tokenizer(prompt + completion, return_offsets_mapping=True)
    ids = list(encoding.input_ids)
    # The model has seen a part of a token that straddles the border, so the token is not trained.
    trained = [end > start >= len(prompt) for start, end in encoding.offset_mapping]
    end_id = tokenizer.eos_token_id
    if end_id is not None:
        if ids[-1:] != [end_id]:
            ids.append(end_id)
            trained.append(False)
        trained[-1] = True
    turns = [(trained.index(True), len(ids))] if True in trained else []
    return Encoded(ids, trained, turns)
