"""Training: it learns, it repeats itself, it survives a kill."""

import json
from itertools import cycle
from pathlib import Path

import pytest
import torch

from agent_pipeline.engine.scoring import average_losses, compute_losses_of_base
from agent_pipeline.errors import DataError
from agent_pipeline.models import threads
from agent_pipeline.models.device import MIN_ONEDNN_SPEED, measure_product_speeds
from agent_pipeline.models.threads import ThreadControl
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.training.trainers.common import CHECKPOINT_FILES, prepare_work_dir
from agent_pipeline_tests.tiny import with_jinja
from agent_pipeline_tests.training.kills import killed
from agent_pipeline_tests.training.world import TRAINING, row, train_adapter

pytestmark = pytest.mark.slow
ROWS = [row(number) for number in range(24)]
HELDOUT = [row(number, "test") for number in (25, 31)]


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def trained(tiny_base, tmp_path_factory):
    out = tmp_path_factory.mktemp("adapter")
    heard = []
    report = train_adapter(
        ROWS, tiny_base, TRAINING, out, HELDOUT, lambda *event: heard.append(event)
    )
    return out, report, heard


def test_it_learns(trained):
    _, report, _ = trained
    assert report.loss_last < report.loss_first * 0.7
    assert report.heldout["after"] < report.heldout["before"] * 0.7
    assert report.steps == 24 and len(report.log_history) == 24
    assert (report.rows["in"], report.rows["trained"], report.rows["dropped_share"]) == (
        24,
        24,
        0.0,
    )


def test_the_directory_holds_the_adapter_its_tokenizer_and_its_report(trained, tiny_base):
    out, report, _ = trained
    assert {
        "adapter_model.safetensors",
        "adapter_config.json",
        "training.json",
        "tokenizer.json",
        "chat_template.jinja",
    } <= files(out).keys()
    assert not any(name.startswith("checkpoint") for name in files(out))
    saved = json.loads((out / "training.json").read_text())
    assert saved.items() <= report.to_json().items()
    assert (
        saved["base"] == {"name": "tiny-llama", "revision": tiny_base.revision}
        and saved["template"]["origin"] == "hermes"
    )
    assert "<tool_response>" in (out / "chat_template.jinja").read_text()
    assert str(tiny_base.path) not in (out / "adapter_config.json").read_text()
    # safetensors lets only the owner read what it writes.
    assert (
        len(
            {
                (out / name).stat().st_mode
                for name in ("adapter_model.safetensors", "adapter_config.json", "tokenizer.json")
            }
        )
        == 1
    )


def test_progress_says_step_loss_and_speed(trained):
    _, _, heard = trained
    steps = [(done, total) for done, total, text in heard if "tokens/s" in text and "loss" in text]
    assert steps == [(step, 24) for step in range(1, 25)]


def test_the_same_input_gives_the_same_bytes(trained, tiny_base, tmp_path):
    out, _, _ = trained
    train_adapter(ROWS, tiny_base, TRAINING, tmp_path, HELDOUT)
    assert files(tmp_path) == files(out)


def test_a_killed_training_goes_on_and_ends_with_the_same_bytes(trained, tiny_base, tmp_path):
    out = tmp_path / "out"
    killed(train_adapter, ROWS, tiny_base, TRAINING, out, HELDOUT, step=21)
    assert not (out / "training.json").exists()
    # The kill may have come in the middle of writing a checkpoint: the half-written one must not be trusted.
    (out / "checkpoints" / "checkpoint-21").mkdir()

    heard = []
    report = train_adapter(
        ROWS, tiny_base, TRAINING, out, HELDOUT, lambda *event: heard.append(event)
    )
    assert report.resumed_from == 20
    assert [done for done, _, text in heard if "loss" in text and "tokens/s" in text] == [
        21,
        22,
        23,
        24,
    ]
    assert files(out) == files(trained[0])


def test_checkpoints_of_another_run_are_not_gone_on_from(tmp_path):
    work = tmp_path / "checkpoints"
    assert prepare_work_dir(work, "one") is None
    for step in (2, 10):
        (work / f"checkpoint-{step}").mkdir()
        for name in (*CHECKPOINT_FILES, "adapter_model.safetensors"):
            (work / f"checkpoint-{step}" / name).write_text("{}")
    assert prepare_work_dir(work, "one") == work / "checkpoint-10"
    (work / "checkpoint-10" / "optimizer.pt").unlink()
    assert prepare_work_dir(work, "one") == work / "checkpoint-2"
    assert prepare_work_dir(work, "two") is None and not list(work.glob("checkpoint-*"))


