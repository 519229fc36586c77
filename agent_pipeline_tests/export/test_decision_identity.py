"""The identity of a decision: what the rules use makes a new decision if it changes, and only that."""

import inspect
from collections import Counter
from collections.abc import Iterator
from math import nan
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.evaluation.scores import EpisodeScore, RowScore, Scores, TurnScore
from agent_pipeline.promotion import decision_identity
from agent_pipeline.promotion.decision import DecisionFacts, SanityAnswer, VerifiedVerdicts
from agent_pipeline.promotion.decision_identity import (
    hash_decision_inputs,
    hash_probation_inputs,
    hash_tested_scores,
)
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.rules import check_probation, decide_on_candidate

EPISODE = EpisodeScore("t1", 0, None, True, False)
SCORES = Scores(
    evaluator="e",
    turns=(TurnScore("r1:0", "t1", "find", True, True, True),),
    losses=(RowScore("r1", "t1", 1.0, 9),),
    world="w",
    episodes=(EPISODE,),
    varied_episodes=(msgspec.structs.replace(EPISODE, variant="tool_order"),),
    not_played={"no good recording": 1},
)
FACTS = DecisionFacts(
    newer_tasks={"t1", "t2"},
    sanity_answers=(SanityAnswer("What color is snow?", "plain", True, True),),
    unverified=VerifiedVerdicts(3, 8),
)
POLICY = PromotionPolicy()


def change(value: object) -> object:
    """Return another value of the same kind."""
    match value:
        case bool():
            return not value
        case None:
            return 1
        case int():
            return value + 1
        case float():
            return value + 0.01
        case str():
            return f"{value}!"
        case msgspec.Struct():
            name = value.__struct_fields__[0]
            return msgspec.structs.replace(value, **{name: change(getattr(value, name))})
        case dict():
            return {**value, "other": 1}
        case set():
            return value | {"other"}
        case _:
            assert isinstance(value, tuple | list)
            return (*value, value[0] if value else "other")


