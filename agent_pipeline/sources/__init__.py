"""One small reader for each kind of session store, behind one interface, found by what a path holds.

A reader turns what its store has into canonical sessions and no more: pairing, repair, schema inference, judging and redaction
are shared, outside this room. To add one of ours: write a class with the members of `TraceSource` and put it into `SOURCES`. A user adds
one without touching this package: an entry point of the group `agent_pipeline.sources`, or `sources = ["package.module:Class"]`.

A store is a path, a URL whose scheme a reader names, or either with a reader's name before it (`openinference:/data/spans.jsonl`), which
skips detection.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from agent_pipeline.errors import StoreError
from agent_pipeline.sources.agents.claude_code import ClaudeCodeSource
from agent_pipeline.sources.agents.codex import CodexSource
from agent_pipeline.sources.agents.omniagents import OmniagentsSource
from agent_pipeline.sources.agents.openai_agents import OpenAIAgentsSource
from agent_pipeline.sources.agents.openai_traces import OpenAITracesSource
from agent_pipeline.sources.agents.postgres import PostgresSource, shown_url
from agent_pipeline.sources.base import TraceSource, unreadable
from agent_pipeline.sources.benchmarks.agentdojo import AgentDojoSource
from agent_pipeline.sources.benchmarks.inspect_ai import InspectSource
from agent_pipeline.sources.benchmarks.omniagents_eval import OmniagentsEvalSource
from agent_pipeline.sources.benchmarks.swe_agent import SWEAgentSource
from agent_pipeline.sources.benchmarks.swink import SwinkSource
from agent_pipeline.sources.benchmarks.tau_bench import TauBenchSource
from agent_pipeline.sources.benchmarks.toolbench import ToolBenchSource
from agent_pipeline.sources.combined import CombinedSource
from agent_pipeline.sources.formats.files import what_it_holds
from agent_pipeline.sources.formats.plain import OpenAIChatSource, ResponsesSource, ShareGPTSource
from agent_pipeline.sources.platforms.langfuse import LangfuseSource
from agent_pipeline.sources.platforms.litellm import LiteLLMSource
from agent_pipeline.sources.platforms.mlflow import MLflowSource
from agent_pipeline.sources.platforms.opentelemetry import OpenInferenceSource, OpenTelemetrySource
from agent_pipeline.sources.plugins import users_readers

Reader = type[TraceSource]

SOURCES: tuple[Reader, ...] = (
    OmniagentsSource,
    PostgresSource,
    OpenAIAgentsSource,
    OpenAITracesSource,
    OpenInferenceSource,
    OpenTelemetrySource,
    LangfuseSource,
    MLflowSource,
    LiteLLMSource,
    ClaudeCodeSource,
    CodexSource,
    SwinkSource,
    OmniagentsEvalSource,
    TauBenchSource,
    AgentDojoSource,
    InspectSource,
    ToolBenchSource,
    SWEAgentSource,
    # The plain forms come last: others' records have messages too.
    OpenAIChatSource,
    ResponsesSource,
    ShareGPTSource,
)
"""Our readers; of two that know a path, the first is taken."""

_NAMED = re.compile(r"([a-z][a-z0-9_]+):(?!//)(.+)", re.DOTALL)


class Location(NamedTuple):
    """Where a store is (a path or a URL), and the reader to force, if any."""

    where: str
    reader: str | None = None

    def __str__(self) -> str:
        where = shown_url(self.where) if self.is_url else self.where
        return f"{self.reader}:{where}" if self.reader else where

    @property
    def is_url(self) -> bool:
        return "://" in self.where


@dataclass
class Found:
    """What lies under a path: stores, files that no reader knows, and what could not be looked at."""

    stores: list[tuple[Path, Reader]] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)
    errors: list[tuple[Path, StoreError]] = field(default_factory=list)


def parse_location(text: str, home: Path | None = None) -> Location:
    """A store as a person writes it; a relative path starts from `home` (default: the working directory).

    `name:path` names a reader, unless a file of exactly that name is there.
    """
    named = _NAMED.fullmatch(text)
    if named and not _is_there(_absolute(text, home)):
        return Location(named[2] if "://" in named[2] else str(_absolute(named[2], home)), named[1])
    return Location(text if "://" in text else str(_absolute(text, home)))


def readers(dotted: Sequence[str] = ()) -> tuple[Reader, ...]:
    """Every reader: the user's (`dotted` from the settings, then entry points) before ours.

    Raises:
        SettingsError: a reader of the user's cannot be loaded, or is none.
    """
    return (*users_readers(tuple(dotted)), *SOURCES)


def open_sources(locations: Sequence[Location], known: Sequence[Reader] = SOURCES) -> TraceSource:
    """One source for all stores.

    Raises:
        StoreError: not one of them can be opened.
    """
    if len(locations) == 1:
        return open_source(locations[0], known)
    return CombinedSource({str(location): _opened(location, known) for location in locations})


def open_source(location: Location | Path, known: Sequence[Reader] = SOURCES) -> TraceSource:
    """The reader for what lies at a place.

    Raises:
        StoreError: there is nothing there, no reader knows it, or it is a folder of several stores: what is read must not change because
            another file was put beside it.
    """
    location = Location(str(location)) if isinstance(location, Path) else location
    if location.is_url:
        return _open_url(location, known)
    path = Path(location.where)
    if location.reader:
        reader = _named(location, known)
    if not _exists(path):
        raise StoreError(f"The session store {path} does not exist: set AGENT_PIPELINE_STORE (or store in pipeline.toml) to one that does.")
    if location.reader:
        return reader(path)
    found = find(path, known)
    if found.stores and found.stores[0][0] == path:
        return found.stores[0][1](path)
    if found.stores:
        some = ", ".join(str(where) for where, _ in found.stores[:5]) + (", ..." if len(found.stores) > 5 else "")
        raise StoreError(
            f"{path} is no session store, but {len(found.stores)} are in it ({some}): name those to read in the setting store."
        )
    if found.errors:
        raise found.errors[0][1]
    forms = "; ".join(f"{reader.name}: {reader.looks_like}" for reader in known)
    held = f", it has {what_it_holds(path)}" if path.is_file() else ""
    raise StoreError(f"{path} holds no session store that a reader knows{held} ({forms}): check AGENT_PIPELINE_STORE.")


def find(path: Path, known: Sequence[Reader] = SOURCES) -> Found:
    """The stores at a path that exists: itself, or those in the folder that it is.

    A folder whose files are of one kind is one store, with the folders in it; in a folder of different things each is its own.
    """
    found = Found()
    if path.is_file():
        _look(path, known, found)
    else:
        _walk(path, known, found)
    sidecars = {each for where, reader in found.stores for each in getattr(reader(where), "sidecars", list)()}
    found.unknown = [each for each in found.unknown if each not in sidecars]
    return found


def _walk(folder: Path, known: Sequence[Reader], found: Found) -> None:
    if whole := next((each for each in known if _whole_folder(each, folder)), None):
        found.stores.append((folder, whole))
        return
    inside = Found()
    try:
        children = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as error:
        found.errors.append((folder, unreadable(folder, error)))
        return
    for child in children:
        if child.is_symlink() and child.is_dir():  # it may lead back here
            inside.unknown.append(child)
        elif child.is_dir():
            _walk(child, known, inside)
        elif not _belongs_to_a_database(child):
            _look(child, known, inside)
    kinds = {reader for _, reader in inside.stores}
    if len(kinds) == 1 and (reader := kinds.pop()).detect(folder):
        inside.stores = [(folder, reader)]
    found.stores += inside.stores
    found.unknown += inside.unknown
    found.errors += inside.errors


def _whole_folder(reader: Reader, folder: Path) -> bool:
    """Whether a reader takes a folder as such, not for the files in it."""
    return bool(getattr(reader, "reads_folders", False)) and reader.detect(folder)


def _look(path: Path, known: Sequence[Reader], found: Found) -> None:
    try:
        reader = next((each for each in known if each.detect(path)), None)
    except StoreError as error:
        found.errors.append((path, error))
        return
    if reader is None:
        found.unknown.append(path)
    else:
        found.stores.append((path, reader))


def _belongs_to_a_database(path: Path) -> bool:
    return path.name.endswith(("-wal", "-shm", "-journal")) and path.with_name(path.name.rpartition("-")[0]).exists()


def _opened(location: Location, known: Sequence[Reader]) -> TraceSource | StoreError:
    try:
        return open_source(location, known)
    except StoreError as error:
        return error


def _named(location: Location, known: Sequence[Reader]) -> Reader:
    """The reader that a location names; raises StoreError."""
    for reader in known:
        if reader.name == location.reader:
            return reader
    names = ", ".join(reader.name for reader in known)
    raise StoreError(f"The store {location} names a reader that does not exist: there are {names} (a path with a colon begins with ./).")


def _open_url(location: Location, known: Sequence[Reader]) -> TraceSource:
    if location.reader:
        return _at_url(_named(location, known), location)
    scheme = location.where.partition("://")[0].lower()
    for reader in known:
        if scheme in getattr(reader, "schemes", ()):
            return _at_url(reader, location)
    schemes = ", ".join(sorted(f"{scheme}://" for reader in known for scheme in getattr(reader, "schemes", ())))
    raise StoreError(f"No reader knows stores at {scheme}://: give a path, or one of {schemes}.")


def _at_url(reader: Reader, location: Location) -> TraceSource:
    return reader(location.where)  # type: ignore[arg-type]  # who names schemes takes URLs: a Path would lose a slash


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a folder above it may not be entered
        raise unreadable(path, error) from error


def _absolute(path: str, home: Path | None) -> Path:
    return ((home or Path.cwd()) / Path(path).expanduser()).resolve()


__all__ = [
    "SOURCES",
    "Location",
    "OmniagentsSource",
    "OpenAIAgentsSource",
    "Reader",
    "TraceSource",
    "find",
    "open_source",
    "open_sources",
    "parse_location",
    "readers",
]
