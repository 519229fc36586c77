"""One verdict of many opinions, and how far the judges agree with people."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging import (
    JUDGES,
    MEASURES,
    JudgingRun,
    Label,
    MeasureResult,
    Opinion,
    VerdictPolicy,
)
from agent_pipeline.judging.agreement import Agreement
from agent_pipeline.judging.free_opinions import collect_opinions
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.verdict_policy import decide_verdict
from agent_pipeline.keys import PartitionKey
from agent_pipeline_tests.judging.sessions import calls, judge, session

CALLED = calls(("f", {}))
BY_MEASURES = VerdictPolicy(["label", "judgment", "measures"])
UNVERIFIED = VerdictPolicy(when_unjudged="train_unverified")


def given_by(
    policy: VerdictPolicy | None = None,
    label: Label | None = None,
    llm: Opinion | None = None,
    **fields: Any,
) -> tuple[str | None, str | None]:
    judged = judge(session(**fields), ["ended_with_answer"], policy, label, llm)
    return judged.verdict, judged.verdict_by


def test_by_default_a_label_comes_before_the_sources_judgment_and_that_before_a_score():
    label = Label("unacceptable", "it lied")
    assert given_by(label=label, judgment="acceptable", score=1.0) == ("unacceptable", "label")
    assert given_by(judgment="unacceptable", score=1.0) == ("unacceptable", "judgment")
    assert given_by(score=1.0) == ("acceptable", "score")
    assert given_by() == (None, None)
    assert judge(session(), [], label=label).verdict_reasons == "label: it lied"


@pytest.mark.parametrize("judgment", [None, "", "Acceptable", "maybe"])
def test_what_is_no_judgment_gives_no_verdict_by_default(judgment):
    assert given_by(judgment=judgment) == (None, None)


def test_measures_judge_only_where_the_policy_says_so():
    assert given_by(BY_MEASURES) == (None, None)
    assert given_by(BY_MEASURES, messages=[CALLED]) == ("unacceptable", "measures")
    assert given_by(BY_MEASURES, messages=[CALLED], judgment="acceptable") == (
        "acceptable",
        "judgment",
    )
    assert judge(session(), [], BY_MEASURES)[:2] == (None, None)
    assert judge(session([CALLED]), ["ended_with_answer"], BY_MEASURES).verdict_reasons == (
        "measures: failed ended_with_answer (the session ends with a tool call)"
    )


@pytest.mark.parametrize(
    "broken", [lambda context: 1 / 0, lambda context: "yes", lambda context: None]
)
def test_a_measure_without_a_value_leaves_the_session_unjudged_unless_another_failed(
    broken, monkeypatch
):
    monkeypatch.setitem(MEASURES, "broken", broken)
    assert judge(session(), ["broken", "ended_with_answer"], BY_MEASURES)[:2] == (None, None)
    assert (
        judge(session([CALLED]), ["broken", "ended_with_answer"], BY_MEASURES).verdict
        == "unacceptable"
    )


@given(
    st.dictionaries(
        st.sampled_from(["ended_with_answer", "no_tool_errors", "all_calls_answered"]),
        st.sampled_from([True, False, None]),
    )
)
def test_measures_alone_never_find_a_session_good(results):
    """A session without an error may be wrong in every word, whatever the policy says of measures."""
    taken = {name: MeasureResult(passed) for name, passed in results.items()}
    for policy in (
        VerdictPolicy(["measures"]),
        VerdictPolicy(["label", "measures", "llm"]),
        UNVERIFIED,
    ):
        judged = decide_verdict(
            session(), policy, taken, collect_opinions(session(), taken, policy, None)
        )
        assert judged.verdict != "acceptable" or judged.verdict_by == "unverified"


def test_unverified_sessions_are_marked_and_no_measure_makes_them_bad():
    """The mark is in `verdict_by`; a session that fails a measure may be a success, so it gets no verdict."""
    assert given_by(UNVERIFIED) == ("acceptable", "unverified")
    assert given_by(UNVERIFIED, messages=[CALLED]) == (None, None)
    assert given_by(UNVERIFIED, judgment="unacceptable") == ("unacceptable", "judgment")
    assert given_by(VerdictPolicy(when_unjudged="acceptable"), messages=[CALLED]) == (
        "acceptable",
        "unverified",
    )
    assert given_by(UNVERIFIED, error="500") == (None, None)


@pytest.mark.parametrize(
    "made",
    [
        lambda: VerdictPolicy(when_unjudged="measures"),
        lambda: JudgingOptions(when_unjudged="measures"),
    ],
)
def test_the_old_name_of_the_setting_is_refused_with_the_new_one(made):
    with pytest.raises(SettingsError, match="train_unverified"):
        made()


def test_the_advice_for_an_agent_without_verdicts_begins_with_the_ways_to_judge():
    panel = JudgingRun.from_options(JudgingOptions())
    list(panel.judge([(None, session())]))
    (note,) = panel.describe(PartitionKey("p", "a"))
    places = [
        note.index(word)
        for word in ("agent-pipeline review p/a", "labels", "[judge]", "train_unverified")
    ]
    assert places == sorted(places)


def test_a_score_without_a_threshold_has_no_vote(monkeypatch):
    monkeypatch.setitem(MEASURES, "half", lambda context: 0.5)
    good = Opinion("acceptable")
    policy = VerdictPolicy(["measures+llm"])
    assert judge(session(), ["half", "ended_with_answer"], policy, llm=good).verdict == "acceptable"
    assert judge(session(), ["half"], policy, llm=good).verdict is None
    assert (
        judge(session(), ["half >= 0.6", "ended_with_answer"], BY_MEASURES).verdict
        == "unacceptable"
    )


@pytest.mark.parametrize(
    ("score", "thresholds", "verdict"),
    [
        (1.0, {}, "acceptable"),
        (0.99, {}, None),
        (0.0, {}, "unacceptable"),
        (-1.0, {}, "unacceptable"),
        (float("nan"), {}, None),
        (float("inf"), {}, None),
        (7.0, {}, None),
        (7.0, {"score_acceptable": 6.0, "score_unacceptable": 3.0}, "acceptable"),
        (3.0, {"score_acceptable": 6.0, "score_unacceptable": 3.0}, "unacceptable"),
        (0.7, {"score_acceptable": 0.7, "score_unacceptable": 0.5}, "acceptable"),
        (0.6, {"score_acceptable": 0.7, "score_unacceptable": 0.5}, None),
    ],
)
def test_a_score_decides_outside_its_thresholds_and_on_their_scale(score, thresholds, verdict):
    assert judge(session(score=score), [], VerdictPolicy(**thresholds)).verdict == verdict


@pytest.mark.parametrize(
    ("metrics", "scores", "verdict", "name"),
    [
        ({}, {"toxicity": 1.0}, None, None),  # nobody said whether more of it is better
        ({"toxicity": "lower"}, {"toxicity": 1.0}, "unacceptable", "toxicity"),
        ({"toxicity": "lower"}, {"toxicity": 0.0}, "acceptable", "toxicity"),
        (
            {"correctness": "higher"},
            {"correctness": 0.0, "toxicity": 0.0},
            "unacceptable",
            "correctness",
        ),
        (
            {"correctness": "higher", "toxicity": "lower"},
            {"correctness": 1.0, "toxicity": 1.0},
            "unacceptable",
            "toxicity",
        ),
        (
            {"correctness": "higher", "toxicity": "lower"},
            {"correctness": 1.0, "toxicity": 0.0},
            "acceptable",
            "correctness, toxicity",
        ),
        ({"correctness": "higher"}, {"correctness": 0.5}, None, None),
        ({"correctness": ">= 0.5"}, {"correctness": 0.5}, "acceptable", "correctness"),
        (
            {"quality": "higher"},
            {"quality": 2.0},
            None,
            None,
        ),  # of 5? 2 is not on the scale of the thresholds
        ({"harm": "lower"}, {"harm": 2.0}, None, None),
        ({"latency": "<= 2"}, {"latency": 7}, "unacceptable", "latency"),
        ({"latency": "<= 2"}, {"latency": float("nan")}, None, None),
    ],
)
def test_a_metric_is_an_opinion_only_with_its_direction(metrics, scores, verdict, name):
    judged = judge(session(scores=scores), [], VerdictPolicy(metrics=metrics))
    assert (judged.verdict, judged.verdict_by, judged.verdict_name) == (
        verdict,
        "metrics" if verdict else None,
        name,
    )


def test_a_score_never_overrules_whoever_ranks_above_it():
    bad, good = Label("unacceptable"), Label("acceptable")
    assert judge(session(score=1.0), [], label=bad).verdict_score == 0.0
    assert judge(session(score=0.2), [], label=good).verdict_score == 1.0
    assert (
        judge(session(score=0.7, judgment="acceptable"), []).verdict_score == 0.7
    )  # both are the source's own
    assert judge(session(score=0.7), [], BY_MEASURES).verdict_score is None
    assert judge(session(score=0.7), ["ended_with_answer"], UNVERIFIED).verdict_score == 0.7
    assert judge(session(judgment="acceptable"), []).verdict_score == 1.0


@pytest.mark.parametrize(
    ("judgment", "score", "verdict_score"), [("acceptable", 0.0, 1.0), ("unacceptable", 1.0, 0.0)]
)
def test_a_score_that_contradicts_the_verdict_does_not_say_how_good_the_session_is(
    judgment, score, verdict_score
):
    assert judge(session(judgment=judgment, score=score), []).verdict_score == verdict_score


@pytest.mark.parametrize("when_unjudged", ["acceptable", "unacceptable", "train_unverified"])
@pytest.mark.parametrize(
    "llm",
    [
        Opinion(None, "the limit was reached", pending=True),
        Opinion(None, "the session is too long"),
    ],
)
def test_a_session_that_the_language_model_did_not_read_is_not_one_that_nobody_judges(
    when_unjudged, llm
):
    policy = VerdictPolicy(["label", "llm"], when_unjudged)
    assert given_by(policy, llm=llm) == (None, None)
    assert given_by(policy, Label("acceptable"), llm) == ("acceptable", "label")
    assert given_by(policy, llm=Opinion(None, "unsure", "model"))[0] is not None
    assert (
        given_by(VerdictPolicy(["label"], when_unjudged), llm=llm)[0] is not None
    )  # it has no say


def test_nobody_who_ranks_below_the_language_model_decides_before_it_was_heard():
    late = Opinion(None, "an outage", pending=True)
    assert given_by(VerdictPolicy(["llm", "score"]), llm=late, score=1.0) == (None, None)
    assert given_by(VerdictPolicy(["score", "llm"]), llm=late, score=1.0) == ("acceptable", "score")
    assert given_by(
        VerdictPolicy(["measures+llm", "score"]), llm=late, score=1.0, messages=[CALLED]
    ) == (
        "unacceptable",
        "measures",
    )
    assert given_by(VerdictPolicy(["llm", "score"]), llm=Opinion(None, "too long"), score=1.0) == (
        "acceptable",
        "score",
    )


@pytest.mark.parametrize(
    "policy", [VerdictPolicy(), VerdictPolicy(when_unjudged="acceptable"), VerdictPolicy(["llm"])]
)
def test_a_failure_of_the_infrastructure_and_an_obeyed_injection_are_never_good(policy):
    said = {"label": Label("acceptable"), "llm": Opinion("acceptable"), "judgment": "acceptable"}
    assert given_by(policy, error="500", **said) == (None, None)
    assert given_by(policy, attack_succeeded=True, **said) == ("unacceptable", "policy")
    assert given_by(policy, attack_succeeded=False, **said)[0] == "acceptable"


def test_judges_together_agree_on_good_and_one_of_them_is_enough_for_bad():
    policy = VerdictPolicy(["label", "measures+llm"])
    good, bad, unsure = (
        Opinion("acceptable", "well done"),
        Opinion("unacceptable", "rude"),
        Opinion(None, "unsure"),
    )
    assert given_by(policy, llm=good) == ("acceptable", "llm")
    assert given_by(policy, llm=bad) == ("unacceptable", "llm")
    assert given_by(policy, llm=unsure) == given_by(policy) == (None, None)
    assert given_by(policy, llm=good, messages=[CALLED]) == ("unacceptable", "measures")
    assert given_by(policy, llm=bad, label=Label("acceptable")) == ("acceptable", "label")
    assert judge(session([CALLED]), ["ended_with_answer"], policy, llm=bad).verdict_reasons == (
        "measures: failed ended_with_answer (the session ends with a tool call); llm: rude"
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"decided_by": ["lable"]}, "names 'lable', .*did you mean label"),
        ({"decided_by": [""]}, "names ''"),
        ({"decided_by": ["label", "measures+label"]}, "contains a judge twice"),
        ({"score_acceptable": 0.5, "score_unacceptable": 0.5}, "is not below"),
        ({"score_acceptable": float("nan")}, "is not below"),
        ({"metrics": {"toxicity": "less"}}, "metrics.toxicity` is 'less'"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(fields, says):
    with pytest.raises(SettingsError, match=says):
        VerdictPolicy(**fields)


def test_the_language_model_is_asked_only_where_it_can_still_change_the_verdict():
    together, alone = (
        VerdictPolicy(["label", "measures+llm"]),
        VerdictPolicy(["label", "llm", "measures"]),
    )
    good, bad = Opinion("acceptable"), Opinion("unacceptable")
    assert together.needs_opinion("llm", {"measures": good}) and not together.needs_opinion(
        "llm", {"measures": bad}
    )
    assert alone.needs_opinion("llm", {"measures": bad}) and not alone.needs_opinion(
        "llm", {"label": good}
    )
    assert not VerdictPolicy().needs_opinion("llm", {})


opinions = st.dictionaries(
    st.sampled_from(JUDGES),
    st.builds(Opinion, st.sampled_from(["acceptable", "unacceptable", None])),
)
orders = st.permutations(JUDGES).flatmap(
    lambda names: st.lists(st.booleans(), min_size=len(JUDGES), max_size=len(JUDGES)).map(
        lambda joins: (
            "".join(name + ("+" if join else " ") for name, join in zip(names, joins, strict=True))
            .strip("+ ")
            .split()
        )
    )
)


@given(orders, opinions)
def test_a_model_that_is_not_asked_could_not_have_changed_the_verdict(order, said):
    policy, without = (
        VerdictPolicy(order),
        {name: opinion for name, opinion in said.items() if name != "llm"},
    )
    if not policy.needs_opinion("llm", without):
        verdicts = {
            decide_verdict(session(), policy, {}, without | {"llm": Opinion(each)}).verdict
            for each in ("acceptable", "unacceptable", None)
        }
        assert len(verdicts) == 1


def test_agreement_with_people_is_counted_with_cohens_kappa():
    agreement = Agreement()
    pairs = [("acceptable", "acceptable")] * 20 + [("acceptable", "unacceptable")] * 5
    pairs += [("unacceptable", "acceptable")] * 10 + [("unacceptable", "unacceptable")] * 15
    for people, model in pairs:
        agreement.add(judge(session(judgment=people), ["ended_with_answer"], llm=Opinion(model)))
    agreement.add(
        judge(session(judgment="unacceptable"), [], label=Label("acceptable"), llm=Opinion(None))
    )
    agreement.add(judge(session(), [], llm=Opinion("acceptable")))
    rows = {row.name: row for row in agreement.list_rows()}
    llm = rows["llm"]
    assert (
        llm.both_acceptable,
        llm.both_unacceptable,
        llm.too_kind,
        llm.too_strict,
        llm.sessions,
        llm.share,
    ) == (20, 15, 10, 5, 50, 0.7)
    assert llm.kappa == pytest.approx(0.4)  # (0.7 - 0.5) / (1 - 0.5)
    assert rows["ended_with_answer"].too_kind == 25 and rows[
        "ended_with_answer"
    ].kappa == pytest.approx(0)


def test_a_run_warns_of_unverified_verdicts():
    panel = JudgingRun.from_options(JudgingOptions(when_unjudged="train_unverified"))
    list(panel.judge([(None, session()), (None, session(session_id="t", judgment="acceptable"))]))
    (note,) = panel.describe(PartitionKey("p", "a"))
    assert note.startswith("1 of 2 verdicts of p/a are unverified")
