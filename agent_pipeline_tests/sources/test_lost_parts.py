"""Records that show that a part of them was lost, in a field beside the part."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.sessions.chat import read_chat, read_items
from agent_pipeline.sessions.items import Chat
from agent_pipeline.sessions.message_fields import CUT_FLAGS
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
