"""An evaluation as a log of Inspect: what Inspect itself and our own reader make of it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.reports.inspect_log import write_log
from agent_pipeline.sources import open_source
from agent_pipeline_tests.evaluation.test_page import HOSTILE
from agent_pipeline_tests.export.test_deciding import FAIR, GOOD, report_on, samples

INSPECT = os.environ.get("INSPECT_PYTHON") or (
    sys.executable if importlib.util.find_spec("inspect_ai") else None
)
PARAMETERS = {
    "type": "object",
    "properties": {
        "id": {"type": ["string", "null"]},
        "any": True,
        "pair": {"items": [{"type": "string"}]},
    },
}
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": PARAMETERS}}]
CALLED = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"id": "K1"}'}}
BROKEN = {"id": "c2", "type": "function", "function": {"name": "find", "arguments": "no JSON"}}
PROMPT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": " ".join(HOSTILE[:-1])},
    {"role": "assistant", "content": "", "tool_calls": [CALLED, BROKEN]},
    {"role": "tool", "content": "none", "tool_call_id": "c1", "name": "find"},
    {"role": "tool", "content": "error", "tool_call_id": "c2", "name": "find"},
]
SAID = '<tool_call>{"name": "find", "arguments": {"id": "K2"}}</tool_call>'


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    entries = [
        each | {"turn_index": len(PROMPT), "adapter_answer": SAID}
        for each in samples(base=FAIR, adapter=GOOD)[:2]
    ]
    entries[1]["adapter_answer"], entries[1]["adapter"]["right"] = "<tool_call>{", False
    rows: dict[str, Any] = {
        each["row_id"]: {"messages": PROMPT, "tools": TOOLS} for each in entries
    }
    write_log(folder, "adapter", "shop/support test", "base+1", report_on(entries), entries, rows)
    return folder / "adapter.eval"


def test_our_own_reader_reads_the_log_back(log: Path) -> None:
    source = open_source(log)
    (key,) = source.partitions()
    sessions = list(source.sessions(key))
    assert [each.judgment for each in sessions] == ["acceptable", "unacceptable"]
    first, second = (each.messages for each in sessions)
    assert [message["content"] for message in first[:2]] == [
        message["content"] for message in PROMPT[:2]
    ]
    assert (
        first[2]["tool_calls"][0]["function"] == CALLED["function"]
        and first[-1]["tool_calls"][0]["function"]["name"] == "find"
    )
    assert (
        second[-1]["content"] == "<tool_call>{"
        and sessions[0].tools[0]["function"]["name"] == "find"
    )


@pytest.mark.skipif(
    INSPECT is None,
    reason="no inspect_ai: pip install it into an environment of its own, and set INSPECT_PYTHON",
)
def test_inspect_reads_the_log(log: Path) -> None:
    script = """
import json, sys
from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries
log = read_eval_log(sys.argv[1])
metrics = {name: metric.value for name, metric in log.results.scores[0].metrics.items()}
calls = [[call.function, call.arguments] for call in log.samples[0].output.message.tool_calls]
print(json.dumps([log.status, log.eval.task, metrics["accuracy"], [each.scores["right"].value for each in log.samples], calls,
    log.samples[0].messages[1].text, log.samples[0].events[0].tools[0].name, len(read_eval_log_sample_summaries(sys.argv[1]))]))
"""
    assert INSPECT
    done = subprocess.run(
        [INSPECT, "-c", script, str(log)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected = [
        "success",
        "shop/support test",
        0.5,
        ["C", "I"],
        [["find", {"id": "K2"}]],
        PROMPT[1]["content"],
        "find",
        2,
    ]
    assert json.loads(done.stdout.splitlines()[-1]) == expected
