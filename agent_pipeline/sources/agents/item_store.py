"""Base of the readers of agent frameworks' databases.

In such a database, a session is a row, and its history is Responses items, one row per item.
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
    """A session's row as its database holds it.

    `fields` are further fields of `Session`: verdicts that lie elsewhere.
    """

    session_id: Any
    archived: Any = None
    created_at: Any = None
    context: Any = None
    fields: dict[str, Any] = {}


class ItemStore(TraceSource):
    """A reader of such a database; `read` returns the rows.

    A session's context may hold `task_id`, `trial`, `model` and `tools` (OpenAI function schemas).
    This is a convention of this package.
    """

    @abstractmethod
    def read(self, key: PartitionKey) -> Iterator[tuple[SessionRow, list[Any]]]:
        """Yield every session of a partition with the JSON texts of its items, ordered by id.

        Raises what `sessions` raises.
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
    """Yield each session's row with the texts of its items.

    Rows and items come in the order of session ids, and every item has its session.

    Raises:
        StoreError: a session comes twice, or an item is not in its place: a damaged index led
        there.
    """
    groups = (
        (owner, [text for _, text in group]) for owner, group in groupby(items, key=itemgetter(0))
    )
    owner, texts = next(groups, (None, []))
    seen: set[Any] = set()
    for row in rows:
        if row.session_id in seen:
            raise StoreError(
                f"{where} is damaged (it gives the session {_name(row)} twice): restore it from a "
                f"backup."
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
    """Return a database's bytes as text."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _name(row: SessionRow) -> str:
    return clean_text(as_text(row.session_id)) or ""


def _digest(row: SessionRow, texts: list[Any]) -> bytes:
    """Return a hash of everything that a session is read from.

    The ids of its items only define their order and are left out.
    """
    try:
        joined = SEPARATOR.join(texts)
    except TypeError:  # text, numbers, nulls
        joined = SEPARATOR.join(
            text if type(text) is bytes else repr(text).encode() for text in texts
        )
    return digest(joined, repr((*row, len(texts))).encode("utf-8", "backslashreplace"))
