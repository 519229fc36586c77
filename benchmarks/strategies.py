"""`python -m benchmarks.strategies`: what a small model learns from a quarter of the sample's rows, chosen by each coreset strategy.

The data assets of `shop/support` are made once, by the graph. Then, seed by seed, each strategy of the registry chooses `SHARE` of the
training rows, the embedded base model is trained on them as the demo does (the defaults of `TrainingConfig`), and the adapter answers every
held-out turn. All get `STEPS` optimizer steps of two rows; the seed is the selection's, and that of the rows' order and the adapter's first
values.

A run is a line of the file `RESULTS`; one that is there is not made again, so that a stopped benchmark goes on, and one that is started
twice shares the work. Names after the command choose strategies, or `all rows, one pass`, which takes as many steps as that needs.
`SEEDS=0` only prints the table of what is there.
"""

import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from agent_pipeline.config.settings import load_settings
from agent_pipeline.datasets.sft_tables import read_sft_rows
from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.paired import Difference, paired
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import EMBEDDED, BaseModel, resolve_base_model
from agent_pipeline.selection.strategies import STRATEGIES
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.config import TrainingConfig

ROOT = Path(__file__).parents[1]
AGENT = PartitionKey("shop", "support")
RESULTS = Path(os.environ.get("RESULTS", ROOT / ".cache" / "strategies.jsonl"))
SHARE = 0.25
SEEDS = int(os.environ.get("SEEDS", "3"))
STEPS = int(os.environ.get("STEPS", "11"))
MAX_NEW_TOKENS = 96
BASE, ALL = "no training", "all rows, one pass"

Row = dict[str, Any]
Run = dict[str, Any]


