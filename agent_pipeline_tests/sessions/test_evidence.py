"""What shows that an answer was cut off, rests on what nobody recorded, or tells calls as words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sessions.call_words import (
    _CALL_WORDS,
    _TEMPLATE_MARKS,
    CALL_BEGINNINGS,
    has_call_words,
)
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.evidence import is_cut
from agent_pipeline.sources.formats.model_calls import request_of, response_of

_ASKED = {"role": "user", "content": "Who won?"}
_ANSWER = {"role": "assistant", "content": "Team A won."}
_CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}],
}


def _damage(*messages: Any) -> dict[str, int]:
    return dict(+read_chat(list(messages)).damage)


@pytest.mark.parametrize(
    "fields",
    [
        {"native_finish_reason": "max_tokens"},
        {"finish_reason": None, "native_finish_reason": "length"},
        {"metadata": {"finishReason": "length"}},
        {"details": {"finish_reason": "length", "generated_tokens": 20}},
        {"additional_kwargs": {"finish_reason": "length"}},
        {"finish_reason": "stop", "response_metadata": {"stop_reason": "max_tokens"}},
        {"meta": {"finish_reason": "length"}},
        {"unfinished": True},
        {"done": False},
        {"parts": [{"type": "text", "text": "The total is and", "state": "streaming"}]},
    ],
)
def test_cut_turn(fields: dict[str, Any]) -> None:
    """A turn is cut wherever a library writes the reason, also in the words of the service behind a gateway."""
    assert is_cut({"role": "assistant", "content": "The total is and"} | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"finish_reason": "stop", "stop_reason": "</tool_call>"},
        {"finish_reason": "stop", "stop_reason": 151645},
        {"finish_reason": "stop", "native_finish_reason": "STOP_TOKEN_SEEN"},
        {"metadata": {"finish": "2026-01-01T00:00:00Z"}},
        {"parts": [{"type": "text", "text": "17", "state": "done"}]},
    ],
)
def test_whole_turn(fields: dict[str, Any]) -> None:
    """vLLM says beside the reason at which word it stopped. A gateway's native reason counts only where nothing else says one."""
    assert not is_cut({"role": "assistant", "content": "17"} | fields)


@pytest.mark.parametrize(
    "response",
    [
        {
            "candidates": [
                {
                    "content": {"parts": [{"text": "A"}], "role": "model"},
                    "groundingMetadata": {"webSearchQueries": ["q"]},
                }
            ]
        },
        {
            "candidates": [
                {
                    "content": {"parts": [{"text": "A"}], "role": "model"},
                    "urlContextMetadata": {"urlMetadata": [{"u": 1}]},
                }
            ]
        },
        {"choices": [{"message": _ANSWER}], "search_results": [{"url": "u"}]},
        {"choices": [{"message": _ANSWER}], "citations": ["https://a.example"]},
        {"choices": [{"message": _ANSWER | {"context": {"citations": [{"content": "A won"}]}}}]},
        {
            "choices": [
                {
                    "message": _ANSWER
                    | {"additional_kwargs": {"tool_outputs": [{"type": "web_search_call"}]}}
                }
            ]
        },
        {
            "output": [
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [
                        {
                            "type": "output_text",
                            "text": "A",
                            "annotations": [{"type": "url_citation"}],
                        }
                    ],
                }
            ]
        },
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "A", "citations": [{"type": "web_search_result_location"}]}
            ],
        },
        {
            "role": "assistant",
            "parts": [{"type": "source-url", "url": "u"}, {"type": "text", "text": "A won."}],
        },
        _ANSWER | {"sources": [{"document": ["Team A won."]}]},
        _ANSWER | {"statusHistory": [{"action": "web_search", "query": "q"}]},
        _ANSWER | {"citations": {"urls": [{"url": "u"}]}},
        _ANSWER | {"sourceDocuments": [{"pageContent": "Team A won."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": {"value": "A", "annotations": [{"type": "file_citation"}]}}
            ],
        },
    ],
)
def test_answer_from_a_search(response: dict[str, Any]) -> None:
    """What a service found for an answer is nowhere in the conversation. Trained, the answer would come from nothing."""
    assert _damage(
        *request_of({"messages": [_ASKED]}).messages, *response_of(response).messages
    ) == {"unread": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {
            "citations": [
                {"text": "A", "sources": [{"type": "tool", "id": "c", "tool_output": {"t": 17}}]}
            ]
        },
        {"parts": [{"type": "source-url", "url": "u"}, {"type": "text", "text": "A won."}]},
        {"content": [{"type": "text", "text": "A", "annotations": [{"type": "file_citation"}]}]},
    ],
)
def test_sources_of_a_result(fields: dict[str, Any]) -> None:
    """The sources of an answer that follows a tool's result are in that result."""
    result = {"role": "tool", "tool_call_id": "c", "content": "Team A won."}
    assert _damage(_ASKED, _CALL, result, {"role": "assistant", "content": "A won."} | fields) == {}


