"""ShareGPT turns: what loaders want, and nothing of a chat is lost on the way."""

import json
from collections import Counter

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.datasets.formats import in_form
from agent_pipeline.datasets.sft import sft_rows, weighted
from agent_pipeline.datasets.sharegpt import SHAREGPT, alternates, conversations, messages_of, sharegpt_rows
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.traces.reading import ReadingOptions, read_sessions
from agent_pipeline.traces.redaction import RedactionOptions
from agent_pipeline.traces.sources import open_source
from agent_pipeline.traces.tables import to_rows, to_table
from agent_pipeline_tests.datasets.chats import answers, calls, chats, says, session, user
from agent_pipeline_tests.datasets.schemas import AXOLOTL, llama_factory_refuses

TOOL = {"type": "function", "function": {"name": "f"}}


def test_words_calls_and_results_are_turns_that_alternate():
    chat = [
        {"role": "system", "content": "s"},
        user("x"),
        user("y"),
        calls(("1", "f", {"a": 1}), text="Let me see."),
        answers("1", "one"),
        calls(("2", "g", {}), ("3", "h", {})),
        answers("2", "two"),
        answers("3", "three"),
        says("Done."),
    ]
    turns = conversations(chat)
    assert [(turn["from"], turn["value"]) for turn in turns] == [
        ("system", "s"),
        ("human", "x\n\ny"),
        ("function_call", '{"name": "f", "arguments": {"a": 1}}'),
        ("observation", "one"),
        ("function_call", '[{"name": "g", "arguments": {}}, {"name": "h", "arguments": {}}]'),
        ("observation", '["two", "three"]'),
        ("gpt", "Done."),
    ]
    assert turns[2]["words"] == "Let me see." and alternates(turns)
    assert messages_of(turns) == chat


@pytest.mark.parametrize(
    "chat",
    [
        [says("Hello!"), user("x"), says("y")],
        [user("x"), says("y"), says("z")],
        [user("x"), calls(("1", "f", {})), answers("1", "one"), user("y"), says("z")],
        [user("x"), {"role": "system", "content": "s"}, says("z")],
        [user("x"), says("y"), user("z")],
    ],
)
def test_what_loaders_throw_away_is_left_out_and_counted(chat):
    assert llama_factory_refuses({"conversations": conversations(chat), "tools": ""})
    row = {"row_id": "a", "session_id": "a", "content_sha256": "", "task_key": "t", "split": "train", "messages": chat, "tools": []}
    counts: Counter[str] = Counter()
    assert list(sharegpt_rows([row], counts)) == [] and counts == {"turns_do_not_alternate": 1}
    assert len(list(sharegpt_rows([row], alternating=False))) == 1
    assert messages_of(conversations(chat)) == chat


def test_tools_are_the_json_of_their_functions_and_nothing_where_there_are_none():
    rows = list(
        sharegpt_rows(sft_rows([session("a", [user("x"), says("y")], tools=[TOOL]), session("b", [user("x"), says("y")])], SplitSizes()))
    )
    assert [(row["tools"], row["tool_schemas"]) for row in rows] == [('[{"name": "f"}]', [TOOL]), ("", [])]
    assert list(to_rows(to_table(rows, SHAREGPT))) == rows


ODD_ARGUMENTS = st.sampled_from(["", "{", "[1]", "null", ' {"a": 1}', '{"a":1,"a":2}', '{"a": 1e400}', '"{}"', "{}x", '{\n "a": [ ]}'])


@given(chats(), st.lists(ODD_ARGUMENTS, max_size=4), st.sets(st.integers(0, 8)))
@settings(max_examples=100)
def test_every_chat_comes_back_as_it_was(messages, odd, unlearnt):
    made = [call for message in messages for call in message.get("tool_calls", ())]
    for call, arguments in zip(made, odd, strict=False):
        call["function"]["arguments"] = arguments
    positions = [at for at in sorted(unlearnt) if at < len(messages) and messages[at]["role"] == "assistant"]
    messages = weighted(messages, positions) or messages
    turns = conversations(messages)
    assert messages_of(json.loads(json.dumps(turns))) == messages
    assert alternates(turns) == (not llama_factory_refuses({"conversations": turns, "tools": ""}))
    jsonschema.validate({"conversations": turns, "tool_schemas": []}, AXOLOTL)


STORES = [
    "agentdojo",
    "tau-bench/gpt-4o-airline_tasks00-24.json",
    "stores/omniagents_home",
    "stores/openai_agents_traces.jsonl",
    "toolbench",
    "inspect-logs",
    "swe-agent",
]


@pytest.mark.parametrize("store", STORES)
def test_every_real_session_comes_back_from_sharegpt_and_from_openais_lines_as_it_was(real_traces, store):
    source, number = open_source(real_traces / store), 0
    for key in source.partitions():
        sessions = [
            each
            for each in read_sessions(source, key, ReadingOptions(redaction=RedactionOptions(enabled=False)))
            if each.messages and each.broken is None
        ]
        rows = list(sft_rows(sessions, SplitSizes()))
        lines = [json.dumps(row, ensure_ascii=False) for row in in_form(rows, "openai")]
        for row, line in zip(rows, lines, strict=True):
            assert (json.loads(line)["messages"], json.loads(line).get("tools", [])) == (row["messages"], row["tools"])
        for each in sessions:
            assert messages_of(json.loads(json.dumps(conversations(each.messages)))) == each.messages
        for made in sharegpt_rows(rows):
            assert not llama_factory_refuses(made), made["session_id"]
            assert made["tool_schemas"] == next(row["tools"] for row in rows if row["row_id"] == made["row_id"])
        number += len(sessions)
    assert number
