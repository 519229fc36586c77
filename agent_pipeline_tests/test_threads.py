"""Work side by side in threads."""

from threading import Barrier, Event

import pytest

from agent_pipeline.threads import side_by_side


def test_iterators_run_at_the_same_time_and_keep_their_order():
    both = Barrier(2, timeout=10)

    def items(name: str):
        for number in range(3):
            both.wait()
            yield name, number

    assert side_by_side([items("a"), items("b")]) == [[(name, number) for number in range(3)] for name in "ab"]
    assert side_by_side([]) == []


def test_an_error_of_one_ends_all_after_the_item_that_they_are_at():
    failed, seen = Event(), []

    def endless():
        while True:
            failed.wait(10)
            seen.append(1)
            yield 1

    def fails():
        yield 1
        failed.set()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        side_by_side([endless(), fails()])
    assert seen
