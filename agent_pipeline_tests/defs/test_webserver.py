"""The UI as a user meets it: the real web server, its GraphQL, and a real browser."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from agent_pipeline_tests.browser import Tab
from agent_pipeline_tests.ports import free_port
from agent_pipeline_tests.stores import omniagents_home

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `agent-pipeline dev`, which was started in an empty home; then the shell made an asset."""
    folder = tmp_path_factory.mktemp("webserver")
    for name in ("office/rooms", "shop/intern"):
        omniagents_home(folder / "store", key=name, verdicts=[("s1", "acceptable")])
    values = {
        "DAGSTER_HOME": folder / "dagster",
        "AGENT_PIPELINE_STORE": folder / "store",
        "AGENT_PIPELINE_LAKE": folder / "lake",
        "AGENT_PIPELINE_CACHE": folder / "cache",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    environment = os.environ | {name: str(path) for name, path in values.items()}
    port = free_port()
    command = [sys.executable, "-m", "agent_pipeline.cli.app"]
    process = subprocess.Popen(
        [*command, "dev", "--port", str(port)],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait(f"http://127.0.0.1:{port}/server_info", process)
        subprocess.run(
            [*command, "materialize", "shop/intern", "--select", "sessions"],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
        )
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        assert process.poll() is None, "the web server ended before it answered"
        try:
            urllib.request.urlopen(url, timeout=5)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.3)
        else:
            return
    raise AssertionError("the web server did not answer within five minutes")


def _query(server: str, query: str) -> dict:
    request = urllib.request.Request(
        f"{server}/graphql",
        json.dumps({"query": query}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        result = json.load(answer)
    assert "errors" not in result, result["errors"]
    return result["data"]


def test_the_partitions_of_the_store_are_there_to_be_chosen(server: str) -> None:
    node = _query(
        server,
        '{ assetNodeOrError(assetKey: {path: ["sessions"]}) { ... on AssetNode { partitionKeys } } }',
    )
    assert node["assetNodeOrError"]["partitionKeys"] == ["office/rooms", "shop/intern"]


def test_the_shells_runs_are_the_uis_runs(server: str) -> None:
    runs = _query(
        server, "{ runsOrError { ... on Runs { results { jobName status tags { key value } } } } }"
    )["runsOrError"]["results"]
    assert [(run["jobName"], run["status"]) for run in runs] == [("retrain", "SUCCESS")]
    assert {"key": "dagster/partition", "value": "shop/intern"} in runs[0]["tags"]


def test_shell_run_belongs_to_the_code_location(server: str) -> None:
    """The home page lists a run by its origin; a run without one is on no page but the run list."""
    query = "{ runsOrError { ... on Runs { results { repositoryOrigin { repositoryName repositoryLocationName } } } } }"
    origins = [run["repositoryOrigin"] for run in _query(server, query)["runsOrError"]["results"]]
    assert origins == [
        {"repositoryName": "__repository__", "repositoryLocationName": "agent_pipeline"}
    ]


def test_home_page_shows_shell_runs(server: str, tab: Tab) -> None:
    tab.open(server)
    tab.wait_for("!!document.querySelector('[href*=\"/locations/agent_pipeline/jobs/retrain\"]')")
    assert "No runs" not in tab.html()


def test_the_launchpad_explains_every_field_of_the_run_config(server: str) -> None:
    data = _query(
        server,
        """{ assetNodeOrError(assetKey: {path: ["adapter"]}) { ... on AssetNode { configField { configType {
               ... on CompositeConfigType { fields { name configType {
                 ... on CompositeConfigType { fields { name description defaultValueAsJson } } } } } } } } } }""",
    )
    groups = {
        group["name"]: group["configType"]["fields"]
        for group in data["assetNodeOrError"]["configField"]["configType"]["fields"]
    }
    fields = {field["name"]: field for field in groups["sft_adapter"]}
    assert "SmolLM2-135M-Instruct" in fields["base_model"]["defaultValueAsJson"]
    assert all(field["description"] for field in fields.values())
    # An earlier name of a setting has no value of its own.
    assert all(
        field["defaultValueAsJson"] or field["description"].startswith("The earlier name of")
        for field in fields.values()
    )


def test_a_browser_shows_the_stages_of_the_lineage(server: str, tab: Tab) -> None:
    tab.open(f"{server}/asset-groups")
    for stage in ("traces", "datasets", "coresets", "models", "exports"):
        tab.wait_for(f"document.documentElement.outerHTML.includes('>{stage}<')")
    assert "Global asset lineage" in tab.html()


SELECTOR = (
    'repositoryLocationName: "agent_pipeline", repositoryName: "__repository__", jobName: "promote"'
)
TAGS = 'tags: [{key: "dagster/partition", value: "shop/intern"}]'
PARAMS = f"selector: {{{SELECTOR}}}, runConfigData: {{}}, executionMetadata: {{{TAGS}}}"
LAUNCH = f"mutation {{ launchRun(executionParams: {{{PARAMS}}}) {{ __typename }} }}"


def _ask(
    server: str, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, str]:
    """The status and the text of an answer; an underscore in a header's name stands for a hyphen."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"{server}{path}", body, sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _count_runs(server: str) -> int:
    return len(
        _query(server, "{ runsOrError { ... on Runs { results { id } } } }")["runsOrError"][
            "results"
        ]
    )


QUERY = json.dumps({"query": "{ version }"}).encode()
MUTATION = json.dumps({"query": LAUNCH}).encode()
FORM = urllib.parse.urlencode({"query": LAUNCH}).encode()
FOREIGN: dict[str, dict[str, Any]] = {
    "mutation by GET": {"path": f"/graphql?{FORM.decode()}"},
    "mutation by GET as a page": {
        "path": f"/graphql?{FORM.decode()}",
        "Sec_Fetch_Mode": "navigate",
        "Sec_Fetch_Dest": "document",
    },
    "query by GET": {"path": "/graphql?query={version}"},
    "form": {"method": "POST", "body": FORM, "Content_Type": "application/x-www-form-urlencoded"},
    "form with a query": {
        "path": f"/graphql?{FORM.decode()}",
        "method": "POST",
        "Content_Type": "application/x-www-form-urlencoded",
    },
    "plain text": {"method": "POST", "body": MUTATION, "Content_Type": "text/plain"},
    "plain text that names JSON": {
        "method": "POST",
        "body": MUTATION,
        "Content_Type": "text/plain; application/json",
    },
    "GraphQL as text": {
        "method": "POST",
        "body": LAUNCH.encode(),
        "Content_Type": "application/graphql",
    },
    "foreign origin": {
        "method": "POST",
        "body": MUTATION,
        "Content_Type": "application/json",
        "Origin": "https://evil.example",
    },
    "other port of this machine": {
        "method": "POST",
        "body": QUERY,
        "Content_Type": "application/json",
        "Origin": "http://127.0.0.1:1",
    },
    "origin of a sandbox": {
        "method": "POST",
        "body": QUERY,
        "Content_Type": "application/json",
        "Origin": "null",
    },
    "foreign host": {
        "method": "POST",
        "body": QUERY,
        "Content_Type": "application/json",
        "Host": "rebound.example:3000",
    },
    "host that begins like ours": {"path": "/server_info", "Host": "127.0.0.1.evil.example"},
    "image": {
        "path": "/server_info",
        "Sec_Fetch_Site": "cross-site",
        "Sec_Fetch_Mode": "no-cors",
        "Sec_Fetch_Dest": "image",
    },
    "report of an asset": {
        "path": "/report_asset_materialization/sessions",
        "method": "POST",
        "body": b"{}",
        "Content_Type": "text/plain",
    },
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_request_of_a_foreign_page(server: str, kind: str) -> None:
    runs = _count_runs(server)
    status, text = _ask(server, **({"path": "/graphql"} | FOREIGN[kind]))
    assert status == 403 and "data" not in text
    assert _count_runs(server) == runs


def test_request_of_our_own_page(server: str) -> None:
    """What the UI itself sends is answered, and so is a link from elsewhere."""
    assert (
        _ask(
            server,
            "/graphql",
            "POST",
            QUERY,
            Content_Type="application/json; charset=utf-8",
            Origin=server,
        )[0]
        == 200
    )
    link = {
        "Sec_Fetch_Site": "cross-site",
        "Sec_Fetch_Mode": "navigate",
        "Sec_Fetch_Dest": "document",
    }
    assert _ask(server, "/runs", **link)[0] == 200
    assert _ask(server, "/graphql", Accept="text/html")[0] == 200


@pytest.mark.parametrize(
    ("origin", "host", "answer"),
    [(None, None, 101), ("http://evil.example", None, 403), (None, "evil.example", 403)],
)
def test_websocket(server: str, origin: str | None, host: str | None, answer: int) -> None:
    own = server.removeprefix("http://")
    name, _, port = own.partition(":")
    request = (
        f"GET /graphql HTTP/1.1\r\nHost: {host or own}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nOrigin: {origin or server}\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: graphql-ws\r\n\r\n"
    )
    with socket.create_connection((name, int(port)), timeout=60) as connection:
        connection.sendall(request.encode())
        assert int(connection.recv(100).split()[1]) == answer


def test_hostile_page_in_a_browser(server: str, tab: Tab) -> None:
    """A page of another origin tries an image, a script, a form, fetch, a beacon, a frame and a WebSocket."""
    address = f"{server}/graphql?{FORM.decode()}"
    page = f"""<!doctype html><body><iframe name=i></iframe><form id=f method=post enctype=text/plain action="{server}/graphql" target=i>
    <input name=query value="x"></form><img src="{address}"><script src="{address}"></script>
    <iframe src="{server}/"></iframe><p id=log></p><script>
    const say = text => document.getElementById("log").append(text + ";");
    const query = {json.dumps(LAUNCH)};
    document.getElementById("f").submit();
    navigator.sendBeacon("{server}/graphql", new Blob([JSON.stringify({{query}})], {{type: "text/plain"}}));
    for (const [mode, type] of [["no-cors", "text/plain"], ["cors", "application/json"]])
      fetch("{server}/graphql", {{method: "POST", mode, headers: {{"Content-Type": type}}, body: JSON.stringify({{query}})}})
        .then(answer => answer.text()).then(text => say("read:" + text.includes("data")), () => say("refused"));
    const socket = new WebSocket("{server.replace("http", "ws")}/graphql", "graphql-ws");
    socket.onopen = () => say("socket-opened"); socket.onerror = () => say("socket-refused");
    </script>"""

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    runs = _count_runs(server)
    evil = ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    Thread(target=evil.serve_forever, daemon=True).start()
    tab.open(f"http://localhost:{evil.server_port}/")
    # The form, the beacon and the frames have no answer in the log; two requests and the socket have.
    log = tab.wait_for(
        "(log => log.split(';').length > 3 && log)(document.getElementById('log').innerText)"
    )
    evil.shutdown()
    assert "socket-refused" in log and "socket-opened" not in log and "read:true" not in log, log
    assert _count_runs(server) == runs


REPOSITORY = 'repositoryLocationName: "agent_pipeline", repositoryName: "__repository__"'


def _button(label: str) -> str:
    """Return JavaScript for the first enabled button whose text begins like this."""
    return (
        "[...document.querySelectorAll('button')].find(button => !button.disabled"
        f" && button.innerText.trim().startsWith({json.dumps(label)}))"
    )


def _until(is_reached: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not is_reached():
        assert time.monotonic() < until, "it did not come within five minutes"
        time.sleep(0.2)


def test_backfill_from_the_ui(server: str, tab: Tab) -> None:
    """A person materializes an asset of all agents in the UI, the daemon runs it, and the run page shows it."""
    query = "{ partitionBackfillsOrError { ... on PartitionBackfills { results { id status numPartitions } } } }"

    def backfills() -> list[dict[str, Any]]:
        return _query(server, query)["partitionBackfillsOrError"]["results"]

    tab.open(f"{server}/assets/sessions")
    for label in ("Materialize", "All", "Launch"):
        tab.wait_for(f"!!{_button(label)}")
        tab.evaluate(f"{_button(label)}.click()")
    _until(lambda: bool(backfills()))
    assert backfills()[0]["numPartitions"] == 2
    _until(lambda: backfills()[0]["status"].startswith("COMPLETED"))
    assert backfills()[0]["status"] == "COMPLETED_SUCCESS"
    tab.open(f"{server}/runs")
    tab.wait_for("document.body.innerText.includes('Backfill')")
    tab.wait_for("document.body.innerText.includes('Success')")


def test_schedule_from_the_ui(server: str, tab: Tab) -> None:
    """A person turns the nights on and off with the switch of the UI."""
    query = f'{{ scheduleOrError(scheduleSelector: {{{REPOSITORY}, scheduleName: "nightly"}}) {{ ... on Schedule {{ scheduleState {{ status }} }} }} }}'

    def status() -> str:
        return _query(server, query)["scheduleOrError"]["scheduleState"]["status"]

    row = "document.querySelector('a[href$=\"schedules/nightly\"]').parentElement"
    switch = f"{row}.querySelector('[class*=ListItem_right] input:not(:disabled)')"
    tab.open(f"{server}/automation")
    for expected in ("RUNNING", "STOPPED"):
        # The switch may be enabled again before it shows the state that its first click made.
        tab.wait_for(f"{switch}?.checked === {json.dumps(expected == 'STOPPED')}")
        tab.evaluate(f"{switch}.click()")
        _until(lambda expected=expected: status() == expected)


def test_run_from_the_launchpad(server: str) -> None:
    """What the launchpad sends starts a run of a job, and the daemon ends it."""
    launch = LAUNCH.replace(
        'jobName: "promote"', 'jobName: "retrain", assetSelection: [{path: ["sessions"]}]'
    )
    answer = _ask(
        server,
        "/graphql",
        "POST",
        json.dumps({"query": launch}).encode(),
        Content_Type="application/json",
        Origin=server,
    )
    assert "LaunchRunSuccess" in answer[1], answer
    query = "{ runsOrError(limit: 1) { ... on Runs { results { jobName status } } } }"

    def newest() -> dict[str, str]:
        return _query(server, query)["runsOrError"]["results"][0]

    _until(lambda: newest()["status"] in ("SUCCESS", "FAILURE"))
    assert newest() == {"jobName": "retrain", "status": "SUCCESS"}
