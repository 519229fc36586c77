"""A lake of the version fcbb71f: its models are read as they are or are to be made again, its tables are to be made again."""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.cli.report import print_report
from agent_pipeline.datasets.build import build_kto, build_sft, build_sharegpt
from agent_pipeline.datasets.sft import SFT, make_sft_rows
from agent_pipeline.datasets.splits import SPLITS, SplitSizes
from agent_pipeline.errors import DataError, LakeError
from agent_pipeline.evaluation.evaluation_report import read_evaluation_report
from agent_pipeline.evaluation.heldout import heldout_rows
from agent_pipeline.export.report import read_export_report
from agent_pipeline.governance.agent_status import count_splits
from agent_pipeline.governance.explain import explain
from agent_pipeline.governance.forgetting import forget
from agent_pipeline.governance.lineage import model_lineage, session_lineage
from agent_pipeline.judging.curation import CurationBounds
from agent_pipeline.judging.tables import curate_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import promote, serve, serve_champion
from agent_pipeline.promotion.comparison import make_compare_params
from agent_pipeline.promotion.episodes_in_force import NO_WORLD
from agent_pipeline.promotion.next_steps import held_out_tasks
from agent_pipeline.promotion.sanity_questions import choose_other_turns
from agent_pipeline.reports.episode_report import Share, read_episode_report
from agent_pipeline.selection.leaks import find_leaks
from agent_pipeline.selection.tables import CORESET, read_coreset, read_dataset_rows
from agent_pipeline.sessions.session import Session, hash_json
from agent_pipeline.sessions.tables import (
    CURATED,
    JUDGED,
    SESSIONS,
    make_session_row,
    to_batches,
    to_rows,
)
from agent_pipeline.storage.lake import FORMAT, FORMAT_FILE, Lake
from agent_pipeline.training.report import SkippedReport, read_step_report, read_training_report
from agent_pipeline_tests.conftest import SAMPLE

KEY = PartitionKey("shop", "support")
ADAPTER, EVALUATION, EXPORT, MODEL = "a" * 64, "b" * 64, "c" * 64, "d" * 64


SCORE = {
    "call_or_answer": True,
    "tool_name": True,
    "arguments": False,
    "exact": False,
    "invalid_call": False,
}
FIGURES = {
    f"{name}_accuracy": 0.5 for name in ("call_or_answer", "tool_name", "arguments", "exact_call")
}
DIFFERENCE = {"difference": 0.0, "low": None, "high": None, "samples": 1, "tasks": 1}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """What that version's tasks train, evaluate and export wrote, and its asset ollama_model: manifests without `parents` and `passed`, an
    export that holds its evaluation's figures, samples without classes, and current.json beside them."""
    rows = {"rows": 1, "rows_sha256": "e" * 64, "sessions": ["s1"]}
    trained = {
        "base_model": "base",
        "base_revision": "r1",
        "template_sha256": "f" * 64,
        "config": {"lora_r": 16},
        **rows,
    }
    log = [
        {
            "step": 1,
            "epoch": 1.0,
            "loss": 2.0,
            "mean_token_accuracy": 0.5,
            "grad_norm": 1.0,
            "learning_rate": 1e-3,
        }
    ]
    training = {
        "identity": "g" * 64,
        "base": {"name": "base", "revision": "r1"},
        "template": {"family": "chatml", "stops": ["<|im_end|>"]},
        "rows": {"in": 1, "truncated": 0, "dropped_too_long": 0, "trained": 1},
        "row_ids": ["s1"],
        "tokens": 9,
        "trained_tokens": 4,
        "longest_row_tokens": 9,
        "steps": 1,
        "loss_first": 2.0,
        "loss_last": 2.0,
        "log_history": log,
        "seconds": 1.0,
        "tokens_per_second": 9.0,
        "resumed_from": 0,
    }
    measured = {
        "adapter": ADAPTER,
        "config": {"max_samples": 60, "max_new_tokens": 96, "seed": 0, "max_length": 2048},
        **rows | {"sessions": ["s2"]},
    }
    models = {
        name: {"heldout_loss": 1.0, **FIGURES, "invalid_calls": 0} for name in ("base", "adapter")
    }
    compared = dict.fromkeys(("heldout_loss", *FIGURES), DIFFERENCE)
    sample = {
        "row_id": "r2",
        "session_id": "s2",
        "task_key": "t2",
        "turn_index": 1,
        "prompt_tail": "user: a",
        "expected": "b",
    }
    sample |= {
        "expects_call": True,
        "base_answer": "c",
        "adapter_answer": "d",
        "base": SCORE,
        "adapter": SCORE,
    }
    evaluated = {
        "n": 1,
        "n_calls": 1,
        "tasks": 1,
        "counts": {},
        **models,
        "differences": compared,
        "by_tool": {},
        "examples": [],
    }
    exported = {
        "adapter": ADAPTER,
        "adapter_made_from": trained,
        "evaluation": compared,
        "config": {"outtypes": ["f16", "q8_0"], "max_conversations": 4, "max_new_tokens": 48},
        "compared": rows | {"sessions": ["s2"]},
    }
    parity = {
        "ok": True,
        "template": {kind: {"texts": 1, "tokens": 9} for kind in ("f16", "q8_0")},
        "answers": {kind: {"prompts": 1, "exact": 1, "agreement": 1.0} for kind in ("f16", "q8_0")},
        "files": {"model-f16.gguf": 7, "model-q8_0.gguf": 7},
        "ollama": {"gguf": "model-q8_0.gguf", "dialect": "hermes", "num_ctx": 2048, "tools": True},
    }
    modelfile = 'FROM ./model-q8_0.gguf\nTEMPLATE """{{ .Prompt }}"""\nPARAMETER num_ctx 2048\n'
    write(
        tmp_path,
        "sft_adapter",
        ADAPTER,
        trained,
        training,
        {"adapter_config.json": "{}", "adapter_model.safetensors": "content"},
    )
    write(
        tmp_path,
        "evaluation",
        EVALUATION,
        measured,
        evaluated,
        {"samples.json": json.dumps([sample])},
    )
    files = {
        "model-f16.gguf": "content",
        "model-q8_0.gguf": "content",
        "Modelfile": modelfile,
        "parity.json": json.dumps(parity),
    }
    write(tmp_path, "gguf_export", EXPORT, exported, parity, files)
    made_from, name = {"gguf_export": EXPORT, "name": "shop-support"}, {"name": "shop-support"}
    write(tmp_path, "ollama_model", MODEL, made_from, name, {"Modelfile": modelfile})
    return Lake(str(tmp_path))


