"""ShareGPT turns: what loaders want, and nothing of a chat is lost on the way."""

import io
import json
from collections import Counter

import jsonschema
import pyarrow.json as paj
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.datasets.formats import REFUSED_NAME, convert_rows
from agent_pipeline.datasets.sft import make_sft_rows
from agent_pipeline.datasets.sharegpt import (
    SHAREGPT,
    from_sharegpt_turns,
    make_sharegpt_rows,
    to_sharegpt_turns,
    turns_alternate,
)
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import drop_error_marks
from agent_pipeline.sessions.tables import to_rows, to_table
from agent_pipeline.sources import open_source
from agent_pipeline_tests.datasets.chats import answers, calls, chats, rows_of, says, session, user
from agent_pipeline_tests.datasets.schemas import AXOLOTL, OPENAI, llama_factory_refuses

TOOL = {"type": "function", "function": {"name": "f"}}
IS_OPENAI, IS_AXOLOTL = (jsonschema.Draft202012Validator(schema) for schema in (OPENAI, AXOLOTL))


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
    turns = to_sharegpt_turns(chat)
    assert [(turn["from"], turn["value"]) for turn in turns] == [
        ("system", "s"),
        ("human", "x\n\ny"),
        ("function_call", '{"name": "f", "arguments": {"a": 1}}'),
        ("observation", "one"),
        ("function_call", '[{"name": "g", "arguments": {}}, {"name": "h", "arguments": {}}]'),
        ("observation", '["two", "three"]'),
        ("gpt", "Done."),
    ]
    assert turns[2]["words"] == "Let me see." and turns_alternate(turns)
    assert from_sharegpt_turns(turns) == chat


@pytest.mark.parametrize(
    "chat",
    [
        [says("Hello!"), user("x"), says("y")],
        [user("x"), says("y"), says("z")],
        [user("x"), calls(("1", "f", {})), answers("1", "one"), user("y"), says("z")],
        [user("x"), {"role": "system", "content": "s"}, says("z")],
        [user("x"), says("y"), user("z")],
        [user("x"), says("y") | {"reasoning_content": "hm"}, user("z")],
    ],
)
def test_what_loaders_throw_away_is_left_out_and_counted(chat):
    assert llama_factory_refuses({"conversations": to_sharegpt_turns(chat), "tools": ""})
    row = {
        "row_id": "a",
        "session_id": "a",
        "content_sha256": "",
        "task_key": "t",
        "split": "train",
        "messages": chat,
        "tools": [],
    }
    counts: Counter[str] = Counter()
    assert list(make_sharegpt_rows([row], counts)) == [] and counts == {"turns_do_not_alternate": 1}
    assert len(list(make_sharegpt_rows([row], alternating=False))) == 1
    assert from_sharegpt_turns(to_sharegpt_turns(chat)) == chat


def test_untrained_turn():
    """LLaMA-Factory trains every turn of the agent, also one with `weight: 0`."""
    chat = [user("x"), says("cut") | {"weight": 0}, user("y"), says("z")]
    (row,) = make_sft_rows(rows_of(session("a", chat)), SplitSizes())
    counts: Counter[str] = Counter()
    assert list(make_sharegpt_rows([row], counts)) == []
    assert counts == {"a_turn_is_not_to_be_trained": 1}
    (kept,) = make_sharegpt_rows([row], alternating=False)
    assert from_sharegpt_turns(kept["conversations"]) == chat


def rows_with(*tools):
    sessions = [
        session(str(at), [user("x"), says("y")], tools=each) for at, each in enumerate(tools)
    ]
    return list(make_sharegpt_rows(make_sft_rows(rows_of(*sessions), SplitSizes())))


def test_tools_are_the_json_of_their_schemas_and_null_where_there_are_none():
    rows = rows_with([TOOL], [{"name": "g", "parameters": {"type": "object", "required": []}}], [])
    made = [row["tools"] and json.loads(row["tools"]) for row in rows]
    takes_none = {"type": "object", "properties": {}}
    assert made[0] == [{"type": "function", "function": {"name": "f", "parameters": takes_none}}]
    assert made[1] == [
        {"type": "function", "function": {"name": "g", "parameters": takes_none | {"required": []}}}
    ]
    assert made[2] is None and not any(map(llama_factory_refuses, rows))
    assert list(to_rows(to_table(rows, SHAREGPT))) == rows


