"""`python -m benchmarks.memory 10000 200000`: peak memory of each asset from the store to the replay buffer, at two sizes of the store.

Each asset is a run of its own, as `agent-pipeline materialize` makes it, with its checks; those that look at their last table once more, as
in a night in which nothing is new. The processor's seconds, with some 10 for Python and Dagster, stand in brackets. Of sixteen sessions
eight are trials of one task, of which every third is bad. `sft_coreset` chooses by strategies that need no model, one agent is mixed alone.
"""

import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from agent_pipeline.sample.store import SESSIONS_SCHEMA
from benchmarks.ingestion import session_id, words

COMPARED = ["sessions", "judged_sessions", "curated_sessions"]
"""They look at their last table."""
RUNS = [
    *COMPARED,
    "sft_dataset",
    "preference_dataset",
    "kto_dataset",
    "sharegpt_dataset",
    "multi_task_dataset",
    "trained_sessions",
]
RUNS += [
    "sft_coreset --set strategy=random",
    "sft_coreset --set strategy=diversity",
    "replay_buffer",
]
SETTINGS = 'store = "store"\nlabels = "labels.csv"\nlake = "lake"\ncache = "cache"\n'


class Peak(NamedTuple):
    """The most memory that a run had, and what it took of the processor."""

    megabytes: int
    seconds: float


def make_store(folder: Path, count: int) -> None:
    """A store of short sessions, and a person's label of each."""
    database = folder / "store" / "sessions" / "shop" / "support" / "sessions.db"
    database.parent.mkdir(parents=True)
    (folder / "pipeline.toml").write_text(SETTINGS, encoding="utf-8")
    with (
        closing(sqlite3.connect(database)) as connection,
        connection,
        (folder / "labels.csv").open("w", encoding="utf-8") as labels,
    ):
        connection.executescript(SESSIONS_SCHEMA)
        labels.write("session_id,judgment\n")
        for number in range(count):
            own, name = random.Random(number), session_id(number)
            asks = [
                words(random.Random(f"task {number // 16}") if number % 16 < 8 else own, 12),
                words(own, 12),
            ]
            items = [{"role": "system", "content": "You help."}]
            items += [
                item
                for ask in asks
                for item in (
                    {"role": "user", "content": ask},
                    {"role": "assistant", "content": words(own, 20)},
                )
            ]
            connection.execute(
                "INSERT INTO sessions (session_id, created_at) VALUES (?, '2026-01-02 03:04:05')",
                (name,),
            )
            connection.executemany(
                "INSERT INTO history (session_id, msg_json) VALUES (?, ?)",
                ((name, json.dumps(item)) for item in items),
            )
            labels.write(f"{name},{'acceptable' if number % 3 else 'unacceptable'}\n")


def peak(folder: Path, run: str) -> Peak:
    """What /usr/bin/time says of a run: an asset, and its settings."""
    where = {
        "AGENT_PIPELINE_CONFIG": str(folder / "pipeline.toml"),
        "DAGSTER_HOME": str(folder / "dagster"),
    }
    partition = "" if run == "multi_task_dataset" else "shop/support"
    command = f"/usr/bin/time -f %M,%U,%S {sys.executable} -m agent_pipeline.cli.app materialize {partition} --select key:{run}".split()
    done = subprocess.run(command, env=os.environ | where, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{run} failed in {folder}:\n{done.stderr[-2000:]}")
    kilobytes, *seconds = done.stderr.split()[-1].split(",")
    return Peak(int(kilobytes) // 1024, sum(map(float, seconds)))


def main(root: Path, sizes: list[int]) -> None:
    """Print a line for each run, as soon as it is known."""
    for size in sizes:
        if not (root / str(size)).exists():
            make_store(root / str(size), size)
    print(
        f"| run | {' | '.join(f'{size:,} sessions' for size in sizes)} | ratio |\n|---|{'---:|' * (len(sizes) + 1)}",
        flush=True,
    )
    for name, runs in (("", RUNS), (", again", COMPARED)):
        for run in runs:
            found = [peak(root / str(size), run) for size in sizes]
            shown = " | ".join(f"{each.megabytes} MB ({each.seconds:.0f} s)" for each in found)
            print(
                f"| {run}{name} | {shown} | {found[-1].megabytes / found[0].megabytes:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), [int(each) for each in sys.argv[1:]] or [10_000, 200_000])
