"""The gate on decisions and calls, and what a near-tie explains."""

from types import SimpleNamespace

import pytest
import torch

from agent_pipeline.export import parity
from agent_pipeline.export.llama import Completion
from agent_pipeline.export.served_answers import gate

CALL, WORDS = ("", [("ping", '{"n": 1}')]), ("Hello.", [])
OTHER = ("", [("ping", '{"n": 2}')])
FIVE = [CALL, CALL, WORDS, WORDS, CALL]


@pytest.mark.parametrize(
    ("own", "served", "lost"),
    [
        ([CALL, WORDS], {0: CALL}, ""),
        ([CALL, ("Good day.", [])], {}, ""),
        (
            [CALL, ("Good day.", [])],
            {1: WORDS},
            "",
        ),  # the file's two tokens tie, and the server falls the merged model's way
        (
            [WORDS, WORDS],
            {},
            "1 of 2 decisions equal the merged model's; 0 of 1 calls equal the merged model's",
        ),
        ([OTHER, WORDS], {}, "0 of 1 calls equal the merged model's"),
        (
            [CALL, WORDS],
            {0: ("<tool_call>", [])},
            "llama.cpp's server and the exported file give different answers at the turns [1]",
        ),
    ],
)
def test_a_file_that_decides_or_calls_otherwise_is_not_served(own, served, lost):
    assert (
        gate([CALL, WORDS], {"q4_k_m": own}, {"q4_k_m": served}, 0.9, {})["q4_k_m"].failed == lost
    )


@pytest.mark.parametrize(
    ("own", "served", "ties", "passes"),
    [
        ([WORDS, *FIVE[1:]], {0: WORDS}, {0}, True),
        ([OTHER, *FIVE[1:]], {0: CALL}, {0}, True),  # the server falls the other way
        ([OTHER, *FIVE[1:]], {0: WORDS}, {0}, False),  # the server says a third thing
        ([WORDS, *FIVE[1:]], {}, set(), False),  # one of five differs, and nothing explains it
        ([WORDS, OTHER, *FIVE[2:]], {}, {0}, False),  # one of two is explained
        (
            [WORDS, OTHER, CALL, WORDS, CALL],
            {},
            {0, 1, 2},
            False,
        ),  # a model that is sure of nothing: too few are alike
    ],
)
def test_of_five_turns_a_near_tie_loses_nothing_and_a_broken_file_fails(own, served, ties, passes):
    kept = gate(FIVE, {"q8_0": own}, {"q8_0": served}, 0.9, {"q8_0": ties})["q8_0"]
    assert (kept.failed == "") == passes
    assert kept.calls < kept.call_turns  # what is reported are the equal ones, explained or not


class Sure:
    """A model with the same logits everywhere."""

    generation_config = SimpleNamespace(eos_token_id=3)

    def __call__(self, input_ids, use_cache):
        return SimpleNamespace(logits=torch.tensor([[[2.0, 1.9, 1.7, -5.0]]]))


TOKENIZER = SimpleNamespace(eos_token_id=3, get_vocab=dict, decode=str)


@pytest.mark.parametrize(
    ("taken", "gap", "f16", "q8_0"),
    [(1, 0.1, False, True), (2, 0.3, False, False), (None, 7.0, False, False)],
)
def test_answers_part_at_a_near_tie_where_the_merged_model_hardly_prefers_its_own_token(
    taken, gap, f16, q8_0
):
    """`None`: the file ends its answer there."""
    file = Completion([] if taken is None else [taken], taken is None)
    for tie, near in ((parity.NEAR_TIE, f16), (parity.ROUNDED_NEAR_TIE, q8_0)):
        found = parity.explain(Sure(), TOKENIZER, [0], Completion([0], False), file, tie)
        assert found.logit_gap == pytest.approx(gap, abs=1e-5) and found.near_tie == near
