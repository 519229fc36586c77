"""Loading and checking of the readers that users write.

A broken reader causes a one-sentence error instead of a stack trace.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from agent_pipeline.errors import PipelineError, SettingsError, StoreError, first_line
from agent_pipeline.keys import PartitionKey
from agent_pipeline.plugins import load_plugin
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.base import TraceSource

GROUP = "agent_pipeline.sources"


@lru_cache(maxsize=8)
def plugin_readers(dotted: tuple[str, ...]) -> tuple[type[TraceSource], ...]:
    """Return the readers that settings (`package.module:Class`) and entry points name.

    Raises:
        SettingsError: A reader cannot be loaded, or lacks a member of `TraceSource`.
    """
    named = [(f"{name!r} (setting sources)", name) for name in dotted]
    installed = [
        (f"{point.value!r} (entry point {point.name} of {GROUP})", point.value)
        for point in entry_points(group=GROUP)
    ]
    return tuple(_guarded(_loaded(what, path), what) for what, path in [*named, *sorted(installed)])


def _loaded(what: str, path: str) -> object:
    """Load a reader and check that it has every member of `TraceSource`."""
    loaded = load_plugin(path, "reader", GROUP)
    if not (isinstance(loaded, type) and issubclass(loaded, TraceSource)):
        raise SettingsError(
            f"The reader {what} is not a subclass of agent_pipeline.sources.TraceSource: derive "
            "the reader from TraceSource."
        )
    missing = sorted(loaded.__abstractmethods__)
    missing += [
        member
        for member in ("name", "looks_like")
        if not isinstance(getattr(loaded, member, None), str)
    ]
    if missing:
        raise SettingsError(
            f"The reader {what} lacks {', '.join(missing)}: implement everything that TraceSource "
            "requires."
        )
    return loaded


def _guarded(reader: Any, what: str) -> type[TraceSource]:
    """Return a subclass of a reader that turns the reader's exceptions into one-sentence errors."""

    @contextmanager
    def sentences(where: object) -> Iterator[None]:
        try:
            yield
        except PipelineError:
            raise
        except Exception as error:
            raise StoreError(
                f"The reader {what} failed on {where} ({type(error).__name__}: "
                f"{first_line(error)}): correct the reader, or remove it."
            ) from error

    class Guarded(reader):
        def __init__(self, where: Path | str) -> None:
            with sentences(where):
                # for a reader that does not call super().__init__
                TraceSource.__init__(self, where)
                super().__init__(where)

        @classmethod
        def detect(cls, path: Path) -> bool:
            with sentences(path):
                return bool(super().detect(path))

        def partitions(self) -> list[PartitionKey]:
            with sentences(self.path):
                return sorted(PartitionKey(*key) for key in super().partitions())

        def sessions(self, key: PartitionKey) -> Iterator[Session]:
            with sentences(self.path):
                for session in super().sessions(key):
                    if not isinstance(session, Session):
                        raise TypeError(
                            f"it returned an object of type {type(session).__name__} "
                            "instead of a Session"
                        )
                    yield session

        def signature(self) -> str:
            with sentences(self.path):
                return str(super().signature())

    Guarded.__name__ = reader.__name__
    return Guarded
