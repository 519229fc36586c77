"""Supervised rows."""

from collections import Counter
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.datasets.sft import (
    SFT,
    cut_after_last_trained_turn,
    list_excluded_messages,
    make_sft_rows,
)
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.duplicates import find_duplicates
from agent_pipeline.sessions.session import THOUGHT, is_trained
from agent_pipeline.sessions.tables import to_rows, to_table
from agent_pipeline_tests.datasets.chats import (
    answers,
    calls,
    chats,
    rows_of,
    says,
    session,
    user,
    with_turns,
)


def test_a_row_ends_with_the_agents_last_message_and_what_is_cut_is_counted():
    counts: Counter[str] = Counter()
    ends = [
        session("a", [user("x"), says("y"), user("bye")]),
        session("b", [user("x"), calls(("1", "f", {})), answers("1", "z")]),
    ]
    rows = list(
        make_sft_rows(
            rows_of(*ends, session("c", [user("x")]), session("d", [])), SplitSizes(), counts
        )
    )
    assert [(row["row_id"], row["messages"][-1]["role"], len(row["messages"])) for row in rows] == [
        ("a", "assistant", 2),
        ("b", "assistant", 2),
    ]
    assert counts == {
        "sessions": 4,
        "rows": 2,
        "trailing_messages_cut": 2,
        "no_assistant_message": 2,
        "turns": 2,
    }


def test_session_without_a_request():
    """Spans of tools alone record what an agent did, and not what for: a model would invent it."""
    alone = [calls(("1", "f", {"order": "W1"})), answers("1", "z"), says("Done.")]
    greeted = [says("Hello!"), user("x"), *alone]
    told = [{"role": "system", "content": "Clean up every night."}, *alone]
    sessions = [session("a", alone), session("b", greeted), session("c", told)]
    counts: Counter[str] = Counter()
    rows = list(make_sft_rows(rows_of(*sessions), SplitSizes(), counts))
    assert [row["row_id"] for row in rows] == ["b#0", "c"]
    assert (counts["no_request"], counts["rows"], counts["sessions"]) == (1, 2, 3)


def test_turn_before_the_request():
    """A first call that nobody requested is context, and later turns are trained."""
    first = [calls(("1", "f", {"order": "W1"})), answers("1", "z")]
    chat = [*first, user("x"), says("Done."), user("bye")]
    counts: Counter[str] = Counter()
    marked = [chat[0] | {"weight": 0}, *chat[1:4]]
    sources = [chat, [chat[0] | {"weight": 0}, *chat[1:]]]
    [row, weighted] = make_sft_rows(
        rows_of(*(session(f"s{n}", messages) for n, messages in enumerate(sources))),
        SplitSizes(),
        counts,
    )
    assert row["messages"] == weighted["messages"] == marked
    assert list_excluded_messages(row["row_id"], "s0") == [0] and weighted["row_id"] == "s1"
    assert (counts["turns_without_request"], counts["turns_not_trained"]) == (1, 2)
    assert counts["rows"] == 2


@given(st.lists(chats(), max_size=3), st.lists(chats(), max_size=3))
def test_every_trained_turn_has_a_request(whole, cut):
    """Sessions whose first user message is missing begin with turns of the agent."""
    everyone = [*whole, *(messages[1:] for messages in cut)]
    sessions = [session(str(number), messages) for number, messages in enumerate(everyone)]
    counts: Counter[str] = Counter()
    rows = list(make_sft_rows(rows_of(*sessions), SplitSizes(), counts))
    reasons = ("no_assistant_message", "no_turn_to_train", "no_request")
    assert len(rows) + sum(counts[reason] for reason in reasons) == len(sessions)
    for row in rows:
        roles = [
            message["role"]
            for message in row["messages"]
            if message["role"] == "user" or (message["role"] == "assistant" and is_trained(message))
        ]
        assert roles[0] == "user" and "assistant" in roles