def data_assets(store: Path = ROOT / "data" / "sample", key: PartitionKey = AGENT) -> list[Row]:
    """The rows of `sft_dataset`, made by the graph from a store."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "AGENT_PIPELINE_STORE": str(store),
            "AGENT_PIPELINE_LAKE": f"{folder}/lake",
            "DAGSTER_HOME": f"{folder}/dagster",
        }
        command = [
            sys.executable,
            "-m",
            "agent_pipeline.cli.app",
            "materialize",
            str(key),
            "--select",
            "+sft_dataset",
        ]
        subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)
        return list(read_sft_rows(Lake(f"{folder}/lake"), key))


class Bench:
    """The rows, the base model, and what is computed once for all strategies."""

    def __init__(self) -> None:
        rows = data_assets()
        self.train, self.test = (
            [row for row in rows if row["split"] == split] for split in ("train", "test")
        )
        self.size = math.ceil(SHARE * len(self.train))
        self.base: BaseModel = resolve_base_model(EMBEDDED, load_settings().cache_path)
        made_from = [(row["row_id"], row["content_sha256"], row["split"]) for row in rows]
        config = self.config(0, STEPS).identity()
        self.setting = hash_json(
            [made_from, self.base.revision, self.size, config, MAX_NEW_TOKENS]
        )[:16]
        self._losses: tuple[dict[str, float | None], dict[str, int]] | None = None

    def config(self, seed: int, steps: int) -> TrainingConfig:
        """The demo's, but for the steps: as many passes as they need, no checkpoints."""
        return TrainingConfig(
            seed=42 + seed, num_train_epochs=1000, max_steps=steps, save_steps=10_000
        )

    def losses(self) -> tuple[dict[str, float | None], dict[str, int]]:
        """By row id: the base model's loss on each training row, and the assistant's tokens."""
        if self._losses is None:
            from agent_pipeline.engine.scoring import compute_losses_of_base

            found = list(
                zip(
                    (row["row_id"] for row in self.train),
                    compute_losses_of_base(self.train, self.base),
                    strict=True,
                )
            )
            self._losses = (
                {name: each.loss for name, each in found},
                {name: each.trained_tokens for name, each in found},
            )
        return self._losses

    def chosen(self, strategy: str, seed: int) -> list[Row]:
        """The rows that a strategy takes, as the asset `sft_coreset` would; DataError where it has nothing to choose by."""
        from agent_pipeline.selection.candidates import Candidates
        from agent_pipeline.selection.coresets import CoresetOptions, select

        if strategy == ALL:
            return self.train
        losses, lengths = self.losses() if STRATEGIES[strategy].needs_losses else (None, None)
        options = CoresetOptions(strategy=strategy, target_size=self.size, seed=seed)
        index = select(Candidates.of(lambda: self.train), options, losses, lengths).index
        ids = set(index.filter(index["chosen"])["row_id"].to_pylist())
        return [row for row in self.train if row["row_id"] in ids]

    def run(self, strategy: str, seed: int) -> Run:
        """One line of the results: what was chosen, and how the model trained on it does on the held-out tasks."""
        from agent_pipeline.training.provenance import SftInput
        from agent_pipeline.training.sft import train_adapter

        began = time.monotonic()
        head = {"setting": self.setting, "strategy": strategy, "seed": seed}
        if strategy == BASE:
            return {**head, **self.tested(None), "seconds": time.monotonic() - began}
        try:
            rows = self.chosen(strategy, seed)
        except DataError as error:
            return {**head, "error": str(error)}
        steps = math.ceil(len(rows) / 2) if strategy == ALL else STEPS
        with tempfile.TemporaryDirectory() as folder:
            report = train_adapter(
                SftInput(rows, self.base, self.config(seed, steps)), Path(folder)
            )
            gc.collect()  # the trainer's cycles hold a model
            trained = time.monotonic() - began
            kept = {
                name: getattr(report, name)
                for name in ("steps", "tokens", "trained_tokens", "loss_last", "row_ids")
            }
            return {
                **head,
                **kept,
                **self.tested(Path(folder)),
                "training_seconds": trained,
                "seconds": time.monotonic() - began,
            }

    def tested(self, adapter: Path | None) -> Run:
        """What `evaluation` measures, for one model: `turns` (task and scores of each) and `losses` (task, loss, tokens of each row)."""
        from agent_pipeline.evaluation.answer_scoring import score
        from agent_pipeline.evaluation.samples import turn_samples
        from agent_pipeline.evaluation.turns import TurnAnswerer
        from agent_pipeline.tokenization.encoding import encode_row

        answering = TurnAnswerer.of(self.base, adapter)
        questions = [
            question
            for each in turn_samples(self.test)[0]
            if (question := answering.question(each, MAX_NEW_TOKENS))
        ]
        rows = [
            (row["task_key"], fitting)
            for row in self.test
            if (fitting := encode_row(answering.renderer, row, 2048))
        ]
        read = answering.forward([fitting for _, fitting in rows], questions)
        scores = [
            (each.sample, score(each.sample, reply.text, reply.cut))
            for each, reply in zip(questions, read.replies, strict=True)
        ]
        return {
            "turns": [
                [of.task_key, got.exact, got.tool_name, got.called == bool(of.calls), got.right]
                for of, got in scores
            ],
            "losses": [
                [task, each.loss, each.trained_tokens]
                for (task, _), each in zip(rows, read.losses, strict=True)
            ],
        }


def measured(runs: Iterable[Run], metric: str) -> tuple[list[str], list[float], list[int]]:
    """Tasks, values and weights of a metric over all runs: `loss` by row and token, else a score by turn, where it has one.

    `right` is of all turns: the exact call where one was expected, else an answer of the same class and values.
    """
    if metric == "loss":
        found = [
            (task, loss, tokens)
            for run in runs
            for task, loss, tokens in run["losses"]
            if loss is not None
        ]
    else:
        turns = [
            (
                task,
                {"exact": exact, "tool_name": tool, "call_or_answer": kind, "right": right}[metric],
            )
            for run in runs
            for task, exact, tool, kind, right in run["turns"]
        ]
        found = [(task, float(score), 1) for task, score in turns if score is not None]
    return [each[0] for each in found], [each[1] for each in found], [each[2] for each in found]


def mean(runs: Sequence[Run], metric: str) -> Difference | None:
    """The mean over seeds and turns (or tokens), with its interval over draws of tasks."""
    tasks, values, weights = measured(runs, metric)
    return paired(tasks, values, [0.0] * len(values), weights=weights)


