"""The forms in which rows leave the lake, against the schemas that trainers document."""

import json
from collections import Counter

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.datasets.formats import FORMS, REFUSED_NAME, convert_rows
from agent_pipeline.datasets.sft import SFT, make_sft_rows
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.sessions.tables import to_rows, to_table
from agent_pipeline.sessions.transcript import format_transcript
from agent_pipeline_tests.datasets.chats import (
    answers,
    calls,
    chats,
    rows_of,
    says,
    session,
    user,
    with_turns,
)
from agent_pipeline_tests.datasets.schemas import OPENAI

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHAT = [user("x"), calls(("1", "f", {"a": 1})), answers("1", "one"), says("Done.")]


def sft_of(*chats_, **fields):
    return list(
        make_sft_rows(
            rows_of(*(session(str(number), chat, **fields) for number, chat in enumerate(chats_))),
            SplitSizes(),
        )
    )


def test_a_prompt_is_all_that_came_before_the_last_answer_calls_and_results_too():
    [row] = convert_rows(sft_of(CHAT, tools=[TOOL]), "prompt_completion_messages")
    assert (row["prompt"], row["completion"], row["tools"]) == (
        CHAT[:3],
        CHAT[3:],
        [TOOL],
    ) and "messages" not in row
    [row] = convert_rows(sft_of(CHAT), "prompt_completion")
    assert row["prompt"] == 'USER: x\n\nCALL: f {"a": 1}\n\nTOOL: one\n\nASSISTANT:'
    assert (
        row["completion"] == " Done."
        and format_transcript(CHAT) == row["prompt"] + row["completion"]
    )


@pytest.mark.parametrize(
    "chat",
    [
        CHAT[:2],
        [{"role": "system", "content": "s"}, says("Hello!")],
        [user("x"), calls(("1", "f", {}), text="I look.")],
    ],
)
def test_a_session_that_does_not_end_with_an_answer_to_a_user_has_no_prompt_and_completion_and_is_counted(
    chat,
):
    for name in ("prompt_completion", "prompt_completion_messages"):
        counts: Counter[str] = Counter()
        assert list(convert_rows(sft_of(chat), name, counts)) == [] and counts == {
            "rows_without_an_answer": 1
        }


@pytest.mark.parametrize("name", ["<empty-function-name>", "a.b", "x" * 65, ""])
def test_a_row_that_calls_what_openai_refuses_is_left_out_of_its_file_and_counted_and_such_a_tool_goes(
    name,
):
    named, called = (
        {"type": "function", "function": {"name": name}},
        [user("x"), calls(("1", name, {})), answers("1", "?"), says("y")],
    )
    counts: Counter[str] = Counter()
    rows = [
        *sft_of(called, tools=[named]),
        *sft_of(CHAT, tools=[named, TOOL]),
        *sft_of(CHAT, tools=[named]),
    ]
    rows[1]["messages"] = [
        message | {"reasoning_content": "hm"} for message in rows[1]["messages"]
    ]  # a key that OpenAI does not know
    lines = list(convert_rows(rows, "openai", counts))
    assert [line.get("tools") for line in lines] == [[TOOL], None] and lines[0]["messages"] == CHAT
    assert counts == {REFUSED_NAME: 1, "rows_in_form": 2}


@given(st.lists(chats(), max_size=4))
def test_every_line_is_what_openai_documents_and_every_form_survives_the_lake(everyone):
    sessions = [
        session(str(number), chat, tools=[TOOL] * (number % 2))
        for number, chat in enumerate(everyone)
    ]
    rows = list(
        make_sft_rows(
            with_turns(*sessions, measures=["answer_mentions('a')"]),
            SplitSizes(),
            None,
            ["failed_measures"],
        )
    )
    for line in convert_rows(rows, "openai"):
        jsonschema.validate(json.loads(json.dumps(line)), OPENAI)
        assert any(
            message["role"] == "assistant" and message.get("weight", 1)
            for message in line["messages"]
        )
    for name, form in FORMS.items():
        schema = form.make_schema(SFT)
        made = [
            {column: row.get(column) for column in schema.names} for row in convert_rows(rows, name)
        ]
        assert list(to_rows(to_table(made, schema))) == made
