"""Texts that an exporter cut off or blacked out are damage, and never somebody's words."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.items import Item
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source
from agent_pipeline.sources.formats.cut_texts import cut_texts_in, has_cut_mark, is_cut_json
from agent_pipeline.sources.formats.model_calls import is_damaged, messages_of
from agent_pipeline_tests.sources.platforms.exports import write

LONG = "You are the desk of a library. " * 40
ASKED = [
    {"role": "system", "content": LONG},
    {"role": "user", "content": "Is the book Dune there?"},
]
ANSWER = "Yes, on shelf 4."
OPTIONS = ReadingOptions(redaction=RedactionOptions(enabled=False))


def sessions(path: Path) -> list[Session]:
    source = open_source(path)
    return [
        session for key in source.partitions() for session in read_sessions(source, key, OPTIONS)
    ]


def otlp(attributes: dict[str, Any], **span: Any) -> dict[str, Any]:
    """An export of one span."""
    listed = [{"key": name, "value": {"stringValue": value}} for name, value in attributes.items()]
    made = {
        "traceId": "a1",
        "spanId": "b1",
        "name": "chat",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": listed,
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [made | span]}]}]}


def genai(asked: str, answer: str) -> dict[str, str]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": asked,
        "gen_ai.output.messages": answer,
    }


def parts(messages: list[dict[str, str]]) -> str:
    return json.dumps(
        [
            {"role": each["role"], "parts": [{"type": "text", "content": each["content"]}]}
            for each in messages
        ]
    )


GIVEN = {
    "ai_sdk": {
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.prompt.messages": json.dumps(ASKED),
        "ai.response.text": ANSWER,
    },
    "genai": genai(parts(ASKED), parts([{"role": "assistant", "content": ANSWER}])),
    "openinference": {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps({"messages": ASKED}),
        "output.value": ANSWER,
    },
}
CUT = [
    ("ai_sdk", "ai.prompt.messages"),
    ("genai", "gen_ai.input.messages"),
    ("genai", "gen_ai.output.messages"),
    ("openinference", "input.value"),
]


@pytest.mark.parametrize(("dialect", "name"), CUT)
@pytest.mark.parametrize("kept", [12, 30, 60, 512])
def test_cut_json(dialect: str, name: str, kept: int, tmp_path: Path) -> None:
    """langfuse/langfuse#6517: the beginning of a JSON attribute was read as a message (triggerdotdev/trigger.dev#2691)."""
    attributes = GIVEN[dialect]
    (whole,) = sessions(write(tmp_path / "whole.jsonl", [otlp(attributes)]))
    assert [each["content"].strip() for each in whole.messages] == [
        LONG.strip(),
        "Is the book Dune there?",
        ANSWER,
    ]
    assert not whole.damage
    cut = attributes | {name: attributes[name][: min(kept, len(attributes[name]) - 2)]}
    (session,) = sessions(write(tmp_path / "cut.jsonl", [otlp(cut)]))
    assert session.broken == "cut_text"
    assert not [each for each in session.messages if each["content"].startswith("[")]


@given(st.data())
def test_no_beginning_of_json_is_a_message(data: st.DataObject) -> None:
    """Wherever the JSON of messages or blocks is cut, what is left is damage."""
    text = st.text(max_size=20)
    block = st.fixed_dictionaries({"type": st.just("text"), "text": text})
    message = st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant"]),
            "content": text | st.lists(block, min_size=1),
        }
    )
    whole = json.dumps(data.draw(st.lists(message, min_size=1, max_size=3)))
    cut = whole[: data.draw(st.integers(len('[{"role"'), len(whole) - 1))]
    (read,) = messages_of(cut, "user")
    assert is_damaged(read)
    assert not any(map(is_damaged, messages_of(whole, "user")))


