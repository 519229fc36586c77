"""Logged model calls and training rows: the answer is the answer, wherever it stands, and what is missing is damage."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source
from agent_pipeline.sources.formats.model_calls import response_of, stop_reason
from agent_pipeline_tests.sources.logged_calls import (
    ANSWER,
    ASKED,
    ITEMS,
    OUTPUT,
    READ,
    SAID,
    batch_files,
    completion,
    logged_call,
    nemo_rollout,
    openai_preference_row,
    preference_row,
    response_object,
    stored_completion_files,
    trl_row,
)
from agent_pipeline_tests.sources.samples import document, lines, put

OPTIONS = ReadingOptions(redaction=RedactionOptions(enabled=False))
SPOKEN = [
    ("system", "You are a shop assistant."),
    ("user", "Where is order 7?"),
    ("assistant", ""),
    ("tool", "in Ulm"),
    ("assistant", ANSWER),
]


def read(folder: Path, files: dict[str, bytes]) -> list[Session]:
    source = open_source(put(folder, files))
    return [
        session for key in source.partitions() for session in read_sessions(source, key, OPTIONS)
    ]


def rows(folder: Path, *records: Any) -> list[Session]:
    return read(folder, {"rows.jsonl": lines(*records)})


def spoken(session: Session) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in session.messages]


CLAUDE = {
    "id": "m1",
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": ANSWER}],
    "stop_reason": "end_turn",
}

WHOLE: dict[str, Any] = {
    "request_response": logged_call(),
    "bodies_as_text": {
        "request_body": json.dumps(logged_call()["request"]),
        "response_body": json.dumps(completion()),
    },
    "portkey": {
        "id": "p1",
        "trace_id": "t1",
        "request": {
            "url": "/v1/chat/completions",
            "method": "POST",
            "body": logged_call()["request"],
        },
        "response": {"status": 200, "body": completion()},
    },
    "response_text": logged_call(response=ANSWER),
    "messages_and_generated_text": {"messages": ASKED, "generated_text": ANSWER},
    "openpipe": {"input": logged_call()["request"], "output": completion(), "tags": {}},
    "anthropic": logged_call(
        request={"model": "c", "system": ASKED[0]["content"], "messages": ASKED[1:]},
        response={
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": ANSWER}],
            "stop_reason": "end_turn",
        },
    ),
    "responses": logged_call(
        request={
            "model": "m-1",
            "instructions": ASKED[0]["content"],
            "input": ITEMS,
            "tools": [READ],
        },
        response=response_object(id="r9"),
    ),
    "stored_response": response_object(),
    "stored_completion": completion(messages=ASKED),
    "messages_and_choices": {"messages": ASKED, "choices": completion()["choices"]},
    "messages_and_response": {
        "messages": ASKED,
        "response": completion(),
        "kwargs": {"tools": [READ]},
        "cost": 0.1,
    },
    "messages_and_response_text": {"messages": ASKED, "response": ANSWER},
    "messages_and_completion": {"messages": ASKED, "completion": SAID},
    "messages_and_output": {"messages": ASKED, "output": OUTPUT},
    "messages_and_same_answer": {"messages": [*ASKED, *SAID], "response": completion()},
    "messages_and_label": {"messages": [*ASKED, *SAID], "output": "delivered"},
    "prompt_and_completion": trl_row(),
    "prompt_and_message": trl_row(completion=SAID[0]),
    "prompt_and_text": trl_row(completion=ANSWER),
    "chosen_with_prompt": {
        "chosen": [*ASKED, *SAID],
        "rejected": [*ASKED, {"role": "assistant", "content": "No."}],
    },
    "chosen_repeats_prompt": preference_row(prompt=ASKED, chosen=[*ASKED, *SAID]),
    "nemo_gym": nemo_rollout(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_answer_is_the_last_turn(name: str, tmp_path: Path) -> None:
    """The final answer of a log with `messages` and a response went to the context (ten of ten logs of OpenHands)."""
    session = rows(tmp_path, WHOLE[name])[0]
    assert spoken(session) == SPOKEN
    assert session.messages[2]["tool_calls"][0]["function"] == {
        "name": "read",
        "arguments": '{"path": "order.txt"}',
    }
    assert not session.damage
    assert not {"response", "choices", "completion", "chosen"} & session.context.keys()


def test_calls_of_a_named_session(tmp_path: Path) -> None:
    """Calls with one session id are one conversation, in the order of their times; the second repeats the first."""
    more = [*ASKED, *SAID, {"role": "user", "content": "Thank you."}]
    answer = completion(
        choices=[
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "You are welcome."},
            }
        ]
    )
    second = logged_call(
        timestamp=1768975099, request={"messages": more}, response=answer, session_id="s1"
    )
    (session,) = rows(tmp_path, second, logged_call(session_id="s1"))
    assert spoken(session) == [*SPOKEN, ("user", "Thank you."), ("assistant", "You are welcome.")]
    assert (session.session_id, session.project, session.agent, session.model_id) == (
        "s1",
        "shop",
        "support",
        "m-1",
    )
    assert session.usage["input_tokens"] == 10 and session.tools == [READ]


@pytest.mark.parametrize(
    "response",
    [
        'data: {"choices": [{"delta": {"content": "Order"}}]}\n\ndata: [DONE]\n',
        {"choices": [{"delta": {"content": "Order"}}]},
    ],
)
def test_streamed_response(response: Any, tmp_path: Path) -> None:
    """Nobody puts the pieces of a stream together, so its answer is missing."""
    (session,) = rows(tmp_path, logged_call(response=response))
    assert session.broken == "unread"


def test_failed_call(tmp_path: Path) -> None:
    (session,) = rows(
        tmp_path, logged_call(response={"error": {"message": "overloaded"}}, status_code=529)
    )
    assert session.error == "overloaded"
    assert spoken(session) == SPOKEN[:-1]


@pytest.mark.parametrize("half", ["requests.jsonl", "results.jsonl"])
def test_half_of_a_batch(half: str, tmp_path: Path) -> None:
    (whole,) = read(tmp_path / "whole", batch_files())
    assert (spoken(whole), whole.session_id, whole.damage) == (SPOKEN, "order-7", {})
    (session,) = read(tmp_path / "half", {half: batch_files()[half]})
    assert session.damage
    assert session.broken == "cut_text" or session.messages[-1]["role"] == "tool"


def test_batches_with_one_id(tmp_path: Path) -> None:
    """Two batches may use one `custom_id`: then nobody knows whose answer is whose."""
    other = {f"second-{name}": raw for name, raw in batch_files().items()}
    (session,) = read(tmp_path, batch_files() | other)
    assert session.broken == "unread"


def test_failed_batch_request(tmp_path: Path) -> None:
    (session,) = read(
        tmp_path, batch_files(response=None, error={"code": "batch_expired", "message": "expired"})
    )
    assert session.error == "expired"


def test_anthropic_batch(tmp_path: Path) -> None:
    request = {"custom_id": "a", "params": {"system": ASKED[0]["content"], "messages": ASKED[1:]}}
    result = {"custom_id": "a", "result": {"type": "succeeded", "message": CLAUDE}}
    (session,) = read(tmp_path, {"requests.jsonl": lines(request), "results.jsonl": lines(result)})
    assert (spoken(session), session.damage) == (SPOKEN, {})


def test_stored_completion_and_its_messages(tmp_path: Path) -> None:
    (session,) = read(tmp_path / "whole", stored_completion_files())
    assert (spoken(session), session.session_id, session.damage) == (SPOKEN, "chatcmpl-1", {})
    (session,) = read(
        tmp_path / "alone", {"completions.json": stored_completion_files()["completions.json"]}
    )
    assert session.broken


def two_stored_completions() -> dict[str, bytes]:
    """Pages of two completions of the session s1, and of their messages, the latest first."""
    more = [*ASKED, *SAID, {"role": "user", "content": "And order 8?"}]
    messages = [
        message | {"id": f"{completion_id}-{number}", "content_parts": None}
        for completion_id, asked in (("chatcmpl-1", ASKED), ("chatcmpl-2", more))
        for number, message in enumerate(asked)
    ]
    metadata = {"session_id": "s1"}
    completions = [
        completion(metadata=metadata),
        completion(metadata=metadata, id="chatcmpl-2", created=1768975099),
    ]
    completions[1]["choices"][0] = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "In Bonn."},
    }
    return {
        "completions.jsonl": lines(*completions[::-1]),
        "messages.jsonl": lines(*messages[::-1]),
    }


def test_stored_completions_of_one_session(tmp_path: Path) -> None:
    """Each completion has its own messages, so nothing of the session is interleaved."""
    (session,) = read(tmp_path, two_stored_completions())
    later = [("user", "And order 8?"), ("assistant", "In Bonn.")]
    assert (session.session_id, session.damage) == ("s1", {})
    assert spoken(session) == [*SPOKEN, *later]


def test_stored_message_twice(tmp_path: Path) -> None:
    """A page that was downloaded twice says nothing new."""
    files = two_stored_completions()
    (session,) = read(tmp_path, files | {"again.jsonl": files["messages.jsonl"]})
    assert (len(session.messages), session.damage) == (len(SPOKEN) + 2, {})


@pytest.mark.parametrize(
    "lost", ['"chatcmpl-1-2"', '"object": "chat.completion", "created": 1768975099', "chatcmpl-2-"]
)
def test_lost_part_of_stored_completion(tmp_path: Path, lost: str) -> None:
    """A session without a message or a completion is damage, and borrows no other message."""
    files = {
        name: b"".join(line for line in rows.splitlines(True) if lost.encode() not in line)
        for name, rows in two_stored_completions().items()
    }
    assert files != two_stored_completions()
    sessions = read(tmp_path, files)
    assert any(session.broken for session in sessions)
    for session in sessions:
        said = [message for message in spoken(session) if message[1]]
        assert len(said) == len(set(said))


def test_response_goes_on_with_another(tmp_path: Path) -> None:
    """The service keeps what was said before; a response that goes on with one that is not there lacks its beginning."""
    said = [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "You are welcome."}],
        }
    ]
    follows = response_object(
        id="resp_2",
        previous_response_id="resp_1",
        input="Thank you.",
        output=said,
        created_at=1768975099,
    )
    (session,) = rows(tmp_path / "chain", follows, response_object())
    assert spoken(session) == [*SPOKEN, ("user", "Thank you."), ("assistant", "You are welcome.")]
    assert not session.damage
    (session,) = rows(tmp_path / "alone", follows)
    assert session.broken == "unread"
    (session,) = rows(tmp_path / "kept", response_object(conversation={"id": "conv_1"}))
    assert session.broken == "unread"


def test_two_responses_go_on_with_one(tmp_path: Path) -> None:
    """Each has its own conversation: the second was never shown the first."""

    def follows(number: int) -> dict[str, Any]:
        said = [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": f"answer {number}"}],
            }
        ]
        more = {"input": f"question {number}", "output": said, "created_at": 1768975012 + number}
        return response_object(id=f"resp_{number}", previous_response_id="resp_1", **more)

    sessions = rows(tmp_path, response_object(), follows(2), follows(3))
    assert sorted(spoken(session)[len(SPOKEN) :] for session in sessions) == [
        [("user", f"question {number}"), ("assistant", f"answer {number}")] for number in (2, 3)
    ]
    assert all(
        spoken(session)[: len(SPOKEN)] == SPOKEN and not session.damage for session in sessions
    )


@pytest.mark.parametrize(
    "answer",
    [
        {"response": {"status": "ok"}},
        {"output": {"value": 3}},
        {"choices": [{"delta": {"content": "Or"}}]},
    ],
)
def test_unreadable_answer_beside_messages(answer: dict[str, Any], tmp_path: Path) -> None:
    (session,) = rows(tmp_path / "open", {"messages": ASKED, **answer})
    assert session.broken == "unread"
    (session,) = rows(tmp_path / "answered", {"messages": [*ASKED, *SAID], **answer})
    assert not session.damage


REASONS: list[tuple[str, Any]] = [
    ("length", completion("length")),
    ("content_filter", completion("content_filter")),
    (
        "MAX_TOKENS",
        {
            "candidates": [
                {
                    "content": {"role": "model", "parts": [{"text": "Or"}]},
                    "finishReason": "MAX_TOKENS",
                }
            ]
        },
    ),
    (
        "max_tokens",
        {
            "output": {"message": {"role": "assistant", "content": [{"text": "Or"}]}},
            "stopReason": "max_tokens",
        },
    ),
    (
        "max_output_tokens",
        response_object(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
    ),
    (
        "max_output_tokens",
        response_object(status=None, incomplete_details={"reason": "max_output_tokens"}),
    ),
    ("incomplete", response_object(status="incomplete")),
    ("length", {"finish_reason": "length", "message": "Or"}),
    ("length", {"completion": "Or", "finish_reason": "length"}),
]


@pytest.mark.parametrize(("reason", "response"), REASONS)
def test_reason_for_which_the_model_stopped(reason: str, response: dict[str, Any]) -> None:
    """inspect_ai#5143, vllm#58228: a turn that a limit cut was trained to end there. The reason goes with the message."""
    (message,) = response_of(response).messages
    assert message["finish_reason"] == reason


