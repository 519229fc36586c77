"""`python -m benchmarks.first_day [NAME ...]`: the first day of a new user with exports.

Every export is tried in an empty folder with two commands, `init PATH --yes` and `doctor`. The
answer of `doctor` is compared with what a few lines of code read from the files themselves: how
many sessions there are, and how many have a good verdict. The table has the wall-clock time of both
commands, and the processor time of each, because other programs stretch the wall-clock time.

With `--train`, every export that is trainable is then trained with a tiny base model of random
weights and the preset `smoke`, by `materialize`.
"""

import argparse
import json
import os
import re
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_pipeline.testing.tiny_model import make_tiny_model
from agent_pipeline_tests.tiny import embedded_base
from benchmarks.redaction import REAL_TRACES

PUBLIC_REPORTS = REAL_TRACES.parent / "public-reports"
PROGRAM = (sys.executable, "-m", "agent_pipeline.cli.app")


@dataclass(frozen=True)
class Truth:
    """What the files of an export say, read without a reader of the package.

    Attributes:
        sessions: Number of sessions.
        good: Number of sessions with a good verdict.
    """

    sessions: int
    good: int


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def read_tau_bench(folder: Path) -> Truth:
    records = json.loads((folder / "gpt-4o-airline_tasks00-24.json").read_text(encoding="utf-8"))
    return Truth(len(records), sum(record["reward"] == 1.0 for record in records))


def read_agentdojo(folder: Path) -> Truth:
    """A run is good if its task is done. An attacked run must also resist the attack."""
    sessions = good = 0
    for file in folder.glob("*.jsonl"):
        for record in read_json_lines(file):
            sessions += 1
            attacked = record.get("injection_task_id") and record.get("attack_type")
            good += record["utility"] is True and not (attacked and record["security"])
    return Truth(sessions, good)


def read_toolbench(folder: Path) -> Truth:
    records = [json.loads(file.read_text(encoding="utf-8")) for file in folder.rglob("*_DFS*.json")]
    return Truth(len(records), sum(bool(record["win"]) for record in records))


def read_omniagents(folder: Path) -> Truth:
    sessions: set[str] = set()
    for file in folder.glob("sessions/**/*.db"):
        with sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True) as database:
            sessions |= {row[0] for row in database.execute("SELECT session_id FROM history")}
    with sqlite3.connect(
        f"file:{folder / 'traces' / 'tau.db'}?mode=ro&immutable=1", uri=True
    ) as database:
        judged = dict(database.execute("SELECT group_id, judgment FROM analysis").fetchall())
    good = sum(verdict == "acceptable" for key, verdict in judged.items() if key in sessions)
    return Truth(len(sessions), good)


def read_sessions_database(file: Path) -> Truth:
    """The verdicts are in a file of labels beside the database."""
    labels = json.loads((file.parent / "openai_agents_labels.json").read_text(encoding="utf-8"))
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
        query = "SELECT count(DISTINCT session_id) FROM agent_messages"
        (sessions,) = database.execute(query).fetchone()
    return Truth(sessions, sum(label["reward"] == 1.0 for label in labels))


def without_verdicts(sessions: int) -> Callable[[Path], Truth]:
    return lambda path: Truth(sessions, 0)


@dataclass(frozen=True)
class Export:
    """An export that a new user brings.

    Attributes:
        name: The name in the table.
        path: The file or folder.
        read_truth: Reads what the files say; None if a few lines cannot say it.
    """

    name: str
    path: Path
    read_truth: Callable[[Path], Truth] | None = None


EXPORTS = (
    Export("tau-bench", REAL_TRACES / "tau-bench", read_tau_bench),
    Export("AgentDojo", REAL_TRACES / "agentdojo", read_agentdojo),
    Export("Inspect logs", REAL_TRACES / "inspect-logs"),
    Export("SWE-agent", REAL_TRACES / "swe-agent"),
    Export("ToolBench", REAL_TRACES / "toolbench", read_toolbench),
    Export(
        "OpenAI Agents SDK",
        REAL_TRACES / "stores" / "openai_agents_sessions.db",
        read_sessions_database,
    ),
    Export("omniagents", REAL_TRACES / "stores" / "omniagents_home", read_omniagents),
    Export("Claude Code", PUBLIC_REPORTS / "cc_parallel_tree", without_verdicts(1)),
    Export("Codex", PUBLIC_REPORTS / "codex_fork", without_verdicts(2)),
    Export("Gemini CLI", PUBLIC_REPORTS / "gemini_cancelled"),
    Export("LiteLLM", PUBLIC_REPORTS / "litellm_cut"),
    Export("Langfuse", PUBLIC_REPORTS / "langfuse_strands"),
    Export("LangSmith", PUBLIC_REPORTS / "langsmith_partial_json"),
    Export("OpenHands", PUBLIC_REPORTS / "openhands_parallel", without_verdicts(1)),
)


