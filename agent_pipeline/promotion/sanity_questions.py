"""The sanity questions: questions outside the agent's job, for base model and candidate.

Fine-tuning on one agent's tasks can turn a model that answers into a model that refuses, or that
calls a tool for everything. The agent's own held-out tasks may not show this. For example, OpenGrad
(2025) promoted a model whose GSM8K score had fallen from 67.4 to 0.0 % by refusals. The sanity
questions are plain questions, and turns of other partitions. The rule that compares the answers is
in `rules`.
"""

import dataclasses
import heapq
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.answer_scoring import score
from agent_pipeline.evaluation.base_measurements import (
    BaseStore,
    MemoryStore,
    fingerprint_of_base,
)
from agent_pipeline.evaluation.samples import TurnSample, turn_samples
from agent_pipeline.evaluation.turns import Question, TurnAnswer, TurnAnswerer
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.families import parse_reply
from agent_pipeline.progress import Progress, silent
from agent_pipeline.promotion.decision import SanityAnswer
from agent_pipeline.promotion.model_prompt import ShowRows
from agent_pipeline.promotion.sanity_groups import (
    NO_REFUSAL,
    NO_TOOL_NEEDED,
    OTHER_AGENTS_TURNS,
    PLAIN_QUESTIONS,
)
from agent_pipeline.selection.tables import DATASET, read_dataset_rows
from agent_pipeline.sessions.session import Message, Tool, hash_json
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
"""Plain questions, each with words of which a good answer contains at least one.

None of them is rehearsed in training (`training.rehearsal`). With 64 questions, a model that
forgets a fifth of its answers is seen. With 16, chance hid it.
"""

ANSWERS_ASSET = "canaries"
"""The name of the stored artifact and of its task. It is unchanged since the first version."""
ANSWERS_FILE = "canaries.json"
SYSTEM = "You are a helpful assistant."
MAX_NEW_TOKENS = 32
"""Maximum number of tokens in an answer to a plain question."""
MAX_NEW_TOKENS_OF_OTHERS = 96
"""Maximum number of tokens in an answer at another partition's turn."""


@dataclass(frozen=True)
class SanityQuestion:
    """A sanity question, prepared for a model.

    Attributes:
        group: The group of the question.
        name: The text of a plain question, or the name of another partition's turn.
        question: The question as tokens.
    """

    group: str
    name: str
    question: Question


def choose_other_turns(
    lake: Lake,
    key: PartitionKey,
    count: int,
    beyond_project: bool = False,
    show: ShowRows = list,
) -> dict[str, TurnSample]:
    """Choose one held-out turn per row of other partitions' split `test`.

    Conversations are private to their project, so other projects are left out by default. Every
    partition gets as many rows as possible, chosen by hash. A table that cannot be read is left
    out, because damage to another agent's table is not a reason against this agent's candidate.

    Args:
        lake: The lake.
        key: The partition that the turns are chosen for.
        count: The maximum number of rows.
        beyond_project: Whether partitions of other projects are included.
        show: The function that returns rows as models see them.

    Returns:
        The turns, by a name that reveals no content.
    """
    others = [
        other
        for other in lake.partitions("tables", DATASET)
        if other != key and (beyond_project or other.project == key.project)
    ]
    others.sort(key=lambda other: hash_json([str(key), str(other)]))
    candidates: list[tuple[int, str, PartitionKey, DatasetRow]] = []
    for other in others[:count]:
        with suppress(DataError):
            rows = heapq.nsmallest(
                count,
                read_dataset_rows(lake, other, ("test",)),
                key=lambda row: hash_json(row["row_id"]),
            )
            for rank, row in enumerate(rows):
                candidates.append((rank, hash_json([str(other), row["row_id"]]), other, row))
    candidates.sort(key=lambda candidate: candidate[:2])
    samples = {}
    for _, row_hash, other, row in candidates[:count]:
        for sample in turn_samples(show([row]), 1)[0]:
            samples[f"{other} {row_hash[:8]}"] = sample
    return samples


def ask_sanity_questions(
    base: BaseModel,
    adapter: Path,
    tools: Sequence[Tool],
    progress: Progress = silent,
    others: Mapping[str, TurnSample] | None = None,
    max_length: int = 2048,
    base_store: BaseStore | None = None,
) -> list[SanityAnswer]:
    """Let the base model and the candidate answer the sanity questions, and judge the answers.

    All plain questions are asked without tools, and every fourth is asked again with the agent's
    tools. A good answer calls no tool, does not refuse and does not ask a question. Without tools,
    the answer must also be true. With tools, a false answer counts as good, because the question is
    only whether the model calls a tool without need. At another partition's turn, the model must do
    what is right there, and it must not refuse if the other agent did not refuse.

    Args:
        base: The base model.
        adapter: The folder of the candidate's adapter.
        tools: The agent's tools.
        progress: A callback that reports progress.
        others: Turns of other partitions, by name. The answers to them are not stored.
        max_length: The maximum number of tokens of a question with its answer.
        base_store: A store of the base model's answers to the plain questions.

    Raises:
        DataError: A question with the agent's tools does not fit into `max_length` tokens.
        ModelError: A model cannot be loaded.
    """
    answerer = TurnAnswerer.of(base, adapter, max_length, progress)
    questions = _prepare_questions(answerer, tools, others or {})
    base_answers = _answer_by_base(base, answerer, questions, base_store or MemoryStore())
    candidate_answers = answerer.replies(
        [question.question for question in questions],
        text="sanity questions answered by the candidate",
    )
    sanity_answers: list[SanityAnswer] = []
    for question, base_answer, candidate_answer in zip(
        questions, base_answers, candidate_answers, strict=True
    ):
        if question.group == OTHER_AGENTS_TURNS:
            sanity_answers += _judge_other_turn(question, base_answer, candidate_answer)
        else:
            sanity_answers.append(_judge_plain_question(question, base_answer, candidate_answer))
    return sanity_answers


