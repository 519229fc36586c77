"""Access to running servers of tracing platforms, which are read as stores of records.

A listing pages through everything that a server states about its traces except their content. It is
made once for each source that is opened; a trace is fetched when it is read. If a request fails,
reading stops with an error, so that half of a server is never taken for all of it. Nothing is
written to a server.
"""

import logging
import sqlite3
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from agent_pipeline.errors import StoreError, first_line
from agent_pipeline.sources.base import digest
from agent_pipeline.sources.formats.fields import Record, parsed
from agent_pipeline.sources.formats.limits import (
    TooLargeError,
    check_json,
    largest_record,
    longest_line,
)
from agent_pipeline.sources.formats.record_files import RecordLocation

SECONDS = 60.0
"""Timeout of a request in seconds, and the longest wait if a server asks for a delay."""
_STEP = 1 << 20
"""Number of bytes of a server's answer that are read and unpacked at a time."""
_LONGEST_REASON = 2_000
"""Number of bytes of an error's text that are examined."""
RETRIES = 5
"""Maximum number of times that a request is sent again after the status 429 (too many requests)."""


class ServerError(StoreError):
    """Raised if a server cannot be reached, refuses a request, or gives an unusable answer."""


class AnswerTooLargeError(ServerError):
    """Raised if a server's answer needs more memory than the settings allow.

    Attributes:
        path: The path that was requested.
        needed: Memory in bytes that the answer would need, at least.
        allowed: Memory in bytes that it may need.
    """

    def __init__(self, server: str, path: str, error: TooLargeError) -> None:
        self.path, self.needed, self.allowed = path, error.needed, error.allowed
        super().__init__(f"{server} sent an answer that is too large ({path}): {error}.")


class Head(NamedTuple):
    """The identity of a trace, as the server's list of traces states it.

    `digest` changes if anything changes that the server states about the trace. `listed` holds the
    data that is needed to fetch the trace.
    """

    project: str
    trace: str
    digest: bytes
    listed: Record


