"""Shortening of a long conversation so that it fits into a length limit.

Whole exchanges are removed, the oldest first. No answer is ever cut in the middle. Turns that state
values of a removed exchange are not trained; which values these are belongs in `stated_values`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_pipeline.sessions.session import Message, Tool, dump_canonical_json
from agent_pipeline.tokenization.stated_values import ReadableValues, find_lost_values


@dataclass(frozen=True)
class Exchanges:
    """A conversation that is split into its head and its exchanges.

    Attributes:
        head: The system messages at the start.
        exchanges: The rest, cut before each user message. The messages before the first user
            message (a greeting) are a separate exchange.
    """

    head: list[Message]
    exchanges: list[list[Message]]


def split_exchanges(messages: list[Message]) -> Exchanges:
    """Split a conversation into its head and its exchanges."""
    head_size = 0
    while head_size < len(messages) and messages[head_size]["role"] == "system":
        head_size += 1
    exchanges: list[list[Message]] = []
    for message in messages[head_size:]:
        if message["role"] == "user" or not exchanges:
            exchanges.append([])
        exchanges[-1].append(message)
    return Exchanges(messages[:head_size], exchanges)


def truncate(
    messages: list[Message], count_tokens: Callable[[list[Message]], int], max_length: int
) -> list[Message] | None:
    """Remove the oldest exchanges of a conversation, so that it fits into a length limit.

    The last exchange is kept whole, with its calls and results.

    Args:
        messages: The conversation.
        count_tokens: Returns the length of messages in tokens, with the tools.
        max_length: The most tokens.

    Returns:
        The messages themselves if they fit; the system messages with as many of the last exchanges
        as fit; or None if the last exchange alone is too long.
    """
    if count_tokens(messages) <= max_length:
        return messages
    parts = split_exchanges(messages)
    for first_kept in range(1, len(parts.exchanges)):
        kept = [message for exchange in parts.exchanges[first_kept:] for message in exchange]
        shorter = parts.head + kept
        if count_tokens(shorter) <= max_length:
            return shorter
    return None


def untrain_turns_without_source(
    whole: list[Message], shorter: list[Message], tools: Sequence[Tool] = ()
) -> list[Message]:
    """Mark turns as untrained that use a value which only the removed messages contained.

    To train such a turn would be to train the model to invent the value: the number of an order
    that the turn calls with, or the name of a customer. A later turn may use a value that a marked
    turn states, because the model reads it there.

    Args:
        whole: The messages of the row.
        shorter: The messages that `truncate` left.
        tools: The tools of the row, whose schemas the model reads too.

    Returns:
        `shorter`, with OpenAI's `weight: 0` on the turns whose values have no source.
    """
    cut_values = ReadableValues(message for message in whole if message not in shorter)
    values_so_far = ReadableValues(texts=[dump_canonical_json(list(tools))])
    messages: list[Message] = []
    for message in shorter:
        is_assistant = message["role"] == "assistant"
        if is_assistant and find_lost_values(message, cut_values, values_so_far):
            messages.append({**message, "weight": 0})
        else:
            messages.append(message)
        values_so_far.add_message(message)
    return messages
