"""Proposals of preconditions: the calls that they stop, and what is not proposed."""

from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.judging.preconditions import Preconditions
from agent_pipeline.keys import parse_key
from agent_pipeline.readiness.precondition_proposals import propose_preconditions
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sources.opening import open_source
from agent_pipeline_tests.judging.test_preconditions import call


def session(
    age: int, days: int, units: int, amount: int, *, look_up: bool = True
) -> list[dict[str, Any]]:
    """Return a session in which an order is looked up, and refunded if an amount is given."""
    record = f'{{"K1": "{units} x mug at $10, delivered {age} days ago"}}'
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"Refund within {days} days."},
        {"role": "user", "content": "Refund K1."},
    ]
    if look_up:
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call("find_orders", query="K1")]},
            {"role": "tool", "tool_call_id": "find_orders", "content": record},
        ]
    if amount:
        refund = call("refund", order="K1", amount=amount)
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [refund]},
            {"role": "tool", "tool_call_id": "refund", "content": '{"ok": true}'},
        ]
    return [*messages, {"role": "assistant", "content": "Done."}]


def good_sessions(count: int, seed: int = 0) -> list[list[dict[str, Any]]]:
    """Return sessions of an agent that refunds everything that is not too old."""
    rng = Random(seed)
    sessions = []
    for _ in range(count):
        age, days, units = rng.randrange(1, 60), rng.choice((10, 20, 30, 40)), rng.randrange(1, 9)
        sessions.append(session(age, days, units, 10 * units if age <= days else 0))
    return sessions


def proposed(sessions: list[list[dict[str, Any]]]) -> Preconditions:
    by_tool: dict[str, list[str]] = {}
    for proposal in propose_preconditions(sessions):
        by_tool.setdefault(proposal.tool, []).append(proposal.precondition)
    return Preconditions.parse(by_tool)


PROPOSED = proposed(good_sessions(150))


@pytest.mark.parametrize(
    ("messages", "is_stopped"),
    [
        (session(10, 20, 2, 20), False),
        (session(20, 20, 2, 20), False),
        (session(21, 20, 2, 20), True),
        (session(10, 20, 2, 10), True),
        (session(10, 20, 2, 20, look_up=False), True),
    ],
)
def test_stopped_calls(messages: list[dict[str, Any]], is_stopped: bool) -> None:
    """The proposals stop an old order, a wrong amount and a missing look-up, and no right call."""
    assert any(PROPOSED.find_broken(messages)) is is_stopped


def test_new_good_sessions() -> None:
    """New sessions of the same agent satisfy the proposals."""
    assert not [
        broken for messages in good_sessions(100, 1) for broken in PROPOSED.find_broken(messages)
    ]


def test_look_up_tool() -> None:
    """The tool that looks the records up gets no rules, and every proposal can be loaded."""
    assert list(PROPOSED.by_tool) == ["refund"]


def test_few_sessions() -> None:
    """A tool with fewer than 20 sessions gets no proposal."""
    assert not propose_preconditions([session(5, 30, 2, 20)] * 19)


def test_chance() -> None:
    """Equal sessions show no bound: no other record proves that the bound is meant."""
    texts = [
        proposal.precondition for proposal in propose_preconditions([session(5, 30, 2, 20)] * 50)
    ]
    assert not [text for text in texts if text.startswith(("record_", "equals_", "argument_"))]


def order(age: int, *, words: str = "", cancel: bool = False) -> list[dict[str, Any]]:
    """Return a session with an order that was delivered, or that is not sent yet (age 0)."""
    state = f"delivered {age} days ago" if age else "processing"
    found = f'{{"K{age}": "1 x mug, {state} {words}"}}'
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"Cancel K{age}."},
        {"role": "assistant", "content": "", "tool_calls": [call("find_orders", query=f"K{age}")]},
        {"role": "tool", "tool_call_id": "find_orders", "content": found},
    ]
    if cancel:
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call("cancel", order=f"K{age}")]},
            {"role": "tool", "tool_call_id": "cancel", "content": '{"ok": true}'},
        ]
    return [*messages, {"role": "assistant", "content": "Done."}]


def list_word_rules(sessions: list[list[dict[str, Any]]]) -> list[str]:
    """Return the proposals about words of a record."""
    proposals = [proposal.precondition for proposal in propose_preconditions(sessions)]
    return [text for text in proposals if text.startswith(("record_has", "record_lacks"))]


def test_words_that_stand_together() -> None:
    """An order that was delivered is never cancelled. `ago` and `days` only stand beside it."""
    words = [f"n{number}" for number in range(40)]
    sessions = [order(0, words=word, cancel=True) for word in words]
    sessions += [order(age, words="processing") for age in range(1, 60)]
    assert list_word_rules(sessions) == ["record_lacks('find_orders', 'order', 'delivered')"]


def test_lucky_words() -> None:
    """Among hundreds of words, some are lacking in all records with a call by luck."""
    lucky = []
    vocabulary = ["w" + "".join(letters) for letters in product("abcdefghijk", repeat=3)]
    for seed in range(4):
        rng = Random(seed)
        sessions = [
            order(
                0,
                words=" ".join(word for word in vocabulary if rng.random() < 0.15),
                cancel=number % 3 == 0,
            )
            for number in range(100)
        ]
        lucky += list_word_rules(sessions)
    assert lucky == []


def test_sample() -> None:
    """The rules that the sample's shop follows are proposed from its recorded sessions, and no
    others.
    """
    source = open_source(Path(__file__).parents[2] / "data" / "sample")
    options = ReadingOptions(redaction=RedactionOptions(enabled=False))
    sessions = [
        session.messages
        for session in read_sessions(source, parse_key("shop/intern"), options)
        if session.judgment == "acceptable" and not (session.broken or session.archived)
    ]
    assert {
        (proposal.tool, proposal.precondition) for proposal in propose_preconditions(sessions)
    } == {
        ("cancel", "looked_up('find_orders', 'order')"),
        ("cancel", "made_once"),
        ("cancel", "record_lacks('find_orders', 'order', 'delivered')"),
        ("cancel", "word_is_stated('find_orders', 'order', 'shipped')"),
        ("refund", "looked_up('find_orders', 'order')"),
        ("refund", "made_once"),
        ("refund", "multiple_of_record('amount', 'find_orders', 'order', '$', 'x')"),
        ("refund", "record_has('find_orders', 'order', 'delivered')"),
        ("refund", "record_at_most_stated('find_orders', 'order', 'days', 'days')"),
    }
