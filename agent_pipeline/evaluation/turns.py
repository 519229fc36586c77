"""Answers of a model in memory to held-out turns, and the model's loss and P(call) on these turns.

Whether an answer is right is decided in `answer_scoring`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.engine.packed_linear import speed_up_linear_modules
from agent_pipeline.engine.scoring import (
    ReadTokens,
    RowLoss,
    TokenScores,
    average_scores,
    score_tokens,
)
from agent_pipeline.evaluation.call_probability import call_branches, call_probability
from agent_pipeline.evaluation.greedy import Continuation, Writer, writes
from agent_pipeline.evaluation.samples import TurnSample
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.models.device import Device, fast_device, probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import THOUGHT, Message, Tool
from agent_pipeline.tokenization.encoding import EncodedRow, encode_row
from agent_pipeline.tokenization.loss_masks import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MARGIN = 24
"""Number of new tokens that an answer may have beyond the length of the expected answer. It leaves
room for other spacing and for arguments that repeat their default, but it stops endless answers.
"""


def plain(text: str) -> str:
    """Return the words of a text in lower case, separated by blanks."""
    return " ".join(re.findall(r"\w+", text.casefold()))


@dataclass(frozen=True)
class Question:
    """A held-out turn as tokens, ready for a model to answer.

    Attributes:
        sample: The sample.
        messages: The messages that the model reads, shortened to fit.
        row: The prompt and the expected answer with its end token. Only the answer is trained.
        limit: The maximum number of new tokens in an answer.
        too_tight: Whether `limit` is too small for the expected answer.
        branches: Rows that open a call at each place of the turn where a call may begin (see
            `call_probability`).
    """

    sample: TurnSample
    messages: list[Message]
    row: Encoded
    limit: int
    too_tight: bool
    branches: list[Encoded]

    @property
    def prompt(self) -> list[int]:
        """Return the prompt tokens after which the model answers."""
        return self.row.input_ids[: self.row.turns[0][0]]

    @property
    def expected(self) -> list[int]:
        return self.row.input_ids[self.row.turns[0][0] :]


@dataclass(frozen=True)
class TurnAnswer:
    """A model's answer at a held-out turn.

    Attributes:
        text: The text of the answer.
        cut: Whether a limit that is too small for the expected answer ended it.
        verified: Whether the answer is the expected answer and was not generated.
        unended: Whether any limit ended the answer.
    """

    text: str
    cut: bool
    verified: bool
    unended: bool = False


@dataclass(frozen=True)
class ForwardPass:
    """The results of one forward pass over rows and questions.

    Attributes:
        losses: The loss of each row.
        call_probabilities: P(call) at each question.
        verified: For each question, whether the greedy answer is exactly the expected answer, token
            for token.
        replies: The answers to the questions that were asked.
    """

    losses: list[RowLoss]
    call_probabilities: list[float | None]
    verified: list[bool]
    replies: list[TurnAnswer]


def _write_answer_to(
    writer: Writer, number: int, question: Question
) -> Callable[[TokenScores, ReadTokens | None], None]:
    """Return a callback that requests the answer to a question from `writer`.

    The forward pass reads each question together with the expected answer, and calls the callback
    with the likeliest token at each position of that answer. Up to the first position at which the
    likeliest token is not the expected token, the greedy answer is the expected answer. So only the
    rest has to be generated, and the prompt is not read again.

    Args:
        writer: The writer of greedy answers.
        number: The number of the answer.
        question: The question.
    """

    def write_answer(scores: TokenScores, read: ReadTokens | None) -> None:
        likeliest = scores.best.tolist()
        writer.add(number, question.prompt, question.limit, question.expected, likeliest, read)

    return write_answer


@dataclass
class TurnAnswerer:
    """A model with its tokenizer and chat template that answers held-out turns.

    If a prompt or a row is longer than `max_length` tokens, its oldest exchanges are removed.
    """

    model: "PreTrainedModel"
    renderer: ChatRenderer
    max_length: int = 2048
    progress: Progress = silent
    device: str = ""

    @classmethod
    def of(
        cls,
        base: BaseModel,
        trained: Path | None = None,
        max_length: int = 2048,
        progress: Progress = silent,
        device: Device | None = None,
    ) -> "TurnAnswerer":
        """Load the base model, the base model with an adapter, or a whole trained model.

        Args:
            base: The base model.
            trained: The folder of an adapter or of a whole model; None for the base model alone.
            max_length: The maximum number of tokens in a prompt or row.
            progress: A callback that reports progress.
            device: The device. The default is `fast_device` for a base model with or without an
                adapter, and `probe_device` for a whole model, because a whole model was trained in
                float32.

        Raises:
            ModelError: The model cannot be loaded.
        """
        renderer = load_renderer(trained or base.path, base.trust_remote_code)
        adapter = trained is not None and (trained / "adapter_config.json").is_file()
        whole = (
            BaseModel(base.name, trained, base.revision, base.trust_remote_code)
            if trained is not None and not adapter
            else base
        )
        device = device or (fast_device() if whole is base else probe_device())
        model = load_model(whole, device, trained if adapter else None).requires_grad_(False)
        speed_up_linear_modules(model)
        return cls(model, renderer, max_length, progress, str(device))

    def question(self, sample: TurnSample, max_new_tokens: int) -> Question | None:
        """Convert a sample into tokens, shortened as in training.

        Return None if the sample is too long even if it is shortened, or if the template cannot
        render it.
        """
        row: DatasetRow = {
            "row_id": sample.row_id,
            "session_id": sample.session_id,
            "messages": [*sample.prompt, sample.expected],
            "tools": sample.tools,
        }
        fitting = encode_row(self.renderer, row, self.max_length)
        if fitting is None:
            return None
        ids, (start, end) = fitting.encoded.input_ids, fitting.encoded.turns[-1]
        prompt, expected = (
            self.renderer.prompt_ids(fitting.messages[:-1], sample.tools),
            ids[start:end],
        )
        if prompt != ids[:start]:  # a token spans the border
            expected = self.renderer.turn_ids(fitting.messages, sample.tools)
        whole = Encoded(
            [*prompt, *expected],
            [False] * len(prompt) + [True] * len(expected),
            [(len(prompt), len(prompt) + len(expected))],
        )
        branches = call_branches(
            self.renderer,
            fitting.messages[:-1],
            sample.tools,
            sample.text,
            sample.expected.get(THOUGHT, ""),
        )
        room = len(expected) + MARGIN
        return Question(
            sample,
            fitting.messages[:-1],
            whole,
            min(max_new_tokens, room),
            max_new_tokens < room,
            branches,
        )

    def forward(
        self,
        rows: Sequence[EncodedRow],
        questions: Sequence[Question],
        replying: Sequence[int] | None = None,
    ) -> ForwardPass:
        """Compute losses, P(call) and answers in one forward pass.

        Tokens that rows, questions and branches share are computed once. The pass over the expected
        answer shows the first token that the model would choose differently. The reply is generated
        only from that token on.

        Args:
            rows: The rows to compute a loss on.
            questions: The questions to compute P(call) on.
            replying: The indices of the questions to answer; None for all.
        """
        replying = range(len(questions)) if replying is None else replying
        branches = [branch for question in questions for branch in question.branches]
        encoded = [
            *(row.encoded for row in rows),
            *(question.row for question in questions),
            *branches,
        ]
        stops = self.renderer.answer_end_ids
        writer = Writer(self.model, stops, self.progress)
        then = {
            len(rows) + index: _write_answer_to(writer, number, questions[index])
            for number, index in enumerate(replying)
        }
        scores = iter(score_tokens(self.model, encoded, self.progress, then))
        losses = [average_scores(next(scores)) for _ in rows]
        read = [next(scores) for _ in questions]
        verified = [
            turn_scores is not None and writes(question.expected, turn_scores.best.tolist(), stops)
            for question, turn_scores in zip(questions, read, strict=True)
        ]
        chances = [
            call_probability([next(scores) for _ in question.branches]) for question in questions
        ]
        return ForwardPass(
            losses,
            chances,
            verified,
            self._replies([questions[index] for index in replying], writer.continuations()),
        )

    def replies(
        self, questions: Sequence[Question], text: str = "turns answered"
    ) -> list[TurnAnswer]:
        """Return the model's greedy answer to each question.

        Special tokens are kept, because some model families mark a call only with special tokens.
        """
        writer = Writer(self.model, self.renderer.answer_end_ids)
        then = {
            number: _write_answer_to(writer, number, question)
            for number, question in enumerate(questions)
        }
        score_tokens(
            self.model,
            [question.row for question in questions],
            lambda done, total, _: self.progress(done, total, text),
            then,
        )
        return self._replies(questions, writer.continuations())

    def _replies(
        self, questions: Sequence[Question], written: Sequence[Continuation]
    ) -> list[TurnAnswer]:
        return [
            TurnAnswer(
                self.text(answer.tokens, question.sample.tools),
                answer.cut and question.too_tight,
                answer.verified,
                answer.cut,
            )
            for question, answer in zip(questions, written, strict=True)
        ]

    def text(self, tokens: list[int], tools: list[Tool]) -> str:
        """Return generated tokens as text, including special tokens."""
        return self.renderer.decode_reply(tokens, tools)

    def on(self, samples: Sequence[TurnSample], max_new_tokens: int = 96) -> list[str | None]:
        """Return the greedy answer at each turn, or None for a turn that does not fit or cannot be
        rendered.
        """
        questions = [self.question(sample, max_new_tokens) for sample in samples]
        answers = iter(self.replies([question for question in questions if question]))
        return [next(answers).text if question else None for question in questions]
