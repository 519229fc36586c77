"""The written sample: it is what its manifest says, and the committed one is what the program makes."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

from agent_pipeline.datasets.splits import Split, SplitSizes
from agent_pipeline.errors import SettingsError
from agent_pipeline.sample import write_sample
from agent_pipeline.sample.cast import CAST
from agent_pipeline.sample.environment import kind_of
from agent_pipeline.sample.record import DOMAINS, tasks_of

COMMITTED = Path(__file__).resolve().parents[2] / "data" / "sample"
PARTITIONS = [agent.partition for agent in CAST]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A freshly made sample."""
    home = tmp_path_factory.mktemp("made") / "sample"
    write_sample(home)
    return home


def rows(path: Path, query: str) -> list[tuple]:
    """What a query finds in a database, opened read-only."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def contents(home: Path) -> dict[str, object]:
    """Everything in a sample: each table's rows, each text file's text."""
    found: dict[str, object] = {}
    for path in sorted(path for path in home.rglob("*") if path.is_file()):
        name = str(path.relative_to(home))
        if path.suffix == ".db":
            for (table,) in rows(
                path,
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
            ):
                found[f"{name}:{table}"] = rows(path, f"SELECT * FROM {table} ORDER BY rowid")
        else:
            found[name] = path.read_text(encoding="utf-8")
    return found


def manifest(home: Path) -> dict:
    return json.loads((home / "manifest.json").read_text(encoding="utf-8"))


def histories(home: Path, partition: str) -> dict[str, list[str]]:
    """Each session's item texts in order; a session without items has an empty list."""
    path = home / "sessions" / partition / "sessions.db"
    found: dict[str, list[str]] = {
        session_id: [] for (session_id,) in rows(path, "SELECT session_id FROM sessions")
    }
    for session_id, text in rows(path, "SELECT session_id, msg_json FROM history ORDER BY id"):
        found[session_id].append(text)
    return found


def test_the_committed_sample_is_what_the_program_makes(home):
    assert contents(COMMITTED) == contents(home)


def test_another_seed_makes_another_sample(home, tmp_path):
    write_sample(tmp_path / "other", seed=8)
    assert contents(tmp_path / "other").keys() == contents(home).keys()
    assert contents(tmp_path / "other") != contents(home)


