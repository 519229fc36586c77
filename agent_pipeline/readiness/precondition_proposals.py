"""Proposals of preconditions: rules that the calls of all good sessions satisfy.

A rule is proposed only if it also tells something: a bound or a word of a record is proposed if
chance does not explain that all records with a call satisfy it, and many records without a call do
not. The more rules are tried, the less may chance explain each of them. A person decides whether a
rule is meant.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, permutations
from math import floor, isclose
from operator import le
from typing import TypeVar

import msgspec

from agent_pipeline.json_types import JsonValue
from agent_pipeline.judging.builtin_preconditions import (
    Record,
    find_record,
    is_multiple_of,
    is_number,
    is_scalar,
    list_records,
    made_once,
    stated_numbers,
    stated_words,
)
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.preconditions import list_call_contexts
from agent_pipeline.sessions.session import Message, dump_canonical_json
from agent_pipeline.sessions.transcript import pair_calls

MIN_SESSIONS = 20
"""Minimum number of good sessions with a call of the tool."""
MAX_CHANCE = 0.001
"""Largest probability that any of the rules that are tried for a tool holds by chance.

Each rule of one form gets an equal part (Bonferroni), because among 1,000 words one is lacking by
luck.
"""
_MAX_CROSSED = 100
"""Maximum number of calls whose values are paired with the values of other calls."""
_Value = TypeVar("_Value")
_Other = TypeVar("_Other")
_PLACES = ("key", "field", "line", "whole")
"""The places of records, the most certain place first."""


class ProposedPrecondition(msgspec.Struct, frozen=True):
    """A precondition that the calls of all good sessions satisfy.

    Attributes:
        tool: The tool.
        precondition: The precondition, as the settings name it.
        sessions: Number of good sessions with a call of the tool. All of them satisfy it.
        rule: The rule in words.
    """

    tool: str
    precondition: str
    sessions: int
    rule: str

    @property
    def evidence(self) -> str:
        """A sentence about the sessions that satisfy the rule."""
        return f"in {self.sessions} of {self.sessions} good sessions, {self.rule}"


@dataclass(frozen=True)
class _Link:
    """A look-up that came before every call of a tool.

    Attributes:
        tool: The tool.
        look_up: The tool that looks the record up.
        argument: The argument of the call that names the record.
        same: Arguments that are equal in the call and in the look-up.
        sessions: Number of sessions with a call.
        contexts: The conversation up to each call.
        records: The record of each call.
    """

    tool: str
    look_up: str
    argument: str
    same: list[str]
    sessions: int
    contexts: list[EvaluationContext] = field(repr=False)
    records: list[Record] = field(repr=False)

    def propose(self, function: str, arguments: str, rule: str) -> ProposedPrecondition:
        """Return a proposal for this tool."""
        text = f"{function}({arguments})" if arguments else function
        return ProposedPrecondition(self.tool, text, self.sessions, rule)

    @property
    def names(self) -> str:
        """The look-up and the argument, as preconditions name them."""
        return f"{self.look_up!r}, {self.argument!r}"


def propose_preconditions(sessions: Sequence[Sequence[Message]]) -> list[ProposedPrecondition]:
    """Return the preconditions that all calls of good sessions satisfy.

    A tool that looks records up for another tool gets no proposals.

    Args:
        sessions: The messages of good sessions.
    """
    contexts: defaultdict[str, list[tuple[int, EvaluationContext]]] = defaultdict(list)
    for number, messages in enumerate(sessions):
        for tool, context in list_call_contexts(messages):
            contexts[tool].append((number, context))
    links = [
        link
        for tool, numbered in sorted(contexts.items())
        if len({number for number, _ in numbered}) >= MIN_SESSIONS
        and (link := _find_link(tool, numbered, sorted(contexts)))
    ]
    look_ups = {link.look_up for link in links}
    return [
        proposal
        for link in links
        if link.tool not in look_ups
        for proposal in _propose_for(link, sessions)
    ]


def _find_link(
    tool: str, numbered: Sequence[tuple[int, EvaluationContext]], tools: Sequence[str]
) -> _Link | None:
    """Return the look-up that came before every call of a tool, or None."""
    calls = [dict(context.calls[-1].arguments or {}) for _, context in numbered]
    links = []
    for look_up in tools:
        if look_up == tool:
            continue
        for argument in calls[0]:
            if not all(is_scalar(call.get(argument)) for call in calls):
                continue
            records = [find_record(context, look_up, argument) for _, context in numbered]
            known = [record for record in records if record is not None]
            if len(known) == len(records) and len({record.place for record in known}) == 1:
                same = [
                    name
                    for name in calls[0]
                    if name != argument and _is_always_same(name, calls, known)
                ]
                count = len({number for number, _ in numbered})
                contexts = [context for _, context in numbered]
                links.append(_Link(tool, look_up, argument, same, count, contexts, known))
    return min(links, key=lambda link: _PLACES.index(link.records[0].place.kind), default=None)


def _is_always_same(
    name: str, calls: Sequence[Mapping[str, JsonValue]], records: Sequence[Record]
) -> bool:
    """Return whether an argument of each call equals the look-up's argument of the same name."""
    looked_up = [(record.look_up.arguments or {}).get(name) for record in records]
    return all(
        value is not None and call.get(name) == value
        for call, value in zip(calls, looked_up, strict=True)
    )


