"""Other ways to ask the base model, which an adapter should beat too: in the template it came with, and with good sessions in its prompt.

Both are off by default. Each costs one more generation for every answered turn; a prompt with k sessions is about k + 1 times as long, and
its sessions differ from turn to turn, so that less of it is shared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agent_pipeline.evaluation.greedy import greedy
from agent_pipeline.evaluation.model_comparison import accuracies, differences
from agent_pipeline.evaluation.scoring import Score, score
from agent_pipeline.evaluation.turns import Answering, Question, stop_ids
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_templates import pinned, probe
from agent_pipeline.models.loading import read_tokenizer
from agent_pipeline.sessions.session import Message
from agent_pipeline.tokenization.loss_masks import prompt_ids
from agent_pipeline.tokenization.truncation import exchanges

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Prompt = Callable[[Question], list[int] | None]
"""A question's prompt as tokens; None where it cannot be asked so."""


def rivals(
    answering: Answering,
    base: BaseModel,
    own_template: bool,
    sessions: Sequence[Mapping[str, Any]],
    count: int,
) -> dict[str, Prompt]:
    """The rivals by name: `own_template`, where the base model has one that is not the training template, and `sessions`: with `count` of
    `sessions` (rows) in the prompt, where that is above 0."""
    found: dict[str, Prompt] = {}
    stock = read_tokenizer(base.path, base.trust_remote_code)
    jinja = pinned(stock, stock.chat_template)[0] if isinstance(stock.chat_template, str) else None
    if own_template and jinja and jinja != answering.template.jinja:
        stock.chat_template = jinja
        stock.init_kwargs["arguments_as"] = probe(stock, jinja).arguments_as
        found["own_template"] = lambda question: rendered(
            stock, question.messages, question, answering.max_length
        )
    if count and sessions:
        nearest = nearest_sessions(sessions)
        found["sessions"] = lambda question: with_sessions(
            answering, question, nearest(asked(question.messages), count)
        )
    return found


def compare(
    answering: Answering,
    questions: Sequence[Question],
    prompt_of: Prompt,
    adapter: Sequence[Score],
    text: str,
) -> tuple[dict[str, Any], list[dict[str, Any] | None]]:
    """A rival's report (`asked`: turns that could be asked so; the means; `differences`: adapter − rival), and its score a turn."""
    prompts = [
        (index, prompt)
        for index, question in enumerate(questions)
        if (prompt := prompt_of(question))
    ]
    stops = stop_ids(answering.tokenizer, answering.template)
    own = answering.model.generation_config.eos_token_id
    stops |= set(own if isinstance(own, list) else [own]) - {None}
    limits = [questions[index].limit for index, _ in prompts]
    written = greedy(
        answering.model,
        [prompt for _, prompt in prompts],
        limits,
        stops,
        progress=answering.progress,
        text=text,
    )
    scores = [
        score(
            questions[index].sample,
            answering.text(each.tokens),
            each.cut and questions[index].too_tight,
        )
        for (index, _), each in zip(prompts, written, strict=True)
    ]
    tasks = [questions[index].sample.task_key for index, _ in prompts]
    compared = differences(tasks, scores, [adapter[index] for index, _ in prompts])
    entries: list[dict[str, Any] | None] = [None] * len(questions)
    for (index, _), each, given in zip(prompts, written, scores, strict=True):
        entries[index] = {"text": answering.text(each.tokens), **asdict(given)}
    return {"asked": len(prompts), **accuracies(tasks, scores), "differences": compared}, entries


def rendered(
    tokenizer: "PreTrainedTokenizerBase",
    messages: list[Message],
    question: Question,
    max_length: int,
) -> list[int] | None:
    """A conversation as tokens; None where it is too long, or where the template cannot render it."""
    from jinja2 import TemplateError

    try:
        prompt = prompt_ids(tokenizer, messages, question.sample.tools)
    except (TemplateError, TypeError):
        return None
    return prompt if len(prompt) + question.limit <= max_length else None


def with_sessions(
    answering: Answering, question: Question, sessions: Sequence[list[Message]]
) -> list[int] | None:
    """The prompt with as many of the sessions as fit, the nearest last, between the system messages and the conversation."""
    head, rest = exchanges(question.messages)
    for first in range(len(sessions)):
        shown = [
            message
            for session in sessions[first:]
            for message in session
            if message["role"] != "system"
        ]
        messages = [*head, *shown, *(message for part in rest for message in part)]
        if prompt := rendered(answering.tokenizer, messages, question, answering.max_length):
            return prompt
    return None


def nearest_sessions(
    rows: Sequence[Mapping[str, Any]],
) -> Callable[[str, int], list[list[Message]]]:
    """A search over rows: what a user asks and a count → the messages of the rows whose first request is most alike (cosine of TF-IDF
    vectors), the nearest last."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True)
    vectors = vectorizer.fit_transform([asked(row["messages"]) or "-" for row in rows])

    def search(request: str, count: int) -> list[list[Message]]:
        alike = (vectors @ vectorizer.transform([request]).T).toarray()[:, 0]
        return [list(rows[index]["messages"]) for index in alike.argsort(kind="stable")[-count:]]

    return search


def asked(messages: Sequence[Message]) -> str:
    """What the user says first."""
    return next(
        (message.get("content") or "" for message in messages if message["role"] == "user"), ""
    )
