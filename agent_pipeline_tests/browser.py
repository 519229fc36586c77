"""A real browser: it prints the DOM of a page, or a test drives a tab of it by the DevTools protocol."""

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
)


def opened(url: str, profile: Path, *options: str) -> str:
    """The page's DOM after its scripts ran."""
    if CHROMIUM is None:
        pytest.skip("no chromium here: .ci/run installs it")
    command = [CHROMIUM, *QUIET, f"--user-data-dir={profile}", *options, "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


class Tab:
    """A tab of a running browser, which a test drives."""

    def __init__(self, address: str) -> None:
        from websockets.sync.client import connect

        self._connection = connect(address, max_size=None, compression=None)
        self._requests = 0

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its result."""
        self._requests += 1
        request = {"id": self._requests, "method": method, "params": params}
        self._connection.send(json.dumps(request))
        while True:
            answer = json.loads(self._connection.recv(timeout=120))
            if answer.get("id") == self._requests:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        result = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def wait_for(self, script: str, seconds: float = 120) -> Any:
        """Return the value of an expression once it is true."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if value := self.evaluate(script):
                    return value
            except AssertionError:  # the page is between two documents
                pass
            time.sleep(0.2)
        raise AssertionError(f"{script} never came true: {self.text()[:2000]}")

    def text(self) -> str:
        """Return the words of the page."""
        return str(self.evaluate("document.body.innerText"))

    def click(self, label: str, selector: str = "button, a, [role=menuitem]") -> None:
        """Click the first enabled element with exactly this text, once there is one."""
        element = (
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".find(e => e.innerText.trim() === {json.dumps(label)} && !e.disabled)"
        )
        self.wait_for(f"!!{element}")
        self.evaluate(f"{element}.click()")


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """Yield a tab of a browser of its own, which ends with the block."""
    if CHROMIUM is None:
        pytest.skip("no chromium here: .ci/run installs it")
    command = [
        CHROMIUM,
        *QUIET,
        f"--user-data-dir={profile}",
        "--remote-debugging-port=0",
        "--window-size=1600,1200",
        "about:blank",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
        try:
            port_file = profile / "DevToolsActivePort"
            until = time.monotonic() + 60
            while not port_file.exists() or "\n" not in port_file.read_text():
                assert browser.poll() is None and time.monotonic() < until
                time.sleep(0.1)
            port = port_file.read_text().split()[0]
            pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=60))
            page = next(each for each in pages if each["type"] == "page")
            yield Tab(page["webSocketDebuggerUrl"])
        finally:
            browser.terminate()
            try:
                browser.wait(timeout=20)
            except subprocess.TimeoutExpired:
                browser.kill()  # a browser that is about to crash may ignore the first signal


class Elements(HTMLParser):
    """Every element of a page: its name and its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
