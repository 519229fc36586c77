"""Which chat template a model is trained with: its own where that loses nothing, else ours in its own turn markers, else ours in ChatML.

Stock templates drop `tools` and `tool_calls` silently (SmolLM2, Gemma 3, Phi-3.5), or encode arguments twice (Qwen2.5, given the API's
strings). A model trained on such text learns what the template left. So each candidate renders a sentinel conversation first, and the first
one that passes every test is used. A template that renders an earlier turn differently once a later one follows (Qwen3 leaves thoughts out,
Mistral shows the tools before the last user) passes with `rows="turn"`: each turn is trained as it is asked. What servers would decide
by themselves, today's date above all, is written down (`pinned`).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.resources import files
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.errors import ModelError
from agent_pipeline.models.families import FAMILIES, hermes
from agent_pipeline.models.loading import read_tokenizer
from agent_pipeline.models.rendering import ArgumentsAs, Rows, render_with
from agent_pipeline.models.special_tokens import special_tokens
from agent_pipeline.sessions.session import Message, Tool

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ARGUMENTS = {
    "nested": {"list_q7": [1, 2.5], "text_q7": 'a "quoted" é'},
    "flag_q7": True,
    "path: q7": "C:\\, ",
}
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "tool_q7", "arguments": json.dumps(ARGUMENTS)},
}
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

WITH_BLANKS: list[Message] = [
    message
    | {
        "tool_calls": [
            CALL
            | {
                "function": {
                    "name": "tool_q7",
                    "arguments": json.dumps(ARGUMENTS, ensure_ascii=False, indent=1),
                }
            }
        ]
    }
    if message.get("tool_calls")
    else message
    for message in SENTINEL
]
"""The same conversation with blanks and line ends between the parts of the call's arguments."""

PINNED = date(2024, 7, 26)
"""The date in templates that write today's: Llama 3's own default. Another day would be another prompt than the one that was trained."""

_CONTENT = re.compile(r"""\bmessage(?:\.content|\['content'\]|\["content"\])(?!\s*[.\[(])""")
_CUT = r"(CONTENT.rstrip(' \n\r\t') if message.tool_calls and CONTENT is string else CONTENT)"
_DATE = f'{{%- set date_string = "{PINNED:%d %b %Y}" -%}}'
_ARGUMENTS = r"(\w+(?:\.\w+|\['\w+'\])*(?:\.arguments|\['arguments'\]))"
_AS_JSON = re.compile(_ARGUMENTS + r"\s*\|\s*tojson(?:\(\))?(?!\()")
_PRINTED = re.compile(r"\{\{(-?)\s*" + _ARGUMENTS + r"\s*(-?)\}\}")
_THINKING = "{{%- set enable_thinking = {} -%}}"
_TODAY = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")


@dataclass(frozen=True)
class TrainingTemplate:
    """A template that passed the probe. `origin`: `model` (its own), or the family in whose markers ours is written. `why` says why this
    one; `stops` are the tokens that end a turn; `rows` is what makes a row of training; `reasoning` as in `thoughts_of`.

    Most families have one stop token; Llama 3.1 ends a call with another one than an answer.
    """

    jinja: str
    origin: str
    why: str
    arguments_as: ArgumentsAs
    stops: tuple[str, ...]
    rows: Rows = "conversation"
    reasoning: tuple[str, str] | None = None


@dataclass(frozen=True)
class Verdict:
    """What the probe found: the defects (none: usable), the form of arguments, the stop tokens, what makes a row, and `thoughts_of`."""

    defects: tuple[str, ...]
    arguments_as: ArgumentsAs = "dict"
    stops: tuple[str, ...] = ()
    rows: Rows = "conversation"
    reasoning: tuple[str, str] | None = None


