"""Irrelevance twins: a row again without the tool that it calls."""

from collections import Counter
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.datasets.sft import SFT, sft_rows
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.datasets.twins import CANNOT, Twins, alike, irrelevance_twin, with_twins
from agent_pipeline.sessions.session import is_trained, without
from agent_pipeline.sessions.tables import to_rows, to_table
from agent_pipeline.sessions.turn_class import TurnClass, text_class
from agent_pipeline_tests.datasets.chats import answers, calls, chats, rows_of, says, session, user


def tool(name, description="", **properties):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"properties": properties},
        },
    }


F, G = tool("f", "Books a room."), tool("g", "Looks up the weather.")


@given(st.lists(chats(), max_size=4), st.floats(0, 1))
def test_a_twin_differs_in_the_called_tool_only_and_all_other_rows_are_as_they_were(
    everyone, share
):
    sessions = [
        session(str(number), chat, task_key=str(number), tools=[F, G])
        for number, chat in enumerate(everyone)
    ]
    plain, counts = list(sft_rows(rows_of(*sessions), SplitSizes())), Counter[str]()
    rows = list(with_twins(plain, Twins(share), counts))
    assert [row for row in rows if not row["twin_of"]] == plain and len(
        {row["row_id"] for row in rows}
    ) == len(rows)
    assert list(to_rows(to_table(rows, SFT))) == rows
    twins, parents = [row for row in rows if row["twin_of"]], {row["row_id"]: row for row in plain}
    assert (
        counts["twins"]
        == len(twins)
        <= len([row for row in plain if row["split"] == "train"]) * (share > 0)
    )
    for twin in twins:
        parent, at = parents[twin["twin_of"]], len(twin["messages"]) - 1
        [gone] = [each for each in parent["tools"] if each not in twin["tools"]]
        [called] = {call["function"]["name"] for call in parent["messages"][at]["tool_calls"]}
        assert gone["function"]["name"] == called and twin["tools"] == [
            each for each in parent["tools"] if each != gone
        ]
        assert [without(message, "weight") for message in twin["messages"][:at]] == parent[
            "messages"
        ][:at]
        assert [
            index
            for index, each in enumerate(twin["messages"])
            if each["role"] == "assistant" and is_trained(each)
        ] == [at]
        assert twin["messages"][at]["content"] in CANNOT and twin["turn_classes"][-1] == "cannot"
        same = ("session_id", "content_sha256", "task_key", "split", "score", "created_at")
        assert {name: twin[name] for name in same} == {
            name: parent[name] for name in same
        } and twin["split"] == "train"


@pytest.mark.parametrize(
    ("name", "chat", "tools"),
    [
        ("no call", [user("x"), says("y")], [F, G]),
        ("no other tool", [user("x"), calls(("1", "f", {}))], [F]),
        (
            "called before",
            [
                user("x"),
                calls(("1", "f", {})) | {"weight": 0},
                answers("1", "no"),
                calls(("2", "f", {})),
            ],
            [F, G],
        ),
        ("two tools at once", [user("x"), calls(("1", "f", {}), ("2", "g", {}))], [F, G]),
        (
            "a name alike",
            [user("x"), calls(("1", "get_user", {}))],
            [tool("get_user"), tool("getUsers")],
        ),
        (
            "a description alike",
            [user("x"), calls(("1", "f", {}))],
            [F, tool("h", "Books rooms and halls.")],
        ),
        (
            "a tool for anything",
            [user("x"), calls(("1", "f", {}))],
            [F, tool("bash", "Runs it.", command={"type": "string"})],
        ),
    ],
)
def test_a_row_has_no_twin_where_the_agent_could_do_it_after_all_or_nothing_can_be_taken(
    name, chat, tools
):
    [row] = sft_rows(rows_of(session("a", chat, tools=tools)), SplitSizes(0, 0))
    counts = Counter[str]()
    assert list(with_twins([row], Twins(1.0), counts)) == [row] and counts == {
        "rows_without_a_possible_twin": 1
    }


def test_tools_of_other_jobs_are_not_alike_and_what_a_twin_says_is_a_refusal():
    assert not alike(
        tool("find_orders", "Orders of a customer."), tool("refund", "Pays an order back.")
    )
    assert not alike({"function": {"name": "find_orders"}}, {"name": "refund", "description": None})
    assert {text_class(each) for each in CANNOT} == {"cannot"}


def test_each_turn_of_a_row_has_its_class():
    chat = [
        user("x"),
        calls(("1", "f", {})),
        answers("1", "z"),
        says("Which one?"),
        user("b"),
        says("Sorry, I cannot."),
        says("Done."),
    ]
    [row] = sft_rows(rows_of(session("a", [*chat, user("bye")], tools=[F, G])), SplitSizes(0, 0))
    assert row["turn_classes"] == ["call", "ask", "cannot", "answer"] and set(
        row["turn_classes"]
    ) == set(get_args(TurnClass))
    assert irrelevance_twin(row)["turn_classes"] == ["cannot"]
