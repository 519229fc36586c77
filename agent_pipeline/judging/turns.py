"""Facts about each of the agent's turns, such as a tool's error. They are never a verdict, and no verdict is spread over them.

A turn is one message of the agent with its calls and their results. The facts are the column `turns` of `judged_sessions`, in the order of
the agent's messages. Training takes its turn weights from them, and a review shows them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.context import EvaluationContext, call_identity
from agent_pipeline.judging.judge_orders import turns_that_address_a_judge
from agent_pipeline.judging.measures import ConfiguredMeasure
from agent_pipeline.judging.schemas import call_fault
from agent_pipeline.options import did_you_mean
from agent_pipeline.sessions.transcript import PairedCall, is_refusal


class TurnFacts(NamedTuple):
    """`tool_error`: a result is an error. `refused`: the environment did not carry a call out (no such tool, no permission, rejected).

    `breaks_schema`: a call is of no tool of the session, or its arguments break the tool's schema; `None` where the source and the settings
    give no schema. `repeated_call`: a call repeats an earlier one, with the same result. `corrected_later`: one of the first three is true,
    and for each call that it is true of, a later call of the same tool went well. `addresses_judge`: a text of the turn, or before it,
    tells a judge what to decide. `failed_measures` are the measures of turns that failed,
    or raised.
    """

    tool_error: bool
    refused: bool
    breaks_schema: bool | None
    repeated_call: bool
    corrected_later: bool
    addresses_judge: bool
    failed_measures: list[str]


FACTS = TurnFacts._fields


def check_facts(names: Sequence[str]) -> None:
    """Raise SettingsError where one is not a fact about a turn."""
    for name in names:
        if name not in FACTS:
            raise SettingsError(
                f"untrained_turns names {name!r}, which is not a fact about a turn{did_you_mean(name, FACTS)}"
            )


def turn_facts(
    context: EvaluationContext, measures: Sequence[ConfiguredMeasure] = ()
) -> list[TurnFacts]:
    """The facts of every turn; each of the measures is taken of the turn on its own."""
    calls, seen = iter(context.calls), set[tuple[str, str, str | None]]()
    schemas_known = bool(context.tools) and context.metadata.get("tools_origin") not in (
        "inferred",
        "none",
    )
    tells_judge = iter(turns_that_address_a_judge(context.messages, context.tools))
    facts: list[TurnFacts] = []
    called: list[list[tuple[str, bool]]] = []  # each call's tool, and whether the call went wrong
    for at, message in enumerate(context.messages):
        turn_calls = [next(calls) for _ in message.get("tool_calls") or ()]
        if message["role"] != "assistant":
            continue
        identities = list(map(call_identity, turn_calls))
        repeated = any(each in seen for each in identities) or len(set(identities)) < len(
            identities
        )
        seen.update(identities)
        errors, refusals = (
            [call.failed for call in turn_calls],
            [is_refusal(call.result or "") for call in turn_calls],
        )
        faults = [_breaks_schema(call, context) if schemas_known else None for call in turn_calls]
        breaks_schema = any(faults) or (None if None in faults else False)
        failed = _failed_measures(context, at, measures)
        judge_is_told = next(tells_judge)
        facts.append(
            TurnFacts(
                any(errors), any(refusals), breaks_schema, repeated, False, judge_is_told, failed
            )
        )
        called.append(
            [
                (call.name, any(wrong))
                for call, *wrong in zip(turn_calls, errors, refusals, faults, strict=True)
            ]
        )
    later: set[str] = set()
    for at in reversed(range(len(facts))):
        wrong = {name for name, is_wrong in called[at] if is_wrong}
        facts[at] = facts[at]._replace(corrected_later=bool(wrong) and wrong <= later)
        later |= {name for name, is_wrong in called[at] if not is_wrong}
    return facts


def true_facts(turn: Mapping[str, Any]) -> list[str]:
    """The names of the facts that hold of a turn (an entry of the column `turns`)."""
    return [name for name in FACTS if turn.get(name)]


def readable_facts(turn: Mapping[str, Any]) -> list[str]:
    """The facts that hold of a turn, for a person: measures by their names."""
    facts = [name.replace("_", " ") for name in true_facts(turn) if name != "failed_measures"]
    return facts + [f"failed {name}" for name in turn["failed_measures"]]


def untrained_turns(turns: Sequence[Mapping[str, Any]], facts: Sequence[str]) -> list[int]:
    """Which turns have one of the facts, by their place among the agent's messages."""
    return [at for at, turn in enumerate(turns) if any(turn.get(name) for name in facts)]


def _breaks_schema(call: PairedCall, context: EvaluationContext) -> bool | None:
    try:
        return bool(call_fault(call, context.tools))
    except (
        Exception
    ):  # a schema that is broken itself, or lies elsewhere, allows and forbids nothing
        return None


def _failed_measures(
    context: EvaluationContext, at: int, measures: Sequence[ConfiguredMeasure]
) -> list[str]:
    """The measures that the turn fails; one that raises counts, since it found nothing good, and one that does not apply says nothing."""
    if not measures:
        return []
    end = at + 1
    while end < len(context.messages) and context.messages[end]["role"] == "tool":
        end += 1
    turn = EvaluationContext(context.messages[at:end], context.tools)
    results = {each.name: each.take(turn) for each in measures}
    return [name for name, result in results.items() if result.raised or result.passed is False]
