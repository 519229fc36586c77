"""Several answers to one request (`n`): the first is read, and the others are counted."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sources import open_source
from agent_pipeline.sources.formats.model_calls import first_choice, mark_other_choices

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
    "genai, counted, each with its reason": genai(2, "stop", "stop"),
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


@pytest.mark.parametrize("record", [genai(1), genai(None), genai(None, "stop", "stop")])
def test_messages_of_one_answer(record: dict[str, Any], tmp_path: Path) -> None:
    """Some instrumentations write the text and the calls of one answer as several messages."""
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(record) + "\n")
    source = open_source(path)
    (session,) = (session for key in source.partitions() for session in source.sessions(key))
    assert [message["content"] for message in session.messages] == ["hi", "A", "B"]


CALL = {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Ulm"}}
RESULT = {"type": "tool_call_response", "id": "c1", "response": "sunny"}
LOOP: list[dict[str, Any]] = [
    {"role": "assistant", "parts": [CALL], "finish_reason": "stop"},
    {"role": "tool", "parts": [RESULT], "finish_reason": "stop"},
    {"role": "assistant", "parts": [{"type": "text", "content": "A"}], "finish_reason": "stop"},
]


def test_reason_on_every_message() -> None:
    """Microsoft.Extensions.AI writes the reason of a response on each of its messages."""
    assert first_choice(LOOP) == LOOP
    assert first_choice(LOOP, 1) == LOOP


@given(st.integers(2, 4))
def test_a_result_is_no_choice(count: int) -> None:
    (unread,) = first_choice(LOOP, count)
    assert unread.kind == "unread"


@given(st.permutations(range(3)))
def test_choices_out_of_order(order: list[int]) -> None:
    """The choice with the index 0 is the answer, in any order of the choices."""
    choices = [{"role": "assistant", "content": str(index), "index": index} for index in order]
    assert first_choice(choices, 3) == [choices[order.index(0)], *mark_other_choices(2)]
    marked = [choice if choice["index"] == 0 else mark_other_choices(1)[0] for choice in choices]
    assert first_choice(marked, 3) == [choices[order.index(0)], *mark_other_choices(2)]


def test_choices_in_an_unknown_form(tmp_path: Path) -> None:
    """Three choices in two messages cannot be told apart."""
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(genai(3)) + "\n")
    source = open_source(path)
    (session,) = (session for key in source.partitions() for session in source.sessions(key))
    assert session.damage["unread"] == 1
