"""What all rooms share: the sample store, the real traces, and a test's independence of this checkout's settings."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same examples in every run: a test that fails today fails tomorrow, and no slow machine makes one fail.
settings.register_profile("agent-pipeline", deadline=None, derandomize=True, database=None)
settings.load_profile("agent-pipeline")

# No test asks the hub, and no two workers fight for the cores: both must be set before torch and huggingface_hub are imported.
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

REPOSITORY = Path(__file__).resolve().parents[1]
SAMPLE = REPOSITORY / "data" / "sample"
# Taken before the isolation below takes it away.
REAL_TRACES = Path(os.environ.get("AGENT_PIPELINE_REAL_TRACES") or REPOSITORY.parent / "shared" / "data" / "traces")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, the whole graph before all: no worker is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path.parent != Path(__file__).parent))


@pytest.fixture(autouse=True)
def independent_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No variable of ours or of omniagents and no `pipeline.toml` reaches a test that sets none itself; it runs in an empty folder."""
    for name in [name for name in os.environ if name.upper().startswith(("AGENT_PIPELINE_", "OMNIAGENTS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="session")
def sample_store() -> Path:
    """The committed, simulated omniagents home."""
    if not (SAMPLE / "manifest.json").is_file():
        pytest.skip(f"no sample sessions at {SAMPLE}: make them with python -m agent_pipeline.sample")
    return SAMPLE


@pytest.fixture(scope="session")
def sample_manifest(sample_store: Path) -> dict[str, Any]:
    """What is true of the sample, by its maker."""
    return json.loads((sample_store / "manifest.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """Real sessions, which do not belong to this repository."""
    if not REAL_TRACES.is_dir():
        pytest.skip(f"no real traces at {REAL_TRACES}: set AGENT_PIPELINE_REAL_TRACES to their folder")
    return REAL_TRACES