def test_complete_responses_have_no_reason() -> None:
    assert stop_reason(response_object()) is None
    (message,) = response_of(
        {"role": "assistant", "content": "Or", "stop_reason": "max_tokens"}
    ).messages
    assert message["stop_reason"] == "max_tokens" and "finish_reason" not in message


@pytest.mark.parametrize("row", [preference_row(), openai_preference_row()])
def test_preference_is_two_sessions_of_one_task(row: dict[str, Any], tmp_path: Path) -> None:
    good, bad = rows(tmp_path, row)
    assert (good.judgment, bad.judgment, good.task_id) == (
        "acceptable",
        "unacceptable",
        bad.task_id,
    )
    assert [spoken(each)[-1] for each in (good, bad)] == [
        ("assistant", ANSWER),
        ("assistant", "No idea."),
    ]
    assert spoken(good)[:-1] == spoken(bad)[:-1] == SPOKEN[:2]


def test_rewards_and_trials(tmp_path: Path) -> None:
    """Rollouts of one example are trials of one task; KTO's label is a verdict."""
    good, bad, kto = rows(
        tmp_path,
        trl_row(),
        trl_row(reward=0.0),
        {"prompt": "Where?", "completion": ANSWER, "label": False},
    )
    assert [each.judgment for each in (good, bad, kto)] == [
        "acceptable",
        "unacceptable",
        "unacceptable",
    ]
    assert (good.task_id, bad.task_id, kto.task_id) == ("orders/0", "orders/0", None)
    assert spoken(kto) == [("user", "Where?"), ("assistant", ANSWER)]


