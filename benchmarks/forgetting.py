"""`python -m benchmarks.forgetting`: how long it takes to forget one session of a lake of 100,000, and whether anything of it is left.

The lake is made by the assets themselves: every table up to the coreset, JSONL files, a Hugging Face folder; four trials a task, so that
there are pairs; and a manifest that names the sessions, as an adapter's does. Yardsticks, in the same minute: a copy of the lake, and the
table `sessions` alone decoded and written again. `SESSIONS=2000` makes it quick. `FOLDER=...` keeps the lake there and takes it as it is
the next time.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.ingestion import chat, history, session_id

SESSIONS = int(os.environ.get("SESSIONS", "100000"))
TRIALS = 4
JUDGMENTS = ("acceptable", "acceptable", "unacceptable", None)
ASSETS = "sessions,judged_sessions,curated_sessions,sft_dataset,preference_dataset,kto_dataset,sharegpt_dataset,sft_coreset"


def marker(number: int) -> str:
    """A text that one session alone has."""
    return f"marker {random.Random(number).randrange(16**12):012x} of number {number}"


def make_store(path: Path) -> None:
    """Conversations of about 8 kB as JSON lines, four trials a task that begin alike."""
    with path.open("w", encoding="utf-8") as lines:
        for number in range(SESSIONS):
            first = chat(history(number // TRIALS % 5000))
            messages = first[:2] + chat(history(5000 + number % 5000))[2:13]
            messages[-1] = {"role": "assistant", "content": f"That is done: {marker(number)}."}
            record = {
                "id": session_id(number),
                "project": "shop",
                "agent": "support",
                "task_id": f"task-{number // TRIALS}",
            }
            record |= {"messages": messages, "judgment": JUDGMENTS[number % TRIALS]}
            lines.write(
                json.dumps({name: value for name, value in record.items() if value is not None})
                + "\n"
            )


def make_lake(folder: Path) -> float:
    """Everything that the assets make of the store; seconds."""
    environment = {
        "AGENT_PIPELINE_STORE": str(folder / "store.jsonl"),
        "AGENT_PIPELINE_LAKE": str(folder / "lake"),
        "AGENT_PIPELINE_REDACTION__ENABLED": "false",
        "DAGSTER_HOME": str(folder / "dagster"),
    }
    settings = ["sft_coreset.target_size=1000000", "sft_dataset.huggingface=true"]
    command = [
        sys.executable,
        "-m",
        "agent_pipeline.cli.app",
        "materialize",
        "shop/support",
        "--select",
        ASSETS,
    ]
    began = time.perf_counter()
    subprocess.run(
        [*command, *(word for each in settings for word in ("--set", each))],
        env=os.environ | environment,
        check=True,
    )
    seconds = time.perf_counter() - began
    add_manifest(folder)
    return seconds


def add_manifest(folder: Path) -> None:
    """An artifact that names its sessions as an adapter does, without weights."""
    from agent_pipeline.keys import PartitionKey
    from agent_pipeline.storage.lake import Lake
    from agent_pipeline.training.provenance import name_rows

    lake, key = Lake(str(folder / "lake")), PartitionKey("shop", "support")
    rows = (
        lake.open("sft_dataset", key)
        .read(["session_id", "row_id", "content_sha256", "split"])
        .to_pylist()
    )
    made_from = {
        "base_model": "none",
        **name_rows([row for row in rows if row["split"] == "train"]),
    }
    building = lake.building("sft_adapter", key, "0" * 64)
    (building / "training.json").write_text(
        json.dumps({"row_ids": made_from["sessions"]}), encoding="utf-8"
    )
    lake.set_latest(lake.finish("sft_adapter", key, "0" * 64, building, made_from, {}))


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def timed(step: Any) -> tuple[str, Any]:
    """The seconds that a step takes on the clock and of a processor (which other programs do not slow down), and what it answers."""
    began, used = time.perf_counter(), time.process_time()
    found = step()
    return f"{time.perf_counter() - began:.1f} | {time.process_time() - used:.1f}", found


def write_again(path: Path, out: Path) -> None:
    """A table decoded and written, as a plain script would take a row out."""
    import pyarrow.parquet as pq

    with (
        pq.ParquetFile(path) as table,
        pq.ParquetWriter(
            out, table.schema_arrow, compression="zstd", compression_level=1
        ) as writer,
    ):
        for batch in table.iter_batches(batch_size=1000):
            writer.write_batch(batch)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("FOLDER", temporary))
        if not (folder / "lake").is_dir():
            folder.mkdir(exist_ok=True)
            make_store(folder / "store.jsonl")
            print(f"made in {make_lake(folder):.0f} s", flush=True)
        measure(folder)


def measure(folder: Path) -> None:
    """Forget a session that a model was trained on, and one that was rejected in a pair."""
    from agent_pipeline.governance.forgetting import forget
    from agent_pipeline.governance.lineage import session_lineage
    from agent_pipeline.governance.scanning import scan
    from agent_pipeline.keys import PartitionKey
    from agent_pipeline.storage.lake import Lake

    lake = Lake(str(folder / "lake"))
    print(
        f"{SESSIONS:,} sessions, a lake of {size(folder / 'lake') / 1e9:.1f} GB in {len(list(lake.files()))} files"
    )
    print("| what | seconds | of a processor | found |\n|---|---:|---:|---|")
    table = (
        folder
        / "lake"
        / "tables"
        / "sessions"
        / "project=shop"
        / "agent=support"
        / "part-0.parquet"
    )
    seconds, _ = timed(lambda: shutil.copytree(folder / "lake", folder / "copy"))
    shutil.rmtree(folder / "copy")
    print(f"| yardstick: copy the lake | {seconds} | |")
    seconds, _ = timed(lambda: write_again(table, folder / "again.parquet"))
    (folder / "again.parquet").unlink()
    print(
        f"| yardstick: decode and write the table sessions | {seconds} | {table.stat().st_size / 1e6:.0f} MB |",
        flush=True,
    )
    key = PartitionKey("shop", "support")
    rows = lake.open("sft_dataset", key).read(["session_id", "split"]).to_pylist()
    trained_on = [row["session_id"] for row in rows if row["split"] == "train"]
    rejected = (
        lake.open("preference_dataset", key)
        .read(["rejected_session_id"])["rejected_session_id"]
        .to_pylist()
    )
    for name in (trained_on[len(trained_on) // 2], rejected[len(rejected) // 3]):
        needles = [name, marker(int(name[1:]))]
        seconds, there = timed(lambda name=name: session_lineage(lake, name))
        print(
            f"| lineage session {name} | {seconds} | {len(there.rows)} rows, {len(there.files)} copies, {len(there.models)} models |"
        )
        seconds, before = timed(lambda needles=needles: scan(lake, needles))
        print(
            f"| scan of every byte and value before | {seconds} | in {len(before)} files |",
            flush=True,
        )
        seconds, gone = timed(lambda name=name: forget(lake, name))
        removed = sum(change.rows for change in gone.changes)
        print(
            f"| **forget {name}** | {seconds} | {removed} rows of {len(gone.changes)} files, {len(gone.to_retrain)} models named |"
        )
        seconds, after = timed(lambda needles=needles: scan(lake, needles))
        print(
            f"| scan of every byte and value after | {seconds} | in {len(after)} files |",
            flush=True,
        )
        if after:
            raise SystemExit(f"{name} is still in {after}")


if __name__ == "__main__":
    main()
