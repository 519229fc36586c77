"""omniagents in PostgreSQL (`OMNIAGENTS_HISTORY_BACKEND=postgres`, `OMNIAGENTS_HISTORY_URL`), given as `store = "postgresql://..."`.

Its schema is not published beyond the two tables of the SQLite file. What is assumed is looked up in the catalog and refused with a
sentence where it does not hold:

- a table `sessions` with `session_id`, and in the same schema a table `history` with `id`, `session_id` and `msg_json`, of any types;
- `archived`, `created_at` and `context_json` are used where they exist;
- project and agent are the columns of `sessions` with such names (`project`, `project_slug`, `agent_id`, ...); if `history` has them too,
  they belong to the key. Without them a schema is a project (`public`: the database's name) and the agent is `default`;
- verdicts are a table `analysis(group_id, judgment)` in that schema, of which the last row by `id` or `created_at` counts.

Everything is read in one read-only, repeatable-read transaction through server-side cursors: one snapshot, little memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from agent_pipeline.errors import StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sources.agents.item_store import ItemStore, SessionRow, side_by_side
from agent_pipeline.sources.base import add_note, no_partition
from agent_pipeline.sources.formats.fields import clean_text
from agent_pipeline.sources.formats.file_source import DEFAULT_AGENT, usable_key
from agent_pipeline.sources.formats.sqlite import BUSY_SECONDS, quoted

if TYPE_CHECKING:
    import psycopg

CONNECT_SECONDS = 10
ROWS_AT_A_TIME = 2000

_PROJECT = ("project", "project_slug", "project_id", "project_name")
_AGENT = ("agent", "agent_slug", "agent_id", "agent_name")

_COLUMNS = """
SELECT n.nspname, c.relname, a.attname
FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped AND c.relname IN ('sessions', 'history', 'analysis')
    AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
