"""From opinions to rows: what somebody in authority called good is nobody's bad answer, and what he called bad nobody's example."""

from collections import Counter
from concurrent.futures import Future
from itertools import count
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.datasets.curated import CuratedSessions
from agent_pipeline.datasets.kto import make_kto_rows
from agent_pipeline.datasets.preferences import Pairing, pair_trials
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.judging import (
    JUDGES,
    JudgingRun,
    Label,
    Labels,
    Opinion,
    VerdictPolicy,
    parse_measures,
)
from agent_pipeline.judging.curation import CurationBounds
from agent_pipeline.judging.tables import curate_sessions, judge_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import SESSIONS, make_session_row, to_batches
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.judging.sessions import calls, result, session

KEY = PartitionKey("p", "a")
MEASURES = ["ended_with_answer", "no_tool_errors"]
VERDICTS = st.sampled_from([None, "acceptable", "unacceptable"])
ENDS = {
    "answers": [{"role": "assistant", "content": "Done."}],
    "answers otherwise": [{"role": "assistant", "content": "Declined."}],
    "fails": [calls(("f", {})), result("Error: x"), {"role": "assistant", "content": "Sorry."}],
    "stops": [calls(("f", {})), result("fine")],
}


@st.composite
def said(draw: st.DrawFn) -> dict[str, Any]:
    """What everybody says of one session."""
    return {
        "end": draw(st.sampled_from(list(ENDS))),
        "label": draw(VERDICTS),
        "judgment": draw(VERDICTS),
        "score": draw(st.sampled_from([None, 0.0, 0.4, 1.0])),
        "toxicity": draw(st.sampled_from([None, 0.0, 1.0])),
        "llm": draw(VERDICTS | st.just("pending")),
        "error": draw(st.sampled_from([None] * 5 + ["500"])),
        "attack_succeeded": draw(st.sampled_from([None, False, False, True])),
        "archived": draw(st.sampled_from([False] * 5 + [True])),
    }


@st.composite
def policies(draw: st.DrawFn) -> VerdictPolicy:
    names = draw(st.permutations(JUDGES))[: draw(st.integers(1, len(JUDGES)))]
    joined = (
        "".join(name + draw(st.sampled_from(["+", " ", " ", " "])) for name in names)
        .strip("+ ")
        .split()
    )
    when = draw(st.sampled_from(["exclude", "train_unverified", "acceptable", "unacceptable"]))
    return VerdictPolicy(joined, when, metrics=draw(st.sampled_from([{}, {"toxicity": "lower"}])))


def by_authority(given_by: dict[str, Any], policy: VerdictPolicy) -> str | None:
    """The verdict of the first judge in the policy's order who has one."""
    if given_by["error"]:
        return None
    failed = given_by["end"] in ("fails", "stops")
    opinions = {
        "label": given_by["label"],
        "judgment": given_by["judgment"],
        "score": {0.0: "unacceptable", 1.0: "acceptable"}.get(given_by["score"]),
        "metrics": {0.0: "acceptable", 1.0: "unacceptable"}.get(given_by["toxicity"])
        if policy.metrics
        else None,
        "measures": "unacceptable" if failed else "acceptable",
        "llm": given_by["llm"] if given_by["llm"] != "pending" else None,
    }
    for entry in policy.decided_by:
        group = {opinions[name] for name in entry.split("+")}
        if "unacceptable" in group or (group == {"acceptable"} and entry != "measures"):
            return min(group, key=lambda each: each != "unacceptable")
        if "llm" in entry.split("+") and given_by["llm"] == "pending":
            return None
    unread = (
        any("llm" in entry.split("+") for entry in policy.decided_by)
        and given_by["llm"] == "pending"
    )
    fallback = {"train_unverified": None if failed else "acceptable", "exclude": None}
    return None if unread else fallback.get(policy.when_unjudged, policy.when_unjudged)


class Scripted:
    """A language model that says of each session what it is told to."""

    client = SimpleNamespace(endpoint=SimpleNamespace(concurrency=2))

    def __init__(self, opinions: list[str | None]) -> None:
        self.opinions = opinions

    def check_refusals(self) -> None:
        """It refuses nothing."""

    def ask_opinion(self, context: Any) -> "Future[Opinion]":
        future: Future[Opinion] = Future()
        verdict: Any = self.opinions[int(context.metadata["session_id"])]
        future.set_result(
            Opinion(None, pending=True) if verdict == "pending" else Opinion(verdict, name="model")
        )
        return future


def recorded(number: int, given_by: dict[str, Any]) -> Session:
    fields = {
        name: given_by[name]
        for name in ("judgment", "score", "error", "attack_succeeded", "archived")
    }
    scores = {} if given_by["toxicity"] is None else {"toxicity": given_by["toxicity"]}
    messages = [{"role": "user", "content": "Please."}, *ENDS[given_by["end"]]]
    return session(messages, str(number), task_key="t", scores=scores, **fields)


NUMBERS = count()


@given(
    st.lists(said(), min_size=2, max_size=8),
    policies(),
    st.sampled_from([[], ["ended_with_answer"], MEASURES]),
)
@settings(max_examples=40)
def test_no_good_session_is_a_bad_answer_and_no_bad_one_an_example(
    tmp_path_factory, everyone, policy, required
):
    lake = Lake(str(tmp_path_factory.getbasetemp() / f"authority{next(NUMBERS)}"))
    rows = [make_session_row(recorded(number, each)) for number, each in enumerate(everyone)]
    lake.stage("sessions", KEY, to_batches(rows, SESSIONS), SESSIONS).commit()
    labels = Labels(
        by_id={
            str(number): Label(each["label"])
            for number, each in enumerate(everyone)
            if each["label"]
        }
    )
    model: Any = Scripted([each["llm"] for each in everyone]) if policy.has_judge("llm") else None
    judge_sessions(lake, KEY, JudgingRun(parse_measures(MEASURES), policy, labels, model)).commit()
    curate_sessions(lake, KEY, required, CurationBounds(), []).table.commit()
    curated, counts = CuratedSessions.open(lake, KEY, SplitSizes()), Counter[str]()
    kto = list(make_kto_rows(curated.read_labelled(), curated.ledger, set(), counts))
    pairs = list(
        pair_trials(curated.read_trials(counts), curated.ledger, counts, Pairing("all_pairs"))
    )
    good = {row["session_id"] for row in [*(row for row in kto if row["label"]), *pairs]}
    bad = {row["session_id"] for row in kto if not row["label"]} | {
        row["rejected_session_id"] for row in pairs
    }
    assert {by_authority(everyone[int(name)], policy) for name in good} <= {"acceptable"}
    assert {by_authority(everyone[int(name)], policy) for name in bad} <= {"unacceptable"}
    unfit = {
        str(number)
        for number, each in enumerate(everyone)
        if each["error"] or each["attack_succeeded"] or each["archived"]
    }
    assert not unfit & (good | bad)
    assert all(row["margin"] is None or row["margin"] > 0 for row in pairs)
