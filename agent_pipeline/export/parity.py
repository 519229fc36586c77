"""The comparison of a GGUF with the merged model on held-out conversations: template, tokens and
greedy answers.

Template and tokens must be equal, because otherwise the served model reads another text than the
trained model did. At f16, greedy answers must be equal up to a tolerance. If the two likeliest
tokens are nearly tied, rounding of the weights may choose either token, and the answers differ from
there on. Such near-ties are counted separately. Quantized answers differ more often, and their
rates are reported.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.engine.prefix_tree import shared_prefix_length
from agent_pipeline.engine.scoring import score_tokens
from agent_pipeline.errors import DataError, ExportError
from agent_pipeline.evaluation.greedy import verified_beginning
from agent_pipeline.export.conversations import as_clients_send
from agent_pipeline.export.converter import LORA
from agent_pipeline.export.llama import Completion, LlamaCpp
from agent_pipeline.export.report import AnswerParity, Mismatch, TemplateParity, ToolDifference
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.rendering import with_plain_ids
from agent_pipeline.models.special_tokens import MARK, remove_marks, tokenize
from agent_pipeline.sessions.session import THOUGHT, Message, Tool, drop_keys
from agent_pipeline.tokenization.loss_masks import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

GREEDY_THRESHOLD = 0.95
"""Minimum share of prompts whose f16 answer equals the merged model's answer, token for token or up
to a near-tie.
"""

NEAR_TIE = 0.05
"""Largest logit gap between two tokens that rounding of weights and cache to 16 bits can close.
Over 328 tokens of a trained SmolLM2-135M, the gap of the two likeliest tokens changed by 0.007
at the median and by at most 0.05.
"""

ROUNDED_NEAR_TIE = 0.25
"""Near-tie gap for types with fewer bits. With q8_0, the gaps changed by 0.12 at the median, by
0.37 at the 90th percentile, and by at most 0.9.
"""

EXACT_TYPES = ("f32", "f16")
"""The types whose greedy answers must meet the threshold. Rounding to fewer bits may really change
an answer.
"""

_PRICES = {"type": "number", "default": 1.0, "minimum": 0.01}
PROBE: DatasetRow = {
    "messages": [
        {"role": "user", "content": "Pay 12345.67."},
        {
            "role": "assistant",
            "content": "Now.",
            "tool_calls": [
                {
                    "id": "call00001",
                    "type": "function",
                    "function": {
                        "name": "pay",
                        "arguments": '{"amount": 12345.67, "whole": 100.0, "small": 1e-7, "to": '
                        '"é, \\"x: y\\""}',
                    },
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call00001", "content": "ok"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "You are welcome."},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "pay",
                "description": "Pay.",
                "parameters": {"type": "object", "properties": {"amount": _PRICES}},
            },
        }
    ],
}
"""A conversation with numbers that servers write in their own way. The held-out conversations may
contain no such numbers, but live conversations will.
"""

END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<EOT>",
    "<eos>",
)
"""The tokens at which llama.cpp ends an answer if the vocabulary has them. The merged model must
end at these tokens too.
"""


class Prompt(msgspec.Struct):
    """A conversation up to the position at which the model answers.

    Attributes:
        messages: The messages.
        tools: The tool schemas.
        ids: The token ids of the prompt. Special tokens in a message's text are encoded as text.
    """

    messages: list[Message]
    tools: list[Tool]
    ids: list[int]


def prompt_of(messages: list[Message]) -> list[Message]:
    """Return the messages before a trailing assistant message, or all messages if there is none."""
    return messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages


def prompts(
    tokenizer: "PreTrainedTokenizerBase",
    conversations: Sequence[DatasetRow],
    render: Callable[..., str],
) -> list[Prompt]:
    """Return one prompt per conversation, encoded by transformers.

    Every second prompt asks for the conversation's first call, and the others ask for its last
    answer.

    Args:
        tokenizer: The tokenizer.
        conversations: Held-out conversations.
        render: The function that renders messages and tools as text.

    Raises:
        DataError: There are no conversations.
    """
    if not conversations:
        raise DataError(
            "The export cannot be checked, because there are no held-out conversations: raise "
            "`split.test`, or log sessions of more tasks."
        )
    found_differences = []
    for number, conversation in enumerate(conversations):
        messages, tools = conversation["messages"], conversation.get("tools") or []
        call = (
            next((index for index, message in enumerate(messages) if message.get("tool_calls")), 0)
            if number % 2 == 0
            else 0
        )
        before = [drop_keys(message, THOUGHT) for message in messages[:call] or prompt_of(messages)]
        found_differences.append(
            Prompt(
                before,
                tools,
                tokenize(tokenizer, render(before, tools, add_generation_prompt=True)).ids,
            )
        )
    return found_differences


def words_only(messages: list[Message], tools: object, add_generation_prompt: bool = False) -> str:
    """Return the messages' words, one message per line, as the prompt of a model without a chat
    template.
    """
    return "\n".join(message.get("content") or "" for message in messages)


def check_template(
    llama: LlamaCpp, renderer: ChatRenderer, conversations: Sequence[DatasetRow]
) -> TemplateParity:
    """Check that llama.cpp renders the same text and the same tokens as in training.

    Prompts and whole conversations are compared as a client sends them. If each turn is a training
    row, the prompt of each turn is compared. If a single tool causes a difference (its schema is
    refused, or one of its calls is written differently), the difference is counted and the
    conversation is skipped.

    Args:
        llama: The server, which has loaded the file.
        renderer: The tokenizer with its chat template.
        conversations: Held-out conversations.

    Returns:
        Counts of the compared texts and tokens. In texts of `special_literals`, a message contains
        special tokens. The frame and the contents of such a text are compared separately, because
        llama.cpp's server reads the contents as special tokens. In texts of `line_ends`, the server
        adds a line end after the words before a call. `tools` has the differences by tool.

    Raises:
        ExportError: There is a difference that no tool causes. The message has its place.
    """
    jinja = renderer.template.jinja
    # To read the file takes seconds, because its vocabulary is read too.
    if jinja != llama.chat_template and jinja != template_of(llama.path):
        raise ExportError(
            f"The chat template in {llama.path} is missing or differs from the template of "
            "training: save the adapter's tokenizer with its training template, and export again."
        )
    # A vocabulary may be marked to begin with BOS. llama.cpp then removes the BOS of the template
    # and adds it again as a token.
    added = llama.tokenize("", add_special=True)
    counts = {"texts": 0, "tokens": 0, "special_literals": 0, "line_ends": 0}
    differences: dict[str, ToolDifference] = {}
    for number, conversation in enumerate([*conversations, *_probes(renderer)], 1):
        messages, tools = (
            [drop_keys(message, THOUGHT) for message in conversation["messages"]],
            conversation.get("tools") or [],
        )
        for what, part, ask in _parts(renderer, messages):
            here = renderer.render(part, tools, add_generation_prompt=ask)
            ids, pieces = (
                renderer.token_ids(here),
                _pieces(renderer, here) if MARK in here else None,
            )
            here = remove_marks(here)
            if added and ids[: len(added)] == added:
                here = here.removeprefix(renderer.tokenizer.decode(added))
            try:
                there = llama.render(as_clients_send(part, here), tools, add_generation_prompt=ask)
                if here != there and here == (
                    unended := llama.render(with_plain_ids(part), tools, add_generation_prompt=ask)
                ):
                    there, counts["line_ends"] = unended, counts["line_ends"] + 1
            except ExportError:
                if not count_causes(differences, tools_at_fault(llama, renderer, part, tools)):
                    raise
                break
            if here != there:
                if conversation is not PROBE and count_causes(
                    differences, tools_at_fault(llama, renderer, part, tools)
                ):
                    break
                where = (
                    "a conversation made for this check"
                    if conversation is PROBE
                    else f"held-out conversation {number}"
                )
                raise ExportError(
                    f"llama.cpp renders the {what} of {where} differently than training did, "
                    f"{first_difference(here, there)}: choose another base model, or another "
                    "version of xllamacpp, and export again."
                )
            served = (
                llama.tokenize(pieces, parse_special=False)
                if pieces
                else llama.tokenize(there, add_special=True)
            )
            if served != ids:
                shared_length = shared_prefix_length([served, ids])
                raise ExportError(
                    "llama.cpp and the tokenizer make different tokens of held-out conversation "
                    f"{number} from token {shared_length} on "
                    f"({served[shared_length : shared_length + 3]} and "
                    f"{ids[shared_length : shared_length + 3]}), because the conversion lost the "
                    "pre-tokenizer or the BOS setting: choose another base model."
                )
            if conversation is not PROBE:
                for name, more in (
                    ("texts", 1),
                    ("tokens", len(ids)),
                    ("special_literals", pieces is not None),
                ):
                    counts[name] += more
    if not counts["texts"] and differences:
        name, cause = next(iter(differences.items()))
        raise ExportError(
            "llama.cpp's server renders every held-out conversation differently than training "
            f"did, because of the tools {', '.join(sorted(differences))} (for {name}, "
            f"{cause.why}): change these tools, and train again."
        )
    return TemplateParity(**counts, tools=dict(sorted(differences.items())))


def _probes(renderer: ChatRenderer) -> list[DatasetRow]:
    """Return the conversation `PROBE`, unless the template refuses it."""
    try:
        renderer.render(PROBE["messages"], PROBE["tools"])
    except Exception:  # a template is a program and may raise anything
        return []
    return [PROBE]


def _parts(
    renderer: ChatRenderer, messages: list[Message]
) -> list[tuple[str, list[Message], bool]]:
    """Return the parts of a conversation that are compared: each has a name, messages, and a flag
    for whether the model answers after them.
    """
    parts = [("prompt", prompt_of(messages), True), ("conversation", messages, False)]
    # If the server rounds numbers, it writes no call as it was recorded. In this case, and if turns
    # are rows, only prompts are compared.
    if renderer.trains_turns_apart([*messages, {"role": "user", "content": ""}]):
        return [
            ("prompt", messages[:index], True)
            for index, message in enumerate(messages)
            if message["role"] == "assistant"
        ] or parts[:1]
    return parts


def count_causes(differences: dict[str, ToolDifference], causes: Mapping[str, str]) -> bool:
    """Count a conversation for each tool that causes a rendering difference.

    Return whether any tool causes a difference.

    The first reason of each tool is kept.
    """
    for tool, cause in causes.items():
        differences.setdefault(tool, ToolDifference(0, cause)).conversations += 1
    return bool(causes)


def tools_at_fault(
    llama: LlamaCpp,
    renderer: ChatRenderer,
    messages: list[Message],
    tools: list[Tool],
) -> dict[str, str]:
    """Return the tools that llama.cpp renders differently than training did, with the reasons. Each
    schema and each call is tried alone.

    Args:
        llama: The server.
        renderer: The tokenizer with its chat template.
        messages: The messages of the conversation.
        tools: The tool schemas of the conversation.
    """
    user: Message = {"role": "user", "content": "?"}
    tried: list[tuple[str, str, list[Message], list[Tool]]] = [
        (tool.get("function", tool).get("name", ""), "its schema", [user], [tool]) for tool in tools
    ]
    for message in messages:
        for call in message.get("tool_calls") or ():
            result: Message = {"role": "tool", "tool_call_id": call.get("id", ""), "content": ""}
            messages_alone: list[Message] = [
                user,
                {"role": "assistant", "content": "", "tool_calls": [call]},
                result,
            ]
            tried.append((call["function"]["name"], "a call", messages_alone, []))
    causes: dict[str, str] = {}
    for name, what, messages_alone, schemas in tried:
        here = remove_marks(renderer.render(messages_alone, schemas, add_generation_prompt=True))
        try:
            there = llama.render(with_plain_ids(messages_alone), schemas)
            if not here.endswith(there):  # llama.cpp removes the token that begins a text
                causes.setdefault(
                    name, f"{what} is rendered differently, {first_difference(here, there)}"
                )
        except ExportError as error:
            causes.setdefault(name, f"{what} is refused: {reason_of(error)}")
    return causes


def reason_of(error: ExportError) -> str:
    """Return llama.cpp's message about a refused request."""
    return str(error).partition(" with '")[2].rpartition("': ")[0] or str(error)


