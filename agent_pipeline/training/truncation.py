"""Making a long conversation fit: whole exchanges go, the oldest first, and no answer is ever cut in the middle."""

from collections.abc import Callable

from agent_pipeline.sessions.session import Message


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