def _propose_for(
    link: _Link, sessions: Sequence[Sequence[Message]]
) -> Iterator[ProposedPrecondition]:
    """Yield the proposals for one tool: the look-up, equal values, words, and bounds."""
    same = f", same={link.same!r}" if link.same else ""
    yield link.propose(
        "looked_up",
        link.names + same,
        f"{link.tool} followed {link.look_up} of the same "
        + ", ".join([link.argument, *link.same]),
    )
    if not any(made_once(context)[1] for context in link.contexts):
        yield link.propose("made_once", "", f"{link.tool} was never called twice alike")
    yield from _propose_equal_values(link)
    with_call = _unique(link.records)
    others = [
        record
        for key, record in _list_other_records(link, sessions).items()
        if key not in with_call
    ]
    acted = list(with_call.values())
    yield from _propose_stated_words(link)
    for word in _choose_words(acted, others):
        lacking = sum(word not in record.words for record in others)
        others = [record for record in others if word in record.words]
        yield link.propose(
            "record_has",
            f"{link.names}, {word!r}",
            f"the record of {link.tool} said {word!r}; {lacking} other records did not",
        )
    for word in _list_absent_words(acted, others):
        having = sum(word in record.words for record in others)
        others = [record for record in others if word not in record.words]
        yield link.propose(
            "record_lacks",
            f"{link.names}, {word!r}",
            f"the record of {link.tool} never said {word!r}; {having} other records did",
        )
    stated = list(_propose_stated_limits(link))
    yield from stated
    # A limit that the system message states makes a fixed bound superfluous.
    limited = {
        name
        for name in link.records[0].numbers
        for proposal in stated
        if proposal.precondition.startswith(f"record_at_most_stated({link.names}, {name!r}, ")
    }
    names = sorted(set.intersection(*({*record.numbers} for record in acted)) - limited)
    for name in names:
        values = [record.numbers[name] for record in acted]
        other_values = [record.numbers[name] for record in others if name in record.numbers]
        for is_most in (True, False):
            bound = _find_bound(values, other_values, is_most, 2 * len(names))
            if bound is None:
                continue
            beyond = sum(value > bound if is_most else value < bound for value in other_values)
            words = "at most" if is_most else "at least"
            yield link.propose(
                "record_between",
                f"{link.names}, {name!r}, {'most' if is_most else 'least'}={bound:g}",
                f"the number {name} of the record of {link.tool} was {words} {bound:g}; "
                f"{beyond} other records were beyond",
            )


