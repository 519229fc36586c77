"""Fine-tuning a model on sessions, every weight of it: omniagents' names over TRL.

It trains on what `sft_adapter` trains on: the assistant's tokens alone, in the training template,
whole exchanges dropped where a conversation is too long. Give this a GPU, or a small model: nothing
is frozen. `agent.AgentSFTTrainer` trains adapters.
"""

import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from agent_pipeline.compat.models import base_model, copied_model
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
from agent_pipeline.storage.filesystem import give_usual_mode
from agent_pipeline.tokenization.encoding import DropReason, encode_rows
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.trainers.common import make_shared_arguments
from agent_pipeline.training.trainers.sft import build_trl_trainer

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import SFTConfig
    from trl import SFTTrainer as TrlTrainer

DTYPES = ("bfloat16", "float16", "float32", "auto")
COMPARED = 8
"""Training conversations on which an exported GGUF is compared with the model."""


@dataclass(frozen=True)
class SFTTrainingConfig:
    """How a model is fine-tuned; `max_length` in tokens, `warmup_ratio` of all steps. `packing`
    lays rows end to end (best-fit).
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
        """TRL's configuration of the same; bfloat16 only where the device has units for it.
        `changes` are options of TRL's.
        """
        from trl import SFTConfig

        config = TrainingConfig.translated(vars(self))
        own_options = {
            "per_device_train_batch_size": config.per_device_train_batch_size,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
            **{
                name: getattr(self, name)
                for name in ("max_length", "packing", "save_strategy", "logging_steps", "report_to")
            },
        }
        shared = make_shared_arguments(
            config,
            probe_device(),
            Path(self.output_dir),
            0,
            config.per_device_train_batch_size * self.max_length,
        )
        return SFTConfig(**(shared | own_options | changes))


@dataclass
class SFTTrainingResult:
    """What came of a training: the model's directory, TRL's metrics with the counts of rows, the
    last loss that was logged (nats a token) and TRL's trainer with the model in memory.
    """

    model_path: str
    metrics: dict[str, Any]
    final_loss: float | None
    trainer: "TrlTrainer"
    conversations: list[Row] = field(default_factory=list, repr=False)
    longest_row: int = 0

    def save_model(self, path: str | Path) -> str:
        """Copy the model with its tokenizer and template to another directory, and return it."""
        return copied_model(Path(self.model_path), path)

    def to_ollama(
        self,
        model_name: str,
        *,
        model_path: str | Path | None = None,
        llama_cpp_path: str | None = None,
        quantization: str = "q8_0",
    ) -> str:
        """Convert the model (or the one at `model_path`) to GGUF, prove it against the model,
        register it with Ollama; the GGUF's path.

        The GGUF, its Modelfile and `parity.json` stay in the folder `gguf` beside the weights,
        whatever Ollama says. The proof is that of the asset `gguf_export`: tokens, template, and
        greedy answers on conversations of the training.

        Raises ExportError: a step failed, or there is no Ollama; says which step, why and what to
        do.
        """
        source = Path(model_path or self.model_path).expanduser()
        folder = source / "gguf"
        folder.mkdir(parents=True, exist_ok=True)
        conversations = self.conversations or [
            {"messages": [{"role": "user", "content": "Hello"}], "tools": []}
        ]
        report = export_whole(
            BaseModel(str(source), source, "", load_settings().trust_remote_code),
            folder,
            ExportRows(conversations),
            ExportOptions(
                outtypes=(quantization,),
                longest_row=self.longest_row,
                llama_cpp_path=llama_cpp_path,
            ),
        )
        gguf = folder / f"model-{quantization}.gguf"
        if not report.ok:
            raise ExportError(
                f"{gguf} does not answer as the model does ({folder / 'parity.json'}): it was not "
                f"given to Ollama."
            )
        registered = create(model_name, folder / "Modelfile")
        if not registered.created:
            raise ExportError(
                f"The model is converted, {gguf}, but the step `ollama create` could not be done. "
                f"{registered.text}"
            )
        return str(gguf)


class SFTTrainer:
    """Fine-tunes a model: a Hugging Face id, a directory, or the embedded one
    (`base_model.EMBEDDED`).

    `torch_dtype`: of the weights; where the device has no units for a short one, float32 is taken,
    with a warning. `device_map`: as transformers has it, where there is a GPU. Raises ArgumentError
    for a type that there is not; ModelError at the first use of a model that cannot be had.
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
                f"There is no torch_dtype {self.torch_dtype!r}: choose one of {', '.join(DTYPES)}."
            )
        self.device_map = device_map
        self._progress = progress

    @cached_property
    def model(self) -> "PreTrainedModel":
        """The model in memory, loaded at its first use."""
        device = probe_device()
        return load_model(
            self._base,
            device,
            dtype=self._dtype(),
            device_map=self.device_map if device.name != "cpu" else None,
        )

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer, with the training template; a missing pad token is the one that ends a
        text.
        """
        return self._renderer.tokenizer

    @cached_property
    def _renderer(self) -> ChatRenderer:
        return load_renderer(self._base.path, self._base.trust_remote_code)

    def train(self, dataset: "Dataset | Any") -> SFTTrainingResult:
        """Train on conversations (`messages` with `tools`; `prompt` and `completion` as chats: only
        the completion is trained) or on texts (`prompt`, `completion`), and leave the model in the
        configuration's `output_dir`.

        `dataset` is anything that `samples.read_samples` takes. Raises DataError for data that
        cannot be trained on, ModelError.
        """
        samples = read_samples(dataset)
        limit = self.config.max_length
        encoded, counts, first_dropped = encode_rows(
            self._renderer, samples.rows, limit, self._progress
        )
        texts = [
            encode_text(self.tokenizer, prompt, completion) for prompt, completion in samples.texts
        ]
        tokens = [row.encoded for row in encoded] + [
            text for text in texts if len(text.input_ids) <= limit
        ]
        too_long = len(texts) + len(encoded) - len(tokens)
        dropped = {reason: counts[f"dropped_{reason}"] for reason in get_args(DropReason)}
        data = (
            samples.counts
            + Counter({"truncated": counts["truncated"], **dropped})
            + Counter(too_long=too_long)
        )
        if not tokens:
            reason = first_dropped or f"They are longer than max_length ({limit} tokens): raise it."
            raise DataError(f"None of {data['records']} records can be trained on. {reason}")
        # Rows fit already: TRL's own truncation would cut answers in the middle.
        arguments = self.config.to_trl_config(max_length=limit if self.config.packing else None)
        trainer = build_trl_trainer(self.model, self.tokenizer, tokens, arguments, self._progress)
        metrics = trainer.train().metrics
        out_dir = Path(self.config.output_dir).expanduser()
        trainer.model.save_pretrained(str(out_dir))
        for weights in out_dir.glob("*.safetensors"):
            give_usual_mode(weights)
        self.tokenizer.save_pretrained(str(out_dir))
        tools = {row["row_id"]: row["tools"] for row in samples.rows}
        logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return SFTTrainingResult(
            str(out_dir),
            {**metrics, "steps": trainer.state.global_step, "data": dict(data)},
            logged[-1] if logged else metrics.get("train_loss"),
            trainer,
            [{"messages": row.messages, "tools": tools[row.row_id]} for row in encoded[:COMPARED]],
            max(len(token.input_ids) for token in tokens),
        )

    def train_from_traces(
        self, project_slug: str, agent_slug: str, **filters: Any
    ) -> SFTTrainingResult:
        """Train on the sessions that pass the filters of `export_traces_for_sft`; what became of
        the others is in the metrics.

        Raises NoSessionsError (a ValueError) where none passes, with how many each filter took;
        else as that and as `train`.
        """
        counts: Counter[str] = Counter()
        result = self.train(
            export_traces_for_sft(project_slug, agent_slug, counts=counts, **filters)
        )
        result.metrics["sessions"] = dict(counts)
        return result

    @cached_property
    def _base(self) -> BaseModel:
        return base_model(self.model_name)

    def _dtype(self) -> object:
        import torch

        if self.torch_dtype in ("bfloat16", "float16") and not probe_device().bf16:
            warnings.warn(
                f"This device has no units for {self.torch_dtype}: the weights are float32, which "
                f"is many times faster.",
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
    """Fine-tune a model on an agent's sessions in one call: `SFTTrainer` and its
    `train_from_traces`, whose `filters` these are.
    """
    trainer = SFTTrainer(model_name, config=config, torch_dtype=torch_dtype, device_map=device_map)
    return trainer.train_from_traces(project_slug, agent_slug, **filters)


def encode_text(tokenizer: "PreTrainedTokenizerBase", prompt: str, completion: str) -> Encoded:
    """Two texts end to end, of which the second, and the token that ends a text, is trained; what a
    text begins with is the tokenizer's.
    """
    encoding = tokenizer(prompt + completion, return_offsets_mapping=True)
    ids = list(encoding.input_ids)
    # As in `masks.encode`: of a token that straddles the border the model has already seen a part.
    trained = [end > start >= len(prompt) for start, end in encoding.offset_mapping]
    if (ends := tokenizer.eos_token_id) is not None:
        if ids[-1:] != [ends]:
            ids, trained = [*ids, ends], [*trained, False]
        trained[-1] = True
    return Encoded(ids, trained, [(trained.index(True), len(ids))] if True in trained else [])
