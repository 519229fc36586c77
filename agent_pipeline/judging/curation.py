"""Which sessions are kept, and for each other one the first reason why not.

The order of the reasons is the order of the tests: state of the record, damage, what must not be learnt, verdict, measures, duplicates, the
limit. A session dropped for its verdict or by a measure stays available beside the kept ones: it is what a preference pair's rejected side
is made of.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from agent_pipeline.errors import SettingsError
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.text import message_texts


class Reason(StrEnum):
    """Why a session is dropped; those that end in a colon are followed by a name (`measure:ended_with_answer`, `broken:orphan_output`).

    `UNMEASURED` is a required measure that could not be taken: null is not zero, so its session is neither good nor bad.
    """

    ARCHIVED = "archived"
    EMPTY = "empty"
    BROKEN = "broken:"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    ATTACK_SUCCEEDED = "attack_succeeded"
    VERDICT_LEAK = "verdict_leak"
    TOO_LONG = "too_long"
    UNJUDGED = "unjudged"
    UNACCEPTABLE = "unacceptable"
    MEASURE = "measure:"
    UNMEASURED = "unmeasured:"
    DUPLICATE = "duplicate_of"
    MAX_SESSIONS = "max_sessions"


LEAKS = (
    r"episode (?:is )?(?:finished|over|done|ended)[,.;:]? *reward *[=:] *\S+ *$",
    r"reward *[=:] *(?:true|false|[01](?:\.0+)?)[ .!]*$",
    r"(?:task|episode|evaluation) (?:success|passed|result|verdict) *[=:] *(?:true|false|[01](?:\.0+)?|pass(?:ed)?|fail(?:ed)?)[ .!]*$",
)
"""What a verdict in the text looks like: regular expressions on lines in lower case, each from its first letter on."""


class Candidate(NamedTuple):
    """What curation looks at: a session without its text.

    `broken` is the kind of damage that drops it, `leak` a verdict that stands in its text and cannot be taken out. `passed_measures` (null:
    whoever asks does not know) tells a required measure that was not taken from one that passed. `failed_calling` says that somebody
    found it bad and that nothing is wrong with the record but that its last message's calls have no results: the agent was stopped there.
    """

    session_id: str
    content_sha256: str
    created_at: datetime | None
    archived: bool
    messages: int
    error: str | None
    verdict: str | None
    failed_measures: Sequence[str]
    passed_measures: Sequence[str] | None = None
    broken: str | None = None
    attack_succeeded: bool | None = None
    leak: str | None = None
    characters: int = 0
    failed_calling: bool = False


class Decision(NamedTuple):
    """`reason` is null for a kept session; `detail` says more (which session it repeats, how long it is)."""

    session_id: str
    reason: str | None
    detail: str | None


class Bounds(NamedTuple):
    """How much is kept (0: no limit): sessions in the order of time, and characters of one."""

    max_sessions: int = 0
    max_characters: int = 0


NO_BOUNDS = Bounds()


def curate(candidates: Iterable[Candidate], required_measures: Sequence[str] = (), bounds: Bounds = NO_BOUNDS) -> list[Decision]:
    """Decide on every session; the result is in the order of the input and as long.

    Of several sessions with the same content the better judged is kept, then the earlier; the detail of the other names it.
    """
    everyone = list(candidates)
    decisions = {one.session_id: _alone(one, required_measures, bounds.max_characters) for one in everyone}
    first: dict[str, str] = {}
    kept = 0
    for one in sorted(everyone, key=lambda each: (decisions[each.session_id].reason is not None, *_preference(each))):
        decision = decisions[one.session_id]
        if decision.reason is not None and not is_bad_answer(decision.reason):
            continue
        original = first.setdefault(one.content_sha256, one.session_id)
        if original != one.session_id:
            decisions[one.session_id] = Decision(one.session_id, Reason.DUPLICATE, original)
    if bounds.max_sessions:
        for one in sorted(everyone, key=lambda each: (_time(each), each.session_id)):
            if decisions[one.session_id].reason is None:
                kept += 1
                if kept > bounds.max_sessions:
                    decisions[one.session_id] = Decision(one.session_id, Reason.MAX_SESSIONS, f"limit {bounds.max_sessions}")
    return [decisions[one.session_id] for one in everyone]


def is_bad_answer(reason: str | None) -> bool:
    """Whether a session was dropped for what the agent did, not for what is wrong with the record."""
    return reason is not None and (reason == Reason.UNACCEPTABLE or reason.startswith(Reason.MEASURE))


def leak_patterns(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    """Patterns of verdicts, compiled.

    Raises:
        SettingsError: one is no regular expression.
    """
    try:
        return [re.compile(pattern, re.MULTILINE) for pattern in patterns]
    except re.error as error:
        raise SettingsError(f"verdict_leaks has a pattern that is no regular expression ({error}): correct it.") from error


def without_leaks(messages: list[Message], patterns: Sequence[re.Pattern[str]]) -> tuple[list[Message], int, str | None]:
    """Messages without the verdicts that stand in them as whole last lines of what the agent was told; how many lines that were; and one
    that cannot be taken out (null: none), since it is part of a sentence, a call, or the agent's own words.

    A last message, or a system message, of which nothing is left goes; a tool's result stays, empty, beside its call.
    """
    found: list[Message] = []
    lines = 0
    for at, message in enumerate(messages):
        if message["role"] != "assistant" and (taken := _stripped(message["content"], patterns)):
            text, number = taken
            lines += number
            if not text.strip() and (message["role"] == "system" or (message["role"] == "user" and at == len(messages) - 1)):
                continue
            message = message | {"content": text}
        found.append(message)
    kept = next((leak for message in found for text in message_texts(message) if (leak := _leak(text, patterns))), None)
    return (found if lines else messages), lines, kept


def failed_calling(messages: Sequence[Message], damage: Mapping[str, int], broken: str | None, verdict_by: str | None) -> bool:
    """Whether a bad session is one whose agent called to the end (it was stopped after so many steps, say), and not a record that lacks
    something: only its last message's calls have no results, and not its measures, but somebody who saw what came of it found it bad.

    `broken` names another kind wherever another one drops the session: `unanswered_call` is the last of `repair.KINDS`.
    """
    if broken != "unanswered_call" or not messages:
        return False
    judges = set((verdict_by or "").split("+")) - {"measures", "policy"}
    return bool(judges - {""}) and damage.get(broken) == len(messages[-1].get("tool_calls") or ())


def _stripped(text: str, patterns: Sequence[re.Pattern[str]]) -> tuple[str, int] | None:
    """A text without the verdicts on its last lines, and how many there were; null where there is none."""
    if not _leak(text, patterns):
        return None
    lines, number = text.splitlines(), 0
    while lines and (not lines[-1].strip() or any(pattern.match(lines[-1].strip().lower()) for pattern in patterns)):
        number += bool(lines.pop().strip())
    return ("\n".join(lines), number) if number else None


def _leak(text: str, patterns: Sequence[re.Pattern[str]]) -> str | None:
    lowered = text.lower()
    return next((found.group()[:100] for pattern in patterns if (found := pattern.search(lowered))), None)


def _alone(one: Candidate, required: Sequence[str], max_characters: int) -> Decision:
    """The first reason that a session carries in itself."""

    def dropped(reason: str, detail: str | None = None) -> Decision:
        return Decision(one.session_id, reason, detail)

    if one.archived:
        return dropped(Reason.ARCHIVED)
    if not one.messages:
        return dropped(Reason.EMPTY)
    if one.broken is not None and not one.failed_calling:
        return dropped(Reason.BROKEN + one.broken)
    if one.error is not None:
        return dropped(Reason.INFRASTRUCTURE_ERROR, one.error)
    if one.attack_succeeded:
        return dropped(Reason.ATTACK_SUCCEEDED)
    if one.leak is not None:
        return dropped(Reason.VERDICT_LEAK, one.leak)
    if max_characters and one.characters > max_characters:
        return dropped(Reason.TOO_LONG, f"{one.characters} characters, limit {max_characters}")
    if one.verdict is None:
        return dropped(Reason.UNJUDGED)
    if one.verdict != "acceptable":
        return dropped(Reason.UNACCEPTABLE)
    for name in required:
        if name in one.failed_measures:
            return dropped(Reason.MEASURE + name)
        if one.passed_measures is not None and name not in one.passed_measures:
            return dropped(Reason.UNMEASURED + name)
    return Decision(one.session_id, None, None)


def _preference(one: Candidate) -> tuple[bool, float, str]:
    return (one.verdict != "acceptable", _time(one), one.session_id)


def _time(one: Candidate) -> float:
    return one.created_at.timestamp() if one.created_at else float("inf")
