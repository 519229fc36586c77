"""Preconditions: what must pass before an agent may call a tool."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.compute.playing import check_preconditions
from agent_pipeline.errors import SettingsError
from agent_pipeline.evaluation.episodes import play
from agent_pipeline.evaluation.players import recorded_player
from agent_pipeline.judging.builtin_preconditions import RecordPlace, list_records, locate_record
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.curation import make_candidate
from agent_pipeline.judging.preconditions import Preconditions
from agent_pipeline.reports.episode_report import Share, measure_player
from agent_pipeline.sample.shop import World as Shop
from agent_pipeline.sessions.transcript import PairedCall
from agent_pipeline_tests.judging.test_curation import judged_row

LOOKED_UP = "looked_up('find_orders', 'order')"
AMOUNT = "equals_record('amount', 'find_orders', 'order', ['x', '$'])"
IN_TIME = "record_between('find_orders', 'order', 'days', most=30)"
DELIVERED = "record_has('find_orders', 'order', 'delivered')"
PRECONDITIONS = Preconditions.parse({"refund": [LOOKED_UP, AMOUNT, IN_TIME, DELIVERED]})
RECORD = '{"K482":"2 x mug at $15, delivered 12 days ago"}'


def needs_an_order(context: EvaluationContext) -> bool | None:
    """Pass if the last call names an order, and have no result if it names the order `?`."""
    order = (context.calls[-1].arguments or {}).get("order")
    return None if order == "?" else bool(order)


def fails(context: EvaluationContext) -> bool:
    raise ValueError("a bug")


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "id": name,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def talk(look_up: str | None, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a conversation with a look-up's result, if there is one, and then calls."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "refund K482"}]
    if look_up is not None:
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call("find_orders", query="K482")]},
            {"role": "tool", "tool_call_id": "find_orders", "content": look_up},
        ]
    return [*messages, {"role": "assistant", "content": "", "tool_calls": list(calls)}]


def broken(preconditions: Preconditions, messages: list[dict[str, Any]]) -> list[str]:
    return [item.precondition for item in preconditions.find_broken(messages)]


@pytest.mark.parametrize(
    ("look_up", "amount", "expected"),
    [
        (RECORD, 30, []),
        (RECORD, 15, [AMOUNT]),
        (RECORD, "30", [AMOUNT]),
        (RECORD.replace("12", "31"), 30, [IN_TIME]),
        (RECORD.replace("delivered", "shipped"), 30, [DELIVERED]),
        (RECORD.replace("K482", "K483"), 30, [LOOKED_UP, AMOUNT, IN_TIME, DELIVERED]),
        ('{"error":"no such order"}', 30, [LOOKED_UP, AMOUNT, IN_TIME, DELIVERED]),
        (None, 30, [LOOKED_UP, AMOUNT, IN_TIME, DELIVERED]),
    ],
)
def test_refund(look_up: str | None, amount: object, expected: list[str]) -> None:
    """A refund must follow a look-up of the same order, and agree with its record."""
    messages = talk(look_up, call("refund", order="K482", amount=amount))
    if look_up and "K483" in look_up:
        messages[1]["tool_calls"] = [call("find_orders", query="K483")]
    assert broken(PRECONDITIONS, messages) == expected


def test_number_of_another_field() -> None:
    """The order 7 is not looked up because another order has 7 units."""
    preconditions = Preconditions.parse({"refund": [LOOKED_UP]})
    for order, expected in ((12, []), (7, [LOOKED_UP])):
        look_up = '[{"order":12,"units":7}]'
        assert broken(preconditions, talk(look_up, call("refund", order=order))) == expected


def test_limit_at_the_end_of_a_long_system_message() -> None:
    """A limit is read wherever the system message states it."""
    limit = "argument_at_most_stated('amount', 'dollars')"
    preconditions = Preconditions.parse({"refund": [limit]})
    system = {"role": "system", "content": "Be kind. " * 2000 + "Refund at most 50 dollars."}
    for amount, expected in ((50, []), (60, [limit])):
        messages = [system, *talk(RECORD, call("refund", order="K482", amount=amount))]
        assert broken(preconditions, messages) == expected


def test_parallel_calls() -> None:
    """A look-up in the same message cannot have been read before the call."""
    messages = talk(
        None, call("find_orders", query="K482"), call("refund", order="K482", amount=30)
    )
    messages.append({"role": "tool", "tool_call_id": "find_orders", "content": RECORD})
    assert LOOKED_UP in broken(PRECONDITIONS, messages)


def test_same_arguments() -> None:
    """A look-up of another day does not count if the day must be the same."""
    preconditions = Preconditions.parse({"book": ["looked_up('free_rooms', 'room', same=['day'])"]})
    for day, is_broken in (("05-01", False), ("05-02", True)):
        messages = [
            {"role": "assistant", "content": "", "tool_calls": [call("free_rooms", day="05-01")]},
            {"role": "tool", "tool_call_id": "free_rooms", "content": '{"Oak": 4}'},
            {"role": "assistant", "content": "", "tool_calls": [call("book", room="Oak", day=day)]},
        ]
        assert bool(broken(preconditions, messages)) is is_broken


@pytest.mark.parametrize(
    ("result", "place"),
    [
        (RECORD, RecordPlace("key")),
        ('[{"id":"K482","units":2},{"id":"K9","units":1}]', RecordPlace("field", "id")),
        ("orders:\nK482: 2 units\nK4823: 9 units", RecordPlace("line")),
        ('{"units":2}', RecordPlace("whole")),
        ("2 units", RecordPlace("whole")),
    ],
)
def test_record_places(result: str, place: RecordPlace) -> None:
    """A record is found in JSON and in text, and its place lists the records beside it."""
    look_up = PairedCall("find_orders", {"query": "K482"}, "", result)
    record = locate_record(look_up, "K482")
    assert record is not None and record.place == place
    assert record.content in [other.content for other in list_records(look_up, place)]
    assert 2 in record.numbers.values()


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.text() | st.integers(),
)
def test_any_result(result: object, value: str | int) -> None:
    """No tool result makes the search for a record fail."""
    record = locate_record(PairedCall("f", {"a": value}, "", json.dumps(result)), value)
    if record:
        assert all(isinstance(number, float) for number in record.numbers.values())
        assert isinstance(record.words, frozenset)


def test_user_function() -> None:
    """A function of the user's is named by its path; no result and an exception count as broken."""
    here = __name__
    preconditions = Preconditions.parse({"refund": [f"{here}.needs_an_order", f"{here}.fails"]})
    for order, expected in (
        ("K482", [f"{here}.fails"]),
        ("?", [f"{here}.needs_an_order", f"{here}.fails"]),
    ):
        assert broken(preconditions, talk(RECORD, call("refund", order=order))) == expected


