"""How long-running domain functions say how far they are, without knowing who listens.

A domain function takes a `Progress` and calls it as often as it likes; the listener decides what to show. `throttled` is for
listeners to whom a line is dear (a Dagster log line costs tens of milliseconds).
"""

import time
from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""`progress(done, total, text)`: `done` of `total` units of work are finished; `text` says what, in a few words."""


def silent(done: int, total: int, text: str) -> None:
    """A listener for callers who want no progress."""


def duration(seconds: float) -> str:
    """`75` → `1m15s`: durations as a person reads them."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def throttled(emit: Callable[[str], None], every: float = 5.0) -> Progress:
    """A `Progress` that emits at most one line every `every` seconds (the first and last always), with the time left.

    The time left is extrapolated from the time the finished units took; a change of `total` starts a new count.
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
