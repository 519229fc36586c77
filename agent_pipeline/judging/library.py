"""The measures that come with the pipeline. Each says in its reason what it saw, never with the conversation's own words."""

import re

from agent_pipeline.judging.context import EvaluationContext, call_identity
from agent_pipeline.judging.measures import MeasureResult, measure
from agent_pipeline.judging.schemas import call_fault

# How a model declines, at the beginning of its answer. An apology alone ("I'm sorry, your order is late") is none.
_REFUSAL = re.compile(
    r"(?:i(?:'m| am) (?:very |really |so )?sorry,? (?:but |however,? )?|sorry,? (?:but )?|unfortunately,? |as an ai[^,.]{0,40},? )?"
    r"i(?:'m| am)? (?:can(?:'t|not| not)|won't|will not|must (?:decline|refuse)|(?:not|un) ?able to|have to (?:decline|refuse)) "
    r"(?:\w+ ){0,2}?(?:assist|help|comply|fulfil|fulfill|do that|answer|provide|support|engage|participate)",
    re.IGNORECASE,
)


@measure
def ended_with_answer(context: EvaluationContext) -> MeasureResult:
    """The agent had the last word, or before a closing user message; or the run ended on a tool call by its source's own rules."""
    if context.final_answer or _ended_on_tool(context):
        return MeasureResult(True)
    if (last := context.last_spoken) is None:
        return MeasureResult(False, "no message of the agent")
    return MeasureResult(
        False, f"ends on a {'tool call' if last.get('tool_calls') else last['role'] + ' message'}"
    )


@measure
def answer_mentions(
    context: EvaluationContext, text: str, ignore_case: bool = True
) -> MeasureResult:
    """The last answer contains the text (blanks and line breaks are alike)."""
    if not context.final_answer:
        return MeasureResult(False, "no answer at the end")
    answer, wanted = " ".join(context.final_answer.split()), " ".join(text.split())
    if ignore_case:
        answer, wanted = answer.casefold(), wanted.casefold()
    return (
        MeasureResult(True)
        if wanted in answer
        else MeasureResult(False, f"the answer does not mention {text!r}")
    )


@measure
def no_refusal(context: EvaluationContext) -> MeasureResult:
    """The last answer does not begin by declining to help (English wordings only)."""
    if not context.final_answer:
        return MeasureResult(None, "no answer at the end")
    # Typographic apostrophes are apostrophes.
    refused = _REFUSAL.match(context.final_answer.replace("\u2019", "'"))
    return MeasureResult(False, "the answer declines to help") if refused else MeasureResult(True)


@measure
def called_tool(context: EvaluationContext, name: str, times: int | None = None) -> MeasureResult:
    """The tool was called: at least once, or exactly so many times."""
    count = sum(call.name == name for call in context.calls)
    if count >= 1 if times is None else count == times:
        return MeasureResult(True)
    return MeasureResult(
        False, f"{name} was called {count} times" + ("" if times is None else f", not {times}")
    )


@measure
def arguments_match_schema(context: EvaluationContext) -> MeasureResult:
    """Every call is of a tool that there is, with arguments that its JSON schema allows."""
    if not context.calls:
        return MeasureResult(True)
    if not context.tools:
        return MeasureResult(None, "the session has no tools to check with")
    for number, call in enumerate(context.calls, 1):
        if fault := call_fault(call, context.tools):
            return MeasureResult(False, f"call {number} ({call.name}): {fault}")
    return MeasureResult(True)


@measure
def no_repeated_call(context: EvaluationContext, allowed: int = 0) -> MeasureResult:
    """No call (at most `allowed`) repeats an earlier one: the same name, arguments and result.

    The same call with another result is a retry or a poll, and no repetition.
    """
    seen: set[tuple[str, str, str | None]] = set()
    repeated = []
    for call in context.calls:
        this = call_identity(call)
        if this in seen:
            repeated.append(call.name)
        seen.add(this)
    if len(repeated) <= allowed:
        return MeasureResult(True)
    return MeasureResult(
        False, f"{len(repeated)} calls repeat an earlier one ({', '.join(sorted(set(repeated)))})"
    )


@measure
def at_most_steps(context: EvaluationContext, steps: int) -> MeasureResult:
    """The agent took at most so many steps: messages of its own, each with any number of calls."""
    taken = sum(message["role"] == "assistant" for message in context.messages)
    return MeasureResult(True) if taken <= steps else MeasureResult(False, f"{taken} steps")


@measure
def all_calls_answered(context: EvaluationContext) -> MeasureResult:
    """Every tool call has its result."""
    calls = context.calls
    if _ended_on_tool(context):  # its last calls need no result
        last = next(message for message in reversed(context.messages) if message.get("tool_calls"))
        calls = calls[: -len(last["tool_calls"])]
    unanswered = sum(call.result is None for call in calls)
    return (
        MeasureResult(False, f"{unanswered} calls without a result")
        if unanswered
        else MeasureResult(True)
    )


@measure
def no_tool_errors(context: EvaluationContext) -> MeasureResult:
    """No tool result is an error."""
    errors = sum(context.failures)
    return (
        MeasureResult(False, f"{errors} tool results are errors") if errors else MeasureResult(True)
    )


@measure
def no_tool_error_at_end(context: EvaluationContext) -> MeasureResult:
    """The last tool result is not an error."""
    if any(context.failures[-1:]):
        return MeasureResult(False, "the last tool result is an error")
    return MeasureResult(True)


@measure
def tool_success_rate(context: EvaluationContext) -> float | None:
    """The share of tool results that are no errors; `None` where no tool was used."""
    failures = context.failures
    return 1 - sum(failures) / len(failures) if failures else None


def _ended_on_tool(context: EvaluationContext) -> bool:
    """Whether the source says that the run ended with its last tool call, and it does."""
    spoken = [message for message in context.messages if message["role"] in ("assistant", "tool")]
    return bool(
        context.metadata.get("ends_on_tool")
        and spoken
        and (spoken[-1]["role"] == "tool" or spoken[-1].get("tool_calls"))
    )
