"""Whether two sessions have the same conversation: the ids of calls do not count, their order does."""

from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.judging.repetitions import hash_beginnings, hash_without_call_ids
from agent_pipeline.sessions.session import Message
from agent_pipeline_tests.datasets.chats import answers, calls, says, user

TURNS = st.lists(st.permutations(range(3)), min_size=1, max_size=3)
"""For every turn with three parallel calls, the order in which their results arrive."""

NAMES = st.lists(
    st.sampled_from(
        [["call_0", "call_1", "call_2"], ["call_1", "call_2", "call_0"], ["x", "", "call_1"]]
    ),
    min_size=3,
    max_size=3,
)
"""For every turn, the ids of its calls. An id may occur in several turns."""


def run_of(turns: list[list[int]], names: list[list[str]]) -> list[Message]:
    messages = [user("Hi")]
    for order, ids in zip(turns, names, strict=False):
        messages.append(calls(*((id_, "get", {}) for id_ in ids)))
        messages += [
            answers(ids[position], f"result {step}") for step, position in enumerate(order)
        ]
    return [*messages, says("Done.")]


def hash_both(messages: list[Message]) -> tuple[str, int]:
    return hash_without_call_ids(messages, []), hash_beginnings(messages)[-1]


@given(TURNS, NAMES, NAMES)
def test_renamed_ids(turns: list[list[int]], first: list[list[str]], second: list[list[str]]):
    assert hash_both(run_of(turns, first)) == hash_both(run_of(turns, second))


@given(TURNS, NAMES, st.data())
def test_swapped_results(turns: list[list[int]], names: list[list[str]], data: st.DataObject):
    """A counter that a reused id does not raise gives both calls of a turn the same number."""
    turn = data.draw(st.integers(0, len(turns) - 1))
    left, right = data.draw(st.permutations(range(3)))[:2]
    swapped = [list(order) for order in turns]
    swapped[turn][left], swapped[turn][right] = swapped[turn][right], swapped[turn][left]
    straight, crossed = hash_both(run_of(turns, names)), hash_both(run_of(swapped, names))
    assert straight[0] != crossed[0] and straight[1] != crossed[1]
