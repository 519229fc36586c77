"""The readers on good stores and on every kind of bad one."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.damage import DEFAULT_REPAIR_POLICY
from agent_pipeline.sessions.repair import repair_session
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import SESSIONS, make_session_row, to_rows, to_table
from agent_pipeline.sources import OmniagentsSource, OpenAIAgentsSource, open_source
from agent_pipeline.sources.base import file_signature
from agent_pipeline.sources.formats import sqlite
from agent_pipeline_tests.stores import (
    AGENTS_SCHEMA,
    HELLO,
    add_sessions,
    execute,
    omniagents_home,
    sessions_db,
    user,
)

KEY = PartitionKey("shop", "support")


def read(path: Path, key: PartitionKey = KEY) -> list[Session]:
    return list(open_source(path).sessions(key))


def agents_file(path: Path, sessions: dict[str, list]) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(AGENTS_SCHEMA)
        for session_id, items in sessions.items():
            connection.execute("INSERT INTO agent_sessions (session_id) VALUES (?)", (session_id,))
            rows = [(session_id, json.dumps(item)) for item in items]
            connection.executemany(
                "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)", rows
            )
    return path


def one_sentence(error: pytest.ExceptionInfo[BaseException]) -> bool:
    text = str(error.value)
    return "\n" not in text and text.endswith((".", "?"))


# What a store says


def test_a_session_comes_with_all_that_its_store_says(tmp_path):
    context = {
        "task_id": 7,
        "trial": 0,
        "model": "m",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "user": "ü",
    }
    home = omniagents_home(
        tmp_path / "home", context=json.dumps(context), verdicts=[("s1", "acceptable")]
    )
    (session,) = read(home)
    assert session.messages == HELLO
    assert (session.task_id, session.trial, session.model_id, session.tools_origin) == (
        "7",
        "0",
        "m",
        "source",
    )
    assert session.tools == context["tools"]
    assert session.context == {"task_id": 7, "trial": 0, "model": "m", "user": "ü"}
    assert session.judgment == "acceptable"
    assert session.created_at.isoformat() == "2026-01-02T03:04:05+00:00"


def test_sessions_come_in_the_order_of_their_ids_and_empty_ones_come_too(tmp_path):
    home = omniagents_home(tmp_path / "home", {"b": HELLO, "a": [], "c": ["not json", None]})
    found = {session.session_id: (len(session.messages), session.damage) for session in read(home)}
    assert list(found.items()) == [("a", (0, {})), ("b", (2, {})), ("c", (0, {"invalid_item": 2}))]


def test_the_last_verdict_of_a_session_wins_and_null_is_none(tmp_path):
    verdicts = [
        ("a", "acceptable"),
        ("b", "acceptable"),
        ("a", "unacceptable"),
        ("b", None),
        ("other", "acceptable"),
    ]
    home = omniagents_home(
        tmp_path / "home", {"a": HELLO, "b": HELLO, "c": HELLO}, verdicts=verdicts
    )
    assert [session.judgment for session in read(home)] == ["unacceptable", None, None]


@pytest.mark.parametrize("statement", [None, "DROP TABLE analysis"])
def test_no_verdict_file_or_table_is_a_note_and_not_silence(tmp_path, statement):
    home = omniagents_home(tmp_path / "home", verdicts=[("s1", "acceptable")])
    if statement:
        execute(home / "traces" / "shop.db", statement)
    else:
        shutil.rmtree(home / "traces")
    source = open_source(home)
    assert [session.judgment for session in source.sessions(KEY)] + [
        session.judgment for session in source.sessions(KEY)
    ] == [None, None]
    assert len(source.notes) == 1 and "no session of shop is judged" in source.notes[0]


def test_items_of_no_session_are_counted_even_beside_sessions_without_an_id(tmp_path):
    home = omniagents_home(tmp_path / "home")
    execute(
        sessions_db(home),
        "INSERT INTO history (session_id, msg_json) VALUES ('gone', '{}'), (NULL, '{}')",
        "INSERT INTO sessions (session_id) VALUES (NULL), (NULL)",
    )
    source = open_source(home)
    assert [session.session_id for session in source.sessions(KEY)] == ["s1"]
    assert any("2 history items belong to no session" in note for note in source.notes)


CONTEXTS = {
    ("{", "[1]", '"x"', "{" * 5000, '{"a":' + "[" * 300 + "]" * 300 + "}"): {"invalid_context": 1},
    (None, "", "null", "{}", '{"task_id": ""}'): {},
    ('{"tools": {"f": {}}}', '{"tools": [1]}', '{"tools": "f"}', '{"tools": 5}'): {
        "invalid_tools": 1
    },
}


@pytest.mark.parametrize(
    ("raw", "damage"), [(raw, damage) for raws, damage in CONTEXTS.items() for raw in raws]
)
def test_a_context_that_cannot_be_read_and_tools_that_are_none_are_damage(tmp_path, raw, damage):
    (session,) = read(omniagents_home(tmp_path / "home", context=raw))
    assert (session.messages, session.damage, session.task_id) == (HELLO, damage, None)
    assert (session.tools, session.tools_origin) == ([], "none")


def test_what_is_no_utf8_and_no_json_number_can_still_be_written(tmp_path):
    home = omniagents_home(
        tmp_path / "home",
        {"plain": HELLO},
        context=r'{"a": "\ud83d", "b": NaN, "c": [1e999], "task_id": "\udc00"}',
    )
    execute(
        sessions_db(home),
        (
            "INSERT INTO sessions (session_id) VALUES (CAST(? AS TEXT)), (CAST(? AS TEXT))",
            (b"id\xff", b"id\xfe"),
        ),
        (
            "INSERT INTO history (session_id, msg_json) VALUES (CAST(? AS TEXT), CAST(? AS TEXT))",
            (b"id\xff", b'{"role":"user","content":"\xe9\\u0000"}'),
        ),
    )
    sessions = read(home)
    assert len({session.session_id for session in sessions}) == 3
    for session in sessions:
        repair_session(session, DEFAULT_REPAIR_POLICY)
    rows = list(to_rows(to_table([make_session_row(session) for session in sessions], SESSIONS)))
    assert [row["messages"] for row in rows] == [[], [user("\ufffd\0")], HELLO]
    assert rows[2]["context"] == {"a": "\ufffd", "b": None, "c": [None], "task_id": "\ufffd"}


def test_a_judgment_that_is_no_text_breaks_nothing(tmp_path):
    home = omniagents_home(tmp_path / "home", verdicts=[("s1", 1)])
    execute(
        home / "traces" / "shop.db",
        "DROP TABLE analysis",
        "CREATE TABLE analysis (group_id, judgment)",
        "INSERT INTO analysis VALUES ('s1', 1)",
    )
    assert to_table([make_session_row(session) for session in read(home)], SESSIONS)[
        "judgment"
    ].to_pylist() == ["1"]


# Partitions


def test_each_folder_with_a_database_is_a_partition(tmp_path):
    home = omniagents_home(tmp_path / "home", key="shop/support")
    omniagents_home(home, key="office/rooms")
    (home / "sessions" / "shop" / "empty").mkdir()
    (home / "sessions" / "notes.txt").touch()
    assert open_source(home).partitions() == [("office", "rooms"), ("shop", "support")]


def test_two_folders_that_give_one_key_are_refused_by_name(tmp_path):
    """A name in both its Unicode forms is one name; any other two names are two agents."""
    home = omniagents_home(tmp_path / "home", key="shop/S\u00fcd")
    omniagents_home(home, key="shop/Su\u0308d")
    with pytest.raises(StoreError, match=r"both belong to the partition shop/s-d-"):
        open_source(home).partitions()


def test_folders_whose_names_differ_in_any_letter_are_partitions_of_their_own(tmp_path):
    home = omniagents_home(tmp_path / "home", key="shop/My Agent")
    for name in ("my-agent", "My agent", "Süd", "Sød"):
        omniagents_home(home, key=f"shop/{name}")
    source = open_source(home)
    assert len(source.partitions()) == 5
    assert ("shop", "my-agent") in source.partitions()
    assert any("'Süd'" in note for note in source.notes)


def test_a_folder_that_can_be_no_partition_is_noted_and_keeps_nobody_else_out(tmp_path):
    home = omniagents_home(tmp_path / "home")
    omniagents_home(home, key=".trash/x")
    source = open_source(home)
    assert source.partitions() == source.partitions() == [KEY]
    assert len(source.notes) == 1 and ".trash" in source.notes[0]


def test_a_partition_that_the_store_lacks_is_named_with_those_it_has(tmp_path):
    with pytest.raises(PartitionError, match=r"shop/nobody: .*shop/support"):
        read(omniagents_home(tmp_path / "home"), PartitionKey("shop", "nobody"))
    with pytest.raises(PartitionError, match=r"shop/nobody: .*chats/default"):
        read(agents_file(tmp_path / "chats.db", {}), PartitionKey("shop", "nobody"))


# Bad stores


def test_a_store_that_is_missing_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(StoreError, match="does not exist: set `store`") as error:
        open_source(tmp_path / "nowhere")
    assert one_sentence(error)


@pytest.mark.parametrize("content", [None, b"", b"not a database at all", b"SQLite format 3"])
def test_what_is_no_store_is_refused_with_what_would_be_one(tmp_path, content):
    path = tmp_path / "store"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(StoreError, match=r"docs/how-to/write-a-reader\.md") as error:
        open_source(path)
    assert one_sentence(error)


BROKEN = {
    "empty": lambda raw: b"",
    "no database": lambda raw: b"not a database at all",
    "only its head": lambda raw: b"SQLite format 3\0" + b"\1" * 5000,
    **{
        f"cut at {part}": lambda raw, part=part: raw[: int(len(raw) * part)]
        for part in (0.03, 0.25, 0.5, 0.75, 0.9, 0.999)
    },
}


@pytest.mark.parametrize(
    ("file", "how"),
    [
        ("traces/shop.db", "no database"),
        *(("sessions/shop/support/sessions.db", how) for how in BROKEN),
    ],
)
def test_a_file_that_is_no_whole_database_is_a_failure_and_not_an_empty_list_or_no_verdicts(
    tmp_path, file, how, sample_store
):
    home = Path(shutil.copytree(sample_store, tmp_path / "home"))
    (home / file).write_bytes(BROKEN[how]((home / file).read_bytes()))
    with pytest.raises(StoreError, match=Path(file).name) as error:
        read(home)
    assert one_sentence(error)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE sessions",
        "DROP TABLE history",
        "ALTER TABLE history RENAME COLUMN msg_json TO x",
    ],
)
def test_a_database_of_another_program_is_a_failure(tmp_path, statement):
    home = omniagents_home(tmp_path / "home")
    execute(sessions_db(home), statement)
    with pytest.raises(StoreError) as error:
        read(home)
    assert one_sentence(error)


def test_a_locked_store_says_so_and_is_read_when_it_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    home, chats = (
        omniagents_home(tmp_path / "home"),
        agents_file(tmp_path / "chats.db", {"a": HELLO}),
    )
    for path, reading in (
        (sessions_db(home), lambda: read(home)),
        (chats, lambda: read(chats, PartitionKey("chats", "default"))),
    ):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreError, match="locked") as error:
                reading()
            assert one_sentence(error)
        assert len(reading()) == 1


def test_the_store_is_never_written(tmp_path):
    home = omniagents_home(tmp_path / "home", verdicts=[("s1", "acceptable")])
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    read(home)
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


WRITER = """
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode=WAL")
number = 0
while True:
    connection.execute("BEGIN")
    name = f"w{number:06d}"
    connection.execute("INSERT INTO sessions (session_id) VALUES (?)", (name,))
    for item in ({"role": "user", "content": name}, {"role": "assistant", "content": "x" * 2000}):
        connection.execute("INSERT INTO history (session_id, msg_json) VALUES (?, ?)", (name, json.dumps(item)))
    connection.execute("UPDATE sessions SET context_json = ?", (json.dumps({"trial": number}),))
    connection.execute("COMMIT")
    number += 1
    if number == 50:
        print("going", flush=True)
