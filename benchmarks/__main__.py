"""`make bench`: time what a user waits for. Medians of five runs, alternating with a yardstick, so that a noisy machine moves both.

code location   importing agent_pipeline.definitions, against importing dagster alone
data assets     the data assets of one sample partition from the shell, against starting the command with nothing to do
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNS = 5


def seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Wall-clock time of a process that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, env=dict(environment), cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - began


def compare(
    name: str, ours: Sequence[str], yardstick: Sequence[str], environment: Mapping[str, str]
) -> str:
    """A table line: medians of both, and the median of the ratios pair by pair; one pair before is not counted."""
    pairs = [
        (seconds(ours, environment), seconds(yardstick, environment)) for _ in range(RUNS + 1)
    ][1:]
    our, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    return f"| {name} | {our:.2f} s | {other:.2f} s | {ratio:.2f} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "AGENT_PIPELINE_STORE": str(ROOT / "data" / "sample"),
            "AGENT_PIPELINE_LAKE": f"{folder}/lake",
            "DAGSTER_HOME": f"{folder}/dagster",
        }
        python, command = sys.executable, [sys.executable, "-m", "agent_pipeline.cli.app"]
        data = [
            *command,
            "materialize",
            "shop/support",
            "--select",
            "group:traces,group:datasets,group:coresets",
        ]
        print("| what | ours | yardstick | ratio |\n|---|---:|---:|---:|")
        print(
            compare(
                "code location / import dagster",
                [python, "-c", "import agent_pipeline.definitions"],
                [python, "-c", "import dagster"],
                environment,
            )
        )
        print(
            compare(
                "data assets of shop/support / --help", data, [*command, "--help"], environment
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
