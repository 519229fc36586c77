"""Records that show that a part of them was lost, in a field beside the part."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent_pipeline.sessions.chat import read_chat, read_items
from agent_pipeline.sessions.items import Chat
from agent_pipeline.sessions.message_fields import ACTIVITY_FIELDS, CUT_FLAGS
from agent_pipeline.sessions.repair import repair_messages
from agent_pipeline.sources import open_source
from agent_pipeline.sources.formats.model_calls import request_of

QUESTION = {"role": "user", "content": "List the files."}
BEGUN = "The files are a.txt and"


def call_of(**fields: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "function": "bash", "arguments": {}, "type": "function"} | fields
    return [
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "The arguments are not JSON."},
        {"role": "assistant", "content": "Sorry."},
    ]


def damage_of(history: list[dict[str, Any]]) -> dict[str, int]:
    chat = read_chat(history)
    return dict(repair_messages(chat.messages).damage + chat.damage)


@pytest.mark.parametrize(
    "fields",
    [
        {"parse_error": "Error parsing the arguments: {cmd: ls"},
        {"type": "invalid_tool_call", "name": "bash", "args": None, "error": "not JSON"},
        {"type": "invalid_tool_call", "name": "bash", "args": "", "error": None},
        {"type": "invalid_tool_call", "name": "bash", "args": "{cmd: ls", "error": "not JSON"},
    ],
)
def test_unparsed_arguments(fields: dict[str, Any]) -> None:
    """Inspect writes `{}` for arguments that it could not parse: a call that nobody made."""
    assert damage_of(call_of(**fields)) == {"invalid_arguments": 1}


@pytest.mark.parametrize("fields", [{}, {"parse_error": None}])
def test_call_without_arguments(fields: dict[str, Any]) -> None:
    assert not damage_of(call_of(**fields))


def test_audio_that_only_an_id_names() -> None:
    """OpenAI's requests repeat a spoken answer by its id, so nobody can read what was said."""
    spoken = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert damage_of([QUESTION, spoken, QUESTION, {"role": "assistant", "content": "42"}]) == {
        "unread": 1
    }
    assert not damage_of([QUESTION, spoken | {"audio": {"id": "audio_1", "transcript": "42"}}])
    assert not damage_of([QUESTION, spoken | {"content": "42"}])


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [
        ("<think>\nThe user wants", True),
        ("\n<think>", True),
        ("<think>\nhm\n</think>\n\nDone.", False),
        ("hm\n</think>\n\nDone.", False),
        ("The tag <think> begins a thought.", False),
    ],
)
def test_thought_without_its_end(text: str, is_cut: bool) -> None:
    """A text that ends within a thought is no answer."""
    chat: Chat = read_chat([QUESTION, {"role": "assistant", "content": text}])
    assert chat.messages[1].get("weight", 1) == (not is_cut)
    assert chat.damage == ({"cut_message": 1} if is_cut else {})


