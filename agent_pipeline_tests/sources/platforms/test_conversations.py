"""Model calls that repeat what was said become conversations, whatever windows, retries and side tracks there are."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent_pipeline.sessions.items import assemble_chat
from agent_pipeline.sources.platforms.conversation import HARMLESS, Conversation, key_of, open_calls
from agent_pipeline.sources.platforms.conversations import (
    conversations_in,
    conversations_of,
    main_conversation,
)
from agent_pipeline.sources.platforms.spans import Span
from agent_pipeline.sources.platforms.tool_spans import add_results, mark_failed

START = datetime(2026, 1, 1, tzinfo=UTC)


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def model_call(step: int, told: list[dict[str, Any]], answer: str | None, trace: str = "t") -> Span:
    answered = [] if answer is None else [said("assistant", answer)]
    started = START + timedelta(seconds=step)
    return Span(
        trace, str(step), "model", started=started, ended=started, prompt=told, answered=answered
    )


def words(items: list[Any]) -> list[str]:
    return [item.text for item in items]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["yes", "no", "go on", "ok"]), st.sampled_from(["yes", "done", "ok"])
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_conversation_that_grows_is_itself_however_often_words_come_again(turns):
    told: list[dict[str, Any]] = []
    calls = []
    for step, (asked, answer) in enumerate(turns):
        calls.append(model_call(step, [*told, said("user", asked)], answer))
        told += [said("user", asked), said("assistant", answer)]
    (conversation,) = conversations_of(calls)
    assert words(conversation.items) == [each["content"] for each in told]
    assert len(conversation.calls) == len(turns) and not conversation.skipped


@given(st.integers(2, 10), st.data())
def test_a_window_of_the_last_messages_goes_on_with_the_whole(count, data):
    told: list[dict[str, Any]] = []
    calls = []
    for step in range(count):
        window = data.draw(st.integers(1, max(1, len(told))))
        calls.append(
            model_call(step, [*told[-window:], said("user", f"question {step}")], f"answer {step}")
        )
        told += [said("user", f"question {step}"), said("assistant", f"answer {step}")]
    (conversation,) = conversations_of(calls)
    assert words(conversation.items) == [each["content"] for each in told]


def test_the_words_and_the_calls_of_one_response_are_one_turn_also_where_a_span_has_a_message_of_each():
    called = {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": "{}"}}],
    }
    call = Span(
        "t",
        "1",
        "model",
        started=START,
        ended=START,
        prompt=[said("user", "a?")],
        answered=[said("assistant", "I look."), called],
    )
    (conversation,) = conversations_of([call])
    asked, turn = assemble_chat(conversation.items).messages
    assert (asked["content"], turn["content"], len(turn["tool_calls"])) == ("a?", "I look.", 1)


@given(st.permutations(range(6)))
def test_the_order_in_which_calls_were_recorded_does_not_matter(order):
    told: list[dict[str, Any]] = []
    calls = []
    for step in range(6):
        calls.append(model_call(step, [*told, said("user", f"{step}?")], f"{step}!"))
        told += [said("user", f"{step}?"), said("assistant", f"{step}!")]
    (conversation,) = conversations_of(calls[index] for index in order)
    assert words(conversation.items) == [each["content"] for each in told]


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=6))
def test_whatever_was_asked_and_answered_is_in_some_conversation_or_counted(inputs):
    calls = [
        model_call(step, [said("user", text) for text in each], f"answer {step}")
        for step, each in enumerate(inputs)
    ]
    conversations = conversations_of(calls)
    answers = {f"answer {step}" for step in range(len(inputs))}
    there = {text for conversation in conversations for text in words(conversation.items)}
    superseded = sum(conversation.skipped["superseded_item"] for conversation in conversations)
    assert len(answers - there) <= superseded
    assert sum(len(conversation.calls) for conversation in conversations) == len(calls)
    assert {text for each in inputs for text in each} <= there
    for conversation in conversations:
        assert conversation.keys == [key_of(item) for item in conversation.items]


def test_reasoning_that_the_next_input_leaves_out_stays_in_its_place():
    thought = {"type": "reasoning", "text": "hm"}
    first = Span(
        "t",
        "1",
        "model",
        started=START,
        prompt=[said("user", "a")],
        answered=[thought, said("assistant", "b")],
    )
    second = model_call(5, [said("user", "a"), said("assistant", "b"), said("user", "c")], "d")
    (conversation,) = conversations_of([first, second])
    assert [item.kind for item in conversation.items] == [
        "message",
        "reasoning",
        "message",
        "message",
        "message",
    ]


def test_a_changed_system_prompt_is_counted_and_the_first_is_kept():
    calls = [
        model_call(0, [said("system", "It is ten."), said("user", "a")], "b"),
        model_call(
            1,
            [
                said("system", "It is eleven."),
                said("user", "a"),
                said("assistant", "b"),
                said("user", "c"),
            ],
            "d",
        ),
    ]
    (conversation,) = conversations_of(calls)
    assert words(conversation.system) == ["It is ten."] and conversation.skipped == {
        "changed_system_prompt": 1
    }


def test_the_conversation_that_lasted_longest_is_the_main_one():
    long = [
        model_call(0, [said("user", "a")], "b"),
        model_call(9, [said("user", "a"), said("assistant", "b"), said("user", "c")], "d"),
    ]
    within = model_call(4, [said("system", "sub"), said("user", "x")], "y")
    conversations = conversations_of([*long, within])
    assert len(conversations) == 2 and main_conversation(conversations).calls == long


def test_a_fork_of_a_conversation_is_one_of_its_own():
    told = [said("user", "a"), said("assistant", "b"), said("user", "c"), said("assistant", "d")]
    calls = [
        model_call(0, told[:1], "b"),
        model_call(1, told[:3], "d"),
        model_call(2, [*told[:2], said("user", "other")], "e"),
    ]
    assert [words(conversation.items) for conversation in conversations_of(calls)] == [
        ["a", "b", "c", "d"],
        ["a", "b", "other", "e"],
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["t1", "t2", "t3"])),
        min_size=2,
        max_size=9,
    )
)
def test_answers_of_branches(steps: list[tuple[int, int, str]]) -> None:
    """Whatever the user edited, and whichever trace recorded it, an answer follows what its call saw.

    Branches of several traces were joined: a question, its answer, and the question again.
    """
    histories: list[list[dict[str, Any]]] = [[]]
    calls = []
    saw: dict[str, list[str]] = {}
    for step, (branch, length, trace) in enumerate(steps):
        history = histories[branch % len(histories)]
        history = history[: 2 * (length % (len(history) // 2 + 1))]
        told = [*history, said("user", f"question {step}")]
        calls.append(model_call(step, told, f"answer {step}", trace))
        histories.append([*told, said("assistant", f"answer {step}")])
        saw[f"answer {step}"] = [message["content"] for message in told]
    first_calls = {call.trace: call for call in reversed(calls)}
    assume(any(len(call.prompt) > 1 for call in first_calls.values()))
    seen: Counter[str] = Counter()
    for conversation in conversations_of(calls):
        texts = words(conversation.items)
        for index, text in enumerate(texts):
            if text in saw:
                assert texts[:index] == saw[text]
                seen[text] += conversation.items[index].trained
    assert seen == Counter(saw.keys()), "each answer is trained once"


@pytest.mark.parametrize(
    "answer",
    [
        said("assistant", "The capital of"),
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"city": '},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "The"}],
        },
    ],
)
def test_answer_of_a_failed_call(answer: dict[str, Any]) -> None:
    """The user stopped the stream, and went on: the beginning of the answer is not trained."""
    asked = said("user", "a")
    call = Span("t", "1", "model", started=START, prompt=[asked], answered=[answer], error="stop")
    goes_on = model_call(1, [asked, answer, said("user", "go on")], "b")
    for error, is_trained in (("stop", False), (None, True)):
        call.error = error
        (conversation,) = conversations_in([call, goes_on])
        cut, last = conversation.items[1], conversation.items[-1]
        assert (cut.trained, cut.cut, last.trained) == (is_trained, not is_trained, True)


def test_complete_answer_of_a_failed_call() -> None:
    """Something failed after the answer, which states that it is complete."""
    answer = said("assistant", "b") | {"finish_reason": "stop"}
    call = Span("t", "1", "model", started=START, prompt=[said("user", "a")], answered=[answer])
    call.error = "a callback failed"
    (conversation,) = conversations_in([call])
    assert conversation.items[-1].trained


def test_result_that_a_branch_lacks() -> None:
    """An application cleared an old result: the answer to it is not trained after the note."""
    called = {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": "{}"}}],
    }
    result = {"role": "tool", "tool_call_id": "c1", "content": "50 EUR"}
    told = [said("user", "a"), called, result]
    calls = [model_call(0, told[:1], None), model_call(1, told, "You have 50 EUR.")]
    calls[0].answered = [called]
    note = result | {"content": "(removed)"}
    later = [*told[:2], note, said("assistant", "You have 50 EUR."), said("user", "b")]
    main, branch = conversations_of([*calls, model_call(2, later, "c")])
    assert [item.trained for item in main.items if item.role == "assistant"] == [True]
    assert [item.trained for item in branch.items if item.role == "assistant"] == [False, True]
    assert branch.skipped == {"copied_answer": 2}


def test_title_in_another_trace() -> None:
    """A title is often written without the agent's system prompt; it is no turn of the agent."""
    system = said("system", "You sell spades.")
    first = model_call(0, [system, said("user", "a")], "b", "t1")
    title = model_call(1, [said("user", "Write a title: a b")], "Spades", "t2")
    asked = [said("user", "a"), said("assistant", "b"), said("user", "c")]
    second = model_call(2, [system, *asked], "d", "t3")
    assert [words(conversation.items) for conversation in conversations_of([first, title])] == [
        ["a", "b"],
        ["Write a title: a b", "Spades"],
    ]
    assert [words(c.items) for c in conversations_of([first, title, second])] == [
        ["a", "b", "c", "d"],
        ["Write a title: a b", "Spades"],
    ]