"""


def test_while_an_agent_writes_each_reading_is_one_consistent_moment(tmp_path):
    home = omniagents_home(tmp_path / "home", {})
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(sessions_db(home))], stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None and writer.stdout.readline() == "going\n"
        counts = []
        for _ in range(5):
            sessions = read(home)
            counts.append(len(sessions))
            assert [session.session_id for session in sessions] == [
                f"w{number:06d}" for number in range(len(sessions))
            ]
            assert {session.trial for session in sessions} == {str(len(sessions) - 1)}, (
                "a snapshot from before and after a commit"
            )
            assert all(len(session.messages) == 2 for session in sessions)
        assert writer.poll() is None
        assert 50 <= counts[0] <= counts[-1]
    finally:
        writer.kill()
        writer.communicate()
    assert len(read(home)) >= counts[-1], "what a killed agent had committed is there"


def test_a_write_beside_a_reading_that_takes_the_file_for_unchanging_is_a_failure(
    tmp_path, monkeypatch
):
    database = sessions_db(omniagents_home(tmp_path / "home"))
    os.utime(database, (1, 1))  # two writes within a tick of the file system's clock have one time
    monkeypatch.setattr(
        sqlite, "_connect", lambda path: (sqlite._open(f"file:{path}?mode=ro&immutable=1"), True)
    )
    with sqlite.read_only(database) as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchone()[0]
    with pytest.raises(StoreError, match="changed"), sqlite.read_only(database):
        execute(database, "UPDATE sessions SET context_json = '{}'")


def test_a_log_that_goes_while_it_is_looked_at_is_none(tmp_path, monkeypatch):
    database = sessions_db(omniagents_home(tmp_path / "home"))
    monkeypatch.setattr(Path, "exists", lambda path: True)  # and then its writer ends
    assert file_signature(database).startswith(f"{database}:") and "-wal" not in file_signature(
        database
    )


AS_NOBODY = """
import os, sys
from pathlib import Path
from agent_pipeline.errors import StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sources import open_source
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    source = open_source(Path(sys.argv[1]))
    print([len(list(source.sessions(key))) for key in source.partitions()])
