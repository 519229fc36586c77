"""Comparison of two conversations: their common beginning, and the rest of each conversation.

Only messages are compared here. `preferences` decides which conversations are compared.
"""

from dataclasses import dataclass
from hashlib import sha256

from agent_pipeline.sessions.session import (
    THOUGHT,
    Message,
    canonicalize_arguments,
    drop_keys,
    encode_json,
    is_trained,
)
from agent_pipeline.sessions.transcript import count_characters


@dataclass(frozen=True)
class SplitPair:
    """Two conversations that begin with the same messages.

    Attributes:
        prompt: The messages with which both conversations begin.
        chosen: The rest of the better conversation.
        rejected: The rest of the worse conversation.
    """

    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]


def cut_after_last_answer(messages: list[Message]) -> list[Message]:
    """Return the messages of a conversation up to the agent's last message, trained or not.

    A verdict is about all of the agent's messages.
    """
    end = len(messages)
    while end > 0 and messages[end - 1]["role"] != "assistant":
        end -= 1
    return messages[:end]


def has_untrained_turn(messages: list[Message]) -> bool:
    """Return whether any of the agent's messages has `weight: 0`.

    Trainers of preference pairs and of KTO rows ignore this mark.
    """
    return not all(is_trained(message) for message in _list_answers(messages))


def hash_answers(messages: list[Message]) -> bytes:
    """Return a hash of 16 bytes for each of the agent's messages, concatenated.

    Messages of users and tools do not count, because they may differ between two trials in which
    the agents did the same.
    """
    return b"".join(
        sha256(encode_json(_drop_unseen(message))).digest()[:16]
        for message in _list_answers(messages)
    )


def find_equal_answers(chosen: bytes, rejected: bytes) -> str | None:
    """Return the reason why two conversations cannot form a preference pair, or `None`.

    The arguments are results of `hash_answers`.
    """
    if chosen == rejected:
        return "equal_answers"
    if chosen.startswith(rejected) or rejected.startswith(chosen):
        return "one_is_a_beginning_of_the_other"
    return None


def split_at_first_difference(chosen: list[Message], rejected: list[Message]) -> SplitPair | str:
    """Split two conversations at the first message that differs.

    At that point, both conversations must continue with a message of the agent.

    Returns:
        The two conversations, or the reason why they cannot be a pair.
    """
    common = 0
    while _drop_unseen(chosen[common]) == _drop_unseen(rejected[common]):
        common += 1
    if not chosen[common]["role"] == rejected[common]["role"] == "assistant":
        return "a_user_or_tool_differs_first"
    if not any(message["role"] == "user" for message in chosen[:common]):
        return "no_common_request"
    if has_untrained_turn(chosen[common:]) or has_untrained_turn(rejected[common:]):
        return "a_turn_is_not_to_be_trained"
    return SplitPair(chosen[:common], chosen[common:], rejected[common:])


def _drop_unseen(message: Message) -> Message:
    """Return a message without its weight and thoughts, which users and tools never see."""
    return drop_keys(message, "weight", THOUGHT)


def _list_answers(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message["role"] == "assistant"]


def measure_answers(messages: list[Message]) -> int:
    """Return the number of characters that the agent wrote, in text and in calls."""
    return count_characters(_list_answers(messages))


def normalize_calls(messages: list[Message]) -> list[Message]:
    """Return a copy of a conversation in which runs with the same actions have the same tool calls.

    Every run has its own call ids, so they are replaced by numbers in order (`call_1`, …).
    Arguments become canonical JSON.
    """
    copies: list[Message] = []
    new_ids: dict[str, str] = {}
    call_count = 0
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            new_calls = []
            for call in calls:
                call_count += 1
                new_ids[call["id"]] = f"call_{call_count}"
                arguments = canonicalize_arguments(call["function"]["arguments"])
                function = call["function"] | {"arguments": arguments}
                new_calls.append(call | {"id": new_ids[call["id"]], "function": function})
            message = message | {"tool_calls": new_calls}
        if "tool_call_id" in message:
            old_id = message["tool_call_id"]
            message = message | {"tool_call_id": new_ids.get(old_id, old_id)}
        copies.append(message)
    return copies