def read_by_older_datasets(rows):
    """What `datasets` 4.0 makes of a file: it is read by Arrow's JSON reader, which wants one type of each key at each depth."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8")
    read = paj.read_json(
        io.BytesIO(lines), paj.ReadOptions(block_size=max(1 << 20, len(lines)))
    ).to_pylist()
    for row in read:  # a key that no row has is none; within a turn, it is filled in with null, which loaders take as absent
        row["conversations"] = [
            {name: value for name, value in turn.items() if value is not None}
            for turn in row["conversations"]
        ]
    return read


def test_schemas_of_other_types_do_not_keep_an_older_reader_from_the_file_nor_get_keys_of_one_another():
    kinds = [
        {"type": "string"},
        {"type": ["number", "string"]},
        {"anyOf": [{"type": "null"}, {"enum": [1, "a"]}]},
    ]
    rows = rows_with(
        *(
            [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "parameters": {"type": "object", "properties": {"a": kind}},
                    },
                }
            ]
            for kind in kinds
        )
    )
    assert read_by_older_datasets(rows) == rows


ODD_ARGUMENTS = st.sampled_from(
    [
        "",
        "{",
        "[1]",
        "null",
        ' {"a": 1}',
        '{"a":1,"a":2}',
        '{"a": 1e400}',
        '"{}"',
        "{}x",
        '{\n "a": [ ]}',
    ]
)


@given(chats(), st.lists(ODD_ARGUMENTS, max_size=4), st.sets(st.integers(0, 8)))
@settings(max_examples=100)
def test_every_chat_comes_back_as_it_was(messages, odd, unlearnt):
    made = [call for message in messages for call in message.get("tool_calls", ())]
    for call, arguments in zip(made, odd, strict=False):
        call["function"]["arguments"] = arguments
    untrained = [
        at in unlearnt and message["role"] == "assistant" for at, message in enumerate(messages)
    ]
    messages = [
        message | {"weight": 0} if marked else message
        for message, marked in zip(messages, untrained, strict=True)
    ]
    turns = to_sharegpt_turns(messages)
    assert from_sharegpt_turns(json.loads(json.dumps(turns))) == messages
    assert turns_alternate(turns) == (
        not llama_factory_refuses({"conversations": turns, "tools": ""})
    )
    IS_AXOLOTL.validate({"conversations": turns, "tools": None})


@pytest.mark.parametrize(
    "schema",
    ["f", None, 3, ["f"], {"function": "f"}, {"function": {"name": "f", "parameters": "none"}}],
)
def test_a_row_with_a_tool_schema_that_is_none_is_left_out_and_counted(schema):
    counts = Counter()
    rows = [
        row | {"tools": [schema]}
        for row in make_sft_rows(rows_of(session("a", [user("x"), says("y")])), SplitSizes())
    ]
    assert list(make_sharegpt_rows(rows, counts)) == [] and counts["invalid_tool_schema"] == 1


EMPTY_NAME = "<empty-function-name>"
"""Some of AgentDojo's models called it, so that it is among the tools inferred; OpenAI refuses a file with such a name."""

STORES = [
    "agentdojo",
    "tau-bench",
    "stores/omniagents_home",
    "stores/openai_agents_sessions.db",
    "stores/openai_agents_traces.jsonl",
    "toolbench",
    "inspect-logs",
    "swe-agent",
]


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_every_real_session_comes_back_from_sharegpt_and_from_openais_lines_as_it_was(
    real_traces, store
):
    source, number, counts = open_source(real_traces / store), 0, Counter[str]()
    for key in source.partitions():
        sessions = [
            each
            for each in read_sessions(
                source, key, ReadingOptions(redaction=RedactionOptions(enabled=False))
            )
            if each.messages and each.broken is None
        ]
        for each in sessions:  # as data sets are made
            each.messages = drop_error_marks(each.messages)
        rows = list(make_sft_rows(rows_of(*sessions), SplitSizes()))
        for at, row in enumerate(rows):
            for line in convert_rows([row], "openai", counts):
                back = json.loads(json.dumps(line, ensure_ascii=False))
                assert (
                    at % 20 or IS_OPENAI.validate(back) is None
                )  # it takes longer than all the rest
                tools = [tool for tool in row["tools"] if tool["function"]["name"] != EMPTY_NAME]
                assert (back["messages"], back.get("tools", [])) == (row["messages"], tools)
        for each in sessions:
            assert (
                from_sharegpt_turns(json.loads(json.dumps(to_sharegpt_turns(each.messages))))
                == each.messages
            )
        tools = {row["row_id"]: row["tools"] for row in rows}
        shared = list(make_sharegpt_rows(rows))
        for made in shared:
            assert not llama_factory_refuses(made), made["session_id"]
            assert json.loads(made["tools"] or "[]") == tools[made["row_id"]]
        assert all(IS_AXOLOTL.validate(made) is None for made in shared[::20])
        assert not shared or read_by_older_datasets(shared) == shared
        number += len(sessions)
    assert number and set(counts) <= {
        "rows_in_form",
        *([REFUSED_NAME] if store == "agentdojo" else ()),
    }
