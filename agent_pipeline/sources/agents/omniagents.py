"""The omniagents session store: `<home>/sessions/<project>/<agent>/sessions.db`, verdicts in `<home>/traces/<project>.db`.

`OMNIAGENTS_HOME` moves the tree, `OMNIAGENTS_HISTORY_DB` names one `sessions.db`; either may be given as the store. Read-only, in one
snapshot, while the agent may be writing (WAL). Our own convention on top: a session's `context_json` may carry `task_id`, `trial`, `model`
and `tools` (OpenAI function schemas).
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.keys import PartitionKey, make_key
from agent_pipeline.sessions.items import Item, mended_unicode, texts_to_messages
from agent_pipeline.sessions.session import Session, Tool
from agent_pipeline.sources.base import (
    BETWEEN,
    add_note,
    clean_text,
    columns,
    digest,
    file_signature,
    is_sqlite,
    parsed_object,
    read_only,
    unreadable,
)
from agent_pipeline.sources.formats.fields import when

# Two ordered passes side by side, over the sessions and over their items, not a query a session. Sessions without items come too (empty).
_SESSIONS = "SELECT session_id, archived, created_at, context_json FROM sessions WHERE session_id IS NOT NULL ORDER BY session_id"
_ITEMS = "SELECT session_id, msg_json FROM history{only} ORDER BY session_id, id"
_ONLY_OF_SESSIONS = " WHERE session_id IN (SELECT session_id FROM sessions)"

_ORPHANS = "SELECT count(*) FROM history AS h WHERE NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = h.session_id)"

_DEFAULT = "default"
_SESSIONS_COLUMNS = {"session_id", "archived", "created_at", "context_json"}


class OmniagentsSource:
    """An omniagents home directory, or one database of it."""

    name: ClassVar[str] = "omniagents"
    looks_like: ClassVar[str] = "a folder with sessions/<project>/<agent>/sessions.db, or one sessions.db"
    reads_folders: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self.home = path
        self.notes: list[str] = []

    @classmethod
    def detect(cls, path: Path) -> bool:
        if not path.is_file():
            return (path / "sessions").is_dir() and cls._is_home(path)
        if not is_sqlite(path):
            return False
        with read_only(path) as connection:
            return columns(connection, "sessions") >= _SESSIONS_COLUMNS and "msg_json" in columns(connection, "history")

    @classmethod
    def _is_home(cls, path: Path) -> bool:
        """Others keep their files under `sessions` too; a home without any session yet has none there."""
        try:
            return bool(cls(path)._session_files()) or not any(each.is_file() for each in (path / "sessions").rglob("*"))
        except (StoreError, OSError):  # who reads it will say what is wrong
            return True

    def partitions(self) -> list[PartitionKey]:
        return sorted(self._databases())

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        for _, _, build in self.stored(key):
            yield build()

    def stored(self, key: PartitionKey) -> Iterator[tuple[str, bytes, Callable[[], Session]]]:
        """Every session's id, a hash of its rows and its verdict, and what reads it; raises what `sessions` raises."""
        for session_id, head, texts, judgment in self._read(key):
            yield clean_text(session_id) or "", _digest(head, texts, judgment), partial(_stored, key, session_id, head, texts, judgment)

    def histories(self, key: PartitionKey) -> Iterator[tuple[Session, list[Item]]]:
        """Every session with its items as they are recorded, without those that are no JSON object; raises what `sessions` raises."""
        for session_id, head, texts, judgment in self._read(key):
            items = [item for text in texts if (item := parsed_object(text)) is not None]
            yield _stored(key, session_id, head, texts, judgment), items

    def _read(self, key: PartitionKey) -> Iterator[tuple[str, tuple[Any, ...], list[Any], str | None]]:
        """Every session's id, its row, its items' texts and its verdict."""
        databases = self._databases()
        if key not in databases:
            known = ", ".join(map(str, sorted(databases))) or "none"
            raise PartitionError(f"The store {self.home} has no partition {key}: it has {known}.")
        path = databases[key]
        judgments = self._judgments(path)
        with read_only(path) as connection:
            if not columns(connection, "sessions") >= _SESSIONS_COLUMNS:
                raise StoreError(f"{path} has no omniagents table 'sessions': it is some other program's database.")
            if orphans := connection.execute(_ORPHANS).fetchone()[0]:
                add_note(self.notes, f"{path}: {orphans} history items belong to no session and were left out.")
            connection.text_factory = bytes  # most of it is decoded as JSON, or by nobody
            items = connection.execute(_ITEMS.format(only=_ONLY_OF_SESSIONS if orphans else ""))
            for session_id, head, texts in _side_by_side(connection.execute(_SESSIONS), items, str(path)):
                yield session_id, head, texts, judgments.get(session_id)

    def signature(self) -> str:
        verdicts = [self._verdicts(self.home)] if self.home.is_file() else sorted((self.home / "traces").glob("*.db"))
        return file_signature(*(path for _, path in sorted(self._databases().items())), *verdicts)

    def _databases(self) -> dict[PartitionKey, Path]:
        if self.home.is_file():
            return {self._key_of_file(): self.home}
        found: dict[PartitionKey, Path] = {}
        for path in self._session_files():
            try:
                key = make_key(path.parent.parent.name, path.parent.name)
            except PartitionError as error:  # a stray folder must not keep all agents from their night
                add_note(self.notes, f"{path.parent} was left out: {error}")
                continue
            if key in found:
                raise StoreError(f"{found[key].parent} and {path.parent} are both the partition {key}: rename one of them.")
            found[key] = path
        return found

    def _key_of_file(self) -> PartitionKey:
        """Project and agent of one database: its folders' names where it lies in such a tree, else the file's name."""
        path = self.home.resolve()
        if path.parent.parent.parent.name == "sessions":
            return make_key(path.parent.parent.name, path.parent.name)
        return make_key(path.stem, _DEFAULT)

    def _session_files(self) -> list[Path]:
        """Every `sessions.db`; walked by hand, since `glob` passes over a folder that it may not read without a word."""
        try:
            projects = sorted(path for path in (self.home / "sessions").iterdir() if path.is_dir())
            agents = [path for project in projects for path in sorted(project.iterdir()) if path.is_dir()]
            return [path / "sessions.db" for path in agents if (path / "sessions.db").exists()]
        except OSError as error:
            raise unreadable(self.home / "sessions", error) from error

    def _verdicts(self, database: Path) -> Path:
        """`<home>/traces/<project>.db` beside the tree that a database is in."""
        project = database.resolve().parent.parent
        return project.parent.parent / "traces" / f"{project.name}.db"

    def _judgments(self, database: Path) -> dict[str, str | None]:
        """Session id → judgment, the last row of an id deciding; empty, with a note that says so, where there are none to read."""
        path = self._verdicts(database)
        project = path.stem
        if not path.exists():
            add_note(self.notes, f"There is no verdict file {path}: no session of {project} is judged.")
            return {}
        with read_only(path) as connection:
            if not {"group_id", "judgment"} <= columns(connection, "analysis"):
                add_note(self.notes, f"{path} has no table analysis(group_id, judgment): no session of {project} is judged.")
                return {}
            return {str(group): clean_text(judgment) for group, judgment in _analysis(connection)}


