"""Progress callbacks, with which long-running functions report their progress.

A function takes a `Progress` and calls it as often as it likes. The code that passes the callback
decides what is shown. `throttled` is for listeners that should not get many lines, such as
Dagster's log.
"""

import time
from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""A function `progress(done, total, text)`: `done` of `total` units are finished, and `text` names
the units.
"""


def silent(done: int, total: int, text: str) -> None:
    """Ignore all progress reports."""


def duration(seconds: float) -> str:
    """Return a number of seconds as text for users: 75 as `1m15s`."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def throttled(emit: Callable[[str], None], every: float = 5.0) -> Progress:
    """Return a `Progress` that prints at most one line per `every` seconds, with the time left.

    The first and the last call always emit a line. The time left is extrapolated from the finished
    units. If `total` changes, a new count starts.

    Args:
        emit: Called with each line.
        every: The least number of seconds between two lines.
    """
    state: dict[str, float] = {}

    def progress(done: int, total: int, text: str) -> None:
        now = time.monotonic()
        if state.get("total") != total or done < state.get("done", 0):
            state.clear()
            state.update(total=total, began=now, base=done, last=float("-inf"))
        state["done"] = done
        if now - state["last"] < every and done < total:
            return
        state["last"] = now
        finished = done - state["base"]
        left = (
            f", {duration((now - state['began']) / finished * (total - done))} left"
            if finished and done < total
            else ""
        )
        emit(f"{text}: {done}/{total}{left}")

    return progress