@pytest.mark.parametrize("finish_reason", ["tool_calls", "length"])
def test_thought_without_its_end_beside_a_call(finish_reason: str) -> None:
    """A server that parses calls may remove the end of the thought before the call."""
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    thought = {"role": "assistant", "content": "<think>\nI look.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "a.txt"}
    chat = read_chat([QUESTION, thought | {"finish_reason": finish_reason}, result])
    is_cut = finish_reason == "length"
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool"]
    assert len(chat.messages[1]["tool_calls"]) == 1
    assert chat.messages[1].get("weight", 1) == (not is_cut)
    assert chat.damage == ({"cut_message": 1} if is_cut else {})


@pytest.mark.parametrize("flag", CUT_FLAGS)
@pytest.mark.parametrize(
    "row",
    [
        {"messages": [QUESTION, {"role": "assistant", "content": BEGUN}]},
        {"messages": [QUESTION], "response": BEGUN},
        {"messages": [QUESTION], "choices": [{"message": {"content": BEGUN, "role": "assistant"}}]},
        {"prompt": [QUESTION], "completion": [{"role": "assistant", "content": BEGUN}]},
    ],
)
def test_flag_of_a_record(row: dict[str, Any], flag: str, tmp_path: Path) -> None:
    """A record says that its last answer was cut off, as a message would say it of itself."""
    for value in (True, False):
        path = tmp_path / f"{value}.jsonl"
        path.write_text(json.dumps(row | {flag: value}) + "\n")
        source = open_source(path)
        (session,) = (session for key in source.partitions() for session in source.sessions(key))
        assert session.damage == ({"cut_message": 1} if value else {})
        assert session.messages[-1].get("weight", 1) == (not value)


def test_prompt_template() -> None:
    """OpenAI stores the template of a prompt; a response lists its messages as instructions."""
    template = {"id": "pmpt_1", "variables": {"city": "Ulm"}}
    request: dict[str, Any] = {"input": [QUESTION], "prompt": template}
    (unread, _) = read_items(request_of(request).messages)
    assert unread.kind == "unread"
    message = {"type": "message", "role": "developer", "content": "You know Ulm."}
    system, _ = read_items(request_of(request | {"instructions": [message]}).messages)
    assert (system.role, system.text) == ("system", "You know Ulm.")


SYSTEM = {"role": "system", "content": "You know Ulm."}


@pytest.mark.parametrize(
    ("request_", "roles"),
    [
        ({"messages": [SYSTEM, QUESTION], "prompt": {"name": "p", "version": 3}}, "system user"),
        ({"messages": [SYSTEM, QUESTION], "prompt": {"id": "p", "version": 3}}, "system user"),
        ({"input": [SYSTEM, QUESTION], "prompt": {"id": "p", "version": 3}}, "system user"),
        ({"prompt": QUESTION}, "user"),
        ({"prompt": QUESTION | {"id": "m1"}}, "user"),
    ],
)
def test_prompt_that_is_no_template(request_: dict[str, Any], roles: str) -> None:
    """A platform names a prompt beside the messages, or writes one message as the prompt."""
    assert [item.role for item in read_items(request_of(request_).messages)] == roles.split()


@given(
    st.lists(st.sampled_from(["a", "ab", "ba", "abc"]), min_size=1, max_size=6),
    st.booleans(),
)
def test_tools_of_an_inspect_sample(names: list[str], has_ids: bool) -> None:
    """The tools of the first call were shown beside all answers of a sample."""
    messages: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = [
        {"event": "model", "tools": [{"name": "grade", "parameters": {}}], "output": {}}
    ] * has_ids
    for step, tools in enumerate(names):
        answer = {"role": "assistant", "content": f"answer {step}"}
        answer |= {"id": f"m{step}"} if has_ids else {}
        messages += [QUESTION, answer]
        schemas = [{"name": name, "description": name, "parameters": {}} for name in tools]
        output = {"choices": [{"message": answer, "stop_reason": "stop"}]}
        events.append({"event": "model", "tools": schemas, "output": output})
    run = {"run_id": "r", "task": "t", "model": "m", "created": "2026-03-01T10:00:00"}
    sample = {"id": "1", "epoch": 1, "messages": messages, "events": events, "scores": {}}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.json"
        path.write_text(
            json.dumps({"version": 2, "status": "success", "eval": run, "samples": [sample]})
        )
        source = open_source(path)
        (session,) = (session for key in source.partitions() for session in source.sessions(key))
    shown = sorted(tool["function"]["name"] for tool in session.tools)
    answers = [message for message in session.messages if message["role"] == "assistant"]
    if has_ids:
        weights = [message.get("weight", 1) for message in answers]
        assert weights == [int(sorted(tools) == shown) for tools in names]
        assert session.skipped.get("changed_tools", 0) == weights.count(0) < len(names)
    else:
        assert shown == sorted(names[0])


CONTENT = {"city": "Ulm"}


@given(st.text(st.sampled_from("abcdefgh_"), min_size=3, max_size=12), st.booleans())
def test_unknown_field_of_a_call(name: str, as_function: bool) -> None:
    """Arguments in a field that nobody knows are not an empty object, but damage."""
    assume(name not in {"id", "args"} | ACTIVITY_FIELDS)
    call: dict[str, Any] = {"type": "tool_call", "id": "c1", "name": "find", name: CONTENT}
    if as_function:
        call = {"id": "c1", "type": "function", "function": {"name": "find", name: CONTENT}}
        message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    else:
        message = {"role": "assistant", "parts": [call]}
    assert read_chat([QUESTION, message]).damage["unread"] == 1


@given(
    st.text(st.sampled_from("abcdefgh_"), min_size=3, max_size=12),
    st.sampled_from([CONTENT, "in Ulm", [CONTENT]]),
)
def test_unknown_field_of_a_result(name: str, content: Any) -> None:
    """An output in a field that nobody knows is not an empty text, but damage."""
    part = {"type": "tool_call_response", "id": "c1", name: content}
    assert read_chat([QUESTION, {"role": "tool", "parts": [part]}]).damage["unread"] == 1


@pytest.mark.parametrize(
    "call",
    [
        {"function": {"name": "list", "arguments": "", "description": "Lists files"}},
        {"function": {"name": "list", "description": "Lists files"}, "createdAt": "2026-01-01"},
        {"name": "list", "args": None, "note": "x"},
    ],
)
def test_call_with_known_content(call: dict[str, Any]) -> None:
    """Empty arguments are known, and so are descriptions and times."""
    message = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1"} | call]}
    assert not read_chat([QUESTION, message]).damage


@pytest.mark.parametrize(
    "fields",
    [{"createdAt": "2026-01-01"}, {"content": None, "note": "x"}, {"output": "", "n": "x"}],
)
def test_result_with_known_content(fields: dict[str, Any]) -> None:
    part = {"type": "tool-result", "toolCallId": "c1", "toolName": "rm"} | fields
    chat = read_chat([QUESTION, {"role": "tool", "content": [part]}])
    assert not chat.damage and chat.messages[-1]["content"] == ""


def test_result_with_an_unknown_field_beside_its_error() -> None:
    part = {"type": "tool-result", "toolCallId": "c1", "error": None, "answer": "x"}
    assert read_chat([QUESTION, {"role": "tool", "content": [part]}]).damage["unread"] == 1


def test_hosted_tool_of_opentelemetry() -> None:
    """The GenAI conventions put the content of a hosted tool into an object of its own."""
    parts = [
        {
            "type": "server_tool_call",
            "id": "s1",
            "name": "search",
            "server_tool_call": {"type": "web_search", "query": "Ulm"},
        },
        {
            "type": "server_tool_call_response",
            "id": "s1",
            "server_tool_call_response": {"type": "web_search", "hits": 1},
        },
        {"type": "text", "content": "One hit."},
    ]
    chat = read_chat([QUESTION, {"role": "assistant", "parts": parts}])
    _, called, result, answer = chat.messages
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"query": "Ulm"}
    assert json.loads(result["content"])["hits"] == 1 and answer["content"] == "One hit."


