"""Repetitions in a conversation: replayed messages, calls that are repeated as text, reused ids.

The functions find and remove repetitions. `repair` counts them and decides how they are treated.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.json_text import parse_json, parse_object
from agent_pipeline.sessions.session import Message, dump_canonical_json


@dataclass(frozen=True)
class RepeatedBlock:
    """A block of messages that is repeated directly after itself.

    Attributes:
        start: The index of the block's first message.
        size: The number of messages in the block.
        copies: Number of repetitions of the block.
    """

    start: int
    size: int
    copies: int


def find_repeat(messages: list[Message]) -> RepeatedBlock | None:
    """Return the first replay of the history's beginning or of a block of calls.

    People and agents may use the same words twice, but a second call has a new id. Repeated
    messages therefore count as a replay only if they contain the words of both sides, or a call
    with its id and result. A repeated beginning with calls that have no ids is not a replay,
    because an agent may get the same request again.
    """
    return _find_repeated_beginning(messages) or _find_repeated_calls(messages)


def _find_repeated_beginning(messages: list[Message]) -> RepeatedBlock | None:
    """Return the repetition of the history's beginning, with or without system messages."""
    first_spoken = len(messages)
    for index, message in enumerate(messages):
        if message["role"] != "system":
            first_spoken = index
            break
    for start in {0, first_spoken}:
        for size in range(1, (len(messages) - start) // 2 + 1):
            if messages[start + size] != messages[start]:
                continue
            block = messages[start : start + size]
            if messages[start + size : start + 2 * size] == block and _is_replay(block):
                return RepeatedBlock(start, size, _count_copies(messages, start, size))
    return None


def _is_replay(block: Sequence[Message]) -> bool:
    """Return whether a repeated beginning can only be a replay."""
    roles = {message["role"] for message in block}
    if not {"user", "assistant"} <= roles:
        return False
    has_calls = any(message.get("tool_calls") for message in block)
    return not has_calls or any(_list_own_ids(message) for message in block)


def _find_repeated_calls(messages: list[Message]) -> RepeatedBlock | None:
    """Return the replay of a block of messages that contains calls."""
    last_indices: dict[tuple[str, ...], int] = {}
    for index, message in enumerate(messages):
        ids = _list_own_ids(message)
        if not ids:
            continue
        if ids in last_indices:
            last_index = last_indices[ids]
            repeat = _find_block_around(messages, last_index, index - last_index)
            if repeat is not None:
                return repeat
        last_indices[ids] = index
    return None


def _list_own_ids(message: Message) -> tuple[str, ...]:
    """Return the ids of a message's calls that identify a call uniquely.

    Ids that equal the function's name are left out, because some services use the name as the id.
    """
    return tuple(
        call["id"]
        for call in message.get("tool_calls") or ()
        if call["id"] not in ("", call["function"]["name"])
    )


def _find_block_around(messages: list[Message], index: int, size: int) -> RepeatedBlock | None:
    """Return the repeated block around a message.

    Args:
        messages: The conversation.
        index: The index of the message.
        size: The distance to the message's copy, which is the size of the block.

    Returns:
        The block, or None if only a part of it, or a part without results, is repeated.
    """
    start = end = index
    while start > 0 and messages[start - 1] == messages[start - 1 + size]:
        start -= 1
    while end + size < len(messages) and messages[end] == messages[end + size]:
        end += 1
    has_result = any(message["role"] == "tool" for message in messages[start : start + size])
    if end - start < size or not has_result:
        return None
    return RepeatedBlock(start, size, (end - start) // size)


def _count_copies(messages: list[Message], start: int, size: int) -> int:
    """Count how many times a block is repeated directly after itself."""
    block = messages[start : start + size]
    copies = 0
    copy_start = start + size
    while messages[copy_start : copy_start + size] == block:
        copies += 1
        copy_start += size
    return copies


_CALL_MARKS = ("<tool_call>", "<function=")
_CALL_TEXT = re.compile(
    r"(?P<opening>```\w*\s*)?(?:<tool_call>\s*(?P<json>\{(?:(?!<tool_call>).)*?\})\s*</tool_call>"
    r"|(?P<tag><tool_call>\s*)?<function=(?P<name>[^<>\s]+)>"
    r"(?P<body>(?:(?!<function=).)*?)</function>(?(tag)\s*</tool_call>))"
    r"(?(opening)(?P<closing>\s*```))",
    re.DOTALL,
)
_PARAMETER = re.compile(
    r"<parameter=([^<>\n]+)>\n?((?:(?!<parameter=).)*?)\n?</parameter>", re.DOTALL
)


def drop_call_texts(message: Message) -> str:
    """Return a message's text without the raw texts of the message's own calls.

    Clients keep the raw text from which a server parsed a call. A raw text is removed only if its
    name and all its arguments equal a call of the message. The formats are those of Hermes and
    Qwen: `<tool_call>`, and `<function=name>` with parameters or JSON. The code fence around a raw
    text is removed too.
    """
    content, calls = message["content"], message.get("tool_calls")
    if not calls or not any(mark in content for mark in _CALL_MARKS):
        return content
    parsed_calls = [
        (call["function"]["name"], parse_object(call["function"]["arguments"])) for call in calls
    ]

    def replace_text(match: re.Match[str]) -> str:
        if any(_matches_call(match, name, arguments) for name, arguments in parsed_calls):
            return _keep_fences(match)
        return match.group()

    words = _CALL_TEXT.sub(replace_text, content)
    return content if words == content else words.strip()


def _keep_fences(match: re.Match[str]) -> str:
    """Return the code fences around a call's raw text that must stay in the message.

    If the text is inside an open code fence, the fence before the text closes it, and the fence
    after the text opens another fence. Both fences must stay then. Otherwise, the result is empty.
    """
    stands_in_fence = match.string.count("```", 0, match.start()) % 2 == 1
    if match["opening"] and stands_in_fence:
        return match["opening"] + match["closing"]
    return ""


def _matches_call(match: re.Match[str], name: str, arguments: JsonObject | None) -> bool:
    """Return whether the raw text of a call equals a given call.

    Args:
        match: A match of `_CALL_TEXT`.
        name: The tool name of the call.
        arguments: The arguments of the call, or None if they are not a JSON object.
    """
    if match["json"]:
        fields = parse_object(match["json"])
    else:
        fields = {"name": match["name"], "arguments": match["body"]}
    if not fields or fields.get("name") != name or arguments is None:
        return False
    if match["json"] or _PARAMETER.sub("", match["body"]).strip():
        written = parse_object(fields.get("arguments"))
        return written is not None and dump_canonical_json(written) == dump_canonical_json(
            arguments
        )
    texts: dict[str, str] = dict(_PARAMETER.findall(match["body"]))
    return texts.keys() == arguments.keys() and all(
        _is_text_of_value(texts[argument], value) for argument, value in arguments.items()
    )


def _is_text_of_value(text: str, value: object) -> bool:
    """Return whether the text of a call parameter represents a given value.

    The text does not state a type.
    """
    if isinstance(value, str):
        return text == value
    try:
        return dump_canonical_json(parse_json(text)) == dump_canonical_json(value)
    except (ValueError, RecursionError):
        return text == str(value)  # Python's notation: True, None


def make_unique_id(wanted: str, suffix: int, used_ids: set[str]) -> str:
    """Return an id that no earlier call has, and add it to the used ids.

    Args:
        wanted: The preferred id. It is returned if it is unused.
        suffix: The first number to append if the preferred id is used.
        used_ids: The ids of the earlier calls.
    """
    new_id = wanted
    while new_id in used_ids:
        new_id = f"{wanted}_{suffix}"
        suffix += 1
    used_ids.add(new_id)
    return new_id
