"""The rows to train on and the held-out rows: two tables that one pass writes and readers join."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.datasets.build import SplitError, build_sft, build_sharegpt
from agent_pipeline.datasets.curated import CURATED_TABLE
from agent_pipeline.datasets.publishing import ConversationFileOptions, republish
from agent_pipeline.datasets.sft import SFT, make_sft_rows
from agent_pipeline.datasets.sft_tables import (
    HELDOUT_TABLE,
    SFT_TABLE,
    read_sft_columns,
    read_sft_rows,
)
from agent_pipeline.datasets.splits import SPLITS, SplitSizes
from agent_pipeline.errors import DataError, MissingError
from agent_pipeline.evaluation.heldout import heldout_rows
from agent_pipeline.governance.forgetting import forget
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import CURATED, make_session_row, to_batches, to_rows
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.tables import StagedTable
from agent_pipeline_tests.datasets.chats import says, session, user

KEY = PartitionKey("p", "a")
SIZES = SplitSizes(test=0.3, select=0.3)


def task_in(split: str, number: int = 0) -> str:
    """A task of a split; another number gives another task."""
    tasks = [f"task {index}" for index in range(100)]
    return [task for task in tasks if SIZES.find_split(task) == split][number]


def talk(name: str, split: str, words: str = "", number: int = 0) -> Session:
    messages = [user(f"ask {words or name}"), says(f"answer {words or name}")]
    return session(name, messages, score=1.0, task_key=task_in(split, number))


def put_curated(lake: Lake, sessions: list[Session]) -> list[dict]:
    """Write curated sessions, all kept, and return them sorted by id, as curation sorts them."""
    facts = {"kept": True, "use": "positive", "verdict_score": 1.0, "drop_reason": None}
    rows = [
        make_session_row(each) | facts | {"missed_measures": []}
        for each in sorted(sessions, key=lambda each: each.session_id)
    ]
    lake.stage(CURATED_TABLE, KEY, to_batches(rows, CURATED), CURATED).commit()
    return rows


def as_one_table(lake: Lake) -> list[dict]:
    """The rows of the table that an earlier version wrote from the curated sessions."""
    curated = to_rows(lake.open(CURATED_TABLE, KEY).iter_batches())
    return list(to_rows(to_batches(make_sft_rows(curated, SIZES), SFT)))


def put_earlier_table(lake: Lake) -> list[dict]:
    """Write `sft_dataset` as an earlier version did, with all splits."""
    rows = as_one_table(lake)
    lake.stage(SFT_TABLE, KEY, to_batches(rows, SFT), SFT).commit()
    return rows


def ids(rows) -> list[str]:
    return [row["session_id"] for row in rows]


def splits_of(lake: Lake, table: str) -> set[str]:
    return set(lake.open(table, KEY).read(["split"])["split"].to_pylist())


@settings(max_examples=25, deadline=None)
@given(splits=st.lists(st.sampled_from(SPLITS), min_size=1, max_size=30))
def test_rows(splits: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Readers get the rows of an earlier version's single table, in the same order.

    The identities of adapters, evaluations and exports are hashes of these rows.
    """
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    put_curated(lake, [talk(f"s{at:02}é", split) for at, split in enumerate(splits)])
    built = build_sft(lake, KEY, SIZES)
    assert splits_of(lake, SFT_TABLE) <= {"train", "select"}
    assert splits_of(lake, HELDOUT_TABLE) <= {"test"}
    expected = as_one_table(lake)
    assert list(read_sft_rows(lake, KEY)) == expected
    for wanted in (*((split,) for split in SPLITS), ("select", "test"), ("train", "select")):
        rows = list(read_dataset_rows(lake, KEY, wanted))
        assert rows == [row for row in expected if row["split"] in wanted]
    columns = read_sft_columns(lake, KEY, ["row_id"])["row_id"].to_pylist()
    assert sorted(columns) == sorted(row["row_id"] for row in expected)
    assert built.table.rows + built.heldout.table.rows == len(splits) == built.counts["rows"]
    assert built.splits + built.heldout.splits == {
        split: splits.count(split) for split in set(splits)
    }
    build_sharegpt(lake, KEY)
    sharegpt = lake.open("sharegpt_dataset", KEY).read(["session_id"])["session_id"].to_pylist()
    assert sharegpt == ids(expected)


def test_data_versions(tmp_path: Path) -> None:
    """Another held-out session leaves the bytes of `sft_dataset` as they are, and the other way
    round, so that an adapter is not out of date."""
    lake = Lake(str(tmp_path))
    sessions = [talk("a", "train"), talk("b", "test"), talk("c", "select")]
    put_curated(lake, sessions)
    first = build_sft(lake, KEY, SIZES)
    put_curated(lake, [*sessions, talk("d", "test", number=1)])
    second = build_sft(lake, KEY, SIZES)
    assert first.table.sha256 == second.table.sha256
    assert first.heldout.table.sha256 != second.heldout.table.sha256
    put_curated(lake, [*sessions, talk("d", "test", number=1), talk("e", "select", number=1)])
    third = build_sft(lake, KEY, SIZES)
    assert third.table.sha256 != second.table.sha256
    assert third.heldout.table.sha256 == second.heldout.table.sha256


