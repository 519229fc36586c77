"""Coherence of a reply with the steps before it, measured for the capability `reasoning`."""

from collections import Counter

from agent_pipeline.evaluation.answer_scoring import values
from agent_pipeline.evaluation.call_matching import same_call
from agent_pipeline.evaluation.samples import TurnSample, expected_calls
from agent_pipeline.evaluation.turns import plain
from agent_pipeline.models.families import ParsedReply
from agent_pipeline.models.tool_call_parsers import list_parameter_schemas
from agent_pipeline.sessions.transcript import list_texts


def find_fault(sample: TurnSample, parsed: ParsedReply) -> str | None:
    """Return the reason why a reply contradicts the earlier steps, or None if it does not.

    The reasons are `invalid_call`, `repeated_call`, `ungrounded_argument` and `ungrounded_number`.
    """
    if parsed.invalid:
        return "invalid_call"
    schemas = list_parameter_schemas(sample.tools)
    earlier_calls = [call for message in sample.prompt for call in expected_calls(message)]
    for call in parsed.calls:
        is_due = any(same_call(call, due, schemas) for due in sample.calls)
        if not is_due and any(same_call(call, earlier, schemas) for earlier in earlier_calls):
            return "repeated_call"
    earlier_text = " ".join(text for message in sample.prompt for text in list_texts(message))
    earlier_words = plain(earlier_text)
    due_values = {str(value) for call in sample.calls for value in _list_values(call.arguments)}
    for call in parsed.calls:
        for value in map(str, _list_values(call.arguments)):
            if value not in due_values and plain(value) not in earlier_words:
                return "ungrounded_argument"
    if not parsed.is_call and values([parsed.text]) - values([earlier_text, sample.text]):
        return "ungrounded_number"
    return None


def _list_values(arguments: object) -> list[str | int | float]:
    """Return the texts and numbers in the arguments of a tool call."""
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    if isinstance(arguments, list):
        return [value for argument in arguments for value in _list_values(argument)]
    if isinstance(arguments, str | int | float) and not isinstance(arguments, bool):
        return [arguments]
    return []


def compute_f1(left_text: str, right_text: str) -> float:
    """Return the F1 score of the words in two texts, which is 1 if both texts have no words."""
    left, right = Counter(plain(left_text).split()), Counter(plain(right_text).split())
    if not left or not right:
        return float(left == right)
    return 2 * (left & right).total() / (left.total() + right.total())
