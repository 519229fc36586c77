"""A real browser, of which a test drives a tab by the DevTools protocol."""

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


SECONDS = 240.0
"""Seconds that a page may take. They end a test before its own time limit, with a reason."""


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
            answer = json.loads(self._connection.recv(timeout=SECONDS))
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
        """Open a page, and wait until the page with its scripts is loaded.

        The page before it is gone by then: nothing that a test sends afterwards reaches it.
        """
        loading = self.send("Page.navigate", url=url)
        assert not loading.get("errorText"), loading
        until = time.monotonic() + SECONDS
        while (
            self.send("Page.getFrameTree")["frameTree"]["frame"]["loaderId"] != loading["loaderId"]
        ):
            assert time.monotonic() < until, f"{url} did not open"
            time.sleep(0.02)
        self.wait_for("document.readyState === 'complete'")

    def wait_for(self, script: str, seconds: float = SECONDS) -> Any:
        """Return the value of an expression once it is true."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if value := self.evaluate(script):
                    return value
            except AssertionError:  # the page is between two documents
                pass
            time.sleep(0.05)
        raise AssertionError(f"{script} never came true: {self.text()[:2000]}")

    def html(self) -> str:
        """Return the page's DOM as it is now."""
        return str(self.evaluate("document.documentElement.outerHTML"))

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


class Browser:
    """A running browser."""

    def __init__(self, port: str) -> None:
        self._address = f"127.0.0.1:{port}"
        version = urllib.request.urlopen(f"http://{self._address}/json/version", timeout=SECONDS)
        self._control = Tab(json.load(version)["webSocketDebuggerUrl"])

    @contextmanager
    def tab(self) -> Iterator[Tab]:
        """Yield a new tab, which shares no cookies and no storage with other tabs."""
        context = self._control.send("Target.createBrowserContext")
        target = self._control.send("Target.createTarget", url="about:blank", **context)
        try:
            yield Tab(f"ws://{self._address}/devtools/page/{target['targetId']}")
        finally:
            self._control.send("Target.disposeBrowserContext", **context)


@contextmanager
def start_browser(profile: Path) -> Iterator[Browser]:
    """Yield a browser, which ends with the block."""
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
            until = time.monotonic() + 300
            while not port_file.exists() or "\n" not in port_file.read_text():
                assert browser.poll() is None and time.monotonic() < until
                time.sleep(0.1)
            yield Browser(port_file.read_text().split()[0])
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
