"""The worker on other machines: what Slurm, Kubernetes and Ray are asked for, and the worker run by a real Slurm and Ray, and by a
stand-in for Kubernetes."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dagster as dg
import pytest

from agent_pipeline.compute import worker_messages as messages_module
from agent_pipeline.compute.launchers import slurm
from agent_pipeline.compute.launchers.kubernetes import Kubernetes, pod_spec
from agent_pipeline.compute.launchers.launcher import LakeMessages, Launcher, launch
from agent_pipeline.compute.launchers.ray import Ray, job_of
from agent_pipeline.compute.params import common_values
from agent_pipeline.compute.worker_messages import PATIENCE, Letterbox, until_silent
from agent_pipeline.config.checks import check_place, problems
from agent_pipeline.config.compute import KubernetesSettings, RaySettings, SlurmSettings
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.errors import PassingError, SettingsError, WorkerError, first_line
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.ports import free_port
from agent_pipeline_tests.slurm import cluster as start_slurm

KEY = PartitionKey("shop", "support")
COMPARE = {
    "candidate": None,
    "champion": None,
    "play": None,
    "evaluation": {},
    "select_turns": 8,
    "sanity_question_rows": 0,
    "sanity_questions_beyond_project": False,
    "watch": True,
    "at_once": 0,
}
COMPARED = {"candidate": None, "champion": None, "same_base": False}
"""The one task that needs no model where there is nothing to compare, and its result."""

SBATCH = """#!/bin/sh
printf '%s\\n' "$@" > "$SLURM_RECORD"
for each; do case "$each" in --wrap=*) printf '#!/bin/sh\\n%s\\n' "${each#--wrap=}" > "$SLURM_RECORD.sh";; esac; done
cd / && sh "$SLURM_RECORD.sh"
"""
"""What Slurm does with --wrap: a script of sh in the environment of who submits it; --wait ends with its status."""

INTERRUPTED = '#!/bin/sh\nprintf "%s\\n" "$@" > "$SLURM_RECORD"\nkill -INT $PPID\nexec sleep 60\n'
SCANCEL = '#!/bin/sh\nprintf "%s\\n" "$@" > "$SLURM_RECORD.cancelled"\n'


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A lake in a folder that all machines mount, with a data set of no rows."""
    for name, value in {
        "LAKE": tmp_path / "shared" / "lake",
        "CACHE": tmp_path / "cache",
        "SHARED": tmp_path / "shared",
    }.items():
        monkeypatch.setenv(f"AGENT_PIPELINE_{name}", str(value))
    load_settings().open_lake().stage("sft_dataset", KEY, [], SFT).commit()
    return load_settings()


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the stand-in for Slurm's commands was given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "scancel": SCANCEL}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_RECORD", str(tmp_path / "record"))
    return tmp_path / "record"


