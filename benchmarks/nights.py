"""`python -m benchmarks.nights [agents]`: what the sensor and the schedule cost for many agents, of which one, ten or none changed.

Each agent has the sessions of the sample's `shop/support`. Printed are the seconds of each tick, the observations that it reports
and the runs that it requests. Events are counted because each is a row in Dagster's event log.
"""

import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from shutil import copyfile
from typing import Any

SAMPLE = Path(__file__).parents[1] / "data" / "sample"


def make_store(folder: Path, agents: int) -> Path:
    """An omniagents home whose agents share the bytes of one database until one of them changes."""
    original = SAMPLE / "sessions" / "shop" / "support" / "sessions.db"
    (folder / "traces").mkdir(parents=True)
    copyfile(SAMPLE / "traces" / "shop.db", folder / "traces" / "shop.db")
    shared = folder / "shared.db"
    copyfile(original, shared)
    for number in range(agents):
        database = folder / "sessions" / "shop" / f"agent-{number:04}" / "sessions.db"
        database.parent.mkdir(parents=True)
        os.link(shared, database)
    return folder


def change(store: Path, number: int) -> None:
    """One agent archives a session."""
    database = store / "sessions" / "shop" / f"agent-{number:04}" / "sessions.db"
    copy = database.with_suffix(".copy")
    copyfile(database, copy)
    copy.replace(database)
    with sqlite3.connect(database) as connection:
        connection.execute(
            "UPDATE sessions SET archived = 1 WHERE session_id = (SELECT min(session_id) FROM sessions)"
        )


def main() -> None:
    agents = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = make_store(folder / "store", agents)
        os.environ |= {
            "AGENT_PIPELINE_STORE": str(store),
            "AGENT_PIPELINE_LAKE": str(folder / "lake"),
            "AGENT_PIPELINE_CACHE": str(folder / "cache"),
            "DAGSTER_HOME": str(folder / "dagster"),
        }
        measure(store)


def measure(store: Path) -> None:
    import dagster as dg

    from agent_pipeline.cli.instance import open_instance
    from agent_pipeline.defs.automation.discovery import discover_agents
    from agent_pipeline.defs.automation.nightly import nightly
    from agent_pipeline.defs.jobs import RETRAIN
    from agent_pipeline.defs.partitions import AGENTS
    from agent_pipeline.defs.resources import Workspace

    with open_instance() as instance:
        cursor: str | None = None

        def sensor_tick(name: str) -> int:
            nonlocal cursor
            began, cpu = time.perf_counter(), time.process_time()
            context = dg.build_sensor_context(
                instance=instance, cursor=cursor, resources={"workspace": Workspace()}
            )
            result: Any = discover_agents(context)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            events = 0
            if isinstance(result, dg.SensorResult):
                cursor = result.cursor
                events = len(result.asset_events or ())
                for request in result.dynamic_partitions_requests or ():
                    instance.add_dynamic_partitions(AGENTS.name or "", list(request.partition_keys))
            print(f"| sensor, {name} | {seconds:.1f} | {cpu:.1f} | {events} events |", flush=True)
            return events

        def schedule_tick(name: str) -> list[dg.RunRequest]:
            began, cpu = time.perf_counter(), time.process_time()
            context = dg.build_schedule_context(
                instance=instance,
                scheduled_execution_time=datetime.now(UTC),
                resources={"workspace": Workspace()},
            )
            results: Iterable[Any] = list(nightly(context) or ())
            requests = [each for each in results if isinstance(each, dg.RunRequest)]
            print(
                f"| schedule, {name} | {time.perf_counter() - began:.1f} | {time.process_time() - cpu:.1f} | {len(requests)} runs |",
                flush=True,
            )
            return requests

        print("| tick | seconds | of a core | |\n|---|---:|---:|---|")
        while sensor_tick("first look at the store"):
            pass
        change(store, 7)
        sensor_tick("one agent changed")
        sensor_tick("nothing changed")
        for request in schedule_tick("no agent trained yet"):  # a run of each that succeeded
            tags = {**request.tags, "dagster/partition": str(request.partition_key)}
            instance.add_run(
                dg.DagsterRun(job_name=RETRAIN, status=dg.DagsterRunStatus.SUCCESS, tags=tags)
            )
        schedule_tick("nothing new")
        for number in range(10):
            change(store, 100 + number)
        sensor_tick("ten agents changed")
        schedule_tick("ten agents changed")


if __name__ == "__main__":
    main()
