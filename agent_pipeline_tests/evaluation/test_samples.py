"""Cutting conversations into samples."""

from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.models.tool_call_parsers import ParsedCall
from agent_pipeline_tests.training.world import row


def test_each_assistant_turn_of_a_held_out_row_is_a_sample():
    samples, counts = turn_samples([row(0), row(1, "test")])
    call, answer = samples
    assert (
        call.calls == (ParsedCall("weather", {"city": "Rome", "days": 2}),)
        and call.turn_index == 2
        and len(call.prompt) == 2
    )
    assert (
        answer.calls == ()
        and answer.text == "It is sunny in Rome."
        and answer.prompt[-1]["role"] == "tool"
    )
    assert {sample.session_id for sample in samples} == {"session-1"}
    assert counts == {"turns": 2, "duplicates": 0, "left_out": 0, "samples": 2}


def test_equal_samples_are_kept_once_whatever_their_call_ids():
    again = {**row(1, "test"), "row_id": "again", "session_id": "again"}
    again["messages"] = [dict(message) for message in again["messages"]]
    again["messages"][2]["tool_calls"] = [{**again["messages"][2]["tool_calls"][0], "id": "other"}]
    samples, counts = turn_samples([row(1, "test"), again])
    assert len(samples) == 2 and counts["duplicates"] == 2


def test_a_cap_spreads_over_tasks_and_is_the_same_every_time():
    rows = [row(number, "test") for number in range(30)]
    samples, counts = turn_samples(rows, max_samples=30)
    assert len({sample.task_key for sample in samples}) == 30 and counts["left_out"] == 30
    assert turn_samples(rows, max_samples=30)[0] == samples
    assert turn_samples(rows, max_samples=30, seed=1)[0] != samples
    some, _ = turn_samples(rows[::-1], max_samples=7)
    assert {sample.key for sample in some} == {
        sample.key for sample in turn_samples(rows, max_samples=7)[0]
    }