@pytest.mark.parametrize(
    "prompt",
    [
        "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n",
        "\n\nHuman: Where?\n\nAssistant:",
        "<s>[INST] Where? [/INST]",
        "<start_of_turn>user\nWhere?<end_of_turn>\n",
    ],
)
def test_prompt_of_a_chat_template(prompt: str, tmp_path: Path) -> None:
    """Several messages in one text are nobody's words."""
    (session,) = rows(tmp_path, {"prompt": prompt, "completion": ANSWER})
    assert session.broken == "unread"
    good, bad = rows(tmp_path, {"chosen": f"{prompt} {ANSWER}", "rejected": f"{prompt} No."})
    assert (good.broken, bad.broken) == ("unread", "unread")


def test_bare_lists(tmp_path: Path) -> None:
    """A document with one list, a list of lists, a list per line, and a message per line."""
    whole = [*ASKED, *SAID]
    for name, raw, count in (
        ("one.json", document(whole), 1),
        ("several.json", document([whole, whole]), 2),
        ("lists.jsonl", lines(whole, whole), 2),
        ("messages.jsonl", lines(*whole), 1),
    ):
        sessions = read(tmp_path / name, {name: raw})
        assert [spoken(session) for session in sessions] == [SPOKEN] * count
        assert not [session for session in sessions if session.damage]


