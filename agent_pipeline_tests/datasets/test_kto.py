"""Unpaired preferences."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.datasets.kto import KTO, split_at_first_answer
from agent_pipeline.datasets.preferences import pair_sessions
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.keys import parse_key
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.tables import to_rows, to_table
from agent_pipeline.sources import open_source
from agent_pipeline_tests.datasets.chats import answers, calls, chats, kto_rows, says, session, user


def test_the_completion_is_all_that_came_of_the_first_request():
    done = [calls(("1", "f", {})), answers("1", "one"), says("Done.")]
    assert split_at_first_answer([user("x"), *done, user("bye")]) == ([user("x")], done)
    assert split_at_first_answer([says("Hello!"), user("x"), *done]) == (
        [says("Hello!"), user("x")],
        done,
    )
    assert (
        split_at_first_answer([user("x")]) is None
        and split_at_first_answer([says("Hello!")]) is None
        and split_at_first_answer([user(""), *done]) is None
    )


def test_labels_are_the_verdicts_and_everyone_else_is_counted():
    good = [
        session("b", [user("x"), says("1")]),
        session("e", [user("x"), says("1")], error="timeout"),
        session("p", [user("x"), says("1")]),
    ]
    bad = [
        session("a", [user("x"), says("2")]),
        session("n", [user("x")]),
        session("o", [user("x"), says("1")], attack_succeeded=True),
    ]
    counts: Counter[str] = Counter()
    rows = list(kto_rows(good, bad, SplitSizes(), {"p"}, counts))
    assert [(row["row_id"], row["label"]) for row in rows] == [("a", False), ("b", True)]
    assert counts == {
        "desirable": 1,
        "undesirable": 1,
        "in_a_pair": 1,
        "no_answer_to_a_user": 1,
        "left_out_as_infrastructure_error": 1,
        "left_out_as_attack_succeeded": 1,
    }


def test_a_bad_session_is_never_a_beginning_of_it_that_nobody_found_bad():
    counts: Counter[str] = Counter()
    bad = session("a", [user("x"), says("fine"), user("y"), says("rude") | {"weight": 0}])
    assert list(kto_rows([], [bad], SplitSizes(), counts=counts)) == [] and counts == {
        "a_turn_is_not_to_be_trained": 1
    }


@given(st.lists(chats(), max_size=5), st.lists(chats(), max_size=5))
def test_every_judged_session_is_in_a_pair_a_label_or_counted(good, bad):
    good = [session(f"g{number}", messages) for number, messages in enumerate(good)]
    bad = [session(f"b{number}", messages) for number, messages in enumerate(bad)]
    pairs = list(pair_sessions(good, bad, SplitSizes()))
    paired = {row[name] for row in pairs for name in ("session_id", "rejected_session_id")}
    counts: Counter[str] = Counter()
    rows = list(kto_rows(good, bad, SplitSizes(), paired, counts))
    assert rows == list(kto_rows(bad[:0] + good[::-1], bad[::-1], SplitSizes(), paired)), (
        "the order of sessions does not matter"
    )
    assert list(to_rows(to_table(rows, KTO))) == rows
    assert sum(counts.values()) == len(good) + len(bad) and counts["in_a_pair"] == 2 * len(pairs)
    assert not paired & {row["session_id"] for row in rows}
    assert all(
        row["completion"][0]["role"] == row["completion"][-1]["role"] == "assistant" for row in rows
    )


def test_the_airlines_trials_that_cannot_pair_are_all_labelled(real_traces):
    source = open_source(real_traces / "stores" / "omniagents_home")
    options = ReadingOptions(
        task_pattern=r"task(\d+)-trial\d+", redaction=RedactionOptions(enabled=False)
    )
    sessions = list(read_sessions(source, parse_key("tau/airline"), options))
    good, bad = (
        [each for each in sessions if each.judgment == judgment]
        for judgment in ("acceptable", "unacceptable")
    )
    assert not list(pair_sessions(good, bad, SplitSizes())), "every trial's user begins differently"
    counts: Counter[str] = Counter()
    rows = list(kto_rows(good, bad, SplitSizes(), counts=counts))
    assert counts == {"desirable": 30, "undesirable": 64} and len(rows) == 94
