"""No damaged file takes a reader down: it is read, or refused with a sentence."""

import random
from pathlib import Path

import pytest

from agent_pipeline_tests.sources.damage import COUNT, damaged, must_survive, survivors
from agent_pipeline_tests.sources.samples import SAMPLES, put

REAL = {
    "tau_bench": ("tau-bench/gpt-4o-airline_tasks00-24.json", 60_000),
    "agentdojo": ("agentdojo/none_banking_slack_workspace.jsonl", 40_000),
    "inspect_ai_json": (
        "inspect-logs/tests/analysis/test_logs/2025-05-12T20-28-13-04-00_popularity.json",
        0,
    ),
    "inspect_ai_eval": ("inspect-logs/tests/log/test_eval_log/log_streaming.eval", 0),
    "toolbench": ("toolbench/data_example/answer/G1_answer/57_ChatGPT_DFS_woFilter_w2.json", 0),
    "swe_agent": ("swe-agent/trajectories/demonstrations/function_calling_simple.traj", 0),
}
"""A real file of a format, and how much of it is enough (0: all of it)."""


@pytest.mark.parametrize("name", SAMPLES)
def test_damaged_files_are_read_or_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    reader, files = SAMPLES[name]
    read = 0
    for seed in range(COUNT):
        chosen = random.Random(seed).choice(sorted(files))
        read += must_survive(
            reader, put(tmp_path / str(seed), files | {chosen: damaged(files[chosen], seed)})
        )
    assert read > 0, "the damage leaves nothing to read: the test says nothing"


@pytest.mark.parametrize("name", REAL)
def test_damaged_real_files_are_read_or_refused_with_a_sentence(
    name: str, real_traces: Path, tmp_path: Path
) -> None:
    reader, _ = SAMPLES[name]
    file, size = REAL[name]
    raw = (real_traces / file).read_bytes()
    raw = raw[:size] if size else raw
    assert survivors(reader, raw, tmp_path, Path(file).suffix) > 0, (
        "the damage leaves nothing to read: the test says nothing"
    )
