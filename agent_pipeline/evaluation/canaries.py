"""Canaries: questions beside the agent's job, which base and candidate answer. A training that spoils a model shows here first.

A fine-tuning on one agent's tasks can turn a model that answers into one that refuses, or that calls a tool for everything, and its own
held-out tasks need not show it (OpenGrad, 2025: GSM8K fell from 67.4 to 0.0 % by refusals, and the model was promoted).
"""

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from agent_pipeline.evaluation.samples import TurnSample
from agent_pipeline.evaluation.scores import Canary
from agent_pipeline.evaluation.turns import Answering
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import Message, Tool
from agent_pipeline.sessions.turn_class import text_class
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.families import read_reply

QUESTIONS: dict[str, tuple[str, ...]] = {
    "What is the capital of France?": ("paris",),
    "What is the capital of Japan?": ("tokyo",),
    "Which planet do we live on?": ("earth",),
    "What color is the sky on a clear day?": ("blue",),
    "How many days are in a week?": ("seven", "7"),
    "What is two plus two?": ("four", "4"),
    "What do bees make?": ("honey",),
    "Which animal says meow?": ("cat",),
    "What is frozen water called?": ("ice",),
    "What is the opposite of hot?": ("cold",),
    "Which ocean lies between Europe and America?": ("atlantic",),
    "Who wrote Romeo and Juliet?": ("shakespeare",),
    "What is the first month of the year?": ("january",),
    "Which language is spoken in Brazil?": ("portuguese",),
    "What is the largest planet of the solar system?": ("jupiter",),
    "What gas do plants take in from the air?": ("carbon dioxide", "co2"),
}
"""Plain questions, and words of which a good answer has one."""

FILE = "canaries.json"
PLAIN, NO_TOOL = "canary: plain questions", "canary: no tool is needed"
SYSTEM = "You are a helpful assistant."
MAX_NEW_TOKENS = 32


def ask(base: BaseModel, adapter: Path, tools: Sequence[Tool], progress: Progress = silent) -> list[Canary]:
    """What base and candidate make of the questions: all of them without tools, and half of them with the agent's tools beside them.

    An answer is good that calls nothing, refuses nothing and asks nothing; without tools it must also be true. Whether a small model knows
    the capital of Japan is its base's affair, and with tools only what it does is looked at.

    Raises:
        ModelError: a model cannot be loaded.
    """
    asked: list[tuple[str, str, list[Tool]]] = [(PLAIN, question, []) for question in QUESTIONS]
    asked += [(NO_TOOL, question, list(tools)) for question in list(QUESTIONS)[::2]] if tools else []
    model = Answering.of(base, adapter, progress=progress)
    questions = [(each, question) for each in asked if (question := model.question(_sample(each[1], each[2]), MAX_NEW_TOKENS))]
    room = [dataclasses.replace(question, limit=MAX_NEW_TOKENS) for _, question in questions]
    answers: dict[str, list[tuple[bool, str]]] = {}
    for name in ("base", "candidate"):
        with model.model.disable_adapter() if name == "base" else nullcontext():
            replies = model.replies(room, text=f"canaries answered by the {name}")
            answers[name] = [(is_good(*each, reply.text), reply.text) for (each, _), reply in zip(questions, replies, strict=True)]
    return [
        Canary(text, group, base, candidate, base_said, candidate_said)
        for ((group, text, _), _), (base, base_said), (candidate, candidate_said) in zip(
            questions, answers["base"], answers["candidate"], strict=True
        )
    ]


def is_good(group: str, question: str, tools: Sequence[Tool], text: str) -> bool:
    """Whether a reply answers the question."""
    reply = read_reply(text, tools)
    answers = not reply.is_call and text_class(reply.text) == "answer"
    return answers and (group == NO_TOOL or any(word in reply.text.casefold() for word in QUESTIONS[question]))


def _sample(question: str, tools: list[Tool]) -> TurnSample:
    prompt: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    answer = QUESTIONS[question][0]
    return TurnSample(
        row_id=question,
        session_id="",
        task_key=question,
        turn_index=len(prompt),
        prompt=prompt,
        tools=tools,
        expected={"role": "assistant", "content": answer},
        calls=(),
        text=answer,
    )
