"""Mistakes that a user can mend, each made with the real command.

Every command ends with an exit code above 0 and a short message that says what is wrong and where.
Most commands run in forks of a process that has the imports (`forked`). Commands run in processes of their own
if the mistake is about signals, permissions, ports or disks, and for a few mistakes of each group (`REAL`).
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from agent_pipeline_tests.cli.forked import MAX_SECONDS, Server
from agent_pipeline_tests.conftest import SAMPLE
from agent_pipeline_tests.ports import free_port

pytestmark = pytest.mark.slow

MAX_LINES = 5
"""Lines that a mistake may print on standard error, beside the progress of a run."""
PORT = 1
"""A port that nothing listens on and no user may open."""
PROGRESS = ("passed", " rows, ")
linux = sys.platform == "linux"


@dataclass
class RealProcess:
    """A command in a process of its own.

    It writes into files and not into pipes: a process that it leaves behind would hold a pipe open, and the test would wait for it.
    """

    out: Path
    err: Path
    process: "subprocess.Popen[bytes]" = field(init=False)

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until something has happened, while the process runs."""
        until = time.monotonic() + MAX_SECONDS
        while not is_reached():
            assert self.process.poll() is None and time.monotonic() < until, (
                self.out.read_text() + self.err.read_text()
            )
            time.sleep(0.05)

    def interrupt(self, signum: int = signal.SIGINT) -> None:
        os.killpg(self.process.pid, signum)

    def ended(self) -> subprocess.CompletedProcess[str]:
        # On a loaded machine, Dagster's `dev` waits for each of its processes for up to a minute.
        code = self.process.wait(timeout=MAX_SECONDS)
        return subprocess.CompletedProcess(
            self.process.args,
            code,
            *(file.read_text(encoding="utf-8") for file in (self.out, self.err)),
        )


@dataclass
class Project:
    """A folder with a store of one agent, in which a mistake is made."""

    folder: Path
    outputs: Path
    server: Server
    variables: dict[str, str] = field(default_factory=dict)
    undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    unprivileged: bool = False

    @property
    def toml(self) -> Path:
        return self.folder / "pipeline.toml"

    @property
    def home(self) -> Path:
        return self.folder / ".dagster"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def set(self, text: str) -> None:
        """Add lines at the top of the settings file."""
        self.toml.write_text(f"{text}\n{self.toml.read_text(encoding='utf-8')}", encoding="utf-8")

    def make_home(self) -> None:
        """Give the project a Dagster home that a command has used: the first test makes it, the others copy it."""
        template = self.server.home
        if template.exists():
            shutil.copytree(template, self.home)
        else:
            assert self.run("discover").returncode == 0
            shutil.copytree(self.home, template)

    def set_store(self, store: str) -> None:
        self.variables["AGENT_PIPELINE_STORE"] = store

    def set_lake(self, lake: str, **options: str) -> None:
        self.variables["AGENT_PIPELINE_LAKE"] = lake
        if options:
            self.variables["AGENT_PIPELINE_LAKE_OPTIONS"] = json.dumps(options)

    def write(self, name: str, content: str | bytes = "") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def deny(self, path: Path, mode: int = 0o500) -> None:
        """Take permissions away, from root too: the command runs without the right to ignore them."""
        path.chmod(mode)
        self.unprivileged = True
        self.undo.callback(path.chmod, 0o700)

    @property
    def environment(self) -> dict[str, str]:
        # Heavy tasks of all projects that share a cache wait for each other.
        own = {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "COLUMNS": "200",
            "AGENT_PIPELINE_CACHE": str(self.folder / "cache"),
        }
        return os.environ | own | self.variables

    def run(self, *arguments: str, real: bool = False) -> subprocess.CompletedProcess[str]:
        """Run the command in a fork, or in a process of its own if `real`."""
        if self.unprivileged and os.geteuid() == 0 and not linux:
            pytest.skip("root can give up its rights on Linux only")
        if not real:
            return self.server.run(
                list(arguments), self.folder, self.environment, self.outputs, self.unprivileged
            )
        with self.started(*arguments) as process:
            return process.ended()

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[RealProcess]:
        """Start the command in a process group of its own, which is killed at the end, whatever happens."""
        outputs = RealProcess(self.outputs / "stdout", self.outputs / "stderr")
        with outputs.out.open("w") as out, outputs.err.open("w") as err:
            command = [sys.executable, "-m", "agent_pipeline.cli.app", *arguments]
            # A terminal, too, sends Ctrl-C to the processes that a command has started.
            outputs.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        try:
            yield outputs
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(outputs.process.pid, signal.SIGKILL)
            outputs.process.wait(timeout=MAX_SECONDS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("template") / "home")
    yield started
    started.close()


