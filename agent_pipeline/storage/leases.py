"""A lock among the machines that share a bucket: an object that its holder renews, and that is free once it no longer does.

Who waits measures with a clock of its own how long the object stays as it is: no two clocks are compared, and a machine that died holds
nothing for longer than `DEAD` seconds. A holder that was away for longer has lost it, and is ended before it writes beside another.
"""

import os
import platform
import signal
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
def lease(fs: Filesystem, path: UPath, what: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an object of a bucket. Where another machine holds it, `waiting` is called once and it is waited for; without `waiting` that is
    an error.

    Raises:
        DataError: another machine has renewed it.
    """
    ended, version, renewed = Event(), _taken(fs, path, what, waiting), time.monotonic()

    def renew() -> None:
        nonlocal version, renewed
        while not ended.wait(BEAT):
            content, now = _sign(), time.monotonic()
            try:
                version, renewed = fs.write(path, content, over=version), now
            except FileExistsError:  # another has it, or the answer to our own write was lost
                ours = path.exists() and path.read_bytes() == content
                version, renewed = (fs.version(path), now) if ours else ("", now - DEAD)
            except OSError:  # the bucket does not answer
                pass
            if now - renewed > DEAD - BEAT:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if time.monotonic() - renewed < DEAD - BEAT:
            with suppress(OSError):
                path.fs.rm_file(path.path)


def _taken(fs: Filesystem, path: UPath, what: str, waiting: Callable[[], None] | None) -> str:
    """The version of the object when it is ours."""
    there, since, told = fs.version(path), time.monotonic(), waiting is None
    while True:
        if not there or time.monotonic() - since > DEAD:
            with suppress(FileExistsError):
                return fs.write(path, _sign(), over=there)
        elif waiting and not told:
            told = True
            waiting()
        time.sleep(LOOK)
        if (now := fs.version(path)) != there:
            if there and now and waiting is None:
                raise DataError(f"A run on another machine is working on {what}: let it end or cancel it, and repeat.")
            there, since = now, time.monotonic()


def _sign() -> bytes:
    return f"process {os.getpid()} on {platform.node()}, {uuid4().hex}".encode()
