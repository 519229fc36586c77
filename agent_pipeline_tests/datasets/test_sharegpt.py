"""ShareGPT turns: nothing of a chat is lost on the way."""

import json

from hypothesis import given, settings

from agent_pipeline.datasets.sft import sft_rows
from agent_pipeline.datasets.sharegpt import SHAREGPT, conversations, sharegpt_rows
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.traces.tables import to_rows, to_table
from agent_pipeline_tests.datasets.chats import answers, calls, chats, says, session, user


def test_words_calls_and_results_have_turns_of_their_own():
    chat = [
        {"role": "system", "content": "s"},
        user("x"),
        calls(("1", "f", {"a": 1}), text="Let me see."),
        answers("1", "one"),
        calls(("2", "g", {}), ("3", "h", {})),
        answers("2", "two"),
        answers("3", "three"),
        says("Done."),
    ]
    turns = [(turn["from"], turn["value"]) for turn in conversations(chat)]
    assert turns == [
        ("system", "s"),
        ("human", "x"),
        ("gpt", "Let me see."),
        ("function_call", '{"name": "f", "arguments": {"a": 1}}'),
        ("observation", "one"),
        ("function_call", '[{"name": "g", "arguments": {}}, {"name": "h", "arguments": {}}]'),
        ("observation", '["two", "three"]'),
        ("gpt", "Done."),
    ]


def test_tools_are_the_json_of_their_functions_and_nothing_where_there_are_none():
    tools = [{"type": "function", "function": {"name": "f"}}]
    rows = list(
        sharegpt_rows(sft_rows([session("a", [user("x"), says("y")], tools=tools), session("b", [user("x"), says("y")])], SplitSizes()))
    )
    assert [row["tools"] for row in rows] == ['[{"name": "f"}]', ""]
    assert list(to_rows(to_table(rows, SHAREGPT))) == rows


@given(chats())
@settings(max_examples=200)
def test_all_words_calls_and_results_are_there_in_order(messages):
    def lines():
        for message in messages:
            if message["role"] == "tool":
                yield "observation", message["content"]
                continue
            if message["content"]:
                yield {"user": "human", "assistant": "gpt"}[message["role"]], message["content"]
            for call in message.get("tool_calls", ()):
                yield "function_call", {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}

    def flat(turns):
        for turn in turns:
            if turn["from"] == "function_call":
                value = json.loads(turn["value"])
                yield from (("function_call", each) for each in (value if isinstance(value, list) else [value]))
            elif turn["from"] == "observation" and turn["value"].startswith("["):
                yield from (("observation", each) for each in json.loads(turn["value"]))
            else:
                yield turn["from"], turn["value"]

    assert list(flat(conversations(messages))) == list(lines())
