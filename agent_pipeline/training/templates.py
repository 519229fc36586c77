"""Which chat template a model is trained with: its own where that loses nothing, else one that does.

Stock templates drop `tools` and `tool_calls` silently (SmolLM2, Phi-3), encode arguments twice (Qwen2.5, given the API's
strings), or render an earlier turn differently once a later one follows (Qwen3). A model trained on such text learns what the
template left. So each candidate renders a sentinel conversation first, and the first one that passes every test is used:
the model's own, TRL's training template for its family, our Hermes-style ChatML.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.errors import ModelError
from agent_pipeline.sessions.session import Message, Tool
from agent_pipeline.training.families import FAMILIES
from agent_pipeline.training.literals import special_tokens
from agent_pipeline.training.loading import read_tokenizer
from agent_pipeline.training.rendering import ArgumentsAs, render_with

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ARGUMENTS = {"nested": {"list_q7": [1, 2.5], "text_q7": 'a "quoted" é'}, "flag_q7": True}
CALL = {"id": "call00001", "type": "function", "function": {"name": "tool_q7", "arguments": json.dumps(ARGUMENTS)}}
TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "tool_q7",
        "description": "describes_q7",
        "parameters": {"type": "object", "properties": {"flag_q7": {"type": "boolean"}}},
    },
}
SENTINEL: list[Message] = [
    {"role": "system", "content": "system_q7"},
    {"role": "user", "content": "user_q7"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call00001", "name": "tool_q7", "content": "result_q7"},
    {"role": "assistant", "content": "answer_q7"},
    {"role": "user", "content": "again_q7"},
    {"role": "assistant", "content": "last_q7"},
]
"""A conversation with every shape a trace has; its words occur in no template."""


@dataclass(frozen=True)
class TrainingTemplate:
    """A template that passed the probe. `origin`: `model` (its own), `trl`, or the family whose template is ours. `why` says in a sentence
    why this one; `stops` are the tokens that end a turn.

    Most families have one stop token; Llama 3.1 ends a call with another one than an answer.
    """

    jinja: str
    origin: str
    why: str
    arguments_as: ArgumentsAs
    stops: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What the probe found: the defects (none: usable), the form of arguments and the stop tokens."""

    defects: tuple[str, ...]
    arguments_as: ArgumentsAs = "dict"
    stops: tuple[str, ...] = ()


def stop_token(tokenizer: "PreTrainedTokenizerBase", turn: str) -> str | None:
    """The special token that the rendered assistant turn `turn` ends with, white space aside; None where there is none."""
    ends = [token for token in special_tokens(tokenizer) if turn.rstrip().endswith(token)]
    return max(ends, key=len, default=None)


def _defects(tokenizer: "PreTrainedTokenizerBase", jinja: str, arguments_as: ArgumentsAs) -> Iterator[str]:
    def text(messages: list, prompt: bool = False) -> str:
        return render_with(tokenizer, jinja, arguments_as, messages, [TOOL], prompt)

    whole = text(SENTINEL)
    for word, loses in {
        "system_q7": "the system message",
        "user_q7": "the user's message",
        "describes_q7": "the tools",
        "result_q7": "tool results",
        "answer_q7": "answers",
    }.items():
        if word not in whole:
            yield f"it drops {loses}"
    turns = {}
    for index, message in enumerate(SENTINEL):
        if message["role"] != "assistant":
            continue
        before, after = text(SENTINEL[:index], True), text(SENTINEL[: index + 1])
        if not (after.startswith(before) and whole.startswith(after)):
            yield "it renders a turn differently once another follows"
            return
        turns[index] = after[len(before) :]
        if not stop_token(tokenizer, turns[index]):
            yield "it ends the assistant's turn with no special token"
            return
    if "tool_q7" not in turns[2] or "flag_q7" not in turns[2]:
        yield "it drops tool calls"
    elif '\\"' in turns[2].replace('\\"quoted\\"', ""):
        yield "it encodes the arguments of tool calls twice"
    try:  # None is what the API gives as the content of a turn that only calls
        if text([*SENTINEL[:2], {**SENTINEL[2], "content": None}]) != text(SENTINEL[:3]):
            yield "it renders null content other than empty content"
    except TypeError:
        yield "it fails on null content"


def probe(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> Verdict:
    """Render the sentinel conversation with `jinja`, arguments as objects, then as strings, and say what is lost."""
    found: list[tuple[str, ...]] = []
    for arguments_as in ("dict", "str"):
        try:
            defects = tuple(_defects(tokenizer, jinja, arguments_as))
        except Exception as error:  # a template is a program: it may raise anything, and each of them is a verdict
            defects = (f"it fails on tool calls ({type(error).__name__}: {str(error).partition(chr(10))[0]})",)
        if not defects:
            ends = (stop_token(tokenizer, render_with(tokenizer, jinja, arguments_as, SENTINEL[:n], [TOOL])) for n in (3, 5))
            return Verdict((), arguments_as, tuple(dict.fromkeys(end for end in ends if end)))
        found.append(defects)
    return Verdict(min(found, key=len))


def _candidates(tokenizer: "PreTrainedTokenizerBase", stock: str | None) -> Iterator[tuple[str, str]]:
    if stock:
        yield "model", stock
        from trl.chat_template_utils import get_training_chat_template

        with suppress(ValueError, TypeError):  # not one of the families that TRL knows
            yield "trl", get_training_chat_template(tokenizer) or stock
    for family in FAMILIES:
        if family.template and set(family.stops) <= special_tokens(tokenizer):
            yield family.name, family.template()


def training_template(tokenizer: "PreTrainedTokenizerBase") -> TrainingTemplate:
    """The first template that renders a tool conversation without loss; the tokenizer is left as it is.

    Raises ModelError where none does.
    """
    stock = tokenizer.chat_template
    stock = stock.get("tool_use") or stock.get("default") if isinstance(stock, dict) else stock
    refused = [] if stock else ["it has none of its own"]
    for origin, jinja in _candidates(tokenizer, stock):
        verdict = probe(tokenizer, jinja)
        if not verdict.defects:
            own = "the model's own template renders tools without loss"
            why = own if origin == "model" else f"the model's own template is not used: {refused[0]}"
            return TrainingTemplate(jinja, origin, why, verdict.arguments_as, verdict.stops)
        refused.append("; ".join(verdict.defects))
    raise ModelError(
        f"The chat template of {tokenizer.name_or_path or 'the base model'} cannot be trained with tool calls ({refused[0]}), "
        "and its vocabulary has no <|im_start|> and <|im_end|> for ours: choose another base model."
    )


def load_tokenizer(path: Path, trust_remote_code: bool = False) -> tuple["PreTrainedTokenizerBase", TrainingTemplate]:
    """A model directory's tokenizer with the training template in place, and that template. Raises ModelError.

    An adapter directory's template passes its own probe, so it comes back as `origin="model"`.
    """
    tokenizer = read_tokenizer(path, trust_remote_code)
    if not tokenizer.is_fast:
        raise ModelError(f"The tokenizer in {path} has no fast version (tokenizer.json), which masks need: choose another base model.")
    template = training_template(tokenizer)
    tokenizer.chat_template = template.jinja
    tokenizer.init_kwargs["arguments_as"] = template.arguments_as
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or template.stops[0]
    return tokenizer, template
