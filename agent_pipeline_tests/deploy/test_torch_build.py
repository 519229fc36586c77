"""The build of PyTorch that `make install` takes, with a false `nvidia-smi`."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "requirements" / "torch-build.sh"
CUDA_INDEX = "https://download.pytorch.org/whl/cu130"


def run(folder: Path, smi: str | None) -> subprocess.CompletedProcess[str]:
    """Run the script with `smi` as the text of the command `nvidia-smi`; None for no command."""
    for name in ("sh", "head"):
        (folder / name).symlink_to(f"/bin/{name}" if name == "sh" else "/usr/bin/head")
    if smi is not None:
        command = folder / "nvidia-smi"
        command.write_text(f"#!/bin/sh\n{smi}\n")
        command.chmod(0o755)
    environment = {"PATH": str(folder)}
    return subprocess.run(
        ["/bin/sh", str(SCRIPT)], env=environment, capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize(
    ("smi", "index", "message"),
    [
        (None, "", "No NVIDIA GPU"),
        ("echo 580.65.06", CUDA_INDEX, "driver 580.65.06"),
        ("echo 590.1; echo 590.1", CUDA_INDEX, "driver 590.1"),
        ("echo 535.183.01", "", "older than 580"),
        ("exit 9", "", "finds no GPU"),
        ("echo 'No devices were found'", "", "finds no GPU"),
    ],
)
def test_builds(tmp_path: Path, smi: str | None, index: str, message: str) -> None:
    """A GPU with a new driver gets the CUDA build; in every case a sentence says what is taken."""
    done = run(tmp_path, smi)
    assert done.stdout.strip() == index
    assert message in done.stderr


def test_make_installs_the_build_of_the_lock(tmp_path: Path) -> None:
    """The recipe takes the version of the lock from the index of the script."""
    recipe = subprocess.run(
        ["make", "--dry-run", "--always-make", "install"],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "requirements/torch-build.sh" in recipe
    assert "grep '^torch==' requirements/lock.txt" in recipe and "--index-url" in recipe
