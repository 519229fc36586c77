"""`python -m benchmarks.memory 10000 200000`: peak memory of each asset from the store to the replay buffer, at two sizes of the store.

Each asset is a run of its own, as `agent-pipeline materialize` makes it, with its checks; the second night, in which nothing is new, too.
Of sixteen sessions eight are trials of one task, of which every third is bad. `sft_coreset` chooses by `diversity`, which needs no model.
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

from agent_pipeline.sample.store import SESSIONS_SCHEMA
from benchmarks.ingestion import session_id, words

ASSETS = ["sessions", "judged_sessions", "curated_sessions", "sft_dataset", "preference_dataset", "kto_dataset", "sharegpt_dataset"]
ASSETS += ["trained_sessions", "sft_coreset", "replay_buffer"]
SETTINGS = 'store = "store"\nlabels = "labels.csv"\nlake = "lake"\ncache = "cache"\nassets.sft_coreset.strategy = "diversity"\n'


def make_store(folder: Path, count: int) -> None:
    """A store of short sessions, and a person's label of each."""
    database = folder / "store" / "sessions" / "shop" / "support" / "sessions.db"
    database.parent.mkdir(parents=True)
    (folder / "pipeline.toml").write_text(SETTINGS, encoding="utf-8")
    with closing(sqlite3.connect(database)) as connection, connection, (folder / "labels.csv").open("w", encoding="utf-8") as labels:
        connection.executescript(SESSIONS_SCHEMA)
        labels.write("session_id,judgment\n")
        for number in range(count):
            own, name = random.Random(number), session_id(number)
            asks = [words(random.Random(f"task {number // 16}") if number % 16 < 8 else own, 12), words(own, 12)]
            items = [{"role": "system", "content": "You help."}]
            items += [item for ask in asks for item in ({"role": "user", "content": ask}, {"role": "assistant", "content": words(own, 20)})]
            connection.execute("INSERT INTO sessions (session_id, created_at) VALUES (?, '2026-01-02 03:04:05')", (name,))
            connection.executemany("INSERT INTO history (session_id, msg_json) VALUES (?, ?)", ((name, json.dumps(item)) for item in items))
            labels.write(f"{name},{'acceptable' if number % 3 else 'unacceptable'}\n")


def peak(folder: Path, asset: str) -> int:
    """The most memory that a run of an asset had, in MB, as /usr/bin/time says."""
    where = {"AGENT_PIPELINE_CONFIG": str(folder / "pipeline.toml"), "DAGSTER_HOME": str(folder / "dagster")}
    command = f"/usr/bin/time -f %M {sys.executable} -m agent_pipeline.cli.app materialize shop/support --select key:{asset}".split()
    done = subprocess.run(command, env=os.environ | where, capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1]) // 1024


if __name__ == "__main__":
    sizes = [int(each) for each in sys.argv[1:]] or [10_000, 200_000]
    with tempfile.TemporaryDirectory() as root:
        for size in sizes:
            make_store(Path(root) / str(size), size)
        print(f"| asset | {' | '.join(f'{size:,} sessions' for size in sizes)} | ratio |\n|---|{'---:|' * (len(sizes) + 1)}")
        for night in ("", ", the second night"):
            for asset in ASSETS:
                found = [peak(Path(root) / str(size), asset) for size in sizes]
                print(f"| {asset}{night} | {' | '.join(f'{each} MB' for each in found)} | {found[-1] / found[0]:.2f} |", flush=True)
