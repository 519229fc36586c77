"""The parameters that every heavy task needs, for tests that call a task without a run."""

from pathlib import Path
from typing import Any

from agent_pipeline.keys import PartitionKey


def task_values(lake: object, key: PartitionKey, cache: Path | None = None) -> dict[str, Any]:
    """Return values of `compute.params.TaskParams` for a lake, by name.

    Args:
        lake: The root of the lake.
        key: The agent's partition.
        cache: The folder of downloads and locks; by default the root of the lake.
    """
    return {
        "partition": str(key),
        "lake": str(lake),
        "lake_options": {},
        "trust_remote_code": False,
        "split": {},
        "leaks": "refuse",
        "surrogates": False,
        "cache": str(cache or lake),
        "llama_cpp": None,
    }