def _analysis(connection: sqlite3.Connection) -> Iterator[tuple[object, object]]:
    yield from connection.execute("SELECT group_id, judgment FROM analysis ORDER BY rowid")


def by_session(rows: Iterable[tuple[Any, ...]], where: str) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """The rows of each session, whose id each row begins with.

    Raises:
        StoreError: a session comes twice: a damaged index led to it again.
    """
    seen: set[str] = set()
    for raw, group in groupby(rows, key=itemgetter(0)):
        session_id = str(_decoded(raw))
        if session_id in seen:
            raise StoreError(f"{where} is damaged (it gives the session {clean_text(session_id)} twice): restore it from a backup.")
        seen.add(session_id)
        yield session_id, list(group)


def _side_by_side(
    sessions: Iterable[tuple[Any, ...]], items: Iterable[tuple[Any, Any]], where: str
) -> Iterator[tuple[str, tuple[Any, ...], list[Any]]]:
    """Each session's id, its row, and its items' texts: both come in the order of session ids, and every item has its session.

    Raises:
        StoreError: a session comes twice, or an item is in nobody's place: a damaged index led there.
    """
    groups = _grouped(items)
    owner, texts = next(groups, (None, []))
    seen: set[str] = set()
    for head in sessions:
        raw = head[0]
        session_id = str(_decoded(raw))
        if session_id in seen:
            raise StoreError(f"{where} is damaged (it gives the session {clean_text(session_id)} twice): restore it from a backup.")
        seen.add(session_id)
        if owner == raw:
            yield session_id, head, texts
            owner, texts = next(groups, (None, []))
        else:
            yield session_id, head, []
    if owner is not None:
        raise StoreError(f"{where} is damaged (its items are not in the order of its sessions): restore it from a backup.")


