"""Messages that stand twice: a replay of the history's beginning, or of a block of calls."""

from agent_pipeline.sessions.session import Message


def first_repeat(messages: list[Message]) -> tuple[int, int, int] | None:
    """Where messages stand again right after themselves, as (start, size, times): the history's beginning, or a block of calls.

    Words alone may be said twice, and a call made twice has another id each time; only a replay repeats a beginning with both sides' words,
    or a call with its id and its result. A beginning with calls of which none has an id may be an agent that was asked the same again.
    """
    system = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    for start in {0, system}:
        for again in range(start + 1, (len(messages) + start) // 2 + 1):
            if messages[again] == messages[start] and messages[again : 2 * again - start] == messages[start:again]:
                part = messages[start:again]
                telling = any(map(_telling_ids, part)) or not any(message.get("tool_calls") for message in part)
                if telling and {"user", "assistant"} <= {message["role"] for message in part}:
                    return start, again - start, _times(messages, start, again - start)
    last: dict[tuple[str, ...], int] = {}
    for at, message in enumerate(messages):
        if not (ids := _telling_ids(message)):
            continue
        before = last.setdefault(ids, at)
        if before != at and (block := _repeated_block(messages, before, at - before)):
            return block
        last[ids] = at
    return None


def _telling_ids(message: Message) -> tuple[str, ...]:
    """The ids of a message's calls that tell one call from another: some services take the function's name for the id."""
    return tuple(call["id"] for call in message.get("tool_calls") or () if call["id"] not in ("", call["function"]["name"]))


def _repeated_block(messages: list[Message], at: int, size: int) -> tuple[int, int, int] | None:
    """The block around a message that is repeated `size` messages further on, if all of it is, its results too."""
    start = end = at
    while start > 0 and messages[start - 1] == messages[start - 1 + size]:
        start -= 1
    while end + size < len(messages) and messages[end] == messages[end + size]:
        end += 1
    answered = any(message["role"] == "tool" for message in messages[start : start + size])
    return (start, size, (end - start) // size) if end - start >= size and answered else None


def _times(messages: list[Message], start: int, size: int) -> int:
    block, times = messages[start : start + size], 0
    while messages[start + (times + 1) * size : start + (times + 2) * size] == block:
        times += 1
    return times
