"""P(call) at a turn."""

import math

import numpy as np
import pytest

from agent_pipeline.engine.scoring import TokenScores, score_tokens
from agent_pipeline.evaluation.call_probability import auc, call_branches, call_probability
from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.evaluation.turns import TurnAnswerer
from agent_pipeline_tests.training.world import TOOL, row


def test_a_branch_opens_a_call_at_the_beginning_and_after_each_sentence(tiny_renderer):
    prompt = row(0)["messages"][:2]
    branches = call_branches(tiny_renderer, prompt, [TOOL], "Let me see. One moment.")
    texts = [tiny_renderer.tokenizer.decode(branch.input_ids) for branch in branches]
    assert [text.partition("<|im_start|>assistant\n")[2] for text in texts] == [
        "<tool_call>",
        "Let me see.\n<tool_call>",
        "Let me see. One moment.\n<tool_call>",
    ]
    opened = [
        tiny_renderer.tokenizer.decode(
            [token for token, on in zip(each.input_ids, each.trained, strict=True) if on]
        )
        for each in branches
    ]
    assert opened[0] == "<tool_call>" and all(text.endswith("\n<tool_call>") for text in opened[1:])


def test_the_chance_of_a_call_is_that_of_any_of_its_places():
    def scores(chance):
        return TokenScores(np.array([-math.log(chance)]), np.zeros(1))

    assert call_probability([scores(0.5), scores(0.2)]) == pytest.approx(0.6)
    assert call_probability([]) is None


@pytest.mark.slow
@pytest.mark.usefixtures("in_float32")
def test_one_pass_gives_the_probability_that_the_model_itself_gives(tiny_base, adapter_dir):
    """The opening of a call is scored as a row of its own would be, and a trained model tells calls from answers by it."""
    answering = TurnAnswerer.of(tiny_base, adapter_dir)
    questions = [
        answering.question(sample, 64)
        for sample in turn_samples([row(number, "test") for number in range(25, 37)])[0]
    ]
    together = answering.forward([], questions).call_probabilities
    apart = [
        call_probability(
            [score_tokens(answering.model, [branch])[0] for branch in question.branches]
        )
        for question in questions
    ]
    assert together == pytest.approx(apart, rel=1e-3)
    called = np.array([bool(question.sample.calls) for question in questions])
    assert auc(np.array(together), called) > 0.9
