"""Every deployment starts the web server that refuses other pages, under the names that browsers use."""

import json
import re
import shlex
from pathlib import Path

import yaml

from agent_pipeline.cli import webserver
from agent_pipeline.cli.webserver import OwnPagesOnly
from agent_pipeline_tests.conftest import REPOSITORY
from agent_pipeline_tests.deploy.test_compose import compose

DEPLOY = REPOSITORY / "deploy"
COMMAND = ["agent-pipeline", "service"]


def is_refused(host: str, origin: str, ui_hosts: list[str]) -> bool:
    """Return whether what the UI sends as a page of `origin` is refused under the name `host`."""
    headers = {"host": host, "origin": origin, "content-type": "application/json"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/graphql",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    return bool(OwnPagesOnly(None, ui_hosts)._refusal(scope))  # type: ignore[arg-type]


def test_compose() -> None:
    """The login passes the host name of LOGIN_URL on, and the published port is localhost's."""
    services = compose()
    assert services["webserver"]["command"][:3] == [*COMMAND, "webserver"]
    ui_hosts = json.loads(services["webserver"]["environment"]["AGENT_PIPELINE_UI_HOSTS"])
    for address in (*ui_hosts, "http://localhost:3000", "http://127.0.0.1:3000"):
        assert not is_refused(address.partition("://")[2], address, ui_hosts)
    assert not is_refused("p.example.org", "https://p.example.org", ["https://p.example.org"])
    assert is_refused("localhost:4180", "https://evil.example", ui_hosts)
    assert is_refused("evil.example", "http://evil.example", ui_hosts)


def test_systemd() -> None:
    unit = (DEPLOY / "agent-pipeline@.service").read_text(encoding="utf-8")
    program, *arguments = shlex.split(re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)[0])
    assert [Path(program).name, *arguments] == [*COMMAND, "%i"]
    assert "AGENT_PIPELINE_UI_HOSTS" in (DEPLOY / "agent-pipeline.env.example").read_text("utf-8")


def test_image() -> None:
    """Dagster's Helm chart starts `dagster-webserver`, which in the image is this package's."""
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f'exec python -m {webserver.__name__} "$@"' in dockerfile
    assert '> "$(command -v dagster-webserver)"' in dockerfile
    assert shlex.join(COMMAND) in " ".join(
        json.loads(re.findall(r"^CMD (.*)$", dockerfile, re.MULTILINE)[0])
    )


def test_helm() -> None:
    """The chart starts its own command in this image, and the probes use the address of the pod."""
    values = yaml.safe_load((DEPLOY / "helm-values.yaml").read_text(encoding="utf-8"))
    assert values["dagsterWebserver"]["image"] == values["dagsterDaemon"]["image"]
    assert "command" not in values["dagsterWebserver"]
    assert not is_refused("10.1.2.3:80", "http://10.1.2.3:80", [])