def pinned(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> tuple[str, str]:
    """The template with what servers decide by themselves written down, and a clause that says so.

    Templates write today's date, which servers pass as `date_string` or `strftime_now`: it becomes `PINNED`. A template that thinks only
    when asked to (Qwen 3.5's small models) is asked to by llama.cpp: it then never does.
    """
    used = ""
    fixed = _TODAY.sub(lambda found: f'"{PINNED.strftime(found[2])}"', jinja)
    if "date_string" in fixed and not fixed.startswith(_DATE):
        fixed = _DATE + fixed
    if fixed != jinja:
        used += f"; the date that it writes is always {PINNED:%d %b %Y}"
    if "enable_thinking" in fixed:
        prompts = [
            render_with(tokenizer, head + fixed, "dict", SENTINEL[:2], [TOOL], True)
            for head in ("", _THINKING.format("true"))
        ]
        if prompts[0] != prompts[1]:
            fixed, used = (
                _THINKING.format("false") + fixed,
                used + "; it never thinks, as it does by default",
            )
    return fixed, used


def without_line_ends(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> tuple[str, str]:
    """Return the template with words before a call cut at their last line end, and a clause that says so.

    llama.cpp's server returns those words with the line end that the template writes before the call, and clients send them back: the
    template (Qwen 2.5's and 3's) would write a second one. A template that needs no change, or that this change would not cure, is
    returned as it is.
    """

    def shown(template: str, words: str) -> str:
        messages = [
            message | {"content": words} if message.get("tool_calls") else message
            for message in SENTINEL
        ]
        return render_with(tokenizer, template, "dict", messages, [TOOL]) + render_with(
            tokenizer, template, "dict", SENTINEL, [TOOL]
        )

    cured = _CONTENT.sub(lambda found: _CUT.replace("CONTENT", found[0]), jinja)
    try:
        trained = shown(jinja, "words_q7")
        if (
            shown(jinja, "words_q7\n") != trained
            and shown(cured, "words_q7") == shown(cured, "words_q7\n") == trained
        ):
            return cured, "; words before a call end without a line end"
    except Exception:  # a template is a program: the probe says what is wrong with it
        return jinja, ""
    return jinja, ""


def with_text_arguments(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> tuple[str, str]:
    """Return the template with arguments that are given as text, so that llama.cpp does not round their numbers, and a clause that says so.

    A template that reads single arguments (Qwen 3.5's) must be given objects. It is returned as it is, and so is one that would render
    objects otherwise once it is changed.
    """
    head = _DATE if jinja.startswith(_DATE) else ""
    body = _AS_JSON.sub(r"arguments_text(\1)", jinja.removeprefix(head))
    body = _PRINTED.sub(r"{{\1 arguments_text(\2) \3}}", body)
    if (
        "arguments_text(" not in body
        or body == jinja.removeprefix(head)
        or "set enable_thinking" in jinja
    ):
        return jinja, ""
    macro = files(__package__).joinpath("arguments.jinja").read_text(encoding="utf-8").rstrip("\n")
    changed = head + macro + body
    try:
        alike = all(
            render_with(tokenizer, jinja, "dict", messages, [TOOL])
            == render_with(tokenizer, changed, "dict", messages, [TOOL])
            for messages in (SENTINEL, SENTINEL[:3])
        )
    except Exception:  # a template is a program: the probe says what is wrong with it
        return jinja, ""
    return (
        (changed, "; it is given arguments as text")
        if alike and takes_text(tokenizer, changed)
        else (jinja, "")
    )


def stop_token(tokenizer: "PreTrainedTokenizerBase", turn: str) -> str | None:
    """The special token that the rendered assistant turn `turn` ends with, white space aside; None where there is none."""
    ends = [token for token in special_tokens(tokenizer) if turn.rstrip().endswith(token)]
    return max(ends, key=len, default=None)


def up_to_stop(tokenizer: "PreTrainedTokenizerBase", turn: str) -> str:
    """A rendered assistant turn up to and with its stop token. A line break after it is the next turn's frame, and an end of text after
    it (Phi) is written where a conversation ends, not where a model stops."""
    turn = turn.rstrip()
    bare = turn.removesuffix(tokenizer.eos_token or "").rstrip()
    return (
        bare if any(bare.endswith(stop) for family in FAMILIES for stop in family.stops) else turn
    )


def _defects(
    tokenizer: "PreTrainedTokenizerBase", jinja: str, arguments_as: ArgumentsAs
) -> Iterator[str]:
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
        if not after.startswith(before):
            yield "it begins the assistant's turn otherwise than it asks for it"
            return
        turns[index] = up_to_stop(tokenizer, after[len(before) :])
        if not stop_token(tokenizer, turns[index]):
            yield "it ends the assistant's turn with no special token"
            return
    if "tool_q7" not in turns[2] or "flag_q7" not in turns[2]:
        yield "it drops tool calls"
    elif '\\"' in turns[2].replace('\\"quoted\\"', ""):
        yield "it encodes the arguments of tool calls twice"


def probe(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> Verdict:
    """Render the sentinel conversation with `jinja`, arguments as text if that is as good as objects, as objects, then as strings, and
    say what is lost."""
    found: list[tuple[str, ...]] = []
    forms: tuple[ArgumentsAs, ...] = (
        ("text", "str") if takes_text(tokenizer, jinja) else ("dict", "str")
    )
    for arguments_as in forms:
        try:
            defects = tuple(_defects(tokenizer, jinja, arguments_as))
        except (
            Exception
        ) as error:  # a template is a program: it may raise anything, and each of them is a verdict
            defects = (
                f"it fails on tool calls ({type(error).__name__}: {str(error).partition(chr(10))[0]})",
            )
        if not defects:
            parts = [
                render_with(tokenizer, jinja, arguments_as, SENTINEL[:n], [TOOL]) for n in (3, 5, 7)
            ]
            ends = (stop_token(tokenizer, up_to_stop(tokenizer, part)) for part in parts)
            rows: Rows = (
                "conversation" if all(parts[-1].startswith(part) for part in parts) else "turn"
            )
            thoughts = thoughts_of(tokenizer, jinja, arguments_as) if rows == "turn" else None
            return Verdict(
                (), arguments_as, tuple(dict.fromkeys(end for end in ends if end)), rows, thoughts
            )
        found.append(defects)
    return Verdict(min(found, key=lambda defects: ("fails" in defects[0], len(defects))))


def takes_text(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> bool:
    """Return whether a template writes a call's arguments alike, be they an object, compact text, or text with blanks between its parts."""
    try:
        compact = render_with(tokenizer, jinja, "text", SENTINEL, [TOOL])
        blanks = render_with(tokenizer, jinja, "str", WITH_BLANKS, [TOOL])
        objects = render_with(tokenizer, jinja, "dict", SENTINEL, [TOOL])
    except Exception:  # a template is a program
        return False
    return compact == blanks == objects


def thoughts_of(
    tokenizer: "PreTrainedTokenizerBase", jinja: str, arguments_as: ArgumentsAs
) -> tuple[str, str] | None:
    """The key under which a template shows what was thought before a message, and what it writes between thought and message, be that a
    call or an answer. None where it shows none, or only in another place than after the prompt, and where rows are whole conversations:
    their past would hold thoughts, which no client sends back."""
    for key in ("reasoning_content", "thinking"):
        after = []
        for at in (2, 4):  # a call, an answer
            try:
                before = render_with(tokenizer, jinja, arguments_as, SENTINEL[:at], [TOOL], True)
                turn = render_with(
                    tokenizer,
                    jinja,
                    arguments_as,
                    [*SENTINEL[:at], SENTINEL[at] | {key: "thought_q7"}],
                    [TOOL],
                )
            except Exception:  # a template is a program
                break
            if turn.startswith(before) and "thought_q7" in turn[len(before) :]:
                after.append(turn.partition("thought_q7")[2])
        if len(after) == 2 and (closing := commonprefix(after)):  # noqa: RUF071  of texts, not of paths
            return key, closing
    return None


def _candidates(
    tokenizer: "PreTrainedTokenizerBase", stock: str | None
) -> Iterator[tuple[str, str, str]]:
    """Origin, template, and why it is that."""
    if stock:
        try:
            jinja, fixed = pinned(tokenizer, stock)
            jinja, cut = without_line_ends(tokenizer, jinja)
            jinja, as_text = with_text_arguments(tokenizer, jinja)
            fixed += cut + as_text
        except Exception:  # it fails on a plain question: the probe says so
            jinja, fixed = stock, ""
        yield "model", jinja, f"the model's own template renders tools without loss{fixed}"
    specials = special_tokens(tokenizer)
    ours = [
        (family.name, family.markers)
        for family in FAMILIES
        if family.markers and specials.issuperset(family.markers.tokens)
    ]
    for name, markers in sorted(
        ours, key=lambda each: each[1].tokens[-1] not in (stock or "")
    ):  # those that it was made with first
        why = "ours in ChatML" if name == "hermes" else f"ours in the turn markers of {name}"
        yield name, hermes(markers, "bos_token" in (stock or "")), why


def training_template(tokenizer: "PreTrainedTokenizerBase") -> TrainingTemplate:
    """The first template that renders a tool conversation without loss; the tokenizer is left as it is.

    Raises ModelError where none does.
    """
    stock = tokenizer.chat_template
    stock = stock.get("tool_use") or stock.get("default") if isinstance(stock, dict) else stock
    refused = [] if stock else ["it has none of its own"]
    for origin, jinja, why in _candidates(tokenizer, stock):
        verdict = probe(tokenizer, jinja)
        if not verdict.defects:
            if origin != "model":
                why = f"the model's own template is not used ({refused[0]}): this is {why}"
            if verdict.rows == "turn":
                why += "; it shows the past otherwise than it was said, so each turn is a row"
            return TrainingTemplate(
                jinja,
                origin,
                why,
                verdict.arguments_as,
                verdict.stops,
                verdict.rows,
                verdict.reasoning,
            )
        refused.append("; ".join(verdict.defects))
    raise ModelError(
        f"The chat template of {tokenizer.name_or_path or 'the base model'} cannot be trained with tool calls ({refused[0]}), "
        "and its vocabulary has no turn markers for ours, such as <|im_start|> and <|im_end|>: choose another base model."
    )


def load_tokenizer(
    path: Path, trust_remote_code: bool = False
) -> tuple["PreTrainedTokenizerBase", TrainingTemplate]:
    """A model directory's tokenizer with the training template in place, and that template. Raises ModelError.

    An adapter directory's template passes its own probe, so it comes back as `origin="model"`.
    """
    tokenizer = read_tokenizer(path, trust_remote_code)
    if not tokenizer.is_fast:
        raise ModelError(
            f"The tokenizer in {path} has no fast version (tokenizer.json), which masks need: choose another base model."
        )
    template = training_template(tokenizer)
    tokenizer.chat_template = template.jinja
    tokenizer.init_kwargs |= {
        "arguments_as": template.arguments_as,
        "rows": template.rows,
        "reasoning": template.reasoning,
    }
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or template.stops[0]
    return tokenizer, template


def template_stops(tokenizer: "PreTrainedTokenizerBase", template: TrainingTemplate) -> set[int]:
    """The tokens that end a message of a training template."""
    return set(tokenizer.convert_tokens_to_ids(list(template.stops)))