def test_long_rows_are_shortened_or_dropped_and_counted(tiny_base, tmp_path):
    def talk(number, words):
        long = row(number)
        long["messages"] = [
            *long["messages"],
            {"role": "user", "content": "sun " * words},
            {"role": "assistant", "content": "Yes."},
        ]
        return long

    config = TRAINING.changed(max_length=320, max_steps=1, most_dropped=1.0)
    no_answer = {**row(3), "messages": row(3)["messages"][:2]}
    report = train_adapter(
        [row(0), talk(1, 90), talk(2, 900), no_answer], tiny_base, config, tmp_path
    )
    tokens = report.rows.pop("tokens")
    assert tokens["median"] <= 320 < tokens["longest"]
    assert report.rows == {
        "in": 4, "truncated": 1, "unsourced_calls": 0, "unsourced_answers": 0, "dropped_no_source": 0, "special_literals": 0, "trained": 2,
        "dropped_too_long": 1, "dropped_not_rendered": 0, "dropped_not_shown": 0, "dropped_not_proven": 1,
        "dropped_share": 0.5,
    }  # fmt: skip
    assert report.row_ids == ["row-0", "row-1"] and report.longest_row_tokens <= 320
    assert report.log_history[0]["learning_rate"] > 0, "a single step trains at a rate above 0"


def test_a_row_that_the_template_refuses_is_left_out_and_stops_nothing(tiny_renderer):
    refusal = "{% if messages|length > 3 %}{{ raise_exception('no calls') }}{% endif %}"
    renderer = with_jinja(tiny_renderer, refusal + tiny_renderer.template.jinja)
    short = {**row(1), "messages": [row(1)["messages"][1], row(1)["messages"][4]]}
    encoded, counts, first_dropped = encode_rows(renderer, [row(0), short], 512)
    assert [each.row_id for each in encoded] == ["row-1"]
    assert (counts["dropped_not_rendered"], counts["dropped_share"]) == (
        1,
        0.5,
    ) and "no calls" in first_dropped


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([], "no rows to train on"),
        ([row(0), row(1, "test")], "of the split test"),
        (
            [{**row(0), "messages": [{"role": "user", "content": "only me"}]}],
            "None of 1 rows.*it contains no assistant tokens",
        ),
        (
            [
                {
                    **row(0),
                    "messages": [{"role": "user", "content": "x" * 3000}, *row(0)["messages"][-1:]],
                }
            ],
            "None of 1 rows.*longer than 512 tokens",
        ),
    ],
)
def test_rows_that_cannot_be_trained_on_are_one_sentence(tiny_base, tmp_path, rows, what):
    with pytest.raises(DataError, match=what) as error:
        train_adapter(rows, tiny_base, TRAINING, tmp_path)
    assert "\n" not in str(error.value)


def test_the_losses_in_the_report_are_those_of_the_saved_adapter(trained, tiny_base):
    out, report, _ = trained
    assert average_losses(compute_losses_of_base(HELDOUT, tiny_base, out)) == pytest.approx(
        report.heldout["after"], rel=1e-5
    )
    assert average_losses(compute_losses_of_base(HELDOUT, tiny_base)) == pytest.approx(
        report.heldout["before"], rel=1e-5
    )


@pytest.mark.parametrize("bf16", [False, True])
def test_threads(bf16, tiny_base, tmp_path, monkeypatch):
    """The files do not depend on the number of threads, which changes before every step. The report
    has the threads, and the share of the measured rate that the training used."""
    if measure_product_speeds()["oneDNN"] < MIN_ONEDNN_SPEED and not bf16:
        pytest.skip("MKL is faster on this CPU, and its products depend on the threads")
    config = TRAINING.changed(max_steps=3, precision="bfloat16" if bf16 else "float32")
    before, folders = torch.get_num_threads(), []
    for numbers in ([1], [2, 1], [1, 2, 2]):
        turns = cycle(numbers)

        def measure(counts, of_bf16, turns=turns):
            fastest = next(turns)
            return {count: 1e9 * (1 + (count == fastest)) for count in counts}

        monkeypatch.setattr("agent_pipeline.models.threads.PAUSE_SECONDS", 0.0)
        monkeypatch.setattr(threads, "_CONTROLS", [ThreadControl(lambda: 2, measure)])
        folders.append(tmp_path / str(len(folders)))
        report = train_adapter(ROWS, tiny_base, config, folders[-1])
        use = report.threads
        assert use.limit == 2 and use.flops == pytest.approx(2e9)
        assert 1 < use.mean < 2 or numbers == [1]
        assert report.matrix_share > 0
    torch.set_num_threads(before)
    assert files(folders[0]) == files(folders[1]) == files(folders[2])
