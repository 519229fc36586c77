"""Calls that llama.cpp's grammar keeps a model from writing, counted by tool."""

import pytest

from agent_pipeline.export.limits import limits_by_tool, unwritable_calls, why_unwritable
from agent_pipeline.export.report import ToolDifference

PAY = {"amount": {"type": "number"}, "to": {"type": "string"}, "units": {"type": "integer"}}


def tool(**parameters: object) -> list[dict]:
    return [
        {
            "type": "function",
            "function": {
                "name": "pay",
                "parameters": {"type": "object", "properties": PAY, **parameters},
            },
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ('{"amount": 12345.67, "to": "Ana"}', ""),
        ('{"to": "Ana"}', ""),
        ("{}", ""),
        ('{"to": "Ana", "amount": 1}', "not in the order"),
        ('{"amount": 1, "note": "x"}', "that the schema does not contain"),
        ('{"amount": 12345678901234567}', "more than 16 digits"),
        ('{"amount": 0.12345678901234567}', "more than 16 digits"),
        ('{"units": 2.0}', "written with decimals"),
        ("[1]", "not a JSON object"),
        ("{", "not JSON"),
    ],
)
def test_a_call_is_allowed_or_the_reason_is_given(arguments, why):
    found = why_unwritable("pay", arguments, tool())
    assert why in found and bool(found) == bool(why)


def test_required_arguments_come_first():
    """As in llama.cpp's `json-schema-to-grammar.cpp`: the required ones in the schema's order, then the others."""
    assert why_unwritable("pay", '{"to": "Ana", "amount": 1}', tool(required=["to"])) == ""
    assert "not in the order" in why_unwritable(
        "pay", '{"amount": 1, "to": "Ana"}', tool(required=["to"])
    )
    assert "lacks the required argument to" in why_unwritable(
        "pay", '{"amount": 1}', tool(required=["to"])
    )
    assert "does not contain this tool" in why_unwritable("lend", "{}", tool())


def test_limits_are_counted_by_tool_and_reason():
    def row(*arguments: str) -> dict:
        calls = [
            {"id": "a", "type": "function", "function": {"name": "pay", "arguments": text}}
            for text in arguments
        ]
        return {
            "messages": [{"role": "assistant", "content": "", "tool_calls": calls}],
            "tools": tool(),
        }

    rows = [
        row('{"to": "Ana", "amount": 1.5}', '{"amount": 100.0}'),
        row('{"to": "Bo", "amount": 1234567.89}'),
    ]
    (limits,) = unwritable_calls(rows).values()
    assert limits.count == 3 and list(limits.reasons.values()) == [2]
    found = limits_by_tool(
        iter(rows),
        rounds_numbers=True,
        differing={"lend": ToolDifference(1, "its schema is refused")},
    )
    assert [(limit.tool, limit.count) for limit in found] == [
        ("pay", 2),
        ("pay", 2),
        ("lend", 1),
    ]
    assert limits_by_tool([], True, {}) == []
