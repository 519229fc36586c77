"""Detection of a file's kind from its first records.

Readers use them to recognize their files.
"""

from functools import lru_cache
from itertools import islice
from pathlib import Path

from agent_pipeline.errors import StoreError
from agent_pipeline.sources.base import unreadable
from agent_pipeline.sources.formats.record_files import Kind, kind_of, records

_PROBED_RECORDS = 20


def sampled(path: Path) -> tuple[Kind | None, list[object]]:
    """Return the kind of a file, and its first records.

    The result is cached, because every reader inspects the same file during detection.

    Raises:
        StoreError: The file cannot be opened.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return _sample(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=8)
def _sample(path: Path, size: int, changed: int) -> tuple[Kind | None, list[object]]:
    """Return the kind of a file, and its first records.

    The list is empty if no record can be read.
    """
    kind = kind_of(path)
    try:
        return kind, [
            record for _, record in islice(records(path, [], kind), _PROBED_RECORDS)
        ] if kind else []
    except StoreError:  # the error is reported when the store is read
        return kind, []
