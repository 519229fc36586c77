"""omniagents' PostgreSQL backend, against a real server."""

import json
from typing import Any

import psycopg
import pytest

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.ingestion.reading import fingerprint
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source, open_sources, parse_location
from agent_pipeline.sources.agents import postgres as reader
from agent_pipeline.sources.agents.postgres import PostgresSource
from agent_pipeline.sources.base import as_stored
from agent_pipeline_tests.stores import HELLO, call, omniagents_home, result, user

pytestmark = pytest.mark.slow

TABLES = """
CREATE TABLE {schema}sessions (session_id TEXT, {columns} archived INTEGER DEFAULT 0,
    created_at TIMESTAMPTZ DEFAULT '2026-01-02 03:04:05+00',
    context_json {json},
    variables_json TEXT, hold INTEGER, user_id TEXT);
CREATE TABLE {schema}history (id BIGSERIAL PRIMARY KEY, session_id TEXT, {columns} msg_json {json}, created_at TIMESTAMPTZ);
CREATE TABLE {schema}analysis (id BIGSERIAL PRIMARY KEY, group_id TEXT, judgment TEXT);
"""
KEY = PartitionKey("shop", "support")
OF_SHOP = {"project_slug": "shop", "agent_slug": "support"}


def tables(columns: tuple[str, ...] = ("project_slug", "agent_slug"), schema: str = "", kind: str = "TEXT") -> str:
    return TABLES.format(columns="".join(f"{name} TEXT, " for name in columns), schema=f"{schema}." if schema else "", json=kind)


def rows(session_id: str, items: Any = HELLO, schema: str = "", of: dict[str, str] | None = None, context: str | None = None) -> list[str]:
    """The statements that insert a session with its items."""
    of = OF_SHOP if of is None else of
    prefix = f"{schema}." if schema else ""
    names, values = "".join(f"{name}, " for name in of), "".join(f"{_text(value)}, " for value in of.values())
    made = [f"INSERT INTO {prefix}sessions ({names}session_id, context_json) VALUES ({values}{_text(session_id)}, {_text(context)})"]
    for item in items:
        raw = item if isinstance(item, str | None) else json.dumps(item)
        made.append(f"INSERT INTO {prefix}history ({names}session_id, msg_json) VALUES ({values}{_text(session_id)}, {_text(raw)})")
    return made


