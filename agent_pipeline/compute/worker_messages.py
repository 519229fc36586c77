"""Messages between a run and its worker on another machine, stored as small files in the lake.

The worker writes its log lines and its result. The run writes signs of life, so that the worker
ends if the run is gone. A worker on the same machine uses Dagster's own files.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from typing import Any

import msgspec
from dagster_pipes import (
    PipesBlobStoreMessageWriter,
    PipesBlobStoreMessageWriterChannel,
    PipesMessageWriter,
    PipesParams,
)
from upath import UPath

from agent_pipeline.keys import parse_key
from agent_pipeline.storage.lake import Lake, put_file, remove
from agent_pipeline.structs import convert_value

BEAT = 60.0
"""Seconds between two signals that a run is alive."""
PATIENCE = 600.0
"""Seconds without a signal from the run after which the worker ends."""
AGAIN = 5.0
"""Seconds between two attempts to write a message."""
ALIVE = "alive"
MESSAGES = "messages"
"""Kind of folder, under the lake's root, that contains the messages."""


class LetterboxAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address to which a remote worker writes its messages.

    Attributes:
        lake: The address of the lake.
        lake_options: Options of the lake's file system.
        asset: The asset that the worker makes.
        partition: The agent's partition, as `project/agent`.
        launch: The id of this start of the worker.
    """

    lake: str
    lake_options: dict[str, Any]
    asset: str
    partition: str
    launch: str

    def open(self) -> "Letterbox":
        """Open the letterbox at this address."""
        lake = Lake(self.lake, options=self.lake_options)
        return Letterbox(lake, self.asset, self.partition, self.launch)


class Letterbox:
    """The message files of one worker.

    Their names begin with a dot, as the names of staged files do.
    """

    def __init__(self, lake: Lake, asset: str, partition: str, launch: str) -> None:
        self.lake, self.launch = lake, launch
        self.folder = lake.folder(MESSAGES, asset, parse_key(partition))

    def put(self, name: str, text: str) -> None:
        """Write a file atomically."""
        with self.lake.fs.staging(self._path(name)) as file:
            file.write_text(text, encoding="utf-8")
            put_file(file, self._path(name))

    def read(self, name: str) -> str | None:
        """Return the text in a file of the letterbox.

        Return None if the file does not exist, or if the lake cannot be reached now.
        """
        path = self._path(name)
        try:
            # On NFS, a file that was opened too early stays missing for a while. A listing is never
            # out of date.
            names = {entry.name for entry in self.folder.iterdir()}
            return path.read_text(encoding="utf-8") if path.name in names else None
        except Exception:  # each file system has its own family of errors
            return None

    def clear(self) -> None:
        """Remove the message files, including the files that killed runs of this partition left."""
        for path in self.lake.fs.files(self.folder):
            remove(path)

    def _path(self, name: str) -> UPath:
        return self.folder / f".{name}-{self.launch}"


def writer(params: PipesParams) -> PipesMessageWriter[Any] | None:
    """Return a writer of the worker's messages into the lake, and watch that the run is alive.

    Return None if the run reads the messages from a file of this machine.
    """
    if "launch" not in params:
        return None
    box = convert_value(dict(params), LetterboxAddress).open()
    threading.Thread(
        target=until_silent, args=(lambda: box.read(ALIVE), _leave), daemon=True
    ).start()
    return _Writer(box)


def until_silent(
    read: Callable[[], str | None],
    then: Callable[[], object],
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Call `then` when the text that `read` returns has not changed for `PATIENCE` seconds.

    Args:
        read: Returns the latest sign of life, or None if it cannot be read now.
        then: Called once.
        sleep: Waits for a number of seconds.
    """
    last, silent = read(), 0.0
    while silent < PATIENCE:
        sleep(BEAT)
        now = read()
        last, silent = (last, silent + BEAT) if now in (last, None) else (now, 0.0)
    then()


def _leave() -> None:
    """End the process immediately, without cleanup."""
    print("The run that started this worker has ended, so the worker ends too.", flush=True)
    os._exit(1)


class _Writer(PipesBlobStoreMessageWriter["_Channel"]):
    """Dagster's message writer, which here writes files into the lake."""

    def __init__(self, box: Letterbox) -> None:
        super().__init__(interval=2)
        self._box = box

    def make_channel(self, params: PipesParams) -> "_Channel":
        return _Channel(self._box, interval=self.interval)


class _Channel(PipesBlobStoreMessageWriterChannel):
    """The message channel of `_Writer`, which repeats a write until it succeeds."""

    def __init__(self, box: Letterbox, interval: float) -> None:
        super().__init__(interval=interval)
        self._box = box

    def upload_messages_chunk(self, payload: StringIO, index: int) -> None:
        text = payload.read()
        while (
            True
        ):  # an error would end the thread that calls this, and with it all messages to come
            with suppress(Exception):  # each file system has its own family of errors
                self._box.put(str(index), text)
                return
            time.sleep(AGAIN)
