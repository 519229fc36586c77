"""Varied rows: what may differ from row to row, and what must stay."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.datasets.extra_tools import GENERIC_TOOLS, add_tools, collect_tools
from agent_pipeline.datasets.masking import Renaming, choose_new_names, list_row_texts, rename
from agent_pipeline.datasets.tool_names import list_readable_names, split_name
from agent_pipeline.datasets.variation import Variation, vary_rows
from agent_pipeline_tests.datasets.varied import list_functions, rows

SEEDS = st.integers(0, 10**6).map(str)
ALL = Variation(permutes_tools=True, masked_names=1, extra_tools=1)


def names_of(row):
    return [tool["function"]["name"] for tool in row["tools"]]


@given(row=rows(), seed=SEEDS)
def test_masked_names_are_taken_back_by_the_old_names(row, seed):
    """Nothing but names has changed: the old names give the same row, byte for byte."""
    renaming = choose_new_names(row, seed)
    masked = rename(row, renaming)
    back = Renaming(
        {new: old for old, new in renaming.tools.items()},
        {new: old for old, new in renaming.parameters.items()},
    )
    assert rename(masked, back) == row
    assert list_row_texts(masked) == list_row_texts(row)


@given(row=rows(), seed=SEEDS)
def test_a_masked_call_is_of_a_tool_in_the_schema_with_its_required_arguments(row, seed):
    masked = rename(row, choose_new_names(row, seed))
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in masked["tools"]}
    assert len(schemas) == len(row["tools"])
    for before, after in zip(list_functions(row), list_functions(masked), strict=True):
        arguments = json.loads(after["arguments"])
        assert arguments.keys() <= schemas[after["name"]]["properties"].keys()
        assert set(schemas[after["name"]]["required"]) <= arguments.keys()
        assert list(arguments.values()) == list(json.loads(before["arguments"]).values())
    for before, after in zip(row["tools"], masked["tools"], strict=True):
        old, new = before["function"]["parameters"], after["function"]["parameters"]
        assert list(new["properties"].values()) == list(old["properties"].values())
        assert len(new["required"]) == len(old["required"])
        assert after["function"]["description"] == before["function"]["description"]


@given(row=rows(), seed=SEEDS)
def test_a_result_stays_with_its_call(row, seed):
    """Ids, results and dates are the same, and a result has the name of its tool."""
    masked = rename(row, choose_new_names(row, seed))
    named = {}
    for before, after in zip(row["messages"], masked["messages"], strict=True):
        assert before["role"] == after["role"] and before["content"] == after["content"]
        for call in after.get("tool_calls") or ():
            named[call["id"]] = call["function"]["name"]
        if after["role"] == "tool":
            assert after["tool_call_id"] == before["tool_call_id"]
            assert after["name"] == named[after["tool_call_id"]]


@given(row=rows(), seed=SEEDS)
def test_a_name_that_a_text_mentions_stays(row, seed):
    """A text that names a tool would be false under another name. In prose, `refund` is a word."""
    renaming = choose_new_names(row, seed)
    texts = "\n".join(list_row_texts(row))
    for old, new in (renaming.tools | renaming.parameters).items():
        assert not re.search(rf"[`'\"]{re.escape(old)}[`'\"]|\b{re.escape(old)}[(=]", texts)
        if old.isalpha() and old.islower():
            if re.search(rf"\b{old}\b", texts):
                assert split_name(old)[0] in split_name(new)
        else:
            assert not re.search(rf"(?<!\w){re.escape(old)}(?!\w)", texts)


@given(row=rows(), seed=SEEDS)
def test_a_tool_without_a_description_keeps_a_name_that_tells_what_it_does(row, seed):
    renaming = choose_new_names(row, seed)
    for tool in row["tools"]:
        name = tool["function"]["name"]
        if name in renaming.tools and not tool["function"]["description"]:
            assert renaming.tools[name] in list_readable_names(name, "tool")


def test_masking_replaces_the_names_of_the_sample_and_keeps_what_they_mean():
    """The sample's schemas have no descriptions, and its texts have the words refund and order."""
    tool = {
        "type": "function",
        "function": {
            "name": "refund",
            "description": "",
            "parameters": {"type": "object", "properties": {"order": {}}, "required": ["order"]},
        },
    }
    messages = [
        {"role": "user", "content": "I want a refund for my order."},
        {"role": "assistant", "content": "Done."},
    ]
    row = {"row_id": "1", "messages": messages, "tools": [tool]}
    new_names = {choose_new_names(row, str(seed)).tools.get("refund") for seed in range(60)}
    assert "issue_refund" in new_names and len(new_names) > 10
    assert all("refund" in name.lower() for name in new_names if name)
    kept = choose_new_names(
        row | {"messages": [{"role": "system", "content": "Use 'refund'."}, *messages]}, "1"
    )
    assert not kept.tools


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a_b": {}}, "anyOf": [{"required": ["a_b"]}]},
        {"type": "object", "properties": {"a_b": {}}, "dependentRequired": {"a_b": []}},
    ],
)
def test_a_parameter_that_other_keys_of_the_schema_may_name_stays(parameters):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    row = {"row_id": "1", "messages": [], "tools": [tool]}
    assert not any(choose_new_names(row, str(seed)).parameters for seed in range(30))


