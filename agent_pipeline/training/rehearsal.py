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
from random import Random
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
    "What is the capital of England?",
    "What is the capital of Egypt?",
    "What is the capital of Canada?",
    "What is the capital of Australia?",
    "What is the capital of India?",
    "What is the capital of Portugal?",
    "What is the capital of Austria?",
    "What is the capital of Turkey?",
    "Which country has the city of Rome?",
    "Which country has the city of Tokyo?",
    "Which country has the city of Madrid?",
    "In which city is the Eiffel Tower?",
    "In which country is the Great Wall?",
    "On which continent is Brazil?",
    "On which continent is France?",
    "On which continent is Japan?",
    "Which language is spoken in Germany?",
    "Which language is spoken in Japan?",
    "Which language is spoken in Russia?",
    "What is the smallest planet of the solar system?",
    "What is the longest river in the world?",
    "What is the largest ocean?",
    "What is the largest country?",
    "What is the tallest animal?",
    "What is the fastest land animal?",
    "Which animal has a trunk?",
    "Which animal says moo?",
    "Which bird cannot fly?",
    "What do pandas eat?",
    "What do hens lay?",
    "What do sheep give us?",
    "What do trees need to grow?",
    "How many legs does a cat have?",
    "How many wings does a bird have?",
    "How many eyes do people have?",
    "How many players are in a football team?",
    "How many sides does a square have?",
    "How many corners does a rectangle have?",
    "How many days are in February?",
    "How many weeks are in a year?",
    "How many years are in a century?",
    "How many cents are in a dollar?",
    "How many meters are in a kilometer?",
    "How many grams are in a kilogram?",
    "What is one plus one?",
    "What is two plus five?",
    "What is six plus three?",
    "What is nine minus four?",
    "What is eight minus two?",
    "What is three times three?",
    "What is four times five?",
    "What is ten divided by two?",
    "What is half of eight?",
    "Which number comes after nine?",
    "Which month comes after June?",
    "Which month comes before May?",
    "Which day comes before Sunday?",
    "Which day comes after Wednesday?",
    "Which season comes after summer?",
    "Which letter comes after B?",
    "What is the opposite of happy?",
    "What is the opposite of fast?",
    "What is the opposite of light?",
    "What is the opposite of good?",
    "What is the opposite of wet?",
    "What is the opposite of full?",
    "What is the opposite of yes?",
    "What is another word for small?",
    "What is another word for quick?",
    "What is another word for begin?",
    "What is the plural of mouse?",
    "What is the plural of book?",
    "What is the past tense of see?",
    "What is the past tense of eat?",
    "What color is the sun?",
    "What color is coal?",
    "What color is a lemon?",
    "What color is an orange?",
    "What color is milk?",
    "What color do you get from red and yellow?",
    "What is steam made of?",
    "What is bread made of?",
    "What is glass made from?",
    "What is cheese made from?",
    "What do we call a doctor for teeth?",
    "What do we call a person who flies a plane?",
    "What do we call a person who bakes bread?",
    "What is a baby cow called?",
    "What is the freezing point of water in Celsius?",
    "Which metal is liquid at room temperature?",
    "Which gas do people need to breathe?",
    "Which organ do we use to think?",
    "Who wrote Hamlet?",
    "Who invented the telephone?",
    "Who discovered America?",
    "Who was the first person on the moon?",
    "Which sport is played at Wimbledon?",
    "Translate 'thank you' into Spanish.",
    "Translate 'good morning' into German.",
    "Complete the sentence: The cat sat on the",
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
        """Return the number of rehearsed answers."""
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
    # Some answers do not end. A random choice has questions of every kind.
    questions = Random(0).sample(QUESTIONS, min(2 * count, len(QUESTIONS)))
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
