"""A model sees made-up values in place of pseudonyms: the same one where it is the same, and no pseudonym that tables hold."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.compute.params import common_params
from agent_pipeline.config.settings import load_settings
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.redaction.kinds import KINDS, PSEUDONYM
from agent_pipeline.redaction.surrogates import (
    VALUES,
    spoken,
    surrogates_made_from,
    with_surrogates,
)
from agent_pipeline.sessions.session import Session

SYSTEM = "Help customers. Mail <EMAIL_1> if in doubt."


def messages(
    user: str = "I am <EMAIL_2>.", argument: str = "<EMAIL_2>", system: str = SYSTEM
) -> list[dict[str, Any]]:
    function = {
        "name": "look_up",
        "arguments": json.dumps({"email": argument, "deep": [{"card": "<CARD_1>"}]}),
    }
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": json.dumps({"customer": {"email": argument}}),
        },
    ]


def row(task: str = "t1", **texts: Any) -> dict[str, Any]:
    return {
        "row_id": task,
        "session_id": task,
        "task_key": task,
        "content_sha256": "0" * 64,
        **(texts or {"messages": messages()}),
    }


def seen(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return list(with_surrogates(rows))


def test_what_is_called_is_what_the_user_gave():
    [shown] = seen(row())
    given_by_user = shown["messages"][1]["content"].removeprefix("I am ").removesuffix(".")
    arguments = json.loads(shown["messages"][2]["tool_calls"][0]["function"]["arguments"])
    assert (
        arguments["email"]
        == given_by_user
        == json.loads(shown["messages"][3]["content"])["customer"]["email"]
    )
    assert "@" in given_by_user and not PSEUDONYM.search(json.dumps(shown))


MAIL_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "send_mail",
            "description": "Send a mail, for example to ana.lopez@gmail.com.",
            "parameters": {
                "type": "object",
                "properties": {
                    "sender": {"type": "string", "enum": ["sales@corner.io", "help@corner.io"]}
                },
            },
        },
    }
]


@given(st.lists(st.sampled_from(["eva@corner.io", "otto@corner.io", "help@corner.io"]), max_size=3))
@settings(max_examples=20)
def test_values_of_the_tools(said):
    """A value that the tools allow is the value of the call, and equal tools stay equal.

    The number of a pseudonym in the tools was that of the conversation: two trials of one task had
    different tools. The call had a made-up value, and the tools still had the pseudonym.
    """
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "send_mail", "arguments": '{"sender": "help@corner.io"}'},
    }
    chats = [
        [
            {"role": "user", "content": f"I am {' and '.join(addresses) or 'nobody'}."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        for addresses in (said, [])
    ]
    sessions = [
        Session(
            session_id=str(number),
            project="p",
            agent="a",
            source="test",
            messages=chat,
            tools=MAIL_TOOLS,
        )
        for number, chat in enumerate(chats)
    ]
    redactor = Redactor(RedactionOptions())
    for session in sessions:
        redactor.redact(session)
    assert sessions[0].tools == sessions[1].tools != MAIL_TOOLS
    first, second = seen(
        *(row(str(n), messages=s.messages) | {"tools": s.tools} for n, s in enumerate(sessions))
    )
    assert first["tools"] == second["tools"]
    assert not PSEUDONYM.search(json.dumps(first))
    function = first["tools"][0]["function"]
    allowed = function["parameters"]["properties"]["sender"]["enum"]
    arguments = json.loads(first["messages"][1]["tool_calls"][0]["function"]["arguments"])
    assert arguments["sender"] == allowed[1] != allowed[0]
    old = surrogates_made_from([row()], seen(row()))
    assert old == surrogates_made_from([row() | {"tools": []}], seen(row() | {"tools": []}))


def test_another_task_has_other_values_and_another_trial_of_it_the_same():
    first, again, other = (each["messages"][1]["content"] for each in seen(row(), row(), row("t2")))
    assert first == again != other


def test_what_the_system_prompt_holds_is_the_same_for_all_tasks():
    first, other = seen(row(), row("t2"))
    assert (
        first["messages"][0] == other["messages"][0] and "<" not in first["messages"][0]["content"]
    )


def test_a_value_of_the_system_prompt_is_the_same_where_a_user_repeats_it():
    [shown] = (
        each["messages"] for each in seen(row(messages=messages(user="Is <EMAIL_1> yours?")))
    )
    assert shown[1]["content"].split()[1] in shown[0]["content"]


def test_the_sides_of_a_pair_share_their_values():
    prompt, answer = messages()[1:2], [{"role": "assistant", "content": "Is it <EMAIL_2>?"}]
    [shown] = seen(row(prompt=prompt, chosen=answer, rejected=answer))
    address = shown["prompt"][0]["content"].split()[-1].rstrip(".")
    assert address in shown["chosen"][0]["content"] and shown["chosen"] == shown["rejected"]


def test_a_value_of_the_system_prompt_is_the_same_in_an_answer_that_stands_in_a_column_of_its_own():
    prompt, answer = messages()[:2], [{"role": "assistant", "content": "Mail <EMAIL_1>."}]
    for column in ("chosen", "rejected", "completion"):
        [shown] = seen(row(prompt=prompt, **{column: answer}))
        assert (
            shown[column][0]["content"].removeprefix("Mail ").rstrip(".")
            in shown["prompt"][0]["content"]
        )


def test_a_row_without_pseudonyms_is_the_same_object_and_a_manifest_tells_where_models_saw_another():
    plain, private = (
        row(messages=[{"role": "user", "content": "a < b, <EMAIL_0>, <WORD_1>"}]),
        row(),
    )
    before = deepcopy(private)
    shown = seen(plain, private)
    assert shown[0] is plain and private == before and shown[1] != before
    assert surrogates_made_from([plain], shown[:1]) == {}
    assert surrogates_made_from([plain, private], shown).keys() == {"surrogates_sha256"}


def test_kinds_without_a_form_of_their_own_keep_their_pseudonyms():
    kept = [kind for kind in KINDS if kind not in VALUES]
    assert {"PRIVATE_KEY", "CONNECTION_STRING"} <= set(kept)
    text = " ".join(f"<{kind}_1>" for kind in kept)
    assert spoken([{"role": "user", "content": text}], "t", "")[0]["content"] == text


@pytest.mark.parametrize("kind", ["EMAIL", "CARD", "IBAN", "SSN"])
def test_a_value_is_what_redaction_takes_for_its_kind(kind):
    for task in range(20):
        text = spoken([{"role": "user", "content": f"Mine is <{kind}_1>."}], str(task), "")[0][
            "content"
        ]
        session = Session(
            session_id="s",
            project="p",
            agent="a",
            source="test",
            messages=[{"role": "user", "content": text}],
        )
        assert Redactor(RedactionOptions()).redact(session) == {kind: 1}, text


@given(st.sampled_from(sorted(VALUES)), st.integers(1, 50), st.text(max_size=8))
def test_no_value_breaks_the_json_that_it_stands_in(kind, number, task):
    pseudonym = f"<{kind}_{number}>"
    inner = json.dumps({"value": pseudonym})
    shown = spoken([{"role": "tool", "content": json.dumps({"text": inner})}], task, "")[0][
        "content"
    ]
    value = json.loads(json.loads(shown)["text"])["value"]
    assert value and value != pseudonym and not PSEUDONYM.search(shown)


@pytest.mark.parametrize("asked", [True, False])
def test_the_setting_decides_what_models_see(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_PIPELINE_REDACTION__SURROGATES", str(asked).lower())
    params = common_params(load_settings(), PartitionKey("shop", "support"))
    assert (params.shown_to_models([row()]) != [row()]) is asked


def example_tool(description: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "send_mail", "description": description}}


@pytest.mark.parametrize("description", ["Send a mail to <EMAIL_1>.", "Send a mail, if a < b."])
def test_equal_tools_are_one_object(description: str) -> None:
    """Each row had a copy of its tools: a store of 2,000 rows took seven times the memory."""
    stored = [row(f"t{n}") | {"tools": deepcopy([example_tool(description)])} for n in range(3)]
    shown = seen(*stored)
    if "EMAIL" in description:
        assert all(each["tools"] is shown[0]["tools"] for each in shown)
        assert not PSEUDONYM.search(json.dumps(shown))
    else:
        assert all(each["tools"] is old["tools"] for each, old in zip(shown, stored, strict=True))