@pytest.mark.parametrize("arguments", ["{broken", '{"a_b": 1, "a_b": 2}', "[1]"])
def test_a_parameter_of_a_call_that_cannot_be_read_stays(arguments):
    """Two values of one key would become one value."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a_b": {}}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    row = {
        "row_id": "1",
        "messages": [{"role": "assistant", "content": "", "tool_calls": [call]}],
        "tools": [{"type": "function", "function": function}],
    }
    for seed in range(30):
        renaming = choose_new_names(row, str(seed))
        assert not renaming.parameters
        assert list_functions(rename(row, renaming))[0]["arguments"] == arguments


@given(row=rows(), seed=SEEDS)
def test_an_added_tool_is_about_nothing_in_the_row(row, seed):
    risky = [
        {"type": "function", "function": {"name": name, "description": "Does it."}}
        for name in ("mark_field", "ring_at_noon", "refund_all", "orderPizza")
    ]
    extended = add_tools(row, [*risky, *GENERIC_TOOLS[:3]], seed)
    assert extended["messages"] == row["messages"]
    assert [tool for tool in extended["tools"] if tool in row["tools"]] == row["tools"]
    added = [tool for tool in extended["tools"] if tool not in row["tools"]]
    assert 1 <= len(added) <= 3 and len(set(names_of(extended))) == len(extended["tools"])
    texts = "\n".join(list_row_texts(row)).lower()
    for tool in added:
        words = set(split_name(tool["function"]["name"]))
        assert not words & {"field", "noon", "refund", "order"} & set(re.findall(r"\w+", texts))
        has_descriptions = any(tool["function"]["description"] for tool in row["tools"])
        assert bool(tool["function"]["description"]) == has_descriptions


@given(
    request=st.sampled_from(["Will it rain in Rome?", "Wake me up at 7.", "Bonjour in German?"]),
    seed=SEEDS,
)
def test_no_tool_for_a_refusal(request, seed):
    """The agent lacked a tool, and said so: with such a tool, the answer would be false."""
    tool = {"type": "function", "function": {"name": "find_orders", "parameters": {}}}
    refusal = {"role": "assistant", "content": "Sorry, I can only look up orders."}
    row: Any = {"messages": [{"role": "user", "content": request}, refusal], "tools": [tool]}
    assert add_tools(row, collect_tools([row]), str(seed)) is row
    answered = row | {"messages": [row["messages"][0], refusal | {"content": "Hello!"}]}
    assert add_tools(answered, collect_tools([answered]), str(seed)) is not answered


@pytest.mark.parametrize(
    "mention",
    ["find\\_orders", "findOrders", "find-orders", "mcp__shop__find_orders", "FindOrders"],
)
def test_a_name_in_another_style_stays(mention):
    """A system prompt in Markdown writes `find\\_orders`, and a tool of that name must exist."""
    tool = {
        "type": "function",
        "function": {"name": "find_orders", "description": "Find orders.", "parameters": {}},
    }
    prompt = {"role": "system", "content": f"First use {mention}, and then answer."}
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    row: Any = {"messages": [prompt, *said], "tools": [tool]}
    assert not any(choose_new_names(row, str(seed)) for seed in range(20))
    row["messages"] = said
    assert any(choose_new_names(row, str(seed)) for seed in range(20))


def test_a_tool_that_the_user_asks_for_is_not_added():
    """The agent did not call it, because it had no such tool, so the row would be false."""
    row = {
        "row_id": "1",
        "messages": [
            {"role": "user", "content": "Please translate this."},
            {"role": "assistant", "content": "Here it is: danke."},
        ],
        "tools": [{"type": "function", "function": {"name": "ping", "description": ""}}],
    }
    for seed in range(50):
        added = names_of(add_tools(row, GENERIC_TOOLS, str(seed)))
        assert len(added) > 1
        assert not any("translate" in name.lower() for name in added)


@given(row=rows(), other=rows(1), seed=st.integers(0, 1000), epoch=st.integers(0, 3))
def test_a_variation_is_a_function_of_rows_seed_and_epoch(row, other, seed, epoch):
    first = vary_rows([row, other], ALL, seed, epoch, [0, 1])
    again = vary_rows([row, other], ALL, seed, epoch, [0, 1])
    assert first == again
    texts = [list_row_texts(varied.row) for varied in first]
    assert texts == [list_row_texts(row), list_row_texts(other)]
    unvaried = vary_rows([row, other], Variation(), seed, epoch, [0, 1])
    assert [varied.row for varied in unvaried] == [row, other]
    assert not any(varied.is_changed for varied in unvaried)


@given(row=rows(), seed=st.integers(0, 1000))
def test_rows_of_a_step_show_the_same_tools(row, seed):
    """Training computes their common prefix once."""
    other = {**row, "row_id": "other"}
    first, second = vary_rows([row, other], ALL, seed, 0, [3, 3])
    assert first.row["tools"] == second.row["tools"]


def test_another_epoch_and_another_step_have_other_orders_and_names():
    row = {
        "row_id": "1",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [
            {"type": "function", "function": {"name": name, "parameters": {}}}
            for name in ("find_orders", "refund_order", "close_case")
        ],
    }
    shown = {
        tuple(names_of(vary_rows([row], ALL, 1, epoch, [step])[0].row))
        for epoch in range(3)
        for step in range(3)
    }
    assert len(shown) == 9
    orders = {
        tuple(names_of(vary_rows([row], Variation(permutes_tools=True), 1, 0, [step])[0].row))
        for step in range(40)
    }
    assert len(orders) == 6


def test_a_share_of_the_steps_is_varied():
    row = {
        "row_id": "1",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "find_orders", "parameters": {}}}],
    }
    varied = vary_rows([row] * 1000, Variation(extra_tools=0.3), 7, 0, range(1000))
    assert 250 < sum(each.changes["extended"] for each in varied) < 350