def test_file_of_messages_with_something_else(tmp_path: Path) -> None:
    """What is no message belongs to the conversation, and is damage; another file of the folder is not read."""
    files = {
        "chat.jsonl": lines(*ASKED, {"what": "a call, perhaps"}, *SAID),
        "result.json": document({"reward": 1}),
    }
    (session,) = read(tmp_path, files)
    assert session.broken


def test_nemo_rollout(tmp_path: Path) -> None:
    (session,) = rows(tmp_path, nemo_rollout())
    assert (session.task_id, session.trial, session.judgment, session.agent) == (
        "rows/0",
        "1",
        "acceptable",
        "shop_agent",
    )
    assert session.scores == {"reward": 1.0, "accuracy": 1.0, "set_overlap": 0.5}
    steps = [ITEMS[:2], [*ITEMS, *OUTPUT]]
    (session,) = rows(
        tmp_path / "steps",
        nemo_rollout(response=response_object(output=steps), responses_create_params={"input": []}),
    )
    assert spoken(session) == SPOKEN[1:] and not session.damage
    steps = [OUTPUT, [*ITEMS, *OUTPUT]]
    (session,) = rows(
        tmp_path / "other",
        nemo_rollout(response=response_object(output=steps), responses_create_params={"input": []}),
    )
    assert session.broken == "unread"
    judged_call = nemo_rollout(response=response_object(output=ITEMS[1:2]))
    (session,) = rows(tmp_path / "call", judged_call)
    assert session.ends_on_tool and session.broken is None


