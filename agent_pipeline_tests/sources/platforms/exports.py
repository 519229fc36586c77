"""One conversation of two runs, as each tracing platform exports it; the schemas are those of the platforms' documentation."""

import json
from pathlib import Path
from typing import Any

SYSTEM = {"role": "system", "content": "You are helpful."}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": 7}'}}
FIRST = [{"role": "user", "content": "Where is order 7?"}]
ASKED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "in Ulm"}
ANSWER = {"role": "assistant", "content": "Your order is in Ulm."}
SECOND = {"role": "user", "content": "Thanks"}
GOODBYE = {"role": "assistant", "content": "You are welcome."}
WHOLE = [SYSTEM, *FIRST, ASKED, RESULT, ANSWER, SECOND, GOODBYE]
"""What every export says."""

CALLS = [("t1", [SYSTEM, *FIRST], ASKED), ("t1", [SYSTEM, *FIRST, ASKED, RESULT], ANSWER), ("t2", WHOLE[:-1], GOODBYE)]
"""The model calls: trace, input (what was said so far, repeated), answer."""

TOOL = {"type": "function", "function": {"name": "look_up", "description": "", "parameters": {"type": "object"}}}
START = 1_800_000_000


def seconds(step: int) -> int:
    return START + 10 * step


def iso(step: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds(step), UTC).isoformat()


