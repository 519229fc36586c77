"""Rehearsal: what the base model itself answers to plain questions, trained beside an agent's rows.

A few hundred rows of one job teach a small model to do nothing else: a greeting is looked up, and the capital of France is refused. Trained
beside the rows, a share of the base's own answers keeps what it could do before (rehearsal: Robins 1995; with answers that the model
wrote itself: Huang et al. 2024, "Mitigating Catastrophic Forgetting in Large Language Models with Self-Synthesized Rehearsal").
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent_pipeline.engine.generation import generate
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.progress import Progress
from agent_pipeline.selection.buffer import checked_ratio, due
from agent_pipeline.sessions.session import Message
from agent_pipeline.tokenization.encoding import EncodedRow, encode_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_NEW_TOKENS = 64
LEAST = 32
"""Answers beside a small set of rows, of which a small share would teach nothing; never more than there are rows."""
SYSTEM = "You are a helpful assistant."

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
"""Plain questions; those that a decision on a candidate asks (`promotion.sanity_questions`) are others."""


def rehearsed(
    model: "PreTrainedModel",
    renderer: ChatRenderer,
    rows: Sequence[dict[str, Any]],
    new: int,
    ratio: float,
    max_length: int,
    progress: Progress,
) -> list[EncodedRow]:
    """So many answers of `model`, still the base, that they are `ratio` of all that is trained beside `new` rows, and at least `LEAST`: at
    most two a question, one without tools and one with those of one of the `rows` beside it. Answers that do not end within
    `MAX_NEW_TOKENS` are left out: trained up to their last whole sentence, they kept less of what the base knew."""
    count = max(due(new, checked_ratio(ratio)), min(LEAST, new)) if ratio else 0
    questions = QUESTIONS[: 2 * count]  # some answers do not end
    answers = (
        _answers(model, renderer, [_asked(each) for each in questions], progress)
        if questions
        else []
    )
    ended = [(question, text) for question, text in zip(questions, answers, strict=True) if text]
    # The same answer with tools beside it: whether a base calls one then is what must not be learned from it.
    pairs = [
        (*each, (number + again) % 2 == 1) for again in (0, 1) for number, each in enumerate(ended)
    ]
    plain = [
        {
            "row_id": f"rehearsal {number}",
            "session_id": "",
            "messages": [*_asked(question), {"role": "assistant", "content": text}],
            "tools": (rows[number % len(rows)].get("tools") or []) if with_tools else [],
        }
        for number, (question, text, with_tools) in enumerate(pairs[:count])
    ]
    return encode_rows(renderer, plain, max_length).rows


def _asked(question: str) -> list[Message]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def _answers(
    model: "PreTrainedModel",
    renderer: ChatRenderer,
    conversations: Sequence[list[Message]],
    progress: Progress,
) -> list[str]:
    """The greedy answer to each conversation; empty where it does not end."""
    prompts = [renderer.prompt_ids(messages, []) for messages in conversations]
    written = generate(
        model,
        prompts,
        [MAX_NEW_TOKENS] * len(prompts),
        renderer.stop_ids,
        progress,
        "plain questions answered by the base",
    )
    return [
        renderer.tokenizer.decode(tokens).strip() if len(tokens) < MAX_NEW_TOKENS else ""
        for tokens in written
    ]
