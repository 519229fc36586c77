"""Is the GGUF the merged model? Its template, its tokens and its greedy answers are compared on
held-out conversations.

Template and tokens must be equal, or serving shows the model another text than training did. Greedy
answers must be equal at f16 up to a stated tolerance: weights are rounded, so where the likeliest
tokens nearly tie, either may win, and the answers part there. Such a parting is counted apart from
others. Quantised answers differ more often; their rates are reported.
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
"""Share of prompts whose f16 answer must be the merged model's: token for token, or up to a
near-tie.
"""

NEAR_TIE = 0.05
"""Logits; a smaller gap between two tokens is within what weights and cache in 16 bits move. Of 328
tokens of a trained SmolLM2-135M, the gap of the two likeliest moved by 0.007 at the median and 0.05
at most.
"""

ROUNDED_NEAR_TIE = 0.25
"""The same for types of fewer bits: q8_0 moved those gaps by 0.12 at the median, by 0.37 at the
90th percentile, and by 0.9 at most.
"""

EXACT_TYPES = ("f32", "f16")
"""The types whose greedy answers are held to the threshold; rounding to fewer bits may change an
answer for good.
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
"""A conversation with the numbers that servers write in their own way: an agent's held-out
conversations may have none, its users will.
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
"""Tokens at which llama.cpp ends an answer wherever the vocabulary has them; the merged model must
end there too.
"""


class Prompt(msgspec.Struct):
    """A conversation up to where the model is to answer: its messages, and the token ids that the
    model is given (in them, special tokens that a message holds are text).
    """

    messages: list[Message]
    tools: list[Tool]
    ids: list[int]


def prompt_of(messages: list[Message]) -> list[Message]:
    """The messages that the last answer answered: all before a trailing assistant message."""
    return messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages


def prompts(
    tokenizer: "PreTrainedTokenizerBase",
    conversations: Sequence[DatasetRow],
    render: Callable[..., str],
) -> list[Prompt]:
    """What is asked, as transformers sees it: of every second conversation its first call, of the
    others the last answer.

    Raises `DataError` where there is none.
    """
    if not conversations:
        raise DataError(
            "The export can't be checked without held-out conversations: let at least one task be "
            "held out."
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
    """In place of a chat template where a model has none: what the messages say, a line each."""
    return "\n".join(message.get("content") or "" for message in messages)


def check_template(
    llama: LlamaCpp, renderer: ChatRenderer, conversations: Sequence[DatasetRow]
) -> TemplateParity:
    """Check that llama.cpp shows the model the same text and the same tokens as training did.

    Prompts and whole conversations are compared, as a client sends them; if each turn is a row, the
    prompt of each turn. A difference that single tools cause (their schema is refused, or the
    server writes one of their calls otherwise) is counted, and the conversation is left out.

    Args:
        llama: The server, which has loaded the file.
        renderer: The tokenizer with its chat template.
        conversations: Held-out conversations.

    Returns:
        Counts of texts and tokens compared. `special_literals`: texts in which a message holds
        special tokens; their frame and their contents are compared apart, the contents as text, and
        llama.cpp's server reads them as special tokens. `line_ends`: texts whose words before a
        call the server shows with one line end more than training did. `tools`: by tool, what is
        not served as trained.

    Raises:
        ExportError: a difference that no tool causes, with its place.
    """
    jinja = renderer.template.jinja
    if jinja not in (llama.chat_template, template_of(llama.path)):
        raise ExportError(
            f"{llama.path} holds no chat template, or another one than the tokenizer, so it would "
            f"be served with another text than it was "
            "trained on: save the adapter's tokenizer with its training template and export again."
        )
    # A vocabulary may be marked "put BOS in front"; llama.cpp then takes the template's own one
    # away, and puts it back as a token.
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
                    f"llama.cpp renders the {what} of {where} otherwise than training did, "
                    f"{first_difference(here, there)}: choose another "
                    "base model, or another version of xllamacpp, and export again."
                )
            served = (
                llama.tokenize(pieces, parse_special=False)
                if pieces
                else llama.tokenize(there, add_special=True)
            )
            if served != ids:
                shared_length = shared_prefix_length([served, ids])
                raise ExportError(
                    f"llama.cpp and the tokenizer disagree on held-out conversation {number} from "
                    f"token {shared_length} on "
                    f"({served[shared_length : shared_length + 3]} and {ids[shared_length : shared_length + 3]}): the tokenizer's "
                    f"pre-tokenizer or its BOS setting was "
                    "lost in conversion."
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
            f"llama.cpp's server shows no held-out conversation as it was trained, because of the "
            f"tools {', '.join(sorted(differences))} "
            f"(of {name}, {cause.why}): change these tools, and train again."
        )
    return TemplateParity(**counts, tools=dict(sorted(differences.items())))


def _probes(renderer: ChatRenderer) -> list[DatasetRow]:
    """Return the conversation made for this check, unless the template refuses it."""
    try:
        renderer.render(PROBE["messages"], PROBE["tools"])
    except Exception:  # a template is a program
        return []
    return [PROBE]


def _parts(
    renderer: ChatRenderer, messages: list[Message]
) -> list[tuple[str, list[Message], bool]]:
    """Return what is compared of a conversation: a name, the messages, and whether the model is
    asked after them.
    """
    parts = [("prompt", prompt_of(messages), True), ("conversation", messages, False)]
    # A server writes no call as it was recorded if it rounds its numbers; then, and if turns are
    # rows, only prompts are ever asked for.
    if renderer.trains_turns_apart([*messages, {"role": "user", "content": ""}]):
        return [
            ("prompt", messages[:index], True)
            for index, message in enumerate(messages)
            if message["role"] == "assistant"
        ] or parts[:1]
    return parts


def count_causes(differences: dict[str, ToolDifference], causes: Mapping[str, str]) -> bool:
    """Add a conversation to the tools that are its causes, with the first reason of each; return
    whether there is a cause.
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
    """Return why llama.cpp does not show some tools as training did, by the tool's name. Each
    schema and each call is tried alone.
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
            if not here.endswith(there):  # llama.cpp takes away the token that begins a text
                causes.setdefault(
                    name, f"{what} is written otherwise, {first_difference(here, there)}"
                )
        except ExportError as error:
            causes.setdefault(name, f"{what} is refused: {reason_of(error)}")
    return causes


def reason_of(error: ExportError) -> str:
    """Return what llama.cpp said when it refused a request."""
    return str(error).partition(" with '")[2].rpartition("': ")[0] or str(error)


def template_of(gguf: Path) -> str | None:
    """The chat template that a file holds. llama.cpp shows it without its last line break, and
    changes gpt-oss's.
    """
    from gguf import GGUFReader

    field = GGUFReader(gguf).get_field("tokenizer.chat_template")
    return field.contents() if field else None


def _pieces(renderer: ChatRenderer, text: str) -> list[int | str]:
    """A marked text as the ids of its special tokens and, between them, what is text."""
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
    """Token ids that end an answer: the model's and the tokenizer's end tokens, and those that
    llama.cpp knows by name.
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
    """By name, the greedy answers of a GGUF against the merged model's, each mismatch explained;
    and the beginnings of the merged model's own answers, whole ones where any GGUF gave the same.

    The merged model generates nothing: its greedy answer is the GGUF's exactly where, at each
    position of that, the likeliest token is the next one. One pass over all answers says so, and
    gives the first token that differs.

    `rate`: share of exact ones; `agreement`: share of those that are exact or part at a near-tie.
    """
    ends = end_ids(model, tokenizer)
    # One token more than a stopped answer has: what the model finds likeliest there must be an end.
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
            # The merged model's answer up to and with the first token that is not the GGUF's.
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
    """Return where two answers part, with which tokens, and by how many logits the merged model
    preferred its own: by less than `tie`, it is a near-tie. The number of the prompt is 0.
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
    """`at character 12, 'abc…' there having become 'abd…'`: where two texts part."""
    shared_length = shared_prefix_length([a, b])
    start, end = max(shared_length - 10, 0), shared_length + 30
    return f"at character {shared_length}, {a[start:end]!r} there having become {b[start:end]!r}"
