"""The asset `sft_coreset`: an index of all training rows, and what it says of itself."""

import json

import numpy as np
import pyarrow as pa
import pytest

from agent_pipeline.datasets.sft import SFT
from agent_pipeline.errors import DataError
from agent_pipeline.keys import parse_key
from agent_pipeline.selection.tables import CORESET, read_coreset
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sessions.tables import to_rows, to_table
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.defs.conftest import Bench, bench, cells, worker_here  # noqa: F401

KEY = parse_key("shop/support")
WORDS = np.array(
    [
        f"{a}{b}"
        for a in ("red", "blue", "old", "new", "big", "tiny")
        for b in ("shoe", "lamp", "chair", "book", "cup", "bag")
    ]
)


def rows(count: int, split: str = "train") -> list[dict]:
    """Conversations about a few things, by two tools."""
    made = []
    for i in range(count):
        rng = np.random.default_rng([i, len(split)])
        topic = WORDS[6 * (i % 6) :][:6]
        call = {
            "id": "c",
            "type": "function",
            "function": {"name": ("find", "pay")[i % 2], "arguments": json.dumps({"n": i})},
        }
        messages = [
            {"role": "system", "content": "You sell things."},
            {"role": "user", "content": " ".join(rng.choice(topic, 12)) + f" {split} {i}"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "found"},
            {"role": "assistant", "content": "Done. " * (1 + i % 5)},
        ]
        made.append(
            {
                "row_id": f"{split}{i:03d}",
                "messages": messages,
                "tools": [],
                "split": split,
                "task_key": f"t{i // 2}",
            }
        )
    return [
        row | {"session_id": row["row_id"], "content_sha256": hash_json(row["messages"])}
        for row in made
    ]


def coreset(bench: Bench, data: list[dict], **config) -> tuple[list[dict], dict]:  # noqa: F811
    bench.lake.stage("sft_dataset", KEY, to_table(data, SFT).to_batches(), SFT).commit()
    result = bench.run(str(KEY), "sft_coreset", config={"sft_coreset": config})
    assert result.success, bench.sentence(result)
    found = to_rows(bench.lake.open("sft_coreset", KEY).iter_batches())
    return list(found), dict(result.asset_materializations_for_node("sft_coreset")[0].metadata)


def test_a_coreset_is_an_index_of_the_training_rows_with_its_coverage(bench):  # noqa: F811
    data = [*rows(120), *rows(20, "test"), *rows(20, "select")]
    index, said = coreset(bench, data, strategy="diversity", target_size=30)
    assert bench.lake.open("sft_coreset", KEY).schema_arrow.equals(CORESET)
    assert [row["row_id"] for row in index] == [row["row_id"] for row in data[:120]] and sum(
        row["chosen"] for row in index
    ) == 30
    assert said["chosen"].value == 30 and said["training_rows"].value == 120
    cover = said["coverage"].data
    assert cover["mean_distance"] < cover["random_mean_distance"] and 0 < cover["p99_distance"] <= 2
    assert said["tools_covered"].value == "2 of 2" and said["tasks_covered"].value.endswith("of 60")
    assert [
        "left out: among the 3 % of rows that are farthest from their nearest neighbors",
        "3",
    ] in cells(said["reasons"].value)


@pytest.mark.slow
def test_the_base_models_hidden_states_place_rows_in_a_process_of_their_own_and_only_new_ones(
    bench,  # noqa: F811
    monkeypatch,
    tiny_base,
):
    given = worker_here(monkeypatch)
    config = {
        "embeddings": "hidden_states",
        "base_model": str(tiny_base.path),
        "strategy": "diversity",
        "target_size": 8,
    }
    data = [*rows(30), *rows(3, "select"), *rows(5, "test")]
    index, said = coreset(bench, data, **config)
    assert (
        len(given) == 1
        and given[0]["base_revision"] == ""
        and sum(row["chosen"] for row in index) == 8
    )
    assert (
        said["embeddings"].data == {"computed": 30, "kept": 0}
        and said["embedded_by"].value == "hidden_states"
    )
    kept = bench.lake.open("embeddings", KEY)
    assert (
        kept.metadata.num_rows == 30
        and json.loads(kept.schema_arrow.metadata[b"agent_pipeline"])["revision"]
        == tiny_base.revision
    )
    _, later = coreset(bench, [*data, *rows(33)[30:]], **config)
    assert later["embeddings"].data == {"computed": 3, "kept": 30}


@pytest.mark.slow
def test_the_losses_of_the_same_rows_are_computed_once(bench, monkeypatch, tiny_base):  # noqa: F811
    worker_here(monkeypatch)
    config = {"base_model": str(tiny_base.path), "strategy": "loss_topk"}
    for target_size, computed in ((4, 1), (5, 1)):
        index, said = coreset(
            bench, [*rows(8), *rows(2, "test")], **config, target_size=target_size
        )
        assert sum(row["chosen"] for row in index) == target_size and "losses" in said
        assert (
            len([file for file, _ in bench.lake.manifests() if file.asset == "row_losses"])
            == computed
        )
    coreset(bench, rows(9), **config, target_size=4)
    (artifact, *_), losses = zip(
        *[each for each in bench.lake.manifests() if each[0].asset == "row_losses"], strict=True
    )
    assert (
        sorted(each["report"]["rows"] for each in losses) == [8, 9]
        and "row_id" in (artifact.path.parent / "losses.json").read_text()
    )


def test_duplicates_are_counted_and_near_ones_left_out_where_asked(bench):  # noqa: F811
    data = rows(40)
    data += [data[3] | {"row_id": "twin", "session_id": "twin"}]
    index, said = coreset(bench, data, near_duplicates=0.95)
    left_out = [
        (row["row_id"], row["reason"], row["duplicate_of"], row["similarity"])
        for row in index
        if not row["chosen"]
    ]
    assert left_out == [("twin", "exact_duplicate", "train003", 1.0)]
    assert ["left out: identical to another row", "1"] in cells(said["reasons"].value)
    assert said["similarities"].value.startswith("![similarity of rows")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"strategy": "best"}, "best"),
        ({"embeddings": "word2vec"}, "word2vec"),
    ],
)
def test_a_mistake_is_said_in_a_sentence(bench, config, says):  # noqa: F811
    data = rows(10)
    bench.lake.stage("sft_dataset", KEY, to_table(data, SFT).to_batches(), SFT).commit()
    result = bench.run(str(KEY), "sft_coreset", config={"sft_coreset": config})
    assert not result.success and says in bench.sentence(result)


def test_a_table_of_an_older_version_asks_to_be_made_again(tmp_path):
    lake = Lake(tmp_path)
    old = pa.table(
        {"row_id": ["a"], "session_id": ["a"], "chosen": [True], "reason": ["identical to row b"]}
    )
    lake.stage("sft_coreset", KEY, old.to_batches(), old.schema).commit()
    with pytest.raises(DataError):
        read_coreset(lake, KEY)