def _answer_by_base(
    base: BaseModel,
    answerer: TurnAnswerer,
    questions: Sequence[SanityQuestion],
    base_store: BaseStore,
) -> list[TurnAnswer]:
    """Return the base model's answers.

    The answers at other partitions' turns are not stored, because they may repeat these turns.

    Args:
        base: The base model.
        answerer: The loaded model.
        questions: The questions, with the plain questions first.
        base_store: The store of the answers to the plain questions.
    """
    text = "sanity questions answered by the base"
    plain = [question.question for question in questions if question.group != OTHER_AGENTS_TURNS]
    others = [question.question for question in questions if question.group == OTHER_AGENTS_TURNS]
    jinja = answerer.renderer.template.jinja
    fingerprint = fingerprint_of_base(base, jinja, [], plain, range(len(plain)))

    def answer_plain() -> list[TurnAnswer]:
        with answerer.model.disable_adapter():
            return answerer.replies(plain, text)

    answers = base_store.measure(fingerprint, list[TurnAnswer], answer_plain)
    if not others:
        return answers
    with answerer.model.disable_adapter():
        return answers + answerer.replies(others, text)


def _prepare_questions(
    answerer: TurnAnswerer, tools: Sequence[Tool], others: Mapping[str, TurnSample]
) -> list[SanityQuestion]:
    """Return the questions as tokens. Turns of other partitions that do not fit are left out.

    Raises:
        DataError: A plain question does not fit.
    """
    prepared = []
    plain = [(PLAIN_QUESTIONS, name, make_sample(name, QUESTIONS[name][0])) for name in QUESTIONS]
    if tools:
        plain += [
            (NO_TOOL_NEEDED, name, make_sample(name, QUESTIONS[name][0], tools))
            for name in list(QUESTIONS)[::4]
        ]
    dropped = 0
    for group, name, sample in plain:
        question = answerer.question(sample, MAX_NEW_TOKENS)
        if question is None:
            dropped += 1
            continue
        question = dataclasses.replace(question, limit=MAX_NEW_TOKENS)
        prepared.append(SanityQuestion(group, name, question))
    if dropped:
        raise DataError(
            f"{dropped} sanity questions do not fit into {answerer.max_length} tokens, because "
            "the tool schemas of the agent are long: raise `evaluation.max_length`."
        )
    for name, sample in others.items():
        question = answerer.question(sample, MAX_NEW_TOKENS_OF_OTHERS)
        if question is not None:
            prepared.append(SanityQuestion(OTHER_AGENTS_TURNS, name, question))
    return prepared


def _judge_plain_question(
    question: SanityQuestion, base: TurnAnswer, candidate: TurnAnswer
) -> SanityAnswer:
    tools = question.question.sample.tools
    return SanityAnswer(
        question=question.name,
        group=question.group,
        base=is_good_answer(question.group, question.name, tools, base.text),
        candidate=is_good_answer(question.group, question.name, tools, candidate.text),
        base_answer=base.text,
        candidate_answer=candidate.text,
    )


def _judge_other_turn(
    question: SanityQuestion, base: TurnAnswer, candidate: TurnAnswer
) -> list[SanityAnswer]:
    sample = question.question.sample
    base_score = score(sample, base.text, base.cut)
    candidate_score = score(sample, candidate.text, candidate.cut)
    answers = [SanityAnswer(question.name, question.group, base_score.right, candidate_score.right)]
    if sample.turn_class != "cannot":
        answers.append(
            SanityAnswer(
                question=question.name,
                group=NO_REFUSAL,
                base=base_score.actual != "cannot",
                candidate=candidate_score.actual != "cannot",
            )
        )
    return answers


def is_good_answer(group: str, question: str, tools: Sequence[Tool], text: str) -> bool:
    """Return whether a text is a good answer to a plain question.

    Args:
        group: The group of the question.
        question: The question.
        tools: The tools in the model's prompt.
        text: The model's text.
    """
    reply = parse_reply(text, tools)
    if reply.is_call or classify_text(reply.text) != "answer":
        return False
    return group == NO_TOOL_NEEDED or contains_word(reply.text, QUESTIONS[question])


def contains_word(text: str, words: Sequence[str]) -> bool:
    """Return whether a text contains one of the words as a whole word, perhaps with a plural s.

    For example, "720" does not contain the word "7", and "price" does not contain "ice".
    """
    pattern = rf"\b({'|'.join(map(re.escape, words))})s?\b"
    return re.search(pattern, text.casefold()) is not None


def make_sample(
    question: str, answer: str, tools: Sequence[Tool] = (), prompt: str = SYSTEM
) -> TurnSample:
    """Return a plain question as a turn of a conversation.

    Args:
        question: The question.
        answer: A good answer.
        tools: The tools in the prompt.
        prompt: The system prompt.
    """
    messages: list[Message] = [
        {"role": "system", "content": prompt},
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
    ]
    row: DatasetRow = {
        "row_id": question,
        "session_id": "",
        "task_key": question,
        "split": "test",
        "messages": messages,
        "tools": list(tools),
    }
    return turn_samples([row])[0][0]
