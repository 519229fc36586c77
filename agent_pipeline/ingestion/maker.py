"""What a table of sessions follows from beside its store: code, libraries, settings, reader."""

import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

from agent_pipeline.ingestion.reading import ReadingOptions
from agent_pipeline.redaction.kinds import LIBRARIES
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.sources.base import TraceSource
from agent_pipeline.storage.lake import sha256_file

_LIBRARIES = ("pyarrow", "msgspec", *LIBRARIES)


def made_by(options: ReadingOptions, source: TraceSource) -> str:
    """What a table follows from beside its store: the code, the settings, and the readers with their versions and their own code."""
    reader = [source.reader_versions(), _reader_code(type(source))]
    return sha256_of([_code(), reader, repr(options)])


@cache
def _reader_code(reader: type) -> list[str]:
    """The hashes of the files that hold a reader's classes, where they are not the package's own (another package's reader)."""
    files = {file for each in reader.__mro__ if (file := getattr(sys.modules.get(each.__module__), "__file__", None))}
    own = str(Path(__file__).parents[1])
    return [sha256_file(Path(file)) for file in sorted(files) if not file.startswith(own) and Path(file).is_file()]


@cache
def _code() -> str:
    """The text of the code that makes the table, and the libraries that decide on its bytes."""
    package = Path(__file__).parents[1]
    rooms = ("ingestion", "redaction", "sessions", "sources", "storage")
    files = [file for room in rooms for file in sorted((package / room).rglob("*.*")) if file.suffix in (".py", ".yaml")]
    return sha256_of([[[path.name, sha256_file(path)] for path in files], [version(name) for name in _LIBRARIES]])
