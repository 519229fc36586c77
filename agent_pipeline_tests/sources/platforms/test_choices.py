"""Several answers to one request (`n`): the first is read, and the others are counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.sources import open_source

ASKED = {"role": "user", "content": "hi"}
TEXTS = ("A", "B")
TIMES = {"startTimeUnixNano": "1767225600000000000", "endTimeUnixNano": "1767225601000000000"}


def otlp(attributes: dict[str, Any]) -> dict[str, Any]:
    """A trace of one span. Lists and objects are JSON, as the SDKs write them."""
    typed = [
        {
            "key": name,
            "value": {"intValue": str(value)}
            if isinstance(value, int)
            else {"stringValue": value if isinstance(value, str) else json.dumps(value)},
        }
        for name, value in attributes.items()
    ]
    span = {"traceId": "t1", "spanId": "s1", "name": "chat", **TIMES, "attributes": typed}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def genai(count: int | None, *reasons: str | None) -> dict[str, Any]:
    answers: list[dict[str, Any]] = [
        {"role": "assistant", "parts": [{"type": "text", "content": text}]} for text in TEXTS
    ]
    for answer, reason in zip(answers, reasons, strict=False):
        answer["finish_reason"] = reason
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}],
        "gen_ai.output.messages": answers,
    }
    return otlp(attributes | ({"gen_ai.request.choice.count": count} if count else {}))


def openinference(count: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "openinference.span.kind": "LLM",
        "llm.invocation_parameters": {"n": count},
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "hi",
    }
    for index, text in enumerate(TEXTS):
        attributes[f"llm.output_messages.{index}.message.role"] = "assistant"
        attributes[f"llm.output_messages.{index}.message.content"] = text
    return otlp(attributes)


def langsmith() -> dict[str, Any]:
    generations = [{"text": text, "message": {"type": "ai", "content": text}} for text in TEXTS]
    return {
        "id": "r1",
        "trace_id": "r1",
        "dotted_order": "r1",
        "run_type": "llm",
        "name": "chat",
        "session_name": "shop",
        "start_time": "2026-03-01T10:00:00",
        "inputs": {"messages": [[{"type": "human", "content": "hi"}]]},
        "outputs": {"generations": [generations]},
    }


RECORDS: dict[str, dict[str, Any]] = {
    "genai, counted": genai(2),
    "genai, each with its reason": genai(None, "stop", "stop"),
    "openinference": openinference(2),
    "langsmith": langsmith(),
}


@pytest.mark.parametrize("name", RECORDS)
def test_choices_of_a_span(name: str, tmp_path: Path) -> None:
    """All choices became turns of the agent, one after the other."""
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(RECORDS[name]) + "\n")
    source = open_source(path)
    (session,) = (session for key in source.partitions() for session in source.sessions(key))
    assert [message["content"] for message in session.messages] == ["hi", "A"]
    assert session.skipped == {"other_choice": 1} and not session.damage


def test_messages_of_one_answer(tmp_path: Path) -> None:
    """Some instrumentations write the text and the calls of one answer as several messages."""
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(genai(1)) + "\n")
    source = open_source(path)
    (session,) = (session for key in source.partitions() for session in source.sessions(key))
    assert [message["content"] for message in session.messages] == ["hi", "A", "B"]


def test_choices_in_an_unknown_form(tmp_path: Path) -> None:
    """Three choices in two messages cannot be told apart."""
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(genai(3)) + "\n")
    source = open_source(path)
    (session,) = (session for key in source.partitions() for session in source.sessions(key))
    assert session.damage["unread"] == 1
