"""A turn that a token limit or a filter cut has weight 0 and is counted, in the file of every platform and benchmark."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sources import open_source
from agent_pipeline_tests.sources.logged_calls import (
    batch_files,
    completion,
    logged_call,
    nemo_rollout,
    response_object,
    trl_row,
)
from agent_pipeline_tests.sources.platforms import exports
from agent_pipeline_tests.sources.samples import (
    document,
    inspect_header,
    inspect_sample,
    lines,
    put,
)

OPTIONS = ReadingOptions(redaction=RedactionOptions(enabled=False))
ASKED = [{"role": "user", "content": "List the planets."}]
CUT = "Mercury, Venus, Ea"
SAID = {"role": "assistant", "content": CUT}


def otlp(**attributes: Any) -> bytes:
    """A span; the names of attributes have __ for the dot."""
    listed = [
        {"key": name.replace("__", "."), "value": value} for name, value in attributes.items()
    ]
    listed = [
        each | ({"value": {"stringValue": each["value"]}} if isinstance(each["value"], str) else {})
        for each in listed
    ]
    span = {
        "traceId": "a1",
        "spanId": "b1",
        "name": "chat",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": listed,
    }
    return lines({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})


def genai(**more: Any) -> bytes:
    asked = json.dumps(
        [{"role": "user", "parts": [{"type": "text", "content": ASKED[0]["content"]}]}]
    )
    answer = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": CUT}]}])
    return otlp(
        gen_ai__operation__name="chat",
        gen_ai__input__messages=asked,
        gen_ai__output__messages=answer,
        **more,
    )


def reasons(*values: str) -> dict[str, Any]:
    return {"arrayValue": {"values": [{"stringValue": value} for value in values]}}


def langfuse(output: Any) -> bytes:
    own = {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "projectId": "p",
        "startTime": "2026-06-01T10:00:01Z",
    }
    return lines(own | {"input": ASKED, "output": output})


def langsmith(outputs: dict[str, Any]) -> bytes:
    run = {
        "id": "r1",
        "trace_id": "r1",
        "dotted_order": "1",
        "run_type": "llm",
        "name": "m",
        "session_name": "p",
    }
    return lines(
        run
        | {"inputs": {"messages": ASKED}, "outputs": outputs, "start_time": "2026-06-01T10:00:00"}
    )


def chunk(**metadata: Any) -> dict[str, Any]:
    kwargs = {"content": CUT, "type": "AIMessageChunk", "response_metadata": metadata}
    return {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "AIMessageChunk"],
        "kwargs": kwargs,
    }


def mlflow() -> bytes:
    attributes = {
        "mlflow.spanType": '"CHAT_MODEL"',
        "mlflow.spanInputs": json.dumps({"messages": ASKED}),
    }
    attributes["mlflow.spanOutputs"] = json.dumps(completion("length", choices=[choice()]))
    span = {
        "trace_id": "t",
        "span_id": "s",
        "parent_span_id": None,
        "name": "c",
        "start_time_unix_nano": 1,
        "end_time_unix_nano": 2,
    }
    return lines(
        {"info": {"trace_id": "tr-1"}, "data": {"spans": [span | {"attributes": attributes}]}}
    )


def choice(reason: str = "length") -> dict[str, Any]:
    return {"index": 0, "finish_reason": reason, "message": SAID}


def litellm() -> bytes:
    row = exports.litellm()[0]
    return lines(row | {"messages": ASKED, "response": {"choices": [choice()]}})


def inspect(**sample: Any) -> bytes:
    said = inspect_sample(1, "C") | {"messages": [*ASKED, SAID | {"id": "m1"}]} | sample
    return document(inspect_header(samples=[said]))


def mini_swe_agent() -> bytes:
    answer = SAID | {"extra": {"response": {"choices": [choice()]}}}
    info = {"exit_status": "Submitted"}
    return document(
        {"trajectory_format": "mini-swe-agent-1.1", "messages": [*ASKED, answer], "info": info}
    )


def tau2() -> bytes:
    answer = SAID | {"raw_data": {"finish_reason": "length", "message": SAID}}
    run = {
        "id": "r",
        "task_id": "1",
        "trial": 0,
        "termination_reason": "user_stop",
        "messages": [*ASKED, answer],
    }
    return document(
        {"info": {"environment_info": {"domain_name": "d"}}, "tasks": [], "simulations": [run]}
    )


FILES: dict[str, dict[str, bytes]] = {
    "opentelemetry": {"a.jsonl": genai(gen_ai__response__finish_reasons=reasons("length"))},
    "opentelemetry_json": {"a.jsonl": genai(gen_ai__response__finish_reasons='["max_tokens"]')},
    "openinference": {
        "a.jsonl": otlp(
            openinference__span__kind="LLM",
            llm__input_messages__0__message__role="user",
            llm__input_messages__0__message__content="List the planets.",
            llm__output_messages__0__message__role="assistant",
            llm__output_messages__0__message__content=CUT,
            llm__finish_reason="length",
        )
    },
    "openinference_response": {
        "a.jsonl": otlp(
            openinference__span__kind="LLM",
            input__value=json.dumps({"messages": ASKED}),
            output__value=json.dumps({"choices": [choice()]}),
        )
    },
    "ai_sdk": {
        "a.jsonl": otlp(
            ai__operationId="ai.generateText.doGenerate",
            ai__prompt__messages=json.dumps(ASKED),
            ai__response__text=CUT,
            ai__response__finishReason="length",
        )
    },
    "langfuse": {"a.jsonl": langfuse({"finish_reason": "max_tokens", "message": CUT})},
    "langfuse_choices": {"a.jsonl": langfuse({"choices": [choice()]})},
    "langfuse_message": {
        "a.jsonl": langfuse(SAID | {"response_metadata": {"finish_reason": "length"}})
    },
    "langsmith": {"a.jsonl": langsmith({"choices": [choice()]})},
    "langsmith_langchain": {
        "a.jsonl": langsmith(
            {"generations": [[{"text": CUT, "message": chunk(stop_reason="max_tokens")}]]}
        )
    },
    "langsmith_generation_info": {
        "a.jsonl": langsmith(
            {
                "generations": [
                    [
                        {
                            "text": CUT,
                            "generation_info": {"finish_reason": "length"},
                            "message": chunk(),
                        }
                    ]
                ]
            }
        )
    },
    "mlflow": {"a.jsonl": mlflow()},
    "litellm": {"a.jsonl": litellm()},
    "api_logs": {
        "a.jsonl": lines(
            logged_call(
                request={"messages": ASKED}, response={"choices": [choice("content_filter")]}
            )
        )
    },
    "api_logs_responses": {
        "a.jsonl": lines(
            response_object(status="incomplete", incomplete_details={"reason": "max_output_tokens"})
        )
    },
    "api_logs_batch": batch_files(
        response={"status_code": 200, "body": completion(choices=[choice()])}
    ),
    "openai_chat": {"a.jsonl": lines({"messages": ASKED, "choices": [choice()]})},
    "openai_chat_row": {"a.jsonl": lines({"messages": [*ASKED, SAID], "finish_reason": "length"})},
    "openai_chat_same": {
        "a.jsonl": lines({"messages": [*ASKED, SAID], "response": {"choices": [choice()]}})
    },
    "prompt_completion": {"a.jsonl": lines(trl_row(completion=[SAID], is_truncated=True))},
    "nemo_gym": {"a.jsonl": lines(nemo_rollout(truncated=True))},
    "inspect_output": {
        "a.json": inspect(output={"choices": [{"message": SAID, "stop_reason": "max_tokens"}]})
    },
    "inspect_events": {
        "a.json": inspect(
            events=[
                {
                    "event": "model",
                    "output": {
                        "choices": [{"message": SAID | {"id": "m1"}, "stop_reason": "model_length"}]
                    },
                }
            ]
        )
    },
    "mini_swe_agent": {"a.traj.json": mini_swe_agent()},
}


@pytest.mark.parametrize("name", FILES)
def test_cut_turn(name: str, tmp_path: Path) -> None:
    """inspect_ai#5143, vllm#58228: "kept in memory and" was trained with the end of a turn behind it."""
    source = open_source(put(tmp_path, FILES[name]))
    (session,) = (
        session for key in source.partitions() for session in read_sessions(source, key, OPTIONS)
    )
    assert session.messages[-1]["role"] == "assistant"
    assert session.messages[-1]["weight"] == 0
    assert session.damage == {"cut_message": 1}
    assert session.broken is None


def test_cut_turn_of_tau2(tmp_path: Path) -> None:
    source = open_source(put(tmp_path, {"a.json": tau2()}))
    (session,) = (
        session for key in source.partitions() for session in read_sessions(source, key, OPTIONS)
    )
    assert (session.source, session.messages[-1]["weight"], session.damage["cut_message"]) == (
        "tau2_bench",
        0,
        1,
    )


def test_turn_that_ended_by_itself(tmp_path: Path) -> None:
    for reason in ("stop", "end_turn", "tool_calls", "STOP", "stop_sequence"):
        files = {"a.jsonl": genai(gen_ai__response__finish_reasons=reasons(reason))}
        source = open_source(put(tmp_path / reason, files))
        (session,) = (
            session
            for key in source.partitions()
            for session in read_sessions(source, key, OPTIONS)
        )
        assert not session.damage and "weight" not in session.messages[-1]
