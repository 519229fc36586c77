"""The requests of training rows, and the changes that newer sessions show."""

import copy
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from agent_pipeline.datasets.requests import (
    Request,
    TrainedRequests,
    compare_requests,
    describe_requests,
)

PROMPT = "You are the support agent of a shop. Refund an order within {rule} days. Be brief."
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def tool(name: str, *parameters: str, described: str = "", **schemas: dict) -> dict:
    properties = {name: {"type": "string"} for name in parameters} | schemas
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": described or f"Do {name}.",
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(parameters),
            },
        },
    }


FIND, REFUND, CANCEL = tool("find", "id"), tool("refund", "id", "amount"), tool("cancel", "id")
TOOLS = [FIND, REFUND, CANCEL]


def prompt(number: int, rule: int = 30, dated: bool = False) -> str:
    today = f"Today is {BEGAN + timedelta(days=number):%Y-%m-%d}. " if dated else ""
    return today + PROMPT.format(rule=rule)


def row(number: int, tools: list[dict] = TOOLS, **asked) -> dict:
    return {
        "session_id": f"s{number:03}",
        "created_at": BEGAN + timedelta(days=number),
        "tools": tools,
        "messages": [
            {"role": "system", "content": prompt(number, **asked)},
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": "Hello."},
        ],
    }


def trained(count: int = 20, **asked) -> TrainedRequests:
    return describe_requests([row(number, **asked) for number in range(count)])


def newer(count: int, tools: list[dict] = TOOLS, **asked) -> list[Request]:
    return [Request(prompt(number, **asked), tools) for number in range(100, 100 + count)]


def changes(requests: TrainedRequests, sessions: list[Request]) -> list[tuple[str, str]]:
    return [(change.kind, change.tool) for change in compare_requests(requests, sessions)]


RENAMED = tool("issue_refund", "id", "amount")
REWORDED = tool("refund", "id", "amount", described="Pay back, and only once.")
DEEP = {"options": {"type": "object", "properties": {"description": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (TOOLS, []),
        ([CANCEL, FIND, REFUND], []),
        ([FIND, RENAMED, CANCEL], [("tool added", "issue_refund"), ("tool removed", "refund")]),
        ([FIND, tool("refund", "id", "amount", "reason"), CANCEL], [("parameters", "refund")]),
        ([FIND, tool("refund", "id"), CANCEL], [("parameters", "refund")]),
        ([*TOOLS, tool("escalate")], [("tool added", "escalate")]),
        ([FIND, REFUND], [("tool removed", "cancel")]),
        ([], [("tool removed", name) for name in ("cancel", "find", "refund")]),
        ([FIND, REWORDED, CANCEL], [("wording", "refund")]),
    ],
    ids=[
        "same",
        "order",
        "renamed",
        "parameter added",
        "parameter removed",
        "added",
        "removed",
        "no tools",
        "description",
    ],
)
def test_changes_of_tools(tools, expected):
    assert changes(trained(), newer(10, tools)) == expected


def test_a_changed_description_is_a_minor_change():
    (change,) = compare_requests(trained(), newer(10, [FIND, REWORDED, CANCEL]))
    assert change.is_minor
    mixed = compare_requests(trained(), newer(10, [FIND, REWORDED]))
    assert [each.is_minor for each in mixed] == [False, True]


def test_parameters_in_another_order_are_a_change():
    """The prompt shows the schema in this order, and a model that never saw it may fail."""
    turned = copy.deepcopy(TOOLS)
    for changed in turned:
        schema = changed["function"]["parameters"]
        changed["function"]["parameters"] = dict(reversed(schema.items()))
    expected = {("parameters", name) for name in ("cancel", "find", "refund")}
    assert set(changes(trained(), newer(10, turned))) == expected


def test_a_parameter_called_description_is_no_description():
    before = trained(tools=[tool("note", **DEEP)])
    without = copy.deepcopy(DEEP)
    del without["options"]["properties"]["description"]
    described = copy.deepcopy(DEEP)
    described["options"]["properties"]["description"]["description"] = "What it is."
    assert changes(before, newer(10, [tool("note", **without)])) == [("parameters", "note")]
    assert changes(before, newer(10, [tool("note", **described)])) == [("wording", "note")]


def test_a_rule_that_changed_is_a_change_and_shows_where():
    (change,) = compare_requests(trained(), newer(10, rule=14))
    assert (change.kind, change.sessions, change.is_minor) == ("system prompt", 10, False)
    assert change.difference.before.endswith("within 30")
    assert change.difference.now.endswith("within 14")


def test_a_date_that_changes_daily_is_no_change_but_the_rule_behind_it_is():
    dated = trained(dated=True)
    assert changes(dated, newer(10, dated=True)) == []
    assert changes(dated, newer(10, dated=True, rule=14)) == [("system prompt", "")]


@pytest.mark.parametrize(
    ("changed", "same", "expected"),
    [(4, 0, False), (5, 0, True), (5, 20, True), (5, 21, False), (10, 40, True), (9, 41, False)],
)
def test_a_change_needs_five_sessions_and_a_fifth(changed, same, expected):
    sessions = [*newer(same), *newer(changed, rule=14)]
    assert bool(compare_requests(trained(), sessions)) == expected


def test_prompts_that_resemble_no_other_are_expected_to_be_new():
    """Each session has a prompt of its own, so a new prompt is no news."""
    letters = "abcdefghij"
    rows = [row(number) for number in range(10)]
    for number, each in enumerate(rows):
        words = [f"{letters[number]}{place}" for place in range(30)]
        each["messages"][0]["content"] = " ".join(words)
    requests = describe_requests(rows)
    assert changes(requests, [Request(f"k{number} z{number}", TOOLS) for number in range(20)]) == []


def test_the_newest_prompt_and_the_usual_tools_are_what_a_client_sends():
    rows = [row(number, dated=True) for number in range(9)]
    rows += [row(9, [FIND], dated=True), row(10, [REFUND, FIND, CANCEL], dated=True)]
    requests = describe_requests(reversed(rows))
    assert requests.system_prompt == prompt(10, dated=True)
    assert requests.usual_tools == [REFUND, FIND, CANCEL]
    assert requests.varying_values == ["2026-01-11"]
    assert requests.until == BEGAN + timedelta(days=10) and requests.sessions == 11


def test_requests_are_stored_and_read_again():
    requests = trained(dated=True)
    stored = msgspec.json.encode(requests)
    assert msgspec.json.decode(stored, type=TrainedRequests) == requests


def test_rows_without_times_and_system_prompts_are_described():
    rows = [row(number) | {"created_at": None} for number in range(5)]
    for each in rows:
        each["messages"] = each["messages"][1:]
    requests = describe_requests(rows)
    assert requests.until is None and requests.system_prompt == ""
    assert changes(requests, [Request("", TOOLS)] * 9) == []
    assert changes(requests, [Request("Be kind.", TOOLS)] * 9) == [("system prompt", "")]
