"""The preconditions that are part of this package, and the records that they read.

A record is the part of an earlier tool result that belongs to the same thing as a call. For
example, the record of `refund(order="K482")` is what `find_orders` returned for the order K482.
`find_record` finds it in these places, in this order:

| result of the look-up | record of the value `K482` |
|---|---|
| `{"K482": "2 x mug at $15"}` | the value of the key |
| `[{"order": "K482", "units": 2}]` | the object that has the value in a field |
| `K482: 2 x mug at $15` (text) | the line that contains the value |
| any result, if an argument of the look-up is `K482` | the whole result |

If an object has a field with the name of the call's argument, its other fields are not compared.

`agent-pipeline doctor` proposes these preconditions. A user's own preconditions may call
`find_record`, too.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from agent_pipeline.json_types import JsonValue
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.sessions.transcript import PairedCall

PRECONDITIONS: dict[str, Callable[..., Any]] = {}
"""All preconditions of this package, by name."""

_NUMBER = re.compile(
    r"(?P<symbol>[$€£¥])?(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)"
    r"(?:[ -]?(?P<unit>%|[^\W\d_]+))?"
)
_WORD = re.compile(r"[^\W\d_]{3,}")

_Function = TypeVar("_Function", bound=Callable[..., Any])


class RecordPlace(NamedTuple):
    """The place of a record in the result of a look-up.

    Attributes:
        kind: `key`, `field`, `line` or `whole`.
        field: The name of the field that has the value, if the kind is `field`.
    """

    kind: str
    field: str = ""


class Record:
    """A record that a look-up returned.

    Attributes:
        place: The place of the record in the result.
        content: The record: JSON, or the text of a line.
        look_up: The call that returned the record.
    """

    def __init__(self, place: RecordPlace, content: JsonValue, look_up: PairedCall) -> None:
        self.place = place
        self.content = content
        self.look_up = look_up

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Return the numbers of the record by name (`name_numbers`)."""
        return name_numbers(self.content)

    @cached_property
    def words(self) -> frozenset[str]:
        """Return the words of the record in lower case, without the names of its fields."""
        return frozenset(
            word.casefold() for text in _list_texts(self.content) for word in _WORD.findall(text)
        )


def precondition(function: _Function) -> _Function:
    """Register a function of this package as a precondition under its own name."""
    PRECONDITIONS[function.__name__] = function
    return function


@precondition
def looked_up(
    context: EvaluationContext, tool: str, argument: str, same: Sequence[str] = ()
) -> tuple[bool, str]:
    """Pass if an earlier look-up returned a record of the call's argument.

    Args:
        context: The conversation up to the call.
        tool: The tool that looks the record up.
        argument: The argument of the call that names the record, such as `order`.
        same: Arguments that must be equal in the call and in the look-up.
    """
    is_looked_up = any(
        all(_argument(record.look_up, name) == _argument(context.calls[-1], name) for name in same)
        for record in find_records(context, tool, argument)
    )
    return is_looked_up, "" if is_looked_up else f"no earlier {tool} returned the same {argument}"


@precondition
def made_once(context: EvaluationContext) -> tuple[bool, str]:
    """Pass if the same call was not made before with success."""
    call = context.calls[-1]
    repeats = any(
        other.name == call.name and other.arguments == call.arguments and not other.failed
        for other in context.calls[:-1]
    )
    return not repeats, "the same call was already made before" if repeats else ""


@precondition
def equals_record(
    context: EvaluationContext, value: str, tool: str, argument: str, numbers: list[str]
) -> tuple[bool, str]:
    """Pass if an argument of the call is the product of numbers of the record.

    Args:
        context: The conversation up to the call.
        value: The argument that is compared, such as `amount`.
        tool: The tool that looks the record up.
        argument: The argument of the call that names the record, such as `order`.
        numbers: The names of the numbers (`name_numbers`). One name means the number itself.
    """
    record = find_record(context, tool, argument)
    if record is None:
        return False, f"no earlier {tool} returned the same {argument}"
    written = _argument(context.calls[-1], value)
    factors = [record.numbers.get(name) for name in numbers]
    known = [factor for factor in factors if factor is not None]
    if len(known) < len(factors) or not is_number(written):
        return False, f"{value} or a number in the record is missing"
    is_equal = math.isclose(float(str(written)), math.prod(known), abs_tol=1e-6)
    return is_equal, "" if is_equal else f"{value} differs from the record"


@precondition
def record_has(context: EvaluationContext, tool: str, argument: str, word: str) -> tuple[bool, str]:
    """Pass if the record contains a word, such as `delivered`.

    Args:
        context: The conversation up to the call.
        tool: The tool that looks the record up.
        argument: The argument of the call that names the record.
        word: The word. Upper and lower case are treated as equal.
    """
    record = find_record(context, tool, argument)
    if record is None:
        return False, f"no earlier {tool} returned the same {argument}"
    has_word = word.casefold() in record.words
    return has_word, "" if has_word else f"the record does not say {word!r}"


