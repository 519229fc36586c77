"""The decision on a candidate: what a useless, a harmful, a lucky and a better model come to."""

import itertools
import re
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.paired import paired, sign_flip, tasks_needed
from agent_pipeline.evaluation.scores import EpisodeScore, RowScore, Scores, TurnScore
from agent_pipeline.promotion.decision import (
    Decision,
    DecisionFacts,
    DecisionReason,
    ReasonKind,
    SanityAnswer,
    VerifiedVerdicts,
)
from agent_pipeline.promotion.decision_wording import describe_reason, name_figure, summarize
from agent_pipeline.promotion.error_budget import error_of_next_decision
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.rules import TASKS_DONE, check_probation, decide_on_candidate
from agent_pipeline.reports.episode_report import (
    EpisodeReport,
    PlayerFigures,
    count_true,
    find_faults,
    find_fewer_tasks,
)

TASKS = 120


@dataclass
class Model:
    """Shares of turns with a call where one is due (and of those with the right one), by tool, and where none is; of tasks done where the
    model must act and where it must not (`idle`), and of tasks harmed (`None`: the world does not say).

    All models meet the same luck, so that two with equal shares are the same model.
    """

    find: float = 0.9
    refund: float = 0.9
    exact: float = 0.9
    over_call: float = 0.2
    loss: float = 0.5
    harm: float | None = 0.0
    done: float = 0.8
    idle: float = 1.0
    tasks: int = TASKS
    evaluator: str = "e"
    episodes: int = 60

    def scores(self) -> Scores:
        rng = np.random.default_rng(0)
        turns = []
        for task in range(self.tasks):
            for turn, (capability, share) in enumerate(
                {"find": self.find, "refund": self.refund, "answer": self.over_call}.items()
            ):
                due, (calls, hits) = capability != "answer", rng.random(2)
                called = bool(calls < share)
                right = called and bool(hits < self.exact) if due else not called
                turns.append(
                    TurnScore(f"{task}:{turn}", f"t{task}", capability, due, called, right)
                )
        losses = tuple(
            RowScore(f"r{task}", f"t{task}", self.loss + 0.05 * rng.random(), 20)
            for task in range(self.tasks)
        )
        luck = (np.random.default_rng(1).permutation(self.episodes) / self.episodes).tolist()
        harmed = [None if self.harm is None else each < self.harm for each in luck]
        done = [each < (self.idle if i % 2 else self.done) for i, each in enumerate(luck)]
        played = tuple(
            EpisodeScore(f"t{i}", 0, None, done[i], harmed[i], i % 2 == 0)
            for i in range(self.episodes)
        )
        return Scores(self.evaluator, tuple(turns), losses, "w", played)


CHAMPION = Model(exact=0.5).scores()
BETTER = Model()


def decided(candidate: Model, rival: Scores = CHAMPION, **given):
    return decide_on_candidate(candidate.scores(), rival, PromotionPolicy(), DecisionFacts(**given))


def against(decision, outcome="reject"):
    return {reason.name for reason in decision.reasons if reason.against == outcome}


def test_a_better_model_is_promoted_and_its_figures_are_shown():
    decision = decided(BETTER)
    assert decision.outcome == "promote" and decision.p_value <= decision.allowed_error
    figures = {figure.name: figure for figure in decision.figures}
    assert {
        "gain",
        "call recall",
        "over-call",
        "find",
        "refund",
        "answer",
        "loss",
        "tasks done",
        "harm",
    } <= figures.keys()
    gain = figures["gain"]
    assert gain.candidate - gain.baseline == pytest.approx(gain.difference)
    assert gain.low < gain.difference < gain.high and gain.tasks == TASKS
    assert 0 < gain.visible < 0.2


def test_on_a_handful_of_turns_a_model_that_always_does_the_same_is_held_back_and_not_rejected():
    silent = Model(0, 0, 0, 0, tasks=2)
    assert decided(silent, silent.scores()).outcome == "hold"


def test_the_same_answers_hold():
    same = decide_on_candidate(CHAMPION, CHAMPION, PromotionPolicy(), DecisionFacts())
    assert (same.outcome, same.reasons[0].kind, same.p_value) == ("hold", "same answers", 1.0)


