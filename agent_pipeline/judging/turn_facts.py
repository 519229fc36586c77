"""Facts about each agent turn, such as a tool error.

A turn is one message of the agent with its calls and their results. The facts form the column
`turns` of `judged_sessions`, in the order of the agent's messages. The facts determine which turns
are not trained, and a review shows the facts. Facts are never a verdict, and a verdict on a session
never becomes a fact about its turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.call_faults import find_call_fault
from agent_pipeline.judging.context import CallIdentity, EvaluationContext, identify_call
from agent_pipeline.judging.judge_orders import find_turns_addressing_judge
from agent_pipeline.judging.measures import ConfiguredMeasure
from agent_pipeline.options import did_you_mean
from agent_pipeline.sessions.transcript import PairedCall, is_refusal


class TurnFacts(NamedTuple):
    """The facts about one turn.

    Attributes:
        tool_error: A result is an error.
        refused: The environment did not carry out a call (no such tool, no permission, rejected).
        breaks_schema: A call names a tool that the session does not have, or its arguments break
            the tool's schema. `None` means that neither the source nor the settings have a schema.
        repeated_call: A call repeats an earlier call, with the same result.
        corrected_later: One of the first three facts holds, and after each call for which it holds,
            a later call of the same tool succeeded.
        addresses_judge: A text in the turn or before it tries to instruct a judge.
        failed_measures: The turn measures that failed or raised an exception.
    """

    tool_error: bool
    refused: bool
    breaks_schema: bool | None
    repeated_call: bool
    corrected_later: bool
    addresses_judge: bool
    failed_measures: list[str]


FACT_NAMES = TurnFacts._fields


def check_facts(names: Sequence[str]) -> None:
    """Check that all given names are names of facts about a turn.

    Raises:
        SettingsError: A name is not a fact.
    """
    for name in names:
        if name not in FACT_NAMES:
            raise SettingsError(
                f"The setting `untrained_turns` names {name!r}, which is not a fact about a "
                f"turn{did_you_mean(name, FACT_NAMES)}",
                setting="untrained_turns",
            )


@dataclass(frozen=True)
class _CalledTool:
    """The name of a called tool, and whether the call failed."""

    name: str
    went_wrong: bool


def find_turn_facts(
    context: EvaluationContext, measures: Sequence[ConfiguredMeasure] = ()
) -> list[TurnFacts]:
    """Return the facts about every turn.

    Args:
        context: The session.
        measures: Measures that are taken of each turn separately.
    """
    calls = iter(context.calls)
    seen_calls: set[CallIdentity] = set()
    turns_addressing_judge = iter(find_turns_addressing_judge(context.messages, context.tools))
    facts: list[TurnFacts] = []
    called_tools: list[list[_CalledTool]] = []
    for index, message in enumerate(context.messages):
        turn_calls = [next(calls) for _ in message.get("tool_calls") or ()]
        if message["role"] != "assistant":
            continue
        identities = [identify_call(call) for call in turn_calls]
        repeats_itself = len(set(identities)) < len(identities)
        repeats_earlier = any(identity in seen_calls for identity in identities)
        seen_calls.update(identities)
        refusals = [is_refusal(call.result or "") for call in turn_calls]
        faults = [_breaks_schema(call, context) for call in turn_calls]
        breaks_schema: bool | None = any(faults)
        if not breaks_schema and None in faults:
            breaks_schema = None
        facts.append(
            TurnFacts(
                tool_error=any(call.failed for call in turn_calls),
                refused=any(refusals),
                breaks_schema=breaks_schema,
                repeated_call=repeats_earlier or repeats_itself,
                corrected_later=False,
                addresses_judge=next(turns_addressing_judge),
                failed_measures=_find_failed_measures(context, index, measures),
            )
        )
        called_tools.append(
            [
                _CalledTool(call.name, call.failed or refused or bool(breaks))
                for call, refused, breaks in zip(turn_calls, refusals, faults, strict=True)
            ]
        )
    return _mark_corrected(facts, called_tools)


def _mark_corrected(
    facts: Sequence[TurnFacts], called_tools: Sequence[Sequence[_CalledTool]]
) -> list[TurnFacts]:
    """Add the fact `corrected_later` to the turns that a later turn corrected.

    This fact depends on the later turns.
    """
    marked = list(facts)
    went_well_later: set[str] = set()
    for turn_index in reversed(range(len(facts))):
        tools = called_tools[turn_index]
        wrong = {tool.name for tool in tools if tool.went_wrong}
        is_corrected = bool(wrong) and wrong <= went_well_later
        marked[turn_index] = facts[turn_index]._replace(corrected_later=is_corrected)
        went_well_later |= {tool.name for tool in tools if not tool.went_wrong}
    return marked


def _breaks_schema(call: PairedCall, context: EvaluationContext) -> bool | None:
    """Return whether a call violates its tool's schema, or `None` if there is no usable schema."""
    if not context.tools or context.metadata.get("tools_origin") in ("inferred", "none"):
        return None
    try:
        return bool(find_call_fault(call, context.tools))
    except Exception:  # a broken schema, or one with external references, cannot be checked
        return None


def _find_failed_measures(
    context: EvaluationContext, index: int, measures: Sequence[ConfiguredMeasure]
) -> list[str]:
    """Return the names of the measures that a turn does not pass.

    A measure that raises counts as failed, since it found nothing good. A measure without
    a result does not count.

    Args:
        context: The session.
        index: The index of the turn's message.
        measures: The measures to take.
    """
    if not measures:
        return []
    end = index + 1
    while end < len(context.messages) and context.messages[end]["role"] == "tool":
        end += 1
    turn = EvaluationContext(context.messages[index:end], context.tools)
    results = {measure.name: measure.take(turn) for measure in measures}
    return [name for name, result in results.items() if result.raised or result.passed is False]


def list_true_facts(turn: Mapping[str, object]) -> list[str]:
    """Return the names of the facts that hold for a turn.

    The turn is an entry of the column `turns`.
    """
    return [name for name in FACT_NAMES if turn.get(name)]


def describe_facts(turn: Mapping[str, Any]) -> list[str]:
    """Describe the facts that hold for a turn, in words for users.

    Failed measures are named.
    """
    names = [name for name in list_true_facts(turn) if name != "failed_measures"]
    descriptions = [name.replace("_", " ") for name in names]
    return descriptions + [f"failed {name}" for name in turn["failed_measures"]]


def find_untrained_turns(turns: Sequence[Mapping[str, object]], facts: Sequence[str]) -> list[int]:
    """Return the indices, among the agent's messages, of turns for which a given fact holds."""
    return [
        turn_index for turn_index, turn in enumerate(turns) if any(turn.get(name) for name in facts)
    ]