@precondition
def record_lacks(
    context: EvaluationContext, tool: str, argument: str, word: str
) -> tuple[bool, str]:
    """Pass if the record does not contain a word. The arguments are those of `record_has`."""
    record = find_record(context, tool, argument)
    if record is None:
        return False, f"no earlier {tool} returned the same {argument}"
    has_word = word.casefold() in record.words
    return not has_word, f"the record says {word!r}" if has_word else ""


@precondition
def word_is_stated(
    context: EvaluationContext, tool: str, argument: str, word: str
) -> tuple[bool, str]:
    """Pass if the system message contains a word of the record, or if the record lacks the word.

    The arguments are those of `record_has`.
    """
    record = find_record(context, tool, argument)
    if record is None:
        return False, f"no earlier {tool} returned the same {argument}"
    is_stated = word.casefold() not in record.words or word.casefold() in stated_words(context)
    return is_stated, "" if is_stated else f"the system message does not say {word!r}"


@precondition
def multiple_of_record(
    context: EvaluationContext, value: str, tool: str, argument: str, number: str, most: str
) -> tuple[bool, str]:
    """Pass if an argument of the call is a multiple of a number of the record.

    Args:
        context: The conversation up to the call.
        value: The argument that is compared, such as `amount`.
        tool: The tool that looks the record up.
        argument: The argument of the call that names the record.
        number: The name of the number (`name_numbers`), such as a price.
        most: The name of the number of the record that is the largest factor, such as units.
    """
    record = find_record(context, tool, argument)
    if record is None:
        return False, f"no earlier {tool} returned the same {argument}"
    written = _argument(context.calls[-1], value)
    price, largest = record.numbers.get(number), record.numbers.get(most)
    if not is_number(written) or not price or largest is None:
        return False, f"{value} or a number in the record is missing"
    is_multiple = is_multiple_of(float(str(written)), price, largest)
    return is_multiple, "" if is_multiple else f"{value} is not such a multiple"


@precondition
def record_at_most_stated(
    context: EvaluationContext, tool: str, argument: str, number: str, stated: str
) -> tuple[bool, str]:
    """Pass if a number of the record is at most a number of the system message.

    Args:
        context: The conversation up to the call.
        tool: The tool that looks the record up.
        argument: The argument of the call that names the record.
        number: The name of the number of the record (`name_numbers`).
        stated: The name of the number of the system message, by the same rules.
    """
    record = find_record(context, tool, argument)
    value = record.numbers.get(number) if record else None
    limit = stated_numbers(context).get(stated)
    if value is None or limit is None:
        return False, f"the number {number} or the limit {stated} is missing"
    return value <= limit, "" if value <= limit else f"{number} is above the limit {stated}"


@precondition
def argument_at_most_stated(
    context: EvaluationContext, value: str, stated: str
) -> tuple[bool, str]:
    """Pass if an argument is at most a number of the system message, or if there is no such number.

    Args:
        context: The conversation up to the call.
        value: The argument, such as `amount`.
        stated: The name of the number of the system message (`name_numbers`).
    """
    limit, written = stated_numbers(context).get(stated), _argument(context.calls[-1], value)
    if limit is None:
        return True, ""
    is_within = is_number(written) and float(str(written)) <= limit
    return is_within, "" if is_within else f"{value} is above the limit {stated}"


@precondition
def record_between(
    context: EvaluationContext,
    tool: str,
    argument: str,
    number: str,
    least: float | None = None,
    most: float | None = None,
) -> tuple[bool, str]:
    """Pass if a number of the record is within bounds.

    Args:
        context: The conversation up to the call.
        tool: The tool that looks the record up.
        argument: The argument of the call that names the record.
        number: The name of the number (`name_numbers`).
        least: The smallest number that passes; None for no bound.
        most: The largest number that passes; None for no bound.
    """
    record = find_record(context, tool, argument)
    value = record.numbers.get(number) if record else None
    if value is None:
        return False, f"no earlier {tool} returned the number {number} of the same {argument}"
    if least is not None and value < least:
        return False, f"the number {number} of the record is below {least:g}"
    if most is not None and value > most:
        return False, f"the number {number} of the record is above {most:g}"
    return True, ""


def stated_numbers(context: EvaluationContext) -> dict[str, float]:
    """Return the numbers of the system message, named as the numbers of a record."""
    return name_numbers(_system_text(context))


def stated_words(context: EvaluationContext) -> frozenset[str]:
    """Return the words of the system message in lower case."""
    return frozenset(word.casefold() for word in _WORD.findall(_system_text(context)))


def _system_text(context: EvaluationContext) -> str:
    texts = [str(message["content"]) for message in context.messages if message["role"] == "system"]
    return "\n".join(texts)


