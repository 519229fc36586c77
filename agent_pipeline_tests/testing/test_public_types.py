"""The types of the public names, as a user's type checker sees them in the installed package."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from agent_pipeline_tests.conftest import REPOSITORY

USER_CODE = Path(__file__).with_name("user_code.py")
LARGE = ("torch", "transformers", "datasets", "trl", "peft", "pandas", "sklearn", "scipy", "openai")
"""Libraries whose types would take the checker minutes. None of them is part of a public type."""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    without_checkout = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=without_checkout, capture_output=True, text=True)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which the package's wheel is installed, with its libraries."""
    folder = tmp_path_factory.mktemp("installed")
    built = run(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"),
        *("--no-index", "-w", folder, source(folder)),
        cwd=folder,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("*.whl")
    assert run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=folder).returncode == 0
    (packages,) = folder.glob("venv/lib/*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv" / "bin" / "python"


def source(folder: Path) -> Path:
    """Return a copy of what a wheel is built from: a build writes into its source folder."""
    copied = folder / "source"
    copied.mkdir()
    for name in ("agent_pipeline", "pyproject.toml", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", REPOSITORY / name, copied / name], check=True)
    return copied


def check(python: Path, code: str, folder: Path) -> list[str]:
    """Return what `mypy --strict` reports about a user's module."""
    (folder / "user_code.py").write_text(code, encoding="utf-8")
    (folder / "mypy.ini").write_text(
        "[mypy]\n" + "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in LARGE)
    )
    checked = run(
        *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
        *("--python-executable", python, "--cache-dir", python.parents[2] / "cache"),
        "user_code.py",
        cwd=folder,
    )
    assert not checked.stderr, checked.stderr
    return checked.stdout.splitlines()


@pytest.mark.slow
def test_user_code(installed: Path, tmp_path: Path) -> None:
    """A reader, a measure, a world and a notebook pass the strict checker without a comment."""
    assert check(installed, USER_CODE.read_text(encoding="utf-8"), tmp_path) == []


@pytest.mark.slow
def test_wrong_user_code(installed: Path, tmp_path: Path) -> None:
    """Without the types, everything would be `Any`, and no mistake would be reported."""
    mistakes = (
        "from agent_pipeline import AgentSFTConfig\n"
        "from agent_pipeline.testing import play_task, weather_session\n"
        "AgentSFTConfig('model', [], max_step=2)\n"
        "play_task('world', {}, [])\n"
        "weather_session(1, judgment='fine')\n"
        "weather_session(1).no_such_field\n"
    )
    reported = {line.split(":")[1] for line in check(installed, mistakes, tmp_path)}
    assert {"3", "4", "5", "6"} <= reported
