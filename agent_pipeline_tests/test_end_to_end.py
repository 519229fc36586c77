"""The whole graph, from the shell, with a tiny base model: what the demo does, in a minute; and what a kill in the middle costs.

The first command and the one that is killed are processes of their own; the others run here, where all that they need is imported.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from agent_pipeline.cli.app import main
from agent_pipeline.governance.scanning import scan
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision_wording import summarize
from agent_pipeline.promotion.ledger import find_last_decision
from agent_pipeline.redaction.surrogates import surrogates_made_from, with_surrogates
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.storage.lake import Lake, sha256_file
from agent_pipeline.training.provenance import hash_sft_rows as trained_content
from agent_pipeline.training.provenance import name_rows
from agent_pipeline_tests.conftest import SAMPLE
from agent_pipeline_tests.defs.conftest import worker_here
from agent_pipeline_tests.governance.private_values import (
    PrivateValues,
    plant_in_store,
    search_files,
    secret_settings,
)
from agent_pipeline_tests.judging.endpoint import Endpoint, endpoint, verdict

# The whole graph takes a minute, but more than ten on a machine with much other work.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

KEY = PartitionKey("shop", "intern")
QUICK = [
    f"--set={setting}"
    for setting in (
        "max_steps=4",
        "max_samples=6",
        "max_conversations=4",
        "max_new_tokens=12",
        "sft_dataset.huggingface=true",
        'decided_by=["label", "judgment", "llm"]',
    )
]


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object per line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass
class Shell:
    """A user's shell, with a home of its own.

    The sessions and the settings hold private values.

    Attributes:
        environment: All variables.
        folder: The working directory, in which the lake and Dagster's home lie.
        values: The private values.
        endpoints: The judge, and the one that gets notifications.
    """

    environment: dict[str, str]
    folder: Path
    values: PrivateValues
    endpoints: tuple[Endpoint, Endpoint]

    @property
    def lake(self) -> Lake:
        return Lake(str(self.folder / "lake"))

    def write(self, output: str) -> None:
        """Keep what a command printed, beside what it wrote."""
        with (self.folder / "output.txt").open("a", encoding="utf-8") as file:
            file.write(output)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "agent_pipeline.cli.app", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, convertible_base: Path) -> Iterator[Shell]:
    folder, outside = tmp_path_factory.mktemp("shell"), tmp_path_factory.mktemp("outside")
    values = PrivateValues()
    shutil.copytree(SAMPLE, outside / "store")
    plant_in_store(outside / "store", str(KEY), values)

    def judged(request: dict[str, Any], number: int) -> tuple[int, dict[str, str], str]:
        return verdict(reason=values.sentence("judge's reason") if number == 0 else "so")

    with (
        endpoint(judged) as judge,
        endpoint(lambda request, number: (200, {}, "{}")) as people,
    ):
        ours = secret_settings(outside, str(KEY), values, judge, people) | {
            "DAGSTER_HOME": str(folder / "dagster"),
            "AGENT_PIPELINE_LAKE": str(folder / "lake"),
            "AGENT_PIPELINE_CACHE": str(outside / "cache"),
            "AGENT_PIPELINE_BASE_MODEL": str(convertible_base),
            "AGENT_PIPELINE_AGENTS": json.dumps(
                {str(KEY): {"world": "agent_pipeline.sample.shop:World"}}
            ),
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        }
        yield Shell(os.environ | ours, folder, values, (judge, people))


@pytest.fixture
def run(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run a command of that shell in this process: its exit code, and what it said."""
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(shell.folder)

    def ran(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["agent-pipeline", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        code, output = ended.value.code, "".join(capfd.readouterr())
        shell.write(f"\n$ {arguments}\n{output}")
        # Python writes a text on standard error, and its exit code is 1.
        return (code, output) if isinstance(code, int) else (1, f"{output}{code}")

    return ran


def test_one_command_takes_an_agents_sessions_to_a_verified_gguf_model(shell: Shell) -> None:
    process = shell.start("materialize", str(KEY), *QUICK)
    output, _ = process.communicate(timeout=1100)
    shell.write(output)
    assert process.returncode == 0, output
    exported = shell.lake.latest("gguf_export", KEY)
    assert {"model-f16.gguf", "model-q8_0.gguf", "Modelfile"} <= set(exported.manifest["files"])
    for name, file in exported.manifest["files"].items():
        assert sha256_file(exported.path / name) == file["sha256"]
    # Prompt and conversation of four sessions are compared. One session has a call with escaped
    # letters, which a server shows as they were sent.
    template = exported.manifest["report"]["template"]["f16"]
    assert template["texts"] == 2 * (4 - 1), template
    assert [tool["conversations"] for tool in template["tools"].values()] == [1], template
    # Four steps teach nothing: the model never acts, and neither does its base. Nothing is served, and the run says what to do next.
    assert not list((exported.path.parents[4] / "serving").rglob("*.*"))
    record = find_last_decision(shell.lake, KEY, exported.identity)
    assert (
        record is not None
        and f"the decision on {exported.identity[:16]}: {summarize(record.decision)}" in output
    )
    *_, last, next_step = output.strip().splitlines()
    assert next_step.startswith("Next: agent-pipeline ")
    assert f"agent-pipeline promote {KEY}" in last or (
        record.decision.outcome == "reject" and f"agent-pipeline report {KEY}" in last
    )
    failed = [line for line in output.splitlines() if "FAILED" in line]
    assert failed and all(line.partition("FAILED: ")[2] for line in failed), failed
    episodes = shell.lake.latest("episodes", KEY)
    assert episodes.manifest["report"]["players"].keys() == {"model", "base", "recorded"}
    transcripts = read_json_lines(episodes.path / "episodes.jsonl")
    tasks, variants = (episodes.manifest["report"][name] for name in ("tasks", "variants"))
    # Three players play the tasks, and the model plays them once more per variant.
    assert len(transcripts) == (3 + len(variants)) * tasks and len(variants) == 6
    trained_on = shell.lake.latest("sft_adapter", KEY).manifest["made_from"]["sessions"]
    rows = shell.lake.open("sft_dataset", KEY).read(["session_id", "split"]).to_pylist()
    assert trained_on == sorted(row["session_id"] for row in rows if row["split"] == "train")
    assert json.loads(
        (shell.lake.latest("evaluation", KEY).path / "samples.json").read_text(encoding="utf-8")
    )


def test_models_were_trained_on_and_asked_surrogates_where_tables_have_pseudonyms(
    shell: Shell,
) -> None:
    for asset, split in (("sft_adapter", "train"), ("evaluation", "test"), ("episodes", "test")):
        stored = list(read_dataset_rows(shell.lake, KEY, (split,)))
        made_from = shell.lake.latest(asset, KEY).manifest["made_from"]
        assert made_from["rows_sha256"] == name_rows(stored)["rows_sha256"], (
            asset
        )  # lineage finds the table's rows
        seen = list(with_surrogates(stored))
        if asset == "sft_adapter":
            assert made_from["content_sha256"] == trained_content(seen) != trained_content(stored)
        else:
            page = (shell.lake.latest("evaluation", KEY).path / "report.html").read_text(
                encoding="utf-8"
            )
            assert ("made up, where the tables have pseudonyms" in page) == (
                "surrogates_sha256" in made_from
            )
            assert {
                name: made_from[name] for name in made_from if name == "surrogates_sha256"
            } == surrogates_made_from(stored, seen)


def test_the_same_again_is_reused_and_not_trained_twice(
    shell: Shell, run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_here(monkeypatch)
    before = {
        asset: shell.lake.latest(asset, KEY).identity
        for asset in ("sft_adapter", "evaluation", "gguf_export", "episodes")
    }
    code, output = run("materialize", str(KEY), *QUICK)
    assert code == 0 and output.count("reused, nothing has changed") == 4, output
    assert before == {asset: shell.lake.latest(asset, KEY).identity for asset in before}


def test_a_training_that_is_killed_leaves_the_last_good_adapter_and_goes_on_from_its_checkpoint(
    shell: Shell, run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shell.lake.latest("sft_adapter", KEY)
    long = (
        "materialize",
        str(KEY),
        "--select",
        "adapter",
        "--set",
        "num_train_epochs=60",
        "--set",
        "max_steps=24",
    )
    process = shell.start(*long)
    folder = before.path.parent
    until = time.monotonic() + 1100
    while not list(folder.glob(".building-*/checkpoints/checkpoint-*/trainer_state.json")):
        assert process.poll() is None and time.monotonic() < until, process.communicate()[0]
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    shell.write(process.communicate(timeout=300)[0])
    assert shell.lake.latest("sft_adapter", KEY).identity == before.identity
    # The trainer notices that its parent is gone, and lets go of its lock.
    for lock in folder.glob("*.lock"):
        with FileLock(lock, timeout=300):
            pass
    worker_here(monkeypatch)
    code, output = run(*long)
    assert code == 0, output
    after = shell.lake.latest("sft_adapter", KEY)
    assert after.identity != before.identity
    assert after.manifest["report"]["resumed_from"] >= 10
    assert not list(folder.glob(".building-*"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["materialize", "shop/nobody"], "has no partition shop/nobody"),
        (["materialize", "../../etc"], "is not a partition"),
        (["materialize", "shop/intern", "--set", "lora_rank=4"], "did you mean lora_r?"),
        (["materialize", "shop/intern", "--set", "lora_r=many"], "lora_r"),
        (["materialize", "shop/intern", "--select", "adaptor"], "did you mean adapter?"),
        (
            [
                "materialize",
                "shop/intern",
                "--select",
                "adapter",
                "--set",
                "base_model=nobody/nothing",
            ],
            "nobody/nothing",
        ),
        (["discover", "/nowhere"], "does not exist"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_a_failing_exit_code(
    run: Callable, arguments: list[str], says: str
) -> None:
    code, output = run(*arguments)
    assert code == 1 and says in output and "Traceback" not in output


def test_a_model_that_a_person_promotes_is_served(shell: Shell, run: Callable) -> None:
    exported = shell.lake.latest("gguf_export", KEY)
    code, output = run("promote", str(KEY))
    assert code == 0 and "that require an action" in output, output
    folder = exported.path.parents[4] / "serving"
    served = f"shop/intern/{Path(exported.manifest['report']['ollama']['gguf']).stem}-{exported.path.name}.gguf"
    assert f"FROM ./{Path(served).name}" in (folder / "shop" / "intern" / "Modelfile").read_text(
        encoding="utf-8"
    )
    assert (
        str(folder / served) in (folder / "llama-server.ini").read_text(encoding="utf-8")
        and (folder / served).is_file()
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["models", "list"],
        ["report", str(KEY)],
        ["status"],
        ["config", "check"],
        ["label", "export", str(KEY)],
        ["discover"],
    ],
)
def test_commands_after_a_run(run: Callable, arguments: list[str]) -> None:
    """They succeed, and what they write is searched below."""
    code, output = run(*arguments)
    assert code == 0, output


def test_outputs(shell: Shell) -> None:
    """Reports, logs, models' texts, MLflow and Dagster's storage were never searched for what sessions and settings hold."""
    requests = json.dumps([each.requests for each in shell.endpoints])
    (shell.folder / "requests.json").write_text(requests)
    written = {path.name for path in shell.folder.rglob("*") if path.is_file()}
    assert written >= {
        "review.csv", "adapter.eval", "episodes.jsonl", "report.html", "README.md", "Modelfile", "llama-server.ini",
        "model-f16.gguf", "runs.db", "output.txt",
    }  # fmt: skip
    # A name in a system prompt stays: the prompt is the operator's.
    del shell.values.by_place["system", "name"]
    found = search_files(shell.folder, shell.values)
    assert not found, found[:40]


def test_a_session_is_followed_to_the_model_that_learnt_from_it_and_forgotten_everywhere_but_in_its_weights(
    shell: Shell, run: Callable
) -> None:
    exported = shell.lake.latest("gguf_export", KEY)
    learnt = exported.manifest["made_from"]["adapter_made_from"]["sessions"][0]
    measured = shell.lake.latest("evaluation", KEY).manifest["made_from"]["sessions"][0]
    code, output = run("sessions", "show", learnt, "--lineage")
    assert code == 0 and all(
        f"{asset} " in output for asset in ("sft_adapter", "evaluation", "gguf_export", "serving")
    ), output
    code, output = run("models", "show", str(exported.path / "model-q8_0.gguf"))
    assert (
        code == 0
        and "made from" in output
        and learnt in output
        and "the lake has the same rows" in output
    ), output
    assert {"sft_dataset", "sft_coreset"} <= set(
        shell.lake.latest("sft_adapter", KEY).manifest["tables"]
    )
    for gone in (learnt, measured):
        code, output = run(
            "forget", gone, "--yes", "--force"
        )  # the run that was killed above is in Dagster's record still
        assert code == 0 and "later runs in all partitions" in output, output
    assert scan(shell.lake, [learnt, measured]) == {}
    assert all(
        shell.lake.latest(asset, KEY)
        for asset in ("sft_adapter", "evaluation", "gguf_export", "serving")
    )
    code, output = run("models", "show", exported.identity)
    assert code == 0 and "1 forgotten since" in output, output