class Service(ABC):
    """A server at `platform+http://host:port`.

    The address may end in `?project=name` to read only this project; the parameter may be repeated.
    Every method that sends a request can raise ServerError.
    """

    project: ClassVar[str] = "project"
    """The word that the platform uses for a project."""
    variables: ClassVar[str]
    """Environment variables that contain the credentials, as the platform's own client names them.
    """

    def __init__(self, address: str) -> None:
        url = urlsplit(address.partition("+")[2])
        query = parse_qs(url.query)
        self.host = url.netloc.rpartition("@")[2]
        self.memory = Memory()
        self._wanted = set(query.pop(self.project, ()))
        self._url = url._replace(query="", fragment="").geturl().rstrip("/")
        self._called = f"The server {url.scheme}://{self.host}"
        if query:
            raise ServerError(
                f"{self._called} has the query {', '.join(query)}: end its address in the setting "
                f"`store` with ?{self.project}=name, or without a query."
            )

    @abstractmethod
    def login(self) -> Record:
        """Return the credentials from the environment variables, as arguments of httpx's client."""

    @abstractmethod
    def projects(self) -> Iterator[tuple[str, str]]:
        """Yield the id and the name of every project."""

    @abstractmethod
    def look(self, project: str, name: str) -> Iterator[Head]:
        """Yield the traces of a project without their contents."""

    @abstractmethod
    def outlines(self, heads: list[Head]) -> Iterator[Record]:
        """Yield a record per trace that names the trace's session.

        The record may lack all other fields.
        """

    @abstractmethod
    def fetched(self, head: Head) -> Record:
        """Fetch a trace from the server as a record."""

    @cached_property
    def heads(self) -> dict[Path, list[Head]]:
        """Return the traces of the server as its listing states them, by project.

        If two pages list the same trace, because a trace was added in the meantime, it counts once.
        """
        names = {name: project for project, name in self.projects()}
        if unknown := self._wanted - names.keys():
            known = ", ".join(sorted(names)) or "none"
            raise ServerError(
                f"{self._called} has no {self.project} {', '.join(sorted(unknown))}: it has "
                f"{known}."
            )
        heads_by_project = {
            names[name]: {head.trace: head for head in self.look(names[name], name)}
            for name in sorted(self._wanted or names)
        }
        self.memory.keep({trace for traces in heads_by_project.values() for trace in traces})
        return {
            Path(project): list(traces.values())
            for project, traces in heads_by_project.items()
            if traces
        }

    def signature(self) -> str:
        """Return a text that changes whenever the server's listing of traces changes."""
        return digest(
            b"", *(trace.digest for traces in self.heads.values() for trace in traces)
        ).hex()

    def digest_of(self, locations: Iterable[RecordLocation]) -> bytes:
        """Return one digest for the listed traces at the given locations."""
        return digest(
            b"",
            *(
                self.heads[path][index].digest
                for path, index in dict.fromkeys(location[:2] for location in locations)
            ),
        )

    def records(self, path: Path) -> Iterator[tuple[RecordLocation, Record]]:
        """Return an outline of every trace of a project, with its location."""
        return (
            (RecordLocation(path, index), record)
            for index, record in enumerate(self.outlines(self.heads[path]))
        )

    def record(self, location: RecordLocation) -> Record:
        """Fetch the record at a location from the server."""
        return self.fetched(self.heads[location.path][location.position])

    def use_cache(self, folder: Path, versions: dict[str, int]) -> None:
        """Use a local folder as a cache of what was read from the server.

        Each combination of reader versions uses its own file.
        """
        what = repr([self._url, sorted(self._wanted), sorted(versions.items())])
        file = folder / f"{digest(what.encode()).hex()}.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.memory = Memory(file)
        except (OSError, sqlite3.Error):  # the next source creates a damaged file again
            with suppress(OSError):
                file.unlink()

    def pages(
        self, path: str, items: str, about: Record, cursor: str = "cursor", method: str = "GET"
    ) -> Iterator[Record]:
        """Yield the items on all pages of a server's answer.

        Args:
            path: The path of the request.
            items: The field of a page that holds its items.
            about: The parameters of the request.
            cursor: Name of the parameter that requests the next page.
            method: The HTTP method.
        """
        token: object = None
        while True:
            page = self.asked(path, about | ({cursor: token} if token else {}), method)
            page_items = page.get(items, None if page else [])  # MLflow leaves out empty fields
            if not isinstance(page_items, list) or not all(
                isinstance(item, dict) for item in page_items
            ):
                raise self._useless(path, f"{items} is not a list of objects")
            yield from page_items
            before, token = token, self.following(page, cursor)
            if not token:
                return
            if token == before:
                raise self._useless(path, "the next page is the same page")

    def following(self, page: Record, cursor: str) -> object:
        """Return the token that requests the page after the given page."""
        return page.get(f"next_{cursor}")

    def asked(self, path: str, about: Record, method: str = "GET") -> Record:
        """Send a request, and return the JSON object in the server's answer."""
        import httpx2

        what = {"params": about} if method == "GET" else {"json": about}
        try:
            for attempt in range(RETRIES + 1):
                with self._client.stream(method, self._url + path, **what) as response:
                    content = _read_answer(response)
                if response.status_code != httpx2.codes.TOO_MANY_REQUESTS or attempt == RETRIES:
                    break
                after = response.headers.get("Retry-After", "")
                time.sleep(min(int(after) if after.isdecimal() else 1, SECONDS))
            value = parsed(content) if response.is_success else None
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            why = first_line(error)
            raise ServerError(
                f"{self._called} cannot be reached ({why}): start the server, or correct its "
                "address in the setting `store`."
            ) from error
        except TooLargeError as error:
            raise AnswerTooLargeError(self._called, path, error) from error
        except ValueError as error:
            raise self._useless(path, "it is not JSON") from error
        if response.status_code in (401, 403):
            raise ServerError(
                f"{self._called} refuses access ({response.status_code}): set {self.variables}."
            )
        if not isinstance(value, dict):
            problem = "it is not an object"
            if not response.is_success:
                text = content[:_LONGEST_REASON].decode("utf-8", "replace")
                problem = f"{response.status_code} {first_line(Exception(text))}"
            raise self._useless(path, problem)
        return value

    def lost(self) -> ServerError:
        """Return the error for a trace that lacks spans which the server's listing named."""
        return ServerError(
            f"{self._called} lost spans while it was being read: start the run again."
        )

    def _useless(self, path: str, why: str) -> ServerError:
        """Return the error for a server's answer that cannot be used."""
        return ServerError(
            f"{self._called} sent an answer that cannot be used ({path}, {why}): repair the "
            "server, or correct its address in the setting `store`."
        )

    @cached_property
    def _client(self) -> Any:
        import httpx2

        logging.getLogger("httpx2").setLevel(
            logging.WARNING
        )  # one log line per request would hide the log of the run itself
        login = self.login()
        headers = login.pop("headers", {}) | {"Accept-Encoding": "gzip"}
        return httpx2.Client(
            **login,
            headers=headers,
            timeout=SECONDS,
            transport=httpx2.HTTPTransport(retries=2),
        )


