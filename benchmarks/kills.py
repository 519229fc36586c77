"""`python -m benchmarks.kills 50 200 [PARTITION]`: `kill -9` at random instants of the data assets, and of promotions; then, what is left.

After each kill every table and file of the lake must be whole. After the last, a run must finish and make the bytes of a run that nobody
disturbed, and of what the killed ones had staged, nothing may stay that is older than a day. Each run is a fork of this process, which has
imported everything, so that a kill hits the run and not its imports.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent_pipeline.cli.instance import open_instance
from agent_pipeline.cli.runs import materialize
from agent_pipeline.definitions import defs
from agent_pipeline.ingestion.seen_sessions import SEEN_TABLE
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.storage.filesystem import is_staged
from agent_pipeline.storage.lake import Artifact, Lake

GROUPS = "group:traces or group:datasets or group:coresets"
DAY = 24 * 3600


def forked(work: Callable[[], object], seconds: float | None = None) -> int | None:
    """The exit status of a process that does this work; `None` where it was killed before its end, after so many seconds."""
    child = os.fork()
    if not child:
        status = 1
        with contextlib.suppress(BaseException):
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1), os.dup2(quiet, 2)
            work()
            status = 0
        os._exit(status)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if status == -signal.SIGKILL else status


def data_assets(key: PartitionKey) -> None:
    """One run of the data assets; raises where it fails."""
    with open_instance() as instance:
        assert materialize(defs, instance, key, GROUPS).success


def check_whole(lake: Lake) -> dict[str, str]:
    """Read everything; the sha256 of each file that is not being written."""
    found = {}
    for file in lake.files():
        if is_staged(file.path.name) or file.path.name.endswith(".lock"):
            continue
        content = file.path.read_bytes()
        name = "/".join((file.kind, file.asset, file.name))
        found[name] = hashlib.sha256(content).hexdigest()
        if file.name == "part-0.parquet":
            table = lake.open(file.asset, file.key).read()
            if (
                file.asset == SEEN_TABLE
            ):  # who wrote it last, the reading or the search, decides on its row groups
                found[name] = hashlib.sha256(repr(table.to_pylist()).encode()).hexdigest()
        elif file.path.suffix == ".jsonl":
            assert content.endswith(b"\n") and all(map(json.loads, content.splitlines())), file.path
        elif file.path.suffix == ".json":
            json.loads(content)
    return found


def kill_data_assets(kills: int, key: PartitionKey, folder: Path) -> None:
    """Kill runs, and see what they left."""
    os.environ |= {
        "AGENT_PIPELINE_LAKE": f"{folder}/undisturbed",
        "DAGSTER_HOME": f"{folder}/dagster",
    }
    began = time.monotonic()
    assert forked(lambda: data_assets(key)) == 0
    longest = time.monotonic() - began
    assert forked(lambda: data_assets(key)) == 0  # as the last run below, one that finds tables
    wanted = check_whole(Lake(folder / "undisturbed"))
    lake, killed, staged = Lake(folder / "lake"), 0, 0
    os.environ["AGENT_PIPELINE_LAKE"] = str(lake.root)
    for number in range(kills):
        status = forked(lambda: data_assets(key), random.uniform(0, longest))
        assert status in (0, None), f"run {number} failed beside what kills left"
        killed += status is None
        check_whole(lake)
    for file in lake.files():
        if is_staged(file.path.name):
            staged += 1
            os.utime(file.path.path, (time.time() - 2 * DAY,) * 2)
    assert forked(lambda: data_assets(key)) == 0, "the run after the last kill failed"
    found = check_whole(lake)
    assert found == wanted, (
        f"others are the bytes of {sorted(name for name in found | wanted if found.get(name) != wanted.get(name))}"
    )
    assert not [file.path for file in lake.files() if is_staged(file.path.name)], (
        "an old staged file stayed"
    )
    print(
        f"data assets of {key}: {killed} of {kills} runs of {longest:.0f} s were killed; {staged} staged files were left, and then none"
    )


def kill_promotions(kills: int, key: PartitionKey, folder: Path) -> None:
    """Kill processes that promote two exports in turn."""
    lake = Lake(folder / "promotions")

    def made(identity: str) -> Artifact:
        building = lake.building("gguf_export", key, identity)
        (building / "model.gguf").write_text(identity)
        return lake.finish("gguf_export", key, identity, building, {}, {})

    exports, killed = [made("a" * 64), made("b" * 64)], 0

    def promote() -> None:
        while True:
            for export in exports:
                lake.set_champion(export, why="kills", who="kills")

    for _ in range(kills):
        killed += forked(promote, random.uniform(0, 0.2)) is None
        history = lake.history("gguf_export", key)
        assert [entry.generation for entry in history] == list(range(1, len(history) + 1))
        assert [entry.against for entry in history] == [
            None,
            *(entry.champion for entry in history),
        ][: len(history)]
        assert lake.champion("gguf_export", key) or not history
    before = len(lake.history("gguf_export", key))
    lake.set_champion(exports[before % 2])
    print(
        f"promotions: {killed} of {kills} processes were killed; {before} entries of the history, all whole"
    )


def main(kills: int = 50, promotions: int = 200, partition: str = "shop/intern") -> None:
    """Kill, check, and say how often."""
    os.environ.setdefault(
        "AGENT_PIPELINE_STORE", str(Path(__file__).parents[1] / "data" / "sample")
    )
    with tempfile.TemporaryDirectory() as name:
        kill_promotions(promotions, parse_key(partition), Path(name))
        kill_data_assets(kills, parse_key(partition), Path(name))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
