"""The measures that are part of this package.

The reason of a result never quotes the conversation, because it may be private.
"""

import re

from agent_pipeline.judging.call_faults import find_call_fault
from agent_pipeline.judging.context import CallIdentity, EvaluationContext, identify_call
from agent_pipeline.judging.measures import MeasureResult, measure

_REFUSAL = re.compile(
    r"(?:i(?:'m| am) (?:very |really |so )?sorry,? (?:but |however,? )?|sorry,? (?:but )?"
    r"|unfortunately,? |as an ai[^,.]{0,40},? )?"
    r"i(?:'m| am)? (?:can(?:'t|not| not)|won't|will not|must (?:decline|refuse)"
    r"|(?:not|un) ?able to|have to (?:decline|refuse)) "
    r"(?:\w+ ){0,2}?(?:assist|help|comply|fulfil|fulfill|do that|answer|provide|support|engage"
    r"|participate)",
    re.IGNORECASE,
)
"""Pattern of the beginning of an answer that declines to help.

An apology alone ("I'm sorry, your order is late") is not a refusal.
"""


@measure
def ended_with_answer(context: EvaluationContext) -> MeasureResult:
    """Pass if the last message of the session is the agent's answer.

    A user message at the end is ignored. A run that ended with a tool call by its source's own
    rules passes too.
    """
    if context.final_answer or _ended_on_tool(context):
        return MeasureResult(True)
    last = context.last_spoken
    if last is None:
        return MeasureResult(False, "there is no message of the agent")
    ending = "tool call" if last.get("tool_calls") else f"{last['role']} message"
    return MeasureResult(False, f"the session ends with a {ending}")


@measure
def answer_mentions(
    context: EvaluationContext, text: str, ignore_case: bool = True
) -> MeasureResult:
    """Pass if the last answer contains a given text.

    All kinds of white space are treated as equal.

    Args:
        context: The session.
        text: The text.
        ignore_case: Whether upper and lower case are treated as equal.
    """
    if not context.final_answer:
        return MeasureResult(False, "the session does not end with an answer")
    answer, wanted = " ".join(context.final_answer.split()), " ".join(text.split())
    if ignore_case:
        answer, wanted = answer.casefold(), wanted.casefold()
    if wanted in answer:
        return MeasureResult(True)
    return MeasureResult(False, f"the answer does not mention {text!r}")


@measure
def no_refusal(context: EvaluationContext) -> MeasureResult:
    """Pass if the last answer does not begin by declining to help.

    Only English wordings are recognized.
    """
    if not context.final_answer:
        return MeasureResult(None, "the session does not end with an answer")
    answer = context.final_answer.replace("\u2019", "'")  # a typographic apostrophe
    if _REFUSAL.match(answer):
        return MeasureResult(False, "the answer refuses to help")
    return MeasureResult(True)


@measure
def called_tool(context: EvaluationContext, name: str, times: int | None = None) -> MeasureResult:
    """Pass if a given tool was called.

    Args:
        context: The session.
        name: The tool.
        times: The exact number of calls. `None` means at least one.
    """
    count = sum(call.name == name for call in context.calls)
    if times is None:
        passed, expected = count >= 1, ""
    else:
        passed, expected = count == times, f", not {times}"
    if passed:
        return MeasureResult(True)
    return MeasureResult(False, f"{name} was called {count} times{expected}")


@measure
def arguments_match_schema(context: EvaluationContext) -> MeasureResult:
    """Pass if every call names an existing tool and has arguments that its JSON schema allows."""
    if not context.calls:
        return MeasureResult(True)
    if not context.tools:
        return MeasureResult(None, "the session has no tools to check with")
    for call_number, call in enumerate(context.calls, 1):
        fault = find_call_fault(call, context.tools)
        if fault:
            return MeasureResult(False, f"call {call_number} ({call.name}): {fault}")
    return MeasureResult(True)


@measure
def no_repeated_call(context: EvaluationContext, allowed: int = 0) -> MeasureResult:
    """Pass if the number of calls that repeat an earlier call is at most `allowed`.

    A repeated call has the same name, arguments and result. The same call with another result is a
    retry or a poll, and does not count.
    """
    seen_calls: set[CallIdentity] = set()
    repeated_names = []
    for call in context.calls:
        identity = identify_call(call)
        if identity in seen_calls:
            repeated_names.append(call.name)
        seen_calls.add(identity)
    if len(repeated_names) <= allowed:
        return MeasureResult(True)
    names = ", ".join(sorted(set(repeated_names)))
    return MeasureResult(False, f"{len(repeated_names)} calls repeat an earlier call ({names})")


@measure
def at_most_steps(context: EvaluationContext, steps: int) -> MeasureResult:
    """Pass if the agent wrote at most `steps` messages.

    A message may have any number of calls.
    """
    count = sum(message["role"] == "assistant" for message in context.messages)
    return MeasureResult(True) if count <= steps else MeasureResult(False, f"{count} steps")


@measure
def all_calls_answered(context: EvaluationContext) -> MeasureResult:
    """Pass if every tool call has a result."""
    calls = context.calls
    if _ended_on_tool(context):  # the last calls of such a run need no result
        for message in reversed(context.messages):
            if message.get("tool_calls"):
                calls = calls[: -len(message["tool_calls"])]
                break
    unanswered_count = sum(call.result is None for call in calls)
    if unanswered_count:
        return MeasureResult(False, f"{unanswered_count} calls have no result")
    return MeasureResult(True)


@measure
def no_tool_errors(context: EvaluationContext) -> MeasureResult:
    """Pass if no tool result is an error."""
    error_count = sum(context.failures)
    if error_count:
        return MeasureResult(False, f"{error_count} tool results are errors")
    return MeasureResult(True)


@measure
def no_tool_error_at_end(context: EvaluationContext) -> MeasureResult:
    """Pass if the last tool result is not an error."""
    if any(context.failures[-1:]):
        return MeasureResult(False, "the last tool result is an error")
    return MeasureResult(True)


@measure
def tool_success_rate(context: EvaluationContext) -> float | None:
    """Return the share of tool results that are not errors, or `None` if no tool was used."""
    failures = context.failures
    return 1 - sum(failures) / len(failures) if failures else None


def _ended_on_tool(context: EvaluationContext) -> bool:
    """Return whether the last step is a tool call that, in the run's source, ends a run."""
    if not context.metadata.get("ends_on_tool"):
        return False
    for message in reversed(context.messages):
        if message["role"] == "tool":
            return True
        if message["role"] == "assistant":
            return bool(message.get("tool_calls"))
    return False
