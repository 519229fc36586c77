"""`agent-pipeline discover`: what is there, how much of it, and what could not be read."""

import json
from pathlib import Path

import dagster as dg
import pytest
from typer.testing import CliRunner, Result

from agent_pipeline.cli.app import app
from agent_pipeline.definitions import defs
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.discovery import discover
from agent_pipeline.sources import SOURCES, Location, list_stores, open_source, readers
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.sources.platforms import exports
from agent_pipeline_tests.sources.platforms.exports import write
from agent_pipeline_tests.stores import HELLO, omniagents_home, sessions_db


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["discover", *arguments])


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder with two stores and a file that is none."""
    folder = tmp_path / "data"
    omniagents_home(
        folder / "home",
        {"a": HELLO, "b": HELLO, "c": ["no json"]},
        verdicts=[("a", "acceptable"), ("b", "unsure")],
    )
    omniagents_home(folder / "home", key="office/rooms")
    write(folder / "log.jsonl", exports.litellm())
    (folder / "README.txt").write_text("read me", encoding="utf-8")
    return folder


def test_every_store_of_a_folder_is_listed_with_what_it_holds(mixed):
    found = run("--json", str(mixed))
    assert found.exit_code == 0
    report = json.loads(found.stdout)
    assert set(report) == {"stores", "unknown"} and report["unknown"] == [str(mixed / "README.txt")]
    home, log = report["stores"]
    assert set(home) == {
        "path",
        "source",
        "projects",
        "agents",
        "sessions",
        "partitions",
        "notes",
        "errors",
    }
    assert [home[name] for name in ("path", "source", "projects", "agents", "sessions")] == [
        str(mixed / "home"),
        "omniagents",
        2,
        2,
        4,
    ]
    assert home["partitions"][1] == {
        "partition": "shop/support",
        "sessions": 3,
        "forgotten": 0,
        "judgments": {"acceptable": 1, "unsure": 1},
        "unjudged": 1,
        "scored": 0,
        "failed": 0,
        "side_chains": 0,
        "damaged": 1,
        "damage": {"invalid_item": 1},
        "without_user": 1,
        "without_answer": 1,
        "task_pattern": "",
    }
    assert (log["source"], log["sessions"], log["errors"]) == ("litellm", 1, [])


def test_a_lake_in_the_folder_is_no_store(tmp_path: Path) -> None:
    """Its tables are copies of the sessions: `init .` after the first run found each session three times."""
    write(tmp_path / "log.jsonl", exports.litellm())
    Lake(str(tmp_path / "lake")).prepare()
    for table in ("sessions", "judged_sessions"):
        (tmp_path / "lake" / "tables" / table).mkdir(parents=True)
        write(tmp_path / "lake" / "tables" / table / "log.jsonl", exports.litellm())
    listed = list_stores(str(tmp_path))
    assert listed.unknown == []
    alone = open_source(tmp_path / "log.jsonl")
    for place in (*listed.stores, str(tmp_path)):
        source = open_source(Path(place))
        (key,) = source.partitions()
        assert len(list(source.sessions(key))) == len(list(alone.sessions(key)))


def test_what_a_reader_left_out_is_noted_and_is_no_failure(mixed):
    with (mixed / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write("no json\n")
    found = run("--json", str(mixed))
    assert found.exit_code == 0 and any(
        "not contain a JSON object" in note
        for note in json.loads(found.stdout)["stores"][1]["notes"]
    )


def test_what_could_not_be_read_is_an_error_beside_what_could_and_the_exit_code_says_so(mixed):
    sessions_db(mixed / "home").write_bytes(b"no database")
    (mixed / "broken.db").write_bytes(b"SQLite format 3\0" + b"\1" * 500)
    found = run("--json", str(mixed))
    assert found.exit_code == 1
    broken, home, log = json.loads(found.stdout)["stores"]
    assert broken["source"] is None and "broken.db" in broken["errors"][0]
    assert "not an SQLite database" in home["errors"][0] and [
        each["sessions"] for each in home["partitions"]
    ] == [1, 0]
    assert log["errors"] == []
    assert "error: " in run(str(mixed)).stdout


def test_the_table_has_every_partition_and_only_columns_with_something_in_them(mixed):
    shown = run(str(mixed)).stdout
    assert "office/rooms" in shown and "unsure" in shown and "README.txt" in shown
    assert "failed" not in shown and "side chains" not in shown


def test_without_a_path_the_stores_of_the_settings_are_looked_at_and_become_known(
    mixed, tmp_path, monkeypatch
):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    (tmp_path / "dagster").mkdir()
    monkeypatch.setenv(
        "AGENT_PIPELINE_STORE", json.dumps([str(mixed / "home"), f"litellm:{mixed / 'log.jsonl'}"])
    )
    found = json.loads(run("--json").stdout)
    assert [store["path"] for store in found["stores"]] == [
        str(mixed / "home"),
        f"litellm:{mixed / 'log.jsonl'}",
    ]
    with dg.DagsterInstance.get() as instance:
        assert sorted(instance.get_dynamic_partitions("agent_pipeline_project_agent")) == [
            "office/rooms",
            "shop/support",
        ]


def test_of_several_places_one_that_is_missing_hides_no_other(mixed, tmp_path):
    found = discover(
        [Location(str(tmp_path / "gone")), Location(str(mixed / "home"))], SOURCES, BlockList()
    )
    assert [bool(store.errors) for store in found.stores] == [True, False] and not found.readable


def test_a_place_without_any_store_is_an_error_in_words_and_in_json(tmp_path):
    (tmp_path / "README.txt").write_text("read me", encoding="utf-8")
    for place in (tmp_path, tmp_path / "README.txt"):
        shown, report = run(str(place)), run("--json", str(place))
        assert (
            shown.exit_code == report.exit_code == 1
            and "docs/how-to/write-a-reader.md" in shown.stdout
        )
        (store,) = json.loads(report.stdout)["stores"]
        assert store["source"] is None and "docs/how-to/write-a-reader.md" in store["errors"][0]


def test_the_sensor_makes_agents_known_though_one_store_of_several_is_broken(
    mixed, tmp_path, monkeypatch
):
    monkeypatch.setenv(
        "AGENT_PIPELINE_STORE", json.dumps([str(mixed / "home"), str(tmp_path / "gone")])
    )
    with dg.instance_for_test() as instance:
        context = dg.build_sensor_context(
            instance, repository_def=defs.get_repository_def(), resources={"workspace": Workspace()}
        )
        tick = defs.resolve_sensor_def("discover_agents").evaluate_tick(context)
    added = [key for request in tick.dynamic_partitions_requests for key in request.partition_keys]
    assert sorted(added) == ["office/rooms", "shop/support"]
    assert "gone does not exist" in (tick.skip_message or "") and not tick.asset_events


def test_a_store_without_a_conversation_is_not_all_well(tmp_path):
    """A trace export that holds no user message looked like 100 sound sessions."""
    answer = {"role": "assistant", "content": "Done."}
    chats = [
        {"session_id": f"s{number}", "project": "p", "agent": "a", "messages": [answer]}
        for number in range(4)
    ]
    silent = [
        chat | {"agent": "b", "messages": [{"role": "user", "content": "Hello?"}]} for chat in chats
    ]
    sound = [
        chat | {"agent": "c", "messages": [{"role": "user", "content": "Hello?"}, answer]}
        for chat in chats
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text(
        "".join(json.dumps(chat) + "\n" for chat in [*chats, *silent, *sound]), encoding="utf-8"
    )
    (store,) = discover([Location(str(path))], readers(()), BlockList()).stores
    parts = {part.partition: part for part in store.partitions}
    assert (parts["p/a"].without_user, parts["p/b"].without_answer, parts["p/c"].without_user) == (
        4,
        4,
        0,
    )
    assert [note.split()[0] for note in store.notes if "no conversation" in note] == ["p/a", "p/b"]


def test_damage_is_counted_by_kind(tmp_path):
    bad = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}
        ],
    }
    chats = [
        {"session_id": f"s{number}", "messages": [{"role": "user", "content": "x"}, bad]}
        for number in range(3)
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    (store,) = discover([Location(str(path))], readers(()), BlockList()).stores
    (part,) = store.partitions
    (session, *_) = open_source(path).sessions(open_source(path).partitions()[0])
    assert part.damage == dict.fromkeys(session.damage, 3)


def test_sessions_that_look_like_trials_are_named_unless_the_settings_do(tmp_path):
    asked = {
        "1": "book a flight to Rome",
        "2": "cancel my order of shoes",
        "3": "weather in Lima tomorrow",
    }
    names = [
        (f"task{task}-trial{trial}", text) for task, text in asked.items() for trial in range(3)
    ]
    chats = [
        {
            "session_id": name,
            "project": "p",
            "agent": "a",
            "messages": [{"role": "user", "content": text}],
        }
        for name, text in names
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    (store,) = discover([Location(str(path))], readers(()), BlockList()).stores
    assert any('[agents."p/a"]' in note and "task_pattern = " in note for note in store.notes)
    (store,) = discover([Location(str(path))], readers(()), BlockList(), lambda key: True).stores
    assert not any("task_pattern" in note for note in store.notes)


def test_text_of_a_judgment_is_not_shown(tmp_path):
    """A judgment that is neither word may be what a person wrote, with a name in it."""
    verdicts = [("a", "acceptable"), ("b", "Ann Smith of +49 30 1234567 liked it")]
    home = omniagents_home(tmp_path / "home", {"a": HELLO, "b": HELLO}, verdicts=verdicts)
    (store,) = discover([Location(str(home))], readers(()), BlockList()).stores
    (part,) = store.partitions
    assert part.judgments == {"acceptable": 1, "otherwise": 1}
    assert "Ann" not in repr(store)
