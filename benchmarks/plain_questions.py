"""`python -m benchmarks.plain_questions PARTITION [ADAPTER]`: what does the adapter forget of what its base model knows?

Base model and adapter answer the plain questions of the decision, of which none is rehearsed in
training. The decision asks them with a general system prompt. Here each question is asked three
times: with this prompt, with the agent's own system prompt, and with the agent's own system prompt
and tools. An answer is good if it calls no tool and contains one of the words. ADAPTER is a folder; the default is the candidate of the lake.

Example: `AGENT_PIPELINE_LAKE=lake python -m benchmarks.plain_questions shop/support`
"""

import sys
from pathlib import Path

from agent_pipeline.compute.params import common_params
from agent_pipeline.config.settings import load_settings
from agent_pipeline.evaluation.turns import TurnAnswerer
from agent_pipeline.keys import parse_key
from agent_pipeline.models.families import parse_reply
from agent_pipeline.promotion import sanity_questions
from agent_pipeline.promotion.sanity_questions import QUESTIONS
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.sessions.session import Tool

MAX_NEW_TOKENS, MAX_LENGTH = 48, 2048


def main(partition: str, adapter: str = "") -> None:
    """Ask the questions, and print a table with a row per prompt."""
    key, settings = parse_key(partition), load_settings()
    lake, trained = settings.open_lake(), settings.candidate(key)
    base = common_params(settings, key).base_of(trained)
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
