"""`python -m benchmarks.stores [FOLDER]`: every store in a folder (default: the real traces) through the assets of the stage `traces` with
their default settings: sessions, kept, dropped by reason; then the files that no reader knows, and what could not be read.

Each store goes into a lake of its own that is thrown away; nothing is written beside the store.
"""

import logging
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import dagster as dg

from agent_pipeline.definitions import build_defs
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.keys import parse_key
from agent_pipeline.sources import Reader, find
from agent_pipeline.storage.lake import Lake
from benchmarks.redaction import REAL_TRACES

ASSETS = ("sessions", "judged_sessions", "curated_sessions")


def went(where: Path, reader: Reader) -> tuple[int, Counter[str], list[str]]:
    """The partitions of a store, where its sessions went (`kept`, or a reason), and the sentences of the partitions that failed."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    keys = [str(key) for key in reader(where).partitions()]
    with tempfile.TemporaryDirectory() as lake, dg.DagsterInstance.ephemeral() as instance:
        os.environ |= {"AGENT_PIPELINE_STORE": str(where), "AGENT_PIPELINE_LAKE": lake}
        instance.add_dynamic_partitions(AGENTS.name or "", keys)
        job = build_defs().resolve_job_def("retrain")
        for key in keys:
            selected = [dg.AssetKey(name) for name in ASSETS]
            result = job.execute_in_process(
                instance=instance, partition_key=key, asset_selection=selected, raise_on_error=False
            )
            if not result.success:
                failed = result.filter_events(lambda event: event.is_step_failure)[
                    0
                ].step_failure_data
                said = (
                    failed.user_failure_data.description
                    if failed.user_failure_data
                    else failed.error_display_string
                )
                failures.append(f"{key}: {said}")
                continue
            reasons = (
                Lake(lake)
                .open("curated_sessions", parse_key(key))
                .read(["drop_reason"])["drop_reason"]
                .to_pylist()
            )
            counts.update("kept" if reason is None else reason for reason in reasons)
    return len(keys), counts, failures


def main(folder: Path) -> None:
    logging.disable(logging.CRITICAL)
    os.environ.pop("AGENT_PIPELINE_CONFIG", None)
    os.chdir(tempfile.gettempdir())  # where there is no pipeline.toml
    found = find(folder)
    print(
        "| store | source | partitions | sessions | kept | dropped |\n|---|---|---:|---:|---:|---|"
    )
    for where, reader in found.stores:
        partitions, counts, failures = went(where, reader)
        kept = counts.pop("kept", 0)
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common())
        sessions = kept + counts.total()
        print(
            f"| {where.relative_to(folder)} | `{reader.name}` | {partitions} | {sessions:,} | {kept:,} | {dropped} |",
            flush=True,
        )
        for sentence in failures:
            print(f"| | | | | | failed: {sentence} |")
    for error in found.errors:
        print(f"\nRefused: {error[1]}")
    if found.unknown:
        print(
            f"\nNo reader recognizes {len(found.unknown)} files: {', '.join(str(path.relative_to(folder)) for path in found.unknown)}."
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else REAL_TRACES)