def write(
    root: Path,
    asset: str,
    identity: str,
    made_from: dict[str, Any],
    report: dict[str, Any],
    files: dict[str, str],
) -> None:
    place = root / "models" / asset / "project=shop" / "agent=support"
    (place / identity[:16]).mkdir(parents=True)
    for name, text in files.items():
        (place / identity[:16] / name).write_text(text, encoding="utf-8")
    manifest = {
        "asset": asset,
        "partition": str(KEY),
        "identity": identity,
        "made_from": made_from,
        "tables": {},
        "made_by": {"version": "0.1.0"},
        "report": report,
        "files": {
            name: {"sha256": hashlib.sha256(text.encode()).hexdigest(), "bytes": len(text.encode())}
            for name, text in files.items()
        },
    }
    (place / identity[:16] / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (place / "current.json").write_text(json.dumps({"identity": identity}), encoding="utf-8")


def test_its_models_are_the_latest_and_what_it_served_is_served_again_once_it_is_promoted(lake):
    latest = {
        asset: lake.latest(asset, KEY).identity
        for asset in ("sft_adapter", "evaluation", "gguf_export", "ollama_model")
    }
    assert latest == {
        "sft_adapter": ADAPTER,
        "evaluation": EVALUATION,
        "gguf_export": EXPORT,
        "ollama_model": MODEL,
    }
    assert "agent-pipeline promote" in serve(lake, KEY).messages[0]
    assert promote(lake, KEY).champion == EXPORT
    assert str(serve(lake, KEY).folder) in serve_champion(lake, KEY)[0]
    preset = (lake.fs.local(lake.root / "serving") / "llama-server.ini").read_text()
    assert f"model-q8_0-{EXPORT[:16]}.gguf" in preset and "ctx-size = 2048" in preset


def test_its_figures_are_shown_and_what_needs_its_turns_asks_for_another_evaluation(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(record=True, width=200)
    print_report(screen, lake, {KEY: NO_WORLD})
    assert (
        "exact tool calls (name and arguments): base 50.0% → adapter 50.0%" in screen.export_text()
    )
    with pytest.raises(DataError, match="older version"):
        make_compare_params(
            lake,
            KEY,
            lake.latest("evaluation", KEY),
            lake.latest("gguf_export", KEY),
            None,
            NO_WORLD,
        )
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(lake.root))
    shown = CliRunner().invoke(app, ["report", str(KEY)])
    assert shown.exit_code == 1 and isinstance(shown.exception, SystemExit | DataError)


def test_lineage_follows_its_manifests(lake):
    assert [each.identity for each in model_lineage(lake, EXPORT).made_from] == [ADAPTER]
    assert {use.asset for use in session_lineage(lake, "s1").models} == {
        "sft_adapter",
        "evaluation",
        "gguf_export",
        "ollama_model",
    }
    assert [use.asset for use in session_lineage(lake, "s2").models] == [
        "evaluation",
        "gguf_export",
    ]


def test_lake_without_a_version_is_read_and_then_marked(lake: Lake) -> None:
    assert not (lake.root / FORMAT_FILE).exists()
    lake.prepare()
    written = json.loads((lake.root / FORMAT_FILE).read_text())
    assert written["format"] == FORMAT
    again = Lake(str(lake.root))
    again.prepare()
    assert again.latest("sft_adapter", KEY).identity == ADAPTER
    assert json.loads((lake.root / FORMAT_FILE).read_text()) == written


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["models", "list"],
        ["promote", str(KEY)],
        ["forget", "s1", "--yes"],
        ["prune", "--delete"],
    ],
)
def test_newer_lake_is_refused(
    lake: Lake, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing reads or writes a lake whose layout this version does not know."""
    (lake.root / FORMAT_FILE).write_text(
        json.dumps({"format": FORMAT + 1, "written_by": "9.9.9", "added_later": True})
    )
    before = {path: path.read_bytes() for path in Path(lake.root.path).rglob("*") if path.is_file()}
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(lake.root))
    monkeypatch.setenv("AGENT_PIPELINE_STORE", str(SAMPLE))
    monkeypatch.setenv("DAGSTER_HOME", str(lake.root) + "-home")
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, LakeError) and "9.9.9" in str(done.exception)
    assert {
        path: path.read_bytes() for path in Path(lake.root.path).rglob("*") if path.is_file()
    } == before


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b'{"format": "1"}', b"{}", b'{"format": 1, "written_by": "\xb0"}'],
)
def test_damaged_version_is_an_error(lake: Lake, content: bytes) -> None:
    (lake.root / FORMAT_FILE).write_bytes(content)
    with pytest.raises(LakeError, match=FORMAT_FILE):
        Lake(str(lake.root))


@pytest.mark.parametrize(
    ("asset", "schema", "added", "use"),
    [
        ("sessions", SESSIONS, "ends_on_tool", lambda lake: explain(lake, "s1", KEY)),
        (
            "judged_sessions",
            JUDGED,
            "verdict_score",
            lambda lake: curate_sessions(lake, KEY, [], CurationBounds(), []),
        ),
        ("curated_sessions", CURATED, "use", lambda lake: build_sft(lake, KEY, SplitSizes())),
        (
            "curated_sessions",
            CURATED,
            "verdict_score",
            lambda lake: build_kto(lake, KEY, SplitSizes(), all_sessions=True),
        ),
        ("sft_coreset", CORESET, "duplicate_of", lambda lake: read_coreset(lake, KEY)),
    ],
)
def test_a_table_without_a_later_column_is_to_be_made_again(
    tmp_path: Path, asset: str, schema: pa.Schema, added: str, use: Callable[[Lake], Any]
) -> None:
    lake = Lake(str(tmp_path))
    older = schema.remove(schema.get_field_index(added))
    lake.stage(asset, KEY, [pa.RecordBatch.from_pylist([], older)], older).commit()
    with pytest.raises(DataError, match=f"{asset} of {KEY} has no column {added}"):
        use(lake)


def sft_row(name: str, split: str) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": f"please {name}"},
        {"role": "assistant", "content": f"done {name}"},
    ]
    return {
        "row_id": name,
        "session_id": name,
        "content_sha256": hash_json(messages),
        "task_key": f"task of {name}",
        "split": split,
        "messages": messages,
        "tools": [],
        "score": 1.0,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "turn_classes": ["answer"],
        "verdict_by": "label",
        "served_model": False,
    }


def test_one_table_of_all_splits(tmp_path: Path) -> None:
    """Versions before `heldout_dataset` kept the held-out rows in `sft_dataset`.

    Every reader of rows still finds them there, as often as there are rows.
    """
    lake = Lake(str(tmp_path))
    rows = [sft_row(f"{split}{index}", split) for index in range(3) for split in SPLITS]
    lake.stage("sft_dataset", KEY, to_batches(rows, SFT), SFT).commit()
    for split in SPLITS:
        expected = [row for row in rows if row["split"] == split]
        assert list(read_dataset_rows(lake, KEY, (split,))) == expected
        assert heldout_rows(lake, KEY, split) == expected
    assert list(read_dataset_rows(lake, KEY, SPLITS)) == rows
    assert count_splits(lake, KEY) == dict.fromkeys(SPLITS, 3)
    tasks = held_out_tasks(lake, KEY)
    assert len(tasks.first_seen) == 9 and len(tasks.select) == 3
    assert find_leaks(lake, KEY).held_out == 6
    assert len(choose_other_turns(lake, PartitionKey("shop", "other"), 9)) == 3
    build_sharegpt(lake, KEY)
    assert lake.open("sharegpt_dataset", KEY).metadata.num_rows == 9
    assert {row.facts["split"] for row in session_lineage(lake, "test1").rows} == {"test"}
    forget(lake, "test1")
    assert count_splits(lake, KEY) == {"train": 3, "select": 3, "test": 2}


def test_next_run_splits_the_table(tmp_path: Path) -> None:
    """The first run of this version moves the held-out rows to their own table, and loses none."""
    lake = Lake(str(tmp_path))
    sessions = [
        Session(
            session_id=f"s{index:02}", project="shop", agent="support", source="test",
            messages=sft_row(f"s{index:02}", "")["messages"], task_key=f"task {index}",
        )
        for index in range(40)
    ]  # fmt: skip
    facts = {"kept": True, "use": "positive", "verdict_score": 1.0, "missed_measures": []}
    curated = [make_session_row(session) | facts for session in sessions]
    lake.stage("curated_sessions", KEY, to_batches(curated, CURATED), CURATED).commit()
    earlier = list(to_rows(to_batches(make_sft_rows(curated, SplitSizes()), SFT)))
    lake.stage("sft_dataset", KEY, to_batches(earlier, SFT), SFT).commit()
    build_sft(lake, KEY, SplitSizes())
    splits = {
        table: set(lake.open(table, KEY).read(["split"])["split"].to_pylist())
        for table in ("sft_dataset", "heldout_dataset")
    }
    assert splits == {"sft_dataset": {"train", "select"}, "heldout_dataset": {"test"}}
    assert list(read_dataset_rows(lake, KEY, SPLITS)) == earlier


def test_report_of_episodes(lake: Lake, tmp_path: Path) -> None:
    """A report without later fields is read; a report that cannot be read asks for new episodes."""
    older = {"players": {"model": {"done": {"n": 3, "of": 4}}}}
    for identity, report in (("1" * 64, older), ("2" * 64, {"players": {"model": {"done": 3}}})):
        write(tmp_path, "episodes", identity, {"gguf_export": EXPORT}, report, {})
    readable = lake.find("episodes", KEY, "1" * 64)
    assert readable is not None and read_episode_report(readable).model.done == Share(3, 4)
    unreadable = lake.find("episodes", KEY, "2" * 64)
    assert unreadable is not None
    with pytest.raises(DataError):
        read_episode_report(unreadable)


def test_report_of_an_evaluation(lake: Lake, tmp_path: Path) -> None:
    """The figures of an older evaluation are read; a report without figures asks for another."""
    report = read_evaluation_report(lake.latest("evaluation", KEY))
    assert (report.adapter.exact_call_accuracy, report.adapter.verified_calls) == (0.5, None)
    write(tmp_path, "evaluation", "3" * 64, {"adapter": ADAPTER}, {"n": 1}, {})
    unreadable = lake.find("evaluation", KEY, "3" * 64)
    assert unreadable is not None
    with pytest.raises(DataError):
        read_evaluation_report(unreadable)


def test_report_of_a_training(lake: Lake, tmp_path: Path) -> None:
    """The figures of an older training are read; a report without them asks for a new training."""
    report = read_training_report(lake.latest("sft_adapter", KEY))
    assert (report.longest_row_tokens, report.loss_last, report.device) == (9, 2.0, "")
    write(tmp_path, "sft_adapter", "4" * 64, {}, {"steps": "many"}, {})
    write(tmp_path, "dpo_adapter", "5" * 64, {}, {"skipped": "too few pairs", "rows": {}}, {})
    unreadable = lake.find("sft_adapter", KEY, "4" * 64)
    skipped = lake.find("dpo_adapter", KEY, "5" * 64)
    assert unreadable is not None and skipped is not None
    with pytest.raises(DataError):
        read_step_report(unreadable)
    assert read_step_report(skipped) == SkippedReport(skipped="too few pairs")
    with pytest.raises(DataError, match="too few pairs"):
        read_training_report(skipped)


def test_report_of_an_export(lake: Lake, tmp_path: Path) -> None:
    """The served file of an older export is read; a report without it asks for a new export."""
    report = read_export_report(lake.latest("gguf_export", KEY))
    assert (report.ollama.gguf, report.ollama.num_ctx) == ("model-q8_0.gguf", 2048)
    assert report.answers["f16"].near_ties == 0 and report.gate == {}
    write(tmp_path, "gguf_export", "6" * 64, {}, {"ollama": 3}, {})
    unreadable = lake.find("gguf_export", KEY, "6" * 64)
    assert unreadable is not None
    with pytest.raises(DataError):
        read_export_report(unreadable)