@pytest.mark.parametrize(
    "text", ["nowhere.to_be_found", "looked_up()", "looked_up('a', 'b', c=1)", "1 +"]
)
def test_bad_setting(text: str) -> None:
    """A precondition that does not exist is an error, never a call that passes."""
    with pytest.raises(SettingsError, match=r"preconditions\.refund"):
        Preconditions.parse({"refund": [text]})


def test_curation() -> None:
    """A good session that breaks a precondition is dropped with the precondition as the detail."""
    good, bad = (talk(RECORD, call("refund", order="K482", amount=amount)) for amount in (30, 60))
    for messages, detail in ((good, None), (bad, f"refund: {AMOUNT}")):
        row = judged_row("s", messages, judgment="acceptable")
        decision = make_candidate(row, preconditions=PRECONDITIONS).decision
        assert decision.detail == detail and (decision.reason is None) is (detail is None)
        assert decision.use != "negative"


def test_episodes() -> None:
    """The report counts episodes with a broken precondition; a renamed tool cannot be checked."""
    rows = Shop.fresh_tasks(20, 1001, "support-001")
    refund = {
        "role": "assistant",
        "content": "",
        "tool_calls": [call("refund", order="K1", amount=5)],
    }
    episodes = play(Shop, rows, recorded_player([[refund]] * len(rows)))
    renamed = replace(episodes[0], variant="renamed_tool")
    checked = check_preconditions({"model": [*episodes, renamed]}, PRECONDITIONS)["model"]
    assert checked[-1].broken_preconditions is None
    assert all(len(episode.broken_preconditions or ()) == 4 for episode in checked[:-1])
    assert measure_player(checked).broken_preconditions == Share(20, 20)
    assert measure_player(episodes).broken_preconditions is None
