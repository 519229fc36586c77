"""`make upgrade`: pins and ranges that go up, and the tests of our hooks with the newest releases."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "requirements" / "upgrade.py"


def load_script() -> ModuleType:
    specification = spec_from_file_location("upgrade", SCRIPT)
    assert specification and specification.loader
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


upgrade = load_script()


@pytest.mark.parametrize(
    ("before", "version", "after"),
    [
        ("trl>=1.16,<1.17", "1.18.2", "trl>=1.18,<1.19"),
        ("trl>=1.16,<1.17", "1.16.3", "trl>=1.16,<1.17"),
        ("trl>=1.16,<1.17", "1.17.0", "trl>=1.17,<1.18"),
        ("transformers>=5.20,<6", "6.1.0", "transformers>=6.1,<7"),
        ("dagster-k8s>=0.29.27,<0.30", "0.30.2", "dagster-k8s>=0.30.2,<0.31"),
    ],
)
def test_ranges(before: str, version: str, after: str) -> None:
    """A range goes up only if it excludes the version; it keeps its precision."""
    name = before.partition(">")[0]
    text = f'dependencies = ["{before}", "peft>=0.21,<0.22", "torch>=2.9"]'
    assert upgrade.raise_ranges(text, {name: version}) == text.replace(before, after)


def test_open_ranges() -> None:
    """Only the libraries' own ranges lose their upper ends."""
    text = '["dagster-k8s>=0.29.27,<0.30", "datasets>=5.2,<6", "trl>=1.16,<1.17"]'
    opened = '["dagster-k8s>=0.29.27", "datasets>=5.2,<6", "trl>=1.16"]'
    assert upgrade.open_ranges(text) == opened


def test_our_files() -> None:
    """Nothing changes without a newer version; each range of a library includes its pin."""
    lock = (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pins = upgrade.read_pins(lock)
    assert {"trl", "transformers", "peft", "dagster"} <= set(pins)
    assert sorted(upgrade.raise_pins(lock, {}).split()) == sorted(lock.split())
    assert upgrade.raise_ranges(project, pins) == project


def test_hook_tests_exist() -> None:
    tests = ROOT / "agent_pipeline_tests"
    assert not [name for name in upgrade.HOOK_TESTS if not (tests / name).exists()]


NAMES = st.sampled_from(["trl", "Jinja2", "huggingface_hub", "peft", "zstd"])
VERSIONS = st.sampled_from(["1.0", "1.16.0", "2.0.1"])


@given(st.dictionaries(NAMES, VERSIONS), st.dictionaries(NAMES, VERSIONS))
def test_pins(pins: dict[str, str], versions: dict[str, str]) -> None:
    """Each package is in the lock once, with its new version if it has one, also under a spelling of pip."""
    lock = "# A comment.\n" + "".join(f"{name}=={version}\n" for name, version in pins.items())
    spelled = {name.replace("_", "-").lower(): version for name, version in versions.items()}
    raised = upgrade.raise_pins(lock, spelled)
    comment, *lines = raised.splitlines()
    expected = {name.replace("_", "-").lower(): version for name, version in pins.items()}
    assert comment == "# A comment." and len(lines) == len(pins | versions)
    assert upgrade.read_pins(raised) == expected | spelled


@pytest.mark.newest
@pytest.mark.timeout(3600)
def test_hooks_with_the_newest_releases() -> None:
    """The tests of the hooks pass with the newest releases; the checkout stays as it is."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--dry-run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