@pytest.mark.parametrize("other", ["train", "select"])
def test_split_error(tmp_path: Path, other: str) -> None:
    """The check sees both tables: one text in both replaces neither, and publishes nothing."""
    lake = Lake(str(tmp_path))
    put_curated(lake, [talk("a", other), talk("b", "test")])
    build_sft(lake, KEY, SIZES)
    put_curated(lake, [talk("a", other, "same"), talk("b", "test", "same"), talk("c", "train")])
    before = {
        path: path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and "split_ledger" not in path.parts
    }
    with pytest.raises(SplitError) as raised:
        build_sft(lake, KEY, SIZES)
    assert raised.value.overlaps["content_sha256"] and not raised.value.overlaps["task_key"]
    after = {
        path: path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and "split_ledger" not in path.parts
    }
    assert after == before


def test_published_files(tmp_path: Path) -> None:
    """The files of `sft_dataset` have every split, and are made again if either table changes."""
    lake = Lake(str(tmp_path))
    put_curated(lake, [talk(split, split) for split in SPLITS])
    built = build_sft(lake, KEY, SIZES, files=ConversationFileOptions(huggingface=True))
    for split in SPLITS:
        lines = (built.jsonl / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        assert ids(map(json.loads, lines)) == [split]
        assert (built.huggingface / "data" / f"{split}-00000-of-00001.parquet").exists()
        assert f"| {split} | 1 | 1 |" in (built.huggingface / "README.md").read_text()
    assert republish(lake, SFT_TABLE, KEY) == []
    lake.stage(HELDOUT_TABLE, KEY, [], SFT).commit()
    assert republish(lake, SFT_TABLE, KEY)
    assert not (built.jsonl / "test.jsonl").exists() and (built.jsonl / "train.jsonl").exists()


@pytest.mark.parametrize("split", SPLITS)
def test_forget(tmp_path: Path, split: str) -> None:
    """A session leaves the table of its split and the files of both tables."""
    lake = Lake(str(tmp_path))
    put_curated(lake, [talk(each, each) for each in SPLITS])
    built = build_sft(lake, KEY, SIZES, files=ConversationFileOptions(huggingface=True))
    forget(lake, split)
    assert ids(read_sft_rows(lake, KEY)) == [each for each in sorted(SPLITS) if each != split]
    assert not (built.jsonl / f"{split}.jsonl").exists()
    assert f"| {split} | 0 | 0 |" in (built.huggingface / "README.md").read_text()
    # The mark of the table is still there, so a deleted heldout_dataset would still be an error.
    lake.table(HELDOUT_TABLE, KEY).unlink()
    with pytest.raises(MissingError):
        read_dataset_rows(lake, KEY, ("test",))


def test_deleted_table(tmp_path: Path) -> None:
    """A deleted `heldout_dataset` never looks like an agent that holds nothing out."""
    lake = Lake(str(tmp_path))
    put_curated(lake, [talk(split, split) for split in SPLITS])
    build_sft(lake, KEY, SIZES)
    lake.table(HELDOUT_TABLE, KEY).unlink()
    assert ids(read_dataset_rows(lake, KEY, ("train", "select"))) == ["select", "train"]
    for read in (
        lambda: read_dataset_rows(lake, KEY, ("test",)),
        lambda: read_sft_rows(lake, KEY),
        lambda: read_sft_columns(lake, KEY, ["row_id"]),
        lambda: heldout_rows(lake, KEY),
    ):
        with pytest.raises(MissingError):
            read()
    republish(lake, SFT_TABLE, KEY)
    assert not [file for file in lake.files() if file.kind == "jsonl"]


def test_no_held_out_rows(tmp_path: Path) -> None:
    """An agent without a held-out task has an empty table, and an evaluation refuses to run."""
    lake = Lake(str(tmp_path))
    put_curated(lake, [talk("a", "train")])
    build_sft(lake, KEY, SIZES)
    assert lake.open(HELDOUT_TABLE, KEY).metadata.num_rows == 0
    assert ids(read_sft_rows(lake, KEY)) == ["a"]
    with pytest.raises(DataError):
        heldout_rows(lake, KEY)


def test_earlier_version(tmp_path: Path) -> None:
    """A table of an earlier version is read as it is; the next run writes both tables."""
    lake = Lake(str(tmp_path))
    put_curated(lake, [talk(f"{split}{at}", split) for split in SPLITS for at in range(2)])
    rows = put_earlier_table(lake)
    assert list(read_sft_rows(lake, KEY)) == rows
    assert ids(heldout_rows(lake, KEY)) == ["test0", "test1"]
    build_sft(lake, KEY, SIZES)
    assert list(read_sft_rows(lake, KEY)) == rows
    assert splits_of(lake, SFT_TABLE) == {"train", "select"}
    assert splits_of(lake, HELDOUT_TABLE) == {"test"}


def test_interrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed between the two tables leaves rows that readers see once.

    The held-out table comes first, so a lake of an earlier version never lacks its test rows.
    """
    lake = Lake(str(tmp_path))
    put_curated(lake, [talk(split, split) for split in SPLITS])
    rows = put_earlier_table(lake)
    commit = StagedTable.commit

    def commit_unless_killed(staged: StagedTable, over: str | None = None) -> None:
        if staged.target == lake.table(SFT_TABLE, KEY):
            raise KeyboardInterrupt
        commit(staged, over)

    monkeypatch.setattr(StagedTable, "commit", commit_unless_killed)
    with pytest.raises(KeyboardInterrupt):
        build_sft(lake, KEY, SIZES)
    monkeypatch.undo()
    assert lake.has(HELDOUT_TABLE, KEY) and splits_of(lake, SFT_TABLE) == set(SPLITS)
    assert list(read_sft_rows(lake, KEY)) == rows
    assert read_sft_columns(lake, KEY, ["row_id"]).num_rows == len(rows)