def template_of(gguf: Path) -> str | None:
    """Return the chat template that a GGUF file contains.

    llama.cpp reports it without its last line break and changes the template of gpt-oss, so the
    file is read directly.
    """
    from gguf import GGUFReader

    field = GGUFReader(gguf).get_field("tokenizer.chat_template")
    return field.contents() if field else None


def _pieces(renderer: ChatRenderer, text: str) -> list[int | str]:
    """Return a rendered text as a list of special token ids and of the texts between them."""
    specials, pieces, position = renderer.special_tokens, list[int | str](), 0
    tokens = renderer.tokenize(text)
    names = renderer.tokenizer.convert_ids_to_tokens(tokens.ids)
    for token, name, (start, end) in zip(tokens.ids, names, tokens.offsets, strict=True):
        if name in specials:
            pieces += (
                [between, token] if (between := remove_marks(text[position:start])) else [token]
            )
            position = end
    return [*pieces, rest] if (rest := remove_marks(text[position:])) else pieces


def end_ids(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> set[int]:
    """Return the token ids that end an answer: the end tokens of the model and the tokenizer, and
    the end tokens that llama.cpp knows by name.
    """
    own_ids = model.generation_config.eos_token_id
    named = {tokenizer.get_vocab().get(token) for token in END_TOKENS}
    return {
        i
        for i in {
            tokenizer.eos_token_id,
            *(own_ids if isinstance(own_ids, list) else [own_ids]),
            *named,
        }
        if i is not None
    }


def compare_answers(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompts: list[Prompt],
    answers: Mapping[str, list[Completion]],
) -> tuple[dict[str, AnswerParity], list[Completion]]:
    """Compare the greedy answers of GGUF files with the merged model's answers.

    The merged model does not generate anything. Its greedy answer equals the file's answer if the
    likeliest token at each position is the file's next token. One forward pass over all answers
    shows this, and gives the first token that differs.

    Args:
        model: The merged model.
        tokenizer: The tokenizer.
        prompts: The prompts.
        answers: The answers by the name of the file's type.

    Returns:
        The comparison by name, and the beginnings of the merged model's own answers. A beginning is
        the whole answer if any file gave the same answer. `rate` is the share of identical answers.
        `agreement` is the share of answers that are identical or differ only after a near-tie.
    """
    ends = end_ids(model, tokenizer)
    # A stopped answer gets one more token, at which the likeliest token must be an end token.
    targets = {
        name: [[*answer.tokens, *([min(ends)] if answer.stopped else [])] for answer in some]
        for name, some in answers.items()
    }
    rows = [
        Encoded([*prompt.ids, *target], [False] * len(prompt.ids) + [True] * len(target), [])
        for some in targets.values()
        for prompt, target in zip(prompts[: len(some)], some, strict=True)
    ]
    scores = iter(score_tokens(model, rows))
    parity_by_name = {}
    begun = [Completion([], False) for _ in prompts]
    for name, some in answers.items():
        mismatches = []
        for number, (prompt, answer, target) in enumerate(
            zip(prompts[: len(some)], some, targets[name], strict=True), 1
        ):
            scored = next(scores)
            # The merged model's answer up to and including the first token that differs.
            merged = Completion(
                *verified_beginning(target, scored.best.tolist() if scored else [], ends)
            )
            begun[number - 1] = max(
                begun[number - 1], merged, key=lambda answer: (answer.stopped, len(answer.tokens))
            )
            if merged != answer:
                tie = NEAR_TIE if name in (*EXACT_TYPES, LORA) else ROUNDED_NEAR_TIE
                part = explain(model, tokenizer, prompt.ids, merged, answer, tie)
                mismatches.append(msgspec.structs.replace(part, prompt=number))
        exact = len(some) - len(mismatches)
        ties = sum(mismatch.near_tie for mismatch in mismatches)
        parity_by_name[name] = AnswerParity(
            prompts=len(some),
            exact=exact,
            rate=round(exact / len(some), 4),
            near_ties=ties,
            agreement=round((exact + ties) / len(some), 4),
            mismatches=mismatches,
        )
    return parity_by_name, begun


def explain(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompt: list[int],
    merged: Completion,
    gguf: Completion,
    tie: float,
) -> Mismatch:
    """Return the position at which two answers differ, both tokens, and the logit gap by which the
    merged model preferred its token.

    The number of the prompt is set to 0.

    Args:
        model: The merged model.
        tokenizer: The tokenizer.
        prompt: The token ids of the prompt.
        merged: The merged model's answer.
        gguf: The file's answer.
        tie: The gap below which the difference is a near-tie.
    """
    import torch

    shared_length = shared_prefix_length([merged.tokens, gguf.tokens])
    with torch.inference_mode():
        logits = (
            model(input_ids=torch.tensor([prompt + merged.tokens[:shared_length]]), use_cache=False)
            .logits[0, -1]
            .float()
        )
    taken = (
        [gguf.tokens[shared_length]]
        if shared_length < len(gguf.tokens)
        else sorted(end_ids(model, tokenizer))
    )
    gap = (logits.max() - logits[taken].max()).item()

    def token(answer: Completion) -> str:
        return (
            tokenizer.decode([answer.tokens[shared_length]])
            if shared_length < len(answer.tokens)
            else "<end>"
        )

    return Mismatch(
        prompt=0,
        position=shared_length,
        merged_token=token(merged),
        gguf_token=token(gguf),
        logit_gap=round(gap, 5),
        near_tie=gap < tie,
    )


def first_difference(a: str, b: str) -> str:
    """Return a description of the first difference between two texts."""
    shared_length = shared_prefix_length([a, b])
    start, end = max(shared_length - 10, 0), shared_length + 30
    return f"at character {shared_length}, where {a[start:end]!r} became {b[start:end]!r}"
