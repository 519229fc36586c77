"""Proposals of preconditions: the calls that they stop, and what is not proposed."""

from random import Random
from typing import Any

import pytest

from agent_pipeline.judging.preconditions import Preconditions
from agent_pipeline.readiness.precondition_proposals import propose_preconditions
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
