"""`python -m benchmarks.catalogue [agents]`: how long Dagster's catalogue and an asset's page take with many agents, on PostgreSQL.

A PostgreSQL of its own (Debian's package), the web server of `agent-pipeline service`, and Chromium. Every asset of the graph has been
materialized once for every agent. Seconds are the page's own clock (`performance.now()`), from the navigation until the words stand on it;
beside them the processor's seconds of the web server and of the browser until then, which a busy machine stretches.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_pipeline_tests.browser import CHROMIUM, QUIET
from agent_pipeline_tests.ports import free_port
from agent_pipeline_tests.postgres import cluster

ROUNDS = 3


def fill(agents: list[str], port: int) -> int:
    """Make the agents known and every asset materialized for each; the number of events.

    Dagster writes the first agent's, and PostgreSQL copies them for the others: one by one, they would take longer than all pages.
    """
    import dagster as dg
    import psycopg2

    from agent_pipeline.cli.instance import open_instance
    from agent_pipeline.definitions import defs
    from agent_pipeline.defs.partitions import AGENTS

    with open_instance() as instance:
        instance.add_dynamic_partitions(AGENTS.name or "", agents)
        for spec in defs.resolve_all_asset_specs():
            if spec.partitions_def:
                event = dg.AssetMaterialization(
                    spec.key, partition=agents[0], tags={"dagster/data_version": "1"}
                )
                instance.report_runless_asset_event(event)
    with psycopg2.connect(
        host="127.0.0.1", port=port, user="dagster", password="dagster", dbname="dagster"
    ) as database:
        rows = database.cursor()
        rows.execute(
            """INSERT INTO event_logs (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
               SELECT run_id, replace(event, %s, name), dagster_event_type, timestamp, step_key, asset_key, name
               FROM event_logs, unnest(%s) AS name WHERE partition = %s""",
            (agents[0], agents[1:], agents[0]),
        )
        rows.execute("SELECT count(*) FROM event_logs WHERE partition IS NOT NULL")
        return rows.fetchone()[0]


def processor(*roots: int) -> float:
    """Processor seconds of these processes and all that they started."""
    import psutil

    total = 0.0
    for root in roots:
        for process in (found := psutil.Process(root), *found.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:2])
    return total


class Browser:
    """A headless Chromium, driven over its debugging port."""

    def __init__(self, folder: Path) -> None:
        from websockets.sync.client import connect

        options = [
            *QUIET,
            f"--user-data-dir={folder}",
            "--remote-debugging-port=0",
            "--window-size=1600,1000",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            [CHROMIUM or "chromium", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not (folder / "DevToolsActivePort").exists():
            time.sleep(0.2)
        port = (folder / "DevToolsActivePort").read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as pages:
            address = next(
                page["webSocketDebuggerUrl"] for page in json.load(pages) if page["type"] == "page"
            )
        self.socket = connect(address, max_size=None).__enter__()

    def call(self, method: str, **params: Any) -> Any:
        self.socket.send(json.dumps({"id": 1, "method": method, "params": params}))
        while (answer := json.loads(self.socket.recv())).get("id") != 1:
            pass
        return answer.get("result", {})

    def seconds(self, url: str, *words: str) -> float:
        """From the navigation until all the words stand on the page, and none that begins with `!`; below zero: not within a minute."""
        self.call("Page.navigate", url=url)
        look = f"""new Promise(done => {{ const look = () => {{
            const text = document.body ? document.body.innerText : '';
            const stands = word => word[0] == '!' ? !text.includes(word.slice(1)) : text.includes(word);
            if (location.href != 'about:blank' && {json.dumps(words)}.every(stands)) done(performance.now());
            else if (performance.now() > 60000) done(-1); else setTimeout(look, 50); }}; look(); }})"""
        while True:  # a navigation takes away the page that was asked
            result = self.call(
                "Runtime.evaluate", expression=look, awaitPromise=True, returnByValue=True
            )
            if "value" in result.get("result", {}):
                return result["result"]["value"] / 1000


def main() -> None:
    agents = [
        f"shop/agent-{number:04}"
        for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    ]
    folder, web = Path(tempfile.mkdtemp()), free_port()
    base = f"http://127.0.0.1:{web}"
    with cluster("dagster", "dagster") as port:
        os.environ |= {
            "DAGSTER_HOME": str(folder / "dagster"),
            "DAGSTER_POSTGRES_URL": f"postgresql://dagster:dagster@127.0.0.1:{port}/dagster",
            "AGENT_PIPELINE_STORE": str(Path(__file__).parents[1] / "data" / "sample"),
            "AGENT_PIPELINE_LAKE": str(folder / "lake"),
        }
        began = time.monotonic()
        print(
            f"{fill(agents, port)} events in {time.monotonic() - began:.0f} s; load of the machine {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        command = [
            sys.executable,
            "-m",
            "agent_pipeline.cli.app",
            "service",
            "webserver",
            "--port",
            str(web),
        ]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        browser = None
        try:
            while True:
                with suppress(OSError):
                    urllib.request.urlopen(f"{base}/server_info", timeout=5)
                    break
                time.sleep(0.5)
            browser = Browser(folder / "chromium")
            pages = {
                "catalogue, every row with its state, /assets": (
                    "/assets",
                    "champion",
                    f"{len(agents):,} partitions",
                    "!- partitions",
                ),
                "one asset, /assets/sessions": (
                    "/assets/sessions",
                    "Latest materialization",
                    "session_id",
                ),
                "its partitions": (
                    "/assets/sessions?view=partitions",
                    agents[0],
                    f"Materialized ({len(agents)})",
                ),
                "lineage of all, /asset-groups": ("/asset-groups", "exports", "coresets"),
            }
            print("| page | seconds, first to last visit | of a processor |\n|---|---:|---:|")
            for name, (path, *words) in pages.items():
                times, spent = [], []
                for _ in range(ROUNDS):
                    before = processor(server.pid, browser.process.pid)
                    times.append(f"{browser.seconds(base + path, *words):.1f}")
                    spent.append(f"{processor(server.pid, browser.process.pid) - before:.1f}")
                print(f"| {name} | {', '.join(times)} | {', '.join(spent)} |", flush=True)
            print(f"load of the machine {os.getloadavg()[0]:.1f}")
        finally:
            for process in (browser.process if browser else None, server):
                if process:
                    process.terminate()
                    process.wait(timeout=60)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
