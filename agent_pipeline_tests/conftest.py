"""What all rooms share: the sample store, the real traces, tiny models, and a test's independence of this checkout's settings."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from hypothesis import settings

from agent_pipeline.models import threads
from agent_pipeline.sample import write_sample
from agent_pipeline.sample.cast import CAST

if TYPE_CHECKING:
    from agent_pipeline.models.base_model import BaseModel
    from agent_pipeline.models.chat_renderer import ChatRenderer
    from agent_pipeline_tests.browser import Browser, Tab

# The same examples in every run: a test that fails today fails tomorrow, and no slow machine makes one fail.
settings.register_profile("agent-pipeline", deadline=None, derandomize=True, database=None)
settings.load_profile("agent-pipeline")

# No test asks the hub, and no two workers fight for the cores: both must be set before torch and huggingface_hub are imported.
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
# Nor does one write into a database of the developer's.
os.environ.pop("DAGSTER_POSTGRES_URL", None)

REPOSITORY = Path(__file__).resolve().parents[1]
SAMPLE = Path(mkdtemp(prefix="agent-pipeline-tests-")) / "sample"
"""The simulated omniagents home that tests read, its two smaller agents cut to 32 tasks of two trials, which keeps the tests fast."""
CACHE = SAMPLE.parent / "cache"
write_sample(
    SAMPLE,
    cast=[
        each if each.name == "support" else replace(each, tasks=32, trials=2, extra_trials=0)
        for each in CAST
    ],
)
# Taken before the isolation below takes it away.
REAL_TRACES = Path(
    os.environ.get("AGENT_PIPELINE_REAL_TRACES") or REPOSITORY.parent / "shared" / "data" / "traces"
)


FORKS = ("test_interruptions.py", "test_interrupted_commands.py")
"""The files whose tests fork the test process."""


def pytest_unconfigure() -> None:
    """The sample goes with the process that made it."""
    shutil.rmtree(SAMPLE.parent, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests `newest` run only if `-m` names them: they install packages, and take half an hour.

    Files that fork come first, in a process that has no threads yet: a fork may wait for ever for a lock of a thread that it lacks.

    Files with slow tests follow, the whole graph before the others: no worker is left alone with one at the end.
    """
    if "newest" not in config.option.markexpr:
        newest = [item for item in items if item.get_closest_marker("newest")]
        config.hook.pytest_deselected(items=newest)
        items[:] = [item for item in items if item not in newest]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(
        key=lambda item: (
            item.path.name not in FORKS,
            item.path not in slow,
            item.path.parent != Path(__file__).parent,
        )
    )


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay on one worker, and so do the files that kill trainings: they fork them from one process, which imports TRL."""
    from xdist.scheduler import LoadFileScheduling

    kills = tuple(
        f"training/test_{name}.py" for name in ("sft", "on_policy_steps", "preference_steps")
    )

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "kills" if file.endswith(kills) else file

    return Files(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def independent_of_the_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No variable of ours or of omniagents and no `pipeline.toml` reaches a test that sets none itself; it runs in an empty folder."""
    for name in [
        name for name in os.environ if name.upper().startswith(("AGENT_PIPELINE_", "OMNIAGENTS_"))
    ]:
        monkeypatch.delenv(name)
    # The cache has the lock of the machine's heavy tasks: no test waits for a training of the
    # developer's, or for a worker that another test left behind.
    monkeypatch.setenv("AGENT_PIPELINE_CACHE", str(CACHE))
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))


@pytest.fixture(autouse=True)
def independent_of_another_tests_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that runs the program in this process lets the number of threads follow the load, which ends with the test."""
    monkeypatch.setattr(threads, "_CONTROLS", [])
    before = read_thread_count()
    yield
    if read_thread_count() != before:
        sys.modules["torch"].set_num_threads(before)


def read_thread_count() -> int:
    """PyTorch's number of threads, or the number that it begins with."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else int(os.environ["OMP_NUM_THREADS"])


