"""How two conversations become a prompt, a chosen and a rejected continuation."""

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

Parts = tuple[list[Message], list[Message], list[Message]]


def to_last_answer(messages: list[Message]) -> list[Message]:
    """The messages up to and with the agent's last one, trained or not: a verdict is about all of them."""
    return messages[
        : max(
            (at for at, message in enumerate(messages) if message["role"] == "assistant"),
            default=-1,
        )
        + 1
    ]


def has_untrained_turn(messages: list[Message]) -> bool:
    """Whether one of the agent's messages is marked not to be trained on (`weight: 0`): trainers of pairs and of KTO know no such mark."""
    return not all(map(is_trained, _of_assistant(messages)))


def answers(messages: list[Message]) -> bytes:
    """A hash of each of the agent's messages: users and tools may say something else in two trials whose agents did the same."""
    return b"".join(
        sha256(encode_json(_heard(message))).digest()[:16] for message in _of_assistant(messages)
    )


def no_difference(chosen: bytes, rejected: bytes) -> str | None:
    if chosen == rejected:
        return "equal_answers"
    return (
        "one_is_a_beginning_of_the_other"
        if chosen.startswith(rejected) or rejected.startswith(chosen)
        else None
    )


def parted(chosen: list[Message], rejected: list[Message]) -> Parts | str:
    """The two conversations cut at the first message that differs, which must be the agent's in both."""
    pairs = zip(chosen, rejected, strict=False)
    common = next(at for at, (better, worse) in enumerate(pairs) if _heard(better) != _heard(worse))
    if not chosen[common]["role"] == rejected[common]["role"] == "assistant":
        return "a_user_or_tool_differs_first"
    if not any(message["role"] == "user" for message in chosen[:common]):
        return "no_common_request"
    if has_untrained_turn(chosen[common:]) or has_untrained_turn(rejected[common:]):
        return "a_turn_is_not_to_be_trained"
    return chosen[:common], chosen[common:], rejected[common:]


def _heard(message: Message) -> Message:
    """A message without what no one heard: its weight, its thoughts."""
    return drop_keys(message, "weight", THOUGHT)


def _of_assistant(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message["role"] == "assistant"]


def answer_length(messages: list[Message]) -> int:
    """How many characters the agent wrote, words and calls."""
    return count_characters(_of_assistant(messages))


def comparable(messages: list[Message]) -> list[Message]:
    """A copy in which call ids are numbered in order (`call_1`, …) and arguments are in canonical JSON."""
    copied, names = [], dict[str, str]()
    number = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            renamed = []
            for call in calls:
                number += 1
                names[call["id"]] = f"call_{number}"
                function = call["function"] | {
                    "arguments": canonicalize_arguments(call["function"]["arguments"])
                }
                renamed.append(call | {"id": names[call["id"]], "function": function})
            message = message | {"tool_calls": renamed}
        if "tool_call_id" in message:
            message = message | {
                "tool_call_id": names.get(message["tool_call_id"], message["tool_call_id"])
            }
        copied.append(message)
    return copied