def changes_of(struct: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of a struct with one changed value, for its fields and those of its parts."""
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        yield name, msgspec.structs.replace(struct, **{name: change(value)})
        if isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            for part, changed in changes_of(value[0]):
                parts = (changed, *value[1:])
                yield f"{name}.{part}", msgspec.structs.replace(struct, **{name: parts})


SCORE_CHANGES = dict(changes_of(SCORES))
FACT_CHANGES = dict(changes_of(FACTS))
SPENT = FACT_CHANGES.pop("earlier_decisions")
WORDS = [
    FACT_CHANGES.pop(f"sanity_answers.{name}")
    for name in ("question", "base_answer", "candidate_answer")
]
TESTED = {"turns", "turns.turn", "turns.task", "turns.expects_call", "turns.right"}
BEFORE = hash_decision_inputs(SCORES, SCORES, POLICY, FACTS)


@pytest.mark.parametrize("name", SCORE_CHANGES)
def test_scores(name: str) -> None:
    changed = SCORE_CHANGES[name]
    after = {
        hash_decision_inputs(changed, SCORES, POLICY, FACTS),
        hash_decision_inputs(SCORES, changed, POLICY, FACTS),
    }
    assert len(after | {BEFORE}) == 3


@pytest.mark.parametrize("name", FACT_CHANGES)
def test_facts(name: str) -> None:
    """A decision with 16 sanity questions stood after there were 64."""
    assert hash_decision_inputs(SCORES, SCORES, POLICY, FACT_CHANGES[name]) != BEFORE


@pytest.mark.parametrize("name", PromotionPolicy.model_fields)
def test_policy(name: str) -> None:
    policy = POLICY.model_copy(update={name: change(getattr(POLICY, name))})
    assert hash_decision_inputs(SCORES, SCORES, policy, FACTS) != BEFORE


def test_no_input_is_missing() -> None:
    """Whatever the rules get is hashed."""
    inputs = [inspect.signature(function) for function in (decide_on_candidate, check_probation)]
    hashed = [
        inspect.signature(function) for function in (hash_decision_inputs, hash_probation_inputs)
    ]
    assert list(inputs[0].parameters) == list(hashed[0].parameters)
    assert list(inputs[1].parameters) == [*hashed[1].parameters, "earlier_decisions"]


def test_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_identity, "RULES_VERSION", -1)
    assert hash_decision_inputs(SCORES, SCORES, POLICY, FACTS) != BEFORE


def test_same_inputs() -> None:
    """A repeated run decides nothing again, although a decision was made in the meantime."""
    facts = msgspec.structs.replace(FACTS, newer_tasks={"t2", "t1"})
    for same in (facts, SPENT, *WORDS):
        assert hash_decision_inputs(SCORES, SCORES, POLICY, same) == BEFORE


ANSWERS = st.lists(
    st.builds(
        SanityAnswer,
        question=st.sampled_from("abcde"),
        group=st.sampled_from(["canary: x", "canary: y"]),
        base=st.booleans(),
        candidate=st.booleans(),
        base_answer=st.text(max_size=3),
        candidate_answer=st.text(max_size=3),
    ),
    max_size=8,
)


@given(answers=ANSWERS, names=st.permutations("abcdefg"), text=st.text(max_size=3), data=st.data())
def test_other_words_of_sanity_questions(
    answers: list[SanityAnswer], names: list[str], text: str, data: st.DataObject
) -> None:
    """One blank more in an answer, or another name of a turn, made a new decision."""
    new_names = dict(zip("abcde", names, strict=False))
    renamed = [
        msgspec.structs.replace(
            answer, question=new_names[answer.question], base_answer=text, candidate_answer=text
        )
        for answer in answers
    ]
    decisions, hashes = [], set()
    for some in (answers, data.draw(st.permutations(renamed))):
        facts = msgspec.structs.replace(FACTS, sanity_answers=some)
        hashes.add(hash_decision_inputs(SCORES, SCORES, POLICY, facts))
        decisions.append(decide_on_candidate(SCORES, SCORES, POLICY, facts))
    assert len(hashes) == 1
    assert decisions[0].outcome == decisions[1].outcome
    assert [figure.name for figure in decisions[0].figures] == [
        figure.name for figure in decisions[1].figures
    ]


@given(ANSWERS, ANSWERS)
def test_other_results_of_sanity_questions(
    answers: list[SanityAnswer], others: list[SanityAnswer]
) -> None:
    """Answers that the rules count otherwise make a new decision."""
    counts, hashes = [], set()
    for some in (answers, others):
        facts = msgspec.structs.replace(FACTS, sanity_answers=some)
        hashes.add(hash_decision_inputs(SCORES, SCORES, POLICY, facts))
        counts.append(Counter((answer.group, answer.base, answer.candidate) for answer in some))
    assert counts[0] == counts[1] or len(hashes) == 2


@pytest.mark.parametrize("name", SCORE_CHANGES)
def test_tested_scores(name: str) -> None:
    """Only the turns of the deciding metric make a new test. A replayed episode does not."""
    before = hash_tested_scores(SCORES, SCORES)
    changed = SCORE_CHANGES[name]
    # The baseline answers the same turns, so a turn that is left out is left out of both.
    baseline = SCORES if len(changed.turns) == 1 else changed
    assert (hash_tested_scores(changed, baseline) != before) == (name in TESTED)
    assert hash_tested_scores(SCORES, SCORES, ["t2"]) != before


def test_loss_that_is_not_a_number() -> None:
    diverged = msgspec.structs.replace(SCORES, losses=(RowScore("r1", "t1", nan, 9),))
    assert hash_decision_inputs(diverged, SCORES, POLICY, FACTS) != BEFORE


@pytest.mark.parametrize("name", SCORE_CHANGES)
def test_probation(name: str) -> None:
    changed, tasks = SCORE_CHANGES[name], ["t1", "t2"]
    hashes = {
        hash_probation_inputs(SCORES, SCORES, tasks, POLICY),
        hash_probation_inputs(changed, SCORES, tasks, POLICY),
        hash_probation_inputs(SCORES, changed, tasks, POLICY),
        hash_probation_inputs(SCORES, SCORES, ["t1"], POLICY),
        hash_probation_inputs(SCORES, SCORES, tasks, PromotionPolicy(confirm_tasks=21)),
    }
    assert len(hashes) == 5
    assert hash_probation_inputs(SCORES, SCORES, tasks[::-1], POLICY) in hashes
