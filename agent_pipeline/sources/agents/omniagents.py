"""The session store of omniagents: `<home>/sessions/<project>/<agent>/sessions.db`.

Verdicts are in `<home>/traces/<project>.db`. `OMNIAGENTS_HOME` moves the tree, and
`OMNIAGENTS_HISTORY_DB` names one `sessions.db`. Either path can be the store.
"""

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.keys import PartitionKey, make_key
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sources.agents.item_store import ItemStore, SessionRow, as_text, side_by_side
from agent_pipeline.sources.base import (
    add_note,
    file_signature,
    no_partition,
    note_changed_names,
    unreadable,
)
from agent_pipeline.sources.formats.fields import clean_text
from agent_pipeline.sources.formats.file_source import DEFAULT_AGENT
from agent_pipeline.sources.formats.sqlite import columns, is_sqlite, read_only

# Two ordered queries are read in parallel, because one query per session would be slower. The
# result includes sessions without items.
_SESSIONS = (
    "SELECT session_id, archived, created_at, context_json FROM sessions WHERE session_id IS NOT "
    "NULL ORDER BY session_id"
)
_ITEMS = "SELECT session_id, msg_json FROM history{only} ORDER BY session_id, id"
_ONLY_OF_SESSIONS = " WHERE session_id IN (SELECT session_id FROM sessions)"
_ORPHANS = (
    "SELECT count(*) FROM history AS h WHERE NOT EXISTS (SELECT 1 FROM sessions AS s WHERE "
    "s.session_id = h.session_id)"
)
_VERDICTS = "SELECT group_id, judgment FROM analysis ORDER BY rowid"
_SESSIONS_COLUMNS = {"session_id", "archived", "created_at", "context_json"}


