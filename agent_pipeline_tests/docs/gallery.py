"""Take the pictures of the page docs/gallery.md: `python -m agent_pipeline_tests.docs.gallery FOLDER`.

FOLDER has the files of a finished demo: `pipeline.toml`, `lake` and `.dagster`. The script starts
the web server and the pages on a copy of FOLDER, opens them in Chromium, and writes the pictures.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agent_pipeline.cli.instance import WORKSPACE
from agent_pipeline_tests.browser import Tab, start_browser
from agent_pipeline_tests.docs.pages import REPOSITORY
from agent_pipeline_tests.ports import free_port

AGENT = "shop/support"
WIDTH = 1440
LARGEST = 150 * 1024
"""Largest size of a picture, in bytes."""


@dataclass(frozen=True)
class Shot:
    """A picture of the gallery.

    Attributes:
        name: The name of the file, without its suffix.
        path: The path of the page.
        ready: A JavaScript expression that is true once the page shows its content.
        height: The height of the window, in pixels.
        prepare: JavaScript that is run before the picture is taken.
    """

    name: str
    path: str
    ready: str
    height: int = 900
    prepare: str = ""


def has_text(*texts: str) -> str:
    """Return an expression that is true once the page shows all texts."""
    return " && ".join(f"document.body.innerText.includes({text!r})" for text in texts)


DAGSTER = [
    Shot("home", "/overview/activity/timeline", has_text("retrain"), 450),
    Shot(
        "adapter",
        f"/assets/adapter?view=overview&partition={AGENT.replace('/', '%2F')}",
        has_text("loss_last"),
        1000,
    ),
    Shot(
        "checks",
        f"/assets/gguf_export?view=checks&partition={AGENT.replace('/', '%2F')}",
        has_text("Passes if"),
        900,
    ),
]
PAGES = [
    Shot("session", f"/{AGENT}/sessions", "!!document.querySelector('main a')", 900,
         "document.querySelector('main a[href*=session]').click()"),
    Shot("review", f"/{AGENT}/review", "!!document.querySelector('main')", 900),
    Shot("evaluation", f"/{AGENT}/evaluation", "!!document.querySelector('main, h1')", 900),
    Shot("episodes", f"/{AGENT}/episodes", "!!document.querySelector('main, h1')", 900),
    Shot("decision", f"/{AGENT}/decision", "!!document.querySelector('main, h1')", 900),
]  # fmt: skip


@contextmanager
def running(folder: Path, *command: str) -> Iterator[str]:
    """Run a server of the package on a free port, and yield its address."""
    port = free_port()
    environment = os.environ | {
        "DAGSTER_HOME": str(folder / ".dagster"),
        "AGENT_PIPELINE_CONFIG": str(folder / "pipeline.toml"),
        "AGENT_PIPELINE_LAKE": str(folder / "lake"),
        "AGENT_PIPELINE_STORE": str(REPOSITORY / "data" / "sample"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--port", str(port)],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert process.poll() is None, f"{command} ended"
            with suppress(OSError):
                urllib.request.urlopen(address, timeout=5)
                break
            time.sleep(0.5)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def take(browser: Tab, address: str, shot: Shot, folder: Path) -> None:
    """Open a page, and write its picture."""
    metrics = {"width": WIDTH, "height": shot.height, "deviceScaleFactor": 1, "mobile": False}
    browser.send("Emulation.setDeviceMetricsOverride", **metrics)
    browser.open(address + shot.path)
    browser.wait_for(f"document.readyState === 'complete' && {shot.ready}", 300)
    if shot.prepare:
        browser.evaluate(shot.prepare)
    time.sleep(6)
    picture = browser.send("Page.captureScreenshot", format="webp", quality=70)
    content = b64decode(picture["data"])
    assert len(content) <= LARGEST, f"{shot.name} has {len(content)} bytes"
    (folder / f"{shot.name}.webp").write_bytes(content)
    print(f"{shot.name}.webp: {len(content) / 1024:.0f} KiB")


def main(demo: Path, names: list[str]) -> None:
    """Write all pictures, or the pictures with some names, into docs/images/gallery."""
    pictures = REPOSITORY / "docs" / "images" / "gallery"
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("lake", ".dagster"):
            shutil.copytree(demo / part, folder / part)
        shutil.copy(demo / "pipeline.toml", folder)
        webserver = ("agent_pipeline.cli.webserver", "--workspace", WORKSPACE)
        for command, shots in (
            (webserver, DAGSTER),
            (("agent_pipeline.cli.app", "pages"), PAGES),
        ):
            chosen = [shot for shot in shots if not names or shot.name in names]
            if not chosen:
                continue
            with (
                running(folder, *command) as address,
                start_browser(folder / command[0]) as started,
                started.tab() as browser,
            ):
                for shot in chosen:
                    take(browser, address, shot, pictures)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
