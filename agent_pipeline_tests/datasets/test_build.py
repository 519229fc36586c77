"""A data set on its way into the lake: what is replaced, and what is published."""

import json
from collections import Counter
from pathlib import Path

import pytest

from agent_pipeline.datasets.build import (
    CardFacts,
    DatasetKind,
    SplitError,
    build_dataset,
    build_kto,
    build_preferences,
    build_sft,
)
from agent_pipeline.datasets.cards import push_folder
from agent_pipeline.datasets.curated import CURATED_TABLE
from agent_pipeline.datasets.preferences import explain_missing_pairs, pair_sessions
from agent_pipeline.datasets.publishing import ConversationFileOptions, FileOptions, republish
from agent_pipeline.datasets.sft import SFT, make_sft_rows
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import THOUGHT, add_thoughts
from agent_pipeline.sessions.tables import CURATED, make_session_row, to_batches
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.datasets.chats import calls, rows_of, says, session, user

KEY = PartitionKey("p", "a")
ALL_TRAIN = SplitSizes(test=0, select=0)


def curated(lake, *sessions, **columns):
    """A lake's curated sessions: positive where the score is above a half."""
    rows = []
    for each in sessions:
        good = (each.score or 0) > 0.5
        row = make_session_row(each) | {
            "kept": good,
            "use": "positive" if good else "negative",
            "verdict_score": each.score,
        }
        rows.append(
            row | {"drop_reason": None if good else "unacceptable", "missed_measures": []} | columns
        )
    lake.stage(CURATED_TABLE, KEY, to_batches(rows, CURATED), CURATED).commit()


def jsonl(lake, asset="sft_dataset", split="train"):
    return [
        json.loads(line)
        for line in (lake.folder("jsonl", asset, KEY) / f"{split}.jsonl").read_text().splitlines()
    ]


def test_no_data_set_has_the_mark_that_a_tool_failed(tmp_path):
    lake, failed = (
        Lake(str(tmp_path)),
        {"role": "tool", "tool_call_id": "c1", "content": "no", "is_error": True},
    )
    asked = [user("x"), calls(("c1", "f", {})), failed, says("y")]
    curated(lake, session("a", asked, score=1.0), session("b", [*asked[:3], says("z")], score=0.0))
    built = [
        build_sft(lake, KEY, ALL_TRAIN),
        build_preferences(lake, KEY, ALL_TRAIN),
        build_kto(lake, KEY, ALL_TRAIN, all_sessions=True),
    ]
    assert all(each.first_rows for each in built) and "is_error" not in json.dumps(
        [each.first_rows for each in built], default=str
    )


