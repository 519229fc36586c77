"""Readers of the user's own: loaded by name, and held to the interface, so that a broken one costs a sentence and not a stack trace."""

from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from agent_pipeline.errors import PipelineError, SettingsError, StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.base import TraceSource

GROUP = "agent_pipeline.sources"

_MEMBERS = ("detect", "partitions", "sessions", "signature")


@lru_cache(maxsize=8)
def users_readers(dotted: tuple[str, ...]) -> tuple[type[TraceSource], ...]:
    """The readers that settings (`package.module:Class`) and entry points name.

    Raises:
        SettingsError: one cannot be loaded, or lacks a member of `TraceSource`.
    """
    named = [(f"{name!r} (setting sources)", name) for name in dotted]
    installed = [(f"{point.value!r} (entry point {point.name} of {GROUP})", point.value) for point in entry_points(group=GROUP)]
    return tuple(_guarded(_loaded(what, path), what) for what, path in [*named, *sorted(installed)])


def _loaded(what: str, path: str) -> Any:
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise SettingsError(f"The reader {what} is not written as package.module:Class.")
    try:
        loaded = getattr(import_module(module), name)
    except Exception as error:  # whatever a stranger's module does when it is imported
        raise SettingsError(f"The reader {what} cannot be loaded ({_short(error)}): mend it, or take it out.") from error
    missing = [member for member in _MEMBERS if not callable(getattr(loaded, member, None))]
    missing += [member for member in ("name", "looks_like") if not isinstance(getattr(loaded, member, None), str)]
    if not isinstance(loaded, type) or missing:
        lacks = f"it lacks {', '.join(missing)}" if missing else "it is no class"
        raise SettingsError(f"The reader {what} cannot be used ({lacks}): give it the members of TraceSource.")
    return loaded


def _guarded(reader: Any, what: str) -> type[TraceSource]:
    """The reader with its own exceptions turned into a sentence."""

    def sentence(where: Any, error: Exception) -> Exception:
        if isinstance(error, PipelineError):
            return error
        return StoreError(f"The reader {what} failed on {where} ({_short(error)}): mend it, or take it out.")

    class Guarded(reader):
        def __init__(self, path: Path) -> None:
            self._where = path
            try:
                super().__init__(path)
            except Exception as error:
                raise sentence(path, error) from error
            if not isinstance(getattr(self, "notes", None), list):
                self.notes: list[str] = []

        @classmethod
        def detect(cls, path: Path) -> bool:
            try:
                return bool(super().detect(path))
            except Exception as error:
                raise sentence(path, error) from error

        def partitions(self) -> list[PartitionKey]:
            try:
                return sorted(PartitionKey(*key) for key in super().partitions())
            except Exception as error:
                raise sentence(self._where, error) from error

        def sessions(self, key: PartitionKey) -> Iterator[Session]:
            try:
                for session in super().sessions(key):
                    if not isinstance(session, Session):
                        raise TypeError(f"it gave a {type(session).__name__}, not a Session")
                    yield session
            except Exception as error:
                raise sentence(self._where, error) from error

        def signature(self) -> str:
            try:
                return str(super().signature())
            except Exception as error:
                raise sentence(self._where, error) from error

    Guarded.__name__ = reader.__name__
    return Guarded


def _short(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
