"""One conversation of two runs: in files that SDKs wrote (`written/`), and as the Agents SDK exports it (made here)."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

WRITTEN = Path(__file__).with_name("written")

SYSTEM = {"role": "system", "content": "You are helpful."}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"order": 7}'},
}
FIRST = [{"role": "user", "content": "Where is order 7?"}]
ASKED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "in Ulm"}
ANSWER = {"role": "assistant", "content": "Your order is in Ulm."}
SECOND = {"role": "user", "content": "Thanks"}
GOODBYE = {"role": "assistant", "content": "You are welcome."}
WHOLE = [SYSTEM, *FIRST, ASKED, RESULT, ANSWER, SECOND, GOODBYE]
"""What every export says."""

CALLS = [
    ("t1", [SYSTEM, *FIRST], ASKED),
    ("t1", [SYSTEM, *FIRST, ASKED, RESULT], ANSWER),
    ("t2", WHOLE[:-1], GOODBYE),
]
"""The model calls: trace, input (what was said so far, repeated), answer."""

SCHEMA = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Finds an order.", "parameters": SCHEMA},
}
START = 1_800_000_000


def iso(step: int) -> str:
    return datetime.fromtimestamp(START + 10 * step, UTC).isoformat()


def write(path: Path, records: Any) -> Path:
    """Records as JSON lines, or (a `.json` file) one document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (
        json.dumps(records)
        if path.suffix == ".json"
        else "".join(json.dumps(each) + "\n" for each in records)
    )
    path.write_text(text, encoding="utf-8")
    return path


def placed(name: str, made: Callable[[], Any] | None, folder: Path) -> Path:
    """An export in a folder: made here, or as an SDK wrote it; a database is kept as SQL."""
    if made:
        return write(folder / name, made())
    if not name.endswith(".db"):
        return Path(shutil.copy(WRITTEN / name, folder / name))
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / name)) as connection:
        connection.executescript((WRITTEN / f"{name}.sql").read_text(encoding="utf-8"))
        connection.commit()
    return folder / name


def written(name: str) -> list[Any]:
    """The records of a file that an SDK wrote."""
    return [json.loads(line) for line in (WRITTEN / name).read_text(encoding="utf-8").splitlines()]


def litellm() -> list[Any]:
    """Three logged calls, of a team's agent."""
    return [
        row | {"metadata": {"user_api_key_team_alias": "shop", "user_api_key_alias": "support"}}
        for row in written("litellm.jsonl")
    ]


def attribute(name: str, value: Any) -> dict[str, Any]:
    return {
        "key": name,
        "value": {"stringValue": value} if isinstance(value, str) else {"doubleValue": value},
    }


def spans_in(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The spans of a record of OTLP."""
    return record["resourceSpans"][0]["scopeSpans"][0]["spans"]


def with_attributes(
    record: dict[str, Any], without: tuple[str, ...] = (), **attributes: Any
) -> dict[str, Any]:
    """A record of OTLP whose span lacks the attributes of these prefixes and has others; `__` in a name is a dot."""
    copy = json.loads(json.dumps(record))
    (span,) = spans_in(copy)
    span["spanId"] = "other"
    span["attributes"] = (
        [each for each in span["attributes"] if not each["key"].startswith(without)]
        if without
        else span["attributes"]
    )
    span["attributes"] += [
        attribute(name.replace("__", "."), value) for name, value in attributes.items()
    ]
    return copy


def guard() -> dict[str, Any]:
    """A call of another agent within the first run of `openinference_otlp.jsonl`."""
    messages = {
        f"llm__input_messages__{at}__message__role": role
        for at, role in enumerate(("system", "user"))
    }
    messages |= {
        f"llm__input_messages__{at}__message__content": words
        for at, words in enumerate(("You are a judge.", "Is this polite?"))
    }
    answer = {
        "llm__output_messages__0__message__role": "assistant",
        "llm__output_messages__0__message__content": "yes",
    }
    return with_attributes(
        written("openinference_otlp.jsonl")[0],
        ("llm.input", "llm.output", "input.", "output."),
        **messages,
        **answer,
    )


def langfuse() -> list[dict[str, Any]]:
    """Observations, scores and traces, a line each, of the two traces that the SDK's client wrote."""
    text = (WRITTEN / "langfuse_traces.jsonl").read_text(encoding="utf-8")
    for at, trace in enumerate(written("langfuse_traces.jsonl"), 1):
        text = text.replace(trace["id"], f"t{at}")
    traces = [json.loads(line) for line in text.splitlines()]
    observations, scores = (
        [each for trace in traces for each in trace.pop(name)]
        for name in ("observations", "scores")
    )
    return [*sorted(observations, key=lambda each: each["type"] == "AGENT"), *scores, *traces]


def openai_span(trace: str, step: int, data: dict[str, Any], error: Any = None) -> dict[str, Any]:
    return {
        "object": "trace.span",
        "id": f"span_{trace}_{step}",
        "trace_id": trace,
        "parent_id": None,
        "started_at": iso(step),
        "ended_at": iso(step),
        "span_data": data,
        "error": error,
    }


def openai_traces() -> list[dict[str, Any]]:
    """The Agents SDK's export of runs through Chat Completions: generation spans with text."""
    found = []
    for step, (trace, told, answer) in enumerate(CALLS):
        data = {
            "type": "generation",
            "input": told,
            "output": [answer],
            "model": "m-1",
            "model_config": {"tools": [TOOL]},
            "usage": {"input_tokens": 10, "output_tokens": 2},
        }
        found.append(openai_span(trace, step, data))
    function = {"type": "function", "name": "look_up", "input": '{"order": 7}', "output": "in Ulm"}
    agents = [
        openai_span(trace, 9, {"type": "agent", "name": "support", "tools": ["look_up"]})
        for trace in ("t1", "t2")
    ]
    traces = [
        {
            "object": "trace",
            "id": trace,
            "workflow_name": "shop",
            "group_id": "s1",
            "metadata": {"task_id": "7"},
        }
        for trace in ("t1", "t2")
    ]
    return [*found, openai_span("t1", 1, function), *agents, *traces]