def test_a_data_set_with_one_task_in_two_splits_replaces_nothing_and_publishes_nothing(tmp_path):
    lake = Lake(str(tmp_path))
    curated(lake, session("a", [user("x"), says("y")], score=1.0))
    build_sft(lake, KEY, ALL_TRAIN)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    rows = list(
        make_sft_rows(
            rows_of(session("a", [user("x"), says("y")]), session("b", [user("x"), says("z")])),
            ALL_TRAIN,
        )
    )
    rows[1]["split"] = "test"
    with pytest.raises(SplitError) as error:
        kind = DatasetKind("sft_dataset", SFT, "messages", "", "")
        build_dataset(lake, KEY, kind, rows, CardFacts(Counter(), []))
    assert error.value.overlaps["task_key"] and not error.value.overlaps["session_id"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("thoughts", [False, True])
def test_recorded_thoughts_are_in_the_messages_or_counted_in_every_data_set(tmp_path, thoughts):
    lake, fields = Lake(str(tmp_path)), {"tools": [], "reasoning": [{"message": 1, "text": "hm"}]}
    curated(
        lake,
        session("a", [user("x"), says("y")], score=1.0, **fields),
        session("b", [user("x"), says("n")], score=0.0, **fields),
    )
    sft = build_sft(lake, KEY, ALL_TRAIN, thoughts=thoughts)
    pairs = build_preferences(lake, KEY, ALL_TRAIN, thoughts=thoughts)
    kto = build_kto(lake, KEY, ALL_TRAIN, all_sessions=True, thoughts=thoughts)
    shown = [
        sft.first_rows[0]["messages"][-1],
        *(pairs.first_rows[0][side][0] for side in ("chosen", "rejected")),
        kto.first_rows[0]["completion"][0],
    ]
    assert all((message.get(THOUGHT) == "hm") == thoughts for message in shown)
    assert [built.counts["reasoning_left_out"] for built in (sft, pairs, kto)] == (
        [0, 0, 0] if thoughts else [1, 2, 2]
    )
    assert sft.counts["reasoning_kept"] == thoughts


def test_trials_that_differ_in_their_thoughts_only_make_no_pair():
    chat = [user("x"), says("y")]
    good, bad = ([session(name, chat, score=score)] for name, score in (("a", 1.0), ("b", 0.0)))
    good[0].messages = add_thoughts(chat, [{"message": 1, "text": "hm"}])
    counts: Counter[str] = Counter()
    assert list(pair_sessions(good, bad, ALL_TRAIN, counts)) == [] and counts["equal_answers"] == 1


def test_what_is_published_is_made_from_the_table_and_again_when_the_table_is_another(tmp_path):
    lake = Lake(str(tmp_path))
    curated(
        lake,
        session("a", [user("x"), says("y")], score=1.0),
        session("b", [user("z"), says("y")], score=1.0),
    )
    files = ConversationFileOptions(huggingface=True, format="prompt_completion")
    built = build_sft(lake, KEY, ALL_TRAIN, files=files)
    assert [line["session_id"] for line in jsonl(lake)] == ["a", "b"] and republish(
        lake, "sft_dataset", KEY
    ) == []
    table = lake.open("sft_dataset", KEY).read().slice(0, 1)
    lake.stage("sft_dataset", KEY, table.to_batches(), SFT).commit()
    changed = republish(lake, "sft_dataset", KEY)
    assert [line["completion"] for line in jsonl(lake)] == [
        " y"
    ] and built.jsonl / "train.jsonl" in changed
    assert "| train | 1 | 1 |" in (built.huggingface / "README.md").read_text()
    build_sft(lake, KEY, ALL_TRAIN, files=ConversationFileOptions(jsonl=False))
    assert not [file for file in lake.files() if file.kind in ("jsonl", "huggingface")]


def test_a_score_never_overrules_the_verdict_that_a_person_gave(tmp_path):
    lake = Lake(str(tmp_path))
    good, bad = (
        session("g", [user("x"), says("y")], score=0.9, task_key="t"),
        session("b", [user("x"), says("z")], score=0.1, task_key="t"),
    )
    good.score, bad.score = 0.1, 0.9  # a platform's score says the opposite of the labels
    rows = [make_session_row(each) | {"missed_measures": []} for each in (good, bad)]
    rows[0] |= {
        "kept": True,
        "use": "positive",
        "verdict": "acceptable",
        "verdict_by": "label",
        "verdict_score": 1.0,
    }
    rows[1] |= {
        "kept": False,
        "use": "negative",
        "verdict": "unacceptable",
        "verdict_by": "label",
        "verdict_score": 0.0,
    }
    lake.stage(
        CURATED_TABLE,
        KEY,
        to_batches(sorted(rows, key=lambda row: row["session_id"]), CURATED),
        CURATED,
    ).commit()
    assert build_preferences(lake, KEY, ALL_TRAIN).counts["pairs"] == 1
    assert lake.open("preference_dataset", KEY).read(["session_id", "margin"]).to_pylist() == [
        {"session_id": "g", "margin": 1.0}
    ]
    build_sft(lake, KEY, ALL_TRAIN, files=FileOptions())
    assert lake.open("sft_dataset", KEY).read(["score"]).to_pylist() == [{"score": 1.0}]


def test_a_session_that_is_neither_is_nobodys_negative(tmp_path):
    lake = Lake(str(tmp_path))
    trials = [
        session("g", [user("x"), says("y")], score=1.0),
        session("missed", [user("x"), says("z")], score=1.0),
    ]
    rows = [
        make_session_row(each)
        | {"verdict": "acceptable", "verdict_score": 1.0, "missed_measures": []}
        for each in trials
    ]
    rows[0] |= {"kept": True, "use": "positive"}
    rows[1] |= {
        "kept": False,
        "use": "neither",
        "drop_reason": "measure",
        "missed_measures": ["ended_with_answer"],
    }
    lake.stage(CURATED_TABLE, KEY, to_batches(rows, CURATED), CURATED).commit()
    built = build_preferences(lake, KEY, ALL_TRAIN)
    assert built.table.rows == 0 and (
        "1 sessions have no bad session of the same task"
    ) in explain_missing_pairs(built.counts)


@pytest.mark.parametrize("root", ["a[b]", "memory://pushed/a[b]"])
def test_a_folder_is_pushed_whole_wherever_it_lies(root, tmp_path, monkeypatch):
    class Hub:
        def create_repo(self, *_, **__):
            pass

        def upload_folder(self, folder_path, **_):
            pushed = Path(folder_path)
            return sorted(
                path.relative_to(pushed).as_posix() for path in pushed.rglob("*") if path.is_file()
            )

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    lake = Lake(root if "://" in root else str(tmp_path / root), tmp_path)
    for name in ("README.md", "data/train.parquet"):
        lake.replace(lake.root.joinpath("huggingface", "sft_dataset", *name.split("/")), [b"1"])
    assert (
        push_folder(lake.root / "huggingface" / "sft_dataset", "me/mine")
        == "['README.md', 'data/train.parquet']"
    )
