"""`python -m benchmarks.datasets`: how fast and in how much memory curated sessions become data sets, against a plain loop.

The plain loop is what a script would do: pandas reads the table, `json.loads` each session, `datasets.Dataset.from_list`, `to_parquet`. It
makes the same rows of the same columns. Each measurement is a process of its own; ours and the loop's alternate, so that a noisy machine
moves both, and seconds are the processor's (of all threads of the process), so that whoever shares it moves neither. Memory at a twentieth
of `SESSIONS` and at all of them. `SESSIONS=2000 ROUNDS=1` make it quick; 200,000 sessions of 16 kB need 2 GB of disk.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake
from benchmarks.ingestion import TOOLS, chat, history, session_id

SESSIONS = int(os.environ.get("SESSIONS", "200000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
TRIALS = 8
"""Of a task, of which every third is bad."""
TEXTS = 2000
"""Different histories; one repeats further on than the compression sees."""
KEY = PartitionKey("shop", "support")


def curated(count: int) -> Iterator[dict[str, Any]]:
    """Rows of `curated_sessions` of about 16 kB; the trials of a task begin alike."""
    from agent_pipeline.sessions.session import Session
    from agent_pipeline.sessions.tables import make_session_row

    names = {
        "query": {"type": "string"},
        "limit": {"type": "integer"},
        "exact": {"type": "boolean"},
    }
    tools = [
        {
            "type": "function",
            "function": {"name": name, "parameters": {"type": "object", "properties": names}},
        }
        for name in TOOLS
    ]
    texts = [chat(history(number)) for number in range(min(count, TEXTS))]
    for number in range(count):
        task, good = number // TRIALS, number % 3 != 0
        system, _, *rest = texts[number % len(texts)]
        asked = {"role": "user", "content": f"{task}: {texts[task % len(texts)][1]['content']}"}
        last = rest[-1] | {"content": f"{rest[-1]['content']} {number}"}
        session = Session(
            session_id=session_id(number),
            project=KEY.project,
            agent=KEY.agent,
            source="benchmark",
            messages=[system, asked, *rest[:-1], last],
            tools=tools,
            tools_origin="source",
            task_key=f"task {task}",
            score=float(good),
            created_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number),
        )
        fate = {
            "kept": good,
            "use": "positive" if good else "negative",
            "drop_reason": None if good else "unacceptable",
        }
        yield (
            make_session_row(session)
            | fate
            | {"verdict_score": float(good), "missed_measures": [], "measures": {}, "opinions": {}}
        )


def make_lake(root: Path, count: int) -> None:
    """A lake with nothing but curated sessions."""
    from agent_pipeline.sessions.tables import CURATED, to_batches

    Lake(str(root)).stage(
        "curated_sessions", KEY, to_batches(curated(count), CURATED), CURATED
    ).commit()


# What is measured: each runs in a process of its own and answers the rows that it wrote.


def sft(lake: Lake) -> int:
    """The table `sft_dataset`, as the asset writes it."""
    from agent_pipeline.datasets.curated import CuratedSessions
    from agent_pipeline.datasets.sft import SFT, make_sft_rows
    from agent_pipeline.datasets.splits import SplitSizes

    found = CuratedSessions.open(lake, KEY, SplitSizes())
    return written(lake, "sft_dataset", make_sft_rows(found.read_kept(), found.ledger), SFT)


def preferences(lake: Lake) -> int:
    """The table `preference_dataset`."""
    from agent_pipeline.datasets.curated import CuratedSessions
    from agent_pipeline.datasets.preferences import PREFERENCES, pair_trials
    from agent_pipeline.datasets.splits import SplitSizes

    found, counts = CuratedSessions.open(lake, KEY, SplitSizes()), Counter[str]()
    return written(
        lake,
        "preference_dataset",
        pair_trials(found.read_trials(counts), found.ledger, counts),
        PREFERENCES,
    )


def kto(lake: Lake) -> int:
    """The table `kto_dataset`, of all judged sessions."""
    from agent_pipeline.datasets.curated import CuratedSessions
    from agent_pipeline.datasets.kto import KTO, make_kto_rows
    from agent_pipeline.datasets.splits import SplitSizes

    found = CuratedSessions.open(lake, KEY, SplitSizes())
    return written(lake, "kto_dataset", make_kto_rows(found.read_labelled(), found.ledger), KTO)


def written(lake: Lake, asset: str, rows: Iterator[dict[str, Any]], schema: Any) -> int:
    from agent_pipeline.sessions.tables import to_batches

    staged = lake.stage(asset, KEY, to_batches(rows, schema), schema)
    staged.commit()
    return staged.rows


def loop(lake: Lake) -> int:
    """The plain loop, for SFT rows."""
    import datasets
    import pandas

    from agent_pipeline.datasets.splits import SplitSizes

    columns = [
        "session_id",
        "content_sha256",
        "task_key",
        "score",
        "created_at",
        "kept",
        "messages",
        "tools",
    ]
    with Path(lake.table("curated_sessions", KEY).path).open(
        "rb"
    ) as file:  # of a path with `=` in it pandas would make columns
        table = pandas.read_parquet(file, columns=columns)
    sizes, rows = SplitSizes(), []
    for row in table[table["kept"]].to_dict("records"):
        messages = json.loads(row["messages"])
        while messages and messages[-1]["role"] != "assistant":
            messages.pop()
        if messages:
            kept = {name: row[name] for name in columns if name != "kept"}
            made = {"row_id": row["session_id"], "split": sizes.find_split(row["task_key"])}
            rows.append(kept | made | {"messages": messages, "tools": json.loads(row["tools"])})
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).to_parquet(str(Path(lake.root.path) / "plain.parquet"))
    return len(rows)


MEASURED: dict[str, Callable[[Lake], int]] = {
    each.__name__: each for each in (sft, preferences, kto, loop)
}


class Figure(NamedTuple):
    """Seconds of work on a processor (without imports), peak memory in MB, rows written."""

    seconds: float
    megabytes: float
    rows: int


def child(name: str, root: str) -> None:
    """One measurement, in this process."""
    if name == "loop":
        import datasets  # noqa: F401
        import pandas  # noqa: F401
    else:
        import agent_pipeline.datasets.curated  # noqa: F401
    began = time.process_time()
    rows = MEASURED[name](Lake(root))
    seconds = time.process_time() - began
    print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, rows]))


def measure(name: str, root: Path) -> Figure:
    """A measurement in a process of its own; it must succeed."""
    command = [sys.executable, "-m", "benchmarks.datasets", name, str(root)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Figure(*json.loads(output.splitlines()[-1]))


def line(what: str, ours: str, other: str, ratio: float, reach: str) -> None:
    print(f"| {what} | {ours} | {other} | {ratio:.2f} | {reach} |", flush=True)


def main() -> None:
    """Print the table."""
    print("| what | ours | other | ratio | reach |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small", Path(folder) / "large"
        few = max(1, SESSIONS // 20)
        make_lake(small, few)
        pairs = [(measure("sft", small), measure("loop", small)) for _ in range(ROUNDS)]
        assert len({figure.rows for pair in pairs for figure in pair}) == 1, (
            "both write the same rows"
        )
        mine, plain = (
            median(few / each.seconds for each in side) for side in zip(*pairs, strict=True)
        )
        faster = median(other.seconds / ours.seconds for ours, other in pairs)
        line(
            f"{few:,} curated sessions → SFT Parquet, a second and core",
            f"{mine:,.0f}",
            f"{plain:,.0f}",
            faster,
            "stated",
        )
        mine, plain = (median(each.megabytes for each in side) for side in zip(*pairs, strict=True))
        line(
            "peak memory of the two", f"{mine:,.0f} MB", f"{plain:,.0f} MB", mine / plain, "stated"
        )
        make_lake(large, SESSIONS)
        for name in ("sft", "preferences", "kto"):
            at_few, at_many = (measure(name, root).megabytes for root in (small, large))
            what = f"{name}: peak memory at {SESSIONS:,} sessions / at {few:,}"
            line(what, f"{at_many:,.0f} MB", f"{at_few:,.0f} MB", at_many / at_few, "flat")


if __name__ == "__main__":
    child(*sys.argv[1:]) if sys.argv[1:] else main()