def _text(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def read(url: str, key: PartitionKey = KEY) -> list[Session]:
    return list(open_source(parse_location(url)).sessions(key))


@pytest.mark.parametrize("kind", ["TEXT", "JSON", "JSONB"])
def test_a_session_comes_with_all_that_its_store_says_whatever_the_type_of_the_columns(database, kind):
    context = json.dumps({"task_id": 7, "model": "m", "user": "ü"})
    url = database(
        tables(kind=kind), *rows("b", context=context), *rows("a", [user("x"), call("f", "1"), result("y", "1")]), *rows("empty", [])
    )
    judged = "INSERT INTO analysis (group_id, judgment) VALUES ('b', 'acceptable'), ('a', 'acceptable'), ('b', 'unacceptable'), ('a', NULL)"
    database(judged)
    sessions = read(url)
    assert [(session.session_id, len(session.messages), session.judgment) for session in sessions] == [
        ("a", 3, None),
        ("b", 2, "unacceptable"),
        ("empty", 0, None),
    ]
    assert sessions[1].messages == HELLO and sessions[1].source == "omniagents_postgres"
    assert (sessions[1].task_id, sessions[1].model_id, sessions[1].context["user"]) == ("7", "m", "ü")
    assert sessions[1].created_at is not None and sessions[1].created_at.isoformat() == "2026-01-02T03:04:05+00:00"


def test_project_and_agent_are_columns_and_an_id_of_two_agents_is_two_sessions(database):
    other = {"project_slug": "shop", "agent_slug": "intern"}
    url = database(tables(), *rows("a"), *rows("a", HELLO[:1], of=other))
    source = open_source(parse_location(url))
    assert source.partitions() == [("shop", "intern"), ("shop", "support")]
    assert [len(session.messages) for key in source.partitions() for session in source.sessions(key)] == [1, 2]
    with pytest.raises(PartitionError, match="no partition shop/nobody: it has shop/intern, shop/support"):
        read(url, PartitionKey("shop", "nobody"))


def test_without_columns_a_schema_is_a_project_and_public_has_the_databases_name(database):
    url = database(
        tables(()),
        "CREATE SCHEMA bank",
        tables((), "bank"),
        *rows("a", of={}),
        *rows("b", schema="bank", of={}),
        *rows("c", schema="bank", of={}),
    )
    source = open_source(parse_location(url))
    name = next(key.project for key in source.partitions() if key.project != "bank")
    assert source.partitions() == sorted([("bank", "default"), (name, "default")]) and name.startswith("test_")
    assert [session.session_id for session in source.sessions(PartitionKey("bank", "default"))] == ["b", "c"]


def test_names_that_can_be_no_partition_are_made_usable_and_values_that_are_null_are_the_default(database):
    url = database(tables(), *rows("a", of={"project_slug": "../x", "agent_slug": "My Agent"}), *rows("b", of={"agent_slug": "x"}))
    keys = open_source(parse_location(url)).partitions()
    assert len(keys) == 2 and "my-agent" in {key.agent for key in keys} and all(".." not in str(key) for key in keys)
    assert [session.session_id for key in keys for session in read(url, key)] in (["a", "b"], ["b", "a"])


def test_the_order_is_that_of_the_ids_letter_by_letter_and_many_rows_stream(database):
    many = (
        "INSERT INTO sessions (session_id, project_slug, agent_slug) SELECT 'S' || n, 'shop', 'support' FROM generate_series(1, 3000) AS n"
    )
    items = (
        "INSERT INTO history (session_id, project_slug, agent_slug, msg_json) SELECT 'S' || n, 'shop', 'support', "
        """'{"role": "user", "content": "' || m || '"}' FROM generate_series(1, 3000) AS n, generate_series(1, 3) AS m ORDER BY m, n"""
    )
    sessions = read(database(tables(), many, items, *rows("a"), *rows("B")))
    ids = [session.session_id for session in sessions]
    assert ids == sorted(ids) and len(ids) == 3002
    assert {tuple(message["content"] for message in session.messages) for session in sessions if session.session_id[0] == "S"} == {
        ("1", "2", "3")
    }


def test_items_that_are_none_are_damage_and_those_of_no_session_are_counted(database):
    url = database(tables(), *rows("a", ["no json", None, *HELLO]), "INSERT INTO history (session_id, msg_json) VALUES ('gone', '{}')")
    source = open_source(parse_location(url))
    (session,) = source.sessions(KEY)
    assert session.damage == {"invalid_item": 2} and session.messages == HELLO
    assert any("1 items of" in note for note in source.notes)


def test_a_reading_is_one_moment_whatever_is_written_meanwhile(database, monkeypatch):
    monkeypatch.setattr(reader, "ROWS_AT_A_TIME", 1)
    url = database(tables(), *rows("a"), *rows("b"), *rows("c"))
    sessions = open_source(parse_location(url)).sessions(KEY)
    assert next(sessions).session_id == "a"
    database("DELETE FROM history WHERE session_id = 'c'", *rows("d"))
    assert [(session.session_id, len(session.messages)) for session in sessions] == [("b", 2), ("c", 2)]
    assert [session.session_id for session in read(url)] == ["a", "b", "c", "d"]


def test_the_store_is_never_written(database):
    url = database(tables(), *rows("a"))
    source = PostgresSource(url)
    with pytest.raises(StoreError, match="read-only transaction"), source._snapshot() as connection:
        connection.execute("DELETE FROM sessions")
    assert len(read(url)) == 1


def test_the_signature_changes_with_every_change_and_with_no_reading(database, postgres_server):
    url = database(tables(), *rows("a"))
    seen = [_settled(url)]
    list(read(url))
    assert _settled(url) == seen[0]
    database("CREATE TABLE other (x INTEGER)", "INSERT INTO other VALUES (1)")
    assert _settled(url) == seen[0]
    for change in (rows("b"), ["UPDATE sessions SET archived = 1"], ["DELETE FROM history"], ["TRUNCATE analysis"]):
        version = fingerprint(map(as_stored, read(url)))
        database(*change)
        seen.append(_settled(url))
        assert fingerprint(map(as_stored, read(url))) != version or "TRUNCATE" in change[0]
    assert len(set(seen)) == len(seen)


def _settled(url: str) -> str:
    """The signature, once the server has counted what was written (a backend reports as it ends)."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
    return PostgresSource(url).signature()


# What is not as it is assumed


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text and text.endswith(".") and "secret" not in text
    return text


@pytest.mark.parametrize(
    "statement", ["SELECT 1", "CREATE TABLE sessions (session_id TEXT)", "CREATE TABLE history (id INT, msg_json TEXT)"]
)
def test_a_database_of_another_program_is_a_failure(database, statement):
    with pytest.raises(StoreError, match="has no schema with tables sessions") as error:
        open_source(parse_location(database(statement))).partitions()
    sentence(error)


def test_tables_of_the_same_names_but_other_columns_are_noted_beside_ours(database):
    url = database(tables(), *rows("a"), "CREATE SCHEMA web", "CREATE TABLE web.sessions (sid INT)", "CREATE TABLE web.history (id INT)")
    source = open_source(parse_location(url))
    assert source.partitions() == [KEY] and "schema web are not those of omniagents" in source.notes[0]


def test_a_server_that_is_not_there_and_a_url_that_is_none_are_sentences(tmp_path):
    for url in (f"postgresql://u:secret@/db?host={tmp_path}", "postgresql://u:secret@[bad/db", "postgresql://u:secret@host/db?nonsense=1"):
        with pytest.raises(StoreError) as error:
            open_source(parse_location(url)).partitions()
        sentence(error)


def test_a_user_without_rights_is_told_so(database, postgres_server):
    url = database(
        tables(), *rows("a"), "DO $$ BEGIN CREATE ROLE guest LOGIN PASSWORD 'secret'; EXCEPTION WHEN duplicate_object THEN END $$"
    )
    with pytest.raises(StoreError, match=r"may not be read .*permission denied.*: grant this user SELECT") as error:
        read(url.replace("postgres@", "guest:secret@"))
    sentence(error)


def test_a_table_that_is_locked_says_so(database, monkeypatch):
    monkeypatch.setattr(reader, "BUSY_SECONDS", 1.0)
    url = database(tables(), *rows("a"))
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE history IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreError, match="was locked for 1 s") as error:
            read(url)
        sentence(error)
    assert len(read(url)) == 1


def test_a_server_that_goes_away_in_the_middle_is_a_failure(database, monkeypatch):
    monkeypatch.setattr(reader, "ROWS_AT_A_TIME", 1)
    url = database(tables(), *rows("a"), *rows("b"), *rows("c"))
    sessions = open_source(parse_location(url)).sessions(KEY)
    next(sessions)
    database("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agent-pipeline'")
    with pytest.raises(StoreError, match="cannot be read") as error:
        list(sessions)
    sentence(error)


def test_it_stands_beside_other_stores(database, tmp_path):
    home = omniagents_home(tmp_path / "home", {"z": HELLO})
    source = open_sources([parse_location(database(tables(), *rows("a"))), parse_location(str(home))])
    assert [(session.session_id, session.source) for session in source.sessions(KEY)] == [("a", "omniagents_postgres"), ("z", "omniagents")]
