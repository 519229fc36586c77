"""The UI as a user meets it: the real web server, its GraphQL, and a real browser."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_pipeline_tests.browser import opened
from agent_pipeline_tests.conftest import SAMPLE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`agent-pipeline discover`, an asset of one agent, then a web server on the same instance."""
    folder = tmp_path_factory.mktemp("webserver")
    ours = {"DAGSTER_HOME": folder / "dagster", "AGENT_PIPELINE_STORE": SAMPLE, "AGENT_PIPELINE_LAKE": folder / "lake"}
    environment = os.environ | {name: str(path) for name, path in ours.items()}
    for command in (["discover"], ["materialize", "shop/intern", "--select", "sessions"]):
        subprocess.run([sys.executable, "-m", "agent_pipeline.cli.app", *command], env=environment, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "dagster_webserver", "-m", "agent_pipeline.definitions", "-p", str(port)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(f"http://127.0.0.1:{port}/server_info", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        assert process.poll() is None, "the web server ended before it answered"
        try:
            urllib.request.urlopen(url, timeout=5)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.3)
        else:
            return
    raise AssertionError("the web server did not answer within ten minutes")


def _query(server: str, query: str) -> dict:
    request = urllib.request.Request(f"{server}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        result = json.load(answer)
    assert "errors" not in result, result["errors"]
    return result["data"]


def test_the_partitions_of_the_store_are_there_to_be_chosen(server: str) -> None:
    node = _query(server, '{ assetNodeOrError(assetKey: {path: ["sessions"]}) { ... on AssetNode { partitionKeys } } }')
    assert node["assetNodeOrError"]["partitionKeys"] == ["office/rooms", "shop/intern", "shop/support"]


def test_the_shells_runs_are_the_uis_runs(server: str) -> None:
    runs = _query(server, "{ runsOrError { ... on Runs { results { jobName status tags { key value } } } } }")["runsOrError"]["results"]
    assert [(run["jobName"], run["status"]) for run in runs] == [("retrain", "SUCCESS")]
    assert {"key": "dagster/partition", "value": "shop/intern"} in runs[0]["tags"]


def test_shell_run_belongs_to_the_code_location(server: str) -> None:
    """The home page lists a run by its origin; a run without one is on no page but the run list."""
    query = "{ runsOrError { ... on Runs { results { repositoryOrigin { repositoryName repositoryLocationName } } } } }"
    origins = [run["repositoryOrigin"] for run in _query(server, query)["runsOrError"]["results"]]
    assert origins == [{"repositoryName": "__repository__", "repositoryLocationName": "agent_pipeline"}]


def test_home_page_shows_shell_runs(server: str, tmp_path: Path) -> None:
    dom = opened(server, tmp_path, "--virtual-time-budget=60000")
    assert "No runs" not in dom
    assert "/locations/agent_pipeline/jobs/retrain" in dom


def test_the_launchpad_explains_every_field_of_the_run_config(server: str) -> None:
    data = _query(
        server,
        """{ assetNodeOrError(assetKey: {path: ["sft_adapter"]}) { ... on AssetNode { configField { configType {
               ... on CompositeConfigType { fields { name description defaultValueAsJson } } } } } } }""",
    )
    fields = {field["name"]: field for field in data["assetNodeOrError"]["configField"]["configType"]["fields"]}
    assert "SmolLM2-135M-Instruct" in fields["base_model"]["defaultValueAsJson"]
    assert all(field["description"] and field["defaultValueAsJson"] for field in fields.values())


def test_a_browser_shows_the_stages_of_the_lineage(server: str, tmp_path: Path) -> None:
    dom = opened(f"{server}/asset-groups", tmp_path, "--virtual-time-budget=60000")
    assert "Global asset lineage" in dom
    for stage in ("traces", "datasets", "coresets", "models", "exports"):
        assert f">{stage}<" in dom
