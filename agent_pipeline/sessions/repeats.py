"""What stands twice: a replay of the history's beginning or of a block of calls, a call as text beside itself, an id."""

import re
from typing import Any

from agent_pipeline.sessions.json_text import parse_json, parse_object
from agent_pipeline.sessions.session import Message, dump_canonical_json


def find_repeat(messages: list[Message]) -> tuple[int, int, int] | None:
    """Where messages stand again right after themselves, as (start, size, times): the history's beginning, or a block of calls.

    Words alone may be said twice, and a call made twice has another id each time; only a replay repeats a beginning with both sides' words,
    or a call with its id and its result. A beginning with calls of which none has an id may be an agent that was asked the same again.
    """
    system = next(
        (at for at, message in enumerate(messages) if message["role"] != "system"), len(messages)
    )
    for start in {0, system}:
        for again in range(start + 1, (len(messages) + start) // 2 + 1):
            if (
                messages[again] == messages[start]
                and messages[again : 2 * again - start] == messages[start:again]
            ):
                part = messages[start:again]
                telling = any(map(_telling_ids, part)) or not any(
                    message.get("tool_calls") for message in part
                )
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
    return tuple(
        call["id"]
        for call in message.get("tool_calls") or ()
        if call["id"] not in ("", call["function"]["name"])
    )


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


_MARKS = ("<tool_call>", "<function=")
_SAID = re.compile(
    r"(?P<opening>```\w*\s*)?(?:<tool_call>\s*(?P<json>\{(?:(?!<tool_call>).)*?\})\s*</tool_call>"
    r"|(?P<tag><tool_call>\s*)?<function=(?P<name>[^<>\s]+)>(?P<body>(?:(?!<function=).)*?)</function>(?(tag)\s*</tool_call>))"
    r"(?(opening)(?P<closing>\s*```))",
    re.DOTALL,
)
_PARAMETER = re.compile(
    r"<parameter=([^<>\n]+)>\n?((?:(?!<parameter=).)*?)\n?</parameter>", re.DOTALL
)


def drop_call_texts(message: Message) -> str:
    """What a message says without the raw text of its own calls, which clients keep beside the calls that a server read in it.

    Only a text that is the very same call as one of the message's, in its name and all its arguments, is taken out (Hermes' and Qwen's
    `<tool_call>`, `<function=name>` with parameters or JSON), with the code fence around it, which would be an empty one.
    """
    content, calls = message["content"], message.get("tool_calls")
    if not calls or not any(mark in content for mark in _MARKS):
        return content
    made = [
        (call["function"]["name"], parse_object(call["function"]["arguments"])) for call in calls
    ]
    words = _SAID.sub(
        lambda said: _around(said) if any(_says(said, *call) for call in made) else said.group(),
        content,
    )
    return content if words == content else words.strip()


def _around(said: re.Match[str]) -> str:
    """What stays of a call's text: nothing, or the marks around it that end one code fence and begin another."""
    between = said["opening"] and said.string.count("```", 0, said.start()) % 2
    return said["opening"] + said["closing"] if between else ""


def _says(said: re.Match[str], name: str, arguments: dict[str, Any] | None) -> bool:
    """Whether a text is the call of this name and these arguments."""
    call = (
        parse_object(said["json"])
        if said["json"]
        else {"name": said["name"], "arguments": said["body"]}
    )
    if not (call and call.get("name") == name and arguments is not None):
        return False
    if said["json"] or _PARAMETER.sub("", said["body"]).strip():
        told = parse_object(call.get("arguments"))
        return told is not None and dump_canonical_json(told) == dump_canonical_json(arguments)
    texts = dict(_PARAMETER.findall(said["body"]))
    return texts.keys() == arguments.keys() and all(
        _is_told(texts[each], value) for each, value in arguments.items()
    )


def _is_told(text: str, value: Any) -> bool:
    """Whether a parameter's text, which has no type, is a value."""
    if isinstance(value, str):
        return text == value
    try:
        return dump_canonical_json(parse_json(text)) == dump_canonical_json(value)
    except (ValueError, RecursionError):
        return text == str(value)  # Python's own words: True, None


def make_unique_id(wanted: str, number: int, used_ids: set[str]) -> str:
    """The id, or one like it that no call of the conversation has yet."""
    new_id = wanted
    while new_id in used_ids:
        new_id, number = f"{wanted}_{number}", number + 1
    used_ids.add(new_id)
    return new_id