def _propose_equal_values(link: _Link) -> Iterator[ProposedPrecondition]:
    """Yield a proposal per argument that always equals a number or a product of two numbers."""
    arguments = [dict(context.calls[-1].arguments or {}) for context in link.contexts]
    names = sorted(set.intersection(*({*record.numbers} for record in link.records)))
    factors = [[name] for name in names]
    factors += [list(pair) for pair in combinations_with_replacement(names, 2)]
    for argument in arguments[0]:
        values = [call.get(argument) for call in arguments]
        if argument == link.argument or not all(map(is_number, values)) or len({*values}) < 3:
            continue
        numbers = [float(str(value)) for value in values]
        for chosen in factors:
            if all(map(_is_product(chosen), numbers, link.records)):
                yield link.propose(
                    "equals_record",
                    f"{argument!r}, {link.names}, {chosen!r}",
                    f"the {argument} of {link.tool} was {' x '.join(chosen)} of the record",
                )
                break
        else:
            yield from _propose_multiples(link, argument, numbers, names)


def _propose_multiples(
    link: _Link, argument: str, values: Sequence[float], names: Sequence[str]
) -> Iterator[ProposedPrecondition]:
    """Yield a proposal if an argument is always a multiple of a number of the record."""
    for number, most in permutations(names, 2):
        pairs = [(record.numbers[number], record.numbers[most]) for record in link.records]
        if not all(price for price, _ in pairs):
            continue

        def holds(value: float, pair: tuple[float, float]) -> bool:
            return is_multiple_of(value, *pair)

        if _is_meant(values, pairs, holds, len(names) * (len(names) - 1)):
            yield link.propose(
                "multiple_of_record",
                f"{argument!r}, {link.names}, {number!r}, {most!r}",
                f"the {argument} of {link.tool} was {number} of the record, at most {most} times",
            )
            return


def _propose_stated_limits(link: _Link) -> Iterator[ProposedPrecondition]:
    """Yield proposals if numbers never exceed a number of the system message."""
    stated = [stated_numbers(context) for context in link.contexts]
    limits = sorted(set().union(*stated))
    names = sorted(set.intersection(*({*record.numbers} for record in link.records)))
    for name in names:
        for limit in limits:
            if all(limit in numbers for numbers in stated) and _is_meant(
                [record.numbers[name] for record in link.records],
                [numbers[limit] for numbers in stated],
                le,
                len(names) * len(limits),
            ):
                yield link.propose(
                    "record_at_most_stated",
                    f"{link.names}, {name!r}, {limit!r}",
                    f"the number {name} of the record was at most {limit} of the system message",
                )
                break
    arguments = [dict(context.calls[-1].arguments or {}) for context in link.contexts]
    for name in arguments[0]:
        for limit in limits:
            pairs = [
                (call.get(name), numbers[limit])
                for call, numbers in zip(arguments, stated, strict=True)
                if limit in numbers
            ]
            if not all(is_number(value) for value, _ in pairs) or len(pairs) < MIN_SESSIONS // 2:
                continue
            values = [float(str(value)) for value, _ in pairs]
            if _is_meant(values, [most for _, most in pairs], le, len(arguments[0]) * len(limits)):
                yield link.propose(
                    "argument_at_most_stated",
                    f"{name!r}, {limit!r}",
                    f"the {name} of {link.tool} was at most {limit} of the system message",
                )
                break


def _propose_stated_words(link: _Link) -> Iterator[ProposedPrecondition]:
    """Yield a proposal per word that a record has only if the system message has it, too."""
    stated = [stated_words(context) for context in link.contexts]
    shares = {
        word: sum(word in system_words for system_words in stated) / len(stated)
        for word in set().union(*(record.words for record in link.records))
    }
    # A word that the system message always has, or never has, shows nothing.
    tried = sorted(word for word, share in shares.items() if 0 < share < 1)
    for word in tried:
        having = [
            system_words
            for record, system_words in zip(link.records, stated, strict=True)
            if word in record.words
        ]
        is_luck = len(tried) * shares[word] ** len(having) > MAX_CHANCE
        if not is_luck and all(word in system_words for system_words in having):
            yield link.propose(
                "word_is_stated",
                f"{link.names}, {word!r}",
                f"a record of {link.tool} said {word!r} only if the system message said it",
            )


