"""The services of deploy/compose.yaml as plain processes: their own commands and variables, with other hosts, ports and folders."""

import inspect
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_pipeline.cli.instance import open_instance
from agent_pipeline.cli.running import dev, webserver
from agent_pipeline.errors import SettingsError
from agent_pipeline_tests.conftest import REPOSITORY, SAMPLE
from agent_pipeline_tests.ports import free_port
from agent_pipeline_tests.postgres import cluster

AGENT = "shop/intern"
ASSETS = ["sessions", "judged_sessions"]
ENV = {
    "POSTGRES_PASSWORD": "pass",
    "LAKE_KEY": "key",
    "LAKE_SECRET": "secret",
    "STORE": "/srv/agents",
}


def compose() -> dict[str, Any]:
    """The services, with the variables of a .env put in as Compose does."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[1] not in ENV and match[2] != "-":
            raise AssertionError(f"the compose file needs {match[1]}: {match[3]}")
        return ENV.get(match[1], match[3])

    text = (REPOSITORY / "deploy" / "compose.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(re.sub(r"\$\$|\$\{(\w+):([-?])([^}]*)\}", value, text))["services"]


def test_only_the_loopback_reaches_the_web_server_and_the_login_and_nothing_else_has_a_port():
    assert {
        inspect.signature(command).parameters["host"].default for command in (dev, webserver)
    } == {"127.0.0.1"}
    ports = {name: service["ports"] for name, service in compose().items() if "ports" in service}
    assert ports == {"webserver": ["127.0.0.1:3000:3000"], "login": ["127.0.0.1:4180:4180"]}


def test_a_postgres_that_cannot_be_reached_is_one_sentence_without_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(
        "dagster_postgres",
        reason="no dagster-postgres here: pip install 'agent-pipeline[postgres]'",
    )
    monkeypatch.setattr("dagster_postgres.utils.calculate_delay", lambda **_: 0)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", "postgresql://dagster:hidden@127.0.0.1:1/dagster")
    with pytest.raises(
        SettingsError, match=r"^The PostgreSQL server of DAGSTER_POSTGRES_URL .* refused$"
    ) as error:
        open_instance()
    assert "hidden" not in str(error.value)


@contextmanager
def process(service: dict[str, Any], replace: dict[str, str]) -> Iterator[None]:
    """The service's command with its variables, in which other names stand for what only containers have."""

    def here(text: str) -> str:
        return re.sub("|".join(map(re.escape, replace)), lambda match: replace[match[0]], text)

    variables = {name: here(each) for name, each in service["environment"].items()}
    program, *arguments = service["command"]
    assert program == "agent-pipeline"
    command = [sys.executable, "-m", "agent_pipeline.cli.app", *map(here, arguments)]
    log = Path(variables["DAGSTER_HOME"]).parent / f"{arguments[1]}.log"
    with log.open("w") as out:
        started = subprocess.Popen(command, env=os.environ | variables, stdout=out, stderr=out)
    try:
        yield
        assert started.poll() is None, log.read_text(encoding="utf-8")[-2000:]
    finally:
        started.terminate()
        started.wait(timeout=60)


def until(look: Callable[[], Any]) -> Any:
    """What a look finds at last."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        try:
            if found := look():
                return found
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.5)
    raise AssertionError("it did not come within ten minutes")


LAUNCH = """mutation($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_composed_services_discover_the_agents_and_make_tables_on_postgres(
    tmp_path: Path,
) -> None:
    if not find_spec("dagster_postgres"):
        pytest.skip("no dagster-postgres here: pip install 'agent-pipeline[postgres]'")
    import psycopg2

    services, web = compose(), free_port()
    replace = {
        "/data": str(tmp_path),
        "/store": str(SAMPLE),
        "0.0.0.0": "127.0.0.1",
        "3000": str(web),
    }
    replace["/etc/agent-pipeline/pipeline.toml"] = str(tmp_path / "pipeline.toml")
    (tmp_path / "pipeline.toml").touch()
    environment = services["postgres"]["environment"]

    def ask(query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{web}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            result = json.load(answer)
        assert "errors" not in result, result["errors"]
        return result["data"]

    def launch() -> str:
        selector = {
            "repositoryLocationName": "agent_pipeline",
            "repositoryName": "__repository__",
            "pipelineName": "__ASSET_JOB",
        }
        assets = [{"path": [name]} for name in ASSETS]
        tags = [
            {"key": key, "value": AGENT} for key in ("dagster/partition", "agent_pipeline/agent")
        ]
        params = {
            "selector": selector | {"assetSelection": assets},
            "mode": "default",
            "executionMetadata": {"tags": tags},
        }
        return ask(LAUNCH, params=params)["launchPipelineExecution"]["run"]["runId"]

    def run_ended() -> list[dict[str, Any]]:
        (run,) = ask("{ runsOrError { ... on Runs { results { runId status endTime } } } }")[
            "runsOrError"
        ]["results"]
        return [run] if run["endTime"] else []

    with ExitStack() as stack:
        port = stack.enter_context(
            cluster(environment["POSTGRES_USER"], environment["POSTGRES_PASSWORD"])
        )
        replace["postgres:5432"] = f"127.0.0.1:{port}"
        if find_spec("s3fs") and find_spec("moto"):
            replace["http://minio:9000"] = stack.enter_context(
                bucket(services["bucket"]["command"][-1].split("/")[1])
            )
        else:
            replace["s3://lake"] = str(tmp_path / "lake")
            for name in ("webserver", "daemon"):
                services[name]["environment"].pop("AGENT_PIPELINE_LAKE_OPTIONS", None)
        stack.enter_context(process(services["webserver"], replace))
        until(lambda: urllib.request.urlopen(f"http://127.0.0.1:{web}/server_info", timeout=5))
        stack.enter_context(process(services["daemon"], replace))
        keys = '{ assetNodeOrError(assetKey: {path: ["sessions"]}) { ... on AssetNode { partitionKeys } } }'
        found = until(lambda: ask(keys)["assetNodeOrError"]["partitionKeys"])
        assert found == ["office/rooms", "shop/intern", "shop/support"]
        launched = launch()
        assert [(run["runId"], run["status"]) for run in until(run_ended)] == [
            (launched, "SUCCESS")
        ]
        with psycopg2.connect(
            host="127.0.0.1",
            port=port,
            user="dagster",
            password=ENV["POSTGRES_PASSWORD"],
            dbname="dagster",
        ) as database:
            rows = database.cursor()
            rows.execute('SELECT concurrency_key, "limit" FROM concurrency_limits ORDER BY 1')
            assert rows.fetchall() == [("cpu-heavy", 1), ("gpu", 1)]
            rows.execute(
                "SELECT count(DISTINCT asset_key) FROM event_logs WHERE dagster_event_type = 'ASSET_MATERIALIZATION'"
            )
            assert rows.fetchone() == (len(ASSETS),)
        database.close()
    assert not list((tmp_path / "dagster").rglob("*.db")), "nothing of Dagster's is in SQLite"


@contextmanager
def bucket(name: str) -> Iterator[str]:
    """The address of a server that speaks S3, in MinIO's place, with this bucket."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    try:
        s3fs.S3FileSystem(
            endpoint_url=f"http://{host}:{port}", key=ENV["LAKE_KEY"], secret=ENV["LAKE_SECRET"]
        ).mkdir(name)
        yield f"http://{host}:{port}"
    finally:
        server.stop()
