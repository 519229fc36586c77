"""What a worker on another machine says, and whether the run that asked for it still lives: small files of the lake, which both see."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from typing import Any

from dagster_pipes import (
    PipesBlobStoreMessageWriter,
    PipesBlobStoreMessageWriterChannel,
    PipesMessageWriter,
    PipesParams,
)
from upath import UPath

from agent_pipeline.keys import parse_key
from agent_pipeline.storage.lake import Lake, put_file, remove

BEAT, PATIENCE = 60.0, 600.0
"""Seconds between two signs of a run's life, and without one until its worker ends."""
AGAIN = 5.0
"""Seconds between two tries to write a message; a worker that cannot reach the lake at all ends by the line above."""
ALIVE = "alive"
MESSAGES = "messages"
"""The kind of folder under the lake's root."""


class Letterbox:
    """The files of one launch, named like files that are being staged."""

    def __init__(self, lake: Lake, asset: str, partition: str, launch: str) -> None:
        self.lake, self.launch = lake, launch
        self.folder = lake.folder(MESSAGES, asset, parse_key(partition))

    def put(self, name: str, text: str) -> None:
        """Write a file whole."""
        with self.lake.fs.staging(self._path(name)) as file:
            file.write_text(text, encoding="utf-8")
            put_file(file, self._path(name))

    def read(self, name: str) -> str | None:
        """A file's text; `None` where there is none yet, or the lake cannot be reached now."""
        path = self._path(name)
        try:  # a listing is never out of date on NFS, where a file that was looked for too early stays missing for a while
            return (
                path.read_text(encoding="utf-8")
                if path.name in {each.name for each in self.folder.iterdir()}
                else None
            )
        except Exception:  # each file system has its own family of errors
            return None

    def clear(self) -> None:
        """Remove the files, and those that killed runs left: a run holds its partition."""
        for path in self.lake.fs.files(self.folder):
            remove(path)

    def _path(self, name: str) -> UPath:
        return self.folder / f".{name}-{self.launch}"


def writer(params: PipesParams) -> PipesMessageWriter | None:
    """What writes a worker's messages into the lake; `None` where the run reads them from a file of this machine."""
    if "launch" not in params:
        return None
    box = Letterbox(
        Lake(params["lake"], options=params["lake_options"]),
        params["asset"],
        params["partition"],
        params["launch"],
    )
    threading.Thread(
        target=until_silent, args=(lambda: box.read(ALIVE), _leave), daemon=True
    ).start()
    return _Writer(box)


def until_silent(
    read: Callable[[], str | None],
    then: Callable[[], Any],
    sleep: Callable[[float], Any] = time.sleep,
) -> None:
    """Call `then` once what is read has not changed for so long that the run must be gone."""
    last, silent = read(), 0.0
    while silent < PATIENCE:
        sleep(BEAT)
        now = read()
        last, silent = (last, silent + BEAT) if now in (last, None) else (now, 0.0)
    then()


def _leave() -> None:
    print("The run that asked for this work is gone: the worker ends.", flush=True)
    os._exit(1)


class _Writer(PipesBlobStoreMessageWriter):
    def __init__(self, box: Letterbox) -> None:
        super().__init__(interval=2)
        self._box = box

    def make_channel(self, params: PipesParams) -> "_Channel":
        return _Channel(self._box, interval=self.interval)


class _Channel(PipesBlobStoreMessageWriterChannel):
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
