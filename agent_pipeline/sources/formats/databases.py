"""SQLite databases of tracing platforms, read as records.

An SQL query returns each trace as JSON in the form of the platform's own export. A database is
opened read-only, with one snapshot per trace, so a server that writes to the database is not
disturbed. The columns and tables differ between versions of a platform, so they are looked up
first. A column that a version does not have is null.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from agent_pipeline.errors import StoreError
from agent_pipeline.sources.formats.sqlite import columns, read_only

_MLFLOW = """
SELECT json_object('trace_id', t.request_id,
  'trace_location',
    json_object('mlflow_experiment', json_object('experiment_id', t.experiment_id)),
  'trace_metadata', (SELECT json_group_object(key, value) FROM (
    SELECT 'mlflow.trace.session' AS key, {session} AS value WHERE {session} IS NOT NULL
    UNION ALL SELECT key, value FROM trace_request_metadata WHERE request_id = t.request_id)),
  'tags', (SELECT json_group_object(key, value) FROM (
    SELECT 'mlflow.traceName' AS key, {name} AS value WHERE {name} IS NOT NULL
    UNION ALL SELECT key, value FROM trace_tags WHERE request_id = t.request_id)),
  'assessments', ({assessments}),
  'spans', (SELECT json_group_array(content) FROM spans WHERE trace_id = t.request_id))
FROM trace_info AS t WHERE t.rowid = ?
"""
_MLFLOW_ASSESSMENTS = """
SELECT json_group_array(json_object(
  'assessment_name', name, 'valid', json(iif(valid, 'true', 'false')),
  'feedback', json_object('value', iif(json_valid(value), json_extract(value, '$'), value))))
FROM (SELECT * FROM assessments
  WHERE trace_id = t.request_id AND assessment_type = 'feedback' ORDER BY last_updated_timestamp)
"""
_MLFLOW_ROWS = (
    "SELECT rowid FROM trace_info WHERE experiment_id IN (SELECT experiment_id FROM experiments "
    "WHERE lifecycle_stage = 'active')"
)
_PHOENIX = """
SELECT json_object('data', (SELECT json_group_array(json_object(
  'name', s.name, 'span_kind', s.span_kind, 'parent_id', s.parent_id,
  'start_time', s.start_time, 'end_time', s.end_time,
  'context', json_object('trace_id', t.trace_id, 'span_id', s.span_id),
  'status_code', s.status_code, 'status_message', s.status_message,
  'attributes', s.attributes, 'events', s.events,
  'annotations', (SELECT json_group_array(json_object(
    'name', name, 'annotator_kind', annotator_kind,
    'result', json_object('label', label, 'score', score)))
    FROM (SELECT * FROM ({annotations}) ORDER BY updated_at)),
  'resource', json_object('attributes', json_object(
    'openinference.project.name', (SELECT name FROM projects WHERE id = t.project_rowid)))))
  FROM spans AS s WHERE s.trace_rowid = t.id))
FROM traces AS t WHERE t.rowid = ?
"""
_PHOENIX_ANNOTATIONS = {
    "span_annotations": "span_rowid = s.id",
    "trace_annotations": "trace_rowid = t.id AND s.parent_id IS NULL",
    "project_session_annotations": "project_session_id = t.project_session_rowid AND s.parent_id "
    "IS NULL",
}
"""Conditions that select the annotations of a span, by table. Annotations of a trace or a session
belong to the root span.
"""


class Traces:
    """The traces of a database: one JSON text per trace, by row id.

    Row ids are used because the order of traces changes while a server writes.

    Raises:
        StoreError: The file is not a platform's database, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with read_only(path) as connection:
            platform = next(
                (
                    make
                    for tables, make in _PLATFORMS.items()
                    if all(columns(connection, table) for table in tables)
                ),
                None,
            )
            if platform is None:
                raise StoreError(
                    f"{path} is not a database of MLflow or Phoenix with traces: move the file "
                    "out of the store."
                )
            rows, self._query = platform(connection)
            self._rows = [row[0] for row in connection.execute(rows)]

    def items(self) -> Iterator[tuple[int, bytes]]:
        """Yield every trace that has not been deleted since the database was opened."""
        for row in self._rows:
            with suppress(IndexError):
                yield row, self[row]

    def __getitem__(self, row: int) -> bytes:
        with read_only(self._path) as connection:
            trace_row = connection.execute(self._query, (row,)).fetchone()
        if trace_row is None:
            raise IndexError(row)
        return str(trace_row[0]).encode("utf-8", "surrogateescape")


def _mlflow(connection: sqlite3.Connection) -> tuple[str, str]:
    """Return the query for the row ids of MLflow's traces, and the query for one trace."""
    has = columns(connection, "trace_info")
    session, name = (
        "t." + column if column in has else "NULL" for column in ("session_id", "trace_name")
    )
    assessments = _MLFLOW_ASSESSMENTS if columns(connection, "assessments") else "NULL"
    return _MLFLOW_ROWS, _MLFLOW.format(session=session, name=name, assessments=assessments)


def _phoenix(connection: sqlite3.Connection) -> tuple[str, str]:
    """Return the query for the row ids of Phoenix's traces, and the query for one trace."""
    selected = [
        f"SELECT name, annotator_kind, label, score, updated_at FROM {table} WHERE {where}"
        for table, where in _PHOENIX_ANNOTATIONS.items()
        if columns(connection, table)
    ]
    return "SELECT rowid FROM traces", _PHOENIX.format(annotations=" UNION ALL ".join(selected))


_PLATFORMS: dict[tuple[str, ...], Callable[[sqlite3.Connection], tuple[str, str]]] = {
    ("experiments", "trace_info", "trace_tags", "trace_request_metadata", "spans"): _mlflow,
    ("projects", "traces", "spans", "span_annotations"): _phoenix,
}
"""Functions that return a platform's queries, by the tables that identify the platform's
database.
"""