def _grouped(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, list[Any]]]:
    """Items' texts by the session id that each begins with."""
    owner, texts = None, []
    for raw, text in items:
        if raw == owner:
            texts.append(text)
            continue
        if texts:
            yield owner, texts
        owner, texts = raw, [text]
    if texts:
        yield owner, texts


def _decoded(value: Any) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _digest(head: tuple[Any, ...], texts: list[Any], judgment: str | None) -> bytes:
    """A hash of all that a session is read from; the ids of its items only say their order."""
    try:
        joined = BETWEEN.join(texts)
    except TypeError:  # numbers, nulls
        joined = BETWEEN.join(text if type(text) is bytes else repr(text).encode() for text in texts)
    return digest(joined, repr((head, judgment, len(texts))).encode("utf-8", "backslashreplace"))


def stored_session(key: PartitionKey, session_id: str, rows: list[tuple[Any, ...]], judgment: str | None) -> Session:
    """A session from its rows `(session_id, archived, created_at, context_json, item id or null, msg_json)`, in order."""
    return _stored(key, session_id, rows[0][:4], [row[5] for row in rows if row[4] is not None], judgment)


def _stored(key: PartitionKey, session_id: str, head: tuple[Any, ...], texts: list[Any], judgment: str | None) -> Session:
    archived, created_at, context_json = (_decoded(value) for value in head[1:4])
    chat = texts_to_messages(texts, parsed_object)
    context, tools = _context(context_json, chat.damage)
    return Session(
        session_id=clean_text(session_id) or "",
        project=key.project,
        agent=key.agent,
        source=OmniagentsSource.name,
        messages=chat.messages,
        tools=tools,
        tools_origin="source" if tools else "none",
        archived=bool(archived),
        created_at=when(created_at),
        task_id=clean_text(context.get("task_id")),
        trial=clean_text(context.get("trial")),
        model_id=clean_text(context.get("model")),
        judgment=judgment,
        reasoning=chat.reasoning,
        damage=dict(chat.damage),
        skipped=dict(chat.skipped),
        context=context,
    )


def _context(raw: Any, damage: Counter[str]) -> tuple[dict[str, Any], list[Tool]]:
    """A session's context and, out of it, its tools; `invalid_context` and `invalid_tools` are counted where there is one that is none."""
    if raw is None or raw in ("", "null"):
        return {}, []
    try:
        context: dict[str, Any] | None = mended_unicode(parsed_object(raw), damage)
    except ValueError:
        context = None
    if context is None:
        damage["invalid_context"] += 1
        return {}, []
    tools = context.pop("tools", None) or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        damage["invalid_tools"] += 1
        tools = []
    return context, tools
