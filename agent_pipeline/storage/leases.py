"""A lock among the machines that share a bucket: an object that its holder renews, and that is free once it no longer does.

Who waits measures with a clock of its own how long the object stays as it is: no two clocks are compared, and a machine that died holds
nothing for longer than `DEAD` seconds. A holder that was away for longer has lost it, and is ended before it writes beside another.
"""

import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from uuid import uuid4

from upath import UPath

from agent_pipeline.errors import DataError
from agent_pipeline.storage.filesystem import Filesystem

BEAT, DEAD, LOOK = 10.0, 60.0, 1.0
"""Seconds from one renewal to the next, without one until it is free, and between two looks of who waits."""


@contextmanager
def lease(
    fs: Filesystem, path: UPath, what: str, waiting: Callable[[], None] | None = None
) -> Iterator[None]:
    """Hold an object of a bucket. Where another machine holds it, `waiting` is called once and it is waited for; without `waiting` that is
    an error.

    Raises:
        DataError: another machine has renewed it.
    """
    sign = f"process {os.getpid()} on {platform.node()}, {uuid4().hex}, ".encode()
    ended, renewed = Event(), _taken(fs, path, sign, what, waiting)

    def renew() -> None:
        nonlocal renewed
        while not ended.wait(BEAT):
            now = time.monotonic()
            try:
                version = fs.version(path)
                if not fs.read(path).startswith(sign):
                    raise FileExistsError(path.path)
                _renewal(fs, path, sign, version)
                renewed = now
            except (FileExistsError, FileNotFoundError):  # another has it
                renewed = now - DEAD
                return
            except Exception:  # the bucket does not answer: what clients raise then is of no family
                pass

    def watch() -> None:
        """Beside the renewing, which may hang for minutes."""
        while not ended.wait(LOOK):
            if time.monotonic() - renewed > DEAD - BEAT:
                print(
                    f"Another machine may work on {what} from now on: its lock could not be renewed. This run ends.",
                    file=sys.stderr,
                )
                os.kill(os.getpid(), signal.SIGTERM)
                return

    for task in (renew, watch):
        Thread(target=task, name="lease", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        if time.monotonic() - renewed < DEAD - BEAT:
            with suppress(Exception):  # it is free without it, later
                path.fs.rm_file(path.path)


def _taken(
    fs: Filesystem, path: UPath, sign: bytes, what: str, waiting: Callable[[], None] | None
) -> float:
    """When the object was written where it was free, at the earliest."""
    there, since, told = fs.version(path), time.monotonic(), waiting is None
    while True:
        if not there or time.monotonic() - since > DEAD:
            began = time.monotonic()
            with suppress(FileExistsError):
                _renewal(fs, path, sign, there)
                return began
        elif waiting and not told:
            told = True
            waiting()
        time.sleep(LOOK)
        if (now := fs.version(path)) != there:
            if there and now and waiting is None:
                raise DataError(
                    f"A run on another machine is working on {what}: let it end or cancel it, and repeat."
                )
            there, since = now, time.monotonic()


def _renewal(fs: Filesystem, path: UPath, sign: bytes, over: str) -> None:
    """No two have the same bytes, so each has a version of its own."""
    fs.write(path, sign + uuid4().hex.encode(), over=over)
