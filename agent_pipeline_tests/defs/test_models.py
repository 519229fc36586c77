"""The checks of the stage `models`: what a useless adapter comes to."""

import json

import msgspec

from agent_pipeline.defs.models.evaluation import better_check
from agent_pipeline.evaluation.answer_scoring import score
from agent_pipeline.evaluation.evaluation_report import EvaluationReport, ModelFigures
from agent_pipeline.evaluation.model_comparison import compare_answers, measure_answers
from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline_tests.training.world import row

TURNS = [sample for number in range(20) for sample in turn_samples([row(number, "test")])[0]]


def checked(*written: str, cut: bool = False, unended_calls: int = 0):
    """The check on an adapter that writes these at a call and at an answer (empty: what is right), beside a base that says nothing."""
    asked = [(turn, written[not turn.calls]) for turn in TURNS]
    tasks, right = [turn.task_key for turn in TURNS], "<tool_call>{}</tool_call>"
    texts = [
        text or (right.format(call_of(turn)) if turn.calls else turn.text) for turn, text in asked
    ]
    adapter = [score(turn, text, cut) for turn, text in zip(TURNS, texts, strict=True)]
    base = [score(turn, "") for turn in TURNS]
    return better_check(
        EvaluationReport(
            n=len(TURNS),
            base=ModelFigures(),
            adapter=ModelFigures(
                unended_calls=unended_calls,
                **msgspec.structs.asdict(measure_answers(tasks, adapter)),
            ),
            differences=compare_answers(tasks, base, adapter),
        )
    )


def call_of(turn) -> str:
    return json.dumps({"name": turn.calls[0].name, "arguments": turn.calls[0].arguments})


def test_an_adapter_that_calls_everywhere_does_not_beat_its_base():
    """Every call that is due is exact: it was green, whatever it did where none was."""
    assert checked("", "").passed
    everywhere = checked("", '<tool_call>{"name": "weather", "arguments": {}}</tool_call>')
    assert (
        not everywhere.passed
        and "100% of the turns that need a call, and at 100% of the turns that need no call"
        in everywhere.description
    )


def test_an_adapter_that_does_not_end_its_calls_does_not_beat_its_base():
    """Its calls are exact, since what stands behind them is not read: an agent without a world had no measure of it."""
    assert not checked("", "", unended_calls=20).passed and checked("", "", unended_calls=1).passed


def test_turns_that_the_limit_ended_are_said_to_be_so():
    """A long answer was wrong, and nobody was told why."""
    assert (
        "evaluation.max_new_tokens cut off 20 of 40 turns"
        in checked("", "In 99 days, as", cut=True).description
    )
    assert "max_new_tokens" not in checked("", "", cut=True).description