def called(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def result_of(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


@pytest.mark.parametrize("later", ["Now 10:15", "Now 10:20"])
def test_requests_of_a_stateless_agent(later: str) -> None:
    """Two requests are no conversation only because their prompts differ in the time.

    Equal prompts are the only sign that a recorder of a stored conversation may leave.
    """
    calls = [
        model_call(0, [said("system", "Now 10:15"), said("user", "Reset my password")], "a", "t1"),
        model_call(1, [said("system", later), said("user", "Cancel order 5")], "b", "t2"),
    ]
    assert len(conversations_of(calls)) == (1 if later == "Now 10:15" else 2)


@pytest.mark.parametrize("later", ["Now 10:15", "Now 10:20"])
def test_stored_conversation_with_a_clock(later: str) -> None:
    """A result that came alone is evidence that the service stores the conversation."""
    first = model_call(0, [said("system", "Now 10:15"), said("user", "weather?")], None, "t1")
    first.answered = [called("c1")]
    calls = [
        first,
        model_call(1, [said("system", later), result_of("c1", "sun")], "sunny", "t1"),
        model_call(2, [said("system", later), said("user", "and tomorrow?")], "rain", "t2"),
    ]
    (conversation,) = conversations_of(calls)
    assert words(conversation.items) == ["weather?", "{}", "sun", "sunny", "and tomorrow?", "rain"]


@pytest.mark.parametrize("system", [[], [said("system", "You know the weather.")]])
def test_title_of_a_stored_conversation(system: list[dict[str, Any]]) -> None:
    """A title call whose input holds an answer does not separate the calls of the agent.

    "rain" was trained without the question before it, and no damage said so.
    """
    first = model_call(0, [*system, said("user", "weather?")], None, "t1")
    first.answered = [called("c1")]
    transcript = [
        said("user", "weather?"),
        said("assistant", "It is sunny."),
        said("user", "Title"),
    ]
    calls = [
        first,
        model_call(1, [*system, result_of("c1", "sun")], "sunny", "t1"),
        model_call(2, [*system, said("user", "and tomorrow?")], "rain", "t2"),
        model_call(3, transcript, "Weather", "t3"),
    ]
    conversation, title = conversations_of(calls)
    assert words(conversation.items) == ["weather?", "{}", "sun", "sunny", "and tomorrow?", "rain"]
    assert words(title.items)[-1] == "Weather"


@pytest.mark.parametrize("has_result", [False, True])
def test_title_beside_an_agent_with_a_prompt(has_result: bool) -> None:
    """Whether an application repeats the conversation is decided for each agent."""
    system = said("system", "You sell spades.")
    transcript = [said("user", "a"), said("assistant", "b"), said("user", "Title")]
    calls = [
        model_call(0, [system, said("user", "a")], "b", "t1"),
        model_call(1, [said("system", "You write titles."), said("user", "x")], "X", "t1"),
        model_call(2, [said("system", "You write titles."), *transcript], "Spades", "t2"),
        model_call(3, [system, said("user", "c")], "d", "t3"),
    ]
    if has_result:
        calls[0].answered = [called("c1")]
        calls[3].prompt = [result_of("c1", "x")]
    assert len(conversations_of(calls)[0].calls) == 2


def test_fork_in_another_trace_of_an_agent_with_changing_prompts() -> None:
    """The application repeats the conversation, although each prompt counts the messages."""
    told = [said("user", "a"), said("assistant", "b"), said("user", "c")]
    calls = [
        model_call(0, [said("system", "1 unread message"), told[0]], "b", "t1"),
        model_call(1, [said("system", "2 unread messages"), *told], "d", "t2"),
        model_call(2, [said("system", "1 unread message"), said("user", "e")], "f", "t3"),
    ]
    assert [words(conversation.items) for conversation in conversations_of(calls)] == [
        ["a", "b", "c", "d"],
        ["e", "f"],
    ]


@pytest.mark.parametrize(("step", "place"), [("c1", 0), ("c2", 1)])
def test_result_of_a_stored_conversation(step: str, place: int) -> None:
    """A result that a service gets alone goes to the conversation with its call."""
    calls = [
        Span(
            name,
            name,
            "model",
            started=START + timedelta(seconds=seconds),
            prompt=[said("system", name), said("user", name)],
            answered=[{"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}],
        )
        for seconds, name in enumerate(("c1", "c2"))
    ]
    result = {"type": "function_call_output", "call_id": step, "output": "x"}
    conversations = conversations_of([*calls, model_call(5, [result], "done", "t3")])
    assert [words(conversation.items)[-1] for conversation in conversations] == [
        "done" if index == place else "{}" for index in range(2)
    ]


def schema(name: str, argument: str = "id") -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@given(st.lists(st.sampled_from(["", "a", "ab", "ba", "abc", "a2"]), min_size=1, max_size=7))
def test_answers_with_other_tools(names: list[str]) -> None:
    """A trained answer was given with exactly the tools of its row, or its call states none.

    The tools of all calls were shown: "I cannot do that", beside the tool that does it.
    """
    told: list[dict[str, Any]] = []
    calls = []
    for step, tool_names in enumerate(names):
        told = [*told, said("user", f"question {step}")]
        call = model_call(step, told, f"answer {step}")
        call.tools = [
            schema(name, "order" if "2" in tool_names else "id") for name in tool_names.strip("2")
        ]
        calls.append(call)
        told = [*told, said("assistant", f"answer {step}")]
    (conversation,) = conversations_of(calls)
    shown = conversation.tools or next((call.tools for call in calls if call.tools), [])
    untrained = 0
    for call, item in zip(
        calls, [item for item in conversation.items if item.role == "assistant"], strict=True
    ):
        fits = sorted(map(repr, call.tools)) == sorted(map(repr, shown))
        assert item.trained == (fits or not call.tools)
        untrained += not item.trained
    assert conversation.skipped["changed_tools"] == untrained
    assert untrained < len(names)


def test_tools_of_another_system_prompt() -> None:
    """Only the answers that are trained choose the tools, so a handoff leaves something to train."""
    first, second = said("system", "You sell."), said("system", "You refund.")
    told = [said("user", "a"), said("assistant", "b"), said("user", "c")]
    more = [*told, said("assistant", "d"), said("user", "e")]
    calls = [
        model_call(0, [first, *told[:1]], "b"),
        model_call(1, [second, *told], "d"),
        model_call(2, [second, *more], "f"),
    ]
    calls[0].tools, calls[1].tools, calls[2].tools = [schema("sell")], [schema("refund")], None
    (conversation,) = conversations_of(calls)
    assert conversation.tools == [schema("refund")]
    assert [item.trained for item in conversation.items if item.role == "assistant"] == [
        False,
        True,
        True,
    ]


def growing(systems: list[str], tools: list[list[Any]] | None = None) -> list[Span]:
    """Model calls of one conversation, with the system prompt and the tools of each call."""
    told: list[dict[str, Any]] = []
    calls = []
    for step, system in enumerate(systems):
        told = [*told, said("user", f"question {step}")]
        calls.append(model_call(step, [said("system", system), *told], f"answer {step}"))
        calls[-1].tools = tools[step] if tools else None
        told = [*told, said("assistant", f"answer {step}")]
    return calls


def trained_in(conversation: Conversation) -> list[bool]:
    return [item.trained for item in conversation.items if item.role == "assistant"]


def test_most_frequent_system_prompt() -> None:
    """One greeting with another prompt left all later answers untrained, and no count said so."""
    systems = ["You greet.", "You sell. 10:15", "You sell. 10:20"]
    (conversation,) = conversations_of(growing(systems))
    assert words(conversation.system) == ["You sell. 10:15"]
    assert trained_in(conversation) == [False, True, True]
    assert conversation.skipped == {"changed_system_prompt": 1, "changed_clock": 1}


def described(text: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "find", "description": text}}


@pytest.mark.parametrize(
    ("texts", "trained"),
    [
        (("Search. Current time: 10:00", "Search. Current time: 10:01"), [True, True]),
        (("Search. At most 5 hits.", "Search. At most 6 hits."), [False, True]),
    ],
)
def test_clock_in_a_tool(texts: tuple[str, str], trained: list[bool]) -> None:
    """Only the last answer was trained if the description of a tool holds the time."""
    (conversation,) = conversations_of(growing(["s", "s"], [[described(text)] for text in texts]))
    assert trained_in(conversation) == trained


def test_tools_that_are_equally_frequent() -> None:
    """The larger set counts: the last call of a run often has no tools but one."""
    larger, smaller = [schema("a"), schema("b")], [schema("a")]
    (conversation,) = conversations_of(growing(["s", "s"], [larger, smaller]))
    assert trained_in(conversation) == [True, False] and conversation.tools == larger


@pytest.mark.parametrize("frequency", [1, 3])
def test_gap_between_tools(frequency: int) -> None:
    """A limit on the number of attributes dropped a tool: the model had it."""
    whole, partial = [schema("a"), schema("b")], [None, schema("b")]
    tools = [whole, *[partial] * frequency]
    (conversation,) = conversations_of(growing(["s"] * len(tools), tools))
    assert conversation.tools == whole and all(trained_in(conversation))
    assert not conversation.skipped


def test_results_of_tool_spans_answer_the_open_calls_by_id_then_by_arguments():
    asked = {
        "role": "assistant",
        "tool_calls": [
            {"id": name, "function": {"name": "f", "arguments": f'{{"x": {name}}}'}}
            for name in "12"
        ],
    }
    (conversation,) = conversations_of(
        [Span("t", "1", "model", started=START, prompt=[said("user", "a")], answered=[asked])]
    )
    assert len(open_calls(conversation.items)) == 2
    tools = [
        Span("t", "a", "tool", name="f", arguments={"x": 2}, output="two"),
        Span("t", "b", "tool", name="other", call_id="1", output="one"),
        Span("t", "c", "tool", name="unseen", arguments={}, output="three"),
    ]
    assert [span.name for span in add_results(conversation, tools)] == ["unseen"]
    assert [(item.call_id, item.text) for item in conversation.items[-2:]] == [
        ("1", "one"),
        ("2", "two"),
    ]


def test_a_result_whose_step_failed_is_an_error_by_the_calls_id_or_by_its_name_and_arguments():
    def called(number: int, arguments: str) -> list[dict[str, Any]]:
        call = {
            "type": "function_call",
            "name": "f",
            "arguments": arguments,
            "call_id": f"c{number}",
        }
        return [call, {"type": "function_call_output", "call_id": f"c{number}", "output": "x"}]

    told = [
        said("user", "go"),
        *called(1, '{"a": 1}'),
        *called(2, '{"a":1}'),
        *called(3, "{}"),
        *called(4, "{}"),
    ]
    (conversation,) = conversations_of([model_call(0, told, "done")])
    spans = [
        Span("t", "1", "tool", name="f", arguments={"a": 1}, error="boom"),
        Span("t", "2", "tool", name="f", arguments={"a": 1}),
    ]
    spans += [Span("t", "3", "tool", name="f", arguments={}, call_id="c4", error="boom")]
    mark_failed(conversation, spans)
    assert [item.failed for item in conversation.items if item.kind == "function_call_output"] == [
        True,
        False,
        False,
        True,
    ]


CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "c1", "function": {"name": "read", "arguments": '{"path": "a"}'}}],
}
TOLD = [said("user", "a?"), CALLED, {"role": "tool", "tool_call_id": "c1", "content": "in Ulm"}]