@given(st.sets(st.integers(0, 3)), st.booleans())
def test_attributes_that_a_limit_dropped(dropped: set[int], is_known: bool) -> None:
    """A message that lost its attributes is damage, unless an earlier call has the message.

    A message at the end leaves no gap; only the span's own count of lost attributes tells of it.
    """
    told = ["q0", "a0", "q1", "a1", "q2"]
    spans = []
    for count in (1, 3, 5) if is_known else (5,):
        attributes = {"openinference.span.kind": "LLM", "llm.model_name": "m"}
        for index, text in enumerate([*told[:count], f"a{count // 2}"]):
            side = "input" if index < count else "output"
            index = index if index < count else 0
            prefix = f"llm.{side}_messages.{index}.message."
            if side == "output" or count < 5 or index not in dropped:
                attributes[prefix + "role"] = "user" if text.startswith("q") else "assistant"
                attributes[prefix + "content"] = text
        typed = [
            {"key": name, "value": {"stringValue": value}} for name, value in attributes.items()
        ]
        ids = {"traceId": "t1", "spanId": f"s{count}", "startTimeUnixNano": str(count)}
        spans.append({**ids, "name": "chat", "attributes": typed})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "spans.json"
        path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
        source = open_source(path)
        sessions = [session for key in source.partitions() for session in source.sessions(key)]
    whole = [session for session in sessions if not session.damage]
    for session in whole:
        texts = [message["content"] for message in session.messages]
        assert texts == [*told, "a2"][: len(texts)]
    assert dropped or len(whole) == len(sessions) == 1
