"""Detection and removal of verdicts inside a conversation (`Episode finished, reward = True`)."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from agent_pipeline.errors import SettingsError
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.transcript import list_texts

LEAK_PATTERNS = (
    r"(?:observation: *)?episode (?:is )?(?:finished|over|done|ended)[,.;:]? *reward *[=:] *\S+ *$",
    r"reward *[=:] *(?:true|false|[01](?:\.0+)?)[ .!]*$",
    r"(?:task|episode|evaluation) (?:success|passed|result|verdict) *[=:] *"
    r"(?:true|false|[01](?:\.0+)?|pass(?:ed)?|fail(?:ed)?)[ .!]*$",
)
"""Regular expressions for lines that contain a verdict. They are matched from the first letter of a
lower-case line.
"""

_WORDS_OF_PATTERNS = dict(
    zip(
        LEAK_PATTERNS,
        (("reward",), ("reward",), ("success", "passed", "result", "verdict")),
        strict=True,
    )
)
"""Words of which every match of a pattern contains at least one.

A search for words is much faster than a pattern, and most texts contain none of them. Patterns of
the user have no such words.
"""
_ANY_TEXT = ("",)

_MAX_LEAK_CHARACTERS = 100


class CleanedChat(NamedTuple):
    """A conversation without the verdicts that could be removed.

    Attributes:
        messages: The messages.
        removed_lines: Number of removed lines with a verdict.
        remaining_leak: The first verdict that remains, because it is part of a sentence, a call or
            the agent's own text, or `None` if no verdict remains.
    """

    messages: list[Message]
    removed_lines: int
    remaining_leak: str | None


def compile_leak_patterns(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    """Compile the patterns for verdicts in text.

    Raises:
        SettingsError: A pattern is not a regular expression.
    """
    try:
        return [re.compile(pattern, re.MULTILINE) for pattern in patterns]
    except re.error as error:
        raise SettingsError(
            "The setting `verdict_leaks` has a pattern that is not a regular expression "
            f"({error}): correct the pattern.",
            setting="verdict_leaks",
        ) from error


def remove_leaks(messages: list[Message], patterns: Sequence[re.Pattern[str]]) -> CleanedChat:
    """Remove the verdicts at the end of messages that the agent saw.

    If nothing is left of the last message, the message is removed. Any other message stays, even if
    it is empty, because a tool result belongs to its call, and thoughts refer to message positions.
    """
    cleaned: list[Message] = []
    searched_again: list[Message] = []
    removed_lines = 0
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            if not (message.get("tool_calls") or _find_leak(message["content"], patterns)):
                cleaned.append(message)
                continue
            text, line_count = _remove_last_lines(message["content"], patterns)
            if line_count:
                removed_lines += line_count
                is_last = index == len(messages) - 1
                if is_last and not text.strip() and message["role"] != "tool":
                    continue
                message = message | {"content": text}
        cleaned.append(message)
        searched_again.append(message)
    remaining_leak = _find_first_leak(searched_again, patterns)
    return CleanedChat(cleaned if removed_lines else messages, removed_lines, remaining_leak)


def _remove_last_lines(text: str, patterns: Sequence[re.Pattern[str]]) -> tuple[str, int]:
    """Return a text without the verdicts on its last lines, and the number of removed verdicts."""
    lines = text.splitlines()
    line_count = 0
    while lines:
        last_line = lines[-1].strip()
        if last_line and not any(pattern.match(last_line.lower()) for pattern in patterns):
            break
        line_count += bool(last_line)
        lines.pop()
    return ("\n".join(lines), line_count) if line_count else (text, 0)


def _find_first_leak(
    messages: Sequence[Message], patterns: Sequence[re.Pattern[str]]
) -> str | None:
    for message in messages:
        for text in list_texts(message):
            leak = _find_leak(text, patterns)
            if leak:
                return leak
    return None


def _find_leak(text: str, patterns: Sequence[re.Pattern[str]]) -> str | None:
    lowered = text.lower()
    for pattern in patterns:
        words = _WORDS_OF_PATTERNS.get(pattern.pattern, _ANY_TEXT)
        may_match = any(word in lowered for word in words)
        if may_match and (match := pattern.search(lowered)):
            return match.group()[:_MAX_LEAK_CHARACTERS]
    return None
