"""Fine-tuning on sessions in a call: what is learnt, what comes out, what cannot be."""

from pathlib import Path

import pytest

from agent_pipeline import SFTTrainer, SFTTrainingConfig, export_traces_for_sft, train_sft
from agent_pipeline.compat.omniagents.sft import encode_text
from agent_pipeline.errors import ArgumentError, DataError
from agent_pipeline.tokenization.encoding import encode_row
from agent_pipeline_tests.stores import call, omniagents_home, result, says, user
from agent_pipeline_tests.training.world import CITIES, row

pytestmark = pytest.mark.slow


def sessions() -> dict:
    return {
        f"s{n}": [
            user(f"{city}?"),
            call("weather", "c1", f'{{"city": "{city}"}}'),
            result("sun", "c1"),
            says(f"Sunny in {city}."),
        ]
        for n, city in enumerate(CITIES[:6])
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    verdicts = [(f"s{n}", "acceptable" if n else "unacceptable") for n in range(6)]
    return omniagents_home(tmp_path_factory.mktemp("store"), sessions(), verdicts=verdicts)


def config(out: Path, **options) -> SFTTrainingConfig:
    return SFTTrainingConfig(
        **(
            {
                "output_dir": str(out),
                "gradient_accumulation_steps": 1,
                "learning_rate": 1e-3,
                "logging_steps": 1,
            }
            | options
        )
    )


@pytest.fixture(scope="module")
def trained(tiny_base, store, tmp_path_factory):
    out = tmp_path_factory.mktemp("sft")
    options = config(out, per_device_batch_size=3)
    return train_sft(
        str(tiny_base.path),
        "shop",
        "support",
        config=options,
        torch_dtype="float32",
        judgment="acceptable",
        store=store,
    )


def test_it_trains_every_weight_and_leaves_the_model(trained, tiny_base):
    from safetensors.torch import load_file

    assert trained.metrics["steps"] == 2 and trained.final_loss > 0
    assert (
        trained.metrics["data"] == {"records": 5, "rows": 5}
        and trained.metrics["sessions"]["not_acceptable"] == 1
    )
    after, before = (
        load_file(folder / "model.safetensors")
        for folder in (Path(trained.model_path), tiny_base.path)
    )
    moved = {name for name in before if not before[name].equal(after[name])}
    assert len(moved) == len(before), "all of them moved"
    assert "<tool_response>" in (Path(trained.model_path) / "chat_template.jinja").read_text()


def test_what_is_learnt_is_what_the_asset_learns(trained, store, tiny_renderer):
    exported = export_traces_for_sft("shop", "support", store=store, judgment="acceptable")
    expected = {
        tuple(encode_row(tiny_renderer, {**each, "row_id": "r"}, 2048).encoded.labels)
        for each in exported
    }
    seen = {tuple(labels) for labels in trained.trainer.train_dataset["labels"]}
    assert seen == expected and any(label != -100 for label in next(iter(seen)))


def test_the_model_is_saved_elsewhere_and_trained_on(trained, tmp_path):
    saved = trained.save_model(tmp_path / "kept")
    trainer = SFTTrainer(
        saved, config=config(tmp_path / "again", num_train_epochs=0.2), torch_dtype="float32"
    )
    assert trainer.tokenizer.pad_token and trainer.model.num_parameters() > 2e6
    assert trainer.train([row(1)]).metrics["steps"] == 1


def test_packing_lays_rows_end_to_end_with_the_same_labels(tiny_base, tmp_path):
    options = config(tmp_path, packing=True, max_length=1024, per_device_batch_size=1)
    result = SFTTrainer(str(tiny_base.path), config=options, torch_dtype="float32").train(
        [row(n) for n in range(8)]
    )
    assert result.metrics["steps"] < 8 and result.metrics["data"]["rows"] == 8


def test_texts_are_learnt_from_the_border_on(tiny_base, tiny_renderer, tmp_path):
    encoded = encode_text(
        tiny_renderer.tokenizer, "User: How is Oslo?\n\nAssistant:", " It is sunny."
    )
    learnt = [
        token for token, trains in zip(encoded.input_ids, encoded.trained, strict=True) if trains
    ]
    assert tiny_renderer.tokenizer.decode(learnt) == " It is sunny.<|im_end|>"
    data = [
        {"prompt": "User: Oslo?\n\nAssistant:", "completion": " Sunny."},
        {"prompt": "x" * 900, "completion": "y"},
    ]
    result = SFTTrainer(
        str(tiny_base.path), config=config(tmp_path, max_length=64), torch_dtype="float32"
    ).train(data)
    assert result.metrics["steps"] == 1 and result.metrics["data"] == {
        "records": 2,
        "texts": 2,
        "too_long": 1,
    }


def test_no_session_that_matches_is_a_value_error(tiny_base, store):
    with pytest.raises(ValueError, match=r"None of 6 sessions.*filtered 6"):
        SFTTrainer(str(tiny_base.path)).train_from_traces(
            "shop", "support", store=store, filter_fn=lambda items: False
        )


def test_rows_that_all_are_too_long_are_one_sentence(tiny_base, tmp_path):
    with pytest.raises(
        DataError, match=r"None of 1 records can be used for training.*longer than 20 tokens"
    ):
        SFTTrainer(str(tiny_base.path), config=config(tmp_path, max_length=20)).train([row(1)])


def test_a_short_type_without_units_for_it_is_float32_and_says_so(tiny_base):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this device has units")
    with pytest.warns(UserWarning, match="does not support bfloat16"):
        assert SFTTrainer(str(tiny_base.path)).model.dtype == torch.float32
    with pytest.raises(ArgumentError, match="`torch_dtype` is 'int8'"):
        SFTTrainer("x", torch_dtype="int8")


def test_the_configuration_becomes_trls(tmp_path):
    made = config(tmp_path, logging_steps=10, packing=True).to_trl_config(seed=7)
    assert (
        made.per_device_train_batch_size,
        made.max_length,
        made.packing,
        made.warmup_steps,
        made.seed,
    ) == (2, 2048, True, 0.1, 7)
    assert made.save_strategy == "no" and made.report_to in ([], ["none"], "none")
