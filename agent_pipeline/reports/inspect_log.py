"""The logs of an evaluation for Inspect (inspect.aisi.org.uk/eval-logs.html), which Inspect's
viewer and its Python API read.

    inspect view --log-dir lake/models/evaluation

A log belongs to one model. It is a zip file with a header, summaries, and one JSON file per sample.
A sample is a held-out turn.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_pipeline.evaluation.evaluation_report import EvaluationReport
from agent_pipeline.evaluation.model_comparison import METRICS
from agent_pipeline.evaluation.stored_entries import EvaluatedModel, SampleEntry
from agent_pipeline.models.families import parse_reply
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import Message, Tool
from agent_pipeline.storage.pointers import now

LOG = "{}.eval"
"""File name of one model's Inspect log."""
SCORER = "right"
_GRADES = {True: "C", False: "I"}


def write_log(
    folder: Path,
    player: EvaluatedModel,
    task: str,
    model: str,
    report: EvaluationReport,
    samples: Sequence[SampleEntry],
    rows: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write the log of one model of an evaluation.

    Args:
        folder: The folder of the log.
        player: The model, `base` or `adapter`.
        task: The name of the Inspect task.
        model: The name of the model.
        report: The report of the evaluation.
        samples: The entries of the answered turns.
        rows: The held-out rows by id.
    """
    figures = report.base if player == "base" else report.adapter
    created, means = (
        now(),
        {name: value for name in METRICS if (value := figures.figure(name)) is not None},
    )
    logged = [
        _sample(number, sample, player, model, rows[sample["row_id"]], created)
        for number, sample in enumerate(samples, 1)
    ]
    accuracy = (
        sum(bool(sample[player]["right"]) for sample in samples) / len(samples) if samples else 0.0
    )
    metrics = {
        name: {"name": name, "value": value}
        for name, value in {"accuracy": accuracy, **means}.items()
    }
    spec = {
        "created": created,
        "task": task,
        "model": model,
        "dataset": {
            "name": task,
            "samples": len(samples),
            "sample_ids": [logged_sample["id"] for logged_sample in logged],
        },
        "config": {},
        "scorers": [{"name": SCORER}],
    }
    counts = {"total_samples": len(samples), "completed_samples": len(samples)}
    header = {
        "version": 2,
        "status": "success",
        "eval": spec,
        "plan": {},
        "results": {**counts, "scores": [{"name": SCORER, "scorer": SCORER, "metrics": metrics}]},
        "stats": {"started_at": created, "completed_at": created},
    }
    shown = ("id", "epoch", "target", "scores", "metadata")
    summaries = [
        {name: logged_sample[name] for name in shown}
        | {"input": logged_sample["input"][-1:], "completed": True}
        for logged_sample in logged
    ]
    start = {"version": 2, "eval": spec, "plan": {}}
    with zipfile.ZipFile(folder / LOG.format(player), "w", zipfile.ZIP_DEFLATED) as file:
        for logged_sample in logged:
            file.writestr(f"samples/{logged_sample['id']}_epoch_1.json", json.dumps(logged_sample))
        for name, content in (
            ("_journal/start.json", start),
            ("summaries.json", summaries),
            ("header.json", header),
        ):
            file.writestr(name, json.dumps(content))


def _sample(
    number: int,
    entry: SampleEntry,
    player: EvaluatedModel,
    model: str,
    row: Mapping[str, Any],
    created: str,
) -> dict[str, Any]:
    written = entry["base_answer"] if player == "base" else entry["adapter_answer"]
    tools: list[Tool] = row.get("tools") or []
    prompt = list(_messages(row["messages"][: entry["turn_index"]]))
    answer = _reply(written, tools) | {"model": model, "source": "generate"}
    output = {
        "model": model,
        "choices": [{"message": answer, "stop_reason": "stop"}],
        "completion": answer["content"],
    }
    event = {
        "event": "model",
        "timestamp": created,
        "working_start": 0.0,
        "model": model,
        "input": prompt,
        "tools": [_tool(tool["function"]) for tool in tools],
        "tool_choice": "auto",
        "config": {},
        "output": output,
    }
    return {
        "id": number,
        "epoch": 1,
        "input": prompt,
        "target": entry["expected"],
        "messages": [*prompt, answer],
        "output": output,
        "scores": {
            SCORER: {
                "value": _GRADES[bool(entry[player]["right"])],
                "answer": written,
            }
        },
        "metadata": {
            "task_key": entry["task_key"],
            "session_id": entry["session_id"],
            "row_id": entry["row_id"],
            "turn_index": entry["turn_index"],
            "expected_class": entry["expected_class"],
            "expected_tool": entry["expected_tool"],
        },
        "events": [event],
    }


def _tool(function: Mapping[str, object]) -> dict[str, Any]:
    parameters = _schema(function.get("parameters") or {})
    return {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": {"type": "object", **parameters},
    }


def _schema(value: object) -> Any:
    """Return a JSON schema in Inspect's format.

    It is always an object, although JSON Schema also allows a boolean or a list.
    """
    if not isinstance(value, dict):
        return {}
    parts = {name: _schema(value[name]) for name in ("items",) if name in value}
    if isinstance(value.get("properties"), dict):
        parts["properties"] = {
            name: _schema(property) for name, property in value["properties"].items()
        }
    return value | parts


def _messages(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    for message in messages:
        shown: dict[str, object] = {
            "role": message["role"],
            "content": message.get("content") or "",
            "source": "input",
        }
        if calls := message.get("tool_calls"):
            shown["tool_calls"] = [
                _call(
                    call.get("id") or "",
                    call["function"]["name"],
                    decode_arguments(call["function"]["arguments"]),
                )
                for call in calls
            ]
        if message["role"] == "tool":
            shown |= {"tool_call_id": message.get("tool_call_id"), "function": message.get("name")}
        yield shown


def _reply(text: str, tools: Sequence[Tool]) -> dict[str, object]:
    """Return a model's reply as words and calls, or as plain text if a call in it cannot be parsed."""
    reply = parse_reply(text, tools)
    calls = (
        []
        if reply.invalid
        else [
            _call(f"call_{index}", call.name, call.arguments)
            for index, call in enumerate(reply.calls)
        ]
    )
    return {
        "role": "assistant",
        "content": reply.text if calls else text,
        **({"tool_calls": calls} if calls else {}),
    }


def _call(name_of_it: str, function: str, arguments: object) -> dict[str, object]:
    known = isinstance(arguments, dict)
    broken = {} if known else {"parse_error": f"no JSON object: {arguments}"}
    return {
        "id": name_of_it,
        "function": function,
        "arguments": arguments if known else {},
        "type": "function",
        **broken,
    }
