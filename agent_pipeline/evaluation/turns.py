"""One model in memory, asked every assistant turn of held-out conversations: what it says, what of that is right, and its loss."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.comparison import accuracies
from agent_pipeline.evaluation.evaluate import answers, question_of, stop_ids
from agent_pipeline.evaluation.samples import TurnSample, as_text, turn_samples
from agent_pipeline.evaluation.scoring import score
from agent_pipeline.progress import Progress, silent
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.config import probe_device
from agent_pipeline.training.encoding import encode_row
from agent_pipeline.training.loading import load_model
from agent_pipeline.training.losses import encoded_losses, mean_loss
from agent_pipeline.training.templates import TrainingTemplate, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def plain(text: str) -> str:
    """The words of a text, in lower case."""
    return " ".join(re.findall(r"\w+", text.casefold()))


@dataclass(frozen=True)
class Turn:
    """What the agent did at a turn, what the model says, and whether that is right: a call by name and arguments, an answer by its words
    (case, punctuation and white space aside)."""

    session_id: str
    task_key: str
    turn_index: int
    expected: str
    said: str
    right: bool


@dataclass(frozen=True)
class Answered:
    """`loss` in nats an assistant's token; `accuracies` as in `comparison`; `counts` of turns, and of those that are too long."""

    turns: list[Turn]
    loss: float | None
    accuracies: dict[str, Any]
    counts: dict[str, int]


@dataclass
class Answering:
    """A model with its tokenizer and template."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    template: TrainingTemplate
    max_length: int = 2048
    progress: Progress = silent

    @classmethod
    def of(cls, base: BaseModel, trained: Path | None = None, max_length: int = 2048, progress: Progress = silent) -> "Answering":
        """The base model, with the adapter in `trained` on it, or the whole model that lies there. Raises ModelError."""
        adapter = trained is not None and (trained / "adapter_config.json").is_file()
        whole = BaseModel(base.name, trained, base.revision, base.trust_remote_code) if trained is not None and not adapter else base
        model = load_model(whole, probe_device(), trained if adapter else None)
        tokenizer, template = load_tokenizer(trained or base.path, base.trust_remote_code)
        return cls(model, tokenizer, template, max_length, progress)

    def on(self, samples: Sequence[TurnSample], max_new_tokens: int = 96) -> list[str | None]:
        """What the model says at each turn, as text with its special tokens; null for one that is too long."""
        questions = [question_of(self.tokenizer, sample, max_new_tokens, self.max_length) for sample in samples]
        asked = [question for question in questions if question]
        said = iter(answers(self.model, self.tokenizer, asked, stop_ids(self.tokenizer, self.template), self.progress, "turns answered"))
        return [next(said) if question else None for question in questions]

    def on_rows(self, rows: list[dict[str, Any]], max_samples: int = 0, max_new_tokens: int = 96) -> Answered:
        """Every turn of the rows of the side `test`. Raises DataError where there is none that fits."""
        samples, counts = turn_samples(rows, max_samples)
        said = self.on(samples, max_new_tokens)
        pairs = [(sample, text) for sample, text in zip(samples, said, strict=True) if text is not None]
        if not pairs:
            raise DataError(
                f"There is no turn to evaluate on: {len(rows)} rows, {counts['turns']} turns, none of which fits: raise max_length."
            )
        scores = [score(sample, text) for sample, text in pairs]
        fitting = [encoded for row in rows if (encoded := encode_row(self.tokenizer, row, self.max_length))]
        turns = [
            Turn(
                sample.session_id,
                sample.task_key,
                sample.turn_index,
                as_text(sample),
                text,
                bool(each.exact if sample.calls else each.call_or_answer and plain(text) == plain(sample.text)),
            )
            for (sample, text), each in zip(pairs, scores, strict=True)
        ]
        return Answered(
            turns,
            mean_loss(encoded_losses(self.model, [row.encoded for row in fitting], self.progress)),
            accuracies([asdict(each) for each in scores]),
            {**counts, "dropped": len(samples) - len(pairs), "rows_dropped": len(rows) - len(fitting)},
        )
