"""One model in memory, asked every assistant turn of held-out conversations: its answers, what of them is right, and its loss."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.comparison import accuracies
from agent_pipeline.evaluation.generate import generate
from agent_pipeline.evaluation.samples import TurnSample, as_text, turn_samples
from agent_pipeline.evaluation.scoring import score
from agent_pipeline.progress import Progress, silent
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.config import probe_device
from agent_pipeline.training.encoding import EncodedRow, encode_row
from agent_pipeline.training.loading import load_model
from agent_pipeline.training.losses import RowLoss, encoded_losses, mean_loss
from agent_pipeline.training.masks import prompt_ids
from agent_pipeline.training.templates import TrainingTemplate, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MARGIN = 16
"""New tokens allowed beyond the length of what was expected: room for other spacing, an end for rambling."""


def plain(text: str) -> str:
    """The words of a text, in lower case."""
    return " ".join(re.findall(r"\w+", text.casefold()))


@dataclass(frozen=True)
class Question:
    """A sample as tokens: the prompt, and the most new tokens it may be answered with."""

    sample: TurnSample
    prompt: list[int]
    limit: int


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
    """`loss` in nats an assistant's token; `accuracies` as in `comparison`; `counts` of turns, and of those that cannot be asked."""

    turns: list[Turn]
    loss: float | None
    accuracies: dict[str, Any]
    counts: dict[str, int]


def stop_ids(tokenizer: "PreTrainedTokenizerBase", template: TrainingTemplate) -> set[int]:
    """The tokens that end an answer."""
    return set(tokenizer.convert_tokens_to_ids(list(template.stops))) | {tokenizer.eos_token_id} - {None}


@dataclass
class Answering:
    """A model with its tokenizer and template. Prompts and rows of more than `max_length` tokens lose their oldest exchanges."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    template: TrainingTemplate
    max_length: int = 2048
    progress: Progress = silent

    @classmethod
    def of(cls, base: BaseModel, trained: Path | None = None, max_length: int = 2048, progress: Progress = silent) -> "Answering":
        """The base model, with the adapter in `trained` on it, or the whole model that lies there. Raises ModelError."""
        tokenizer, template = load_tokenizer(trained or base.path, base.trust_remote_code)
        adapter = trained is not None and (trained / "adapter_config.json").is_file()
        whole = BaseModel(base.name, trained, base.revision, base.trust_remote_code) if trained is not None and not adapter else base
        return cls(load_model(whole, probe_device(), trained if adapter else None), tokenizer, template, max_length, progress)

    def question(self, sample: TurnSample, max_new_tokens: int) -> Question | None:
        """The sample as tokens, shortened as in training; None where that is not enough, or where the template cannot render it."""
        row = {
            "row_id": sample.row_id,
            "session_id": sample.session_id,
            "messages": [*sample.prompt, sample.expected],
            "tools": sample.tools,
        }
        fitting = encode_row(self.tokenizer, row, self.max_length)
        if fitting is None:
            return None
        start, end = fitting.encoded.turns[-1]
        prompt = prompt_ids(self.tokenizer, fitting.messages[:-1], sample.tools)
        return Question(sample, prompt, min(max_new_tokens, end - start + MARGIN))

    def answers(self, questions: Sequence[Question], text: str = "turns answered") -> list[str]:
        """The greedy answer to each question, as text. Special tokens stay: in some families they are what says "this is a call"."""
        stops = stop_ids(self.tokenizer, self.template)
        tokens = generate(self.model, [q.prompt for q in questions], [q.limit for q in questions], stops, self.progress, text)
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def on(self, samples: Sequence[TurnSample], max_new_tokens: int = 96) -> list[str | None]:
        """The greedy answer at each turn; None for a turn that cannot be asked."""
        questions = [self.question(sample, max_new_tokens) for sample in samples]
        answers = iter(self.answers([question for question in questions if question]))
        return [next(answers) if question else None for question in questions]

    def losses(self, rows: Sequence[EncodedRow]) -> list[RowLoss]:
        """The loss of each row, in nats an assistant's token."""
        return encoded_losses(self.model, [row.encoded for row in rows], self.progress)

    def on_rows(self, rows: list[dict[str, Any]], max_samples: int = 0, max_new_tokens: int = 96) -> Answered:
        """Every turn of the rows of the split `test`. Raises DataError where there is none that can be asked."""
        samples, counts = turn_samples(rows, max_samples)
        pairs = [(sample, text) for sample, text in zip(samples, self.on(samples, max_new_tokens), strict=True) if text is not None]
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
            mean_loss(self.losses(fitting)),
            accuracies([asdict(each) for each in scores]),
            {**counts, "dropped": len(samples) - len(pairs), "rows_dropped": len(rows) - len(fitting)},
        )
