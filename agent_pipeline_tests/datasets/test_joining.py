"""Sessions that are joined into one conversation."""

from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.datasets.joining import MOST_SESSIONS, join_sessions
from agent_pipeline_tests.datasets.varied import list_functions, rows

TOOL = {"type": "function", "function": {"name": "find", "description": "", "parameters": {}}}


def session(number, order, *, answer="Done.", system="You help.", task=None, query=None, day=""):
    """A session about an order."""
    call = {"name": "find", "arguments": f'{{"query": "{query or order}"}}'}
    return {
        "row_id": f"row-{number}",
        "session_id": f"session-{number}",
        "task_key": f"task-{number if task is None else task}",
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Where is {order}? {day}"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": f'{{"{order}": "sent"}}'},
            {"role": "assistant", "content": answer},
        ],
        "tools": [TOOL],
    }


def joined_ids(sessions, **more):
    return [row.row_ids for row in join_sessions(sessions, 1.0, 0, **more) if len(row.row_ids) > 1]


def test_two_sessions_become_one_conversation_of_two_requests():
    sessions = [session(1, "K101"), session(2, "K202")]
    (joined,) = join_sessions(sessions, 1.0, 0)
    first, second = [sessions[int(row_id[-1]) - 1] for row_id in joined.row_ids]
    messages = joined.row["messages"]
    assert [message["role"] for message in messages].count("system") == 1
    texts = [message["content"] for message in messages]
    assert texts == [message["content"] for message in first["messages"] + second["messages"][1:]]
    assert list_functions(joined.row) == list_functions(first) + list_functions(second)
    assert joined.row["session_id"] == f"{first['session_id']} + {second['session_id']}"
    ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    results = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert ids == results and len(set(ids)) == 2


def test_sessions_that_contradict_or_ask_are_not_joined():
    """Each pair lacks one condition."""
    base = session(1, "K101")
    assert joined_ids([base, session(2, "K202")])
    for other in (
        session(2, "K101", query="Ana"),  # the same order, perhaps in another state
        session(2, "K202", query="K101"),  # the same call with another result
        session(2, "K202", day="Since 2024-05-03"),  # the same day as below
        session(2, "K202", task=1),
        session(2, "K202", system="You sell."),
    ):
        first = session(1, "K101", day="Since 2024-05-03") if "2024" in str(other) else base
        assert not joined_ids([first, other])
    other_tool = {**TOOL, "function": {**TOOL["function"], "name": "search"}}
    assert not joined_ids([base, session(2, "K202") | {"tools": [other_tool]}])
    question = "Which order do you mean?"
    assert not joined_ids(
        [session(1, "K101", answer=question), session(2, "K202", answer=question)]
    )


def test_a_session_that_asks_may_come_last():
    asking = session(2, "K202", answer="Which order do you mean?")
    assert joined_ids([asking, session(1, "K101")]) == [("row-1", "row-2")]


def test_an_id_of_the_system_prompt_may_be_common():
    system = "Today is 2024-05-03. Ids are like K1."
    pair = [
        session(number, order, system=system, day="It came on 2024-05-03")
        for number, order in ((1, "K101"), (2, "K202"))
    ]
    assert joined_ids(pair)


def test_a_session_whose_end_is_not_trained_is_not_followed():
    pair = [session(1, "K101"), session(2, "K202")]
    for row in pair:
        row["messages"][-1]["weight"] = 0
    assert not joined_ids(pair)


def test_an_agent_that_may_help_one_user_per_conversation_gets_no_second_user():
    """The policy of tau-bench's retail agent; the second request comes from somebody else."""
    system = "You can only help one user per conversation, and must deny requests of other users."
    assert not joined_ids([session(1, "K101", system=system), session(2, "K202", system=system)])


def test_a_row_that_does_not_fit_is_not_made():
    assert not joined_ids([session(1, "K101"), session(2, "K202")], fits=lambda row: False)


@given(
    sessions=st.lists(rows(), max_size=8),
    orders=st.lists(st.integers(100, 130), max_size=12),
    share=st.floats(0, 1),
    seed=st.integers(0, 100),
)
def test_every_session_is_trained_once(sessions, orders, share, seed):
    every = [
        {**row, "row_id": f"made-{index}", "task_key": f"made-{index}"}
        for index, row in enumerate(sessions)
    ] + [session(index, f"K{order}") for index, order in enumerate(orders)]
    result = join_sessions(every, share, seed)
    assert sorted(row_id for row in result for row_id in row.row_ids) == sorted(
        row["row_id"] for row in every
    )
    assert result == join_sessions(every, share, seed)
    joined = [row for row in result if len(row.row_ids) > 1]
    assert sum(len(row.row_ids) for row in joined) <= round(share * len(every))
    by_id = {row["row_id"]: row for row in every}
    for row in joined:
        assert len(row.row_ids) <= MOST_SESSIONS
        members = [by_id[row_id] for row_id in row.row_ids]
        assert len({member["task_key"] for member in members}) == len(members)
        assert list_functions(row.row) == [
            function for member in members for function in list_functions(member)
        ]
    if not share:
        assert [row.row for row in result] == every