class OmniagentsSource(ItemStore):
    """A reader of the home folder of omniagents, or of one `sessions.db`."""

    name = "omniagents"
    looks_like = "a folder with sessions/<project>/<agent>/sessions.db, or one sessions.db"
    reads_folders = True

    def __init__(self, where: Path | str) -> None:
        super().__init__(where)
        self._paths: dict[PartitionKey, Path] = {}
        self._read_judgments = lru_cache(maxsize=64)(self._judgments_in)

    @classmethod
    def detect(cls, path: Path) -> bool:
        if not path.is_file():
            return (path / "sessions").is_dir() and cls._is_home(path)
        if not is_sqlite(path):
            return False
        with read_only(path) as connection:
            return columns(connection, "sessions") >= _SESSIONS_COLUMNS and "msg_json" in columns(
                connection, "history"
            )

    @classmethod
    def _is_home(cls, path: Path) -> bool:
        """Return whether a folder is a home folder of omniagents.

        Other programs also keep files under `sessions`. A home folder without sessions has no files
        there.
        """
        try:
            return bool(cls(path)._session_files()) or not any(
                file.is_file() for file in (path / "sessions").rglob("*")
            )
        except (StoreError, OSError):  # the error is reported when the store is read
            return True

    def partitions(self) -> list[PartitionKey]:
        self._paths = self._databases()
        return sorted(self._paths)

    def read(self, key: PartitionKey) -> Iterator[tuple[SessionRow, list[Any]]]:
        path = self._database(key)
        judgments = self._judgments(path)
        with read_only(path) as connection:
            if not columns(connection, "sessions") >= _SESSIONS_COLUMNS:
                raise StoreError(
                    f"{path} has no omniagents table 'sessions', so another program wrote it: "
                    "move the file out of the store."
                )
            if orphans := connection.execute(_ORPHANS).fetchone()[0]:
                add_note(
                    self.notes,
                    f"{path}: {orphans} history items belong to no session and were left out.",
                )
            connection.text_factory = bytes  # most texts are decoded as JSON or never used
            heads = (
                SessionRow._make((*row, {"judgment": judgments.get(str(as_text(row[0])))}))
                for row in connection.execute(_SESSIONS)
            )
            items = connection.execute(_ITEMS.format(only=_ONLY_OF_SESSIONS if orphans else ""))
            yield from side_by_side(heads, items, str(path))

    def signature(self) -> str:
        verdicts = (
            [self._verdicts(self.path)]
            if self.path.is_file()
            else sorted((self.path / "traces").glob("*.db"))
        )
        return file_signature(*(path for _, path in sorted(self._databases().items())), *verdicts)

    def partition_signature(self, key: PartitionKey) -> str:
        path = self._database(key)
        judgments = self._judgments(path)
        if not judgments:
            return file_signature(path)
        with read_only(
            path
        ) as connection:  # one file holds the verdicts of all agents of a project
            ids = sorted(
                str(as_text(row[0]))
                for row in connection.execute("SELECT session_id FROM sessions")
            )
        return f"{file_signature(path)}|{hash_json([[id_, judgments.get(id_)] for id_ in ids])}"

    def _database(self, key: PartitionKey) -> Path:
        if key not in self._paths:
            self._paths = self._databases()
        if key not in self._paths:
            raise no_partition(self.path, key, self._paths)
        return self._paths[key]

    def _databases(self) -> dict[PartitionKey, Path]:
        if self.path.is_file():
            return {self._key_of_file(): self.path}
        databases: dict[PartitionKey, Path] = {}
        changed_names: dict[str, str] = {}
        for path in self._session_files():
            names = (path.parent.parent.name, path.parent.name)
            try:
                key = make_key(*names)
            except PartitionError as error:  # a stray folder must not stop all other agents
                add_note(self.notes, f"{path.parent} was left out: {error}")
                continue
            if key in databases:
                raise StoreError(
                    f"{databases[key].parent} and {path.parent} both belong to the partition "
                    f"{key}: rename one of these folders."
                )
            databases[key] = path
            changed_names |= {
                name: slug for name, slug in zip(names, key, strict=True) if name != slug
            }
        note_changed_names(self.notes, self.path, changed_names)
        return databases

    def _key_of_file(self) -> PartitionKey:
        """Return the project and agent of a single database file.

        If the file is in a tree of omniagents, the folders give the names. Otherwise, the file's
        name is the project.
        """
        path = self.path.resolve()
        if path.parent.parent.parent.name == "sessions":
            return make_key(path.parent.parent.name, path.parent.name)
        return make_key(path.stem, DEFAULT_AGENT)

    def _session_files(self) -> list[Path]:
        """Return the paths of all `sessions.db` files of the store.

        `glob` is not used, because it silently skips a folder that cannot be read.
        """
        try:
            projects = sorted(path for path in (self.path / "sessions").iterdir() if path.is_dir())
            agents = [
                path for project in projects for path in sorted(project.iterdir()) if path.is_dir()
            ]
            return [path / "sessions.db" for path in agents if (path / "sessions.db").exists()]
        except OSError as error:
            raise unreadable(self.path / "sessions", error) from error

    def _verdicts(self, database: Path) -> Path:
        """Return the path of the verdict file of a database: `<home>/traces/<project>.db`."""
        project = database.resolve().parent.parent
        return project.parent.parent / "traces" / f"{project.name}.db"

    def _judgments(self, database: Path) -> dict[str, str | None]:
        """Return the judgments of the store's sessions, by session id.

        If an id has several rows, the last row counts. If the verdict file is missing, a note names
        it.
        """
        path = self._verdicts(database)
        return self._read_judgments(path, file_signature(path))

    def _judgments_in(self, path: Path, signature: str) -> dict[str, str | None]:
        if not path.exists():
            add_note(
                self.notes, f"There is no verdict file {path}: no session of {path.stem} is judged."
            )
            return {}
        with read_only(path) as connection:
            if not {"group_id", "judgment"} <= columns(connection, "analysis"):
                add_note(
                    self.notes,
                    f"{path} has no table analysis(group_id, judgment): no session of {path.stem} "
                    f"is judged.",
                )
                return {}
            return {
                str(group): clean_text(judgment)
                for group, judgment in connection.execute(_VERDICTS)
            }


def own_store() -> str:
    """Return the store that omniagents' own environment variables name.

    This store is the default if the settings name no store.
    """
    named = {
        name: os.environ.get(f"OMNIAGENTS_{name}", "")
        for name in ("HISTORY_BACKEND", "HISTORY_URL", "HISTORY_DB", "HOME")
    }
    if named["HISTORY_BACKEND"].lower() in ("postgres", "postgresql") and named["HISTORY_URL"]:
        return named["HISTORY_URL"]
    return named["HISTORY_DB"] or named["HOME"] or "~/.omniagents"
