"""The probe of a chat template, which finds out what content the template loses.

Stock templates drop `tools` and `tool_calls` silently (SmolLM2, Gemma 3, Phi-3.5), or encode
arguments twice (Qwen2.5, if it is given the API's strings). A model that is trained on such text
learns only what the template left. So a template is used only if it renders the sentinel
conversation without a defect.

The call that the template writes must also be read back, because a model that writes calls which
nobody can read is of no use.

What the probe finds is in `ProbeResult`. Which template is used belongs in `chat_templates`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from os.path import commonprefix
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from agent_pipeline.models.families import FAMILIES, ParsedReply, parse_reply
from agent_pipeline.models.rendering import ArgumentsAs, render_template
from agent_pipeline.models.special_tokens import remove_marks, special_tokens
from agent_pipeline.models.tool_call_parsers import ParsedCall
from agent_pipeline.sessions.session import FunctionCall, Message, Tool, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ARGUMENTS = {
    "nested": {"list_q7": [1, 2.5], "text_q7": 'a "quoted" é'},
    "flag_q7": True,
    "path: q7": "C:\\, ",
}

_ARGUMENTS_TO_READ = {
    "nested": {"list_q7": [1, 2.5, None, False], "text_q7": 'a "quoted" é'},
    "flag_q7": True,
    "path_q7": "C:\\, it's",
}
"""Arguments of the call that must be read back. Not every notation can write every key."""

ReplyParser: TypeAlias = Literal["ours", "response_template"]
"""The parser that reads the calls of a template: `parse_reply`, or that of transformers with the
tokenizer's `response_template`.
"""


def _sentinel_call(arguments: str) -> Message:
    """Return an assistant message that calls the sentinel tool."""
    function: FunctionCall = {"name": "tool_q7", "arguments": arguments}
    call: ToolCall = {"id": "call00001", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "tool_q7",
        "description": "describes_q7",
        "parameters": {"type": "object", "properties": {"flag_q7": {"type": "boolean"}}},
    },
}
SORTED_TOOLS: list[Tool] = [
    {"type": "function", "function": {**TOOL["function"], "name": name, "description": description}}
    for name, description in (
        ("Zeta_q7", "describes_q7"),
        ("alpha_q7", "describes_q7"),
        ("tool_q7", "again_q7"),
        ("tool_q7", "describes_q7"),
    )
]
"""Tools in the order in which a template that sorts them writes them. Two have the same name."""

SENTINEL: list[Message] = [
    {"role": "system", "content": "system_q7"},
    {"role": "user", "content": "user_q7"},
    _sentinel_call(json.dumps(_ARGUMENTS)),
    {"role": "tool", "tool_call_id": "call00001", "name": "tool_q7", "content": "result_q7"},
    {"role": "assistant", "content": "answer_q7"},
    {"role": "user", "content": "again_q7"},
    {"role": "assistant", "content": "last_q7"},
]
"""A test conversation that has every feature of a trace. Its words occur in no chat template."""

CALL_INDEX = 2
"""Index of the message in `SENTINEL` that contains a call."""
ANSWER_INDEX = 4
"""Index of the first answer in `SENTINEL`."""

_WITH_BLANKS: list[Message] = [
    *SENTINEL[:CALL_INDEX],
    _sentinel_call(json.dumps(_ARGUMENTS, ensure_ascii=False, indent=1)),
    *SENTINEL[CALL_INDEX + 1 :],
]
"""A copy of `SENTINEL` with white space between the parts of the call's arguments."""

_SHOWN_WORDS = {
    "system_q7": "the system message",
    "user_q7": "the user's message",
    "describes_q7": "the tools",
    "result_q7": "tool results",
    "answer_q7": "answers",
}
"""A word from each part of the sentinel conversation, with the name of the part."""

_THOUGHT_KEYS = ("reasoning_content", "thinking")
"""Keys under which chat templates look for the thought of a message."""


@dataclass(frozen=True)
class ProbeResult:
    """The findings of a chat template's probe.

    Attributes:
        defects: What the template loses; a template without defects can be used.
        arguments_as: How the template takes the arguments of calls.
        stops: The tokens that end an assistant's turn. Most families have one; Llama 3.1 ends a
            call with another token than an answer.
        prefix_preserving: Whether an earlier turn is rendered in the same way after later messages
            were added. Qwen3 removes thoughts, Mistral moves the tools to the last user message.
        reasoning: The key of a message's thought, and what the template writes between a thought
            and the message; None if the template shows no thoughts.
        sorts_tools: Whether the template writes the tools sorted by name, so that every order of a
            request's tools gives the same prompt.
        reply_parser: The parser that reads the calls that the template writes.
    """

    defects: tuple[str, ...]
    arguments_as: ArgumentsAs = "dict"
    stops: tuple[str, ...] = ()
    prefix_preserving: bool = True
    reasoning: tuple[str, str] | None = None
    sorts_tools: bool = False
    reply_parser: ReplyParser = "ours"