@pytest.fixture
def project(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, server: Server
) -> Iterator[Project]:
    lines = [
        {"messages": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "a"}]}
        for n in range(4)
    ]
    made = Project(tmp_path, tmp_path_factory.mktemp("outputs"), server)
    made.write("logs/chats.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    made.write("pipeline.toml", 'store = "logs"\nlake = "lake"\n')
    with made.undo:
        yield made


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that say what is wrong: those of a run's progress are left out."""
    return [
        line
        for line in done.stderr.splitlines()
        if line.strip() and not line.endswith(PROGRESS) and " rows, " not in line
    ]


def check(done: subprocess.CompletedProcess[str], *names: str) -> None:
    everything = done.stdout + done.stderr
    assert done.returncode > 0, f"{done.returncode}: {everything}"  # a signal's number is negative
    assert "Traceback" not in everything, everything
    assert told(done) or done.stdout, "nothing says why"
    assert len(told(done)) <= MAX_LINES, done.stderr
    flat = " ".join(everything.replace("│", " ").split())
    for name in names:
        assert name in flat, f"{name!r} is not in: {everything}"


ALL = ["materialize", "logs/default"]
DATASETS = "group:traces or group:datasets or group:coresets"
SESSIONS = [*ALL, "--select", "sessions"]
Prepare = Callable[[Project], object]
"""Makes the mistake in a project."""


def none(_: Project) -> None:
    """The mistake is in the command."""


def replaced(path: str, content: bytes | str) -> Prepare:
    return lambda project: project.write(path, content)


def setting(text: str) -> Prepare:
    return lambda project: project.set(text)


def variable(name: str, value: str) -> Prepare:
    return lambda project: project.variables.update({name: value})


def store(path: str) -> Prepare:
    return lambda project: project.set_store(path)


def lake(path: str, **options: str) -> Prepare:
    return lambda project: project.set_lake(path, **options)


def home_with(file: str, content: bytes | str) -> Prepare:
    def prepare(project: Project) -> None:
        project.make_home()
        project.write(f".dagster/{file}", content)

    return prepare


MISTAKES: dict[str, tuple[list[str], Prepare, tuple[str, ...]]] = {
    # The settings file and the environment
    "config names a missing file": (
        ["config", "check"],
        variable("AGENT_PIPELINE_CONFIG", "nowhere.toml"),
        ("nowhere.toml",),
    ),
    "config names a folder": (
        ["config", "check"],
        variable("AGENT_PIPELINE_CONFIG", "logs"),
        ("logs",),
    ),
    "config is not TOML": (
        ["config", "check"],
        replaced("pipeline.toml", "store = \n"),
        ("pipeline.toml", "line 1"),
    ),
    "config is not text": (
        ["config", "check"],
        replaced("pipeline.toml", b"\xff\xfe\x00s"),
        ("pipeline.toml",),
    ),
    "config cannot be read": (
        ["config", "check"],
        lambda p: p.deny(p.toml, 0),
        ("pipeline.toml", "permission"),
    ),
    "unknown setting": (["config", "check"], setting("stor = 'x'"), ("stor", "store")),
    "unknown variable": (
        ["config", "check"],
        variable("AGENT_PIPELINE_LAK", "x"),
        ("AGENT_PIPELINE_LAK", "AGENT_PIPELINE_LAKE"),
    ),
    "setting of a wrong type": (
        ["config", "check"],
        setting("keep_exports = 'many'"),
        ("keep_exports", "many", "whole number"),
    ),
    "unknown preset": (
        ["config", "check"],
        setting("preset = 'huge'"),
        ("preset", "huge", "smoke"),
    ),
    "unknown asset": (
        ["config", "check"],
        setting("assets.sft_adaptor.epochs = 1"),
        ("sft_adaptor", "sft_adapter"),
    ),
    "value out of range": (
        ["config", "check"],
        setting("assets.sft_adapter.epochs = -1"),
        ("epochs", "-1"),
    ),
    "malformed agent": (
        ["config", "check"],
        setting("agents.shop.preset = 'smoke'"),
        ("shop", "project/agent"),
    ),
    "variable is not JSON": (
        ["config", "check"],
        variable("AGENT_PIPELINE_LAKE_OPTIONS", "{"),
        ("lake_options",),
    ),
    "reader that is missing": (
        ["discover"],
        setting("sources = ['nowhere.readers:Mine']"),
        ("nowhere.readers",),
    ),
    "world that is missing": (
        ["config", "check"],
        setting("agents.'logs/default'.world = 'nowhere:World'"),
        ("nowhere",),
    ),
    "cron that is wrong": (["config", "check"], setting("night.cron = 'at two'"), ("at two",)),
    "time zone that is wrong": (
        ["config", "check"],
        setting("night.timezone = 'Mars/Base'"),
        ("Mars/Base",),
    ),
    "labels that are missing": (
        ["config", "check"],
        setting("labels = 'nowhere.csv'"),
        ("nowhere.csv", "labels"),
    ),
    "tools that are not JSON": (
        SESSIONS,
        lambda p: (p.write("tools.json", "["), p.set("agents.'logs/default'.tools = 'tools.json'")),
        ("tools.json",),
    ),
    "package that is missing": (
        ["config", "check"],
        setting("compute = 'kubernetes'"),
        ("kubernetes",),
    ),
    "notification address that is wrong": (
        ["config", "check"],
        setting("notify.urls = ['nowhere']"),
        ("notify.urls",),
    ),
    # The command line
    "no command": (["materialise"], none, ("materialise",)),
    "nothing to materialize": (["materialize"], none, ("partition",)),
    "malformed partition": (["materialize", "shop"], none, ("shop", "project/agent")),
    "unknown partition": (["materialize", "shop/support"], none, ("shop/support", "logs/default")),
    "unknown asset selected": ([*ALL, "--select", "nope"], none, ("nope", "adapter")),
    "selection that is no expression": ([*ALL, "--select", "key:("], none, ("key:(",)),
    "set without a value": ([*SESSIONS, "--set", "lora_r"], none, ("lora_r", "=")),
    "set of an unknown asset": (
        [*SESSIONS, "--set", "sessionz.repair=1"],
        none,
        ("sessionz", "sessions"),
    ),
    "set of an unknown setting": (
        [*SESSIONS, "--set", "sessions.repai=1"],
        none,
        ("repai", "repair"),
    ),
    "set of a wrong value": (
        [*SESSIONS, "--set", "sessions.smallest_share=lots"],
        none,
        ("smallest_share", "lots"),
    ),
    "set of what is not selected": (
        [*SESSIONS, "--set", "lora_r=8"],
        none,
        ("lora_r", "sft_adapter"),
    ),
    "save without set": ([*SESSIONS, "--save"], none, ("--save", "--set")),
    "promote without an export": (["promote", "logs/default"], none, ("logs/default",)),
    "rollback without an export": (["rollback", "logs/default"], none, ("logs/default",)),
    "traffic without a champion": (
        ["traffic", "logs/default", "--share", "5%"],
        none,
        ("logs/default", "promote"),
    ),
    "traffic without a large model": (["traffic", "logs/default"], none, ("large_model",)),
    "traffic with a share that is none": (
        ["traffic", "logs/default", "--share", "5"],
        none,
        ("5%",),
    ),
    "hold without an export": (["hold", "logs/default"], none, ("logs/default",)),
    "report without an evaluation": (
        ["report", "logs/default"],
        none,
        ("evaluation", "logs/default"),
    ),
    "champions without an export": (["models", "list"], none, ("lake",)),
    "explain of an unknown session": (["sessions", "show", "s9"], none, ("s9",)),
    "lineage of an unknown model": (["models", "show", "ffffffff"], none, ("ffffffff",)),
    "review of an agent that the store lacks": (
        ["review", "logs/nobody", "--no-open"],
        none,
        ("logs/nobody", "logs/default"),
    ),
    "label export of an agent that the store lacks": (
        ["label", "export", "logs/nobody"],
        none,
        ("logs/nobody", "logs/default"),
    ),
    "play without a model": (["play", "logs/default", "--out", "played"], none, ("logs/default",)),
    # The store
    "store that is missing": (SESSIONS, store("nowhere"), ("nowhere",)),
    "store that is empty": (
        SESSIONS,
        lambda p: (p.folder / "void").mkdir() or p.set_store("void"),
        ("void",),
    ),
    "store of an unknown format": (
        SESSIONS,
        lambda p: p.write("void/a.bin", b"\x00\x01") and p.set_store("void"),
        ("void",),
    ),
    "store that cannot be read": (
        ["discover"],
        lambda p: p.deny(p.folder / "logs/chats.jsonl", 0),
        ("chats.jsonl",),
    ),
    "store folder that cannot be read": (
        ["discover"],
        lambda p: p.deny(p.folder / "logs", 0),
        ("logs",),
    ),
    "store of an unknown scheme": (["discover"], store("gopher://host/x"), ("gopher://host/x",)),
    "store of an unknown reader": (["discover"], store("nope:logs"), ("nope",)),
    "store on a server that is away": (
        ["discover"],
        store(f"langfuse:http://127.0.0.1:{PORT}"),
        (f"127.0.0.1:{PORT}",),
    ),
    "store in a damaged database": (
        SESSIONS,
        lambda p: (
            p.write("logs/chats.jsonl")
            and p.write("logs/a.db", b"SQLite format 3\x00" + b"x" * 5000)
        ),
        ("a.db",),
    ),
    "store in a damaged Parquet file": (
        SESSIONS,
        lambda p: (
            p.write("logs/a.parquet", b"PAR1xxxxPAR1") and (p.folder / "logs/chats.jsonl").unlink()
        ),
        ("logs",),
    ),
    # The lake
    "lake is a file": (SESSIONS, lake("pipeline.toml"), ("pipeline.toml", "is a file")),
    "lake under a file": (SESSIONS, lake("pipeline.toml/lake"), ("pipeline.toml",)),
    "lake of an unknown scheme": (SESSIONS, lake("gopher://host/lake"), ("gopher://host/lake",)),
    "lake that needs a package": (
        SESSIONS,
        lake("gs://bucket/lake"),
        ("gs://bucket/lake", "gcsfs"),
    ),
    "lake in /proc": (SESSIONS, lake("/proc/lake"), ("/proc/lake",)),
    "lake that is read-only": (SESSIONS, lambda p: p.lake.mkdir() or p.deny(p.lake), ("lake",)),
    "lake options name no variable": (
        SESSIONS,
        lake("s3://bucket/lake", key="$NOT_SET"),
        ("NOT_SET",),
    ),
    "lake option that does not exist": (
        SESSIONS,
        lake("s3://bucket/lake", end_point="x"),
        ("end_point",),
    ),
    "lake in a bucket that is away": (
        SESSIONS,
        lake("s3://bucket/lake", endpoint_url=f"http://127.0.0.1:{PORT}", key="k", secret="s"),
        ("s3://bucket/lake",),
    ),
    "lake in a bucket without credentials": (
        SESSIONS,
        lake("s3://bucket/lake", endpoint_url=f"http://127.0.0.1:{PORT}"),
        ("s3://bucket/lake",),
    ),
    # Dagster's home
    "home is a file": (
        SESSIONS,
        variable("DAGSTER_HOME", "pipeline.toml"),
        ("pipeline.toml", "DAGSTER_HOME"),
    ),
    "home under a file": (
        SESSIONS,
        variable("DAGSTER_HOME", "pipeline.toml/home"),
        ("pipeline.toml/home", "DAGSTER_HOME"),
    ),
    "home in /proc": (
        SESSIONS,
        variable("DAGSTER_HOME", "/proc/home"),
        ("/proc/home", "DAGSTER_HOME"),
    ),
    "home that is read-only": (
        SESSIONS,
        lambda p: p.home.mkdir() or p.deny(p.home),
        (".dagster", "DAGSTER_HOME"),
    ),
    "dagster.yaml is not YAML": (SESSIONS, home_with("dagster.yaml", "a: [1\n"), ("dagster.yaml",)),
    "dagster.yaml is a list": (SESSIONS, home_with("dagster.yaml", "- 1\n"), ("dagster.yaml",)),
    "dagster.yaml is not text": (
        SESSIONS,
        home_with("dagster.yaml", b"\xff\xfe\x00"),
        ("dagster.yaml",),
    ),
    "dagster.yaml with an unknown field": (
        SESSIONS,
        home_with("dagster.yaml", "telemetri:\n  enabled: false\n"),
        ("dagster.yaml", "telemetri"),
    ),
    "dagster.yaml with a missing class": (
        SESSIONS,
        home_with("dagster.yaml", "compute_logs:\n  module: nowhere\n  class: L\n"),
        ("dagster.yaml", "nowhere"),
    ),
    "dagster.yaml cannot be read": (
        SESSIONS,
        lambda p: (p.make_home(), p.deny(p.home / "dagster.yaml", 0)),
        ("dagster.yaml",),
    ),
    "database of runs is damaged": (
        SESSIONS,
        home_with("history/runs.db", b"x" * 20_000),
        ("runs.db",),
    ),
    "database of events is damaged": (
        SESSIONS,
        home_with("history/runs/index.db", b"x" * 20_000),
        ("index.db",),
    ),
    "PostgreSQL is away": (
        SESSIONS,
        variable("DAGSTER_POSTGRES_URL", f"postgresql://a:hidden-word@127.0.0.1:{PORT}/d"),
        ("PostgreSQL", "127.0.0.1"),
    ),
    "PostgreSQL address is wrong": (
        SESSIONS,
        variable("DAGSTER_POSTGRES_URL", "nowhere"),
        ("DAGSTER_POSTGRES_URL",),
    ),
    "PostgreSQL is set for a home in SQLite": (
        SESSIONS,
        lambda p: (
            p.make_home(),
            p.variables.update(DAGSTER_POSTGRES_URL="postgresql://a@b/c"),
        ),
        ("DAGSTER_POSTGRES_URL", "dagster.yaml"),
    ),
}


REAL = {
    "unknown setting",
    "no command",
    "lake is a file",
}
"""Mistakes that are made in a process of its own, although a fork would do."""


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(project: Project, name: str) -> None:
    command, prepare, names = MISTAKES[name]
    prepare(project)
    done = project.run(*command, real=name in REAL)
    check(done, *names)
    assert "hidden-word" not in done.stdout + done.stderr


@pytest.fixture(scope="module")
def datasets(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose datasets are made: a training is what comes next. Tests leave them as they are."""
    made = Project(tmp_path_factory.mktemp("datasets"), tmp_path_factory.mktemp("outputs"), server)
    made.write("pipeline.toml", f'store = "{SAMPLE}"\nlake = "lake"\npreset = "smoke"\n')
    done = made.run("materialize", "shop/intern", "--select", f"{DATASETS} or replay_buffer")
    assert done.returncode == 0, done.stderr
    return made


CONFIG = '{"model_type": "llama"}'


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("nobody/no-such-model", {}, ("nobody/no-such-model", "check the name")),
        ("/nowhere/model", {}, ("/nowhere/model", "does not exist")),
        (
            "model.gguf",
            {"model.gguf": b"GGUF\x03"},
            ("model.gguf is a file", "GGUF", "safetensors"),
        ),
        ("empty", {"empty/README.md": ""}, ("empty has no config.json",)),
        (
            "quantized",
            {"quantized/config.json": CONFIG, "quantized/model.gguf": b"GGUF\x03"},
            ("quantized has no safetensors weights",),
        ),
        (
            "cut",
            {
                "cut/config.json": CONFIG,
                "cut/model.safetensors": b"cut",
                "cut/tokenizer.json": "{}",
            },
            ("tokenizer", "cannot be read"),  # it is read before the weights
        ),
        (
            "text",
            {"text/config.json": "{", "text/model.safetensors": b"", "text/tokenizer.json": "{}"},
            ("config.json", "is not valid JSON"),
        ),
    ],
)
def test_wrong_base_model(
    datasets: Project, name: str, files: dict[str, bytes | str], words: tuple[str, ...]
) -> None:
    """One sentence says what is wrong, once, and no try follows."""
    for file, content in files.items():
        datasets.write(file, content)
    done = datasets.run(
        "materialize",
        "shop/intern",
        "--select",
        "adapter",
        "--set",
        f"sft_adapter.base_model={name}",
    )
    check(done, *words)
    assert sum("error: " in line for line in done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.count(words[0]) == 1, done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run(project: Project, signum: int) -> None:
    """Ctrl-C, or the end of a service, in the middle of a run."""
    project.set_store(str(SAMPLE))
    with project.started(
        "materialize", "shop/support", "--select", "group:traces or group:datasets"
    ) as process:
        process.wait_until(lambda: "\n" in process.err.read_text())  # the first table is there
        process.interrupt(signum)
        check(process.ended(), "interrupted", "Repeat the command")


def test_interrupted_training(project: Project) -> None:
    """The process that trains gets Ctrl-C from the terminal too."""
    project.set_store(str(SAMPLE))
    project.set("preset = 'smoke'")
    assert project.run("materialize", "shop/intern", "--select", DATASETS).returncode == 0
    with project.started(
        "materialize", "shop/intern", "--select", "replay_buffer or adapter"
    ) as process:
        # Python itself prints a stack if Ctrl-C comes while its interpreter starts: wait until the process works.
        process.wait_until(lambda: "tokenised" in process.err.read_text())
        process.interrupt()
        done = process.ended()
    assert done.returncode > 0 and "Traceback" not in done.stdout + done.stderr
    assert "was interrupted. Repeat the command" in " ".join(done.stderr.split())


def test_dev_without_a_store(project: Project) -> None:
    """The UI opens, so that a person can look at what there is; the note names the store."""
    project.set_store("nowhere")
    port = free_port()

    def is_open() -> bool:
        with contextlib.suppress(OSError):
            return (
                b"dagster"
                in urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5).read()
            )
        return False

    with project.started("dev", "--port", str(port)) as process:
        process.wait_until(is_open)
        process.interrupt()
        out = process.ended().stdout
    assert "note: " in out and "nowhere" in out


@pytest.mark.parametrize("command", [["dev"], ["service", "webserver"]])
def test_taken_port(project: Project, command: list[str]) -> None:
    """The daemon must not go on working behind a web server that could not start."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        check(project.run(*command, "--port", port, real=True), port, "--port")


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if not linux or os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root on Linux may mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize(
    ("folder", "size"), [("lake", "4k"), ("lake", "64k"), (".dagster", "4k"), (".dagster", "400k")]
)
def test_full_disk(project: Project, folder: str, size: str) -> None:
    project.set_store(str(SAMPLE))
    with small_disk(project.folder / folder, size):
        check(project.run("materialize", "shop/support", "--select", "sessions"), folder)


def test_locked_database_of_runs(project: Project) -> None:
    project.run("discover")
    with contextlib.closing(
        sqlite3.connect(project.home / "history" / "runs.db", isolation_level=None)
    ) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        check(project.run(*SESSIONS), ".dagster", "locked")


class Refusing(BaseHTTPRequestHandler):
    """An object store that knows no key."""

    def do_GET(self) -> None:
        body = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key you gave does not exist</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.do_GET()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    "command",
    [
        SESSIONS,
        ["status"],
        ["config", "check"],
        ["models", "list"],
        ["promote", "logs/default"],
        ["forget", "s1", "--yes"],
    ],
)
def test_wrong_key_of_a_bucket(project: Project, command: list[str]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    project.set_lake(
        "s3://bucket/lake",
        endpoint_url=f"http://127.0.0.1:{server.server_port}",
        key="k",
        secret="hidden-word",
    )
    done = project.run(*command)
    server.shutdown()
    check(done, "s3://bucket/lake", "lake_options")
    assert "hidden-word" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "address",
    [
        "s3://key:hidden-word@bucket/lake",
        "s3://hidden-word@bucket/lake",
        "sftp://me:hidden-word@host/lake",
    ],
)
@pytest.mark.parametrize("command", [SESSIONS, ["status"], ["config", "check"]])
def test_key_in_the_address_of_a_lake(project: Project, address: str, command: list[str]) -> None:
    project.set_lake(address)
    done = project.run(*command)
    check(done, "lake_options")
    assert "hidden-word" not in done.stdout + done.stderr


@pytest.mark.parametrize("status", [0, 401, 403, 404, 500])
def test_password_of_a_judge(project: Project, status: int) -> None:
    """A password in an address is on no screen and in no file; status 0 stands for a server that is away."""

    class Answering(Refusing):
        def do_POST(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    port = server.server_port if status else PORT
    if status:
        Thread(target=server.serve_forever, daemon=True).start()
    project.set(
        f"judge.endpoint = 'http://me:hidden-word@127.0.0.1:{port}/v1?api_key=other-word'\njudge.model = 'm'\njudge.retries = 0"
    )
    project.variables["OPENAI_API_KEY"] = "third-word"
    done = project.run(
        *ALL, "--select", "sessions or judged_sessions", "--set", "judged_sessions.decided_by=llm"
    )
    server.server_close()
    everything = done.stdout + done.stderr
    for file in (*project.home.rglob("*"), *project.lake.rglob("*")):
        everything += file.read_bytes().decode("latin-1") if file.is_file() else ""
    for secret in ("hidden-word", "other-word", "third-word"):
        assert secret not in everything, everything[max(0, everything.index(secret) - 500) :][:1000]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", [["discover"], ["discover", "--json"], ["config", "check"], ["status"], SESSIONS]
)
def test_password_of_a_store(project: Project, command: list[str]) -> None:
    project.set_store(f"langfuse:http://me:hidden-word@127.0.0.1:{PORT}")
    done = project.run(*command)
    assert done.returncode != 0
    assert "hidden-word" not in done.stdout + done.stderr and "Traceback" not in done.stderr
