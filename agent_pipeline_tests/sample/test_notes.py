"""The notes of the shop's agent, in which it compares what it found with the house rules."""

from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sample.shop.agent import compare


@given(st.integers(0, 999), st.integers(0, 999))
def test_comparison(value: int, bound: int) -> None:
    """The last relation is that of the numbers: a wrong note would teach a wrong decision."""
    numbers, _, steps = compare(value, bound, 3).partition(": ")
    assert numbers == f"{value:03d} of {bound:03d}"
    *equal, last = steps.split(", ")
    assert all(step[0] == step[2] and step.endswith(" =") for step in equal)
    relation = {-1: "<", 0: "=", 1: ">"}[(value > bound) - (value < bound)]
    assert last.endswith(f" {relation}")
    if relation == "=":
        assert len(equal) == 2
    else:
        digit, bound_digit, count = int(last[0]), int(last[2]), last.split()[1]
        assert count == "".join(map(str, range(min(digit, bound_digit) + 1)))
        assert (digit < bound_digit) == (relation == "<")


def test_examples() -> None:
    """These are the examples of the docstring."""
    assert compare(25, 10, 2) == "25 of 10: 2-1 01 >"
    assert compare(21, 28, 2) == "21 of 28: 2-2 =, 1-8 01 <"
    assert compare(5, 30, 2) == "05 of 30: 0-3 0 <"
