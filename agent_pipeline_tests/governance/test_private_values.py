"""What leaves the tables of a lake after a whole run: no private value of sessions or of settings is in it."""

import base64
import csv
import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
import zlib
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent_pipeline.keys import PartitionKey
from agent_pipeline_tests.cli.forked import Server
from agent_pipeline_tests.conftest import SAMPLE
from agent_pipeline_tests.governance.private_values import (
    PrivateValues,
    plant_in_store,
    search_files,
)
from agent_pipeline_tests.judging.endpoint import Endpoint, endpoint, verdict

KEY = PartitionKey("shop", "intern")
QUICK = [
    f"--set={setting}"
    for setting in (
        "max_steps=4", "max_samples=6", "max_conversations=4", "max_new_tokens=12", "sft_dataset.huggingface=true",
        "decided_by=[\"label\", \"judgment\", \"llm\"]",
    )
]  # fmt: skip
COMMANDS = (
    ["promote", str(KEY)],
    ["models", "list"],
    ["report", str(KEY)],
    ["status"],
    ["config", "check"],
    ["label", "export", str(KEY)],
    ["discover"],
)


@pytest.mark.slow
def test_outputs(
    tmp_path: Path, convertible_base: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Reports, logs, models' texts, MLflow and Dagster's storage were never searched for what sessions and settings hold."""
    values, outside = PrivateValues(), tmp_path_factory.mktemp("outside")
    store = outside / "store"
    shutil.copytree(SAMPLE, store)
    plant_in_store(store, str(KEY), values)
    with (
        endpoint(
            lambda request, number: verdict(
                reason=values.sentence("judge's reason") if number == 0 else "so"
            )
        ) as judge,
        endpoint(lambda request, number: (200, {}, "{}")) as people,
    ):
        environment = os.environ | settings(
            tmp_path, outside, store, convertible_base, values, judge, people
        )
        materialize = ["materialize", str(KEY), *QUICK]
        done = subprocess.run(
            [sys.executable, "-m", "agent_pipeline.cli.app", *materialize],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            check=False,
            text=True,
        )
        outputs, codes = [f"$ {materialize}", done.stdout, done.stderr], [done.returncode]
        server = Server(outside / "home")
        for arguments in COMMANDS:
            done = server.run(arguments, tmp_path, environment, outside)
            outputs += [f"$ {arguments}", done.stdout, done.stderr]
            codes.append(done.returncode)
        server.close()
        (tmp_path / "output.txt").write_text("\n".join(outputs), encoding="utf-8")
        requests = json.dumps([judge.requests, people.requests])
    (tmp_path / "requests.json").write_text(requests)
    assert not any(codes), (codes, "\n".join(outputs)[-2000:])
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert written >= {
        "review.csv", "adapter.eval", "episodes.jsonl", "report.html", "README.md", "Modelfile", "llama-server.ini",
        "model-f16.gguf", "runs.db",
    }  # fmt: skip
    # A name in a system prompt stays: the prompt is the operator's.
    del values.by_place["system", "name"]
    found = search_files(tmp_path, values)
    assert not found, found[:40]


def settings(
    folder: Path,
    outside: Path,
    store: Path,
    base: Path,
    values: PrivateValues,
    judge: Endpoint,
    people: Endpoint,
) -> dict[str, str]:
    """Return the variables of a user whose settings hold secrets."""
    rows = [
        {"session_id": session_id, "judgment": "acceptable", "reason": values.sentence("label")}
        for session_id in sessions_of(store)[:1]
    ]
    with (outside / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["session_id", "judgment", "reason"])
        writer.writeheader()
        writer.writerows(rows)
    judge_password = values.add("judge endpoint", "password", "judge7pw9zqk")
    told = values.add("notify address", "password", "notify8pw3xvb")
    key = values.add("judge key", "secret", "judgekey9x8c7v6b5n4m")
    token = values.add("hub token", "secret", "hf" + "_QpLmNzRtYwXsVbGkJhFdCaEuOiTrWqPsLk")
    return {
        "DAGSTER_HOME": str(folder / "dagster"),
        "AGENT_PIPELINE_STORE": str(store),
        "AGENT_PIPELINE_LAKE": str(folder / "lake"),
        "AGENT_PIPELINE_CACHE": str(outside / "cache"),
        "AGENT_PIPELINE_BASE_MODEL": str(base),
        "AGENT_PIPELINE_LABELS": str(outside / "labels.csv"),
        "AGENT_PIPELINE_AGENTS": json.dumps(
            {str(KEY): {"world": "agent_pipeline.sample.shop:World"}}
        ),
        "AGENT_PIPELINE_JUDGE__ENDPOINT": judge.url.replace("//", f"//bob:{judge_password}@"),
        "AGENT_PIPELINE_JUDGE__MODEL": "m",
        "AGENT_PIPELINE_NOTIFY__URLS": json.dumps(
            [people.url.replace("http://", f"json://bob:{told}@")]
        ),
        "OPENAI_API_KEY": key,
        "HF_TOKEN": token,
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }


def sessions_of(store: Path) -> list[str]:
    with closing(sqlite3.connect(store / "sessions" / str(KEY) / "sessions.db")) as connection:
        return [row[0] for row in connection.execute("SELECT session_id FROM sessions ORDER BY 1")]


def test_the_search_sees_every_spelling(tmp_path: Path) -> None:
    """A search that sees nothing proves nothing."""
    values = PrivateValues()
    sentence = values.sentence("user")
    email = values.by_place["user", "email"]
    with zipfile.ZipFile(tmp_path / "a.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", json.dumps({"a": sentence}))
    (tmp_path / "b.log").write_bytes(base64.b64encode(f"x{email}".encode()))
    (tmp_path / "c.gz").write_bytes(gzip.compress(email.encode()))
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection, connection:
        connection.execute("CREATE TABLE t (body BLOB)")
        connection.execute("INSERT INTO t VALUES (?)", [zlib.compress(email.encode())])
    pq.write_table(pa.table({"a": pa.array([email]).dictionary_encode()}), tmp_path / "e.parquet")
    (tmp_path / "f.html").write_text(email.upper())
    found = search_files(tmp_path, values)
    assert {line.partition(":")[0] for line in found} == {
        "a.eval", "b.log", "c.gz", "d.db", "e.parquet", "f.html",
    }  # fmt: skip
