"""A training in several processes is that of one process."""

import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.engine import processes
from agent_pipeline.errors import ModelError, SettingsError
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.device import EXACT
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training import launch
from agent_pipeline.training.launch import JOB
from agent_pipeline.training.sft import train_adapter
from agent_pipeline.training.trainers import sft
from agent_pipeline_tests.training.test_adapter import files
from agent_pipeline_tests.training.world import TRAINING, row

ROWS = [row(number) | {"tools": []} for number in range(7)]
CONFIG = TRAINING.changed(
    num_train_epochs=2,
    per_device_train_batch_size=3,
    gradient_accumulation_steps=1,
    save_steps=1,
    precision="float32",
)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=9),
    st.integers(1, 4),
)
def test_each_row_is_one_processs_and_no_process_has_most_of_the_tokens(ids, count):
    rows = [Encoded(each, [True] * len(each), []) for each in ids]
    parts = processes.shares(rows, count)
    assert len(parts) == count
    assert sorted(each.input_ids for part in parts for each in part) == sorted(ids)
    sizes = [sum(len(each.input_ids) for each in part) for part in parts]
    assert max(sizes) <= sum(sizes) / count + max(map(len, ids))


@pytest.mark.slow
def test_two_processes_train_what_one_trains(tiny_base, tmp_path):
    # With small steps: Adam makes a whole step of a gradient that is nothing but rounding.
    config, replay, before = (
        CONFIG.changed(learning_rate=1e-5),
        {"replayed": ROWS[:1], "replay_ratio": 0.2},
        dict(os.environ),
    )
    alone = train_adapter(ROWS, tiny_base, config, tmp_path / "alone", **replay)
    both = train_adapter(ROWS, tiny_base, config.changed(processes=2), tmp_path / "both", **replay)
    assert dict(os.environ) == before
    assert alone["identity"] == both["identity"] and alone["steps"] == both["steps"] == 6
    for name in ("loss", "grad_norm", "learning_rate", "epoch"):
        one, other = ([entry[name] for entry in report["log_history"]] for report in (alone, both))
        assert one == pytest.approx(other, rel=1e-4), name
    train_adapter(ROWS, tiny_base, config, tmp_path / "again", **replay)
    assert files(tmp_path / "again") == files(tmp_path / "alone")


@pytest.mark.slow
def test_two_processes_go_on_from_a_checkpoint_to_the_bit(tiny_base, tmp_path):
    config = CONFIG.changed(processes=2)

    def killing(done: int, total: int, text: str) -> None:
        if done == 3 and "loss" in text:
            raise KeyboardInterrupt

    train_adapter(ROWS, tiny_base, config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_adapter(ROWS, tiny_base, config, tmp_path / "broken", progress=killing)
    assert train_adapter(ROWS, tiny_base, config, tmp_path / "broken")["resumed_from"] == 2
    assert files(tmp_path / "broken") == files(tmp_path / "whole")


@pytest.fixture
def slow_steps(monkeypatch):
    """The other processes that are started, and a step that waits for the first of them to be told `kill`."""
    started = []
    popen = launch.subprocess.Popen
    monkeypatch.setattr(
        launch.subprocess,
        "Popen",
        lambda *args, **kwargs: started.append(popen(*args, **kwargs)) or started[-1],
    )
    return started


@pytest.mark.slow
def test_a_training_whose_other_process_was_killed_says_so_and_leaves_nothing(
    tiny_base, tmp_path, slow_steps
):
    before = dict(os.environ)

    def killing(done: int, total: int, text: str) -> None:
        if done == 3 and "loss" in text:
            slow_steps[0].kill()

    with pytest.raises(ModelError, match="Another process of this training ended: code -9"):
        train_adapter(
            ROWS, tiny_base, CONFIG.changed(processes=2), tmp_path / "killed", progress=killing
        )
    assert dict(os.environ) == before and slow_steps[0].poll() == -9
    assert (
        train_adapter(ROWS, tiny_base, CONFIG, tmp_path / "killed")["resumed_from"] >= 2
    )  # by one process, from their checkpoint


@pytest.mark.slow
def test_what_another_process_could_not_do_is_the_reason(tiny_base, tmp_path, monkeypatch):
    dump = launch.pickle.dumps
    gone = BaseModel(tiny_base.name, tmp_path / "gone", tiny_base.revision)
    monkeypatch.setattr(launch.pickle, "dumps", lambda job: dump(replace(job, base=gone)))
    with pytest.raises(
        ModelError,
        match=r"Another process of this training ended: The tokenizer in .*gone cannot be read",
    ):
        train_adapter(ROWS, tiny_base, CONFIG.changed(processes=2), tmp_path / "out")


def test_a_process_that_waits_for_a_dead_one_for_ever_ends(monkeypatch, tmp_path, caplog):
    (tmp_path / "1").write_text("it ran out of memory.", encoding="utf-8")
    dead = SimpleNamespace(poll=lambda: 1, returncode=1, wait=lambda seconds: 1)
    ended, codes = threading.Event(), []
    monkeypatch.setattr(launch, "GRACE", 0.01)
    monkeypatch.setattr(launch.os, "_exit", codes.append)
    monkeypatch.setattr(ended, "wait", lambda seconds: False)
    launch._end_with([dead], ended, tmp_path)
    assert codes == [1] and "it ran out of memory" in caplog.text
    monkeypatch.setattr(
        ended, "wait", lambda seconds: seconds < 1
    )  # it raised by itself within the grace
    launch._end_with([dead], ended, tmp_path)
    assert codes == [1]


def test_an_error_is_not_hidden_by_leaving_the_group(monkeypatch, tmp_path):
    before = dict(os.environ)

    def refuses() -> None:
        raise RuntimeError("no group")

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_backend", lambda: "gloo")
    monkeypatch.setattr("torch.distributed.destroy_process_group", refuses)
    alive = SimpleNamespace(
        poll=lambda: None, returncode=None, kill=lambda: None, wait=lambda seconds=0: None
    )
    monkeypatch.setattr(launch.subprocess, "Popen", lambda *_, **__: alive)
    monkeypatch.setattr(launch, "READY", JOB)  # there from the start
    job = launch.Job(
        BaseModel("base", tmp_path, ""), EXACT, [], CONFIG.changed(processes=2), tmp_path, 0, None
    )
    with pytest.raises(ModelError, match="diverged"), launch.together(job):
        assert os.environ["WORLD_SIZE"] == "2"
        raise ModelError("The training diverged.")
    assert dict(os.environ) == before


def test_more_processes_than_gpus_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    job = launch.Job(
        BaseModel("base", tmp_path, ""), EXACT, [], CONFIG.changed(processes=3), tmp_path, 0, None
    )
    with (
        pytest.raises(SettingsError, match="processes is 3, and this training sees 2 GPUs"),
        launch.together(job),
    ):
        pass


def test_a_training_that_was_launched_several_times_over_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    job = launch.Job(BaseModel("base", tmp_path, ""), EXACT, [], CONFIG, tmp_path, 0, None)
    with (
        pytest.raises(SettingsError, match="start it once, and set processes"),
        launch.together(job),
    ):
        pass


def test_a_model_that_takes_no_trees_is_not_trained_by_several_processes(monkeypatch, tmp_path):
    monkeypatch.setattr(sft, "trains_as_trees", lambda *_: False)
    with pytest.raises(SettingsError, match="by one process: set it to 1"):
        sft.build_trainer(None, None, [], CONFIG.changed(processes=2), EXACT, tmp_path, print)
