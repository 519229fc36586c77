"""Small changes to a model's own chat template, so that training and all servers render alike.

Each function returns an `AdjustedTemplate`: the template, and a clause that says what was changed.
A template that needs no change is returned as it is. Which template is used belongs in
`chat_templates`, and what a template loses belongs in `template_probe`.
"""

import re
from dataclasses import dataclass
from datetime import date
from importlib.resources import files
from typing import TYPE_CHECKING

from agent_pipeline.models.rendering import render_template
from agent_pipeline.models.template_probe import (
    CALL_INDEX,
    SENTINEL,
    SORTED_TOOLS,
    TOOL,
    find_reply_parser,
    takes_text,
    writes_tools_sorted,
)
from agent_pipeline.sessions.session import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PINNED_DATE = date(2024, 7, 26)
"""Date for templates that write the current date. It is the default date in Llama 3's template.

Another date would make another prompt than the one that was trained.
"""

_SET_DATE = f'{{%- set date_string = "{PINNED_DATE:%d %b %Y}" -%}}'
_SET_THINKING = "{{%- set enable_thinking = {} -%}}"
_TODAY = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
_MESSAGE_CONTENT = re.compile(
    r"""\bmessage(?:\.content|\['content'\]|\["content"\])(?!\s*[.\[(])"""
)
_TRIMMED_CONTENT = (
    r"(CONTENT.rstrip(' \n\r\t') if message.tool_calls and CONTENT is string else CONTENT)"
)
_VALUE_MACRO = re.compile(
    r"\{%-?\s*macro format_arg_value\(arg_value\)\s*-?%\}.*?\{%-?\s*endmacro\s*-?%\}", re.DOTALL
)
_ESCAPING_MACRO = (
    "{%- macro format_arg_value(arg_value) -%}"
    "{%- if arg_value is string -%}"
    r"""{%- set text = arg_value | replace("\\", "\\\\") | replace("'", "\\'") -%}"""
    r"""{{- "'" + (text | replace("\n", "\\n") | replace("\r", "\\r")) + "'" -}}"""
    "{%- elif arg_value is mapping or arg_value is iterable -%}{{- arg_value | tojson -}}"
    "{%- else -%}{{- arg_value | string -}}{%- endif -%}"
    "{%- endmacro -%}"
)
_CALL_ARGUMENTS = r"(\w+(?:\.\w+|\['\w+'\])*(?:\.arguments|\['arguments'\]))"
_ARGUMENTS_AS_JSON = re.compile(_CALL_ARGUMENTS + r"\s*\|\s*tojson(?:\(\))?(?!\()")
_ARGUMENTS_PRINTED = re.compile(r"\{\{(-?)\s*" + _CALL_ARGUMENTS + r"\s*(-?)\}\}")


@dataclass(frozen=True)
class AdjustedTemplate:
    """A chat template after an adjustment.

    Attributes:
        jinja: The template.
        change: A clause for a sentence about the template, or an empty string if it is unchanged.
    """

    jinja: str
    change: str = ""


def adjust_template(
    tokenizer: "PreTrainedTokenizerBase", jinja: str, was_trained_with: bool = False
) -> AdjustedTemplate:
    """Apply all adjustments to a model's own chat template.

    A template that fails on a plain question is returned unchanged: the probe reports the failure.

    Args:
        tokenizer: The tokenizer.
        jinja: The template.
        was_trained_with: Whether the model was already trained with this template. Its order of
            the tools then stays as it was in training.
    """
    changes = ""
    adjusted = AdjustedTemplate(jinja)
    adjustments = [
        pin_defaults,
        trim_words_before_calls,
        escape_quoted_arguments,
        accept_text_arguments,
    ]
    if not was_trained_with:
        # The order of the tools comes first, because `accept_text_arguments` reads the beginning.
        adjustments.insert(0, sort_tools)
    try:
        for adjust in adjustments:
            adjusted = adjust(tokenizer, adjusted.jinja)
            changes += adjusted.change
    except Exception:  # a template is a program
        return AdjustedTemplate(jinja)
    return AdjustedTemplate(adjusted.jinja, changes)