@pytest.fixture(scope="session", autouse=True)
def independent_of_another_tests_instance() -> Iterator[None]:
    """No test reads the store of definitions' state that Dagster keeps in a context variable: the garbage collector, at any moment,
    restores there what an instance of an earlier test found when it was entered, and that may be gone. Nothing of ours keeps such state."""
    with pytest.MonkeyPatch.context() as patch:
        if "dagster" in sys.modules:
            from dagster._core.storage.defs_state.base import DefsStateStorage

            patch.setattr(DefsStateStorage, "get", lambda: None)
        yield


@pytest.fixture(scope="session")
def sample_store() -> Path:
    """The simulated omniagents home."""
    return SAMPLE


@pytest.fixture(scope="session")
def sample_manifest(sample_store: Path) -> dict[str, Any]:
    """What is true of the sample, by its maker."""
    return json.loads((sample_store / "manifest.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """Real sessions, which do not belong to this repository."""
    if not REAL_TRACES.is_dir():
        pytest.skip(
            f"no real traces at {REAL_TRACES}: set AGENT_PIPELINE_REAL_TRACES to their folder"
        )
    return REAL_TRACES


CREDENTIALS = {"key": "key", "secret": "secret"}


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """A server that speaks S3 on this machine, with the bucket `models`; it needs the packages s3fs and moto."""
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    s3fs.S3FileSystem(endpoint_url=f"http://{host}:{port}", **CREDENTIALS).mkdir("models")
    yield f"http://{host}:{port}"
    server.stop()


Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """A folder by its name, filled by the function given: once a run of the suite, by the worker that asks first. Tests only read it."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    shared.mkdir(exist_ok=True)

    def folder(name: str, fill: Callable[[Path], object]) -> Path:
        with FileLock(shared / f"{name}.lock"):
            if not (shared / name).exists():
                fill(shared / f".{name}")
                (shared / f".{name}").rename(shared / name)
        return shared / name

    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Browser]":
    """A real browser."""
    from agent_pipeline_tests.browser import start_browser

    with start_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def tab(browser: "Browser") -> "Iterator[Tab]":
    """A new tab of the browser, which knows nothing of other tabs."""
    with browser.tab() as opened:
        yield opened


@pytest.fixture(scope="session")
def tiny_base(once: Once) -> "BaseModel":
    """The base model of the tiny world, which trains in seconds."""
    from agent_pipeline.models.base_model import BaseModel, compute_directory_revision
    from agent_pipeline_tests.training.world import make_base

    folder = once("tiny-base", make_base)
    return BaseModel("tiny-llama", folder, compute_directory_revision(folder))


@pytest.fixture(scope="session")
def tiny_renderer(tiny_base: "BaseModel") -> "ChatRenderer":
    """Its tokenizer with its chat template."""
    from agent_pipeline.models.chat_renderer import load_renderer

    return load_renderer(tiny_base.path)


@pytest.fixture(scope="session")
def smollm2() -> "BaseModel":
    """The embedded SmolLM2."""
    from agent_pipeline_tests.tiny import embedded_base

    return embedded_base()


@pytest.fixture(scope="session")
def smollm2_renderer(smollm2: "BaseModel") -> "ChatRenderer":
    """Its tokenizer with its chat template."""
    from agent_pipeline.models.chat_renderer import load_renderer

    return load_renderer(smollm2.path)


@pytest.fixture(scope="session")
def adapter_dir(tiny_base: "BaseModel", once: Once) -> Path:
    """An adapter that was trained on the tiny world."""
    from agent_pipeline_tests.training.world import TRAINING, row, train_adapter

    return once(
        "adapter",
        lambda out: train_adapter(
            [row(n) for n in range(24)], tiny_base, TRAINING.changed(num_train_epochs=8), out
        ),
    )


@pytest.fixture(scope="session")
def convertible_base(once: Once) -> Path:
    """A tiny model whose tokenizer llama.cpp's converter knows."""
    from agent_pipeline_tests.tiny import make_tiny_base

    return once("convertible-base", make_tiny_base)