def probe_template(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> ProbeResult:
    """Render the sentinel conversation, and return which content the template loses.

    Arguments are tried as text if the template writes text and objects alike, else as objects;
    and then as strings. The first form without a defect is the result.
    """
    defects_by_form: list[tuple[str, ...]] = []
    first_form: ArgumentsAs = "text" if takes_text(tokenizer, jinja) else "dict"
    forms: tuple[ArgumentsAs, ...] = (first_form, "str")
    for arguments_as in forms:
        try:
            defects = tuple(_find_defects(tokenizer, jinja, arguments_as))
        except Exception as error:  # a template is a program: it may raise anything
            first_line = str(error).partition("\n")[0]
            defects = (f"it fails on tool calls ({type(error).__name__}: {first_line})",)
        if not defects:
            return _describe_template(tokenizer, jinja, arguments_as)
        defects_by_form.append(defects)
    # A template that fails has one defect, and says less than a template that renders.
    fewest = min(defects_by_form, key=lambda defects: ("fails" in defects[0], len(defects)))
    return ProbeResult(fewest)


def _find_defects(
    tokenizer: "PreTrainedTokenizerBase", jinja: str, arguments_as: ArgumentsAs
) -> Iterator[str]:
    """Yield a description of each part of the sentinel conversation that a template loses."""

    def render(messages: list[Message], add_generation_prompt: bool = False) -> str:
        return render_template(
            tokenizer, jinja, arguments_as, messages, [TOOL], add_generation_prompt
        )

    whole_text = render(SENTINEL)
    for word, part in _SHOWN_WORDS.items():
        if word not in whole_text:
            yield f"it drops {part}"
    turn_with_call = ""
    for index, message in enumerate(SENTINEL):
        if message["role"] != "assistant":
            continue
        prompt = render(SENTINEL[:index], add_generation_prompt=True)
        through_turn = render(SENTINEL[: index + 1])
        if not through_turn.startswith(prompt):
            yield "the assistant's turn does not begin with the tokens with which the prompt ends"
            return
        turn = cut_after_stop_token(tokenizer, through_turn[len(prompt) :])
        if not find_stop_token(tokenizer, turn):
            yield "it does not end the assistant's turn with a special token"
            return
        if index == CALL_INDEX:
            turn_with_call = turn
    if "tool_q7" not in turn_with_call or "flag_q7" not in turn_with_call:
        yield "it drops tool calls"
    elif '\\"' in turn_with_call.replace('\\"quoted\\"', ""):
        yield "it encodes the arguments of tool calls twice"
    elif find_reply_parser(tokenizer, jinja, arguments_as) is None:
        yield "the tool calls that it writes cannot be read back"


def _describe_template(
    tokenizer: "PreTrainedTokenizerBase", jinja: str, arguments_as: ArgumentsAs
) -> ProbeResult:
    """Return the facts about a chat template that has no defects."""
    texts = [
        render_template(tokenizer, jinja, arguments_as, SENTINEL[:length], [TOOL])
        for length, message in enumerate(SENTINEL, start=1)
        if message["role"] == "assistant"
    ]
    stops = []
    for text in texts:
        stop = find_stop_token(tokenizer, cut_after_stop_token(tokenizer, text))
        if stop and stop not in stops:
            stops.append(stop)
    prefix_preserving = all(texts[-1].startswith(text) for text in texts)
    # Rows that are whole conversations show no thoughts: their earlier turns would hold thoughts,
    # which no client sends back.
    reasoning = None if prefix_preserving else find_reasoning(tokenizer, jinja, arguments_as)
    return ProbeResult(
        (),
        arguments_as,
        tuple(stops),
        prefix_preserving,
        reasoning,
        writes_tools_sorted(tokenizer, jinja),
        find_reply_parser(tokenizer, jinja, arguments_as) or "ours",
    )


def find_reply_parser(
    tokenizer: "PreTrainedTokenizerBase", jinja: str, arguments_as: ArgumentsAs
) -> ReplyParser | None:
    """Return the parser that reads a template's call without loss, or None if no parser does.

    Our parser comes first: it reports a call that it cannot read, and keeps white space. The
    parser of transformers reads the notations that only a `response_template` describes.
    """
    message = _sentinel_call(json.dumps(_ARGUMENTS_TO_READ))
    prompt = render_template(
        tokenizer, jinja, arguments_as, SENTINEL[:CALL_INDEX], [TOOL], add_generation_prompt=True
    )
    whole = render_template(
        tokenizer, jinja, arguments_as, [*SENTINEL[:CALL_INDEX], message], [TOOL]
    )
    turn = remove_marks(cut_after_stop_token(tokenizer, whole.removeprefix(prompt)))
    expected = (ParsedCall("tool_q7", _ARGUMENTS_TO_READ),)
    words = turn.removesuffix(find_stop_token(tokenizer, turn) or "")
    reply = parse_reply(words, [TOOL])
    if reply.calls == expected and not reply.invalid:
        return "ours"
    if getattr(tokenizer, "response_template", None) is None:
        return None
    reply = parse_with_tokenizer(tokenizer, prompt, turn, [TOOL])
    return "response_template" if reply.calls == expected and not reply.invalid else None


def parse_with_tokenizer(
    tokenizer: "PreTrainedTokenizerBase", prompt: str, text: str, tools: Sequence[Tool] | None
) -> ParsedReply:
    """Parse a generated text as the tokenizer's `response_template` describes it.

    Args:
        tokenizer: The tokenizer, which has a `response_template`.
        prompt: The rendered text before the generated text.
        text: The generated text with its stop token.
        tools: The tools of the row.
    """
    plain_tools = [dict(tool) for tool in tools or ()]
    try:
        message = tokenizer.parse_response(text, prefix=prompt, tools=plain_tools)
    except (ValueError, TypeError, KeyError):  # it has no error of its own for a broken call
        return ParsedReply((), 1, text)
    calls = []
    invalid = 0
    for tool_call in message.get("tool_calls") or ():
        function = tool_call.get("function", tool_call)
        name, arguments = function.get("name"), function.get("arguments") or {}
        if isinstance(name, str) and isinstance(arguments, dict):
            calls.append(ParsedCall(name, arguments))
        else:
            invalid += 1
    return ParsedReply(tuple(calls), invalid, str(message.get("content") or "").strip())


def writes_tools_sorted(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> bool:
    """Return whether a template writes the same prompt for every order of a request's tools.

    The tools must be written as the template writes them in sorted order.
    """
    messages = SENTINEL[:CALL_INDEX]
    try:
        prompts = {
            render_template(tokenizer, jinja, "dict", messages, list(tools), True)
            for tools in permutations(SORTED_TOOLS)
        }
    except Exception:  # a template is a program
        return False
    if len(prompts) > 1:
        return False
    prompt = prompts.pop()
    positions = [prompt.find(tool["function"]["name"]) for tool in SORTED_TOOLS]
    return positions[0] >= 0 and positions == sorted(positions)


def takes_text(tokenizer: "PreTrainedTokenizerBase", jinja: str) -> bool:
    """Return whether a template writes call arguments equally in three input forms.

    The forms are an object, compact text, and text with blanks between its parts.
    """
    try:
        compact = render_template(tokenizer, jinja, "text", SENTINEL, [TOOL])
        with_blanks = render_template(tokenizer, jinja, "str", _WITH_BLANKS, [TOOL])
        as_object = render_template(tokenizer, jinja, "dict", SENTINEL, [TOOL])
    except Exception:  # a template is a program
        return False
    return compact == with_blanks == as_object


def find_reasoning(
    tokenizer: "PreTrainedTokenizerBase", jinja: str, arguments_as: ArgumentsAs
) -> tuple[str, str] | None:
    """Return how a template shows the thought of the last assistant message.

    Args:
        tokenizer: The tokenizer.
        jinja: The chat template.
        arguments_as: How the template takes the arguments of calls.

    Returns:
        The key of the thought, and what the template writes between the thought and the message,
        be that a call or an answer. None if the template shows no thought, or shows a thought
        elsewhere than right after the prompt.
    """
    for key in _THOUGHT_KEYS:
        texts_after_thought = []
        for index in (CALL_INDEX, ANSWER_INDEX):
            thinking_message = cast(Message, SENTINEL[index] | {key: "thought_q7"})
            earlier = SENTINEL[:index]
            try:
                prompt = render_template(tokenizer, jinja, arguments_as, earlier, [TOOL], True)
                text = render_template(
                    tokenizer, jinja, arguments_as, [*earlier, thinking_message], [TOOL]
                )
            except Exception:  # a template is a program
                break
            if text.startswith(prompt) and "thought_q7" in text[len(prompt) :]:
                texts_after_thought.append(text.partition("thought_q7")[2])
        closing = commonprefix(texts_after_thought)  # noqa: RUF071  of texts, not of paths
        if len(texts_after_thought) == 2 and closing:
            return key, closing
    return None


def find_stop_token(tokenizer: "PreTrainedTokenizerBase", turn: str) -> str | None:
    """Return the special token at the end of a rendered turn, or None. White space is ignored."""
    text = turn.rstrip()
    tokens = [token for token in special_tokens(tokenizer) if text.endswith(token)]
    return max(tokens, key=len, default=None)


def cut_after_stop_token(tokenizer: "PreTrainedTokenizerBase", turn: str) -> str:
    """Return a rendered turn up to and including its stop token.

    A line break after the stop token belongs to the frame of the next turn. An end of text after
    the stop token (Phi) marks the end of a conversation, not the end of a turn.
    """
    turn = turn.rstrip()
    without_end_of_text = turn.removesuffix(tokenizer.eos_token or "").rstrip()
    family_stops = tuple(stop for family in FAMILIES for stop in family.stops)
    return without_end_of_text if without_end_of_text.endswith(family_stops) else turn