def test_a_prefilled_answer_is_one_turn(tmp_path: Path) -> None:
    """Anthropic's model goes on with the assistant's last message of the request; nobody ended a turn there."""
    request = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "Total?"},
            {"role": "assistant", "content": "The total"},
        ],
    }
    response = CLAUDE | {"content": [{"type": "text", "text": " is 17."}]}
    (session,) = rows(tmp_path, {"request": request, "response": response})
    assert (
        spoken(session) == [("user", "Total?"), ("assistant", "The total is 17.")]
        and not session.damage
    )


def test_a_completion_that_goes_on_with_its_prompt_is_one_turn(tmp_path: Path) -> None:
    """TRL's model goes on with the assistant's message at the end of a prompt."""
    begun = [{"role": "user", "content": "Total?"}, {"role": "assistant", "content": "The total"}]
    (session,) = rows(
        tmp_path, {"prompt": begun, "completion": [{"role": "assistant", "content": " is 17."}]}
    )
    assert spoken(session) == [("user", "Total?"), ("assistant", "The total is 17.")]


def call_by(model: str, messages: list[Any], answer: str, second: int) -> dict[str, Any]:
    """A logged call of the session s1 that a model answered."""
    response = completion(model=model)
    response["choices"][0]["message"] = {"role": "assistant", "content": answer}
    return logged_call(
        timestamp=1768975000 + second,
        session_id="s1",
        request={"model": "support", "messages": messages},
        response=response,
    )


def test_several_answering_models(tmp_path: Path):
    """A session tells all models that answered in it, not only the last one."""
    more = [*ASKED, *SAID, {"role": "user", "content": "Thanks. And order 8?"}]
    small = call_by("shop/support", ASKED, ANSWER, 1)
    big = call_by("gpt-5.2", more, "In Bonn.", 2)
    (session,) = rows(tmp_path, small, big)
    assert session.model_id == "gpt-5.2"
    assert session.context["answering_models"] == ["gpt-5.2", "shop/support"]


def test_discarded_answer(tmp_path: Path):
    """A model whose answer was asked for again did not answer."""
    small = call_by("shop/support", ASKED, "No idea.", 1)
    big = call_by("gpt-5.2", ASKED, ANSWER, 2)
    (session,) = rows(tmp_path, small, big)
    assert session.messages[-1]["content"] == ANSWER
    assert session.model_id == "gpt-5.2" and "answering_models" not in session.context


def test_models_of_messages(tmp_path: Path):
    """A plain row names the model of each answer."""
    answers = [
        {"role": "assistant", "content": "Which order?", "model": "shop/support"},
        {"role": "user", "content": "Order 7."},
        {"role": "assistant", "content": ANSWER, "model": "gpt-5.2"},
    ]
    (session,) = rows(tmp_path, {"messages": [*ASKED[:2], *answers]})
    assert session.model_id == "gpt-5.2"
    assert session.context["answering_models"] == ["gpt-5.2", "shop/support"]
