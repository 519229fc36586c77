"""Canaries: questions beside the agent's job, which base and candidate answer. A training that spoils a model shows here first.

A fine-tuning on one agent's tasks can turn a model that answers into one that refuses, or that calls a tool for everything, and its own
held-out tasks need not show it (OpenGrad, 2025: GSM8K fell from 67.4 to 0.0 % by refusals, and the model was promoted). The questions are
plain ones, and turns of other partitions.
"""

import dataclasses
import heapq
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.samples import TurnSample, turn_samples
from agent_pipeline.evaluation.scores import Canary
from agent_pipeline.evaluation.scoring import score
from agent_pipeline.evaluation.turns import Answering, Reply
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.families import parse_reply
from agent_pipeline.progress import Progress, silent
from agent_pipeline.selection.tables import DATASET, read_dataset_rows
from agent_pipeline.sessions.session import Tool, hash_json
from agent_pipeline.sessions.turn_class import classify_text
from agent_pipeline.storage.lake import Lake

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
OTHERS, NO_REFUSAL = "canary: other agents' turns", "canary: no refusal at other agents' turns"
SYSTEM = "You are a helpful assistant."
MAX_NEW_TOKENS, MAX_NEW_TOKENS_OF_OTHERS = 32, 96


def other_turns(
    lake: Lake, key: PartitionKey, count: int, beyond_project: bool = False
) -> dict[str, TurnSample]:
    """A held-out turn each of at most `count` rows of other partitions' split `test`, by a name that says nothing of what was said there.

    Conversations are private between projects, so the partitions are those of the same project, unless `beyond_project`. As many rows as
    can be are of each, chosen by hash. A table that cannot be read is left out: another agent's damage is no reason against this one.
    """
    others = [
        each
        for each in lake.partitions("tables", DATASET)
        if each != key and (beyond_project or each.project == key.project)
    ]
    chosen: list[tuple[int, str, PartitionKey, dict[str, Any]]] = []
    for other in sorted(others, key=lambda each: hash_json([str(key), str(each)]))[:count]:
        with suppress(DataError):
            rows = heapq.nsmallest(
                count,
                read_dataset_rows(lake, other, ("test",)),
                key=lambda row: hash_json(row["row_id"]),
            )
            chosen += [
                (rank, hash_json([str(other), row["row_id"]]), other, row)
                for rank, row in enumerate(rows)
            ]
    chosen.sort(key=lambda each: each[:2])
    return {
        f"{other} {name[:8]}": sample
        for _, name, other, row in chosen[:count]
        for sample in turn_samples([row], 1)[0]
    }


def ask(
    base: BaseModel,
    adapter: Path,
    tools: Sequence[Tool],
    progress: Progress = silent,
    others: Mapping[str, TurnSample] | None = None,
    max_length: int = 2048,
) -> list[Canary]:
    """What base and candidate make of the questions: all of them without tools, half of them with the agent's tools beside them; and of
    `others`, turns of other partitions by their names, whose words are not kept.

    An answer is good that calls nothing, refuses nothing and asks nothing; without tools it must also be true. Whether a small model knows
    the capital of Japan is its base's affair, and with tools only what it does is looked at. At another partition's turn it is good to do
    what is right there, and apart from that not to refuse where the agent did not.

    Raises:
        DataError: a question does not fit into `max_length` tokens, with the agent's tools beside it.
        ModelError: a model cannot be loaded.
    """
    samples = [(PLAIN, question, _sample(question, [])) for question in QUESTIONS]
    samples += (
        [(NO_TOOL, question, _sample(question, list(tools))) for question in list(QUESTIONS)[::2]]
        if tools
        else []
    )
    samples += [(OTHERS, name, sample) for name, sample in (others or {}).items()]
    model = Answering.of(base, adapter, max_length, progress)
    asked = [
        (
            group,
            name,
            question if group == OTHERS else dataclasses.replace(question, limit=MAX_NEW_TOKENS),
        )
        for group, name, sample in samples
        if (
            question := model.question(
                sample, MAX_NEW_TOKENS_OF_OTHERS if group == OTHERS else MAX_NEW_TOKENS
            )
        )
    ]
    if lost := sum(group != OTHERS for group, *_ in samples) - sum(
        group != OTHERS for group, *_ in asked
    ):
        raise DataError(
            f"{lost} canaries do not fit into {max_length} tokens, the agent's tools being long: raise evaluation.max_length."
        )
    answers: dict[str, list[Reply]] = {}
    for player in ("base", "candidate"):
        with model.model.disable_adapter() if player == "base" else nullcontext():
            answers[player] = model.replies(
                [question for *_, question in asked], text=f"canaries answered by the {player}"
            )
    canaries = []
    for (group, name, question), old, new in zip(
        asked, answers["base"], answers["candidate"], strict=True
    ):
        sample = question.sample
        if group != OTHERS:
            good = (
                is_good(group, name, sample.tools, old.text),
                is_good(group, name, sample.tools, new.text),
            )
            canaries.append(Canary(name, group, good[0], good[1], old.text, new.text))
            continue
        before, now = score(sample, old.text, old.cut), score(sample, new.text, new.cut)
        canaries.append(Canary(name, group, before.right, now.right))
        if sample.turn_class != "cannot":
            canaries.append(
                Canary(name, NO_REFUSAL, before.actual != "cannot", now.actual != "cannot")
            )
    return canaries


def is_good(group: str, question: str, tools: Sequence[Tool], text: str) -> bool:
    reply = parse_reply(text, tools)
    answers = not reply.is_call and classify_text(reply.text) == "answer"
    return answers and (group == NO_TOOL or _has_word(reply.text, QUESTIONS[question]))


def _has_word(text: str, words: Sequence[str]) -> bool:
    """Whether one of the words stands there as a whole word, or with a plural's s: there is no "7" in "720", and no "ice" in "price"."""
    return re.search(rf"\b({'|'.join(map(re.escape, words))})s?\b", text.casefold()) is not None


def _sample(question: str, tools: list[Tool]) -> TurnSample:
    said = (("system", SYSTEM), ("user", question), ("assistant", QUESTIONS[question][0]))
    messages = [{"role": role, "content": text} for role, text in said]
    row = {
        "row_id": question,
        "session_id": "",
        "task_key": question,
        "split": "test",
        "messages": messages,
        "tools": tools,
    }
    return turn_samples([row])[0][0]
