"""Making a long conversation fit: whole exchanges go, the oldest first, and no answer is ever cut in the middle."""

from collections.abc import Callable

from agent_pipeline.sessions.json_text import decoded_arguments
from agent_pipeline.sessions.session import Message, tool_calls
from agent_pipeline.sessions.text import message_texts
from agent_pipeline.training.rendering import argument_texts

SHORTEST_SOURCE = 3
"""Characters; a shorter value (a count, "no") is in many texts by chance."""


def exchanges(messages: list[Message]) -> tuple[list[Message], list[list[Message]]]:
    """The head (system messages at the start), and the rest cut before each user message.

    What comes before the first user message (a greeting) is an exchange of its own.
    """
    size = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    parts: list[list[Message]] = []
    for message in messages[size:]:
        if message["role"] == "user" or not parts:
            parts.append([])
        parts[-1].append(message)
    return messages[:size], parts


def truncate(messages: list[Message], length: Callable[[list[Message]], int], max_length: int) -> list[Message] | None:
    """`messages` themselves where they fit, else the system messages with as many of the last exchanges as fit.

    `length(messages)` is in the unit of `max_length` (tokens, the tools included). The last exchange is kept whole, with its
    calls and results, or the row is given up: None, which the caller counts.
    """
    if length(messages) <= max_length:
        return messages
    head, parts = exchanges(messages)
    for first in range(1, len(parts)):
        shorter = head + [message for part in parts[first:] for message in part]
        if length(shorter) <= max_length:
            return shorter
    return None


def untrain_calls_without_source(whole: list[Message], shorter: list[Message]) -> list[Message]:
    """`shorter`, a truncation of `whole`, with OpenAI's `weight: 0` on every call of which an argument was only in what was cut away.

    To train such a call would be to train the model to invent its argument: an order's number, say, that an earlier result had given.
    """
    cut = _text([message for message in whole if message not in shorter])
    messages: list[Message] = []
    for message in shorter:
        values = [text for _, raw in tool_calls([message]) for text in argument_texts(decoded_arguments(raw))]
        before = _text(messages)
        lost = any(len(value) >= SHORTEST_SOURCE and value in cut and value not in before for value in values)
        messages.append({**message, "weight": 0} if lost else message)
    return messages


def _text(messages: list[Message]) -> str:
    return "\n".join(text for message in messages for text in message_texts(message))