def launched(launcher: Launcher, params: dict[str, Any]) -> Any:
    """The result of the task `compare`, or what an asset sees of its failure."""
    seen: list[Any] = []

    @dg.asset
    def champion(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        try:
            seen.append(launch(context, launcher, "compare", params))
        except WorkerError as error:
            seen.append(error)
        return dg.MaterializeResult()

    dg.materialize([champion], raise_on_error=False)
    return seen[0] if seen else None


def messages(settings: Settings) -> LakeMessages:
    return LakeMessages(settings, "champion", KEY)


def left(settings: Settings) -> list[str]:
    """The files that a launch left in the lake."""
    return [str(file.path) for file in settings.open_lake().files() if file.kind == "messages"]


def test_an_agents_place_goes_before_the_general_one_and_an_assets_before_that_of_all(monkeypatch):
    monkeypatch.setenv("AGENT_PIPELINE_COMPUTE", '{"*": "ray", "sft_adapter": "slurm"}')
    monkeypatch.setenv(
        "AGENT_PIPELINE_AGENTS",
        '{"shop/support": {"compute": {"evaluation": "local"}}, "shop/intern": {"compute": "local"}}',
    )
    settings = load_settings()
    intern, other = PartitionKey("shop", "intern"), PartitionKey("a", "b")
    assert [settings.place(asset, KEY) for asset in ("sft_adapter", "evaluation", "episodes")] == [
        "slurm",
        "local",
        "ray",
    ]
    assert (settings.place("sft_adapter", intern), settings.place("sft_adapter", other)) == (
        "local",
        "slurm",
    )
    monkeypatch.setenv("AGENT_PIPELINE_COMPUTE", "kubernetes")
    assert load_settings().place("gguf_export", other) == "kubernetes"


@pytest.mark.parametrize(
    ("compute", "says"),
    [
        ("rya", "rya"),
        ('{"sft_adaptor": "ray"}', "did you mean sft_adapter"),
        ('{"sessions": "ray"}', "'sessions' is not a task of a worker"),
    ],
)
def test_a_place_or_an_asset_that_there_is_not_is_one_sentence(compute, says, monkeypatch):
    monkeypatch.setenv("AGENT_PIPELINE_COMPUTE", compute)
    with pytest.raises(SettingsError, match=says):
        load_settings()


def test_place_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the asset `adapter` runs in its own place, else in the place of `adapter`."""
    monkeypatch.setenv("AGENT_PIPELINE_COMPUTE", '{"adapter": "ray", "dpo_adapter": "slurm"}')
    settings = load_settings()
    places = [settings.place(name, KEY) for name in ("sft_adapter", "dpo_adapter", "evaluation")]
    assert places == ["ray", "slurm", "local"]


def test_the_assets_that_may_be_placed_are_those_that_start_the_worker():
    from agent_pipeline.config.compute import HEAVY, STEP_NAMES
    from agent_pipeline.definitions import defs

    starting = {
        asset.key.path[-1] for asset in defs.assets or [] if "pipes" in asset.required_resource_keys
    }
    assert starting == set(HEAVY) - set(STEP_NAMES)


def test_a_lake_that_other_machines_cannot_open_is_refused_before_any_run(
    settings, record, monkeypatch
):
    monkeypatch.setenv("AGENT_PIPELINE_COMPUTE", "slurm")
    assert not problems(load_settings())
    monkeypatch.delenv("AGENT_PIPELINE_SHARED")
    assert any("set `lake` to a bucket" in problem for problem in problems(load_settings()))
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", "memory://bucket")
    assert not problems(load_settings())


def test_what_a_place_needs_and_is_not_there_is_one_sentence(settings, monkeypatch):
    monkeypatch.setattr("agent_pipeline.config.checks.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    for place, says in {
        "ray": r"agent-pipeline\[ray\]",
        "kubernetes": r"agent-pipeline\[kubernetes\]",
        "slurm": "sbatch",
    }.items():
        with pytest.raises(SettingsError, match=says):
            check_place(settings, place)
    monkeypatch.setattr("agent_pipeline.config.checks.find_spec", lambda name: True)
    with pytest.raises(SettingsError, match=r"kubernetes\.image"):
        check_place(settings, "kubernetes")


def test_a_secret_in_plain_text_is_refused_where_the_specification_of_a_job_would_show_it(
    settings, record, monkeypatch
):
    monkeypatch.setenv("AGENT_PIPELINE_LAKE_OPTIONS", '{"secret": "hidden"}')
    with pytest.raises(SettingsError, match=r"lake_options\.secret") as error:
        check_place(load_settings(), "slurm")
    assert "hidden" not in str(error.value)
    for name, value in {"AGENT_PIPELINE_LAKE": "memory://lake", "LAKE_SECRET": "hidden"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AGENT_PIPELINE_LAKE_OPTIONS", '{"secret": "$LAKE_SECRET"}')
    check_place(load_settings(), "slurm")


def test_what_travels_to_a_worker_names_no_path_of_the_machine_that_asks(settings, tmp_path):
    assert {
        name for name, value in common_values(settings, KEY).items() if str(tmp_path) in str(value)
    } == {"lake"}


def test_a_slurm_job_is_one_script_that_ends_as_the_worker_does():
    given = SlurmSettings(
        partition="gpu",
        arguments=["--gres=gpu:1"],
        setup=["module load cuda"],
        python="/shared/my venv/bin/python",
    )
    *options, wrapped = slurm.sbatch(given, "job-1")
    assert options == [
        "sbatch",
        "--wait",
        "--export=ALL",
        "--job-name=job-1",
        "--partition=gpu",
        "--gres=gpu:1",
    ]
    command = "exec '/shared/my venv/bin/python' -m agent_pipeline.worker"
    assert wrapped == f"--wrap=set -e\nmodule load cuda\n{command}"


@pytest.mark.slow
def test_the_worker_runs_as_a_slurm_job_and_its_messages_come_through_the_lake(settings, record):
    python = SlurmSettings(setup=["export AGENT_PIPELINE_CACHE=/tmp/of-the-node"])
    assert (
        launched(slurm.Slurm(python, messages(settings)), common_values(settings, KEY) | COMPARE)
        == COMPARED
    )
    assert f"exec {sys.executable} -m agent_pipeline.worker" in record.with_suffix(".sh").read_text(
        encoding="utf-8"
    )
    assert not left(settings)


def test_a_slurm_job_that_dies_is_a_sentence_that_says_where_to_look(settings, record, monkeypatch):
    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)
    error = launched(slurm.Slurm(SlurmSettings(python="false"), messages(settings)), {})
    assert (
        isinstance(error, PassingError) and "slurm.arguments" in str(error) and not left(settings)
    )


def test_a_run_that_is_cancelled_cancels_its_slurm_job(settings, record, monkeypatch):
    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)
    (record.parent / "bin" / "sbatch").write_text(INTERRUPTED, encoding="utf-8")
    with suppress(KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
        launched(slurm.Slurm(SlurmSettings(), messages(settings)), {})
    named = re.search(r"--job-name=(\S+)", record.read_text(encoding="utf-8"))
    assert named and record.with_suffix(".cancelled").read_text(encoding="utf-8").split() == [
        f"--name={named[1]}"
    ]


@pytest.fixture(scope="module")
def slurm_configuration() -> Iterator[Path]:
    """The configuration of a real Slurm on this machine."""
    with start_slurm() as configuration:
        yield configuration


@pytest.fixture
def slurm_cluster(slurm_configuration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of Slurm speak to the real one on this machine."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_configuration))


@pytest.mark.slow
def test_real_slurm_job(settings: Settings, slurm_cluster: None) -> None:
    """The worker runs on a node of a real Slurm, and its messages come through the lake."""
    launcher = slurm.Slurm(SlurmSettings(partition="main"), messages(settings))
    assert launched(launcher, common_values(settings, KEY) | COMPARE) == COMPARED
    assert not left(settings)


@pytest.mark.slow
def test_real_slurm_job_that_dies(
    settings: Settings, slurm_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status of the job is that of `sbatch --wait`."""
    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)
    error = launched(slurm.Slurm(SlurmSettings(python="false"), messages(settings)), {})
    assert isinstance(error, PassingError) and "slurm.arguments" in str(error)
    assert not left(settings)


