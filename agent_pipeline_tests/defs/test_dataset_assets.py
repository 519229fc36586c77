"""The dataset assets on the sample store: the same bytes whatever the order, a split that holds, and what is written beside the table."""

import json
import shutil
from pathlib import Path

import dagster as dg
import pytest

from agent_pipeline.datasets.formats import convert_rows
from agent_pipeline.datasets.sft_tables import read_sft_rows
from agent_pipeline.definitions import build_defs
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import CURATED, restore_session, to_batches, to_rows
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.conftest import SAMPLE
from agent_pipeline_tests.defs.conftest import DATA_ASSETS, Bench, checks, metadata
from agent_pipeline_tests.judging.endpoint import endpoint, refuses

TRACES = DATA_ASSETS[:3]
DATASETS = ("sft_dataset", "preference_dataset", "kto_dataset", "sharegpt_dataset")
SHOP = PartitionKey("shop", "support")


@pytest.fixture(scope="module")
def curated_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with the curated sessions of the sample's shop, made once."""
    lake = tmp_path_factory.mktemp("curated") / "lake"
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as instance:
        patch.setenv("AGENT_PIPELINE_STORE", str(SAMPLE))
        patch.setenv("AGENT_PIPELINE_LAKE", str(lake))
        assert (
            Bench(SAMPLE, Lake(str(lake)), instance, build_defs())
            .run("shop/support", *TRACES)
            .success
        )
    return lake


@pytest.fixture
def shop(bench: Bench, curated_lake: Path) -> Bench:
    """A test's own workspace in which the shop's sessions are curated already."""
    shutil.copytree(curated_lake, bench.lake.root.path)
    return bench


def rows(bench: Bench, asset: str, key: PartitionKey = SHOP) -> list[dict]:
    """The rows of a data set; the SFT rows are those of both tables."""
    if asset == "sft_dataset":
        return list(read_sft_rows(bench.lake, key))
    return list(to_rows(bench.lake.open(asset, key).iter_batches()))


def test_every_judged_session_is_in_a_pair_a_label_or_counted(shop: Bench) -> None:
    assert shop.run("shop/support", *DATASETS).success
    pairs, labels = rows(shop, "preference_dataset"), rows(shop, "kto_dataset")
    paired = {row[name] for row in pairs for name in ("session_id", "rejected_session_id")}
    alone = {row["session_id"] for row in labels}
    judged = {
        row["session_id"] for row in rows(shop, "curated_sessions") if row["use"] != "neither"
    }
    assert pairs and labels and not paired & alone and paired | alone == judged
    assert {row["label"] for row in labels} == {True, False}
    everyone = shop.run(
        "shop/support", "kto_dataset", config={"kto_dataset": {"all_sessions": True}}
    )
    assert everyone.success and {row["session_id"] for row in rows(shop, "kto_dataset")} == judged


def test_sft_tables(shop: Bench) -> None:
    """One pass writes the rows of training and the held-out rows, each table with its own check,
    figures and data version."""
    result = shop.run("shop/support", "heldout_dataset")
    assert result.success
    tables = {name: shop.lake.open(name, SHOP) for name in ("sft_dataset", "heldout_dataset")}
    splits = {name: set(file.read(["split"])["split"].to_pylist()) for name, file in tables.items()}
    assert splits == {"sft_dataset": {"train", "select"}, "heldout_dataset": {"test"}}
    for name, file in tables.items():
        shown = metadata(result, name)
        assert shown["rows"] == shown["dagster/row_count"] == file.metadata.num_rows > 0
        assert {row.data["split"] for row in shown["splits"].records} == splits[name]
    passed = {
        check.asset_key.to_user_string()
        for check in result.get_asset_check_evaluations()
        if check.passed and check.check_name == "nothing_is_in_two_splits"
    }
    assert passed == set(tables)
    events = {
        event.asset_key.to_user_string(): event.step_materialization_data.materialization.tags
        for event in result.get_asset_materialization_events()
    }
    versions = {tags["dagster/data_version"] for tags in events.values()}
    assert set(events) == set(tables) and len(versions) == 2


