"""A lock among the machines that share a bucket: an object that its holder renews.

A machine that waits measures with its own clock how long the object stays unchanged, so that no two
clocks are compared. A machine that died holds nothing for longer than `DEAD` seconds. A holder that
did not renew its object for that long has lost it, and is ended before it writes at the same time
as another.

Locks among the processes of one machine do not belong here (`Filesystem.lock`).
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
"""Seconds between two renewals."""
DEAD = 60.0
"""Seconds without a renewal after which the object is free."""
LOOK = 1.0
"""Seconds between two looks of a machine that waits."""


@contextmanager
def lease(
    fs: Filesystem, path: UPath, what: str, waiting: Callable[[], None] | None = None
) -> Iterator[None]:
    """Hold an object of a bucket.

    If another machine holds the object, call `waiting` once and wait. Without `waiting`, that is an
    error.

    Args:
        fs: the bucket.
        path: the object.
        what: what the object locks, for messages.
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
            except (FileExistsError, FileNotFoundError):  # another machine has it
                renewed_at = now - DEAD
                return
            except (
                Exception
            ):  # the bucket does not answer; the errors of clients have no common class
                pass

    def watch() -> None:
        """End this process if the object was not renewed. A renewal may hang for minutes."""
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
            with suppress(Exception):  # without the removal, the object is free later
                path.fs.rm_file(path.path)


def _acquire(
    fs: Filesystem, path: UPath, holder: bytes, what: str, waiting: Callable[[], None] | None
) -> float:
    """Write the object as soon as it is free.

    Return the time (`time.monotonic`) before it was written.
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
                f"A run on another machine is working on {what}: let it end or cancel it, and "
                "repeat."
            )
        version, unchanged_since = new_version, time.monotonic()


def _write_renewal(fs: Filesystem, path: UPath, holder: bytes, over: str) -> None:
    """Write the object over a version of it.

    No two renewals have the same bytes, so that each has its own version.
    """
    fs.write(path, holder + uuid4().hex.encode(), over=over)
