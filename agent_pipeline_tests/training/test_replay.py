"""Rows of earlier nights in a real training: how many, where, and what is said of them."""

import pytest

from agent_pipeline.errors import DataError
from agent_pipeline.tokenization.encoding import encode_row
from agent_pipeline.training import distributed
from agent_pipeline.training.provenance import SftInput
from agent_pipeline_tests.training.test_sft import files
from agent_pipeline_tests.training.world import TRAINING, row, train_adapter

pytestmark = pytest.mark.slow

NEW = [row(number) | {"tools": []} for number in range(18)]  # short rows train faster
OLD = [row(number) | {"tools": []} for number in range(30, 32)]
CONFIG = TRAINING.changed(
    num_train_epochs=2, per_device_train_batch_size=5, gradient_accumulation_steps=2, save_steps=1
)


@pytest.fixture
def batches(monkeypatch):
    """Every batch that the trainer's collator is given while it trains, as lists of token lists."""
    seen = []
    build = distributed.build_trainer

    def recording(*args, **kwargs):
        trainer = build(*args, **kwargs)
        collate = trainer.data_collator

        def collator(features):
            seen.append([list(feature["input_ids"]) for feature in features])
            return collate(features)

        trainer.data_collator = collator
        return trainer

    monkeypatch.setattr(distributed, "build_trainer", recording)
    return seen


@pytest.fixture(scope="module")
def tokens(tiny_renderer):
    return {
        old["row_id"]: encode_row(tiny_renderer, old, 512).encoded.input_ids for old in (*NEW, *OLD)
    }


def test_the_trainer_sees_replayed_rows_in_their_share_of_every_optimizer_step(
    tiny_base, tmp_path, batches, tokens
):
    report = train_adapter(NEW, tiny_base, CONFIG, tmp_path, replayed=OLD, replay_ratio=0.1)
    old = [tokens[each["row_id"]] for each in OLD]
    assert [len(step) for step in batches] == [10] * 4, (
        "two epochs of 20 rows, a step's rows packed into one batch"
    )
    steps = batches
    assert [sum(ids in old for ids in step) for step in steps] == [1, 1, 1, 1], (
        "a tenth of ten rows"
    )
    for epoch in (steps[:2], steps[2:]):
        assert sorted(ids for step in epoch for ids in step) == sorted(tokens.values()), (
            "every row once an epoch"
        )
    assert steps[0] + steps[1] != steps[2] + steps[3], "each epoch has an order of its own"
    counts = {
        "in": 2,
        "dropped_share": 0.0,
        "over_the_ratio": 0,
        "trained": 2,
        "ratio_asked": 0.1,
        "ratio": 0.1,
    }
    assert report.replay.items() >= counts.items()
    assert report.rows["trained"] == 18 and report.row_ids == [
        each["row_id"] for each in (*NEW, *OLD)
    ]


def test_a_training_that_replays_goes_on_from_its_checkpoint_to_the_same_bytes(tiny_base, tmp_path):
    class Killed(Exception):
        pass

    def killing(done, total, text):
        if "loss" in text and done == 3:
            raise Killed

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    config = CONFIG.changed(per_device_train_batch_size=4, gradient_accumulation_steps=1)
    rows, replay = NEW[:6], {"replayed": OLD, "replay_ratio": 0.25}
    train_adapter(rows, tiny_base, config, whole, **replay)
    with pytest.raises(Killed):
        train_adapter(rows, tiny_base, config, broken, progress=killing, **replay)
    assert train_adapter(rows, tiny_base, config, broken, **replay).resumed_from == 2
    assert files(whole) == files(broken)


def test_rows_that_fall_out_take_their_share_of_replayed_ones_with_them(
    tiny_base, tmp_path, batches
):
    long = {
        **row(40),
        "messages": [{"role": "user", "content": "x" * 3000}, *row(40)["messages"][-1:]],
    }
    new = [*NEW[:9], *(long | {"row_id": f"long-{n}"} for n in range(9))]
    config = CONFIG.changed(max_steps=1, most_dropped=1.0)
    report = train_adapter(new, tiny_base, config, tmp_path, replayed=OLD, replay_ratio=0.1)
    assert report.rows["dropped_too_long"] == 9
    assert (
        report.replay["over_the_ratio"],
        report.replay["trained"],
        report.replay["ratio"],
    ) == (1, 1, 0.1)


def test_replay_changes_the_identity_and_its_absence_changes_nothing(tiny_base):
    def identity(rows, *replay):
        return SftInput(rows, tiny_base, CONFIG, *replay).identity

    assert identity(NEW) == identity(NEW, [], 0.1)
    assert (
        len(
            {
                identity(NEW),
                identity(NEW, OLD, 0.1),
                identity(NEW, OLD, 0.2),
                identity([*NEW, *OLD]),
            }
        )
        == 4
    )


def test_a_replayed_row_of_another_split_is_refused(tiny_base, tmp_path):
    with pytest.raises(DataError, match="of the split test"):
        train_adapter(
            NEW, tiny_base, CONFIG, tmp_path, replayed=[row(30, "test")], replay_ratio=0.1
        )
