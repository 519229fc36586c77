"""A training run in several processes, started by `accelerate launch`, on a CPU (gloo)."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.engine.tree_loss import share_rows
from agent_pipeline.errors import ModelError, SettingsError
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.device import EXACT
from agent_pipeline.progress import silent
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training import distributed
from agent_pipeline.training.trainers import sft
from agent_pipeline_tests.training.test_sft import files
from agent_pipeline_tests.training.world import TRAINING, row, train_adapter

ROWS = [row(number) | {"tools": []} for number in range(7)]
CONFIG = TRAINING.changed(
    num_train_epochs=2,
    per_device_train_batch_size=3,
    gradient_accumulation_steps=1,
    save_steps=1,
    precision="float32",
)
TWO = CONFIG.changed(processes=2)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=9),
    st.integers(1, 4),
)
def test_shares(ids_of_rows, process_count):
    """Each row is in one share, and no share has most of the tokens."""
    rows = [Encoded(ids, [True] * len(ids), []) for ids in ids_of_rows]
    shares = share_rows(rows, process_count)
    assert len(shares) == process_count
    assert sorted(row.input_ids for share in shares for row in share) == sorted(ids_of_rows)
    sizes = [sum(len(row.input_ids) for row in share) for share in shares]
    assert max(sizes) <= sum(sizes) / process_count + max(map(len, ids_of_rows))


@pytest.mark.slow
def test_two_processes(tiny_base, tmp_path):
    """Two processes train what one process trains, up to the order of sums.

    The learning rate is small, because Adam makes a whole step of a gradient that is only rounding.
    """
    config, replay = (
        CONFIG.changed(learning_rate=1e-5),
        {"replayed": ROWS[:1], "replay_ratio": 0.2},
    )
    seen = []
    heldout = [row(30, "test")]
    one = train_adapter(ROWS, tiny_base, config, tmp_path / "one", heldout, **replay)
    two = train_adapter(
        ROWS,
        tiny_base,
        config.changed(processes=2),
        tmp_path / "two",
        heldout,
        progress=lambda done, total, text: seen.append((done, total, text)),
        **replay,
    )
    assert one.identity == two.identity and one.steps == two.steps == 6
    for name in ("loss", "grad_norm", "learning_rate", "epoch"):
        values_of_one, values_of_two = (
            [entry[name] for entry in report.log_history] for report in (one, two)
        )
        assert values_of_one == pytest.approx(values_of_two, rel=1e-4), name
    for when in ("before", "after"):
        assert one.heldout[when] == pytest.approx(two.heldout[when], rel=1e-4)
    assert files(tmp_path / "one").keys() == files(tmp_path / "two").keys()
    assert two.tokens_per_second > 0
    assert [done for done, total, text in seen if "training, loss" in text] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_resumed(tiny_base, tmp_path):
    """A run that was interrupted resumes from its checkpoint, and ends with the same bytes."""

    def interrupt(done: int, total: int, text: str) -> None:
        if done == 3 and "loss" in text:
            raise KeyboardInterrupt

    train_adapter(ROWS, tiny_base, TWO, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_adapter(ROWS, tiny_base, TWO, tmp_path / "broken", progress=interrupt)
    assert train_adapter(ROWS, tiny_base, TWO, tmp_path / "broken").resumed_from >= 2
    assert files(tmp_path / "broken") == files(tmp_path / "whole")


@pytest.mark.slow
def test_failed_process(tiny_base, tmp_path):
    """The error of a training process reaches the user, and no process is left."""
    gone = BaseModel(tiny_base.name, tmp_path / "gone", tiny_base.revision)
    tokens = [Encoded([1, 2, 3], [False, True, True], [])]
    job = sft.SftJob(tokens, TWO, EXACT, tmp_path)
    with pytest.raises(ModelError, match="gone"):
        distributed.train_in_processes(job, gone, None, silent)


def launched(script: str, monkeypatch) -> None:
    """Replace `accelerate launch` by a script."""
    command = [sys.executable, "-c", script]
    monkeypatch.setattr(distributed, "launch_command", lambda *_: command)


def test_no_reason(tiny_base, tmp_path, monkeypatch):
    """A process that the system killed could report nothing."""
    launched("import os; os.kill(os.getpid(), 9)", monkeypatch)
    job = sft.SftJob([], TWO, EXACT, tmp_path)
    with pytest.raises(ModelError, match="-9"):
        distributed.train_in_processes(job, tiny_base, None, silent)


def test_other_output(tiny_base, tmp_path, monkeypatch, capsys):
    """What processes print besides progress reaches the output, and does not end the run."""
    lines = ["a warning", "[1, 2]", '{"progress": 3}', '{"progress": [1, 2, "training"]}']
    launched(f"print({chr(10).join(lines)!r}); raise SystemExit(7)", monkeypatch)
    seen = []
    job = sft.SftJob([], TWO, EXACT, tmp_path)
    with pytest.raises(ModelError, match="7"):
        distributed.train_in_processes(job, tiny_base, None, lambda *step: seen.append(step))
    assert seen == [(1, 2, "training")]
    assert capsys.readouterr().out.splitlines() == lines[:3]


def test_command(tmp_path):
    """The user's own configuration file of accelerate changes nothing: accelerate parses the command."""
    from accelerate.commands.launch import launch_command_parser

    command = distributed.launch_command(3, tmp_path)
    arguments = launch_command_parser().parse_args(command[3:])
    assert command[:3] == [sys.executable, "-m", "accelerate.commands.launch"]
    assert arguments.multi_gpu and arguments.num_processes == 3 and arguments.module
    assert arguments.training_script == distributed.__name__
    assert arguments.training_script_args == [str(tmp_path)]


def test_more_processes_than_gpus(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    distributed.check_processes(2)
    with pytest.raises(SettingsError, match="3"):
        distributed.check_processes(3)


def test_launched_twice(monkeypatch, tiny_base, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SettingsError, match="processes"):
        train_adapter(ROWS, tiny_base, CONFIG, tmp_path)


def test_model_without_trees(monkeypatch, tmp_path):
    monkeypatch.setattr(sft, "trains_as_trees", lambda *_: False)
    monkeypatch.setattr(sft, "explain_no_trees", lambda *_: "its attention has sinks")
    job = sft.SftJob([], TWO, EXACT, tmp_path)
    with pytest.raises(SettingsError, match="processes"):
        sft.build_trainer(job, None, None, silent)


def test_error_file(tmp_path, monkeypatch):
    """A process leaves its reason in a file before it ends."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(sys, "argv", ["distributed", str(tmp_path)])
    monkeypatch.setattr(distributed, "_exit_with_parent", lambda: None)

    def fail(rank, folder):
        raise MemoryError

    monkeypatch.setattr(distributed, "_train_as_rank", fail)
    with pytest.raises(MemoryError):
        distributed.main()
    assert "gradient_checkpointing" in (tmp_path / "error-1").read_text(encoding="utf-8")