def test_a_near_duplicate_across_the_split_is_reported_by_id_without_its_words(shop: Bench) -> None:
    assert shop.run("shop/support", "sft_dataset").success
    made, curated = rows(shop, "sft_dataset"), rows(shop, "curated_sessions")
    train, test = (
        next(row for row in made if row["split"] == split)["session_id"]
        for split in ("train", "test")
    )
    by_id = {row["session_id"]: row for row in curated}
    closing = {"role": "assistant", "content": "Zanzibar."}
    by_id[test]["messages"] = [*by_id[train]["messages"], closing]
    by_id[test]["content_sha256"] = restore_session(by_id[test]).hash_content()
    shop.lake.stage("curated_sessions", SHOP, to_batches(curated, CURATED), CURATED).commit()
    check = checks(shop.run("shop/support", "sft_dataset"))[
        "no_held_out_row_is_nearly_a_training_row"
    ]
    examples = [tuple(each.data.values()) for each in check.metadata["examples"].value.records]
    assert not check.passed and check.severity == dg.AssetCheckSeverity.WARN
    assert (test, "test", train, "train") in {
        each[:4] for each in examples
    } and "Zanzibar" not in str(examples)


def test_turns_that_fail_a_measure_are_marked_and_change_the_rows_identity(shop: Bench) -> None:
    assert shop.run("shop/support", "sft_dataset").success
    before = {row["row_id"] for row in rows(shop, "sft_dataset")}
    config = {"judged_sessions": {"turn_measures": ["ended_with_answer"]}}
    result = shop.run(
        "shop/support", "judged_sessions", "curated_sessions", "sft_dataset", config=config
    )
    marked = [row for row in rows(shop, "sft_dataset") if "#" in row["row_id"]]
    assert result.success and len(marked) > 50 and not {row["row_id"] for row in marked} & before
    for row in (
        marked
    ):  # the measure is taken of a turn alone: one that calls a tool does not end with an answer
        weights = [
            message.get("weight", 1)
            for message in row["messages"]
            if message["role"] == "assistant"
        ]
        assert weights == [
            0 if message.get("tool_calls") else 1
            for message in row["messages"]
            if message["role"] == "assistant"
        ]
    wrong = shop.run(
        "shop/support", "sft_dataset", config={"sft_dataset": {"untrained_turns": ["tool_eror"]}}
    )
    assert not wrong.success and "did you mean tool_error" in shop.sentence(wrong)


def test_on_request_there_is_a_folder_with_a_card_that_load_dataset_reads(
    shop: Bench, tmp_path: Path
) -> None:
    from datasets import load_dataset
    from huggingface_hub import DatasetCard

    asked = {name: {"huggingface": True, "license": "cc-by-4.0"} for name in DATASETS}
    asked["sft_dataset"]["format"] = "prompt_completion_messages"
    result = shop.run("shop/support", *DATASETS, config=asked)
    assert result.success
    curated = rows(shop, "curated_sessions")
    archived = sum(row["drop_reason"] == "archived" for row in curated)
    for name in DATASETS:
        folder = Path(metadata(result, name)["huggingface"])
        card = DatasetCard.load(folder / "README.md")
        assert card.data.license == "cc-by-4.0" and card.data.size_categories == ["n<1K"]
        for heading in ("Counts", "Sources", "Filters", "Licence", "Known limits"):
            assert f"\n## {heading}\n\n" in card.text
        assert (
            f"- omniagents: {len(curated)} sessions" in card.text
            and f"- archived: {archived} sessions dropped" in card.text
        )
        loaded = load_dataset(str(folder), cache_dir=str(tmp_path))
        written = {split: list(loaded[split]) for split in loaded}
        expected: dict[str, list] = {}
        for row in (
            convert_rows(rows(shop, name), asked["sft_dataset"]["format"])
            if name == "sft_dataset"
            else rows(shop, name)
        ):
            expected.setdefault(row["split"], []).append(row)
        assert written == expected
        for split in ("train", "select", "test"):
            number = len(expected.get(split, ()))
            assert (
                f"\n| {split} | {number} | {len({row['task_key'] for row in expected.get(split, ())})} |\n"
                in card.text
            )
    lines = (
        (Path(shop.lake.folder("jsonl", "sft_dataset", SHOP).path) / "train.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    assert all({"prompt", "completion", "session_id"} <= set(json.loads(line)) for line in lines)


def test_nothing_is_pushed_unless_asked_and_a_hub_that_refuses_is_one_sentence(
    shop: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with endpoint(lambda request, number: refuses(401)) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url.removesuffix("/v1"))
        assert (
            shop.run(
                "shop/support", "sft_dataset", config={"sft_dataset": {"huggingface": True}}
            ).success
            and not hub.requests
        )
        monkeypatch.setenv(
            "AGENT_PIPELINE_ASSETS__SFT_DATASET__PUSH_TO", "me/mine"
        )  # run config may not set it
        result = shop.run("shop/support", "sft_dataset")
        assert [each["name"] for each in hub.requests] == ["mine"]
    assert (
        not result.success
        and "cannot be pushed to me/mine" in shop.sentence(result)
        and "401" in shop.sentence(result)
    )
