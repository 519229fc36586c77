"""A real browser that opens a page and says what it then is."""

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

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


class Elements(HTMLParser):
    """Every element of a page: its name and its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
