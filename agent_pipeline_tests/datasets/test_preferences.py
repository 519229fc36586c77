"""Preference pairs."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.datasets.preferences import PREFERENCES, comparable, preference_rows, split_pair
from agent_pipeline.datasets.sft import to_last_assistant
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.traces.partitions import parse_key
from agent_pipeline.traces.reading import ReadingOptions, read_sessions
from agent_pipeline.traces.sources import open_source
from agent_pipeline.traces.tables import to_rows, to_table
from agent_pipeline_tests.datasets.chats import answers, calls, chats, says, session, user


def of_agent(messages):
    return [message for message in messages if message["role"] == "assistant"]


def test_ids_of_calls_and_of_their_results_become_the_same_numbers():
    messages = [
        user("x"),
        calls(("abc", "f", {"b": 1, "a": 2}), ("def", "g", {})),
        answers("abc", "1"),
        answers("def", "2"),
        calls(("g", "h", {})),
        answers("g", "3"),
    ]
    same = comparable(messages)
    assert [call["id"] for message in same for call in message.get("tool_calls", ())] == ["call_1", "call_2", "call_3"]
    assert [message["tool_call_id"] for message in same if message["role"] == "tool"] == ["call_1", "call_2", "call_3"]
    assert same[1]["tool_calls"][0]["function"]["arguments"] == '{"a":2,"b":1}'
    assert messages[1]["tool_calls"][0]["id"] == "abc", "the session itself is not changed"


def test_trials_that_differ_in_ids_alone_share_the_call_and_its_result():
    good = [user("x"), calls(("abc", "f", {"a": 1})), answers("abc", "one"), says("Right.")]
    bad = [user("x"), calls(("xyz", "f", {"a": 1})), answers("xyz", "one"), says("Wrong.")]
    prompt, chosen, rejected = split_pair(good, bad)
    assert [message["role"] for message in prompt] == ["user", "assistant", "tool"]
    assert (chosen, rejected) == ([says("Right.")], [says("Wrong.")])


def test_where_the_users_part_first_the_pair_begins_at_the_agents_message_before():
    prompt, chosen, rejected = split_pair([user("x"), says("a"), user("1"), says("b")], [user("x"), says("a"), user("2"), says("c")])
    assert (len(prompt), chosen[0], rejected[0]) == (1, says("a"), says("a"))


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        ([says("a")], [says("a")], "equal_answers"),
        ([says("a"), user("1"), says("b")], [says("a"), user("2"), says("b")], "equal_answers"),
        (
            [calls(("1", "f", {})), answers("1", "10:00"), says("b")],
            [calls(("2", "f", {})), answers("2", "10:01"), says("b")],
            "equal_answers",
        ),
        ([says("a"), user("bye")], [says("a")], "equal_answers"),
        ([says("a")], [says("a"), user("1"), says("b")], "one_is_a_beginning_of_the_other"),
        ([says("a"), user("1"), says("b")], [says("a"), user("2"), says("b"), user("3"), says("c")], "one_is_a_beginning_of_the_other"),
        ([], [says("a")], "one_is_a_beginning_of_the_other"),
    ],
)
def test_an_agent_that_did_the_same_or_a_part_of_it_makes_no_pair(good, bad, reason):
    assert split_pair([user("x"), *good], [user("x"), *bad]) == reason
    assert split_pair([user("x"), *bad], [user("x"), *good]) == reason


def test_an_agent_that_speaks_first_makes_no_pair_without_a_prompt():
    assert split_pair([says("a"), user("x"), says("b")], [says("c"), user("x"), says("d")]) == "different_prompts"


def test_pairs_need_one_task_one_start_and_the_same_tools():
    def trial(name, answer, **fields):
        return session(name, [user(fields.pop("asks", "x")), says(answer)], **fields)

    good = [
        trial("g1", "right"),
        trial("g2", "right", task_key="u"),
        trial("g3", "right", asks="y"),
        trial("g4", "right", tools=[{"a": 1}]),
    ]
    counts: Counter[str] = Counter()
    rows = list(preference_rows(good, [trial("b1", "wrong"), trial("b2", "wrong")], SplitSizes(), counts))
    assert [(row["row_id"], row["session_id"], row["rejected_session_id"]) for row in rows] == [("g1|b1", "g1", "b1")]
    assert counts == {"pairs": 1, "sessions_without_a_partner": 4}


@given(st.lists(chats(), max_size=4), st.lists(chats(), max_size=4))
@settings(max_examples=200)
def test_every_pair_is_two_real_sessions_that_part_at_what_the_agent_did(good, bad):
    good = [session(f"g{number}", messages) for number, messages in enumerate(good)]
    bad = [session(f"b{number}", messages) for number, messages in enumerate(bad)]
    counts: Counter[str] = Counter()
    rows = list(preference_rows(good, bad, SplitSizes(), counts))
    assert list(to_rows(to_table(rows, PREFERENCES))) == rows
    assert rows == list(preference_rows(reversed(good), reversed(bad), SplitSizes())), "the order of sessions does not matter"
    made_none = sum(counts[name] for name in ("equal_answers", "one_is_a_beginning_of_the_other", "different_prompts"))
    assert 2 * (len(rows) + made_none) + counts["sessions_without_a_partner"] == len(good) + len(bad)
    by_id = {each.session_id: each.messages for each in good + bad}
    for row in rows:
        for side, owner in (("chosen", "session_id"), ("rejected", "rejected_session_id")):
            assert row["prompt"] + row[side] == to_last_assistant(comparable(by_id[row[owner]]))
            assert row[side][0]["role"] == row[side][-1]["role"] == "assistant"
        chosen, rejected = of_agent(row["chosen"]), of_agent(row["rejected"])
        assert chosen[: len(rejected)] != rejected and rejected[: len(chosen)] != chosen
        assert any(message["role"] == "user" for message in row["prompt"])


def test_the_samples_pairs_share_calls_with_their_results(sample_store):
    sessions = list(read_sessions(open_source(sample_store), parse_key("shop/support"), ReadingOptions()))
    good, bad = (
        [each for each in sessions if each.judgment == judgment and not each.damage] for judgment in ("acceptable", "unacceptable")
    )
    rows = list(preference_rows(good, bad, SplitSizes()))
    assert len(rows) > 5
    assert any(message["role"] == "tool" for row in rows for message in row["prompt"])
    for row in rows:
        for chat in (row["prompt"] + row["chosen"], row["prompt"] + row["rejected"]):
            made = [call["id"] for message in chat for call in message.get("tool_calls", ())]
            assert {message["tool_call_id"] for message in chat if message["role"] == "tool"} <= set(made)
            json.dumps(chat)