def _is_meant(
    values: Sequence[_Value],
    others: Sequence[_Other],
    holds: Callable[[_Value, _Other], bool],
    tried: int,
) -> bool:
    """Return whether a relation holds for all pairs, and chance does not explain it.

    Chance is measured on pairs of values of different calls.

    Args:
        values: A value of each call.
        others: The value that it is compared with.
        holds: The relation.
        tried: The number of relations of this form that are tried.
    """
    if not all(map(holds, values, others)):
        return False
    crossed = [
        holds(value, other)
        for value_index, value in enumerate(values[:_MAX_CROSSED])
        for other_index, other in enumerate(others[:_MAX_CROSSED])
        if value_index != other_index
    ]
    return bool(crossed) and tried * (sum(crossed) / len(crossed)) ** len(values) <= MAX_CHANCE


def _is_product(names: Sequence[str]) -> Callable[[float, Record], bool]:
    """Return a function that compares a value with the product of numbers of a record."""

    def compare(value: float, record: Record) -> bool:
        product = 1.0
        for name in names:
            product *= record.numbers[name]
        return isclose(value, product, abs_tol=1e-6)

    return compare


def _unique(records: Sequence[Record]) -> dict[str, Record]:
    """Return the records by content, because trials of one task show the same record."""
    return {dump_canonical_json(record.content): record for record in records}


def _list_other_records(link: _Link, sessions: Sequence[Sequence[Message]]) -> dict[str, Record]:
    """Return the records of the look-up in all sessions, by content."""
    place = link.records[0].place
    return _unique(
        [
            record
            for messages in sessions
            for call in pair_calls(messages)
            if call.name == link.look_up and call.result and not call.failed
            for record in list_records(call, place)
        ]
    )


def _choose_words(acted: Sequence[Record], others: Sequence[Record]) -> Iterator[str]:
    """Yield words that all records with a call have, and that chance does not explain.

    Each further word must tell something about the records that have the earlier words.
    """
    common = set.intersection(*({*record.words} for record in acted))
    tried = len(common)
    while True:
        lacking = Counter(
            {word: sum(word not in record.words for record in others) for word in common}
        )
        word = _most_frequent(lacking)
        if not word or tried * _chance(len(acted), len(others), lacking[word]) > MAX_CHANCE:
            return
        yield word
        common.discard(word)
        others = [record for record in others if word in record.words]


def _list_absent_words(acted: Sequence[Record], others: Sequence[Record]) -> Iterator[str]:
    """Yield words that never stand in a record on which the tool was called.

    A word is left out if it is so rare in the other records that its absence may be chance.
    """
    present: frozenset[str] = frozenset().union(*(record.words for record in acted))
    tried = len(frozenset().union(*(record.words for record in others)) - present)
    while True:
        having = Counter(word for record in others for word in record.words - present)
        word = _most_frequent(having)
        if not word or tried * _chance(len(acted), len(others), having[word]) > MAX_CHANCE:
            return
        yield word
        others = [record for record in others if word not in record.words]


def _most_frequent(counts: Mapping[str, int]) -> str:
    """Return the word with the highest count, or an empty text if all counts are 0.

    Words that always stand together, such as `delivered 12 days ago`, have equal counts. The
    longest of them is the likeliest to carry the meaning.
    """
    most = max(counts.values(), default=0)
    words = [word for word, count in counts.items() if count == most and most]
    return min(words, key=lambda word: (-len(word), word), default="")


def _find_bound(
    values: Sequence[float], other_values: Sequence[float], is_most: bool, tried: int
) -> float | None:
    """Return the bound between the values with a call and the other values, or None.

    The bound lies in the middle between the outermost value with a call and the next other value.

    Args:
        values: The values with a call.
        other_values: The values without a call.
        is_most: Whether the bound is an upper bound.
        tried: The number of bounds that are tried.
    """
    sign = 1 if is_most else -1
    outermost = max(sign * value for value in values)
    beyond = [sign * value for value in other_values if sign * value > outermost]
    if not beyond or tried * _chance(len(values), len(other_values), len(beyond)) > MAX_CHANCE:
        return None
    middle = (outermost + min(beyond)) / 2
    are_whole = all(value == floor(value) for value in [*values, *other_values])
    return sign * (floor(middle) if are_whole else middle)


def _chance(acted: int, others: int, count: int) -> float:
    """Return the probability that `count` records, drawn from all, are all without a call."""
    chance = 1.0
    for drawn in range(count):
        chance *= (others - drawn) / (acted + others - drawn)
    return chance