@pytest.mark.slow
def test_real_slurm_job_is_cancelled(
    settings: Settings, slurm_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is cancelled leaves no job in the queue."""
    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)
    job = SlurmSettings(setup=[f"kill -INT {os.getpid()}", "exec sleep 600"])
    with suppress(KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
        launched(slurm.Slurm(job, messages(settings)), {})
    deadline = time.monotonic() + 300
    while queued := subprocess.check_output(["squeue", "--noheader", "--format=%T"], text=True):
        assert time.monotonic() < deadline, queued
        time.sleep(0.5)


def test_a_pods_spec_is_the_settings_and_what_kubernetes_itself_knows():
    given = KubernetesSettings(
        image="ours:1",
        resources={"limits": {"nvidia.com/gpu": 1}},
        node_selector={"gpu": "h100"},
        secrets=["bucket"],
        pod={
            "serviceAccountName": "trainer",
            "containers": [
                {"volumeMounts": [{"name": "cache", "mountPath": "/cache"}]},
                {"name": "proxy"},
            ],
        },
    )
    worker, proxy = pod_spec(given)["containers"]
    assert (
        pod_spec(given)["nodeSelector"] == {"gpu": "h100"}
        and pod_spec(given)["serviceAccountName"] == "trainer"
    )
    assert (
        worker["command"] == ["python", "-m", "agent_pipeline.worker"]
        and worker["image"] == "ours:1"
    )
    assert (
        worker["envFrom"] == [{"secretRef": {"name": "bucket"}}]
        and worker["volumeMounts"][0]["name"] == "cache"
    )
    assert worker["resources"] == {"limits": {"nvidia.com/gpu": 1}} and proxy == {"name": "proxy"}


class Cluster(ThreadingHTTPServer):
    """As much of Kubernetes' API as a pod needs: it is created, looked at, and deleted; its command runs on this machine."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Api)
        self.pods: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.process: subprocess.Popen | None = None

    def create(self, pod: dict[str, Any]) -> dict[str, Any]:
        self.pods.append(pod)
        container = pod["spec"]["containers"][0]
        environment = {each["name"]: each["value"] for each in container["env"]}
        command = [sys.executable if part == "python" else part for part in container["command"]]
        self.process = subprocess.Popen(command, env=os.environ | environment)
        return pod

    def seen(self) -> dict[str, Any]:
        assert self.process
        code = self.process.poll()
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        status = {
            "name": "worker",
            "image": "",
            "imageID": "",
            "ready": code is None,
            "restartCount": 0,
            "state": state,
        }
        return self.pods[-1] | {"status": {"phase": "Running", "containerStatuses": [status]}}


class _Api(BaseHTTPRequestHandler):
    server: Cluster

    def _answer(self, value: Any, kind: str = "application/json") -> None:
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self._answer(
            self.server.create(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        )

    def do_GET(self) -> None:
        if "/log" in self.path:
            return self._answer("the worker's log", "text/plain")
        pods = (
            [self.server.seen()]
            if self.path.partition("?")[0].endswith("/namespaces/heavy/pods")
            else []
        )
        return self._answer({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": pods})

    def do_DELETE(self) -> None:
        assert self.server.process
        self.server.process.kill()
        self.server.process.wait()
        self.server.deleted.append(self.path)
        self._answer({"kind": "Status"})

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    pytest.importorskip("dagster_k8s", reason="needs agent-pipeline[kubernetes]")
    server = Cluster()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "clusters": [
            {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "users": [{"name": "me", "user": {}}],
        "current-context": "here",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig")
    )
    yield server
    server.shutdown()


@pytest.mark.slow
def test_the_worker_runs_as_a_pod_that_is_deleted_when_it_has_ended(settings, cluster):
    given = KubernetesSettings(
        image="ours:1",
        namespace="heavy",
        secrets=["bucket"],
        resources={"limits": {"memory": "8Gi"}},
    )
    launcher = Kubernetes(given, messages(settings))
    assert launched(launcher, common_values(settings, KEY) | COMPARE) == COMPARED
    assert not left(settings) and len(cluster.deleted) == 1
    spec = cluster.pods[0]["spec"]
    assert spec["restartPolicy"] == "Never" and spec["containers"][0]["resources"] == {
        "limits": {"memory": "8Gi"}
    }
    assert spec["containers"][0]["envFrom"] == [{"secretRef": {"name": "bucket"}}]


def test_a_pod_that_dies_is_a_sentence_that_says_what_to_raise_and_is_deleted(
    settings, cluster, monkeypatch
):
    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)
    given = KubernetesSettings(
        image="ours:1", namespace="heavy", pod={"containers": [{"command": ["false"]}]}
    )
    error = launched(Kubernetes(given, messages(settings)), {})
    assert (
        isinstance(error, PassingError)
        and "kubernetes.resources" in str(error)
        and len(cluster.deleted) == 1
    )


def test_a_pods_spec_that_kubernetes_does_not_know_is_refused_before_it_is_sent(settings, cluster):
    given = KubernetesSettings(image="ours:1", namespace="heavy", pod={"nodeSelectors": {}})
    assert (
        isinstance(launched(Kubernetes(given, messages(settings)), {}), PassingError)
        and not cluster.pods
    )


def test_a_ray_job_has_a_name_of_its_own_and_leaves_the_settings_as_they_are():
    given = RaySettings(
        gpus=2, runtime_env={"env_vars": {"A": "1"}}, arguments={"entrypoint_memory": 10}
    )
    job, other = job_of(given), job_of(given)
    assert (
        job["entrypoint"] == "python -m agent_pipeline.worker"
        and job["submission_id"] != other["submission_id"]
    )
    assert (job["entrypoint_num_gpus"], job["entrypoint_memory"]) == (2, 10)
    job["runtime_env"]["env_vars"]["B"] = "2"
    assert given.runtime_env == {"env_vars": {"A": "1"}}


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[str]:
    """The address of a real Ray on this machine."""
    pytest.importorskip("dagster_ray", reason="needs agent-pipeline[ray]")
    jobs = pytest.importorskip("ray.job_submission", reason="needs agent-pipeline[ray]")
    ray = Path(sys.executable).with_name("ray")
    port = free_port()
    head = [
        ray,
        "start",
        "--head",
        "--block",
        "--port=0",
        f"--dashboard-port={port}",
        "--num-cpus=1",
        "--disable-usage-stats",
    ]
    with TemporaryDirectory(
        prefix="ray-", ignore_cleanup_errors=True
    ) as folder:  # a path of pytest's is too long for its sockets
        environment = os.environ | {
            "PATH": f"{ray.parent}:{os.environ['PATH']}",
            "RAY_TMPDIR": folder,
        }
        process = subprocess.Popen(
            head, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while process.poll() is None:
                with suppress(ConnectionError, RuntimeError):
                    jobs.JobSubmissionClient(f"http://127.0.0.1:{port}")
                    break
                time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.slow
def test_the_worker_runs_as_a_ray_job(settings, ray_cluster):
    launcher = Ray(RaySettings(address=ray_cluster, gpus=0), messages(settings))
    assert launched(launcher, common_values(settings, KEY) | COMPARE) == COMPARED
    assert not left(settings)


def test_the_sentence_of_a_job_that_failed_has_its_reason_which_ray_writes_into_the_next_line():
    error = RuntimeError(
        "[pipes] Ray job a failed with status FAILED. Message:\nJob entrypoint command failed with exit code 1\nlog"
    )
    assert (
        first_line(error)
        == "[pipes] Ray job a failed with status FAILED. Message: Job entrypoint command failed with exit code 1"
    )


@pytest.mark.slow
def test_a_ray_job_that_dies_is_a_sentence_that_says_where_its_log_is(
    settings, ray_cluster, monkeypatch
):
    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)
    given = RaySettings(address=ray_cluster, gpus=0, arguments={"entrypoint": "false"})
    error = launched(Ray(given, messages(settings)), {})
    assert (
        isinstance(error, PassingError)
        and "exit code 1" in str(error)
        and "Ray's dashboard" in str(error)
        and not left(settings)
    )


@pytest.mark.slow
def test_a_run_that_is_cancelled_stops_its_ray_job(settings, ray_cluster, monkeypatch):
    from ray.job_submission import JobSubmissionClient

    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)
    command = f"kill -INT {os.getpid()}; exec sleep 600"
    with suppress(KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
        launched(
            Ray(
                RaySettings(address=ray_cluster, gpus=0, arguments={"entrypoint": command}),
                messages(settings),
            ),
            {},
        )
    ours = [
        job for job in JobSubmissionClient(ray_cluster).list_jobs() if job.entrypoint == command
    ]
    assert [str(job.status) for job in ours] == ["STOPPED"]


def test_a_worker_of_another_version_is_refused():
    from agent_pipeline.worker import _check_version

    _check_version("train", None)
    with pytest.raises(SettingsError, match="both"):
        _check_version("train", 10**6)


@pytest.mark.parametrize("last", ["1", None])
def test_a_worker_whose_run_gives_no_more_signs_of_life_ends(last):
    signs, slept, ended = iter(["1", "2", "3"]), [], []
    until_silent(lambda: next(signs, last and "3"), lambda: ended.append(True), slept.append)
    assert ended and PATIENCE <= sum(slept) < 2 * PATIENCE


def test_messages_of_a_worker_that_could_not_reach_the_lake_for_a_while_are_not_lost(
    tmp_path, monkeypatch
):
    box, put = Letterbox(Lake(str(tmp_path)), "sft_adapter", str(KEY), "0123abcd"), Letterbox.put
    monkeypatch.setattr(messages_module, "AGAIN", 0.0)
    refused = [OSError("away"), ValueError("away")]

    def sometimes(self: Letterbox, name: str, text: str) -> None:
        if refused:
            raise refused.pop()
        put(self, name, text)

    monkeypatch.setattr(Letterbox, "put", sometimes)
    channel = messages_module._Channel(box, interval=0)
    with channel.buffered_upload_loop():
        channel.write_message({"result": 1})  # type: ignore[typeddict-item, typeddict-unknown-key]
    assert json.loads(box.read("1") or "") == {"result": 1}


def test_what_a_killed_run_left_of_its_messages_goes_with_the_next_launchs_and_other_unfinished_files(
    settings, tmp_path
):
    lake = Lake(str(tmp_path))
    box = Letterbox(lake, "sft_adapter", str(KEY), "0123abcd")
    box.put("1", "{}")
    assert box.read("1") == "{}" and box.read("2") is None
    Letterbox(lake, "sft_adapter", str(KEY), "4567abcd").clear()
    assert box.read("1") is None
    box.put("1", "{}")
    with lake.run_of(KEY), pytest.raises(Exception, match="run is working"):
        lake.sweep()
    lake.sweep()
    assert box.read("1") is None