def test_the_sample_is_small_and_leaves_no_side_files(home):
    files = [path for path in home.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 15_000_000
    assert {path.suffix for path in files} == {".db", ".json", ".md"}


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_manifest_counts_what_sql_finds(home, partition):
    counts = manifest(home)["partitions"][partition]
    path = home / "sessions" / partition / "sessions.db"
    stored = rows(path, "SELECT session_id, archived, context_json FROM sessions")
    verdicts = dict(
        rows(
            home / "traces" / f"{partition.split('/')[0]}.db",
            "SELECT group_id, judgment FROM analysis ORDER BY rowid",
        )
    )
    judged = Counter(verdicts.get(session_id) or "unjudged" for session_id, _, _ in stored)
    assert counts["sessions"] == len(stored)
    assert {name: counts[name] for name in judged} == judged
    assert counts["archived"] == sum(archived for _, archived, _ in stored)
    assert counts["tasks"] == len(
        {json.loads(context)["task_id"] for _, _, context in stored if context}
    )
    assert counts["items"] == rows(path, "SELECT count(*) FROM history")[0][0]
    assert counts["rejudged"] == sum(
        count > 1
        for (count,) in rows(
            home / "traces" / f"{partition.split('/')[0]}.db",
            "SELECT count(*) FROM analysis WHERE group_id IN ({}) GROUP BY group_id".format(
                ", ".join(f"'{session_id}'" for session_id, _, _ in stored)
            ),
        )
    )


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_damage_found_is_the_damage_planted(home, partition):
    found = Counter(
        kind for texts in histories(home, partition).values() for kind in [damage(texts)] if kind
    )
    assert found == manifest(home)["partitions"][partition]["broken"]


def damage(texts: list[str]) -> str | None:
    """What is wrong with a session, told from its stored texts alone."""
    if not texts:
        return "empty"
    try:
        stored = [json.loads(text) for text in texts]
    except ValueError:
        return "cut_json"
    calls = {item["call_id"] for item in stored if item.get("type") == "function_call"}
    outputs = {item["call_id"] for item in stored if item.get("type") == "function_call_output"}
    return "orphan_output" if outputs - calls else "unanswered_call" if calls - outputs else None


@pytest.mark.parametrize("partition", PARTITIONS)
def test_only_the_planted_copies_are_alike(home, partition):
    truth = manifest(home)
    facts = {
        session_id: fact
        for session_id, fact in truth["sessions"].items()
        if fact["partition"] == partition
    }
    texts = histories(home, partition)
    for session_id, fact in facts.items():
        if "duplicate_of" in fact:
            assert texts[session_id] == texts[fact["duplicate_of"]]
    originals = [
        without_ids(texts[session_id])
        for session_id, fact in facts.items()
        if not {"duplicate_of", "broken"} & fact.keys()
    ]
    assert len(set(originals)) == len(originals)
    assert (
        sum("duplicate_of" in fact for fact in facts.values())
        == truth["partitions"][partition]["duplicates"]
        > 0
    )


def without_ids(texts: list[str]) -> str:
    """A session's texts without the ids of calls, which differ in every session."""
    return json.dumps(
        [
            {key: value for key, value in json.loads(text).items() if key != "call_id"}
            for text in texts
        ]
    )


@pytest.mark.parametrize("partition", PARTITIONS)
def test_clean_sessions_are_acceptable_exactly_without_a_flaw(home, partition):
    for fact in manifest(home)["sessions"].values():
        if fact["partition"] == partition and "judgment" in fact:
            assert (fact["judgment"] == "acceptable") == ("flaw" not in fact)


@pytest.mark.parametrize(
    ("partition", "good", "rows"),
    [("shop/support", 0.80, 390), ("shop/intern", 0.40, 380), ("office/rooms", 0.65, 300)],
)
def test_an_agent_leaves_enough_to_train_and_to_hold_out_of_every_kind_of_decision(
    home, partition, good, rows
):
    agent = next(each for each in CAST if each.partition == partition)
    tasks = {task.task_id: task for task in tasks_of(agent, 7)}
    truth = manifest(home)
    counts = truth["partitions"][partition]
    assert counts["acceptable"] / (counts["acceptable"] + counts["unacceptable"]) == pytest.approx(
        good, abs=0.02
    )
    facts = [
        fact
        for fact in truth["sessions"].values()
        if fact["partition"] == partition and fact.get("judgment") == "acceptable"
    ]
    clean = [
        fact["task_id"]
        for fact in facts
        if not {"archived", "broken", "duplicate_of"} & fact.keys()
    ]
    kinds = {split: Counter() for split in get_args(Split)}
    for task_id in clean:
        kinds[SplitSizes().find_split(task_id)][
            kind_of(DOMAINS[agent.project], tasks[task_id])
        ] += 1
    trained, held_out = kinds["train"], kinds["test"]
    assert trained.total() >= rows and held_out.total() >= 80
    assert held_out["refuse or ask"] >= 20  # the world is to stay as it is
    for kind, count in trained.items():
        assert held_out[kind] / held_out.total() == pytest.approx(count / trained.total(), abs=0.08)


def test_every_flaw_occurs_somewhere(home):
    planted = set().union(*(counts["flaws"] for counts in manifest(home)["partitions"].values()))
    assert len(planted) == 10


def test_the_tables_are_those_of_omniagents(home):
    path = home / "sessions" / "shop" / "support" / "sessions.db"
    columns = {
        table: [row[1] for row in rows(path, f"PRAGMA table_info({table})")]
        for table in ("sessions", "history")
    }
    assert columns == {
        "sessions": [
            "session_id",
            "archived",
            "created_at",
            "context_json",
            "variables_json",
            "hold",
            "user_id",
        ],
        "history": ["id", "session_id", "msg_json", "created_at"],
    }


def test_an_earlier_sample_is_replaced_and_nothing_stays_beside_it(tmp_path):
    home = tmp_path / "sample"
    write_sample(home, seed=1)
    (home / "stale.txt").write_text("old", encoding="utf-8")
    write_sample(home, seed=1)
    assert [path.name for path in tmp_path.iterdir()] == ["sample"]
    assert not (home / "stale.txt").exists()


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("ten years of work", encoding="utf-8")
    with pytest.raises(SettingsError, match="sample"):
        write_sample(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
