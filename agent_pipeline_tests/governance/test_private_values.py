"""The search for private values in what a run writes; the test of the whole graph uses it."""

import base64
import gzip
import json
import sqlite3
import zipfile
import zlib
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agent_pipeline_tests.governance.private_values import (
    PrivateValues,
    search_files,
)


def test_the_search_sees_every_spelling(tmp_path: Path) -> None:
    """A search that sees nothing proves nothing."""
    values = PrivateValues()
    sentence = values.sentence("user")
    email = values.by_place["user", "email"]
    with zipfile.ZipFile(tmp_path / "a.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", json.dumps({"a": sentence}))
    (tmp_path / "b.log").write_bytes(base64.b64encode(f"x{email}".encode()))
    (tmp_path / "c.gz").write_bytes(gzip.compress(email.encode()))
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection, connection:
        connection.execute("CREATE TABLE t (body BLOB)")
        connection.execute("INSERT INTO t VALUES (?)", [zlib.compress(email.encode())])
    pq.write_table(pa.table({"a": pa.array([email]).dictionary_encode()}), tmp_path / "e.parquet")
    (tmp_path / "f.html").write_text(email.upper())
    found = search_files(tmp_path, values)
    assert {line.partition(":")[0] for line in found} == {
        "a.eval", "b.log", "c.gz", "d.db", "e.parquet", "f.html",
    }  # fmt: skip
