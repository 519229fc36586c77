"""A lake with sessions, and the pages of this lake on a real server."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.turn_facts import find_turn_facts
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import JUDGED, make_session_row, to_table
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.ports import free_port

KEY = PartitionKey("shop", "support")


def judged_row(session_id: str, messages: Any, **fields: Any) -> dict[str, Any]:
    """A row of `judged_sessions`; `fields` are fields of the session or columns of the table."""
    of_session = {
        name: fields.pop(name) for name in list(fields) if name in Session.__struct_fields__
    }
    session = Session(
        session_id=session_id,
        project="shop",
        agent="support",
        source="test",
        messages=messages,
        **of_session,
    )
    turns = [turn._asdict() for turn in find_turn_facts(EvaluationContext(messages))]
    columns = {"verdict": None, "verdict_by": None, "measures": {}, "opinions": {}, "turns": turns}
    return make_session_row(session) | columns | fields


def put_judged(lake: Lake, rows: Sequence[dict[str, Any]], key: PartitionKey = KEY) -> None:
    """Write rows as the tables `sessions` and `judged_sessions`."""
    rows = sorted(rows, key=lambda row: row["session_id"])
    for asset in ("sessions", "judged_sessions"):
        lake.stage(asset, key, to_table(rows, JUDGED).to_batches(), JUDGED).commit()


@contextmanager
def serving(folder: Path, *command: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a command of the shell that serves pages of the lake in `folder`; it ends with the block.

    The address and the process are yielded once the server answers.
    """
    port = free_port()
    (folder / "pipeline.toml").touch()
    environment = os.environ | {
        "AGENT_PIPELINE_LAKE": str(folder / "lake"),
        "AGENT_PIPELINE_CONFIG": str(folder / "pipeline.toml"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_pipeline.cli.app", *command, "--port", str(port)],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 300
        while True:
            assert process.poll() is None and time.monotonic() < until, "no server"
            try:
                urllib.request.urlopen(address, timeout=5)
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
        yield address, process
    finally:
        process.kill()
        process.wait()