def pin_defaults(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> AdjustedTemplate:
    """Write fixed values into a template for things that servers decide: the date and thinking.

    Servers pass today's date as `date_string` or `strftime_now`; it becomes `PINNED_DATE`.
    llama.cpp sets `enable_thinking` for a template that thinks only if it is set (Qwen 3.5's small
    models); such a template then never thinks.
    """
    changes = ""
    changed = _TODAY.sub(lambda match: f'"{PINNED_DATE.strftime(match[2])}"', jinja)
    if "date_string" in changed and not changed.startswith(_SET_DATE):
        changed = _SET_DATE + changed
    if changed != jinja:
        changes += f"; the date that it writes is always {PINNED_DATE:%d %b %Y}"
    if "enable_thinking" in changed:
        question = SENTINEL[:CALL_INDEX]
        by_default = render_template(tokenizer, changed, "dict", question, [TOOL], True)
        thinking = _SET_THINKING.format("true") + changed
        with_thinking = render_template(tokenizer, thinking, "dict", question, [TOOL], True)
        if by_default != with_thinking:
            changed = _SET_THINKING.format("false") + changed
            changes += "; thinking is always off, which is its default"
    return AdjustedTemplate(changed, changes)


def sort_tools(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> AdjustedTemplate:
    """Make a template write the tools sorted by name, in every order of a request's tools.

    A model that is trained on one order of the tools learns their positions, and calls the wrong
    tool in another order. A template that already sorts is returned unchanged. So is a template
    that would render a request with sorted tools differently after the change.
    """
    if writes_tools_sorted(tokenizer, jinja):
        return AdjustedTemplate(jinja)
    changed = files(__package__).joinpath("tool_order.jinja").read_text(encoding="utf-8") + jinja
    try:
        renders_alike = all(
            render_template(tokenizer, jinja, "dict", messages, tools, is_prompt)
            == render_template(tokenizer, changed, "dict", messages, tools, is_prompt)
            for messages, is_prompt in ((SENTINEL, False), (SENTINEL[:CALL_INDEX], True))
            for tools in ([TOOL], SORTED_TOOLS, None)
        )
    except Exception:  # a template is a program: the probe reports what is wrong with it
        return AdjustedTemplate(jinja)
    if not renders_alike or not writes_tools_sorted(tokenizer, changed):
        return AdjustedTemplate(jinja)
    return AdjustedTemplate(changed, "; it writes the tools sorted by name")


def trim_words_before_calls(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> AdjustedTemplate:
    """Remove the line end that servers leave between a text and a call of the same message.

    llama.cpp's server returns these words with the line end that the template writes before the
    call, and clients send the words back. The template (Qwen 2.5's and 3's) would then write a
    second line end. A template that this change does not cure is returned unchanged.
    """
    trimmed = _MESSAGE_CONTENT.sub(
        lambda match: _TRIMMED_CONTENT.replace("CONTENT", match[0]), jinja
    )
    try:
        trained = _render_words_before_call(tokenizer, jinja, "words_q7")
        has_problem = _render_words_before_call(tokenizer, jinja, "words_q7\n") != trained
        is_cured = has_problem and all(
            _render_words_before_call(tokenizer, trimmed, words) == trained
            for words in ("words_q7", "words_q7\n")
        )
    except Exception:  # a template is a program: the probe reports what is wrong with it
        return AdjustedTemplate(jinja)
    if not is_cured:
        return AdjustedTemplate(jinja)
    return AdjustedTemplate(trimmed, "; line breaks between words and a call are removed")


def _render_words_before_call(tokenizer: "PreTrainedTokenizerBase", jinja: str, words: str) -> str:
    """Render the sentinel conversation twice: with text before its call, and without it."""
    messages: list[Message] = [
        message | {"content": words} if message.get("tool_calls") else message
        for message in SENTINEL
    ]
    with_words = render_template(tokenizer, jinja, "dict", messages, [TOOL])
    return with_words + render_template(tokenizer, jinja, "dict", SENTINEL, [TOOL])


def escape_quoted_arguments(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> AdjustedTemplate:
    """Escape quotes and line breaks in the texts of calls that are written as Python (LFM2.5).

    Without this change, nobody can read `search(query='it's new')`. The later revision of LFM2's
    template escapes texts in the same way. A template that this change does not cure is returned
    unchanged.
    """
    changed = _VALUE_MACRO.sub(lambda match: _ESCAPING_MACRO, jinja)
    if changed == jinja:
        return AdjustedTemplate(jinja)
    try:
        has_problem = find_reply_parser(tokenizer, jinja, "dict") is None
        is_cured = has_problem and find_reply_parser(tokenizer, changed, "dict") is not None
    except Exception:  # a template is a program: the probe reports what is wrong with it
        return AdjustedTemplate(jinja)
    if not is_cured:
        return AdjustedTemplate(jinja)
    return AdjustedTemplate(changed, "; quotes in the arguments of calls are escaped")


def accept_text_arguments(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> AdjustedTemplate:
    """Make a template accept arguments as text, so that llama.cpp does not round their numbers.

    A template that reads single arguments (Qwen 3.5's) needs objects and is returned unchanged. So
    is a template that would render objects differently after the change.
    """
    head = _SET_DATE if jinja.startswith(_SET_DATE) else ""
    body = jinja.removeprefix(head)
    changed_body = _ARGUMENTS_AS_JSON.sub(r"arguments_text(\1)", body)
    changed_body = _ARGUMENTS_PRINTED.sub(r"{{\1 arguments_text(\2) \3}}", changed_body)
    if (
        "arguments_text(" not in changed_body
        or changed_body == body
        or "set enable_thinking" in jinja
    ):
        return AdjustedTemplate(jinja)
    macro = files(__package__).joinpath("arguments.jinja").read_text(encoding="utf-8")
    changed = head + macro.rstrip("\n") + changed_body
    try:
        renders_alike = all(
            render_template(tokenizer, jinja, "dict", messages, [TOOL])
            == render_template(tokenizer, changed, "dict", messages, [TOOL])
            for messages in (SENTINEL, SENTINEL[: CALL_INDEX + 1])
        )
    except Exception:  # a template is a program: the probe reports what is wrong with it
        return AdjustedTemplate(jinja)
    if not renders_alike or not takes_text(tokenizer, changed):
        return AdjustedTemplate(jinja)
    return AdjustedTemplate(changed, "; it takes the arguments of calls as text")
