"""The parts and items of every dialect: understood, known to be harmless, or damage."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.damage import find_breaking_kind
from agent_pipeline.sessions.evidence import is_cut
from agent_pipeline.sessions.items import Chat
from agent_pipeline.sessions.repair import repair_messages
from agent_pipeline.sessions.session import Message
from agent_pipeline_tests.sessions.test_items import SPELLINGS
from agent_pipeline_tests.stores import call, result, says, user

QUESTION = user("Where is order 7?")
ANSWER = says("In Ulm.")


def assistant(*parts: Any, field: str = "content", **more: Any) -> Message:
    return {"role": "assistant", field: list(parts), **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def steps(chat: Chat) -> list[Any]:
    """Who said what, what was called, and what came back, in order."""
    told: list[Any] = []
    for message in chat.messages:
        if message["content"]:
            told.append((message["role"], message["content"]))
        for made in message.get("tool_calls", ()):
            told.append(
                ("call", made["function"]["name"], json.loads(made["function"]["arguments"]))
            )
    return told


def is_kept(chat: Chat) -> bool:
    damage = chat.damage + repair_messages(chat.messages).damage
    return find_breaking_kind(damage) is None


CALL = {"city": "Ulm"}
READ = [
    ("user", "Where is order 7?"),
    ("call", "read", CALL),
    ("tool", "here"),
    ("assistant", "In Ulm."),
]

HOSTED: dict[str, list[Any]] = {
    "anthropic mcp": [
        assistant(
            {"type": "mcp_tool_use", "id": "m1", "name": "read", "server_name": "s", "input": CALL},
            {
                "type": "mcp_tool_result",
                "tool_use_id": "m1",
                "is_error": False,
                "content": [text("here")],
            },
            text("In Ulm."),
        )
    ],
    "anthropic server tool": [
        assistant(
            {"type": "server_tool_use", "id": "s1", "name": "read", "input": CALL},
            {"type": "bash_code_execution_tool_result", "tool_use_id": "s1", "content": "here"},
            text("In Ulm."),
        )
    ],
    "responses mcp": [
        {
            "type": "mcp_call",
            "id": "m1",
            "name": "read",
            "server_label": "s",
            "arguments": json.dumps(CALL),
            "output": "here",
        },
        ANSWER,
    ],
    "ai sdk tool": [
        assistant(
            {"type": "step-start"},
            {
                "type": "tool-read",
                "toolCallId": "c1",
                "state": "output-available",
                "input": CALL,
                "output": "here",
            },
            {"type": "step-start"},
            text("In Ulm."),
            field="parts",
        )
    ],
    "ai sdk dynamic tool": [
        assistant(
            {
                "type": "dynamic-tool",
                "toolName": "read",
                "toolCallId": "c1",
                "state": "output-available",
                "input": CALL,
                "output": "here",
            },
            text("In Ulm."),
            field="parts",
        )
    ],
    "ai sdk 4": [
        {"role": "assistant", "content": "In Ulm."}
        | {
            "toolInvocations": [
                {
                    "state": "result",
                    "toolCallId": "c1",
                    "toolName": "read",
                    "args": CALL,
                    "result": "here",
                }
            ]
        }
    ],
    "ai sdk 4 parts": [
        {"role": "assistant", "content": "In Ulm."}
        | {
            "toolInvocations": [
                {
                    "state": "result",
                    "toolCallId": "c1",
                    "toolName": "read",
                    "args": CALL,
                    "result": "here",
                }
            ]
        }
        | {
            "parts": [
                {
                    "type": "tool-invocation",
                    "toolInvocation": {
                        "state": "result",
                        "toolCallId": "c1",
                        "toolName": "read",
                        "args": CALL,
                        "result": "here",
                    },
                },
                text("In Ulm."),
            ]
        }
    ],
    "opencode": [
        assistant(
            {
                "type": "tool",
                "callID": "c1",
                "tool": "read",
                "state": {"status": "completed", "input": CALL, "output": "here"},
            },
            text("In Ulm."),
            field="parts",
        )
    ],
    "goose": [
        assistant(
            {
                "type": "toolRequest",
                "id": "t1",
                "toolCall": {"status": "success", "value": {"name": "read", "arguments": CALL}},
            }
        ),
        {
            "role": "user",
            "content": [
                {
                    "type": "toolResponse",
                    "id": "t1",
                    "toolResult": {"status": "success", "value": [text("here")]},
                }
            ],
        },
        ANSWER,
    ],
    "pi": [
        assistant({"type": "toolCall", "id": "t1", "name": "read", "arguments": CALL}),
        {
            "role": "toolResult",
            "toolCallId": "t1",
            "toolName": "read",
            "content": [text("here")],
            "isError": False,
        },
        ANSWER,
    ],
    "openai custom tool": [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "function": {"name": "read", "arguments": json.dumps(CALL)}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "here"},
        ANSWER,
    ],
    "inspect hosted tool": [
        assistant(
            {
                "type": "tool_use",
                "id": "s1",
                "name": "read",
                "arguments": json.dumps(CALL),
                "result": "here",
            },
            text("In Ulm."),
        )
    ],
    "langchain stream": [
        {
            "type": "ai",
            "content": [
                {
                    "type": "tool_use",
                    "id": "c1",
                    "name": "read",
                    "input": {},
                    "partial_json": json.dumps(CALL),
                }
            ],
        }
        | {"tool_calls": [{"name": "read", "args": CALL, "id": "c1", "type": "tool_call"}]},
        {"type": "tool", "tool_call_id": "c1", "content": "here"},
        ANSWER,
    ],
    "langchain stream without tool_calls": [
        {"type": "AIMessageChunk"}
        | {
            "content": [
                {
                    "type": "tool_use",
                    "id": "c1",
                    "name": "read",
                    "input": {},
                    "partial_json": json.dumps(CALL),
                }
            ]
        },
        {"type": "tool", "tool_call_id": "c1", "content": "here"},
        ANSWER,
    ],
    "ag2": [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "function": {"name": "read", "arguments": json.dumps(CALL)}}
            ],
        },
        {
            "role": "tool",
            "content": "here",
            "tool_responses": [{"tool_call_id": "c1", "role": "tool", "content": "here"}],
        },
        ANSWER,
    ],
    "haystack": [
        assistant({"tool_call": {"tool_name": "read", "arguments": CALL, "id": "c1"}}),
        {
            "role": "tool",
            "content": [
                {
                    "tool_call_result": {
                        "result": "here",
                        "origin": {"tool_name": "read", "id": "c1"},
                        "error": False,
                    }
                }
            ],
        },
        ANSWER,
    ],
    "llama stack": [
        {"role": "assistant", "content": "", "stop_reason": "end_of_turn"}
        | {"tool_calls": [{"call_id": "c1", "tool_name": "read", "arguments": CALL}]},
        {"role": "tool", "call_id": "c1", "content": "here"},
        ANSWER | {"role": "assistant", "stop_reason": "end_of_turn"},
    ],
    "a stream's pieces beside the call": [
        assistant(
            {"type": "input_json_delta", "partial_json": "{"},
            tool_calls=[{"name": "read", "args": CALL, "id": "c1"}],
        ),
        {"type": "tool", "tool_call_id": "c1", "content": "here"},
        ANSWER,
    ],
    "the call in two fields": [
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "read", "arguments": json.dumps(CALL)},
        }
        | {
            "tool_calls": [
                {"id": "c1", "function": {"name": "read", "arguments": json.dumps(CALL)}}
            ]
        },
        {"role": "tool", "tool_call_id": "c1", "content": "here"},
        ANSWER,
    ],
    "openai threads": [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "function": {"name": "read", "arguments": json.dumps(CALL)}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "here"},
        assistant({"type": "text", "text": {"value": "In Ulm.", "annotations": []}}),
    ],
    "bedrock": [
        assistant({"toolUse": {"toolUseId": "c1", "name": "read", "input": CALL}}),
        {
            "role": "user",
            "content": [
                {
                    "toolResult": {
                        "toolUseId": "c1",
                        "content": [{"text": "here"}],
                        "status": "success",
                    }
                }
            ],
        },
        assistant(
            {"citationsContent": {"content": [{"text": "In Ulm."}], "citations": []}},
            {"cachePoint": {"type": "default"}},
        ),
    ],
    "hermes words": [
        {
            "role": "assistant",
            "content": f'<tool_call>\n{{"name": "read", "arguments": {json.dumps(CALL)}}}\n</tool_call>',
        },
        {"role": "tool", "content": "<tool_response>\nhere\n</tool_response>"},
        ANSWER,
    ],
    "hermes words, the result told by the user": [
        {
            "role": "assistant",
            "content": f'<tool_call>{{"name": "read", "arguments": {json.dumps(CALL)}}}</tool_call>',
        },
        user("<tool_response>here</tool_response>"),
        ANSWER,
    ],
}


@pytest.mark.parametrize("name", HOSTED)
def test_hosted_calls(name: str) -> None:
    """A call that a service, a user interface or a framework made stands with its result between the texts around it."""
    chat = read_chat([QUESTION, *HOSTED[name]])
    assert (steps(chat), +chat.damage) == (READ, {})
    assert is_kept(chat)


def test_code_of_gemini() -> None:
    parts = [
        {"executableCode": {"language": "PYTHON", "code": "print(2)"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
        {"text": "It is 2."},
    ]
    chat = read_chat([user("1 + 1?"), {"role": "model", "parts": parts}])
    made = ("call", "code_execution", {"language": "PYTHON", "code": "print(2)"})
    assert (steps(chat), +chat.damage) == (
        [("user", "1 + 1?"), made, ("tool", "2"), ("assistant", "It is 2.")],
        {},
    )


def test_parallel_tools_of_one_step() -> None:
    """Two tools of one step were called at once; a tool of the next step was called with their results in view."""

    def tool(name: str) -> dict[str, Any]:
        return {
            "type": f"tool-{name}",
            "toolCallId": name,
            "state": "output-available",
            "input": {},
            "output": name,
        }

    parts = [
        {"type": "step-start"},
        tool("a"),
        tool("b"),
        {"type": "step-start"},
        tool("c"),
        text("Done."),
    ]
    messages = read_chat([QUESTION, assistant(*parts, field="parts")]).messages
    assert [len(message.get("tool_calls", ())) for message in messages] == [0, 2, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    "item",
    [
        {
            "type": "web_search_call",
            "id": "w",
            "status": "completed",
            "action": {"type": "search", "query": "q"},
        },
        {
            "type": "mcp_call",
            "id": "m",
            "name": "read",
            "arguments": "{}",
            "output": None,
            "error": None,
        },
        {"type": "code_interpreter_call", "id": "k", "code": "1", "outputs": None},
        {"type": "file_search_call", "id": "f", "queries": ["q"], "results": None},
        {"type": "image_generation_call", "id": "i", "result": "x"},
        {"type": "item_reference", "id": "x"},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "something_new", "call_id": "1", "output": "x"},
        assistant(
            {"type": "tool-read", "toolCallId": "c", "state": "input-streaming", "input": {}},
            field="parts",
        ),
        assistant({"type": "input_json_delta", "partial_json": "{"}),
        assistant(
            {
                "type": "tool",
                "callID": "c",
                "tool": "read",
                "state": {"status": "running", "input": {}},
            },
            field="parts",
        ),
        {"role": "assistant", "content": "", "functionCalls": [{"name": "read"}]},
        {"role": "assistant", "response": "In Ulm."},
        {
            "role": "assistant",
            "content": "It won.",
            "annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}],
        },
        {
            "role": "model",
            "parts": [{"text": "It won."}],
            "groundingMetadata": {"webSearchQueries": ["q"]},
        },
        {"role": "assistant", "content": [{"type": "snapshot", "text": "words"}]},
        {
            "role": "assistant",
            "content": "",
            "items": [{"content_type": "function_call", "arguments": "{}"}],
        },
        {
            "role": "assistant",
            "content": '<tool_call>\n{"name": "read", "arguments": {"a": \n</tool_call>',
        },
        {"role": "assistant", "content": "<function=read><parameter=a>1</parameter></function>"},
        {"role": "assistant", "content": '{"name": "read", "parameters": {"a": 1}}'},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "x"}, text("more")],
        },
    ],
)
def test_what_is_not_understood(item: Any) -> None:
    """What shows a call, a result or words, and is not understood, drops the session whose answer may rest on it."""
    chat = read_chat([QUESTION, item, ANSWER])
    assert chat.damage["unread"] == 1 and not is_kept(chat)
    assert any(name.startswith("unread:") for name in chat.skipped)


def test_two_tellings_of_one_call() -> None:
    """If a part and a field of one message tell the same call differently, nobody knows which one was made."""
    told = [{"name": "read", "args": {"a": 1}, "id": "c1"}]
    chat = read_chat(
        [
            QUESTION,
            assistant(
                {"type": "tool_use", "id": "c1", "name": "read", "input": {"a": 2}}, tool_calls=told
            ),
        ]
    )
    assert chat.damage == {"unread": 1}


# Refusals, pictures, and turns that were cut off


@pytest.mark.parametrize(
    "refusal",
    [
        {"role": "assistant", "content": None, "refusal": "I cannot help with that."},
        assistant({"type": "refusal", "refusal": "I cannot help with that."}),
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "I cannot help with that."}],
        },
    ],
)
def test_refusals(refusal: Any) -> None:
    chat = read_chat([QUESTION, refusal])
    assert (
        chat.messages[-1] == {"role": "assistant", "content": "I cannot help with that."}
        and not +chat.damage
    )


PICTURES = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}},
    {"type": "input_image", "image_url": "x"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}},
    {"type": "file", "mediaType": "image/png", "url": "x"},
    {"inlineData": {"mimeType": "image/png", "data": "x"}},
    {"image": {"format": "png", "source": {"bytes": "x"}}},
    {"kind": "image-url", "url": "x"},
]


@pytest.mark.parametrize("picture", PICTURES)
def test_pictures(picture: Any) -> None:
    """The answer to a picture that the row lacks is not trained; the mark stands for it if the user keeps such sessions."""
    chat = read_chat([{"role": "user", "content": [text("The total?"), picture]}, says("48.20")])
    assert (chat.messages[0]["content"], chat.damage, chat.skipped) == (
        "The total?\n[image]",
        {"missing_media": 1},
        {"media:image": 1},
    )
    assert not is_kept(chat)
    unanswered = read_chat([user("Hi"), says("Hello."), {"role": "user", "content": [picture]}])
    assert not unanswered.damage


def test_a_document_whose_words_are_recorded() -> None:
    words = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "Signed by Ann."},
    }
    chat = read_chat([{"role": "user", "content": [words, text("Who signed?")]}, says("Ann.")])
    assert (chat.messages[0]["content"], chat.damage) == ("Signed by Ann.\nWho signed?", {})


def test_a_result_that_is_a_picture() -> None:
    shown = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "1", "content": [PICTURES[2]]}],
    }
    chat = read_chat([QUESTION, call("look", "1"), shown, ANSWER])
    assert (chat.messages[2]["content"], chat.damage) == ("[image]", {"missing_media": 1})


CUT = [
    {"finish_reason": "length"},
    {"finish_reason": "content_filter"},
    {"stop_reason": "max_tokens"},
    {"stop_reason": "refusal"},
    {"stopReason": "maxTokens"},
    {"finishReason": "MAX_TOKENS"},
    {"finishReason": "SAFETY"},
    {"response_metadata": {"finish_reason": "length"}},
    {"response_metadata": {"stop_reason": "max_tokens"}},
    {"response_metadata": {"done_reason": "length"}},
    {"status": "incomplete"},
    {"incomplete_details": {"reason": "max_output_tokens"}},
    {"interrupted": True},
    {"finish_reason": "a_reason_of_tomorrow"},
    {"finish_reason": 2},
]
WHOLE = [
    {"finish_reason": "stop"},
    {"finish_reason": "stopstop"},
    {"stop_reason": "end_turn"},
    {"stop_reason": None},
    {"finishReason": "STOP"},
    {"finishReason": "FinishReason.STOP"},
    {"response_metadata": {"finish_reason": "tool_calls", "stop_reason": "tool_use"}},
    {"status": "completed"},
    {"finish": "tool-calls"},
    {"finish_reason": ""},
    {"finish_reason": 1},
    {"stop_reason": "end_of_turn"},
]


@pytest.mark.parametrize("mark", CUT)
def test_messages_that_were_cut_off(mark: dict[str, Any]) -> None:
    """A turn that a limit, a filter or the user ended is not trained to end there. It is counted, and the session stays."""
    chat = read_chat(
        [QUESTION, {"role": "assistant", "content": "It lies in", **mark}, user("And?"), ANSWER]
    )
    assert [message.get("weight") for message in chat.messages] == [None, 0, None, None]
    assert chat.damage == {"cut_message": 1} and is_kept(chat)
    called = [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]
    chat = read_chat(
        [QUESTION, {"role": "assistant", "content": None, "tool_calls": called, **mark}]
    )
    assert (chat.messages[1].get("weight"), chat.damage) == (0, {"cut_message": 1})


@pytest.mark.parametrize("mark", WHOLE)
def test_messages_that_ended_by_themselves(mark: dict[str, Any]) -> None:
    assert not is_cut(mark)


def test_a_cut_call_of_the_responses_api() -> None:
    cut = {
        "type": "function_call",
        "call_id": "1",
        "name": "f",
        "arguments": '{"a": 1',
        "status": "incomplete",
    }
    chat = read_chat([QUESTION, cut])
    assert (chat.messages[1].get("weight"), chat.damage) == (0, {"cut_message": 1})


def test_only_the_end_of_a_message_was_cut_off() -> None:
    """Of a message with a hosted call, the limit cut what follows the result."""
    parts = [*HOSTED["anthropic mcp"][0]["content"][:2], text("In U")]
    chat = read_chat([QUESTION, assistant(*parts, stop_reason="max_tokens")])
    assert [message.get("weight") for message in chat.messages] == [None, None, None, 0]


# The rule itself

DIALECTS = {
    **{name: [QUESTION, *told, ANSWER] for name, told in SPELLINGS.items()},
    **{name: [QUESTION, *told] for name, told in HOSTED.items()},
}
NAMES = st.sampled_from(["zz_call", "toolish", "hosted_thing", "x-call", "kernel_run", "plugin"])
SIGNS = st.sampled_from(
    [
        {"call_id": "c9"}, {"toolCallId": "c9"}, {"tool_use_id": "c9"}, {"tool_name": "pay"}, {"toolName": "pay"}, {"tool": "pay"},
        {"input": {"amount": 5}}, {"arguments": '{"amount": 5}'}, {"args": {"amount": 5}}, {"tool_call": {"name": "pay"}},
        {"tool_calls": [{"name": "pay"}]}, {"functionCall": {"name": "pay"}}, {"partial_json": '{"a'}, {"tool_result": "paid"},
    ]
)  # fmt: skip


@st.composite
def unknown_blocks(draw: st.DrawFn) -> dict[str, Any]:
    """A block of a type that nobody knows, which carries a call's id, a tool's name or an input, at some depth."""
    block: dict[str, Any] = dict(draw(SIGNS))
    for _ in range(draw(st.integers(0, 2))):
        block = {draw(st.sampled_from(["value", "payload", "inner"])): block}
    kind = draw(NAMES | st.none())
    return block if kind is None else {"type": kind, **block}


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(sorted(DIALECTS)),
    block=unknown_blocks(),
    place=st.integers(0, 40),
    as_field=st.booleans(),
)
def test_unknown_blocks(name: str, block: dict[str, Any], place: int, as_field: bool) -> None:
    """Whatever the dialect: an unknown block that shows a call never yields a row that is kept without damage."""
    history = copy.deepcopy(DIALECTS[name])
    lists: list[Any] = [history]
    fields: list[Any] = []
    for message in history:
        if isinstance(message, dict):
            lists += [
                message[field]
                for field in ("content", "parts")
                if isinstance(message.get(field), list)
            ]
            fields += [message] if message.get("role") in ("user", "assistant", "model") else []
    if as_field:
        fields[place % len(fields)]["zz_extra"] = block
    else:
        chosen = lists[place % len(lists)]
        chosen.insert(place // len(lists) % (len(chosen) + 1), block)
    before = read_chat(DIALECTS[name])
    chat = read_chat(history)
    assert not is_kept(chat) or steps(chat) != steps(before), (name, history)
    assert not is_kept(chat) or len(steps(chat)) > len(steps(before)), (
        "what was inserted is read as a call, a result, or words"
    )


def test_result_of_any_shape_stays() -> None:
    """A tool may return anything; it is no part of a message, and stays as JSON."""
    chat = read_chat(
        [QUESTION, call("f", "1"), result([{"type": "zz_call", "call_id": "c"}], "1"), ANSWER]
    )
    assert (
        json.loads(chat.messages[2]["content"]) == [{"type": "zz_call", "call_id": "c"}]
        and not chat.damage
    )
