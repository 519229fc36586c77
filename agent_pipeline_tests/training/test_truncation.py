"""Making long conversations fit."""

from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.training.truncation import truncate, untrain_calls_without_source
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


@given(st.lists(st.tuples(st.sampled_from("sua"), st.integers(0, 9)), max_size=12), st.integers(0, 60))
def test_the_result_fits_and_is_head_plus_tail(parts, limit):
    roles = {"s": "system", "u": "user", "a": "assistant"}
    messages = [{"role": roles[role], "content": "x" * size} for role, size in parts]
    result = truncate(messages, length, limit)
    if result is None:
        assert length(messages) > limit
        return
    assert length(result) <= limit
    head = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    tail = result[head:]
    assert result[:head] == messages[:head] and tail == messages[len(messages) - len(tail) :]
    assert len(result) == len(messages) or tail[0]["role"] == "user"


def test_a_call_is_not_trained_where_its_argument_was_cut_away():
    def calling(**arguments):
        return {"role": "assistant", "content": "", "tool_calls": [call("refund", arguments)]}

    cut = [{"role": "user", "content": "find my order"}, {"role": "tool", "content": '{"order": "W-4711"}'}]
    rest = [{"role": "user", "content": "refund it, to Kyiv"}, calling(order="W-4711"), calling(city="Kyiv"), calling(city="Paris", n=2)]
    weights = [message.get("weight", 1) for message in untrain_calls_without_source([SYSTEM, *cut, *rest], [SYSTEM, *rest])]
    assert weights == [1, 1, 0, 1, 1], "the order's number is gone, the city is still there, Paris never was"