except StoreError as error:
    print("StoreError:", error)
"""


def as_nobody(home: Path) -> str:
    """What a user who may not write (nor override permissions, as root may) reads of a store."""
    for folder in home.parents:
        if folder.owner() == home.owner() and folder != Path("/tmp") and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(home)], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_wal_store_in_a_folder_that_is_read_only_is_read(tmp_path):
    home = omniagents_home(tmp_path / "home")
    execute(sessions_db(home), "PRAGMA journal_mode=WAL")
    sessions_db(home).chmod(0o444)
    sessions_db(home).parent.chmod(0o555)
    assert as_nobody(home) == "[1]"
    assert sorted(path.name for path in sessions_db(home).parent.iterdir()) == ["sessions.db"]


@pytest.mark.parametrize(
    "closed",
    [
        "sessions",
        "sessions/office",
        "sessions/office/rooms",
        "sessions/office/rooms/sessions.db",
        "traces/shop.db",
    ],
)
def test_what_may_not_be_read_is_a_failure_and_never_an_agent_less(tmp_path, closed):
    home = omniagents_home(tmp_path / "home", verdicts=[("s1", "acceptable")])
    omniagents_home(home, key="office/rooms")
    (home / closed).chmod(0)
    try:
        assert as_nobody(home).startswith("StoreError: "), "an unreadable store is no empty list"
    finally:
        (home / closed).chmod(0o755)


# Signatures


def test_the_signature_changes_with_a_write_and_with_a_renamed_agent_but_not_by_reading(tmp_path):
    home = omniagents_home(tmp_path / "home", verdicts=[("s1", "acceptable")])
    execute(sessions_db(home), "PRAGMA journal_mode=WAL")
    source = OmniagentsSource(home)
    seen = [source.signature()]
    list(source.sessions(KEY))
    assert source.signature() == seen[0]
    add_sessions(sessions_db(home), {"s2": HELLO})
    seen.append(source.signature())
    execute(
        home / "traces" / "shop.db",
        "INSERT INTO analysis (group_id, judgment) VALUES ('s2', 'acceptable')",
    )
    seen.append(source.signature())
    (home / "sessions" / "shop" / "support").rename(home / "sessions" / "shop" / "helpers")
    seen.append(source.signature())
    assert len(set(seen)) == 4


def test_a_write_that_lies_in_the_write_ahead_log_changes_the_signature(tmp_path):
    path = agents_file(tmp_path / "chats.db", {"a": HELLO})
    with closing(sqlite3.connect(path)) as agent:
        agent.execute("PRAGMA journal_mode=WAL")
        before = OpenAIAgentsSource(path).signature()
        with agent:
            agent.execute("INSERT INTO agent_sessions (session_id) VALUES ('b')")
        assert OpenAIAgentsSource(path).signature() != before