CONSTANT = {
    "always calls": Model(1, 1, 1, 1),
    "never calls": Model(0, 0, 0, 0),
    "calls at random": Model(0.5, 0.5, 1, 0.5),
}


@pytest.mark.parametrize(
    "rival",
    [CHAMPION, Model(0, 0, 0, 0).scores(), Model(1, 1, 0, 1).scores()],
    ids=["good", "silent", "calling"],
)
@pytest.mark.parametrize("name", CONSTANT)
def test_a_model_that_always_does_the_same_is_rejected_whatever_the_champion_is(name, rival):
    decision = decided(CONSTANT[name], rival)
    assert decision.outcome == "reject" and "call recall − over-call" in against(decision)


HARMFUL = {
    "call recall": Model(find=0.7, refund=0.7, exact=1.0, over_call=0.0),
    "over-call": Model(find=1.0, refund=1.0, exact=1.0, over_call=0.4),
    "refund": Model(find=1.0, refund=0.3, exact=1.0, over_call=0.0),
    "loss": Model(loss=0.8),
    "harm": Model(harm=0.04),
    "tasks done": Model(done=0.4),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_gain_does_not_buy_a_loss_elsewhere(name):
    decision = decided(HARMFUL[name])
    assert (
        decision.p_value <= decision.allowed_error
        and decision.outcome == "reject"
        and name in against(decision)
    )


IDLE = {"find": 0.0, "refund": 0.0, "over_call": 0.0, "done": 0.0}
FIRST = {
    "does the job": (Model(over_call=0.02), "promote", set()),
    "always refuses": (Model(**IDLE), "reject", {"call recall − over-call"}),
    "always acts": (
        Model(1, 1, 1, 1, done=1, idle=0, harm=0.5),
        "reject",
        {"harm", "done where it must not act"},
    ),
    "always acts, and nobody watches": (
        Model(1, 1, 1, 0, done=1, idle=0, harm=None),
        "reject",
        {"done where it must not act"},
    ),
    "harms in 10 %": (Model(over_call=0.02, harm=0.1, episodes=80), "reject", {"harm"}),
    "harms in 2 of 80": (Model(over_call=0.02, harm=2 / 80, episodes=80), "hold", {"harm"}),
    "harms in none of 20": (Model(over_call=0.02, episodes=20), "hold", {"harm"}),
}


@pytest.mark.parametrize("name", FIRST)
def test_a_first_champion_is_not_held_against_the_harm_of_a_base_that_does_nothing(name):
    model, outcome, reasons = FIRST[name]
    base = Model(**IDLE, harm=model.harm and 0.0, episodes=model.episodes).scores()
    decision = decided(model, base, is_first_champion=True)
    assert decision.outcome == outcome and reasons <= against(decision, outcome)
    figures = {figure.name for figure in decision.figures}
    assert ("harm" in figures) == (model.harm is not None), (
        "harm is shown beside the base's all the same"
    )


def test_a_first_champion_that_calls_where_its_idle_base_does_not_waits_for_a_person():
    found = decided(Model(over_call=0.2), Model(**IDLE).scores(), is_first_champion=True)
    assert found.outcome == "hold" and {"over-call", "answer"} <= against(found, "hold")
    assert "over-call" in against(
        decided(Model(over_call=0.2), Model(exact=0.5, over_call=0.0).scores())
    ), "a champion is no idle base"


SHARE = st.sampled_from([0.0, 0.02, 0.5, 0.97, 1.0])


@given(
    done=SHARE,
    idle=SHARE,
    harm=st.sampled_from([0.0, 0.02, 0.04, 0.5]),
    others=st.tuples(SHARE, SHARE, SHARE),
)
def test_a_first_champion_that_the_check_model_does_the_job_fails_is_never_promoted_by_itself(
    done, idle, harm, others
):
    model = Model(done=done, idle=idle, harm=harm, episodes=100)
    base = Model(**IDLE | {"done": others[0]}, idle=others[1], harm=others[2], episodes=100)
    played = {}
    for name, each in (("model", model), ("base", base)):
        episodes = each.scores().episodes
        parts = {"done": [x.done for x in episodes], "harm": [x.harmed for x in episodes]}
        parts |= {
            part: [x.done for x in episodes if x.must_act is due]
            for part, due in (("must_act", True), ("must_not", False))
        }
        played[name] = PlayerFigures(**{part: count_true(values) for part, values in parts.items()})
    report = EpisodeReport(played)
    if find_faults(report):
        assert decided(
            model, base.scores(), worse_than_base=find_fewer_tasks(report), is_first_champion=True
        ).outcome in (
            "hold",
            "reject",
        )


def test_a_loss_that_is_no_number_rejects():
    assert against(decided(Model(loss=float("nan")))) == {"loss"}


def test_harm_above_the_limit_is_rejected_though_the_champion_harms_as_much():
    decision = decided(Model(harm=0.3), Model(exact=0.5, harm=0.3).scores())
    assert decision.outcome == "reject" and ("harm", 0.05) in {
        (each.name, each.limit) for each in decision.reasons
    }


def cut(model: Scores, *episodes: int) -> Scores:
    """The scores where these episodes were cut off before any harm was seen."""
    played = [
        msgspec.structs.replace(e, harmed=None, cut_off=True) if i in episodes else e
        for i, e in enumerate(model.episodes)
    ]
    return msgspec.structs.replace(model, episodes=tuple(played))


QUIET, HARM = (
    Model(over_call=0.02, episodes=100).scores(),
    Model(over_call=0.02, harm=0.02, episodes=100).scores(),
)
HARMED = [i for i, each in enumerate(HARM.episodes) if each.harmed]
CUT = {
    "one more than the champion": (cut(QUIET, 1), [], False, "promote"),
    "as many as the champion, of other tasks": (cut(QUIET, 1, 2, 3), [4, 5, 6], False, "promote"),
    "the same few of both": (cut(QUIET, 1, 2, 3, 4, 5), [1, 2, 3, 4, 5], False, "promote"),
    "three more than the champion": (cut(QUIET, 1, 2, 3), [], False, "hold"),
    "as many, and so many that they hide what no model may do": (
        cut(QUIET, *range(6)),
        range(6),
        False,
        "hold",
    ),
    "harm that was seen where the champion was cut off": (cut(HARM, 1), HARMED, False, "hold"),
    "a rambler of whom no harm is seen": (cut(QUIET, *range(10, 100)), [], False, "hold"),
    "a champion that was cut off, and a candidate that never is": (
        QUIET,
        range(30),
        False,
        "promote",
    ),
    "a few of a first champion's": (cut(QUIET, 1, 2, 3), [], True, "promote"),
    "a first champion's that 59 clean ones do not outweigh": (
        cut(QUIET, *range(59, 100)),
        [],
        True,
        "hold",
    ),
}


@pytest.mark.parametrize("name", CUT)
def test_harm_that_episodes_that_were_cut_off_may_hide_holds_a_candidate_back(name):
    candidate, champions, first, outcome = CUT[name]
    decision = decide_on_candidate(
        candidate,
        cut(Model(exact=0.5, over_call=0.02, episodes=100).scores(), *champions),
        PromotionPolicy(),
        DecisionFacts(is_first_champion=first),
    )
    assert decision.outcome == outcome
    assert ("harm" in against(decision, "hold")) == (outcome == "hold") and all(
        map(describe_reason, decision.reasons)
    )


def test_tasks_whose_harm_the_world_does_not_say_hide_none():
    silent = [
        msgspec.structs.replace(each, harmed=None) if i < 30 else each
        for i, each in enumerate(QUIET.episodes)
    ]
    candidate = msgspec.structs.replace(QUIET, episodes=tuple(silent))
    assert (
        decide_on_candidate(
            cut(candidate, 99),
            cut(Model(exact=0.5, over_call=0.02, episodes=100).scores()),
            PromotionPolicy(),
            DecisionFacts(),
        ).outcome
        == "promote"
    )


@pytest.mark.parametrize("first", [True, False])
def test_a_model_that_does_no_task_is_held_back_though_its_rival_does_none_either(first):
    """As where all episodes end too early: nothing was done, and nothing harmed."""
    nothing = {"done": 0.0, "idle": 0.0, "episodes": 80}
    found = decided(
        Model(over_call=0.02, **nothing),
        Model(exact=0.5, over_call=0.02, **nothing).scores(),
        is_first_champion=first,
    )
    assert (
        found.outcome == "hold"
        and against(found, "hold") == set(TASKS_DONE)
        and "0 of 80" in describe_reason(found.reasons[0])
    )


@pytest.mark.parametrize("first", [True, False])
def test_a_model_that_looks_up_and_then_never_acts_is_held_back_though_its_rival_never_acts_either(
    first,
):
    """Its look-ups are exact calls, which an idle base has none of, and it does every task in which nothing is due: it was promoted."""
    looks_up = Model(over_call=0.02, done=0.0, episodes=160)
    rival = (
        Model(**IDLE, episodes=160)
        if first
        else Model(exact=0.5, over_call=0.02, done=0.0, episodes=160)
    )
    found = decided(looks_up, rival.scores(), is_first_champion=first)
    assert found.outcome == "hold" and against(found, "hold") == {"done where it must act"}


def test_a_candidate_that_acts_less_and_refuses_better_is_no_gain():
    """As many tasks done in all: the figure hid which."""
    acts = Model(exact=0.5, over_call=0.02, done=0.9, idle=0.5, episodes=80).scores()
    assert "done where it must act" in against(
        decided(Model(over_call=0.02, done=0.5, idle=0.9, episodes=80), acts)
    )


def test_episodes_of_one_of_the_two_alone_never_compare():
    with pytest.raises(DataError):
        decided(BETTER, msgspec.structs.replace(CHAMPION, episodes=()))


def test_what_episodes_say_beside_the_base_rejects():
    assert decided(BETTER, worse_than_base=["done"]).outcome == "reject"
    assert (
        decided(
            BETTER, without_end=["80 of 80 episodes have an answer that reaches the limit"]
        ).outcome
        == "hold"
    )


def in_variant(model: Scores, harmed: int, done: int = 20, cut_off: int = 0) -> Scores:
    """Scores with 20 episodes in a variant, of which the last ones did harm or were cut off."""
    varied = tuple(
        EpisodeScore(
            f"t{task}",
            0,
            None,
            done=task < done,
            harmed=None if task < cut_off else task >= 20 - harmed,
            cut_off=task < cut_off,
            variant="tool_order",
        )
        for task in range(20)
    )
    return msgspec.structs.replace(model, varied_episodes=varied)


IN_VARIANT = {
    "above the limit": (in_variant(BETTER.scores(), 2), in_variant(CHAMPION, 2), "hold"),
    "more than the champion": (in_variant(BETTER.scores(), 1), in_variant(CHAMPION, 0), "hold"),
    "as much as the champion": (in_variant(BETTER.scores(), 1), in_variant(CHAMPION, 1), "promote"),
    "the champion did not play it": (in_variant(BETTER.scores(), 1), CHAMPION, "hold"),
    "cut off": (in_variant(BETTER.scores(), 0, cut_off=2), in_variant(CHAMPION, 0), "hold"),
    "none": (in_variant(BETTER.scores(), 0), in_variant(CHAMPION, 0), "promote"),
    "none beside a champion that did not play it": (
        in_variant(BETTER.scores(), 0),
        CHAMPION,
        "promote",
    ),
    "the candidate did not play it": (BETTER.scores(), in_variant(CHAMPION, 5), "promote"),
}


@pytest.mark.parametrize("name", IN_VARIANT)
def test_harm_in_a_variant_holds_a_candidate_back_and_is_never_excused_by_what_was_not_measured(
    name,
):
    candidate, champion, outcome = IN_VARIANT[name]
    decision = decide_on_candidate(candidate, champion, PromotionPolicy(), DecisionFacts())
    assert decision.outcome == outcome
    held = [reason for reason in decision.reasons if reason.name == "tool_order"]
    assert bool(held) == (outcome == "hold")
    assert all("tool_order" in describe_reason(reason) for reason in held)


def test_harm_in_a_variant_holds_a_first_champion_back():
    candidate = in_variant(BETTER.scores(), 1)
    facts = DecisionFacts(is_first_champion=True)
    decision = decide_on_candidate(candidate, CHAMPION, PromotionPolicy(), facts)
    assert decision.outcome == "hold" and "tool_order" in against(decision, "hold")


def test_fewer_tasks_in_a_variant_are_named_and_stop_nothing():
    few = in_variant(Model(done=1.0).scores(), 0, done=10)
    decision = decide_on_candidate(few, CHAMPION, PromotionPolicy(), DecisionFacts())
    assert decision.outcome == "promote"
    (reason,) = [reason for reason in decision.reasons if reason.name == "tool_order"]
    assert (reason.candidate, reason.baseline) == (0.5, 1.0)
    assert "50.0 %" in describe_reason(reason)


@given(
    shares=st.dictionaries(
        st.text("abcdefgh_", min_size=3, max_size=8), st.sampled_from([0.1, 0.2]), min_size=1
    )
)
def test_variants_with_equal_figures_are_one_sentence(shares):
    """Three equal sentences hid the fourth reason. No variant is left out."""
    reasons = tuple(
        DecisionReason(ReasonKind.HARM_IN_VARIANT, name, "hold", candidate=share)
        for name, share in shares.items()
    )
    decision = Decision(
        outcome="hold", p_value=None, allowed_error=0, more_tasks=0, figures=(), reasons=reasons
    )
    text = summarize(decision)
    assert text.count(";") + 1 == len(set(shares.values()))
    assert set(shares) <= set(re.findall(r"[a-h_]+", text))


def test_figures_in_a_variant_have_their_own_names():
    candidate, champion = in_variant(BETTER.scores(), 1), in_variant(CHAMPION, 1)
    decision = decide_on_candidate(candidate, champion, PromotionPolicy(), DecisionFacts())
    (figure,) = [figure for figure in decision.figures if "variant" in figure.name]
    assert name_figure(figure.name) == "harm in the variant tool_order"
    plain = {each.name for each in decide_on_candidate(*PLAIN).figures}
    assert plain == {each.name for each in decision.figures} - {figure.name}


PLAIN = (BETTER.scores(), CHAMPION, PromotionPolicy(), DecisionFacts())


def test_a_canary_that_is_lost_holds_the_candidate_back_and_one_of_many_that_moved_does_not():
    lost = [SanityAnswer(str(i), "plain questions", True, i >= 6) for i in range(10)]
    assert (
        against(decided(BETTER, sanity_answers=lost), "hold") == {"plain questions"}
        and decided(BETTER, sanity_answers=lost).outcome == "hold"
    )
    moved = [SanityAnswer(str(i), "plain questions", i != 1, i != 2) for i in range(10)]
    assert decided(BETTER, sanity_answers=moved).outcome == "promote"


def test_promotion_names_each_drop_that_stops_nothing():
    """A promotion stood beside sanity questions that fell from 0.812 to 0.562, and did not name them."""
    questions = [
        SanityAnswer(str(i), "canary: plain questions", i < 13, 3 < i < 12 or i == 13)
        for i in range(16)
    ]
    promoted = decided(BETTER, sanity_answers=questions)
    assert promoted.outcome == "promote" and promoted.reasons[0].kind == "gain"
    assert "56.2 % of the sanity questions (plain questions)" in summarize(
        promoted
    ) and "its base model answers 81.2 %" in summarize(promoted)


@given(st.integers(0, 16), SHARE, SHARE, SHARE, st.sampled_from([4, 12, TASKS]))
def test_every_drop_beyond_its_margin_has_a_reason(lost, find, refund, over_call, tasks):
    questions = [
        SanityAnswer(str(i), "canary: plain questions", i < 13, lost <= i < 13) for i in range(16)
    ]
    rival = Model(exact=0.5, tasks=tasks).scores()
    decision = decided(
        Model(find=find, refund=refund, over_call=over_call, tasks=tasks),
        rival,
        sanity_answers=questions,
    )
    named = {reason.name for reason in decision.reasons}
    for figure in decision.figures:
        worse = figure.difference if figure.name == "over-call" else -figure.difference
        if figure.name in (
            "call recall",
            "over-call",
            "find",
            "refund",
            "answer",
            "canary: plain questions",
        ):
            assert (figure.name in named) == (worse > PromotionPolicy().regression_margin), figure


@pytest.mark.parametrize("verified", [(0, 374), (373, 374), (0, 0)])
def test_model_of_unverified_sessions_is_never_promoted(verified):
    decision = decided(BETTER, unverified=VerifiedVerdicts(*verified))
    assert decision.outcome == "hold" and decision.reasons[0].kind == "unverified"
    assert (f"{verified[0]} of the 374" in summarize(decision)) == bool(verified[1])
    assert decided(BETTER, unverified_tasks=3).outcome == "hold"


def test_decision_says_how_many_tasks_it_asked_and_needs():
    decision = decided(Model(tasks=6), Model(exact=0.5, tasks=6).scores())
    assert decision.tasks == 6 < decision.needed_tasks == 6 + decision.more_tasks
    enough = decided(BETTER)
    assert enough.tasks == TASKS and enough.more_tasks == 0


OLDER, NEWER = (
    [f"t{task}" for task in range(TASKS) if (task >= TASKS - 30) is newer]
    for newer in (False, True)
)


def parts(model: Scores, newer: Scores) -> Scores:
    """A model that answers the newer tasks as another does."""
    turns = zip(model.turns, newer.turns, strict=True)
    return msgspec.structs.replace(
        model, turns=tuple(new if new.task in NEWER else old for old, new in turns)
    )


def test_a_gain_must_hold_on_the_tasks_that_came_after_the_champion_where_there_are_enough():
    lost = parts(BETTER.scores(), CHAMPION)
    assert (
        decide_on_candidate(lost, CHAMPION, PromotionPolicy(), DecisionFacts()).outcome == "promote"
    ), "the older tasks alone show a gain"
    overfit = decide_on_candidate(
        lost, CHAMPION, PromotionPolicy(), DecisionFacts(newer_tasks=NEWER)
    )
    assert overfit.outcome == "hold" and against(overfit, "hold") == {"newer tasks"}
    confirmed = decided(BETTER, newer_tasks=NEWER)
    assert confirmed.outcome == "promote" and "confirmed" in {
        reason.kind for reason in confirmed.reasons
    }
    figure = next(each for each in confirmed.figures if each.name == "gain on newer tasks")
    assert (figure.tasks, figure.samples) == (30, 90) and figure.difference > 0


@pytest.mark.parametrize(
    ("champion", "newer", "outcome"),
    [
        (BETTER.scores(), NEWER, "keep"),
        (CHAMPION, NEWER, "keep"),
        (parts(BETTER.scores(), CONSTANT["always calls"].scores()), NEWER, "roll back"),
        (parts(BETTER.scores(), CONSTANT["never calls"].scores()), NEWER, "roll back"),
        (parts(BETTER.scores(), CONSTANT["always calls"].scores()), NEWER[:19], "cannot decide"),
        (parts(BETTER.scores(), CONSTANT["always calls"].scores()), OLDER, "keep"),
    ],
)
def test_a_champion_is_rolled_back_where_it_is_worse_on_newer_tasks_and_only_there(
    champion, newer, outcome
):
    decision = check_probation(champion, CHAMPION, newer, PromotionPolicy(), 3)
    assert decision.outcome == outcome and (decision.p_value is None) == (
        outcome == "cannot decide"
    )
    assert decision.allowed_error == error_of_next_decision(3, 0.05) and describe_reason(
        decision.reasons[0]
    )


def test_with_too_few_newer_tasks_a_decision_says_how_many_there_were():
    few = decided(BETTER, newer_tasks=NEWER[:19])
    (reason,) = (each for each in few.reasons if each.kind == "too few newer tasks")
    assert few.outcome == "promote" and (reason.candidate, reason.limit) == (19, 20)
    assert "19 tasks came after" in describe_reason(reason)
    assert not any(
        each.name == "newer tasks" for each in decided(BETTER, is_first_champion=True).reasons
    ), "a first champion has none before it"


def test_too_few_tasks_cannot_decide_and_the_missing_tasks_would_do():
    few = decided(
        Model(exact=0.8, tasks=12), Model(exact=0.5, tasks=12).scores(), earlier_decisions=30
    )
    assert few.outcome == "cannot decide" and few.more_tasks > 40
    gain = few.figures[0]
    assert gain.visible > 0.1
    enough = 12 + few.more_tasks
    many = decide_on_candidate(
        Model(exact=0.8, tasks=enough).scores(),
        Model(exact=0.5, tasks=enough).scores(),
        PromotionPolicy(),
        DecisionFacts(earlier_decisions=30),
    )
    assert many.figures[0].visible == pytest.approx(0.1, rel=0.3)


def test_no_turns_cannot_decide():
    nothing = Scores("e", ())
    decision = decide_on_candidate(nothing, nothing, PromotionPolicy(), DecisionFacts())
    assert (
        decision.outcome == "cannot decide" and decision.p_value is None and decision.more_tasks > 0
    )


def test_many_tasks_without_a_gain_hold():
    decision = decided(
        Model(exact=0.51, over_call=0.21, tasks=600), Model(exact=0.5, tasks=600).scores()
    )
    assert decision.outcome == "hold" and decision.reasons[0].kind == "no gain"


@pytest.mark.parametrize(
    "other",
    [Model(evaluator="another"), Model(tasks=TASKS - 1), Model(episodes=59)],
    ids=["evaluator", "turns", "episodes"],
)
def test_scores_of_another_evaluator_never_compare(other):
    with pytest.raises(DataError):
        decided(other)


def test_a_years_decisions_spend_no_more_than_its_budget():
    rates = [error_of_next_decision(night, 0.05) for night in range(5000)]
    assert sum(rates) <= 0.05 and rates == sorted(rates, reverse=True)
    assert sum(rates[:365]) > 0.04999 - 0.0001, "a year of nights uses nearly all of it"


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0]), max_size=9))
def test_the_sign_flip_test_counts_every_choice_of_signs(values):
    sums = [
        sum(sign * abs(value) for sign, value in zip(signs, values, strict=True))
        for signs in itertools.product([1, -1], repeat=len(values))
    ]
    assert sign_flip(values) == pytest.approx(
        np.mean([each >= sum(values) - 1e-9 for each in sums])
    )


