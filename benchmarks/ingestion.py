"""`python -m benchmarks.ingestion`: how fast and in how much memory sessions become the table `sessions`, against a plain loop.

The plain loop is what a script would do: a query a session, `json.loads`, everything in memory, `datasets.Dataset.from_dict`, `to_parquet`.
Each measurement is a process of its own; ours and the loop's alternate, so that a noisy machine moves both. Redaction is off, but for the
last line. `SESSIONS=2000 ROUNDS=1` make it quick; the lines with five times as many sessions need 4 GB of disk.
"""

import json
import os
import random
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

SESSIONS = int(os.environ.get("SESSIONS", "20000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))

WORDS = [
    "account", "address", "agent", "airport", "arrival", "balance", "bicycle", "billing", "booking", "bottle", "cancel", "carrier",
    "change", "charge", "check", "class", "colour", "confirm", "customer", "delay", "delivery", "departure", "discount", "engine",
    "exchange", "family", "flight", "friday", "garden", "gold", "hotel", "insurance", "invoice", "item", "journey", "kitchen",
    "label", "luggage", "market", "member", "message", "monday", "number", "offer", "order", "parcel", "passenger", "payment",
    "policy", "price", "product", "question", "reason", "receipt", "refund", "request", "reservation", "return", "saturday", "seat",
    "service", "shipping", "silver", "status", "store", "sunday", "ticket", "transfer", "travel", "tuesday", "update", "upgrade",
    "voucher",
]  # fmt: skip
WEIGHTS = [1 / rank for rank in range(1, len(WORDS) + 1)]
TOOLS = ("find_order", "get_customer", "list_flights", "update_booking", "send_receipt")


def words(random_: random.Random, count: int) -> str:
    """Text: words of which some are frequent, numbers, now and then a character beyond ASCII."""
    text = random_.choices(WORDS, WEIGHTS, k=count)
    text[0] = str(random_.randrange(100_000))
    if random_.random() < 0.1:
        text.append("für 20 €")
    return " ".join(text)


INSTRUCTIONS = words(random.Random(0), 180)


def history(seed: int) -> list[dict[str, Any]]:
    """One session of about 16 kB: the agent's instructions, seven turns, each with a call and its result, as Responses items."""
    random_ = random.Random(seed)
    items: list[dict[str, Any]] = [{"role": "system", "content": INSTRUCTIONS}]
    for turn in range(7):
        call_id = f"call_{random_.randrange(16**12):012x}"
        rows = [
            {
                "id": random_.randrange(10**6),
                "name": words(random_, 3),
                "price": random_.randrange(10**4) / 100,
            }
            for _ in range(10)
        ]
        tool = random_.choice(TOOLS)
        arguments = {
            "query": words(random_, 6),
            "limit": random_.randrange(50),
            "exact": random_.random() < 0.5,
        }
        items += [
            {"role": "user", "content": words(random_, 25)},
            {
                "type": "function_call",
                "id": f"fc_{turn}",
                "call_id": call_id,
                "name": tool,
                "arguments": json.dumps(arguments),
                "status": "completed",
            },
            {
                "type": "function_call_output",
                "call_id": call_id,
                "output": json.dumps({"rows": rows, "note": words(random_, 30)}),
            },
            {
                "type": "message",
                "id": f"msg_{turn}",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": words(random_, 60), "annotations": []}],
            },
        ]
    return items


def session_id(number: int) -> str:
    return f"s{number:07d}"


def make_stores(folder: Path, count: int) -> None:
    """The same sessions twice: an omniagents home, and JSON lines in the fine-tuning format."""
    from agent_pipeline.sample.store import SESSIONS_SCHEMA

    path = folder / "home" / "sessions" / "shop" / "support" / "sessions.db"
    path.parent.mkdir(parents=True)
    with (
        closing(sqlite3.connect(path)) as connection,
        connection,
        (folder / "shop.jsonl").open("w", encoding="utf-8") as lines,
    ):
        connection.executescript(SESSIONS_SCHEMA)
        for number in range(count):
            items = history(number)
            name = session_id(number)
            connection.execute(
                "INSERT INTO sessions (session_id, created_at) VALUES (?, '2026-01-02 03:04:05')",
                (name,),
            )
            rows = [(name, json.dumps(item, ensure_ascii=False)) for item in items]
            connection.executemany("INSERT INTO history (session_id, msg_json) VALUES (?, ?)", rows)
            lines.write(
                json.dumps({"id": name, "messages": chat(items)}, ensure_ascii=False) + "\n"
            )


def chat(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items as a fine-tuning file has them."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if item.get("type") == "function_call":
            made = {
                "id": item["call_id"],
                "type": "function",
                "function": {"name": item["name"], "arguments": item["arguments"]},
            }
            messages.append({"role": "assistant", "content": "", "tool_calls": [made]})
        elif item.get("type") == "function_call_output":
            messages.append(
                {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            )
        else:
            content = item["content"]
            messages.append(
                {
                    "role": item["role"],
                    "content": content if isinstance(content, str) else content[0]["text"],
                }
            )
    return messages


# What is measured: each runs in a process of its own and answers the rows and bytes that it wrote.


def ours(store: Path, out: Path, redaction: bool = False) -> tuple[int, int]:
    """Reader, repair, the table in the lake."""
    from agent_pipeline.ingestion.ingestion import ingest
    from agent_pipeline.ingestion.reading import ReadingOptions
    from agent_pipeline.redaction import RedactionOptions
    from agent_pipeline.sources import open_source
    from agent_pipeline.storage.lake import Lake

    source = open_source(store)
    options = ReadingOptions(redaction=RedactionOptions(enabled=redaction))
    wanted = os.environ.get("PARTITION")
    keys = [key for key in source.partitions() if not wanted or str(key) == wanted]
    rows = size = 0
    for key in keys:
        found = ingest(source, key, options, Lake(str(out)))
        found.table.commit()
        rows, size = rows + found.table.rows, size + found.table.bytes
    return rows, size


def redacting(store: Path, out: Path) -> tuple[int, int]:
    """Ours, with redaction."""
    return ours(store, out, redaction=True)


def loop(store: Path, out: Path) -> tuple[int, int]:
    """The plain loop."""
    import datasets

    found: dict[str, list[Any]] = {"session_id": [], "messages": []}
    if store.is_dir():
        for path in sorted(store.rglob("sessions.db")):
            with closing(sqlite3.connect(path)) as connection:
                for (name,) in connection.execute(
                    "SELECT session_id FROM sessions ORDER BY session_id"
                ).fetchall():
                    rows = connection.execute(
                        "SELECT msg_json FROM history WHERE session_id = ? ORDER BY id", (name,)
                    )
                    found["session_id"].append(name)
                    found["messages"].append(chat([json.loads(text) for (text,) in rows]))
    else:
        with store.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                found["session_id"].append(record["id"])
                found["messages"].append(record["messages"])
    out.mkdir()
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(found).to_parquet(str(out / "plain.parquet"))
    return len(found["session_id"]), (out / "plain.parquet").stat().st_size


def orjson_alone(store: Path, out: Path) -> tuple[int, int]:
    """Parsing alone, of texts that are in memory: how fast it could be at best."""
    import orjson

    with closing(sqlite3.connect(next(store.rglob("sessions.db")))) as connection:
        texts = [text.encode() for (text,) in connection.execute("SELECT msg_json FROM history")]
    began = time.perf_counter()
    for text in texts:
        orjson.loads(text)
    print(json.dumps({"seconds": time.perf_counter() - began}))
    return 0, 0


MEASURED: dict[str, Callable[[Path, Path], tuple[int, int]]] = {
    each.__name__: each for each in (ours, redacting, loop, orjson_alone)
}


class Figure(NamedTuple):
    """Seconds of work (without imports), peak memory in MB, rows and bytes written."""

    seconds: float
    megabytes: float
    rows: int
    bytes: int


def child(name: str, store: Path, out: Path) -> None:
    """One measurement, in this process."""
    if name == "loop":
        import datasets  # noqa: F401
    else:
        import agent_pipeline.ingestion.ingestion  # noqa: F401
    began = time.perf_counter()
    rows, size = MEASURED[name](store, out)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if name != "orjson_alone":
        print(json.dumps({"seconds": seconds, "megabytes": peak, "rows": rows, "bytes": size}))


def start(name: str, store: Path, out: Path, partition: str = "") -> subprocess.Popen[str]:
    """A measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.ingestion", name, str(store), str(out)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PARTITION": partition}
    )


def finish(process: subprocess.Popen[str]) -> Figure:
    """What a measurement found; it must succeed."""
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args} failed")
    return Figure(
        **({"megabytes": 0.0, "rows": 0, "bytes": 0} | json.loads(output.splitlines()[-1]))
    )


def measure(name: str, store: Path, folder: Path, keep: bool = False) -> Figure:
    """Run one measurement alone."""
    out = folder / "out"
    if not keep:
        shutil.rmtree(out, ignore_errors=True)
    return finish(start(name, store, out))


def rounds(names: list[str], store: Path, folder: Path) -> dict[str, list[Figure]]:
    """Every measurement in turn, as often as `ROUNDS` says."""
    found: dict[str, list[Figure]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            found[name].append(measure(name, store, folder))
    return found


def ratio(slow: list[Figure], fast: list[Figure], of: str = "seconds") -> float:
    """The median of the ratios, pair by pair."""
    return statistics.median(
        getattr(a, of) / getattr(b, of) for a, b in zip(slow, fast, strict=True)
    )


def line(what: str, ours_: str, other: str, found: float, reach: str) -> None:
    print(f"| {what} | {ours_} | {other} | {found:.2f} | {reach} |", flush=True)


def seconds(found: list[Figure]) -> str:
    return f"{statistics.median(each.seconds for each in found):.2f} s"


def megabytes(found: list[Figure]) -> str:
    return f"{statistics.median(each.megabytes for each in found):.0f} MB"


def main() -> None:
    """Print the table."""
    print("| what | ours | other | ratio | reach |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_stores(folder, SESSIONS)
        home, lines = folder / "home", folder / "shop.jsonl"

        found = rounds(["ours", "loop", "orjson_alone"], home, folder)
        mine, plain, best = found["ours"], found["loop"], found["orjson_alone"]
        line(
            "SQLite: time of the plain loop / ours",
            seconds(mine),
            seconds(plain),
            ratio(plain, mine),
            ">= 2.2",
        )
        line(
            "SQLite: sessions a second / those orjson alone parses",
            seconds(mine),
            seconds(best),
            ratio(best, mine),
            ">= 0.28",
        )
        line(
            "SQLite: peak memory / the plain loop's",
            megabytes(mine),
            megabytes(plain),
            ratio(mine, plain, "megabytes"),
            "<= 0.12",
        )
        size = lines.stat().st_size
        line(
            "bytes of the table / of the JSON lines",
            f"{mine[0].bytes >> 20} MB",
            f"{size >> 20} MB",
            mine[0].bytes / size,
            "<= 0.20",
        )

        found = rounds(["ours", "loop"], lines, folder)
        line(
            "JSON lines: time of the plain loop / ours",
            seconds(found["ours"]),
            seconds(found["loop"]),
            ratio(found["loop"], found["ours"]),
            ">= 3",
        )
        line(
            "JSON lines: peak memory / the plain loop's",
            megabytes(found["ours"]), megabytes(found["loop"]), ratio(found["ours"], found["loop"], "megabytes"), "<= 0.12",
        )  # fmt: skip

        two_processes(folder)
        changed(folder)
        larger(folder, statistics.median(each.megabytes for each in mine))


def two_processes(folder: Path) -> None:
    """Two agents' stores at once, each by a process of its own, against the loop that does both."""
    home = folder / "two"
    for agent in ("support", "billing"):
        (home / "sessions" / "shop" / agent).mkdir(parents=True)
        os.link(
            folder / "home" / "sessions" / "shop" / "support" / "sessions.db",
            home / "sessions" / "shop" / agent / "sessions.db",
        )
    times, plain = [], []
    for _ in range(ROUNDS):
        shutil.rmtree(folder / "out", ignore_errors=True)
        both = [
            finish(each)
            for each in [
                start("ours", home, folder / "out", f"shop/{agent}")
                for agent in ("support", "billing")
            ]
        ]
        times.append(Figure(max(each.seconds for each in both), 0, 0, 0))
        plain.append(measure("loop", home, folder))
    line(
        "two processes: time of the plain loop / ours",
        seconds(times),
        seconds(plain),
        ratio(plain, times),
        ">= 4.5",
    )
    shutil.rmtree(home)


def changed(folder: Path) -> None:
    """A second run after every hundredth session has changed, without and with redaction."""
    path = folder / "home" / "sessions" / "shop" / "support" / "sessions.db"
    for name, what in (
        ("ours", "without redaction"),
        ("redacting", "with redaction, as it is by default"),
    ):
        first = measure(name, folder / "home", folder)
        with closing(sqlite3.connect(path)) as connection, connection:
            for number in range(0, SESSIONS, 100):
                item = json.dumps({"role": "user", "content": f"Thank you ({name})."})
                connection.execute(
                    "INSERT INTO history (session_id, msg_json) VALUES (?, ?)",
                    (session_id(number), item),
                )
        second = measure(name, folder / "home", folder, keep=True)
        line(
            f"1 % changed, {what}: second run / first",
            seconds([second]),
            seconds([first]),
            second.seconds / first.seconds,
            "<= 0.10",
        )


def larger(folder: Path, small: float) -> None:
    """Peak memory with five times as many sessions."""
    shutil.rmtree(folder / "home")
    (folder / "shop.jsonl").unlink()
    make_stores(folder, 5 * SESSIONS)
    found = [measure("ours", folder / "home", folder)]
    line(
        "SQLite: peak memory at five times as many",
        megabytes(found),
        f"{small:.0f} MB",
        found[0].megabytes / small,
        "<= 1.3",
    )


if __name__ == "__main__":
    child(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])) if len(sys.argv) > 1 else main()