def test_encrypted_result() -> None:
    """The pages that Anthropic's search found are encrypted in its record, so the answer has no source that a row could show."""
    found = [{"type": "web_search_result", "url": "u", "title": "T", "encrypted_content": "Eqgf"}]
    parts = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": found},
        {"type": "text", "text": "Team A won."},
    ]
    assert _damage(_ASKED, {"role": "assistant", "content": parts})["unread"] == 1


@pytest.mark.parametrize(
    "text",
    [
        '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"id": 77}<|call|>',
        "<|channel|>analysis<|message|>He asks.<|end|><|start|>assistant<|channel|>final<|message|>It is 17.",
        "analysisHe asks.assistantfinal It is 17.",
        "<tool_call>get\n<arg_key>id</arg_key>\n<arg_value>77</arg_value>\n</tool_call>",
        '<ns:function_calls>\n<ns:invoke name="get">',
        "<function_calls>\n<invoke>\n<tool_name>get</tool_name>",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get">',
        "<function_calls>\nget(id=77)\n</function_calls>",
        '<TOOLCALL>[{"name": "get", "arguments": {"id": 77}}]</TOOLCALL>',
        '<|START_ACTION|>[{"tool_name": "get", "parameters": {}}]<|END_ACTION|>',
        '[{"name": "get", "arguments": {"id": 77}}]',
        '{"tool_calls": [{"name": "get", "arguments": {"id": 77}}]}',
        '{"type": "function", "function": {"name": "get", "arguments": "{}"}}',
        '```json\n{"name": "get", "arguments": {"id": 77}}\n```',
        '<think>hm</think>\n{"name": "get", "arguments": {"id": 77}}',
        "```tool_code\nget(id=77)\n```",
        "[get(id=77), look(name='a')]",
        '>>>get\n{"id": 77}',
        'Thought: hm\nAction: get\nAction Input: {"id": 77}\nObservation: 17\nFinal Answer: 17',
        "The total is 17.<|im_end|>",
        '<details type="tool_calls" done="true" name="get" arguments="{}" result="17">\n</details>\nIt is 17.',
    ],
)
def test_call_words(text: str) -> None:
    """A model's raw output has calls, thoughts and marks of its template. An answer of such words would be trained as words."""
    assert has_call_words(text)
    assert _damage(_ASKED, {"role": "assistant", "content": text}) == {"unread": 1}


@given(st.from_regex(_CALL_WORDS) | st.from_regex(_TEMPLATE_MARKS))
def test_every_written_call_has_a_beginning(text: str) -> None:
    """A text without a beginning is not searched further."""
    assert any(beginning in text for beginning in CALL_BEGINNINGS)


@pytest.mark.parametrize(
    "text",
    [
        'Use `[TOOL]`; e.g. {"name": "x"} is a JSON object with "arguments".',
        '{"name": "Ana", "age": 3}',
        '[{"name": "Ana", "age": 3}]',
        '{"name": "pump", "input": {"flow": 3}}',
        "The template ends a turn with `<|im_end|>`.",
        "```\n<|im_start|>user\nHi<|im_end|>\n```",
        'Thought: I need it.\nAction: get\nAction Input: {"id": 77}',
        "[see the list (a=1) below]",
        "The assistant finally answered.",
    ],
)
def test_no_call_words(text: str) -> None:
    """JSON answers, words about templates, and the protocols of agents that read plain text are answers."""
    assert _damage(_ASKED, {"role": "assistant", "content": text}) == {}


