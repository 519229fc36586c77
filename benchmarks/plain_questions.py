"""`python -m benchmarks.plain_questions PARTITION [ADAPTER]`: what does the adapter forget of what its base model knows?

Base model and adapter answer 48 plain questions. None of them is rehearsed in training or asked by
the decision. Each question is asked three times: with a general system prompt, with the agent's own
system prompt, and with the agent's own system prompt and tools. An answer is good if it calls no
tool and contains one of the words. ADAPTER is a folder; the default is the candidate of the lake.

Example: `AGENT_PIPELINE_LAKE=lake python -m benchmarks.plain_questions shop/support`
"""

import sys
from pathlib import Path

from agent_pipeline.config.settings import load_settings
from agent_pipeline.evaluation.turns import TurnAnswerer
from agent_pipeline.keys import parse_key
from agent_pipeline.models.base_model import resolve_base_model
from agent_pipeline.models.families import parse_reply
from agent_pipeline.promotion import sanity_questions
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.sessions.session import Tool
from agent_pipeline.training import rehearsal

MAX_NEW_TOKENS, MAX_LENGTH = 48, 2048

QUESTIONS: dict[str, tuple[str, ...]] = {
    "What is the capital of Germany?": ("berlin",),
    "What is the capital of Russia?": ("moscow",),
    "What is the capital of China?": ("beijing",),
    "What is the capital of Greece?": ("athens",),
    "What is the capital of Poland?": ("warsaw",),
    "In which country is the city of Paris?": ("france",),
    "In which country are the pyramids of Giza?": ("egypt",),
    "On which continent is India?": ("asia",),
    "On which continent is Kenya?": ("africa",),
    "Which country is north of the United States?": ("canada",),
    "Which mountain is the highest on Earth?": ("everest",),
    "Which planet is closest to the sun?": ("mercury",),
    "Which planet is called the red planet?": ("mars",),
    "What does the Earth move around?": ("sun",),
    "What moves around the Earth?": ("moon",),
    "How many hours are in a day?": ("24", "twenty-four"),
    "How many seconds are in a minute?": ("60", "sixty"),
    "How many days are in a year?": ("365",),
    "How many letters are in the English alphabet?": ("26", "twenty-six"),
    "How many sides does a triangle have?": ("3", "three"),
    "How many wheels does a car have?": ("4", "four"),
    "How many legs does a dog have?": ("4", "four"),
    "How many fingers are on one hand?": ("5", "five"),
    "What is three plus two?": ("5", "five"),
    "What is ten plus ten?": ("20", "twenty"),
    "Which month comes after March?": ("april",),
    "Which day comes after Friday?": ("saturday",),
    "Which season comes after winter?": ("spring",),
    "Which season is the hottest?": ("summer",),
    "What is the opposite of up?": ("down",),
    "What is the opposite of old?": ("young", "new"),
    "What is the opposite of day?": ("night",),
    "What is the opposite of left?": ("right",),
    "What is the opposite of open?": ("closed", "close", "shut"),
    "What color is snow?": ("white",),
    "What color is a banana?": ("yellow",),
    "What color is blood?": ("red",),
    "What do cows give us to drink?": ("milk",),
    "Which animal is called the king of the jungle?": ("lion",),
    "Which animal has a very long neck?": ("giraffe",),
    "What is a baby dog called?": ("puppy", "pup"),
    "What do we call a baby cat?": ("kitten",),
    "What do birds use to fly?": ("wing",),
    "What do fish live in?": ("water", "ocean", "sea"),
    "Which organ pumps blood through the body?": ("heart",),
    "With which organ do we see?": ("eye",),
    "What do we use an umbrella against?": ("rain",),
    "Who was the first president of the United States?": ("washington",),
}
"""Plain questions, each with words of which a good answer contains at least one."""


def main(partition: str, adapter: str = "") -> None:
    """Ask the questions, and print a table with a row per prompt."""
    seen = {*sanity_questions.QUESTIONS, *rehearsal.QUESTIONS}
    assert not seen & set(QUESTIONS), seen & set(QUESTIONS)
    key, settings = parse_key(partition), load_settings()
    lake, trained = settings.open_lake(), settings.candidate(key)
    made_from = trained.manifest["made_from"]
    base = resolve_base_model(
        made_from["base_model"],
        settings.cache_path,
        settings.trust_remote_code,
        made_from["base_revision"],
    )
    answerer = TurnAnswerer.of(base, Path(adapter) if adapter else trained.path, MAX_LENGTH)
    row = next(iter(read_dataset_rows(lake, key, ("test",))))
    own = str(row["messages"][0]["content"])
    tools = list(row.get("tools") or [])
    print("| prompt | base model | adapter | tool calls of the adapter |\n|---|---:|---:|---:|")
    for name, prompt, shown in (
        ("general", sanity_questions.SYSTEM, []),
        ("the agent's", own, []),
        ("the agent's, with its tools", own, tools),
    ):
        samples = [
            sanity_questions.make_sample(question, words[0], shown, prompt)
            for question, words in QUESTIONS.items()
        ]
        questions = [answerer.question(sample, MAX_NEW_TOKENS) for sample in samples]
        fitting = [question for question in questions if question is not None]
        assert len(fitting) == len(QUESTIONS)
        with answerer.model.disable_adapter():
            base_texts = [answer.text for answer in answerer.replies(fitting)]
        texts = [answer.text for answer in answerer.replies(fitting)]
        calls = sum(parse_reply(text, shown).is_call for text in texts)
        base_good, good = (count_good(answers, shown) for answers in (base_texts, texts))
        print(
            f"| {name} | {base_good} of {len(QUESTIONS)} | {good} of {len(QUESTIONS)} | {calls} |",
            flush=True,
        )


def count_good(texts: list[str], tools: list[Tool]) -> int:
    """Count the answers that call no tool and contain one of the words."""
    count = 0
    for words, text in zip(QUESTIONS.values(), texts, strict=True):
        reply = parse_reply(text, tools)
        count += not reply.is_call and sanity_questions.contains_word(reply.text, words)
    return count


if __name__ == "__main__":
    main(*sys.argv[1:])