@dataclass(frozen=True)
class Ran:
    """A command that ran.

    Attributes:
        code: The exit code.
        output: The standard output.
        errors: The standard error.
        seconds: The wall-clock time.
        processor_seconds: The processor time.
    """

    code: int
    output: str
    errors: str
    seconds: float
    processor_seconds: float


def run(folder: Path, *words: str) -> Ran:
    """Run a command of agent-pipeline in a folder, as a user does."""
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "DAGSTER_HOME": str(folder / "dagster"),
    }
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [*PROGRAM, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(done.returncode, done.stdout, done.stderr, time.perf_counter() - began, processor)


def describe_answer(report: dict[str, Any]) -> str:
    """Return the answer of doctor: how many agents are trainable, and the first reason against."""
    ready = [agent for agent in report["agents"] if agent["is_ready"]]
    waiting = [agent for agent in report["agents"] if not agent["is_ready"]]
    parts = [f"{len(ready)} of {len(report['agents'])} agents trainable"]
    kinds = sorted({blocker["kind"] for agent in waiting for blocker in agent["blockers"]})
    if kinds:
        parts.append(f"not yet because: {', '.join(kinds)}")
    return "; ".join(parts + report["errors"])


def compare_with_truth(report: dict[str, Any], truth: Truth | None) -> str:
    """Return whether the counts of doctor are those of the files."""
    sessions = sum(agent["contents"]["sessions"] for agent in report["agents"])
    good = sum(agent["judges"]["acceptable"] for agent in report["agents"])
    if truth is None:
        return f"{sessions:,} / {good:,}"
    same = (sessions, good) == (truth.sessions, truth.good)
    files = "" if same else f" (files: {truth.sessions:,} / {truth.good:,})"
    return f"{sessions:,} / {good:,}{files}"


def make_base(folder: Path) -> Path:
    """Write a tiny model with the tokenizer and the context of the default base model."""
    from transformers import AutoTokenizer

    return make_tiny_model(
        folder,
        AutoTokenizer.from_pretrained(embedded_base().path),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        max_position_embeddings=8192,
        initializer_range=0.15,
    )


def train(folder: Path, report: dict[str, Any], base: Path) -> str:
    """Train the first trainable agent with the tiny model, and return the outcome."""
    agent = next((agent for agent in report["agents"] if agent["is_ready"]), None)
    if agent is None:
        return "–"
    file = folder / "pipeline.toml"
    text = re.sub(
        r"(?m)^base_model = .*$",
        f'base_model = "{base}"\npreset = "smoke"',
        file.read_text(encoding="utf-8"),
    )
    file.write_text(text, encoding="utf-8")
    done = run(folder, "materialize", agent["partition"])
    if done.code:
        return f"failed: {(done.errors or done.output).strip().splitlines()[-1][:200]}"
    return f"trained in {done.seconds:.0f} s"


def try_export(export: Export, base: Path | None) -> str:
    """Try an export as a new user does, and return a row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = run(folder, "init", str(export.path), "--yes")
        second = run(folder, "doctor", "--json")
        seconds = first.seconds + second.seconds
        processor = f"{first.processor_seconds:.1f} | {second.processor_seconds:.1f}"
        start = f"| {export.name} | {seconds:.0f} | {processor} "
        if not second.output.startswith("{"):
            error = (first.errors + second.errors).strip().splitlines()[-1:]
            return f"{start}| – | no report: {' '.join(error)} | – |"
        report = json.loads(second.output)
        truth = export.read_truth(export.path) if export.read_truth else None
        outcome = train(folder, report, base) if base else "–"
        counts = compare_with_truth(report, truth)
        return f"{start}| {counts} | {describe_answer(report)} | {outcome} |"


def main(words: Sequence[str] | None = None) -> None:
    """Print the table, one row per export."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="Names of exports. Default: all.")
    parser.add_argument("--train", action="store_true", help="Train what is trainable.")
    options = parser.parse_args(words)
    heading = "| export | seconds | `init` | `doctor` | sessions / good | answer | `materialize` |"
    print(f"{heading}\n|---|---:|---:|---:|---:|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        base = make_base(Path(folder) / "base") if options.train else None
        for export in EXPORTS:
            if not options.names or export.name in options.names:
                print(try_export(export, base), flush=True)


if __name__ == "__main__":
    main()
