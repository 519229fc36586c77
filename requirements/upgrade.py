"""Raise TRL, transformers, PEFT and Dagster to their newest releases, and test our hooks with them.

`make upgrade` writes the versions into requirements/lock.txt, and into the ranges of pyproject.toml
that exclude them. With `--dry-run` both files stay as they are; the test `newest` calls it so.
pip chooses the versions: all other packages stay as installed, unless a newer library needs more.
The tests run in build/newest, a copy of the checkout with an environment of its own.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "build" / "newest"
LOCK = Path("requirements") / "lock.txt"
PROJECT = Path("pyproject.toml")

LIBRARY = re.compile(r"trl|transformers|peft|dagster(-[a-z0-9]+)*")
RANGE = re.compile(r'"(?P<name>[a-z0-9-]+)>=(?P<lower>[\d.]+),<(?P<upper>[\d.]+)"')

HOOK_TESTS = (
    "_compat",
    "compute/test_launchers.py",
    "defs/test_component.py",
    "defs/test_console.py",
    "defs/test_daemon.py",
    "defs/test_graph.py",
    "defs/test_schedule.py",
    "defs/test_webserver.py",
    "engine",
    "families",
    "models",
    "tokenization",
    "training",
)
"""The tests of code that uses internals of these libraries: folders and files of the tests."""


def read_pins(lock: str) -> dict[str, str]:
    """Return the versions of a lock by the packages' normalized names."""
    pins = (line.split("==") for line in lock.splitlines() if "==" in line)
    return {canonicalize_name(name): version for name, version in pins}


def raise_pins(lock: str, versions: dict[str, str]) -> str:
    """Return a lock with other versions. A package that is new goes to its place in the alphabet.

    Args:
        lock: The lines `name==version`, and comments.
        versions: The versions by the packages' names.
    """
    names = {canonicalize_name(name): name for name in versions}
    comments = [line for line in lock.splitlines() if "==" not in line]
    pins = [line for line in lock.splitlines() if "==" in line]
    kept = [line for line in pins if canonicalize_name(line.split("==")[0]) not in names]
    spelled = {canonicalize_name(line.split("==")[0]): line.split("==")[0] for line in pins}
    raised = [f"{spelled.get(key, name)}=={versions[name]}" for key, name in names.items()]
    return "\n".join([*comments, *sorted([*kept, *raised], key=str.lower)]) + "\n"


def open_ranges(project: str) -> str:
    """Return a pyproject.toml whose ranges of the libraries have no upper end."""
    return RANGE.sub(
        lambda match: (
            f'"{match["name"]}>={match["lower"]}"' if LIBRARY.fullmatch(match["name"]) else match[0]
        ),
        project,
    )


def raise_ranges(project: str, versions: dict[str, str]) -> str:
    """Return a pyproject.toml in which each range that excludes its package's version includes it.

    A range keeps its precision: `trl>=1.16,<1.17` becomes `trl>=1.18,<1.19` for 1.18.2.

    Args:
        project: The text of the pyproject.toml.
        versions: The versions by the packages' normalized names.
    """

    def raise_range(match: re.Match[str]) -> str:
        version = _parts(versions.get(match["name"], match["lower"]))
        lower, upper = _parts(match["lower"]), _parts(match["upper"])
        if version < upper:
            return match[0]
        *first, last = version[: len(upper)]
        return f'"{match["name"]}>={_join(version[: len(lower)])},<{_join([*first, last + 1])}"'

    return RANGE.sub(raise_range, project)


def _parts(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _join(parts: list[int]) -> str:
    return ".".join(map(str, parts))


def find_newest(names: list[str]) -> dict[str, str]:
    """Return the versions that pip would install to bring these packages to their newest releases.

    The copy of the checkout, with its open ranges, has to agree with them.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-"]
    command += ["--upgrade", "--upgrade-strategy", "only-if-needed", "--no-build-isolation"]
    done = subprocess.run([*command, *names, str(COPY)], stdout=subprocess.PIPE, check=True)
    metadata = [package["metadata"] for package in json.loads(done.stdout)["install"]]
    versions = {package["name"]: package["version"] for package in metadata}
    return {
        name: version.partition("+")[0]
        for name, version in versions.items()
        if canonicalize_name(name) != "agent-pipeline"
    }


def copy_checkout() -> None:
    """Copy the files of the checkout, the uncommitted ones too, and keep the copy's environment."""
    COPY.mkdir(parents=True, exist_ok=True)
    for path in COPY.iterdir():
        if path.is_dir() and path.name != ".venv":
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)


def run_hook_tests() -> int:
    """Make the environment of the copy, run the tests of the hooks in it, and return their status.

    The processes inherit nothing that belongs to a test run, or to the environment of the checkout.
    """
    foreign = ("AGENT_PIPELINE_", "HF_HUB_", "MAKE", "MFLAGS", "PYTEST_", "PYTHONPATH")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    tests = " ".join(f"agent_pipeline_tests/{folder}" for folder in HOOK_TESTS)
    command = ["make", "test", f"ARGS={tests}"]
    return subprocess.run(command, cwd=COPY, env=environment, check=False).returncode


def main() -> int:
    """Raise the versions and test the hooks. The status is that of the tests."""
    dry_run = sys.argv[1:] == ["--dry-run"]
    lock = (ROOT / LOCK).read_text(encoding="utf-8")
    project = (ROOT / PROJECT).read_text(encoding="utf-8")
    pins = read_pins(lock)
    copy_checkout()
    (COPY / PROJECT).write_text(open_ranges(project), encoding="utf-8")
    versions = find_newest([name for name in pins if LIBRARY.fullmatch(name)])
    raised = {canonicalize_name(name): version for name, version in versions.items()}
    texts = {LOCK: raise_pins(lock, versions), PROJECT: raise_ranges(project, raised)}
    for file, text in texts.items():
        (COPY / file).write_text(text, encoding="utf-8")
        if not dry_run and text != (ROOT / file).read_text(encoding="utf-8"):
            (ROOT / file).write_text(text, encoding="utf-8")
    for name, version in sorted(raised.items()):
        print(f"{name} {pins.get(name, '(new)')} -> {version}", flush=True)
    if not raised:
        print("No release is newer than requirements/lock.txt.", flush=True)
    return run_hook_tests()


if __name__ == "__main__":
    sys.exit(main())
