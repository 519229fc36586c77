"""Objects of a table have the keys of all rows: each call has its own arguments and each schema its own properties."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sessions.json_text import has_repeated_key, repair_arguments
from agent_pipeline.sources import open_source
from agent_pipeline.sources.formats.fields import function_tools
from agent_pipeline.sources.formats.filler import without_filler
from agent_pipeline_tests.sources.samples import lines, put, table

OWN = [
    ("land", {"location": "home"}),
    ("camera", {"mode": "photo", "iso": 100, "boxes": [{"x": 1.5}]}),
]


def tool(name: str, required: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": "Do.", "parameters": parameters},
    }


TOOLS = [
    tool("land", ["location"], location={"type": "string"}, when={"type": "string"}),
    tool(
        "camera",
        ["mode"],
        mode={"type": "string"},
        iso={"type": "integer"},
        boxes={"type": "array"},
    ),
]


def drone_row(*calls: tuple[str, dict[str, Any]], with_tools: bool = True) -> dict[str, Any]:
    called = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": own}}
        for at, (name, own) in enumerate(calls)
    ]
    results = [
        {"role": "tool", "tool_call_id": f"c{at}", "content": "done"} for at in range(len(calls))
    ]
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "", "tool_calls": called},
        *results,
    ]
    return {"messages": [*messages, {"role": "assistant", "content": "Done."}]} | (
        {"tools": TOOLS} if with_tools else {}
    )


def calls_of(path: Path) -> list[list[tuple[str, dict[str, Any]]]]:
    source = open_source(path)
    sessions = [session for key in source.partitions() for session in source.sessions(key)]
    calls = [
        [call["function"] for message in session.messages for call in message.get("tool_calls", ())]
        for session in sessions
    ]
    return [[(each["name"], json.loads(each["arguments"])) for each in of] for of in calls]


@pytest.mark.parametrize("with_tools", [True, False])
@pytest.mark.parametrize("name", ["drone.parquet", "drone.arrow", "drone.jsonl"])
def test_arguments_are_a_calls_own(name: str, with_tools: bool, tmp_path: Path) -> None:
    """bespokelabsai/curator#325, huggingface/datasets#7617: a call had the other tools' arguments, as null."""
    rows = [drone_row(*OWN, with_tools=with_tools), drone_row(*OWN[::-1], with_tools=with_tools)]
    filled = lines(*pa.Table.from_pylist(rows).to_pylist())
    made = {
        "drone.parquet": table(rows),
        "drone.arrow": table(rows, arrow=True),
        "drone.jsonl": filled,
    }
    assert calls_of(put(tmp_path, {name: made[name]})) == [OWN, OWN[::-1]]


def test_a_table_says_that_nulls_are_lost(tmp_path: Path) -> None:
    source = open_source(put(tmp_path, {"drone.parquet": table([drone_row(*OWN)])}))
    assert source.partitions() and any("keys with a null value" in note for note in source.notes)


@pytest.mark.parametrize(
    "arguments",
    [{"location": "here", "when": None}, json.dumps({"location": "here", "mode": None})],
)
def test_null_that_was_said(arguments: Any, tmp_path: Path) -> None:
    """A null of the tool's own argument is what the agent said, and a text of JSON is as it was recorded."""
    said = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert calls_of(put(tmp_path, {"drone.jsonl": lines(drone_row(("land", arguments)))})) == [
        [("land", said)]
    ]


def test_schemas_without_the_keys_of_others() -> None:
    """A property that is null is none, and neither is a null default beside it; a null default by itself is one."""
    filled = json.loads(json.dumps(TOOLS))
    for each in filled:
        properties = each["function"]["parameters"]["properties"]
        for name in ("location", "when", "mode", "iso", "boxes"):
            properties.setdefault(name, None)
        properties["location"] = properties["location"] and properties["location"] | {
            "default": None
        }
    assert function_tools(filled) == (TOOLS, 0)
    own_default = [tool("land", [], when={"type": "string", "default": None})]
    assert function_tools(own_default) == (own_default, 0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["land", "camera"]),
            st.dictionaries(st.sampled_from("abc"), st.integers()),
        ),
        max_size=4,
    )
)
def test_arguments_without_nulls_are_never_changed(calls: list[tuple[str, dict[str, Any]]]) -> None:
    messages = drone_row(*calls)["messages"]
    assert without_filler(messages, lambda: TOOLS) == messages


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ('{"amount": 1.10, "amount": 2.20}', True),
        ('{"a": {"b": 1, "b": 1}}', True),
        ('{"a": 1, "\\u0061": 2}', True),
        ('{"rows": [{"a": 1}, {"a": 2}]}', False),
        ('{"a": "\\"b\\": 1, \\"b\\": 2"}', False),
        ('{"a": ": ", "b": "a: "}', False),
    ],
)
def test_key_that_stands_twice(text: str, repeats: bool) -> None:
    """Readers of JSON keep the first or the last value, so nobody knows what was called."""
    assert has_repeated_key(text) == repeats
    damage: Counter[str] = Counter()
    assert repair_arguments(text, damage) == text
    assert bool(damage["invalid_arguments"]) == repeats


@given(
    st.recursive(
        st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=12,
    )
)
def test_keys_of_made_json_never_stand_twice(value: Any) -> None:
    assert not has_repeated_key(json.dumps({"value": value}))


def test_numbers_stay_as_they_were_recorded() -> None:
    """What was called is what is trained: no digit of a number in a JSON text changes."""
    text = '{"amount": 1.10, "account": 12345678901234567890123, "rate": 1e2, "tiny": 1e-7, "whole": 100.0}'
    damage: Counter[str] = Counter()
    assert repair_arguments(text, damage) == text and not +damage
