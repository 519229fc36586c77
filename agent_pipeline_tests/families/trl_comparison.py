"""What TRL's own tests of chat templates and its parser of replies give for each family.

A part of docs/reference/model-families.md is made from this. It belongs here because it decides whether TRL's
functions can replace ours; `agent_pipeline_tests.families.table` writes the page.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.chat_templates import choose_template
from agent_pipeline.models.families import parse_reply
from agent_pipeline.models.template_probe import probe_template
from agent_pipeline.sessions.session import Message
from agent_pipeline.tokenization.loss_masks import check_mask, encode_conversation
from agent_pipeline_tests.families.subjects import Subject, make_tokenizer
from agent_pipeline_tests.training.world import TOOL, call, row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ARGUMENTS: list[dict] = [
    {"city": "Oslo", "days": 2},
    {"city": 'Sankt "Pölten", Wien', "days": 10},
    {"city": "042", "days": 1},
    {},
]
"""Arguments with quotes, with a comma, with a text that looks like a number, and none."""


@dataclass(frozen=True)
class Reply:
    """An assistant's turn as a template writes it, and what must be read back from it.

    Attributes:
        prompt: The rendered text before the turn.
        text: The turn with its stop token.
        words: The words outside the calls.
        calls: The name and the arguments of each call.
    """

    prompt: str
    text: str
    words: str
    calls: list[tuple[str, dict]]


def make_replies(renderer: ChatRenderer) -> list[Reply]:
    """Return turns with one call, with words before a call, with two calls, and without a call."""
    messages: list[tuple[Message, str, list[dict]]] = []
    for arguments in ARGUMENTS:
        turn: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [call("weather", arguments)],
        }
        messages.append((turn, "", [arguments]))
    words = "Let me look."
    messages.append((messages[0][0] | {"content": words}, words, [ARGUMENTS[0]]))
    two_calls = [call("weather", arguments) for arguments in ARGUMENTS[:2]]
    messages.append((messages[0][0] | {"tool_calls": two_calls}, "", ARGUMENTS[:2]))
    answer = 'It is "sunny" in {Oslo}, 5 < 6.'
    messages.append(({"role": "assistant", "content": answer}, answer, []))
    question = row(0)["messages"][:2]
    replies = []
    for message, expected_words, arguments_of_calls in messages:
        try:
            prompt = renderer.render(question, [TOOL], add_generation_prompt=True)
            whole = renderer.render([*question, message], [TOOL])
        except Exception:  # a template refuses what its family cannot write
            continue
        calls = [("weather", arguments) for arguments in arguments_of_calls]
        shows_words = expected_words in whole
        if whole.startswith(prompt) and shows_words:
            replies.append(Reply(prompt, whole[len(prompt) :].rstrip(), expected_words, calls))
    return replies


def is_parsed_by_trl(tokenizer: "PreTrainedTokenizerBase", reply: Reply) -> bool:
    """Return whether TRL's `parse_response` reads a reply back."""
    from trl.chat_template_utils import parse_response

    parsed = parse_response(
        tokenizer,
        tokenizer(reply.text, add_special_tokens=False).input_ids,
        prefix=tokenizer(reply.prompt, add_special_tokens=False).input_ids,
        tools=[TOOL],
    )
    calls = [
        (tool_call["function"]["name"], _decode(tool_call["function"]["arguments"]))
        for tool_call in parsed.get("tool_calls") or []
    ]
    return calls == reply.calls and (parsed.get("content") or "").strip() == reply.words


def _decode(arguments: dict | str) -> dict | str:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def is_parsed_by_us(reply: Reply, stops: tuple[str, ...]) -> bool:
    """Return whether `parse_reply` reads a reply back."""
    text = reply.text
    for stop in stops:
        text = text.removesuffix(stop)
    parsed = parse_reply(text, [TOOL])
    calls = [(parsed_call.name, parsed_call.arguments) for parsed_call in parsed.calls]
    return calls == reply.calls and not parsed.invalid and parsed.text == reply.words


def count_parsed_by_trl(tokenizer: "PreTrainedTokenizerBase", replies: list[Reply]) -> str:
    """Return how many replies TRL reads back, or that TRL does not support the template."""
    from trl.chat_template_utils import add_response_schema

    try:
        add_response_schema(tokenizer)
    except ValueError:
        return "refused"
    return f"{sum(is_parsed_by_trl(tokenizer, reply) for reply in replies)} of {len(replies)}"


def _say(value: bool) -> str:
    return "yes" if value else "no"


def trl_line(subject: Subject) -> str:
    """Return a family's row of the table."""
    from trl.chat_template_utils import (
        get_training_chat_template,
        is_chat_template_prefix_preserving,
        is_chat_template_stop_token_trained,
        supports_tool_calling,
    )

    stock = make_tokenizer(subject)
    result = probe_template(stock, stock.chat_template)
    theirs_renders = supports_tool_calling(stock)
    try:
        theirs_preserves = _say(is_chat_template_prefix_preserving(stock))
    except Exception as error:  # a template is a program
        theirs_preserves = type(error).__name__
    try:
        training_template = get_training_chat_template(stock)
        trains_stop = is_chat_template_stop_token_trained(stock, training_template)
        theirs_stop = _say(trains_stop)
    except ValueError:
        theirs_stop = "refused"
    ours_preserves = "—" if result.defects else _say(result.prefix_preserving)

    renderer = ChatRenderer(make_tokenizer(subject), choose_template(stock))
    messages = row(0)["messages"][:3]
    check_mask(encode_conversation(renderer, messages, [TOOL]), renderer, messages)
    replies = make_replies(renderer)
    ours_parsed = sum(is_parsed_by_us(reply, renderer.template.stops) for reply in replies)
    own_replies = []
    theirs_own = "—"
    if not result.defects:
        stock_renderer = ChatRenderer(make_tokenizer(subject), renderer.template)
        own_replies = make_replies(stock_renderer)
        theirs_own = count_parsed_by_trl(stock, own_replies)
    theirs_trained = count_parsed_by_trl(renderer.tokenizer, replies)
    cells = [
        subject.name,
        _say(theirs_renders),
        _say(not result.defects),
        theirs_preserves,
        ours_preserves,
        theirs_stop,
        "yes",
        theirs_own,
        theirs_trained,
        f"{ours_parsed} of {len(replies)}",
    ]
    return f"| {' | '.join(cells)} |"
