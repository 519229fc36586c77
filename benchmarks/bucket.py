"""`python -m benchmarks.bucket [PARTITION]`: the data assets with the lake in a bucket, against the same with the lake in a folder.

The bucket is moto's server on this machine, a process of its own that counts its requests. Both runs alternate (`ROUNDS`), each with a new
lake, then again with that lake: a night after a night. Their tables must have the same bytes. It needs the packages s3fs and moto.

`python -m benchmarks.bucket --race [WRITERS]`: so many machines (threads, each with locks of its own) write into one partition at once, a
task into the ledger of its split and an entry into the history of its pointers. Nothing may be lost.
"""

import hashlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROUNDS = int(os.environ.get("ROUNDS", "3"))
OPTIONS = {"key": "key", "secret": "secret"}


def serve() -> None:
    """A server that speaks S3; `GET /-/count` answers how often what was asked, and forgets it."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    app, asked = DomainDispatcherApplication(create_backend_app), Counter[str]()

    def counting(environ, start_response):
        if environ["PATH_INFO"] == "/-/count":
            start_response("200 OK", [])
            answer = json.dumps(asked).encode()
            asked.clear()
            return [answer]
        key = re.sub(
            r"[0-9a-f]{16}",
            "ID",
            environ["PATH_INFO"] + ("?list" if "list-type" in environ["QUERY_STRING"] else ""),
        )
        asked[f"{environ['REQUEST_METHOD']} {key}"] += 1
        return app(environ, start_response)

    server = make_server("127.0.0.1", 0, counting, threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()


@contextmanager
def bucket() -> Iterator[str]:
    """The address of such a server, with a bucket `lake`."""
    import s3fs

    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bucket", "--serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout
        endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"
        s3fs.S3FileSystem(endpoint_url=endpoint, **OPTIONS).mkdir("lake")
        yield endpoint
    finally:
        process.kill()


def asked(endpoint: str) -> Counter[str]:
    """The requests since the last call."""
    with urllib.request.urlopen(f"{endpoint}/-/count") as answer:
        return Counter(json.load(answer))


def data_assets(partition: str, lake: str, folder: Path, endpoint: str = "") -> tuple[float, float]:
    """CPU seconds and seconds of a run."""
    options = json.dumps(OPTIONS | {"endpoint_url": endpoint}) if endpoint else "{}"
    environment = os.environ | {
        "AGENT_PIPELINE_STORE": str(ROOT / "data" / "sample"),
        "AGENT_PIPELINE_LAKE": lake,
        "AGENT_PIPELINE_LAKE_OPTIONS": options,
        "AGENT_PIPELINE_CACHE": f"{folder}/cache",
        "DAGSTER_HOME": f"{folder}/dagster",
    }
    groups = "group:traces,group:datasets,group:coresets"
    command = [
        sys.executable,
        "-m",
        "agent_pipeline.cli.app",
        "materialize",
        partition,
        "--select",
        groups,
    ]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        time.perf_counter() - began,
    )


def tables(lake: str, endpoint: str = "") -> dict[str, str]:
    """The sha256 of every table."""
    from agent_pipeline.storage.lake import Lake

    opened = Lake(lake, options=OPTIONS | {"endpoint_url": endpoint} if endpoint else None)
    files = [
        file for file in opened.files() if file.kind == "tables" and file.name == "part-0.parquet"
    ]
    return {file.asset: hashlib.sha256(file.path.read_bytes()).hexdigest() for file in files}


def main(partition: str = "shop/support") -> None:
    """Print the table, and with `REQUESTS=1` every kind of request."""
    print(
        "| what | bucket, CPU | folder, CPU | ratio | bucket | folder | ratio | requests |\n|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    found: dict[str, list[Any]] = {
        "first run": [],
        "second run": [],
    }
    with bucket() as endpoint, tempfile.TemporaryDirectory() as name:
        for number in range(ROUNDS):
            remote, folder = f"s3://lake/{number}", Path(name) / str(number)
            for what in found:
                asked(endpoint)
                ours, requests = (
                    data_assets(partition, remote, folder / "remote", endpoint),
                    asked(endpoint),
                )
                found[what].append(
                    (
                        ours,
                        data_assets(partition, f"{folder}/lake", folder / "local"),
                        requests.total(),
                    )
                )
                if os.environ.get("REQUESTS"):
                    print(
                        what,
                        *(f"{count:5} {request}" for request, count in requests.most_common()),
                        sep="\n",
                    )
                there, here = tables(remote, endpoint), tables(f"{folder}/lake")
                if differ := {name for name in there | here if there.get(name) != here.get(name)}:
                    raise SystemExit(f"the bytes differ of {', '.join(sorted(differ))}")
    for what, rounds in found.items():
        figures = [
            f"{statistics.median(pair[which][at] for pair in rounds):.1f} s"
            for at in (0, 1)
            for which in (0, 1)
        ]
        ratios = [
            statistics.median(ours[at] / other[at] for ours, other, _ in rounds) for at in (0, 1)
        ]
        cells = [*figures[:2], f"{ratios[0]:.2f}", *figures[2:], f"{ratios[1]:.2f}", rounds[-1][2]]
        print(f"| {what} of the data assets | {' | '.join(map(str, cells))} |")


def race(writers: str = "200") -> None:
    """Print how many succeeded, in what time, by how many requests."""
    import pyarrow as pa

    from agent_pipeline.datasets.ledger import read_ledger, record_tasks
    from agent_pipeline.datasets.splits import SplitSizes
    from agent_pipeline.errors import DataError
    from agent_pipeline.keys import PartitionKey
    from agent_pipeline.storage.lake import Lake
    from agent_pipeline_tests.lakes import artifact

    key, count = PartitionKey("shop", "support"), int(writers)
    with (
        bucket() as endpoint,
        tempfile.TemporaryDirectory() as name,
        ThreadPoolExecutor(count) as pool,
    ):
        lakes = [
            Lake("s3://lake/race", Path(name) / str(number), OPTIONS | {"endpoint_url": endpoint})
            for number in range(count)
        ]
        made = [
            artifact(lakes[0], "model", key, {"number": number}, {}, latest=False)
            for number in range(count)
        ]
        began = time.perf_counter()

        def write(number: int) -> float | str:
            try:
                record_tasks(lakes[number], key, pa.array([f"task-{number}"]), SplitSizes())
                lakes[number].set_latest(made[number])
            except DataError as error:
                return str(error)
            return time.perf_counter() - began

        asked(endpoint)
        took, requests = list(pool.map(write, range(count))), asked(endpoint).total()
        tasks, entries = (
            read_ledger(lakes[0], key, SplitSizes()).recorded,
            lakes[0].history("model", key),
        )
    assert [each.against for each in entries] == [None, *(each.latest for each in entries[:-1])], (
        "the history has a gap"
    )
    done = [each for each in took if isinstance(each, float)]
    print(*sorted({each for each in took if isinstance(each, str)}), sep="\n")
    print(
        "| writers | succeeded | tasks | entries | half after | all after | requests |\n|---:|---:|---:|---:|---:|---:|---:|"
    )
    cells = (
        count,
        len(done),
        len(tasks),
        len(entries),
        f"{statistics.median(done):.0f} s",
        f"{max(done):.0f} s",
        requests,
    )
    print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    first, *others = sys.argv[1:] or ["shop/support"]
    {"--serve": serve, "--race": race}.get(first, lambda *_: main(first))(*others)
