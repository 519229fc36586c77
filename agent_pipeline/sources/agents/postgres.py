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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
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


class _Schema:
    """The statements that read the tables of one schema. Those of a partition take `parameters`: the project and the agent, each where
    a column of `sessions` says it."""

    def __init__(self, name: str, columns: dict[str, list[str]]) -> None:
        sessions, history, analysis = (f"{_quoted(name)}.{_quoted(table)}" for table in ("sessions", "history", "analysis"))
        has = columns["sessions"]
        keys = [next((each for each in names if each in has), None) for names in (_PROJECT, _AGENT)]
        of_partition = " AND ".join(f"s.{_quoted(key)}::text IS NOT DISTINCT FROM %s" for key in keys if key) or "true"
        shared = ["session_id", *(key for key in keys if key and key in columns["history"])]
        joined = " AND ".join(f"s.{_quoted(each)} = h.{_quoted(each)}" for each in shared)
        fields = [f"s.{_quoted(each)}" if each in has else "NULL" for each in ("archived", "created_at")]
        fields.append('s."context_json"::text' if "context_json" in has else "NULL")
        self.name = name
        self.keys = keys
        self.partitions = f"SELECT DISTINCT {', '.join(f'{_quoted(key)}::text' if key else 'NULL' for key in keys)} FROM {sessions}"
        # Letter by letter: the order in which sessions are compared everywhere else.
        self.sessions = f"""
            SELECT s."session_id"::text COLLATE "C" AS name, {", ".join(fields)} FROM {sessions} AS s
            WHERE s."session_id" IS NOT NULL AND {of_partition} ORDER BY name
        """
        self.items = f"""
            SELECT s."session_id"::text COLLATE "C" AS name, h."msg_json"::text FROM {sessions} AS s JOIN {history} AS h ON {joined}
            WHERE {of_partition} ORDER BY name, h."id"
        """
        self.orphans = f"SELECT count(*) FROM {history} AS h WHERE NOT EXISTS (SELECT 1 FROM {sessions} AS s WHERE {joined})"
        judged = columns.get("analysis", [])
        order = next((_quoted(each) for each in ("id", "created_at") if each in judged), "ctid")
        of_analysis = f'SELECT "group_id"::text, "judgment"::text FROM {analysis} ORDER BY {order}'
        self.judgments = of_analysis if {"group_id", "judgment"} <= set(judged) else None

    def parameters(self, values: Sequence[str | None]) -> list[str | None]:
        """The parameters of a partition by a row of `partitions`."""
        return [value for key, value in zip(self.keys, values, strict=True) if key]


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
            schema, parameters = places[key]
            if count := connection.execute(schema.orphans, ()).fetchall()[0][0]:
                add_note(self.notes, f"{self._shown}: {count} items of {schema.name}.history belong to no session and were left out.")
            judgments = self._judgments(connection, schema)
            with connection.cursor(name="agent_pipeline_sessions") as rows, connection.cursor(name="agent_pipeline_items") as items:
                for cursor, statement in ((rows, schema.sessions), (items, schema.items)):
                    cursor.itersize = ROWS_AT_A_TIME
                    cursor.execute(statement, parameters)
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

    def _places(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> dict[PartitionKey, tuple[_Schema, list[str | None]]]:
        """Partitions with their schema and its parameters."""
        tables: dict[str, dict[str, list[str]]] = {}
        for schema_name, table, column in connection.execute(_COLUMNS):
            tables.setdefault(schema_name, {}).setdefault(table, []).append(column)
        schemas = []
        for name, columns in tables.items():
            if "session_id" in columns.get("sessions", ()) and {"id", "session_id", "msg_json"} <= set(columns.get("history", ())):
                schemas.append(_Schema(name, columns))
            elif {"sessions", "history"} <= set(columns):
                sentence = f"the tables sessions and history of the schema {name} are not those of omniagents; left out"
                add_note(self.notes, f"{self._shown}: {sentence}.")
        if not schemas:
            raise StoreError(
                f"{self._shown} has no schema with tables sessions(session_id, ...) and history(id, session_id, msg_json): "
                f"it is some other program's database, or this user may not see them."
            )
        places: dict[PartitionKey, tuple[_Schema, list[str | None]]] = {}
        for schema in schemas:
            default = urlsplit(self.url).path.strip("/") or connection.info.dbname if schema.name == "public" else schema.name
            for project, agent in connection.execute(schema.partitions, ()).fetchall():
                key = usable_key(project or default, agent or DEFAULT_AGENT)
                if key in places:
                    both = f"{schema.name} and {places[key][0].name}"
                    raise StoreError(f"{self._shown} has the partition {key} twice ({both}): rename one.")
                places[key] = schema, schema.parameters((project, agent))
        return places

    def _judgments(self, connection: "psycopg.Connection[tuple[Any, ...]]", schema: _Schema) -> dict[str, str | None]:
        if schema.judgments is None:
            add_note(self.notes, f"{self._shown} has no table {schema.name}.analysis(group_id, judgment): no session of it is judged.")
            return {}
        return {str(group): clean_text(judgment) for group, judgment in connection.execute(schema.judgments, ())}


def shown_url(url: str) -> str:
    """A URL without user, password and options, for people to see."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _quoted(identifier: str) -> str:
    return quoted(identifier).replace("%", "%%")  # every statement goes with parameters, if none
