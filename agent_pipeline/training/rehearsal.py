"""Rehearsal: the base model's own answers to plain questions, mixed into an agent's training rows.

A few hundred rows of one job teach a small model to do nothing else: it looks up a greeting, and
refuses to name the capital of France. A share of the base model's own answers among the rows keeps
what the model could do before (rehearsal: Robins 1995; with answers that the model wrote itself:
Huang et al. 2024, "Mitigating Catastrophic Forgetting in Large Language Models with
Self-Synthesized Rehearsal").

Rows of earlier nights belong to `selection.replay`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.engine.generation import generate
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.progress import Progress
from agent_pipeline.selection.buffer import count_replayed, parse_ratio
from agent_pipeline.sessions.session import Message
from agent_pipeline.tokenization.encoding import EncodedRow, encode_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_NEW_TOKENS = 64
"""Maximum length of a rehearsed answer in tokens. Longer answers are left out.

Trained up to their last whole sentence, such answers kept less of what the base model could do.
"""

MIN_ANSWERS = 32
"""Minimum number of rehearsed answers, because a small share of few rows would have no effect.

There are never more answers than rows.
"""

SYSTEM_PROMPT = "You are a helpful assistant."

QUESTIONS = (
    "Hello!",
    "Thank you, that is all.",
    "How are you today?",
    "What can you help me with?",
    "Good morning! What is a good breakfast?",
    "Tell me a short joke.",
    "Write one sentence about the sea.",
    "Give me a name for a small dog.",
    "What is the capital of Italy?",
    "What is the capital of Spain?",
    "Which country has the city of Berlin?",
    "On which continent is Egypt?",
    "What is the largest animal on Earth?",
    "Which animal barks?",
    "What do cows eat?",
    "What do spiders make?",
    "How many legs does a spider have?",
    "How many months are in a year?",
    "How many minutes are in an hour?",
    "What is the last month of the year?",
    "Which day comes after Monday?",
    "Which season is the coldest?",
    "What is three plus four?",
    "What is ten minus six?",
    "What is five times two?",
    "What is half of twenty?",
    "What is the opposite of big?",
    "What is the opposite of early?",
    "What is another word for happy?",
    "What is the plural of child?",
    "What is the past tense of go?",
    "Spell the word house.",
    "What color is grass?",
    "What color do you get from blue and yellow?",
    "What is the boiling point of water in Celsius?",
    "What is water made of?",
    "What do people breathe?",
    "Why do we sleep?",
    "Why does it rain?",
    "Why is exercise healthy?",
    "What is the sun?",
    "Which planet is known for its rings?",
    "Which force makes an apple fall?",
    "What is a volcano?",
    "What is a library for?",
    "What is a bicycle?",
    "Who painted the Mona Lisa?",
    "Who was Albert Einstein?",
    "Which language is spoken in Mexico?",
    "Which river flows through Egypt?",
    "Which instrument has black and white keys?",
    "Name three fruits.",
    "Name two primary colors.",
    "Name a metal.",
    "How do I boil an egg?",
    "How can I save water at home?",
    "Give me a tip for learning a language.",
    "Is the moon larger than the Earth?",
    "Can penguins fly?",
    "Translate 'good night' into French.",
)
"""Plain questions for rehearsal. They differ from the sanity questions of a decision
(`promotion.sanity_questions`).
"""


@dataclass(frozen=True)
class RehearsalAmount:
    """The number of answers that are rehearsed, derived from the options.

    Attributes:
        new_rows: The number of rows that are trained on otherwise.
        ratio: The share of answers in all that is trained on.
    """

    new_rows: int
    ratio: float

    @property
    def answers(self) -> int:
        """The number of rehearsed answers."""
        if not self.ratio:
            return 0
        share = count_replayed(self.new_rows, parse_ratio(self.ratio))
        return max(share, min(MIN_ANSWERS, self.new_rows))


def rehearse(
    model: "PreTrainedModel",
    renderer: ChatRenderer,
    rows: Sequence[DatasetRow],
    amount: RehearsalAmount,
    max_length: int,
    progress: Progress,
) -> list[EncodedRow]:
    """Return answers of the base model as rows to train on.

    A question occurs at most twice: once without tools, and once with the tools of one of the rows.

    Args:
        model: The base model.
        renderer: Its renderer.
        rows: SFT rows, whose tools are shown with half of the answers.
        amount: How many answers are wanted. There may be fewer, because some answers do not end.
        max_length: Tokens per row.
        progress: Is called while the model answers.
    """
    count = amount.answers
    questions = QUESTIONS[: 2 * count]  # some answers do not end
    if not questions:
        return encode_rows(renderer, [], max_length).rows
    conversations = [_ask(question) for question in questions]
    answers = _answer(model, renderer, conversations, progress)
    ended = [
        (question, answer) for question, answer in zip(questions, answers, strict=True) if answer
    ]
    # Each answer is trained with tools and without: training must not teach whether to call a tool.
    plain_rows: list[DatasetRow] = []
    for row_index in range(min(count, 2 * len(ended))):
        is_second_round, position = divmod(row_index, len(ended))
        question, answer = ended[position]
        has_tools = (position + is_second_round) % 2 == 1
        tools = (rows[row_index % len(rows)].get("tools") or []) if has_tools else []
        plain_rows.append(
            {
                "row_id": f"rehearsal {row_index}",
                "session_id": "",
                "messages": [*_ask(question), {"role": "assistant", "content": answer}],
                "tools": tools,
            }
        )
    return encode_rows(renderer, plain_rows, max_length).rows


def _ask(question: str) -> list[Message]:
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question},
    ]


def _answer(
    model: "PreTrainedModel",
    renderer: ChatRenderer,
    conversations: Sequence[list[Message]],
    progress: Progress,
) -> list[str]:
    """Return the greedy answer to each conversation, or an empty text if it does not end."""

    def report(done: int, total: int, _: str) -> None:
        progress(done, total, "plain questions answered by the base")

    prompts = [renderer.prompt_ids(messages, []) for messages in conversations]
    answers = generate(model, prompts, [MAX_NEW_TOKENS] * len(prompts), renderer.stop_ids, report)
    return [
        renderer.tokenizer.decode(tokens).strip() if len(tokens) < MAX_NEW_TOKENS else ""
        for tokens in answers
    ]
