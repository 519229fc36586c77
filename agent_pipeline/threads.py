"""Work side by side in threads, where it waits for something else than Python: servers, other processes."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")


def side_by_side(iterators: Sequence[Iterator[Item]]) -> list[list[Item]]:
    """The items of each iterator, each of which runs in a thread of its own. An error of one, which is raised, or an interrupt ends all of
    them after the item that they are at."""
    stopped = Event()

    def items(iterator: Iterator[Item]) -> list[Item]:
        found = []
        for item in iterator:
            found.append(item)
            if stopped.is_set():
                break
        return found

    with ThreadPoolExecutor(max(len(iterators), 1)) as threads:
        running = [threads.submit(items, iterator) for iterator in iterators]
        try:
            for each in as_completed(running):
                each.result()
        except BaseException:
            stopped.set()
            raise
    return [each.result() for each in running]