@pytest.mark.parametrize(
    "words",
    [
        '[{"role": "user", "content": "hel',
        '{"messages": [{"role"',
        "[REDACTED] said",
        "See ... [truncated] in the log, why?",
    ],
)
def test_json_that_a_user_pasted(words: str, tmp_path: Path) -> None:
    """In messages that the platform keeps apart, half a JSON is what the user wrote."""
    asked = [{"role": "user", "content": words}]
    (session,) = sessions(
        write(
            tmp_path / "spans.jsonl",
            [otlp(genai(parts(asked), parts([{"role": "assistant", "content": ANSWER}])))],
        )
    )
    assert [each["content"] for each in session.messages] == [words, ANSWER]
    assert not session.damage


@pytest.mark.parametrize(
    "text",
    [
        "Chapter 1 ... (litellm_truncated skipped 5230 chars. Full, untruncated data is logged to logging callbacks) ... the end.",
        "begin ... (litellm_truncated 120 chars) ... end",
        "redacted-by-litellm",
        "__REDACTED__",
        "<truncated due to size exceeding limit>",
        "<fully masked due to failed mask function>",
        "[Scrubbed due to 'API key']",
        "[REDACTED]",
        " <REDACTED>\n",
        "*****",
    ],
)
def test_notes_of_exporters(text: str) -> None:
    assert has_cut_mark(text)
    assert cut_texts_in([Item("message", text, role="user")]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "What does litellm_truncated mean?",
        "Our policy says that names are [REDACTED] in public.",
        "LiteLLM writes redacted-by-litellm for every message. Why?",
        "I am not sure...",
        "x" * 999,
        "a" * 998 + " b",
    ],
)
def test_words_that_only_speak_of_such_notes(text: str) -> None:
    assert not has_cut_mark(text)
    assert cut_texts_in([Item("message", text[:997] + "ab", role="user")]) == 0 or len(text) < 997
    assert cut_texts_in([Item("message", text, role="user")]) == (len(text) == 1000)


def test_a_limit_of_length() -> None:
    """A text that stops within a sentence at a limit's length is cut, and so are all others of that length; a tool may cut its own."""
    cut, other = "word " * 204 + "word", "Ends. " * 170 + "End."
    assert (len(cut), len(other)) == (1024, 1024)
    items = [Item("message", cut, role="user"), Item("message", other, role="assistant")]
    assert cut_texts_in(items) == 2
    assert cut_texts_in(items[1:]) == 0
    assert cut_texts_in([Item("function_call_output", cut)]) == 0
    assert cut_texts_in([Item("message", cut[:100] + "...", role="user")]) == 0
    assert cut_texts_in([Item("message", cut[:500] + "...", role="user")]) == 1
    assert (
        cut_texts_in(
            [Item("message", "a" * 128, role="user"), Item("message", "b" * 128, role="user")]
        )
        == 2
    )
    assert cut_texts_in([Item("cut_text", "[" * 700), Item("message", "c" * 700, role="user")]) == 1


@pytest.mark.parametrize(
    "end", ["…[truncated]", "... [TRUNCATED]", "[truncated 512 chars]", "... <truncated>"]
)
def test_a_mark_at_the_end(end: str) -> None:
    """Tools cut their own output, and the agent sees that mark."""
    assert cut_texts_in([Item("message", f"Chapter 1{end}", role="assistant")]) == 1
    assert cut_texts_in([Item("function_call_output", f"Chapter 1{end}")]) == 0


def test_attributes_beyond_the_limit_of_their_number(tmp_path: Path) -> None:
    """A span keeps 128 attributes; of a long conversation, the first messages are gone."""
    record = otlp(GIVEN["genai"], droppedAttributesCount=3)
    (session,) = sessions(write(tmp_path / "spans.jsonl", [record]))
    assert session.broken == "cut_text"


