"""The Hub's trace format: what is written is read again as the same conversation."""

import json
from pathlib import Path

from agent_pipeline.sessions.session_trace import format_session_trace
from agent_pipeline.sources.agents.pi import PiSource

CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "find", "arguments": '{"what": "spade"}'},
}
MESSAGES = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": "Where is the spade? 🌱"},
    {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "In the shed."},
    {"role": "assistant", "content": "It is in the shed."},
]


def test_a_trace_has_the_fields_that_the_hub_describes() -> None:
    head, *lines = map(
        json.loads,
        format_session_trace("s1", MESSAGES, model="m", name="spade", error=None).splitlines(),
    )
    assert head == {"type": "session", "harness": "agent-pipeline", "id": "s1", "name": "spade"}
    assert {line["type"] for line in lines} == {"message"}
    call, result = lines[2]["message"], lines[3]["message"]
    function = {"name": "find", "arguments": '{"what": "spade"}'}
    assert call == {
        "role": "assistant",
        "content": "",
        "model": "m",
        "reasoningContent": "Look.",
    } | {"toolCalls": [{"id": "c1", "function": function}]}
    assert result == {"role": "tool", "content": "In the shed.", "toolCallId": "c1"}


def test_a_trace_is_read_again_as_the_same_conversation(tmp_path: Path) -> None:
    (tmp_path / "s1.jsonl").write_text(
        format_session_trace(
            "s1", MESSAGES, model="m", project="shop", agent="support", judgment="acceptable"
        )
    )
    source = PiSource(tmp_path / "s1.jsonl")
    (key,) = source.partitions()
    (session,) = source.sessions(key)
    without_thoughts = [
        {name: value for name, value in message.items() if name != "reasoning_content"}
        for message in MESSAGES
    ]
    assert (str(key), session.session_id, session.model_id, session.judgment) == (
        "shop/support",
        "s1",
        "m",
        "acceptable",
    )
    assert (
        session.messages == without_thoughts
        and session.reasoning == [{"message": 2, "text": "Look."}]
        and not session.damage
    )