ORDER BY 1, 2, a.attnum
"""

_CHANGES = """
SELECT c.oid, c.relfilenode, s.n_tup_ins, s.n_tup_upd, s.n_tup_del
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = c.oid
WHERE c.relname IN ('sessions', 'history', 'analysis') AND n.nspname NOT LIKE 'pg\\_%' ORDER BY 1
"""


@dataclass(frozen=True)
class _Schema:
    """The tables of one schema: their columns, and those that say the project and the agent."""

    name: str
    columns: dict[str, tuple[str, ...]]

    @property
    def project(self) -> str | None:
        return next((name for name in _PROJECT if name in self.columns["sessions"]), None)

    @property
    def agent(self) -> str | None:
        return next((name for name in _AGENT if name in self.columns["sessions"]), None)

    def table(self, name: str) -> str:
        return f"{_quoted(self.name)}.{_quoted(name)}"

    def sessions(self) -> str:
        """The rows of a project and agent, in the order of ids letter by letter."""
        has = self.columns["sessions"]
        fields = [f"s.{_quoted(name)}" if name in has else "NULL" for name in ("archived", "created_at")]
        context = 's."context_json"::text' if "context_json" in has else "NULL"
        return f"""
            SELECT s."session_id"::text COLLATE "C" AS name, {", ".join(fields)}, {context} FROM {self.table("sessions")} AS s
            WHERE s."session_id" IS NOT NULL AND {self._of_partition("s")} ORDER BY name
        """

    def items(self) -> str:
        """Their items, in the same order."""
        return f"""
            SELECT s."session_id"::text COLLATE "C" AS name, h."msg_json"::text
            FROM {self.table("sessions")} AS s JOIN {self.table("history")} AS h ON {self._joined("s", "h")}
            WHERE {self._of_partition("s")} ORDER BY name, h."id"
        """

    def orphans(self) -> str:
        sessions = f"SELECT 1 FROM {self.table('sessions')} AS s WHERE {self._joined('s', 'h')}"
        return f"SELECT count(*) FROM {self.table('history')} AS h WHERE NOT EXISTS ({sessions})"

    def partitions(self) -> str:
        named = [f"{_quoted(name)}::text" if name else "NULL" for name in (self.project, self.agent)]
        return f"SELECT DISTINCT {', '.join(named)} FROM {self.table('sessions')}"

    def judgments(self) -> str:
        by = next((_quoted(name) for name in ("id", "created_at") if name in self.columns["analysis"]), "ctid")
        return f'SELECT "group_id"::text, "judgment"::text FROM {self.table("analysis")} ORDER BY {by}'

    def _joined(self, left: str, right: str) -> str:
        shared = [name for name in (self.project, self.agent) if name and name in self.columns["history"]]
        return " AND ".join(f"{left}.{_quoted(name)} = {right}.{_quoted(name)}" for name in ("session_id", *shared))

    def _of_partition(self, alias: str) -> str:
        """Parameters: the project and the agent as text, each as often as there is a column for it."""
        named = [name for name in (self.project, self.agent) if name]
        return " AND ".join(f"{alias}.{_quoted(name)}::text IS NOT DISTINCT FROM %s" for name in named) or "true"


class _Place(NamedTuple):
    """A partition: its schema, and the values of the columns that say the project and the agent."""

    schema: _Schema
    project: str | None
    agent: str | None

    @property
    def parameters(self) -> list[str | None]:
        return [value for name, value in ((self.schema.project, self.project), (self.schema.agent, self.agent)) if name]


class PostgresSource(ItemStore):
    """One PostgreSQL database, by its URL."""

    name: ClassVar[str] = "omniagents_postgres"
    looks_like: ClassVar[str] = "postgresql://... with the tables sessions and history"
    schemes: ClassVar[tuple[str, ...]] = ("postgresql", "postgres")

    def __init__(self, where: Path | str) -> None:
        super().__init__(where)
        self.url = str(where)
        try:
            self._password = urlsplit(self.url).password
        except ValueError as error:
            raise StoreError(f"The store's URL is not valid ({error}): write it as postgresql://user@host:port/database.") from error

    def partitions(self) -> list[PartitionKey]:
        with self._snapshot() as connection:
            return sorted(self._places(connection))

    def read(self, key: PartitionKey) -> Iterator[tuple[SessionRow, list[Any]]]:
        with self._snapshot() as connection:
            places = self._places(connection)
            if key not in places:
                raise no_partition(self._shown, key, places)
            place, schema = places[key], places[key].schema
            if count := connection.execute(schema.orphans(), ()).fetchall()[0][0]:
                add_note(self.notes, f"{self._shown}: {count} items of {schema.table('history')} belong to no session and were left out.")
            judgments = self._judgments(connection, schema)
            with connection.cursor(name="agent_pipeline_sessions") as rows, connection.cursor(name="agent_pipeline_items") as items:
                for cursor, statement in ((rows, schema.sessions()), (items, schema.items())):
                    cursor.itersize = ROWS_AT_A_TIME
                    cursor.execute(statement, place.parameters)
                heads = (SessionRow._make((*row, {"judgment": judgments.get(row[0])})) for row in rows)
                texts = ((name, text and text.encode("utf-8", "surrogateescape")) for name, text in items)
                yield from side_by_side(heads, texts, self._shown)

    def signature(self) -> str:
        """The tables' files and their counts of rows written; where the server counts none, its last transaction."""
        with self._snapshot() as connection:
            counted = connection.execute("SELECT current_setting('track_counts'), pg_current_snapshot()::text").fetchone()
            changes = connection.execute(_CHANGES).fetchall()
        return f"{self._shown}:{changes}" if counted and counted[0] == "on" else f"{self._shown}:{changes}:{counted}"

    @property
    def _shown(self) -> str:
        """The URL without its password."""
        return shown_url(self.url)

    def _short(self, error: Exception) -> str:
        text = " ".join(str(error).split()) or type(error).__name__
        return text.replace(self._password, "***") if self._password else text

    @contextmanager
    def _snapshot(self) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
        """A connection in one read-only snapshot.

        Raises:
            StoreError: the server cannot be reached, refuses us, or lets us wait for a lock.
        """
        import psycopg

        try:
            options = {"connect_timeout": CONNECT_SECONDS} if "connect_timeout" not in self.url else {}
            with psycopg.connect(self.url, application_name="agent-pipeline", client_encoding="utf8", **options) as connection:  # type: ignore[arg-type]
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                connection.read_only = True
                connection.execute(f"SET LOCAL lock_timeout = '{BUSY_SECONDS:.0f}s'")
                yield connection
                connection.rollback()
        except psycopg.errors.LockNotAvailable as error:
            sentence = f"{self._shown} was locked for {BUSY_SECONDS:.0f} s: close what alters its tables, then run again."
            raise StoreError(sentence) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(f"{self._shown} may not be read ({self._short(error)}): grant this user SELECT.") from error
        except (psycopg.Error, UnicodeError) as error:
            raise StoreError(
                f"{self._shown} cannot be read ({self._short(error)}): check the URL, the server and this user's rights."
            ) from error

    def _places(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> dict[PartitionKey, _Place]:
        tables: dict[str, dict[str, tuple[str, ...]]] = {}
        for schema_name, table, column in connection.execute(_COLUMNS):
            columns = tables.setdefault(schema_name, {})
            columns[table] = (*columns.get(table, ()), column)
        schemas = [_Schema(name, columns) for name, columns in tables.items() if self._is_ours(name, columns)]
        if not schemas:
            raise StoreError(
                f"{self._shown} has no schema with tables sessions(session_id, ...) and history(id, session_id, msg_json): "
                f"it is some other program's database, or this user may not see them."
            )
        places: dict[PartitionKey, _Place] = {}
        for schema in schemas:
            project = urlsplit(self.url).path.strip("/") or connection.info.dbname if schema.name == "public" else schema.name
            for row in connection.execute(schema.partitions(), ()).fetchall():
                key = usable_key(row[0] or project, row[1] or DEFAULT_AGENT)
                if key in places:
                    raise StoreError(
                        f"{self._shown} has the partition {key} twice ({schema.name} and {places[key].schema.name}): rename one."
                    )
                places[key] = _Place(schema, *row)
        return places

    def _is_ours(self, name: str, tables: dict[str, tuple[str, ...]]) -> bool:
        complete = "session_id" in tables.get("sessions", ()) and {"id", "session_id", "msg_json"} <= set(tables.get("history", ()))
        if not complete and {"sessions", "history"} <= set(tables):
            add_note(
                self.notes, f"{self._shown}: the tables sessions and history of the schema {name} are not those of omniagents; left out."
            )
        return complete

    def _judgments(self, connection: "psycopg.Connection[tuple[Any, ...]]", schema: _Schema) -> dict[str, str | None]:
        if not {"group_id", "judgment"} <= set(schema.columns.get("analysis", ())):
            add_note(self.notes, f"{self._shown} has no table {schema.name}.analysis(group_id, judgment): no session of it is judged.")
            return {}
        return {str(group): clean_text(judgment) for group, judgment in connection.execute(schema.judgments(), ())}


def shown_url(url: str) -> str:
    """A URL without user, password and options, for people to see."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _quoted(identifier: str) -> str:
    return quoted(identifier).replace("%", "%%")  # every statement goes with parameters, if none
