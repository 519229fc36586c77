"""A lock for machines that share a bucket. The lock is an object that its holder renews.

A waiting machine measures with its own clock how long the object stays unchanged, so that no clocks
are compared. If a machine dies, its lock becomes free after `DEAD` seconds. A holder that could not
renew its object for that long has lost it. Its process is ended before it can write at the same
time as another holder. Locks among the processes of one machine belong to `Filesystem.lock`.
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

BEAT = 10.0
"""Seconds between two renewals of the lock object."""
DEAD = 60.0
"""Seconds without a renewal after which the lock counts as free."""
LOOK = 1.0
"""Seconds between two checks of a machine that waits for the lock."""


@contextmanager
def lease(
    fs: Filesystem, path: UPath, what: str, waiting: Callable[[], None] | None = None
) -> Iterator[None]:
    """Hold a lock that is stored as an object in a bucket.

    If another machine holds the object, `waiting` is called once, and this machine waits. If there
    is no `waiting`, an error is raised.

    Args:
        fs: the bucket.
        path: the object.
        what: the name of the locked thing, for messages.
        waiting: called once before this machine waits.

    Raises:
        DataError: another machine holds the object, and there is no `waiting`.
    """
    holder = f"process {os.getpid()} on {platform.node()}, {uuid4().hex}, ".encode()
    ended = Event()
    renewed_at = _acquire(fs, path, holder, what, waiting)

    def renew() -> None:
        nonlocal renewed_at
        while not ended.wait(BEAT):
            now = time.monotonic()
            try:
                version = fs.version(path)
                if not fs.read(path).startswith(holder):
                    raise FileExistsError(path.path)
                _write_renewal(fs, path, holder, version)
                renewed_at = now
            except (FileExistsError, FileNotFoundError):  # another machine holds the object
                renewed_at = now - DEAD
                return
            except (
                Exception
            ):  # the bucket does not answer; the errors of different clients have no common class
                pass

    def watch() -> None:
        """End this process if the lock object was not renewed in time.

        A separate thread checks this, because a renewal may hang for minutes.
        """
        while not ended.wait(LOOK):
            if time.monotonic() - renewed_at > DEAD - BEAT:
                print(
                    f"Another machine may work on {what} from now on, because the lock could not "
                    "be "
                    "renewed. This run ends.",
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
        if time.monotonic() - renewed_at < DEAD - BEAT:
            with suppress(Exception):  # if the removal fails, the object becomes free later
                path.fs.rm_file(path.path)


def _acquire(
    fs: Filesystem, path: UPath, holder: bytes, what: str, waiting: Callable[[], None] | None
) -> float:
    """Write the lock object as soon as the lock is free.

    Returns:
        The time (`time.monotonic`) before the object was written.
    """
    version, unchanged_since = fs.version(path), time.monotonic()
    has_called = False
    while True:
        if not version or time.monotonic() - unchanged_since > DEAD:
            began = time.monotonic()
            with suppress(FileExistsError):
                _write_renewal(fs, path, holder, version)
                return began
        elif waiting and not has_called:
            has_called = True
            waiting()
        time.sleep(LOOK)
        new_version = fs.version(path)
        if new_version == version:
            continue
        if version and new_version and waiting is None:
            raise DataError(
                f"A run on another machine is working on {what}: wait until the run ends or "
                "cancel it, then try again."
            )
        version, unchanged_since = new_version, time.monotonic()


def _write_renewal(fs: Filesystem, path: UPath, holder: bytes, over: str) -> None:
    """Renew the lock object, but only if it still has a given version.

    Each renewal has different bytes, so that each has its own version.
    """
    fs.write(path, holder + uuid4().hex.encode(), over=over)
