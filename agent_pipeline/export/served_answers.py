"""The comparison of an exported file's decisions and calls with the merged model's, including the
answers of llama.cpp's OpenAI-compatible server.

Rounding to few bits changes words first and decisions last, but users notice a changed decision.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from agent_pipeline.engine.generation import generate
from agent_pipeline.errors import ExportError
from agent_pipeline.evaluation.players import message_of
from agent_pipeline.export.llama import Completion, LlamaCpp
from agent_pipeline.export.parity import Prompt, end_ids
from agent_pipeline.export.report import KeptDecisions
from agent_pipeline.sessions.session import Message

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SERVER_TURNS = 3
"""Number of turns that are also sent to the server. The comparison checks how the server parses
calls, not how the model answers.
"""

Content = tuple[str, list[tuple[str, str]]]


def content_of(message: Message) -> Content:
    """Return the words of a message and its calls. The calls have no ids and are sorted."""
    calls = [answer["function"] for answer in message.get("tool_calls") or ()]
    return (message.get("content") or "").strip(), sorted(
        (call["name"], _canonical(call["arguments"])) for call in calls
    )


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, ensure_ascii=False)
    except ValueError:
        return arguments


def read(
    tokenizer: "PreTrainedTokenizerBase", prompts: Sequence[Prompt], answers: Sequence[Completion]
) -> list[Content]:
    """Parse generated answers into words and calls."""
    texts = (
        tokenizer.decode(
            answer.tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        for answer in answers
    )
    return [
        content_of(message_of(text, prompt.tools))
        for prompt, text in zip(prompts, texts, strict=True)
    ]


def merged_answers(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    samples: Sequence[Prompt],
    begun: Sequence[Completion],
    max_new_tokens: int,
) -> list[Completion]:
    """Return the merged model's greedy answers. `begun` has their known beginnings, so that only
    the rest is generated.
    """
    rooms = [0 if answer.stopped else max_new_tokens - len(answer.tokens) for answer in begun]
    rest = [index for index, room in enumerate(rooms) if room > 0]
    prompts = [samples[index].ids + begun[index].tokens for index in rest]
    whole = list(begun)
    ends = end_ids(model, tokenizer)
    for index, tokens in zip(
        rest, generate(model, prompts, [rooms[index] for index in rest], ends), strict=True
    ):
        whole[index] = Completion(begun[index].tokens + tokens, len(tokens) < rooms[index])
    return whole


def server_answers(
    llama: LlamaCpp, prompts: Sequence[Prompt], answers: Sequence[Completion], max_new_tokens: int
) -> dict[int, Content]:
    """Return the server's answers to some prompts, by the number of the prompt.

    Only prompts that the model answers completely are used. Prompts with tools come first.

    Args:
        llama: The server.
        prompts: The prompts.
        answers: The file's greedy answers to these prompts.
        max_new_tokens: The maximum number of tokens in an answer.
    """
    whole = [
        number
        for number, answer in enumerate(answers)
        if answer.stopped and _reads_as_asked(llama, prompts[number])
    ]
    whole.sort(key=lambda number: (not prompts[number].tools, number))
    return {
        number: _served(llama, prompts[number], max_new_tokens + 1)
        for number in whole[:SERVER_TURNS]
    }


def _served(llama: LlamaCpp, prompt: Prompt, max_new_tokens: int) -> Content:
    try:
        return content_of(llama.chat(prompt.messages, prompt.tools, max_new_tokens))
    except ExportError as error:  # the server cannot parse its answer
        return str(error), []


def _reads_as_asked(llama: LlamaCpp, prompt: Prompt) -> bool:
    """Return whether the server makes the prompt's tokens from its messages.

    If a message contains special tokens as text, the server reads them as special tokens, but the
    prompt has them as text.
    """
    return (
        llama.tokenize(llama.render(prompt.messages, prompt.tools), add_special=True) == prompt.ids
    )


def gate(
    merged: Sequence[Content],
    own_calls: Mapping[str, Sequence[Content]],
    served: Mapping[str, Mapping[int, Content]],
    least: float,
    ties: Mapping[str, Collection[int]],
) -> dict[str, KeptDecisions]:
    """Compare the decisions and calls from each exported file with the merged model's.

    For each type, the result counts the turns with the merged model's decision (to call or not),
    the turns with the same calls, and the server's answers that match the file's tokens or the
    merged model's answer. `failed` is the reason why the file must not be served, or empty.

    Near-ties do not count as a loss if at least half of the turns have the same calls. For a model
    that is never certain, even a broken file would differ only at near-ties.

    Args:
        merged: The merged model's answers.
        own_calls: The answers of each type. A type may have answered only the first turns.
        served: The server's answers by type and turn.
        least: The minimum share of decisions and calls to keep.
        ties: The turns whose answers differ only after a near-tie, by type.
    """
    kept = {}
    for kind, answers in own_calls.items():
        pairs = list(zip(merged[: len(answers)], answers, strict=True))
        alike = {number for number, (one, other) in enumerate(pairs) if one[1] == other[1]}
        tied = set(ties.get(kind, ())) if 2 * len(alike) >= len(pairs) else set()
        decided = {
            number for number, (one, other) in enumerate(pairs) if bool(one[1]) == bool(other[1])
        }
        called = {number for number, (one, _) in enumerate(pairs) if one[1]}
        # If two tokens tie in the file, the content of its cache decides between them.
        wrong = [
            number + 1
            for number, answer in served[kind].items()
            if answer not in (answers[number], merged[number])
        ]
        lost = [
            f"{len(same)} of {len(total)} {what} equal the merged model's"
            for what, same, total in (
                ("decisions", decided, set(range(len(pairs)))),
                ("calls", called & alike, called),
            )
            if len(same | tied & total) < least * len(total)
        ]
        lost += (
            [
                "llama.cpp's server and the exported file give different answers at the turns "
                f"{wrong}"
            ]
            if wrong
            else []
        )
        kept[kind] = KeptDecisions(
            turns=len(pairs),
            decisions=len(decided),
            call_turns=len(called),
            calls=len(called & alike),
            explained=len(tied - alike),
            server_turns=len(served[kind]),
            server=len(served[kind]) - len(wrong),
            failed="; ".join(lost),
        )
    return kept