def _read_answer(response: Any) -> bytes:
    """Return the body of an answer, unpacked step by step.

    A few kilobytes of gzip may hold gigabytes. Encodings other than gzip are not requested.

    Raises:
        TooLargeError: The answer needs more memory than one record may need.
        ValueError: The answer is damaged, or has another encoding.
    """
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise ValueError(f"its encoding is {encoding}")
    unpacker = None if encoding == "identity" else zlib.decompressobj(zlib.MAX_WBITS | 32)
    parts: list[bytes] = []
    size = 0
    for packed in response.iter_raw(_STEP):
        while packed:
            try:
                part = unpacker.decompress(packed, _STEP) if unpacker else packed
            except zlib.error as error:
                raise ValueError("its compression differs from its header") from error
            packed = unpacker.unconsumed_tail if unpacker else b""
            size += len(part)
            if size > longest_line():
                raise TooLargeError(2 * size, largest_record())
            parts.append(part)
    if unpacker and parts and not unpacker.eof:
        raise ValueError("it is cut off")
    content = b"".join(parts)
    parts.clear()
    # the size on the wire does not count, because a server may compress without limit
    check_json(content, bytes_on_disk=0)
    return content


class Memory:
    """A cache of the ids that were read from a server, by name and digest.

    The cache holds no content of conversations. An id that is not in the cache is read from the
    server again.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._connection = sqlite3.connect(file or ":memory:")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS known (name TEXT PRIMARY KEY, digest BLOB, ids TEXT) "
            "WITHOUT ROWID"
        )

    def get(self, name: str, digest: bytes) -> Any:
        """Return the ids that are stored for a name and a digest, or None."""
        with suppress(sqlite3.Error):
            for (ids,) in self._connection.execute(
                "SELECT ids FROM known WHERE name = ? AND digest = ?", (name, digest)
            ):
                return msgspec.json.decode(ids)
        return None

    def put(self, rows: Iterable[tuple[str, bytes, object]]) -> None:
        """Store the ids for a name, and replace the ids that were stored for it earlier."""
        texts = [(name, digest, msgspec.json.encode(ids).decode()) for name, digest, ids in rows]
        with suppress(sqlite3.Error), self._connection:
            self._connection.executemany("REPLACE INTO known VALUES (?, ?, ?)", texts)

    def keep(self, traces: set[str]) -> None:
        """Remove the traces from the cache that the server no longer has."""
        with suppress(sqlite3.Error), self._connection:
            known = self._connection.execute(
                "SELECT name FROM known WHERE name LIKE 'trace %'"
            ).fetchall()
            self._connection.executemany(
                "DELETE FROM known WHERE name = ?",
                [row for row in known if row[0][6:] not in traces],
            )
