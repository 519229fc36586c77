"""Training data in the forms that people have it in."""

import json

import pytest
from datasets import Dataset
from hypothesis import given, settings
from pyarrow.parquet import write_table

from agent_pipeline.compat.sage.trajectories.trajectory import AgentTrajectory, TrajectoryStep
from agent_pipeline.compat.samples import read_conversations, read_samples
from agent_pipeline.datasets.sft import SFT, cut_after_last_trained_turn
from agent_pipeline.datasets.sharegpt import make_sharegpt_rows
from agent_pipeline.errors import DataError
from agent_pipeline.sessions.tables import to_table
from agent_pipeline_tests.datasets.chats import chats
from agent_pipeline_tests.training.world import TOOL, row

CHAT = [{"role": "user", "content": "Rome?"}, {"role": "assistant", "content": "Sunny."}]


def messages(record):
    (found,) = read_samples([record]).rows
    return found["messages"]


def test_each_form_gives_the_same_conversation():
    assert messages({"messages": CHAT}) == CHAT
    assert (
        messages(
            {
                "conversations": [
                    {"from": "human", "value": "Rome?"},
                    {"from": "gpt", "value": "Sunny."},
                ]
            }
        )
        == CHAT
    )
    assert messages({"instruction": "Rome?", "input": "", "output": "Sunny."}) == CHAT
    assert messages({"prompt": CHAT[:1], "completion": CHAT[1:]}) == CHAT
    run = AgentTrajectory("t", "Rome?", [TrajectoryStep(thought="Sunny.")], True, 1.0)
    assert messages(run) == CHAT


def test_only_the_completion_is_learnt():
    early = [*CHAT, {"role": "user", "content": "Oslo?"}]
    found = messages({"prompt": early, "completion": [{"role": "assistant", "content": "Rain."}]})
    assert [message.get("weight", 1) for message in found if message["role"] == "assistant"] == [
        0,
        1,
    ]


def test_turns_that_are_not_to_be_learnt_stay_so():
    again = [
        {"role": "user", "content": "And Oslo?"},
        {"role": "assistant", "content": "Rain.", "weight": 1},
    ]
    found = messages({"messages": [CHAT[0], CHAT[1] | {"weight": 0}, *again]})
    assert [message.get("weight", 1) for message in found] == [1, 0, 1, 1]


def test_a_row_of_our_sharegpt_table_loses_nothing():
    spoken = row(1)["messages"]
    spoken = [*spoken[:2], spoken[2] | {"content": "Let me see.", "weight": 0}, *spoken[3:]]
    (made,) = make_sharegpt_rows([row(1) | {"messages": spoken}], alternating=False)
    (found,) = read_samples([made]).rows
    assert found["messages"] == spoken and found["tools"] == [TOOL]


def test_another_sharegpt_row_keeps_what_is_not_to_be_learnt():
    turns = [
        {"from": "human", "value": "Rome?"},
        {
            "from": "function_call",
            "value": '{"name": "weather", "arguments": {"city": "Rome"}}',
            "train": False,
        },
        {"from": "observation", "value": "sun"},
        {"from": "gpt", "value": "Sunny."},
    ]
    found = messages({"conversations": turns})
    assert found[1]["tool_calls"][0]["function"]["name"] == "weather"
    assert [message.get("weight", 1) for message in found if message["role"] == "assistant"] == [
        0,
        1,
    ]


def test_texts_stay_texts():
    found = read_samples([{"prompt": "Q: Rome?\nA:", "completion": " Sunny."}])
    assert found.texts == [("Q: Rome?\nA:", " Sunny.")] and not found.rows
    with pytest.raises(DataError, match=r"1 of 1 .*texts"):
        read_conversations([{"prompt": "Q", "completion": "A"}])


def test_our_rows_keep_their_names_and_their_side():
    found = read_samples([row(1), row(2, "test"), row(1)])
    assert [each["row_id"] for each in found.rows] == ["row-1", "row-1~2"]
    assert found.rows[0]["task_key"] == "task-1" and found.rows[0]["tools"] == [TOOL]
    assert found.counts == {"records": 3, "rows": 2, "of_another_split": 1}
    assert [each["row_id"] for each in read_samples([row(1), row(2, "test")], "test").rows] == [
        "row-2"
    ]


def test_a_score_and_a_time_come_along_where_they_are_known():
    found = read_samples(
        [
            {"messages": CHAT, "score": 1, "created_at": "2026-01-02T03:04:05"},
            {"messages": CHAT, "score": "?"},
        ]
    ).rows
    assert (
        found[0]["score"] == 1.0 and found[0]["created_at"].year == 2026 and "score" not in found[1]
    )


def test_keys_that_datasets_filled_with_null_are_none(tmp_path):
    with_call = {"messages": row(1)["messages"], "tools": [TOOL]}
    filled = Dataset.from_list([with_call, {"messages": CHAT, "tools": []}])
    assert filled[1]["messages"][0]["tool_calls"] is None, "the trap is there"
    filled.save_to_disk(str(tmp_path / "saved"))
    for data in (filled, tmp_path / "saved"):
        found = read_samples(data).rows
        assert (
            found[1]["messages"] == CHAT
            and found[0]["messages"] == row(1)["messages"]
            and found[0]["tools"] == [TOOL]
        )


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_files_are_read(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        write_table(to_table([row(1), row(2)], SFT), path)
    else:
        path.write_text(
            "\n".join(json.dumps(row(n)) for n in (1, 2))
            if name.endswith("l")
            else json.dumps([row(1), row(2)])
        )
    found = read_samples(path).rows
    assert [each["messages"] for each in found] == [row(1)["messages"], row(2)["messages"]]
    assert [each["row_id"] for each in found] == ["row-1", "row-2"]


def test_what_cannot_be_learnt_is_counted():
    data = [
        {"messages": CHAT},
        {"messages": CHAT[:1]},
        {"text": "x"},
        3,
        {"messages": [CHAT[0], {"role": "tool", "content": "?"}, CHAT[1]]},
    ]
    assert read_samples(data).counts == {
        "records": 5, "rows": 1, "nothing_to_learn": 1, "unknown_keys": 1, "no_record": 1, "broken:orphan_output": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ([], "it is empty"),
        ([{"text": "x"}], "unknown_keys 1.*give records with messages"),
        ({"messages": CHAT}, "has the type dict"),
        ("/nowhere.jsonl", "/nowhere.jsonl"),
    ],
)
def test_no_data_is_one_sentence(data, what):
    with pytest.raises(DataError, match=what) as error:
        read_samples(data)
    assert "\n" not in str(error.value)


def test_a_file_with_a_broken_line_is_not_trained_on_in_part(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row(1)) + "\nnot json\n")
    with pytest.raises(DataError):
        read_samples(path)


@settings(max_examples=60, deadline=None)
@given(chats())
def test_a_sound_conversation_stays_as_it_is_to_its_last_answer(chat):
    expected = cut_after_last_trained_turn(chat)
    if expected:
        assert messages({"messages": chat}) == expected
