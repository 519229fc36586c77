"""Capabilities, each asked of models whose answers are known."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline import AgentCapabilityEvaluator, CapabilityScore
from agent_pipeline.compat.sage.capabilities import CAPABILITIES
from agent_pipeline.errors import ArgumentError, DataError
from agent_pipeline_tests.training.world import call, row

ROWS = [row(number) for number in range(4)]
EVALUATOR = AgentCapabilityEvaluator()


def agent(messages: list[dict[str, Any]], tools: list[Any]) -> dict[str, Any]:
    """Does what the recorded agent did."""
    done = next(each["messages"] for each in ROWS if each["messages"][1] == messages[1])
    return done[len(messages)]


def silent(messages: list[dict[str, Any]], tools: list[Any]) -> str:
    return "aaaa 17"


def caller(name: str = "weather", **arguments: Any) -> Any:
    """Calls the same tool whatever is asked."""
    return lambda messages, tools: {
        "role": "assistant",
        "content": "",
        "tool_calls": [call(name, arguments)],
    }


def scored(cap: str, model: Any, data: Any = ROWS) -> CapabilityScore:
    return EVALUATOR.evaluate_capability(model, cap, data)


@pytest.mark.parametrize("cap", CAPABILITIES)
def test_who_does_what_the_agent_did_can_do_everything(cap):
    found = scored(cap, agent)
    assert found.score == 1.0 and found.num_samples > 0


@pytest.mark.parametrize("cap", ["tool_use", "planning", "reasoning"])
def test_who_babbles_can_do_nothing(cap):
    assert scored(cap, silent).score == 0.0


def test_a_call_needs_the_right_name_and_arguments():
    rome = ROWS[1]["messages"][2]["tool_calls"][0]["function"]["arguments"]
    found = scored("tool_use", caller(**json.loads(rome)))
    assert (found.score, found.num_samples) == (0.25, 4)
    assert (found.details["tool_name"], found.details["arguments"], found.details["called"]) == (
        1.0,
        0.25,
        1.0,
    )
    wrong = scored("tool_use", caller("climate", **json.loads(rome)))
    assert (wrong.score, wrong.details["tool_name"], wrong.details["arguments"]) == (0.0, 0.0, 0.25)


def test_planning_is_how_far_along_the_steps_one_comes():
    found = scored("planning", caller(city="anywhere"))
    assert found.score == 0.5, "the call comes next, the answer does not"
    assert (found.details["complete"], found.details["next_step"], found.details["steps"]) == (
        0.0,
        0.5,
        8,
    )
    late = scored("planning", lambda messages, tools: "An answer.")
    assert late.score == 0.0 and late.details["next_step"] == 0.5, (
        "a step after a miss is no progress"
    )


def test_planning_needs_several_steps():
    found = scored(
        "planning",
        silent,
        [
            {
                "messages": [
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": "Hello."},
                ]
            }
        ],
    )
    assert found.score is None and found.num_samples == 0, "null is not zero"


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (caller(city="Atlantis"), "ungrounded_argument"),
        (lambda messages, tools: "<tool_call>{broken</tool_call>", "invalid_call"),
        (lambda messages, tools: "It is sunny, 99 degrees.", "ungrounded_number"),
        (lambda messages, tools: agent(messages[:2], tools), "repeated_call"),
    ],
)
def test_a_chain_breaks_where_something_comes_from_nowhere(reply, fault):
    found = scored("reasoning", reply)
    assert found.details["faults"][fault] > 0 and found.score < 1


def test_an_answer_counts_by_its_words():
    def half(messages, tools):
        return agent(messages, tools) if len(messages) < 4 else "It is rainy"

    found = scored("reasoning", half)
    # Of each chain the call is right, and the answer has 2 of its 3 words among the agent's 5: F1 = 2·2/(3+5).
    assert found.score == pytest.approx((1 + 0.5) / 2)


def test_instructions_are_measures_of_the_reply():
    sample = {
        **ROWS[0],
        "messages": [*ROWS[0]["messages"]],
        "instructions": ["answer_mentions('sunny')", "at_most_steps(1)"],
    }
    found = scored("instruction_following", agent, [sample])
    assert (found.score, found.num_samples) == (0.75, 4), "the turn that calls mentions nothing"
    assert (
        found.details["missed"] == {"answer_mentions('sunny')": 1}
        and found.details["all_of_a_turn"] == 0.5
    )


def test_without_instructions_a_call_must_fit_its_schema():
    found = scored("instruction_following", caller(town="Oslo"))
    assert found.details["missed"]["arguments_match_schema"] == 8 and 0 < found.score < 1


def test_the_report_has_every_capability_that_was_asked():
    report = EVALUATOR.evaluate(agent, {"tool_use": ROWS, "planning": ROWS[:2]})
    assert report.get_score("tool_use") == 1.0 and report.overall == 1.0
    assert json.loads(json.dumps(report.to_dict()))["scores"]["planning"]["num_samples"] == 2
    assert (
        report.summary().splitlines()[0].split()[:2] == ["tool_use", "1.00"]
        and "overall" in report.summary()
    )
    with pytest.raises(ArgumentError, match=r"reasoning.*tool_use, planning"):
        report.get_score("reasoning")


def test_fewer_turns_may_be_asked():
    assert (
        AgentCapabilityEvaluator(max_samples=2)
        .evaluate_capability(agent, "reasoning", ROWS)
        .details["left_out"]
        == 6
    )


@pytest.mark.parametrize(
    ("cap", "data", "what"),
    [
        ("magic", ROWS, "capability 'magic' does not exist"),
        ("tool_use", [{"text": "x"}], "Sample 1 of tool_use has no messages"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(cap, data, what):
    with pytest.raises((ArgumentError, DataError), match=what):
        scored(cap, agent, data)
    with pytest.raises(ArgumentError, match="model of transformers"):
        scored("tool_use", 3)


class Forecast:
    """A world: the task is done when the weather was asked for, of the city of the first question; another city is a wrong change."""

    must_act = True

    def reset(self, messages: list[dict[str, Any]], **row: Any) -> None:
        self._city, self._asked = messages[1]["content"].split()[2], []

    def weather(self, city: str, days: int = 1) -> str:
        """Weather in a city."""
        self._asked.append(city)
        return "sunny"

    @property
    def wrong_changes(self) -> list[str]:
        return [city for city in self._asked if city != self._city]

    def get_reward(self) -> float:
        return float(set(self._asked) == {self._city})


def test_with_a_world_planning_is_what_a_model_does_in_it():
    """A model that calls at random, or only talks, scores what it does, whatever the recorded agent said."""
    evaluator = AgentCapabilityEvaluator(world=f"{__name__}:Forecast")

    def oslo(messages: list[dict[str, Any]], tools: list[Any]) -> Any:
        return (
            caller(city="Oslo")(messages, tools)
            if messages[-1]["role"] == "user"
            else "It is sunny."
        )

    found = {
        name: evaluator.evaluate_capability(model, "planning", [*ROWS, ROWS[0]])
        for name, model in (("oslo", oslo), ("none", silent))
    }
    assert (found["oslo"].score, found["oslo"].num_samples) == (0.25, 4), (
        "one city of four; trials of a task are one task"
    )
    assert (
        found["oslo"].details["harm"] == {"n": 3, "of": 4}
        and found["oslo"].details["of"] == "tasks played"
    )
    assert found["none"].score == 0 and found["none"].details["ends"] == {"answered": 4}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "Sunny.",
                "It is sunny in Oslo.",
                "<tool_call>{}</tool_call>",
                '{"name": "weather", "arguments": {"city": "Oslo"}}',
                "7",
            ]
        )
    )
)
def test_scores_are_shares_whatever_is_said(replies):
    said = iter(replies)
    for cap in CAPABILITIES:
        score = scored(cap, lambda messages, tools: next(said, "")).score
        assert score is not None and 0 <= score <= 1


@pytest.mark.slow
def test_a_model_in_memory_and_its_directory_are_asked_alike(tiny_base, adapter_dir):
    from agent_pipeline.models.device import probe_device
    from agent_pipeline.models.loading import load_model

    evaluator = AgentCapabilityEvaluator(max_new_tokens=48)
    of_base = evaluator.evaluate_capability(str(tiny_base.path), "tool_use", ROWS)
    assert of_base.score == 0.0 and of_base == evaluator.evaluate_capability(
        load_model(tiny_base, probe_device()), "tool_use", ROWS
    )
    trained = load_model(tiny_base, probe_device(), adapter_dir)
    of_trained = evaluator.evaluate_capability(trained, "tool_use", ROWS)
    assert of_trained.details["called"] > of_base.details["called"], (
        "it has learnt to call, if not yet well"
    )