def is_multiple_of(value: float, number: float, most: float) -> bool:
    """Return whether a value is a number times a whole factor from 1 to `most`."""
    factor = round(value / number)
    return 1 <= factor <= most and math.isclose(value, factor * number, abs_tol=1e-6)


def find_record(context: EvaluationContext, tool: str, argument: str) -> Record | None:
    """Return the latest record that a look-up returned for the last call, or None.

    Args:
        context: The conversation up to the call.
        tool: The tool that looks the record up.
        argument: The argument of the call that names the record.
    """
    return next(find_records(context, tool, argument), None)


def find_records(context: EvaluationContext, tool: str, argument: str) -> Iterator[Record]:
    """Yield the records that look-ups returned for the last call, the latest record first.

    Failed look-ups, and look-ups in the same message as the call, return no record. The arguments
    are those of `find_record`.
    """
    value = _argument(context.calls[-1], argument)
    if not is_scalar(value):
        return
    for call in reversed(context.calls[:-1]):
        if call.name != tool or not call.result or call.failed:
            continue
        if record := locate_record(call, value, argument):
            yield record


def locate_record(look_up: PairedCall, value: JsonValue, argument: str = "") -> Record | None:
    """Return the record of a value in the result of a look-up, or None.

    Args:
        look_up: The look-up.
        value: The value that names the record.
        argument: The argument of the call that has the value. If an object has a field of this
            name, its other fields are not compared: the number 7 may be an order, or 7 units.
    """
    result, wanted = parse_result(look_up.result or ""), str(value)
    if isinstance(result, str):
        for line in result.splitlines():
            if _contains_whole(line, wanted):
                return Record(RecordPlace("line"), line, look_up)
    else:
        for item in _walk(result):
            if wanted in item:
                return Record(RecordPlace("key"), item[wanted], look_up)
        for item in _walk(result):
            names = [argument] if argument in item else list(item)
            for name in names:
                if is_scalar(item[name]) and str(item[name]) == wanted:
                    return Record(RecordPlace("field", name), item, look_up)
    arguments = (look_up.arguments or {}).values()
    if result and any(is_scalar(other) and str(other) == wanted for other in arguments):
        return Record(RecordPlace("whole"), result, look_up)
    return None


def list_records(look_up: PairedCall, place: RecordPlace) -> Iterator[Record]:
    """Yield all records that a look-up returned in a kind of place."""
    result = parse_result(look_up.result or "")
    if place.kind == "whole":
        if result:
            yield Record(place, result, look_up)
    elif isinstance(result, str):
        lines = result.splitlines() if place.kind == "line" else ()
        yield from (Record(place, line, look_up) for line in lines if line.strip())
    elif place.kind == "key" and isinstance(result, dict):
        yield from (Record(place, content, look_up) for content in result.values())
    elif place.kind == "field":
        for item in _walk(result):
            if place.field in item:
                yield Record(place, item, look_up)


def parse_result(text: str) -> JsonValue:
    """Return the JSON of a tool result, or the text if it is not JSON."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def name_numbers(content: JsonValue) -> dict[str, float]:
    """Return the numbers of a record or a text by name.

    A number in a text is named after the currency before it, or the word after it. A number without
    both is named by its position, such as `#1`. If a name occurs again, it gets a number, too.

    Example:
        >>> name_numbers("2 x mug at $15, 12 days ago")
        {'x': 2.0, '$': 15.0, 'days': 12.0}
        >>> name_numbers({"units": 2, "age": "12 days"})
        {'units': 2.0, 'age.days': 12.0}
    """
    return dict(_list_numbers(content))


def is_scalar(value: object) -> bool:
    """Return whether a value can name a record: a text that is not empty, or a whole number."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole or (isinstance(value, str) and bool(value.strip()))


def is_number(value: object) -> bool:
    """Return whether a value is a finite number, and neither a text nor a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _argument(call: PairedCall, name: str) -> JsonValue:
    return (call.arguments or {}).get(name)


def _contains_whole(line: str, value: str) -> bool:
    """Return whether a line contains a value that is not part of a longer word."""
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", line) is not None


def _walk(value: JsonValue) -> Iterator[dict[str, JsonValue]]:
    """Yield all objects in a JSON value, the outer objects first."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _walk(item)


def _list_numbers(value: JsonValue, name: str = "") -> Iterator[tuple[str, float]]:
    if is_number(value):
        yield name or "value", float(str(value))
    elif isinstance(value, str):
        counts: Counter[str] = Counter()
        for position, match in enumerate(_NUMBER.finditer(value), 1):
            unit = match["symbol"] or match["unit"] or f"#{position}"
            counts[unit] += 1
            unit += f"#{counts[unit]}" if counts[unit] > 1 else ""
            number = float(match["number"].replace(",", ""))
            yield f"{name}.{unit}" if name else unit, number
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _list_numbers(item, f"{name}.{key}" if name else key)


def _list_texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(item)