def write(path: Path, records: Any) -> Path:
    """Records as JSON lines, or (a `.json` file) one document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(records) if path.suffix == ".json" else "".join(json.dumps(each) + "\n" for each in records)
    path.write_text(text, encoding="utf-8")
    return path


# OTLP


def attribute(name: str, value: Any) -> dict[str, Any]:
    kind = "boolValue" if isinstance(value, bool) else "intValue" if isinstance(value, int) else "doubleValue"
    return {"key": name, "value": {"stringValue": value} if isinstance(value, str) else {kind: str(value) if kind == "intValue" else value}}


def otlp_span(trace: str, step: int, attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    times = {"startTimeUnixNano": str(seconds(step) * 10**9), "endTimeUnixNano": str((seconds(step) + 5) * 10**9)}
    listed = [attribute(name, value) for name, value in attributes.items()]
    return {"traceId": trace, "spanId": f"s{step}", "name": "chat", **times, "attributes": listed, **more}


def otlp(spans: list[dict[str, Any]], service: str = "shop") -> dict[str, Any]:
    resource = {"attributes": [attribute("service.name", service)]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "x"}, "spans": spans}]}]}


def parts(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the GenAI conventions write it."""
    if message["role"] == "tool":
        return {"role": "tool", "parts": [{"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}]}
    found: list[dict[str, Any]] = [{"type": "text", "content": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        found.append({"type": "tool_call", "id": call["id"], "name": function["name"], "arguments": json.loads(function["arguments"])})
    return {"role": message["role"], "parts": found}


def genai_attributes(told: list[dict[str, Any]], answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.model": "m-1",
        "gen_ai.agent.name": "support",
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": SYSTEM["content"]}]),
        "gen_ai.input.messages": json.dumps([parts(each) for each in told if each["role"] != "system"]),
        "gen_ai.output.messages": json.dumps([parts(answer) | {"finish_reason": "stop"}]),
        "gen_ai.tool.definitions": json.dumps([TOOL["function"] | {"type": "function"}]),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 2,
    }


def opentelemetry() -> list[dict[str, Any]]:
    spans = [otlp_span(trace, step, genai_attributes(told, answer)) for step, (trace, told, answer) in enumerate(CALLS)]
    verdict = {"gen_ai.evaluation.name": "helpfulness", "gen_ai.evaluation.score.value": 0.5, "gen_ai.evaluation.score.label": "pass"}
    listed = [attribute(name, value) for name, value in verdict.items()]
    spans[2]["events"] = [{"name": "gen_ai.evaluation.result", "attributes": listed}]
    roots = [
        otlp_span(trace, 8 + each, {"gen_ai.operation.name": "invoke_agent", "gen_ai.conversation.id": "s1"})
        for each, trace in enumerate(("t1", "t2"))
    ]
    return [otlp([spans[2], spans[0]]), otlp([spans[1], *roots])]


def openinference_attributes(told: list[dict[str, Any]], answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m-1",
        "agent.name": "support",
        "session.id": "s1",
        "llm.tools.0.tool.json_schema": json.dumps(TOOL),
        "llm.token_count.prompt": 10,
        "llm.token_count.completion": 2,
    }
    for side, messages in (("input", told), ("output", [answer])):
        for index, message in enumerate(messages):
            prefix = f"llm.{side}_messages.{index}.message."
            found[prefix + "role"] = message["role"]
            found |= {prefix + "content": message["content"]} if message["content"] else {}
            found |= {prefix + "tool_call_id": message["tool_call_id"]} if "tool_call_id" in message else {}
            for number, call in enumerate(message.get("tool_calls", ())):
                inner = f"{prefix}tool_calls.{number}.tool_call."
                function = call["function"]
                found |= {
                    inner + "id": call["id"],
                    inner + "function.name": function["name"],
                    inner + "function.arguments": function["arguments"],
                }
    return found


def openinference() -> list[dict[str, Any]]:
    spans = [otlp_span(trace, step, openinference_attributes(told, answer)) for step, (trace, told, answer) in enumerate(CALLS)]
    verdict = {"evaluation.name": "helpfulness", "evaluation.score": 0.5, "evaluation.label": "pass"}
    spans[1]["attributes"] += [attribute(name, value) for name, value in verdict.items()]
    return [otlp([span]) for span in spans]


def phoenix() -> dict[str, Any]:
    """A page of Phoenix's spans."""
    return {
        "data": [
            {
                "id": f"U3Bhbjo{step}",
                "name": "ChatCompletion",
                "context": {"trace_id": trace, "span_id": f"s{step}"},
                "span_kind": "LLM",
                "parent_id": None,
                "start_time": iso(step),
                "end_time": iso(step),
                "status_code": "OK",
                "status_message": "",
                "attributes": openinference_attributes(told, answer)
                | ({"evaluation.name": "helpfulness", "evaluation.score": 0.5, "evaluation.label": "pass"} if step == 0 else {}),
                "events": [],
            }
            for step, (trace, told, answer) in enumerate(CALLS)
        ],
        "next_cursor": None,
    }


# Others


def langfuse() -> list[dict[str, Any]]:
    """Observations, traces and a score, a line each, as the API names them."""
    observations = [
        {
            "id": f"o{step}",
            "traceId": trace,
            "type": "GENERATION",
            "name": "chat",
            "startTime": iso(step),
            "endTime": iso(step),
            "model": "m-1",
            "input": {"messages": told, "tools": [TOOL]},
            "output": answer,
            "usageDetails": {"input": 10, "output": 2},
            "costDetails": {"total": 0.25},
            "level": "DEFAULT",
        }
        for step, (trace, told, answer) in enumerate(CALLS)
    ]
    traces = [
        {
            "id": trace,
            "timestamp": iso(0),
            "name": "support",
            "sessionId": "s1",
            "projectId": "shop",
            "public": False,
            "metadata": {"task_id": 7},
        }
        for trace in ("t1", "t2")
    ]
    score = {"id": "x", "traceId": "t2", "name": "helpfulness", "dataType": "NUMERIC", "value": 0.5, "stringValue": None}
    word = {"id": "y", "traceId": "t2", "name": "grade", "dataType": "CATEGORICAL", "value": None, "stringValue": "pass"}
    return [*observations, score, word, *traces]


def langfuse_blob() -> list[dict[str, Any]]:
    """Enriched observations and scores, as the blob-storage export names them: texts, snake case."""
    rows = []
    for row in langfuse():
        if row.get("type") != "GENERATION":
            continue
        rows.append(
            {
                "id": row["id"],
                "trace_id": row["traceId"],
                "project_id": "shop",
                "session_id": "s1",
                "trace_name": "support",
                "type": "GENERATION",
                "start_time": row["startTime"].replace("T", " ")[:19] + ".000000",
                "end_time": row["endTime"].replace("T", " ")[:19] + ".000000",
                "provided_model_name": "m-1",
                "input": json.dumps(row["input"]),
                "output": json.dumps(row["output"]),
                "usage_details": {"input": 10, "output": 2},
                "cost_details": {"total": 0.25},
                "level": "DEFAULT",
                "status_message": None,
            }
        )
    scores = [
        {"id": "x", "trace_id": "t2", "name": "helpfulness", "data_type": "NUMERIC", "value": 0.5, "string_value": None},
        {"id": "y", "trace_id": "t2", "name": "grade", "data_type": "CATEGORICAL", "value": None, "string_value": "pass"},
    ]
    return [*scores, *rows]


def mlflow() -> list[dict[str, Any]]:
    """Traces of MLflow 3, a line each."""
    found = []
    for trace in ("t1", "t2"):
        steps = [(step, told, answer) for step, (each, told, answer) in enumerate(CALLS) if each == trace]
        spans = [
            {
                "span_id": f"s{step}",
                "trace_id": trace,
                "parent_span_id": None,
                "name": "Completions",
                "start_time_unix_nano": seconds(step) * 10**9,
                "end_time_unix_nano": (seconds(step) + 5) * 10**9,
                "status": {"code": "STATUS_CODE_OK", "message": ""},
                "attributes": {
                    "mlflow.spanType": '"CHAT_MODEL"',
                    "mlflow.spanInputs": json.dumps({"messages": told, "model": "m-1", "tools": [TOOL]}),
                    "mlflow.spanOutputs": json.dumps({"choices": [{"index": 0, "message": answer}], "model": "m-1"}),
                    "mlflow.chat.tokenUsage": json.dumps({"input_tokens": 10, "output_tokens": 2}),
                },
            }
            for step, told, answer in steps
        ]
        info: dict[str, Any] = {
            "trace_id": trace,
            "trace_location": {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "shop"}},
            "request_time": iso(0),
            "state": "OK",
            "trace_metadata": {"mlflow.trace.session": "s1"},
            "tags": {"mlflow.traceName": "support"},
        }
        if trace == "t2":
            info["assessments"] = [
                {"assessment_name": "helpfulness", "feedback": {"value": 0.5}},
                {"assessment_name": "grade", "feedback": {"value": "pass"}},
                {"assessment_name": "withdrawn", "feedback": {"value": "fail"}, "valid": False},
                {"assessment_name": "expected", "expectation": {"value": "Ulm"}},
            ]
        found.append({"info": info, "data": {"spans": spans}})
    return found


def litellm() -> list[dict[str, Any]]:
    """Logged calls, a line each."""
    return [
        {
            "id": f"r{step}",
            "trace_id": trace,
            "session_id": "s1",
            "call_type": "acompletion",
            "status": "success",
            "model": "m-1",
            "messages": told,
            "response": {"choices": [{"message": answer}], "usage": {"prompt_tokens": 10, "completion_tokens": 2}},
            "model_parameters": {"tools": [TOOL]},
            "prompt_tokens": 10,
            "completion_tokens": 2,
            "response_cost": 0.25,
            "startTime": float(seconds(step)),
            "endTime": float(seconds(step) + 5),
            "metadata": {"user_api_key_team_alias": "shop", "user_api_key_alias": "support"},
        }
        for step, (trace, told, answer) in enumerate(CALLS)
    ]


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
    agents = [openai_span(trace, 9, {"type": "agent", "name": "support", "tools": ["look_up"]}) for trace in ("t1", "t2")]
    traces = [
        {"object": "trace", "id": trace, "workflow_name": "shop", "group_id": "s1", "metadata": {"task_id": "7"}} for trace in ("t1", "t2")
    ]
    return [*found, openai_span("t1", 1, function), *agents, *traces]
