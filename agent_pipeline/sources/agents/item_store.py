"""Base class of readers for the databases of agent frameworks.

In such a database, a session is a row. Its history is a list of Responses items, one row per item.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from agent_pipeline.errors import StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.session import RecordedItem, Session
from agent_pipeline.sources.base import SEPARATOR, Stored, TraceSource, digest
from agent_pipeline.sources.formats.fields import clean_text, parsed_object
from agent_pipeline.sources.formats.session_fields import new_session

_OF_CONTEXT = {"task_id": "task_id", "trial": "trial", "model_id": "model"}


class SessionRow(NamedTuple):
    """The row of a session in the database.

    `fields` holds further fields of `Session`, such as verdicts from another file.
    """

    session_id: Any
    archived: Any = None
    created_at: Any = None
    context: Any = None
    fields: dict[str, Any] = {}


class ItemStore(TraceSource):
    """A reader of a database with one table row per session and one table row per item.

    A subclass implements `read`. A session's context may hold `task_id`, `trial`, `model` and
    `tools` (OpenAI function schemas); this is a convention of this package.
    """

    @abstractmethod
    def read(self, key: PartitionKey) -> Iterator[tuple[SessionRow, list[Any]]]:
        """Yield each session of a partition with the JSON texts of its conversation items.

        The sessions are ordered by id. The errors are those of `sessions`.
        """

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        for row, texts in self.read(key):
            yield self._session(key, row, texts)

    def stored(self, key: PartitionKey) -> Iterator[Stored]:
        for row, texts in self.read(key):
            yield Stored(_name(row), _digest(row, texts), partial(self._session, key, row, texts))

    def histories(self, key: PartitionKey) -> Iterator[tuple[Session, list[RecordedItem]]]:
        for row, texts in self.read(key):
            yield (
                self._session(key, row, texts),
                [item for text in texts if (item := parsed_object(text)) is not None],
            )

    def _session(self, key: PartitionKey, row: SessionRow, texts: list[Any]) -> Session:
        chat = read_chat(list(map(parsed_object, texts)))
        raw = as_text(row.context)
        context = parsed_object(raw)
        if context is None and raw not in (None, "", "null"):
            chat.damage["invalid_context"] += 1
        context = context or {}
        fields = (
            {"tools": context.pop("tools", None)}
            | {field: context.get(name) for field, name in _OF_CONTEXT.items()}
            | row.fields
        )
        times = {"created_at": as_text(row.created_at), "archived": bool(as_text(row.archived))}
        return new_session(self.name, key, _name(row), chat, context=context, **times, **fields)


def side_by_side(
    rows: Iterable[SessionRow], items: Iterable[tuple[Any, Any]], where: str
) -> Iterator[tuple[SessionRow, list[Any]]]:
    """Yield each session's database row together with the JSON texts of the session's items.

    Rows and items must be ordered by session id, and every item must have a session.

    Raises:
        StoreError: A session occurs twice, or an item is out of order, because an index of the
            database is damaged.
    """
    groups = (
        (owner, [text for _, text in group]) for owner, group in groupby(items, key=itemgetter(0))
    )
    owner, texts = next(groups, (None, []))
    seen: set[object] = set()
    for row in rows:
        if row.session_id in seen:
            raise StoreError(
                f"{where} is damaged (it contains the session {_name(row)} twice): restore it "
                "from a backup."
            )
        seen.add(row.session_id)
        if owner == row.session_id:
            yield row, texts
            owner, texts = next(groups, (None, []))
        else:
            yield row, []
    if owner is not None:
        raise StoreError(
            f"{where} is damaged (its items are not in the order of its sessions): restore it from "
            f"a backup."
        )


def as_text(value: object) -> Any:
    """Decode a bytes value from a database as text. Return a value of any other type unchanged."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _name(row: SessionRow) -> str:
    return clean_text(as_text(row.session_id)) or ""


def _digest(row: SessionRow, texts: list[Any]) -> bytes:
    """Return a hash of all data that a session is built from.

    The ids of the items only define their order and are left out.
    """
    try:
        joined = SEPARATOR.join(texts)
    except TypeError:  # the values are a mix of texts, numbers and nulls
        joined = SEPARATOR.join(
            text if type(text) is bytes else repr(text).encode() for text in texts
        )
    return digest(joined, repr((*row, len(texts))).encode("utf-8", "backslashreplace"))