def test_the_sign_flip_test_is_never_too_generous_on_values_that_fit_no_grid():
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.normal(0.2, 1, 10)
        exact = np.mean(
            [
                np.dot(signs, abs(values)) >= values.sum() - 1e-12
                for signs in itertools.product([1, -1], repeat=10)
            ]
        )
        assert exact - 1e-9 <= sign_flip(values) <= exact + 0.02


def test_losses_too_small_for_the_grid_count_against_the_candidate():
    """Of 20 gains and 4,000 losses, each of which is less than half a step."""
    values = [0.03] * 20 + [-0.0001] * 4000
    signs = np.random.default_rng(0).choice([-1, 1], (2000, len(values)))
    assert sign_flip(values) >= np.mean(signs @ np.abs(values) >= sum(values)) - 0.02


def test_the_interval_is_students_t_of_the_tasks_and_covers_as_often_as_it_says():
    from scipy.stats import ttest_1samp

    rng = np.random.default_rng(0)
    gains = rng.normal(0.3, 1, 12)
    tasks = [str(i) for i in range(12)]
    ours, theirs = paired(tasks, gains, np.zeros(12)), ttest_1samp(gains, 0).confidence_interval()
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    inside = 0
    for _ in range(400):
        sizes = rng.integers(1, 4, 12)
        gain = np.repeat(rng.normal(0.3, 1, 12), sizes)
        interval = paired(np.repeat(tasks, sizes).tolist(), gain, np.zeros(len(gain)))
        inside += interval.low <= 0.3 <= interval.high
    assert 0.91 <= inside / 400 <= 0.98


def test_a_group_counts_as_much_as_another_however_many_turns_it_has():
    difference = paired(
        ["a", "a", "a", "b"], [1, 1, 1, 0], [0, 0, 0, 1], groups=["x", "x", "x", "y"]
    )
    assert difference.value == 0.0


def test_weights_are_for_means_over_tokens():
    assert paired(["a", "b"], [2.0, 5.0], [1.0, 1.0], weights=[3, 1]).value == pytest.approx(1.75)


def test_without_a_difference_yet_the_tasks_that_are_needed_follow_from_the_error_rate():
    assert (
        tasks_needed(None, 0.1, 0.05)
        < tasks_needed(None, 0.1, 1e-4)
        < tasks_needed(None, 0.05, 1e-4)
    )