def test_turns_with_a_fact_that_is_not_to_be_trained_stay_as_context():
    chat = [
        user("x"),
        calls(("1", "f", {})),
        answers("1", "Error: no such order"),
        calls(("2", "f", {"a": 1})),
        answers("2", "fine"),
        says("Done."),
        user("y"),
        calls(("3", "f", {})),
        answers("3", "Error: no such order"),
    ]
    counts: Counter[str] = Counter()
    [row] = make_sft_rows(with_turns(session("a", chat)), SplitSizes(), counts, ["tool_error"])
    assert row["messages"] == [chat[0], chat[1] | {"weight": 0}, *chat[2:6]], (
        "what follows the last trained turn is cut"
    )
    assert row["row_id"] == "a#1,7" and row["content_sha256"] == session("a", chat).hash_content()
    assert (counts["turns"], counts["turns_not_trained"], counts["rows"]) == (4, 2, 1)


def test_thoughts_that_are_not_trained_are_counted():
    counts: Counter[str] = Counter()
    thinking = session("a", [user("x"), says("y")], reasoning=[{"message": 1, "text": "hm"}])
    [row] = make_sft_rows(rows_of(thinking), SplitSizes(), counts)
    assert counts["reasoning_left_out"] == 1 and row["messages"] == thinking.messages
    counts.clear()
    [thought] = make_sft_rows(rows_of(thinking), SplitSizes(), counts, thoughts=True)
    assert counts["reasoning_kept"] == 1 and "reasoning_left_out" not in counts
    assert (
        thought["messages"] == [user("x"), says("y") | {THOUGHT: "hm"}]
        and thought["content_sha256"] != row["content_sha256"]
    )


def test_a_session_of_such_turns_alone_is_no_row():
    counts: Counter[str] = Counter()
    rows = with_turns(session("a", [user("x"), says("y")]), measures=["answer_mentions('z')"])
    assert (
        list(make_sft_rows(rows, SplitSizes(), counts, ["failed_measures"])) == []
        and counts["no_turn_to_train"] == 1
    )
    assert len(list(make_sft_rows(rows, SplitSizes(), None, ["tool_error"]))) == 1


def test_of_rows_alike_the_better_judged_stands_and_then_the_earlier():
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    judged = {
        "a": (0.5, noon),
        "b": (1.0, noon + timedelta(hours=1)),
        "c": (1.0, noon),
        "d": (None, noon - timedelta(days=1)),
    }
    sessions = [
        session(name, [user("x"), says("y")], score=score, created_at=time)
        for name, (score, time) in judged.items()
    ]
    rows = list(to_rows(to_table(make_sft_rows(rows_of(*sessions), SplitSizes()), SFT)))
    assert {row["row_id"]: (row["score"], row["created_at"]) for row in rows} == judged
    assert {
        each.row_id: each.duplicate_of for each in find_duplicates(Candidates.of(lambda: rows)).rows
    } == {"a": "c", "b": "c", "d": "c"}


def test_of_a_session_that_no_judge_heard_the_sources_judgment_counts_before_its_score():
    rows = rows_of(
        *(
            session(verdict or "none", [user("x"), says("y")], judgment=verdict, score=0.5)
            for verdict in (None, "acceptable")
        )
    )
    assert [row["score"] for row in make_sft_rows(rows, SplitSizes())] == [0.5, 1.0]


@given(st.lists(chats(), max_size=4))
def test_every_session_is_a_row_or_counted_and_rows_survive_the_lake(everyone):
    sessions = [
        session(str(number), messages, task_key=str(number))
        for number, messages in enumerate(everyone)
    ]
    counts: Counter[str] = Counter()
    rows = list(make_sft_rows(rows_of(*sessions), SplitSizes(), counts))
    assert counts["rows"] + counts["no_assistant_message"] == counts["sessions"] == len(sessions)
    assert list(to_rows(to_table(rows, SFT))) == rows
    by_id = {each.session_id: each for each in sessions}
    for row in rows:
        messages = by_id[row["session_id"]].messages
        assert (
            row["messages"]
            == messages[: len(row["messages"])]
            == cut_after_last_trained_turn(messages)
        )
        assert all(message["role"] != "assistant" for message in messages[len(row["messages"]) :])
        assert row["split"] == SplitSizes().find_split(row["task_key"])