@pytest.mark.parametrize(
    "content",
    [
        {
            "content": [{"type": "image", "data": "iVBOR", "mimeType": "image/png"}],
            "isError": False,
        },
        '{"type": "image", "data": "iVBOR", "mimeType": "image/png"}',
        '[{"type": "text", "text": "see"}, {"type": "image", "source": {"type": "base64", "data": "x"}}]',
        {
            "type": "web_fetch_result",
            "content": {"type": "document", "source": {"type": "base64", "data": "JVBER"}},
        },
    ],
)
def test_picture_in_a_result(content: Any) -> None:
    """A tool's picture is missing, whether its result is a list of parts, MCP's result or the JSON of one."""
    result = {"role": "tool", "tool_call_id": "c", "content": content}
    assert _damage(_ASKED, _CALL, result, _ANSWER) == {"missing_media": 1}


@pytest.mark.parametrize(
    "content",
    [
        '{"type": "image", "url": "https://a.example/b.png"}',
        {"content": [{"type": "text", "text": "x"}]},
    ],
)
def test_result_without_a_picture(content: Any) -> None:
    """An address of a picture is a text that the model saw."""
    assert (
        _damage(_ASKED, _CALL, {"role": "tool", "tool_call_id": "c", "content": content}, _ANSWER)
        == {}
    )


def test_cleared_result() -> None:
    """An agent that clears old results had answered from the whole ones."""
    result = {"role": "tool", "tool_call_id": "c", "content": "[Old tool result content cleared]"}
    assert _damage(_ASKED, _CALL, result, _ANSWER) == {"cut_text": 1}


def test_empty_result() -> None:
    """A result without parts is empty, and not the text `[]`."""
    chat = read_chat(
        [
            _ASKED,
            _CALL,
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": []}],
            },
            _ANSWER,
        ]
    )
    assert chat.messages[2]["content"] == ""
    assert (
        read_chat([_ASKED, _CALL, {"role": "tool", "tool_call_id": "c", "content": []}]).messages[
            2
        ]["content"]
        == ""
    )


def test_refusal_of_langchain() -> None:
    """LangChain keeps OpenAI's refusal among the additional fields."""
    chat = read_chat(
        [_ASKED, {"type": "ai", "content": "", "additional_kwargs": {"refusal": "I cannot."}}]
    )
    assert chat.messages[-1]["content"] == "I cannot."


@pytest.mark.parametrize("flag", ["train", "training", "trainable", "loss"])
def test_untrained_turn(flag: str) -> None:
    """Datasets mark a bad turn by a flag of its own; it is context and not trained."""
    chat = read_chat([_ASKED, _ANSWER | {flag: False}, _ASKED, _ANSWER | {flag: True}])
    assert [message.get("weight") for message in chat.messages] == [None, 0, None, None]


def test_first_choice() -> None:
    """The choice of index 0 is the answer, also if a stream ended another one before it."""
    choices = [
        {"index": 1, "message": _ANSWER | {"content": "B"}},
        {"index": 0, "message": _ANSWER | {"content": "A"}},
    ]
    first, other = response_of({"choices": choices}).messages
    assert (first["content"], other.name) == ("A", "other_choice")


def test_piece_of_a_stream() -> None:
    """Ollama says by `done` that a response is not the whole answer."""
    messages = response_of({"message": _ANSWER, "done": False}).messages
    assert _damage(_ASKED, *messages) == {"cut_message": 1}


def test_documents_of_cohere() -> None:
    """Cohere's results are documents with a text, and no files."""
    parts = [{"type": "document", "document": {"id": "d", "data": '{"total": 17}'}}]
    chat = read_chat(
        [_ASKED, _CALL, {"role": "tool", "tool_call_id": "c", "content": parts}, _ANSWER]
    )
    assert chat.messages[2]["content"] == '{"total": 17}' and not chat.damage
