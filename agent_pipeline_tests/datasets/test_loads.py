"""What others do with our files: `datasets.load_dataset`, and TRL's trainers, unchanged and on the files as they lie in the lake."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from agent_pipeline.datasets.formats import FORMS, convert_rows
from agent_pipeline.datasets.kto import KTO
from agent_pipeline.datasets.preferences import PREFERENCES, pair_sessions
from agent_pipeline.datasets.publishing import encode_trainer_lines
from agent_pipeline.datasets.sft import SFT, make_sft_rows
from agent_pipeline.datasets.sharegpt import SHAREGPT, make_sharegpt_rows
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import to_batches
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.datasets.chats import calls, kto_rows, rows_of, says, session, user
from agent_pipeline_tests.training.world import TOOL, row

KEY = PartitionKey("p", "a")
ALL_TRAIN = SplitSizes(0, 0)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def sessions(side: str, answer: str) -> list[Session]:
    """Trials of the small world's tasks: one calls, one with words beside the call, one with no call and no tools at all."""
    made = []
    for number in range(6):
        messages = row(number)["messages"]
        if number % 3 == 0:
            messages = [messages[0], messages[1], says("I cannot.")]
        elif number % 3 == 1:
            messages[2] |= {"content": "Let me see."}
        messages[-1] |= {"content": f"{answer} {messages[-1]['content']}"}
        known = (
            {
                "score": number / 8 if side == "b" else 1.0,
                "created_at": NOON + timedelta(hours=number),
            }
            if number % 2
            else {}
        )
        made.append(
            session(
                f"{side}{number}",
                messages,
                task_key=f"t{number}",
                tools=[TOOL] if number % 3 else [],
                **known,
            )
        )
    return made


@pytest.fixture(scope="module")
def tables() -> dict[str, tuple[list[dict[str, Any]], pa.Schema]]:
    good, bad = sessions("g", "Yes:"), sessions("b", "No.")
    sft = list(make_sft_rows(rows_of(*good), ALL_TRAIN))
    made = {
        "sft": (sft, SFT),
        "preferences": (list(pair_sessions(good, bad, ALL_TRAIN)), PREFERENCES),
        "kto": (list(kto_rows(good, bad, ALL_TRAIN)), KTO),
        "sharegpt": (list(make_sharegpt_rows(sft)), SHAREGPT),
        "parted": (
            list(convert_rows(sft, "prompt_completion_messages")),
            FORMS["prompt_completion_messages"].make_schema(SFT),
        ),
        "parted_text": (
            list(convert_rows(sft, "prompt_completion")),
            FORMS["prompt_completion"].make_schema(SFT),
        ),
    }
    assert {name: len(rows) for name, (rows, _) in made.items()} == dict.fromkeys(made, 6) | {
        "kto": 12
    }
    return made


@pytest.fixture(scope="module")
def parquet(tables: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    lake, files = Lake(tmp_path_factory.mktemp("lake")), {}
    for name, (rows, schema) in tables.items():
        lake.stage(name, KEY, to_batches(rows, schema), schema).commit()
        files[name] = lake.table(name, KEY).path
    return files


def load(kind: str, file: str, cache: Path) -> Any:
    from datasets import load_dataset

    return load_dataset(kind, data_files=file, split="train", cache_dir=str(cache))


@pytest.mark.parametrize("name", ["sft", "preferences", "kto", "sharegpt", "parted", "parted_text"])
def test_parquet_and_json_load_as_they_were_written_with_no_key_filled_in(
    tables: Any, parquet: Any, name: str, tmp_path: Path
) -> None:
    rows, schema = tables[name]
    assert list(load("parquet", parquet[name], tmp_path)) == rows
    lake = Lake(tmp_path / "lake")
    lake.replace(lake.folder("jsonl", name, KEY) / "train.jsonl", encode_trainer_lines(rows))
    loaded = load("json", str(lake.folder("jsonl", name, KEY) / "train.jsonl"), tmp_path)
    for theirs, ours in zip(loaded, rows, strict=True):
        left_out = {"split", "score", "created_at"}
        assert {key: value for key, value in theirs.items() if value is not None} == {
            key: value for key, value in ours.items() if value is not None and key not in left_out
        }
    optional = {field.name for field in schema if field.nullable}
    assert set(schema.names) - set(loaded.column_names) <= optional | {"split"}, (
        "a column of which no row has a value"
    )
    assert not any(
        has_nulls(value) for each in loaded for name, value in each.items() if name not in optional
    )


def has_nulls(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(
            has_nulls(each) for each in (value.values() if isinstance(value, dict) else value)
        )
    return value is None


@pytest.fixture(scope="module")
def model(tiny_base: Any, tiny_renderer: Any) -> Any:
    return tiny_base, tiny_renderer.tokenizer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "name"),
    [
        ("SFT", "sft"),
        ("SFT", "parted"),
        ("SFT", "parted_text"),
        ("DPO", "preferences"),
        ("KTO", "kto"),
    ],
)
def test_trls_trainers_take_two_real_steps_on_the_file(
    parquet: Any, model: Any, trainer: str, name: str, tmp_path: Path
) -> None:
    import torch
    import trl
    from transformers import AutoModelForCausalLM

    base, tokenizer = model
    arguments = getattr(trl, f"{trainer}Config")(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=1, learning_rate=1e-3,
        max_length=1024, bf16=False, use_cpu=True, gradient_checkpointing=False, report_to="none", save_strategy="no", logging_steps=1,
        disable_tqdm=True, dataloader_pin_memory=False, optim="adamw_torch",
    )  # fmt: skip
    network = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    dataset = load("parquet", parquet[name], tmp_path)
    made = getattr(trl, f"{trainer}Trainer")(
        model=network, args=arguments, train_dataset=dataset, processing_class=tokenizer
    )
    made.train()
    losses = [each["loss"] for each in made.state.log_history if "loss" in each]
    assert (
        made.state.global_step == 2 and len(losses) == 2 and all(0 < loss < 20 for loss in losses)
    )
    assert any(not torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_trl_sees_conversations_and_their_tools(parquet: Any, model: Any, tmp_path: Path) -> None:
    from trl.data_utils import is_conversational

    for name in ("sft", "preferences", "kto", "parted"):
        dataset = load("parquet", parquet[name], tmp_path)
        assert (
            is_conversational(dataset[0])
            and [bool(each["tools"]) for each in dataset].count(True) == len(dataset) * 2 // 3
        )
    assert not is_conversational(load("parquet", parquet["parted_text"], tmp_path)[0])
    assert json.loads(json.dumps(load("parquet", parquet["sft"], tmp_path)[1]["tools"])) == [TOOL]


def test_calls_without_words_keep_no_empty_keys() -> None:
    [made] = make_sft_rows(rows_of(session("a", [user("x"), calls(("1", "f", {}))])), ALL_TRAIN)
    assert sorted(made["messages"][0]) == ["content", "role"] and sorted(made["messages"][1]) == [
        "content",
        "role",
        "tool_calls",
    ]