def tool(**fields: Any) -> Span:
    return Span("t", "tool", "tool", started=START, **fields)


@pytest.mark.parametrize(
    "span",
    [
        tool(name="read", arguments={"path": "a"}, output="again"),
        tool(name="read", output=None),
        tool(name="read", arguments="{'path': 'a'}", output="in Ulm"),
        tool(name="retrieve", arguments={"query": "a"}, output="in Ulm"),
        tool(name="inner", arguments={}, output="x", parent="outer"),
    ],
    ids=[
        "retry",
        "without arguments",
        "arguments of Python",
        "put into the prompt",
        "within a tool",
    ],
)
def test_tool_span_that_shows_nothing_new(span: Span) -> None:
    outer = Span(
        "t", "outer", "tool", name="read", arguments={"path": "a"}, output="in Ulm", started=START
    )
    main, *others = conversations_in([model_call(0, TOLD, "In Ulm."), outer, span])
    assert not main.damage and not others
    assert set(main.skipped) <= set(HARMLESS)


@pytest.mark.parametrize(
    "span",
    [
        tool(name="run", arguments={}, output="17"),
        tool(name="read", arguments={"path": "b"}, output="in Rom"),
    ],
)
def test_tool_span_that_shows_a_call_the_messages_lack(span: Span) -> None:
    """An instrumentation left the call out of the messages: a question, and "17"."""
    main, *_ = conversations_in([model_call(0, TOLD, "In Ulm."), span])
    assert main.damage == {"unread": 1}