def against(base: Sequence[Run], runs: Sequence[Run], metric: str) -> Difference | None:
    """The mean of `runs` − `base` where both have the seed, turn by turn."""
    seeds = {run["seed"] for run in base} & {run["seed"] for run in runs}
    (tasks, before, weights), (_, after, _) = (
        measured([run for run in _sorted(some) if run["seed"] in seeds], metric)
        for some in (base, runs)
    )
    return paired(tasks, after, before, weights=weights)


def _sorted(runs: Iterable[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run["seed"])


def shown(found: Difference | None, sign: str = "", metric: str = "") -> str:
    """`mean [low, high]`, in hundredths or, for a loss, as it is; a dash where there is none."""
    if found is None:
        return "–"
    scale, digits = (1, 2) if metric == "loss" else (100, 0)
    mean, low, high = (
        f"{scale * (each or 0):{sign}.{digits}f}" for each in (found.value, found.low, found.high)
    )
    return f"{mean} [{low}, {high}]" if found.low is not None else mean


def table(results: Sequence[Run], names: Iterable[str]) -> str:
    """A line a strategy, the best mean of exact calls first; those that could not choose last, with their reason."""
    runs = {
        name: [run for run in results if run["strategy"] == name and "turns" in run]
        for name in names
    }
    failed = {run["strategy"]: run["error"] for run in results if "error" in run}
    means = {name: found for name, some in runs.items() if (found := mean(some, "exact"))}
    heads = [
        "strategy",
        "exact calls, %",
        "each seed",
        "− random's",
        "right tool, %",
        "all turns right, %",
        "− random's",
        "held-out loss",
    ]
    lines = [f"| {' | '.join([*heads, heads[3]])} |", "|---|---|---|---|---:|---:|---|---:|---|"]
    for name in sorted(means, key=lambda name: -means[name].value):
        some, chance = runs[name], runs.get("random", []) if name not in ("random", BASE) else []
        tool, right, loss = (
            found.value if (found := mean(some, metric)) else 0
            for metric in ("tool_name", "right", "loss")
        )
        calls, turns, losses = (
            shown(against(chance, some, metric), "+", metric)
            for metric in ("exact", "right", "loss")
        )
        each = " ".join(
            f"{100 * one.value:.0f}" for run in _sorted(some) if (one := mean([run], "exact"))
        )
        cells = [
            name,
            shown(means[name]),
            each,
            calls,
            f"{100 * tool:.0f}",
            f"{100 * right:.0f}",
            turns,
            f"{loss:.2f}",
            losses,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        f"| {name} | {reason} |" + " |" * 7 for name, reason in failed.items() if name not in means
    ]
    return "\n".join(lines)


def results(setting: str) -> list[Run]:
    """The runs of this setting that the file holds."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return [run for line in lines if (run := json.loads(line))["setting"] == setting]


def main(names: Sequence[str]) -> None:
    bench = Bench()
    names = list(names) or ["random", *(name for name in STRATEGIES if name != "random")]
    print(
        f"{bench.size} of {len(bench.train)} rows, {STEPS} steps, {len(bench.test)} held-out rows, setting {bench.setting}",
        flush=True,
    )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    # Seed by seed: whatever stops it leaves whole seeds to compare.
    for name, seed in [(BASE, 0)] * bool(SEEDS) + [
        (name, seed) for seed in range(SEEDS) for name in names
    ]:
        with (
            suppress(Timeout),
            FileLock(f"{RESULTS}.{name}-{seed}.lock", timeout=0),
        ):  # else another process is at it
            if not any(
                (run["strategy"], run["seed"]) == (name, seed) for run in results(bench.setting)
            ):
                run = bench.run(name, seed)
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(run) + "\n")
                found = (
                    run.get("error") or f"{shown(mean([run], 'exact'))} in {run['seconds']:.0f} s"
                )
                print(f"{time.strftime('%H:%M:%S')} {name} {seed}: {found}", flush=True)
    print(f"\n{table(results(bench.setting), [BASE, *names])}")


if __name__ == "__main__":
    main(sys.argv[1:])
