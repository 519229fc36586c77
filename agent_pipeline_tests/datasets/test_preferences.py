"""Preference pairs."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from agent_pipeline.datasets.comparison import (
    cut_after_last_answer,
    find_equal_answers,
    hash_answers,
    normalize_calls,
    split_at_first_difference,
)
from agent_pipeline.datasets.preferences import (
    PREFERENCES,
    Pairing,
    compute_length_ratio,
    explain_missing_pairs,
    pair_sessions,
)
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.judging.curation import curate, make_candidate
from agent_pipeline.judging.decisions import DropReason
from agent_pipeline.judging.tables import make_verdict_columns
from agent_pipeline.keys import parse_key
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import make_session_row, to_rows, to_table
from agent_pipeline.sources import open_source
from agent_pipeline_tests.datasets.chats import answers, calls, chats, kto_rows, says, session, user
from agent_pipeline_tests.judging.sessions import judge


def split_pair(good, bad):
    """The prompt and the two continuations, or why the two make no pair."""
    good, bad = (cut_after_last_answer(normalize_calls(messages)) for messages in (good, bad))
    return find_equal_answers(hash_answers(good), hash_answers(bad)) or split_at_first_difference(
        good, bad
    )


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
    same = normalize_calls(messages)
    assert [call["id"] for message in same for call in message.get("tool_calls", ())] == [
        "call_1",
        "call_2",
        "call_3",
    ]
    assert [message["tool_call_id"] for message in same if message["role"] == "tool"] == [
        "call_1",
        "call_2",
        "call_3",
    ]
    assert same[1]["tool_calls"][0]["function"]["arguments"] == '{"a":2,"b":1}'
    assert messages[1]["tool_calls"][0]["id"] == "abc", "the session itself is not changed"


def test_trials_that_differ_in_ids_alone_share_the_call_and_its_result():
    good = [user("x"), calls(("abc", "f", {"a": 1})), answers("abc", "one"), says("Right.")]
    bad = [user("x"), calls(("xyz", "f", {"a": 1})), answers("xyz", "one"), says("Wrong.")]
    parts = split_pair(good, bad)
    assert [message["role"] for message in parts.prompt] == ["user", "assistant", "tool"]
    assert (parts.chosen, parts.rejected) == ([says("Right.")], [says("Wrong.")])


def test_where_a_user_or_a_tool_answers_differently_first_there_is_no_pair():
    asked = (
        [user("x"), says("a"), user("1"), says("b")],
        [user("x"), says("a"), user("2"), says("c")],
    )
    called = [user("x"), calls(("1", "f", {}))]
    for good, bad in (
        asked,
        ([*called, answers("1", "10:00"), says("b")], [*called, answers("1", "10:01"), says("c")]),
    ):
        assert split_pair(good, bad) == "a_user_or_tool_differs_first"


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
        (
            [says("a"), user("1"), says("b")],
            [says("a"), user("2"), says("b"), user("3"), says("c")],
            "one_is_a_beginning_of_the_other",
        ),
        ([], [says("a")], "one_is_a_beginning_of_the_other"),
    ],
)
def test_an_agent_that_did_the_same_or_a_part_of_it_makes_no_pair(good, bad, reason):
    assert split_pair([user("x"), *good], [user("x"), *bad]) == reason
    assert split_pair([user("x"), *bad], [user("x"), *good]) == reason


def test_an_agent_that_speaks_first_makes_no_pair_without_a_prompt():
    assert (
        split_pair([says("a"), user("x"), says("b")], [says("c"), user("x"), says("d")])
        == "no_common_request"
    )


@pytest.mark.parametrize(
    ("good", "bad", "made"),
    [
        ([says("a") | {"weight": 0}], [says("a")], "equal_answers"),
        (
            [says("a"), user("y"), says("b")],
            [says("a"), user("y"), says("c") | {"weight": 0}],
            "a_turn_is_not_to_be_trained",
        ),
        (
            [says("a") | {"weight": 0}, user("y"), says("b")],
            [says("a"), user("y"), says("c")],
            [says("b")],
        ),
    ],
)
def test_a_turn_that_is_not_to_be_trained_is_in_no_answer_and_makes_no_difference(good, bad, made):
    parts = split_pair([user("x"), *good], [user("x"), *bad])
    assert (parts if isinstance(made, str) else parts.chosen) == made


@given(st.permutations("fgh"))
def test_tools_in_another_order(order):
    """A server of tools lists them in any order, and then no trials of its agents were paired."""
    tools = {name: {"type": "function", "function": {"name": name}} for name in "fgh"}
    good = session("g", [user("x"), says("y")], tools=list(tools.values()))
    bad = session("b", [user("x"), says("z")], tools=[tools[name] for name in order])
    (made,) = pair_sessions([good], [bad], SplitSizes())
    assert made["tools"] == good.tools
    assert (
        list(pair_sessions([good], [structs.replace(bad, tools=bad.tools[1:])], SplitSizes())) == []
    )


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
    rows = list(
        pair_sessions(good, [trial("b1", "wrong"), trial("b2", "wrong")], SplitSizes(), counts)
    )
    assert [(row["row_id"], row["session_id"], row["rejected_session_id"]) for row in rows] == [
        ("g1|b1", "g1", "b1")
    ]
    assert counts == {
        "pairs": 1,
        "sessions_without_a_partner": 4,
        "no_negative_of_the_task": 1,
        "no_partner_with_the_same_prompt": 2,
    }
    assert "2 sessions have no other session with the same system prompt" in explain_missing_pairs(
        counts
    )


@given(st.lists(chats(), max_size=4), st.lists(chats(), max_size=4))
@settings(max_examples=100)
def test_every_pair_is_two_real_sessions_that_part_at_what_the_agent_did(good, bad):
    good = [session(f"g{number}", messages) for number, messages in enumerate(good)]
    bad = [session(f"b{number}", messages) for number, messages in enumerate(bad)]
    counts: Counter[str] = Counter()
    rows = list(pair_sessions(good, bad, SplitSizes(), counts))
    assert list(to_rows(to_table(rows, PREFERENCES))) == rows
    assert rows == list(pair_sessions(reversed(good), reversed(bad), SplitSizes())), (
        "the order of sessions does not matter"
    )
    assert 2 * len(rows) + counts["sessions_without_a_partner"] == len(good) + len(bad)
    by_id = {each.session_id: each.messages for each in good + bad}
    for row in rows:
        for side, owner in (("chosen", "session_id"), ("rejected", "rejected_session_id")):
            assert row["prompt"] + row[side] == cut_after_last_answer(
                normalize_calls(by_id[row[owner]])
            )
            assert row[side][0]["role"] == row[side][-1]["role"] == "assistant"
        chosen, rejected = of_agent(row["chosen"]), of_agent(row["rejected"])
        assert chosen[: len(rejected)] != rejected and rejected[: len(chosen)] != chosen
        assert any(message["role"] == "user" for message in row["prompt"])


def trials(side, *scored, **fields):
    """Sessions of one start that answer differently, each (answer, score)."""
    return [
        session(f"{side}{number}", [user("x"), says(answer)], score=score, **fields)
        for number, (answer, score) in enumerate(scored)
    ]


def pairs(good, bad, **pairing):
    counts: Counter[str] = Counter()
    rows = list(pair_sessions(good, bad, SplitSizes(), counts, Pairing(**pairing)))
    return [(row["session_id"], row["rejected_session_id"], row["margin"]) for row in rows], counts


def test_each_strategy_pairs_in_its_own_way():
    good = trials("g", ("a" * 10, 0.7), ("b" * 50, 1.0))
    bad = trials("b", ("c" * 12, 0.5), ("d" * 49, 0.25), ("e" * 100, 0.25))
    assert pairs(good, bad)[0] == [("g1", "b1", 0.75), ("g0", "b2", pytest.approx(0.45))]
    assert pairs(good, bad, strategy="best_worst")[0] == [("g1", "b1", 0.75)]
    assert pairs(good, bad, strategy="nearest_length")[0] == [
        ("g1", "b1", 0.75),
        ("g0", "b0", pytest.approx(0.2)),
    ]
    everything, counts = pairs(good, bad, strategy="all_pairs")
    assert {pair[:2] for pair in everything[:2]} == {("g1", "b1"), ("g1", "b2")}
    assert {pair[:2] for pair in everything} == {
        (f"g{one}", f"b{other}") for one in range(2) for other in range(3)
    }
    assert [pair[2] for pair in everything] == sorted(
        (pair[2] for pair in everything), reverse=True
    )
    assert counts["pairs"] == 6 and counts["sessions_without_a_partner"] == 0
    some, counts = pairs(good, bad, strategy="all_pairs", max_per_case=4)
    assert some == everything[:4] and counts["pairings_over_the_limit"] == 2


def test_a_limit_spreads_over_sessions_that_are_as_good():
    good, bad = (
        trials(side, *((f"{side}{number}", score) for number in range(10)))
        for side, score in (("g", 1.0), ("b", 0.0))
    )
    made, _ = pairs(good, bad, strategy="all_pairs", max_per_case=8)
    assert len({pair[0] for pair in made}) > 3 and len({pair[1] for pair in made}) > 3


def test_scores_that_are_equal_or_too_near_or_say_the_opposite_make_no_pair():
    good, bad = trials("g", ("a", 0.5)), trials("b", ("b", 0.5), ("c", 0.9), ("d", 0.4))
    made, counts = pairs(good, bad, strategy="all_pairs")
    assert made == [("g0", "b2", pytest.approx(0.1))] and counts["not_better_by_the_margin"] == 2
    assert pairs(good, bad, min_margin=0.2)[0] == []


def test_without_scores_the_verdicts_alone_decide_and_the_margin_is_not_known():
    assert pairs(trials("g", ("a", None)), trials("b", ("b", 0.9)), min_margin=0.5)[0] == [
        ("g0", "b0", None)
    ]


def test_a_pairing_that_fails_leaves_the_next_best_to_be_tried():
    good, bad = trials("g", ("same", 1.0)), trials("b", ("same", 0.0), ("other", 0.5))
    made, counts = pairs(good, bad, strategy="best_worst")
    assert made == [("g0", "b1", 0.5)] and counts["equal_answers"] == 1


@pytest.mark.parametrize("unfit", [{"error": "timeout"}, {"attack_succeeded": True}])
def test_infrastructure_errors_and_obeyed_injections_stand_on_neither_side(unfit):
    sound, sick = trials("s", ("a", None)), trials("u", ("b", None), **unfit)
    for good, bad in ((sound, sick), (sick, sound)):
        made, counts = pairs(good, bad)
        assert made == [] and counts["sessions_without_a_partner"] == 1
        assert sum(count for name, count in counts.items() if name.startswith("left_out_as_")) == 1


def test_the_ratio_of_lengths_counts_what_the_agent_said_and_called():
    rows = [
        {
            "chosen": [calls(("1", "f", {"a": 1}), text="ab"), answers("1", "long " * 9)],
            "rejected": [says("12345")],
        }
    ]
    assert [compute_length_ratio(row) for row in rows] == [2.0]


def curated(sessions):
    """The good and the bad answers among sessions, by the verdicts of their source, as the assets decide with what they are told by default
    but for the measures: a run that did what it was asked to, and said nothing more, is good here."""
    rows = (make_session_row(each) | make_verdict_columns(judge(each, [])) for each in sessions)
    decisions = curate(
        replace(make_candidate(row), content_sha256=row["session_id"], beginnings=())
        for row in rows
    )
    by_use: dict[str, list[Session]] = {"positive": [], "negative": [], "neither": []}
    for each, decision in zip(sessions, decisions, strict=True):
        by_use[decision.use].append(each)
    return (
        by_use["positive"],
        by_use["negative"],
        Counter(decision.reason for decision in decisions),
    )


@pytest.fixture(scope="module")
def agentdojo(real_traces):
    """All runs, redacted, as runs of one agent."""
    source = open_source(real_traces / "agentdojo")
    runs = []
    for key in source.partitions():
        for each in source.sessions(key):
            each.session_id = f"{key}/{each.session_id}"
            runs.append(each)
    source.sessions = lambda key: iter(runs)  # type: ignore[method-assign]
    return [
        structs.replace(each, tools=[])
        for each in read_sessions(source, parse_key("dojo/all"), ReadingOptions())
    ]


@pytest.mark.slow
def test_all_cases_of_agentdojo_with_both_verdicts_give_a_pair_and_no_pair_is_a_trap(agentdojo):
    good, bad, reasons = curated(agentdojo)
    assert (
        reasons[DropReason.INFRASTRUCTURE_ERROR] == 12
        and reasons[DropReason.ATTACK_SUCCEEDED] == 155
    )
    counts: Counter[str] = Counter()
    rows = list(pair_sessions(good, bad, SplitSizes(), counts, Pairing(max_per_case=0)))
    paired = {row["task_key"] for row in rows}
    unattacked = [each for each in agentdojo if each.context.get("attack_type") in (None, "none")]
    both = set.intersection(
        *(
            {each.task_key for each in unattacked if each.judgment == side}
            for side in ("acceptable", "unacceptable")
        )
    )
    assert len({each.task_key for each in unattacked}) == 105 and len(both) == 97
    # Prompts name people whose addresses only some of the runs read: the names are pseudonyms in all of them.
    assert not both - paired and len(rows) == 701
    by_id = {each.session_id: each for each in agentdojo}
    for row in rows:
        chosen, rejected = by_id[row["session_id"]], by_id[row["rejected_session_id"]]
        assert row["margin"] > 0 and chosen.score > rejected.score
        assert not (
            chosen.error or rejected.error or chosen.attack_succeeded or rejected.attack_succeeded
        )
        own, others = of_agent(row["chosen"]), of_agent(row["rejected"])
        assert own[: len(others)] != others and others[: len(own)] != own
        assert chosen.broken is None, "what is imitated is a sound record"


@pytest.mark.slow
def test_a_bad_run_of_agentdojo_that_was_stopped_while_it_called_is_a_rejected_side(agentdojo):
    good, bad, reasons = curated(agentdojo)
    stopped = [each for each in bad if each.broken]
    # Good ones lack what they would have said; four bad ones told calls as words that no program can read.
    assert len(stopped) == 26 and reasons["broken"] == 21
    for each in stopped:
        called = each.messages[-1]["tool_calls"]
        assert each.judgment == "unacceptable" and each.damage["unanswered_call"] == len(called)
    alone = [each for each in stopped if each.task_key == "workspace/injection_task_0"]
    rows = list(pair_sessions(good, alone, SplitSizes()))
    assert len(rows) == 1 and rows[0]["rejected"][-1]["tool_calls"], (
        "the one bad trial of its case called to the end"
    )


def test_trials_of_tau_bench_whose_users_began_differently_make_no_pair_and_all_that_are_judged_are_labelled(
    real_traces,
):
    source = open_source(real_traces / "tau-bench")
    for key in source.partitions():
        sessions = list(read_sessions(source, key, ReadingOptions()))
        good, bad, _ = curated(sessions)
        assert (
            len(sessions) == len(good) + len(bad) == 100
            and len({each.task_key for each in sessions}) == 25
        )
        assert not list(
            pair_sessions(good, bad, SplitSizes(), pairing=Pairing("all_pairs", max_per_case=0))
        )
        labels = {row["session_id"]: row["label"] for row in kto_rows(good, bad, SplitSizes())}
        assert labels == {each.session_id: each.judgment == "acceptable" for each in sessions}


def test_the_samples_pairs_share_calls_with_their_results(sample_store):
    sessions = list(
        read_sessions(open_source(sample_store), parse_key("shop/support"), ReadingOptions())
    )
    good, bad = (
        [each for each in sessions if each.judgment == judgment and not each.damage]
        for judgment in ("acceptable", "unacceptable")
    )
    rows = list(pair_sessions(good, bad, SplitSizes()))
    assert len(rows) > 5
    assert any(message["role"] == "tool" for row in rows for message in row["prompt"])
    for row in rows:
        for chat in (row["prompt"] + row["chosen"], row["prompt"] + row["rejected"]):
            made = [call["id"] for message in chat for call in message.get("tool_calls", ())]
            assert {
                message["tool_call_id"] for message in chat if message["role"] == "tool"
            } <= set(made)
            json.dumps(chat)


def test_sessions_that_both_begin_with_a_greeting_are_no_pair_unless_they_ask_the_same() -> None:
    """A good session about bookings and a bad one about the weather both began with "Hi", and made a pair."""

    def talk(name: str, greeting: str, asked: str, answer: str) -> Session:
        texts = ("user", "Hi"), ("assistant", greeting), ("user", asked), ("assistant", answer)
        messages = [{"role": role, "content": text} for role, text in texts]
        return Session(
            session_id=name, project="p", agent="a", source="test", messages=messages, task_key="t"
        )

    good = talk("good", "Hello!", "Cancel booking B0.", "It is cancelled.")
    other = talk("other", "Hello!", "What is the weather in town 1?", "I do not know.")
    same = talk("same", "Hello!", "Cancel booking B0.", "I cannot.")
    counts = Counter[str]()
    rows = list(pair_sessions([good], [other, same], SplitSizes(), counts))
    assert [row["rejected_session_id"] for row in rows] == ["same"]
    assert [message["content"] for message in rows[0]["prompt"]] == [
        "Hi",
        "Hello!",
        "Cancel booking B0.",
    ]
    assert counts["no_partner_with_the_same_prompt"] == 1
