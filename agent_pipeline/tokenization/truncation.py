"""Making a long conversation fit: whole exchanges go, the oldest first, and no answer is ever cut in the middle."""

from collections.abc import Callable, Sequence

from agent_pipeline.sessions.session import Message, Tool, dump_canonical_json
from agent_pipeline.tokenization.stated_values import Said, lost_values


def exchanges(messages: list[Message]) -> tuple[list[Message], list[list[Message]]]:
    """The head (system messages at the start), and the rest cut before each user message.

    What comes before the first user message (a greeting) is an exchange of its own.
    """
    size = next(
        (i for i, message in enumerate(messages) if message["role"] != "system"), len(messages)
    )
    parts: list[list[Message]] = []
    for message in messages[size:]:
        if message["role"] == "user" or not parts:
            parts.append([])
        parts[-1].append(message)
    return messages[:size], parts


def truncate(
    messages: list[Message], length: Callable[[list[Message]], int], max_length: int
) -> list[Message] | None:
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


def untrain_turns_without_source(
    whole: list[Message], shorter: list[Message], tools: Sequence[Tool] = ()
) -> list[Message]:
    """Take the turns out of training that state a value that was only in what was cut away.

    To train such a turn would be to train the model to invent the value: an order's number that it calls with, or a customer's name that
    it tells, which an earlier result had given. A later turn may use a value that such a turn states, because the model reads it there.

    Args:
        whole: The messages of the row.
        shorter: What `truncate` left of them.
        tools: The tools of the row, whose schemas the model reads too.

    Returns:
        `shorter`, with OpenAI's `weight: 0` on the turns whose values have no source.
    """
    cut, left = (
        Said(message for message in whole if message not in shorter),
        Said(texts=[dump_canonical_json(list(tools))]),
    )
    messages: list[Message] = []
    for message in shorter:
        lost = message["role"] == "assistant" and lost_values(message, cut, left)
        messages.append({**message, "weight": 0} if lost else message)
        left.add(message)
    return messages
