"""One verdict per session: what people said first, what measures say beside it.

A measure is a function of a session that passes or fails with a reason; `@measure` registers it by its name. A measure that raises gives no
value for that session, and its exception is kept as the reason. Null is not zero: a session that nobody judged has no verdict unless the
policy lets the measures decide.
"""

import json
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from agent_pipeline.errors import SettingsError
from agent_pipeline.traces.session import Message, Session

Verdict = Literal["acceptable", "unacceptable"]
WhenUnjudged = Literal["exclude", "measures"]

_JUDGMENTS: dict[str | None, Verdict] = {"acceptable": "acceptable", "unacceptable": "unacceptable"}


class MeasureResult(NamedTuple):
    """`passed` is null where the measure could not be taken; `reason` says why in a few words."""

    passed: bool | None
    reason: str = ""


class Judged(NamedTuple):
    """A session's verdict (null: none), who gave it (`judgment` or `measures`), and every measure's result by name."""

    verdict: Verdict | None
    verdict_by: str | None
    measures: dict[str, MeasureResult]


Measure = Callable[[Session], MeasureResult]
MEASURES: dict[str, Measure] = {}


def measure(function: Measure) -> Measure:
    """Register a measure under its function's name."""
    MEASURES[function.__name__] = function
    return function


@measure
def ended_with_answer(session: Session) -> MeasureResult:
    """The agent had the last word: words of its own, or before a closing user message; never an unanswered call."""
    spoken = [message for message in session.messages if message["role"] != "system"]
    while spoken and spoken[-1]["role"] == "user":
        spoken.pop()
    if not spoken:
        return MeasureResult(False, "no message of the agent")
    last = spoken[-1]
    if last["role"] == "assistant" and last["content"].strip() and not last.get("tool_calls"):
        return MeasureResult(True)
    return MeasureResult(False, f"ends on a {'tool call' if last.get('tool_calls') else last['role'] + ' message'}")


@measure
def no_tool_error_at_end(session: Session) -> MeasureResult:
    """The last tool result is not an error."""
    results = [message for message in session.messages if message["role"] == "tool"]
    if results and is_tool_error(results[-1]):
        return MeasureResult(False, "the last tool result is an error")
    return MeasureResult(True)


@measure
def all_calls_answered(session: Session) -> MeasureResult:
    """Every tool call has its result."""
    if unanswered := session.damage.get("unanswered_call", 0):
        return MeasureResult(False, f"{unanswered} calls without a result")
    return MeasureResult(True)


def is_tool_error(message: Message) -> bool:
    """Whether a tool result reads as an error: a JSON object with a true `error` or `is_error`, or a text that begins with "Error"."""
    text = message["content"].strip()
    if text[:5].lower() == "error":
        return True
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and bool(value.get("error") or value.get("is_error"))


def judge(session: Session, measures: Sequence[str], when_unjudged: WhenUnjudged = "exclude") -> Judged:
    """Take the measures and give the verdict.

    A judgment of the source decides. Without one, `exclude` gives no verdict; `measures` gives `acceptable` if every measure passed,
    `unacceptable` if one failed, and none if one could not be taken.

    Raises:
        SettingsError: a measure's name is not registered.
    """
    results = {name: _taken(_named(name), session) for name in measures}
    if judgment := _JUDGMENTS.get(session.judgment):
        return Judged(judgment, "judgment", results)
    passed = [result.passed for result in results.values()]
    if when_unjudged == "exclude" or not passed or (None in passed and False not in passed):
        return Judged(None, None, results)
    return Judged("unacceptable" if False in passed else "acceptable", "measures", results)


def _named(name: str) -> Measure:
    if name not in MEASURES:
        raise SettingsError(f"There is no measure {name!r}: the registered ones are {', '.join(sorted(MEASURES))}.")
    return MEASURES[name]


def _taken(take: Measure, session: Session) -> MeasureResult:
    try:
        result = take(session)
        return MeasureResult(*result) if isinstance(result, tuple) else MeasureResult(None, f"returned no MeasureResult but {result!r}")
    except Exception as error:  # a user's measure may raise anything; it must cost its own value, not the night
        return MeasureResult(None, f"raised {type(error).__name__}: {error}")
