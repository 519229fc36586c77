"""`python -m benchmarks.readiness [SESSIONS]`: the time of `init` and `doctor` with many sessions.

The sessions are those of `benchmarks.ingestion` (about 16 kB, seven calls), with an e-mail address
in each, so that redaction has something to replace. Two of three have a good verdict, and every
task has two sessions. `doctor` runs with the settings that `init` wrote. The seconds are wall-clock
time and processor time of all processes, because other programs stretch the wall-clock time.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.first_day import run
from benchmarks.ingestion import chat, history

SESSIONS = 20_000
TRIALS_PER_TASK = 2
GOOD_OF_THREE = 2


def make_sessions(count: int) -> Iterator[dict[str, Any]]:
    """Yield sessions in the project's own format."""
    for number in range(count):
        messages = chat(history(number))
        address = f"ana.lopez{number}@example.com"
        messages[1]["content"] += f" My address is {address}."
        messages[-1]["content"] += f" I wrote to {address}."
        yield {
            "session_id": f"s{number:07d}",
            "project": "shop",
            "agent": "support",
            "task_id": f"task-{number // TRIALS_PER_TASK}",
            "messages": messages,
            "judgment": "acceptable" if number % 3 < GOOD_OF_THREE else "unacceptable",
        }


def main(words: Sequence[str] | None = None) -> None:
    """Print a table with a row per command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sessions", nargs="?", type=int, default=SESSIONS)
    count = parser.parse_args(words).sessions
    print(f"| {count:,} sessions | seconds | processor |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "sessions.jsonl").open("w", encoding="utf-8") as file:
            for session in make_sessions(count):
                file.write(json.dumps(session, ensure_ascii=False) + "\n")
        for command in (("init", "sessions.jsonl", "--yes"), ("doctor",)):
            done = run(folder, *command)
            if done.code:
                print(done.errors)
            seconds = f"{done.seconds:.0f} | {done.processor_seconds:.0f}"
            print(f"| `{command[0]}` | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