def test_model_calls_without_text_between_a_runs_question_and_answer() -> None:
    """What the model was told and said between its calls is not recorded, so the run's root does not say it all."""
    root = Span(
        "t",
        "root",
        "other",
        started=START,
        prompt=[said("user", "a?")],
        answered=[said("assistant", "b")],
    )
    silent = Span("t", "call", "model", started=START, parent="root")
    (conversation,) = conversations_in(
        [root, silent, tool(name="read", arguments={}, output="x", parent="root")]
    )
    assert conversation.damage == {"cut_text": 1} and conversation.skipped == {
        "model_call_without_text": 1
    }
    (conversation,) = conversations_in(
        [root, tool(name="read", arguments={}, output="x", parent="root")]
    )
    assert not conversation.damage and not conversation.skipped


@pytest.mark.parametrize(
    ("first", "later", "is_clock"),
    [
        ("Now: 2026-03-01T10:00:00Z", "Now: 2026-03-02 11:30:01.5+02:00", True),
        ("It is 10:05 on 1.3.2026", "It is 9:05 on 02.03.2026", True),
        ("At 10:05 AM, March 1st, 2026", "At 9 PM, March 22nd, 2026", True),
        ("The year is 2025, 1767225600", "The year is 2026, 1798761600123", True),
        ("今天是2026年3月1日", "今天是2026年11月28日", True),
        ("Balance: 100 EUR", "Balance: 50 EUR", False),
        ("The limit is 2.50", "The limit is 3.50", False),
        ("Order 4711", "Order 4712", False),
        ("Cart: 2 items", "Cart: 12 items", False),
        ("Version 1.2", "Version 1.3", False),
        ("Balance 2000 points", "Balance 1950 points", False),
        ("Version 1.2.3", "Version 1.2.4", False),
        ("Seats 1-2-3", "Seats 1-2-4", False),
        ("You may 5 times ask", "You may 6 times ask", False),
        ("Month: June\n5 items", "Month: June\n6 items", False),
        ("余额100分", "余额90分", False),
        ("Updated 10:15:00, 2000 points", "Updated 10:15:00, 1950 points", False),
        ("Today is May 5, 2024", "Today is May 6", True),
        ("Mon Jun  3 10:15:00 UTC 2024", "Tue Jun  4 09:15:00 UTC 2025", True),
        ("Date: 3/14/2024 3 PM", "Date: 12/31/2025 11 PM", True),
        ("Heute ist der 3. Juni 2024", "Heute ist der 14. März 2025", True),
        ("Nous sommes le 3 août 2024", "Nous sommes le 4 février 2024", True),
        ("Hoy es 3 de junio de 2024", "Hoy es 4 de mayo de 2025", True),
        ("20240603T101500Z", "20240604T091501Z", True),
        ("2024-06-03 10:15 AM", "2024-06-03 9:15 PM", True),
    ],
)
def test_clock_in_a_system_prompt(first: str, later: str, is_clock: bool) -> None:
    """An answer may rest on a number in its prompt ("50 EUR"), and the row has the first prompt."""
    told = [said("user", "a"), said("assistant", "b"), said("user", "c")]
    (conversation,) = conversations_of(
        [
            model_call(0, [said("system", first), told[0]], "b"),
            model_call(1, [said("system", later), *told], "d"),
        ]
    )
    assert conversation.items[-1].trained == is_clock


@pytest.mark.parametrize(
    ("later", "is_trained"),
    [
        ("Today is Friday, 2 May, 11:03 a.m. You sell spades.", True),
        ("Today is Monday, 1 May, 10:02 p.m. You sell shovels.", False),
        ("Today is Monday, 1 May, 10:02 p.m. You sell 3 spades.", False),
    ],
)
def test_answers_under_another_system_prompt_are_not_trained(later: str, is_trained: bool) -> None:
    """The row has the first prompt, so an answer that only another prompt explains teaches to make things up; a clock explains little."""
    first = said("system", "Today is Monday, 1 May, 10:02 p.m. You sell spades.")
    told = [said("user", "a"), said("assistant", "b"), said("user", "c")]
    (conversation,) = conversations_of(
        [model_call(0, [first, told[0]], "b"), model_call(1, [said("system", later), *told], "d")]
    )
    assert [item.trained for item in conversation.items if item.role == "assistant"] == [
        True,
        is_trained,
    ]
    assert conversation.skipped == {"changed_clock" if is_trained else "changed_system_prompt": 1}
