"""Answers that are JSON: what the agent said, and no record of it."""

import json
from pathlib import Path

import pytest

from agent_pipeline.sources import open_source, parse_location
from agent_pipeline.sources.formats.model_calls import request_of, response_of, words_or_messages

ANSWERS = [
    '{"answer": "yes", "confidence": 0.9}',
    '{"output": "In Ulm.", "sources": []}',
    '["Ulm", "Bern"]',
    '{"content": "Hello", "tone": "kind"}',
    '{"result": {"city": "Ulm"}}',
    '[{"city": "Ulm"}]',
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_in_json(answer: str) -> None:
    """A text that is JSON and no message stays what was said, word by word."""
    assert response_of(answer).messages == [{"role": "assistant", "content": answer}]
    assert request_of(answer).messages == [{"role": "user", "content": answer}]
    assert [message["content"] for message in response_of({"output": answer}).messages] == [answer]


@pytest.mark.parametrize(
    "record",
    [
        [{"role": "assistant", "content": "hi"}],
        {"choices": [{"message": {"role": "assistant", "content": "hi"}}]},
        {"role": "model", "parts": [{"text": "hi"}]},
        [{"type": "text", "text": "hi"}],
        {"type": "ai", "content": "hi"},
    ],
)
def test_messages_in_json(record: object) -> None:
    """A text that is the JSON of messages is read as these messages."""
    assert words_or_messages(json.dumps(record)) == record


@pytest.mark.parametrize("answer", ANSWERS)
def test_langfuse(tmp_path: Path, answer: str) -> None:
    """The API of Langfuse gives an answer that is a text as a text."""
    asked = [{"role": "user", "content": "Is it open?"}]
    common = {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "name": "chat",
        "startTime": "2026-06-01T10:00:00Z",
    }
    record = common | {
        "endTime": "2026-06-01T10:00:01Z",
        "projectId": "p",
        "traceName": "desk",
        "input": asked,
        "output": answer,
    }
    path = tmp_path / "observations.jsonl"
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    source = open_source(parse_location(f"langfuse:{path}"))
    (session,) = (session for key in source.partitions() for session in source.sessions(key))
    assert session.messages[-1] == {"role": "assistant", "content": answer}