def test_an_answer_whose_question_is_hidden(tmp_path: Path) -> None:
    """LangSmith's `hide_inputs` and OpenTelemetry without contents leave answers without their questions."""
    run = {
        "id": "r1",
        "trace_id": "r1",
        "dotted_order": "1",
        "run_type": "llm",
        "name": "m",
        "session_name": "p",
        "inputs": {},
    }
    answer = {
        "choices": [{"message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}]
    }
    (session,) = sessions(
        write(
            tmp_path / "runs.jsonl",
            [run | {"outputs": answer, "start_time": "2026-06-01T10:00:00"}],
        )
    )
    assert session.broken == "cut_text"


def test_events_without_contents(tmp_path: Path) -> None:
    """Where contents are not captured, an event has a call's name without its arguments, and a role without words."""

    def event(name: str, body: dict[str, Any], at: int) -> dict[str, Any]:
        fields = [
            {"key": key, "value": {"stringValue": value}}
            for key, value in body.items()
            if isinstance(value, str)
        ]
        fields += [
            {"key": key, "value": value}
            for key, value in body.items()
            if not isinstance(value, str)
        ]
        return {
            "timeUnixNano": str(at),
            "eventName": name,
            "traceId": "a1",
            "spanId": "b1",
            "body": {"kvlistValue": {"values": fields}},
            "attributes": [{"key": "gen_ai.system", "value": {"stringValue": "openai"}}],
        }

    named = {"kvlistValue": {"values": [{"key": "name", "value": {"stringValue": "look_up"}}]}}
    calls = [{"key": "id", "value": {"stringValue": "c1"}}, {"key": "function", "value": named}]
    message = {
        "kvlistValue": {
            "values": [
                {
                    "key": "tool_calls",
                    "value": {"arrayValue": {"values": [{"kvlistValue": {"values": calls}}]}},
                }
            ]
        }
    }
    whole = event("gen_ai.user.message", {"content": "Where is order 7?"}, 1)
    for first, second in (
        (event("gen_ai.user.message", {}, 1), event("gen_ai.choice", {"message": message}, 2)),
        (whole, whole),
    ):
        answer = second if second is not whole else event("gen_ai.choice", {"message": message}, 2)
        records = [{"resourceLogs": [{"scopeLogs": [{"logRecords": [first, answer]}]}]}]
        (session,) = sessions(write(tmp_path / "logs.jsonl", records))
        assert session.broken == "cut_text"
        assert not [each for each in session.messages if each.get("tool_calls")]


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [
        ('[{"role"', True),
        ('{"messages": [', True),
        ("[1, 2", False),
        ('[{"role": "user"}]', False),
        ("{hello", False),
    ],
)
def test_json_of_messages_without_its_end(text: str, is_cut: bool) -> None:
    assert is_cut_json(text) == is_cut
    assert is_cut_json(text, is_json=True) == (text != '[{"role": "user"}]')


def test_texts_of_blocks(tmp_path: Path) -> None:
    """strands-agents/evals#312: Langfuse has Bedrock's blocks as JSON in texts. Each is what it says, and one without its end is damage."""
    call = '[{"toolUse": {"toolUseId": "tu1", "name": "get_case", "input": {"caseId": "77"}}}]'
    result = '[{"toolResult": {"toolUseId": "tu1", "status": "success", "content": [{"text": "open, at desk 3"}]}}]'
    asked = [("user", '[{"text": "Where is case 77?"}]'), ("assistant", call), ("tool", result)]

    def steps(answer: str) -> list[dict[str, Any]]:
        own = {"traceId": "t1", "projectId": "p", "startTime": "2026-06-01T10:00:01Z"}
        given = [{"role": role, "content": content} for role, content in asked]
        tool = own | {
            "id": "o1",
            "type": "TOOL",
            "name": "get_case",
            "input": [{"role": "tool", "content": '{"caseId": "77"}'}],
        }
        tool["output"] = {"message": '[{"text": "open, at desk 3"}]'}
        return [
            tool,
            own
            | {
                "id": "o2",
                "type": "GENERATION",
                "input": given,
                "output": {"role": "assistant", "content": answer},
            },
        ]

    (session,) = sessions(write(tmp_path / "whole.jsonl", steps('[{"text": "Case 77 is open."}]')))
    assert [each["role"] for each in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert session.messages[1]["tool_calls"][0]["function"] == {
        "name": "get_case",
        "arguments": '{"caseId": "77"}',
    }
    assert [each["content"] for each in session.messages] == [
        "Where is case 77?",
        "",
        "open, at desk 3",
        "Case 77 is open.",
    ]
    assert not session.damage and not session.skipped
    (session,) = sessions(write(tmp_path / "cut.jsonl", steps('[{"text": "Case 77 is op')))
    assert session.broken == "cut_text"


@pytest.mark.parametrize(
    "span",
    [
        {
            "events": [
                {
                    "name": "gen_ai.user.message",
                    "attributes": [{"key": "content", "value": {"stringValue": "Where?"}}],
                }
            ]
        },
        {
            "events": [
                {
                    "name": "gen_ai.choice",
                    "attributes": [{"key": "message", "value": {"stringValue": "[]"}}],
                }
            ]
        },
        {"numbered": "gen_ai.prompt.0.content"},
    ],
)
def test_messages_where_nobody_reads_them(span: dict[str, Any], tmp_path: Path) -> None:
    """A root that has a question and an answer must not stand for calls whose messages are in events or numbered attributes."""
    root = otlp(
        {"openinference.span.kind": "AGENT", "input.value": "Where?", "output.value": "In Ulm."},
        spanId="r1",
    )
    attributes = {"gen_ai.operation.name": "chat"} | (
        {span["numbered"]: "Where?"} if "numbered" in span else {}
    )
    call = otlp(attributes, parentSpanId="r1", events=span.get("events", []))
    (session,) = sessions(write(tmp_path / "spans.jsonl", [root, call]))
    assert session.broken == "unread"


def test_json_of_any_form_that_says_so(tmp_path: Path) -> None:
    """An attribute whose type is JSON is cut if it is none, whatever its first field is."""
    span = {
        "openinference.span.kind": "LLM",
        "input.value": '{"my_own_field": "Is the book',
        "output.value": ANSWER,
    }
    (session,) = sessions(
        write(tmp_path / "json.jsonl", [otlp(span | {"input.mime_type": "application/json"})])
    )
    assert session.broken == "cut_text"
    (session,) = sessions(
        write(tmp_path / "text.jsonl", [otlp(span | {"input.mime_type": "text/plain"})])
    )
    assert session.messages[0]["content"] == '{"my_own_field": "Is the book' and not session.damage


def test_user_without_words(tmp_path: Path) -> None:
    """Without the capture of contents, a message has a role and nothing else."""
    record = otlp(
        genai('[{"role": "user", "parts": []}]', parts([{"role": "assistant", "content": ANSWER}]))
    )
    (session,) = sessions(write(tmp_path / "spans.jsonl", [record]))
    assert session.broken == "cut_text"


def observation(asked: Any, answer: Any, **more: Any) -> dict[str, Any]:
    """A model call in Langfuse."""
    made = {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "name": "llm",
        "startTime": "2026-01-01T00:00:00Z",
    }
    return made | {"input": asked, "output": answer} | more


@pytest.mark.parametrize(
    "printed",
    [
        "[HumanMessage(content='Total?', additional_kwargs={})]",
        "content='17' additional_kwargs={} response_metadata={}",
        "[{'role': 'user', 'content': 'Total?'}]",
        "ChatCompletion(id='c', choices=[])",
        "<openai.Stream object at 0x7f00>",
    ],
)
def test_printed_messages(tmp_path: Path, printed: str) -> None:
    """Some loggers keep what Python prints of messages. As a user's or the agent's words it would be trained."""
    for record in (
        observation(printed, "17"),
        observation([{"role": "user", "content": "Total?"}], printed),
    ):
        (session,) = sessions(write(tmp_path / "lf.jsonl", [record]))
        assert session.damage.get("unread")


@pytest.mark.parametrize(
    "words",
    ["Content=quality, see below", "Point(x=1) is a call", "class(es) of <b>text</b>", "{'a': 1}"],
)
def test_words_that_are_no_printed_messages(words: str) -> None:
    assert messages_of(words, "user") == [{"role": "user", "content": words}]


@pytest.mark.parametrize(
    "note",
    [
        "<not serializable>",
        "<unserializable object of type: Foo>",
        "<not serializable object of type: File>",
    ],
)
def test_notes_of_serializers(note: str) -> None:
    """An exporter that could not write a value wrote this in its place."""
    assert has_cut_mark(note) and not has_cut_mark(f"What does {note} mean?")


def test_media_that_langfuse_keeps_apart(tmp_path: Path) -> None:
    asked = "Total? @@@langfuseMedia:type=image/jpeg|id=x|source=base64_data_uri@@@"
    (session,) = sessions(
        write(tmp_path / "lf.jsonl", [observation([{"role": "user", "content": asked}], "17")])
    )
    assert session.damage == {"missing_media": 1}


def test_reason_in_the_metadata_of_langfuse(tmp_path: Path) -> None:
    record = observation(
        [{"role": "user", "content": "Total?"}],
        "The total is",
        metadata={"finish_reason": "length"},
    )
    (session,) = sessions(write(tmp_path / "lf.jsonl", [record]))
    assert session.damage == {"cut_message": 1}


def test_the_call_of_an_older_openinference(tmp_path: Path) -> None:
    """Before a message could have several calls, it had one in two attributes of its own."""
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Total?",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.function_call_name": "get",
        "llm.output_messages.0.message.function_call_arguments_json": '{"id": 77}',
    }
    (session,) = sessions(write(tmp_path / "spans.jsonl", [otlp(attributes)]))
    (call,) = session.messages[1]["tool_calls"]
    assert call["function"] == {"name": "get", "arguments": '{"id": 77}'}


def test_the_calls_of_googles_kit(tmp_path: Path) -> None:
    """The ADK's spans have a request and a response of Gemini; a turn that its limit cut is not trained."""
    called = {"function_call": {"id": "c", "name": "get", "args": {"id": 77}}}
    answered = {"function_response": {"id": "c", "name": "get", "response": {"total": 17}}}
    contents = [
        {"role": "user", "parts": [{"text": "Total?"}]},
        {"role": "model", "parts": [called]},
        {"role": "user", "parts": [answered]},
    ]
    request = {"model": "g", "config": {"system_instruction": "Be brief."}, "contents": contents}
    response = {
        "content": {"role": "model", "parts": [{"text": "It is"}]},
        "finish_reason": "MAX_TOKENS",
    }
    told = {"llm_request": json.dumps(request), "llm_response": json.dumps(response)}
    attributes = {"gen_ai.system": "gcp.vertex.agent"} | {
        f"gcp.vertex.agent.{name}": value for name, value in told.items()
    }
    (session,) = sessions(write(tmp_path / "spans.jsonl", [otlp(attributes)]))
    assert [message["role"] for message in session.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert session.damage == {"cut_message": 1} and session.messages[-1]["weight"] == 0


@pytest.mark.parametrize(
    ("response", "damage"),
    [
        (
            {
                "content": {"role": "model", "parts": [{"text": "It is"}]},
                "finish_reason": "MAX_TOKENS",
            },
            "cut_message",
        ),
        ({"stop_reason": "max_tokens", "completion": "It is"}, "cut_message"),
        ({"result": {"messages": [{"role": "assistant", "content": "17"}]}}, "unread"),
    ],
)
def test_a_response_in_a_text(tmp_path: Path, response: Any, damage: str) -> None:
    """A response that was logged as a JSON text is no answer in JSON."""
    record = observation([{"role": "user", "content": "Total?"}], json.dumps(response))
    (session,) = sessions(write(tmp_path / "lf.jsonl", [record]))
    assert session.damage.get(damage) and all(
        "{" not in message["content"] for message in session.messages
    )
