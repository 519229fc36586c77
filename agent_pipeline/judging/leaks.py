"""Verdicts that stand in a conversation's text (`Episode finished, reward = True`): found, and taken out where that is possible."""

import re
from collections.abc import Sequence

from agent_pipeline.errors import SettingsError
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.transcript import list_texts

LEAKS = (
    r"(?:observation: *)?episode (?:is )?(?:finished|over|done|ended)[,.;:]? *reward *[=:] *\S+ *$",
    r"reward *[=:] *(?:true|false|[01](?:\.0+)?)[ .!]*$",
    r"(?:task|episode|evaluation) (?:success|passed|result|verdict) *[=:] *(?:true|false|[01](?:\.0+)?|pass(?:ed)?|fail(?:ed)?)[ .!]*$",
)
"""What a verdict in the text looks like: regular expressions on lines in lower case, each from its first letter on."""


def leak_patterns(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    """Patterns of verdicts, compiled.

    Raises:
        SettingsError: one is not a regular expression.
    """
    try:
        return [re.compile(pattern, re.MULTILINE) for pattern in patterns]
    except re.error as error:
        raise SettingsError(
            f"verdict_leaks has a pattern that is not a regular expression ({error}): correct it."
        ) from error


def without_leaks(
    messages: list[Message], patterns: Sequence[re.Pattern[str]]
) -> tuple[list[Message], int, str | None]:
    """Take verdicts out of a conversation.

    A verdict is taken out where it is a whole last line of what the agent was shown. Returns the messages, how many lines were taken out,
    and the first verdict that remains (`None`: none), because it is part of a sentence, a call, or the agent's own words. A last message of
    which nothing is left is removed; any other stays, empty: a tool's result beside its call, and thoughts at their places.
    """
    clean: list[Message] = []
    lines = 0
    for at, message in enumerate(messages):
        if message["role"] != "assistant" and (
            stripped := _without_last_lines(message["content"], patterns)
        ):
            text, number = stripped
            lines += number
            if not text.strip() and message["role"] != "tool" and at == len(messages) - 1:
                continue
            message = message | {"content": text}
        clean.append(message)
    remaining = next(
        (
            leak
            for message in clean
            for text in list_texts(message)
            if (leak := _leak(text, patterns))
        ),
        None,
    )
    return (clean if lines else messages), lines, remaining


def _without_last_lines(text: str, patterns: Sequence[re.Pattern[str]]) -> tuple[str, int] | None:
    """A text without the verdicts on its last lines, and how many there were; `None` where there is none."""
    if not _leak(text, patterns):
        return None
    lines, number = text.splitlines(), 0
    while lines and (
        not lines[-1].strip()
        or any(pattern.match(lines[-1].strip().lower()) for pattern in patterns)
    ):
        number += bool(lines.pop().strip())
    return ("\n".join(lines), number) if number else None


def _leak(text: str, patterns: Sequence[re.Pattern[str]]) -> str | None:
    lowered = text.lower()
    return next(
        (match.group()[:100] for pattern in patterns if (match := pattern.search(lowered))), None
    )
