"""Making long conversations fit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.tokenization.truncation import truncate, untrain_turns_without_source
from agent_pipeline_tests.training.world import call

SYSTEM = {"role": "system", "content": "s"}


def length(messages):
    return sum(len(message["content"]) for message in messages)


def exchange(name: str, size: int = 10):
    return [{"role": "user", "content": name}, {"role": "assistant", "content": name * size}]


def test_what_fits_is_left_alone():
    messages = [SYSTEM, *exchange("a")]
    assert truncate(messages, length, 12) is messages


def test_the_oldest_exchanges_go_and_the_system_message_stays():
    messages = [SYSTEM, *exchange("a"), *exchange("b"), *exchange("c")]
    assert truncate(messages, length, 25) == [SYSTEM, *exchange("b"), *exchange("c")]
    assert truncate(messages, length, 22) == [SYSTEM, *exchange("c")]


def test_a_last_exchange_that_does_not_fit_is_given_up():
    assert truncate([SYSTEM, *exchange("a"), *exchange("b", 50)], length, 40) is None


def test_a_greeting_goes_first():
    greeting = {"role": "assistant", "content": "hello"}
    assert truncate([SYSTEM, greeting, *exchange("a")], length, 12) == [SYSTEM, *exchange("a")]


@given(
    st.lists(st.tuples(st.sampled_from("sua"), st.integers(0, 9)), max_size=12), st.integers(0, 60)
)
def test_the_result_fits_and_is_head_plus_tail(parts, limit):
    roles = {"s": "system", "u": "user", "a": "assistant"}
    messages = [{"role": roles[role], "content": "x" * size} for role, size in parts]
    result = truncate(messages, length, limit)
    if result is None:
        assert length(messages) > limit
        return
    assert length(result) <= limit
    head = next(
        (i for i, message in enumerate(messages) if message["role"] != "system"), len(messages)
    )
    tail = result[head:]
    assert result[:head] == messages[:head] and tail == messages[len(messages) - len(tail) :]
    assert len(result) == len(messages) or tail[0]["role"] == "user"


def test_a_call_is_not_trained_where_its_argument_was_cut_away():
    def calling(**arguments):
        return {"role": "assistant", "content": "", "tool_calls": [call("refund", arguments)]}

    cut = [
        {"role": "user", "content": "find my order"},
        {"role": "tool", "content": '{"order": "W-4711"}'},
    ]
    rest = [
        {"role": "user", "content": "refund it, to Kyiv"},
        calling(order="W-4711"),
        calling(city="Kyiv"),
        calling(city="Paris", n=2),
    ]
    weights = [
        message.get("weight", 1)
        for message in untrain_turns_without_source([SYSTEM, *cut, *rest], [SYSTEM, *rest])
    ]
    assert weights == [1, 1, 0, 1, 1], (
        "the order's number is gone, the city is still there, Paris never was"
    )


FOUND = {
    "customer": "Zelenka",
    "total": 4820,
    "price": 48.2,
    "city": "Olomouc",
    "email": "ana@shop.example",
    "due": "2024-05-20",
    "room": "available",
}


def weights_after_cutting(
    answer: str, left: str = "Which one was it?", cut: str = json.dumps(FOUND)
) -> list[int]:
    """The weights of an answer whose source was cut away, and of a later one that repeats it."""
    gone = [
        {"role": "user", "content": "Look it up."},
        {"role": "tool", "content": cut},
        {"role": "assistant", "content": "Found it."},
    ]
    rest = [
        {"role": "user", "content": left},
        {"role": "assistant", "content": answer},
        {"role": "assistant", "content": answer},
    ]
    shorter = untrain_turns_without_source([SYSTEM, *gone, *rest], [SYSTEM, *rest])
    return [message.get("weight", 1) for message in shorter if message["role"] == "assistant"]


@pytest.mark.parametrize(
    "answer",
    [
        "Customer Zelenka, total 4820, from Olomouc.",
        "It was Zelenka.",
        "Zelenka's.",
        "Olomouc",
        "The total is 4,820.",
        "That makes $48.20.",
        "It is due on May 20.",
        "Write to ana@shop.example.",
    ],
)
def test_an_answer_is_not_trained_where_its_values_were_cut_away(answer):
    """To train it would be to train the model to invent a name or a number (NVIDIA-NeMo/Automodel#2366). A later turn may repeat it,
    because the model reads the first one."""
    assert weights_after_cutting(answer) == [0, 1]


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ("Customer Zelenka, total 4820.", "Was it Zelenka, with a total of 4,820?"),
        ("The desk is open.", "Is it open?"),
        ("Found it. Anything else?", "Please."),
        ("The room is available.", "Please."),
        ("I am glad to help, and 3 of us are here.", "Thanks"),
        ("That makes 9,999 for Kyiv.", "9999 for kyiv"),
    ],
)
def test_an_answer_whose_values_are_readable_is_trained(answer, left):
    assert weights_after_cutting(answer, left) == [1, 1]


@pytest.mark.parametrize(
    ("cut", "answer"),
    [
        ('{"客户": "王小明"}', "客户是王小明。"),
        ("My name is zelenka", "Thank you, Zelenka."),
        ("order mia_li_3668 is late", "It is mia_li_3668."),
        ('Result: {"status": "gift_card", "n": 12} (end)', "You paid by gift_card."),
        ("Die Kundin heißt Jana Nováková.", "Die Kundin ist Nováková."),
    ],
)
def test_values_are_found_in_words_and_in_json_of_any_script(cut, answer):
    assert weights_after_cutting(answer, "?", cut) == [0, 1]


@given(st.integers(100, 10**9))
def test_a_number_is_one_value_however_its_thousands_are_written(number):
    assert (
        weights_after_cutting(f"The total is {number:,}.", "?", json.dumps({"total": number}))[0]
        == 0
    )
    assert (
        weights_after_cutting(
            f"The total is {number:,}.", f"Is it {number}?", json.dumps({"total": number})
        )[0]
        == 1
    )


def test_a_value_in_a_tools_schema_has_a_source():
    tool = {
        "type": "function",
        "function": {"name": "pay", "parameters": {"properties": {"by": {"enum": ["gift_card"]}}}},
    }
    gone = [
        {"role": "user", "content": "I pay by gift_card."},
        {"role": "assistant", "content": "Good."},
    ]
    rest = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "You pay by gift_card."},
    ]
    assert untrain_turns_without_source([*gone, *rest], rest, [tool]) == rest
    assert untrain_turns_without_source([*gone, *rest], rest) != rest
