"""`python -m benchmarks.judge_checks [DRAWS]`: does the interval of a judge's precision cover the truth?

The truth is the verdict that the source recorded: the reward of tau-bench, the utility of AgentDojo,
and the simulator of the sample. The judges do not see it. In each draw, 50 sessions are proposed and
labelled with the truth, as a person would label them, and the judge is checked on these labels. The
draws differ only in their random numbers. The interval is a 90 % interval.

The judges are two sets of measures, and two simulated language models that are wrong about a fixed
share of the sessions. No language model is asked.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.judge_checks import SampledSession, check_judge, draw_number
from agent_pipeline.judging.labels import Verdict
from agent_pipeline.judging.measures import parse_measures
from agent_pipeline.judging.rows import JudgedRow
from agent_pipeline.judging.verdict_policy import VerdictPolicy
from agent_pipeline.selection.label_proposals import propose_sessions
from agent_pipeline.sessions.session import Session
from benchmarks.redaction import REAL_TRACES, sessions_of

SAMPLE = Path(__file__).parents[1] / "data" / "sample"
STORES = {
    "tau-bench": REAL_TRACES / "tau-bench",
    "AgentDojo": REAL_TRACES / "agentdojo",
    "sample": SAMPLE,
}
MOST_SESSIONS, LABELS, LEAST = 300, 50, 0.9
POLICY = VerdictPolicy(["label", "measures"])
MEASURES = {
    "default measures": ("ended_with_answer", "no_tool_error_at_end", "all_calls_answered"),
    "strict measures": ("no_tool_errors", "no_repeated_call", "at_most_steps(8)"),
}
SIMULATED = {"simulated model, 2 % too kind": 0.02, "simulated model, 40 % too kind": 0.4}


@dataclass(frozen=True)
class Judged:
    """A session, the truth about it, and the verdict of each judge."""

    session: Session
    truth: Verdict
    verdicts: dict[str, Verdict]


def find_truth(session: Session) -> Verdict | None:
    """The verdict that the source recorded."""
    if session.judgment in ("acceptable", "unacceptable"):
        return cast(Verdict, session.judgment)
    if session.score is not None:
        return "acceptable" if session.score >= 1 else "unacceptable"
    return None


def judge(session: Session, truth: Verdict) -> dict[str, Verdict]:
    """The verdict of each judge."""
    context = EvaluationContext.from_session(session)
    verdicts: dict[str, Verdict] = {}
    for name, texts in MEASURES.items():
        passed = all(measure.take(context).passed for measure in parse_measures(texts))
        verdicts[name] = "acceptable" if passed else "unacceptable"
    for name, share in SIMULATED.items():
        is_wrong = random.Random(f"{name}{session.session_id}").random() < share
        is_good = truth == "acceptable" or is_wrong
        verdicts[name] = "acceptable" if is_good else "unacceptable"
    return verdicts


def read_judged(store: Path) -> list[Judged]:
    """A random part of the sessions of a store that have a truth."""
    sessions = [
        (session, truth)
        for session in sessions_of(store)
        if session.error is None and not session.archived and (truth := find_truth(session))
    ]
    # An id is unique within one agent only, and the sessions of all agents are one population.
    sessions = list({session.session_id: (session, truth) for session, truth in sessions}.values())
    random.Random(0).shuffle(sessions)
    return [
        Judged(session, truth, judge(session, truth)) for session, truth in sessions[:MOST_SESSIONS]
    ]


def make_row(judged: Judged, name: str) -> JudgedRow:
    """The row of `judged_sessions` if only this judge has an opinion."""
    opinion = {"verdict": judged.verdicts[name], "reason": "", "name": "", "pending": False}
    row: Any = {
        "session_id": judged.session.session_id,
        "project": "p",
        "agent": "a",
        "archived": False,
        "error": None,
        "verdict": None,
        "verdict_by": None,
        "messages": judged.session.messages,
        "turns": [{"addresses_judge": False, "failed_measures": []}]
        * sum(message["role"] == "assistant" for message in judged.session.messages),
        "opinions": {"measures": opinion},
    }
    return cast(JudgedRow, row)


def measure_coverage(population: list[Judged], name: str, draws: int) -> str:
    """The line of the table of one judge."""
    good = [one for one in population if one.verdicts[name] == "acceptable"]
    truth_by_id = {one.session.session_id: one.truth for one in population}
    precision = sum(one.truth == "acceptable" for one in good) / max(1, len(good))
    covered = trusted = labels = 0
    rows = [make_row(one, name) for one in population]
    for draw in range(draws):
        salt = f" draw {draw}"
        proposal = propose_sessions(rows, LABELS, POLICY, seed=draw, salt=salt).rows
        labelled = {row["session_id"] for row in proposal}
        bound = max(float(row["probability"] or 0) for row in proposal)
        sampled = [
            SampledSession(number, "measures", truth_by_id[one] if one in labelled else None)
            for one in (judged.session.session_id for judged in good)
            if (number := draw_number(one, salt)) < bound
        ]
        check = check_judge("measures", sampled, LEAST)
        covered += check.low <= precision <= check.high
        trusted += check.passed
        labels += check.labels
    return (
        f"{len(population)} | {name} | {precision:.3f} | {covered} of {draws} | "
        f"{labels / draws:.0f} | {trusted}"
    )


def list_lines(draws: int) -> Iterator[str]:
    """The table, one line per store and judge."""
    yield "| store | sessions | judge | true precision | covered | labels counted | trusted |"
    yield "|---|---:|---|---:|---:|---:|---:|"
    for store, path in STORES.items():
        population = read_judged(path)
        for name in (*MEASURES, *SIMULATED):
            yield f"| {store} | {measure_coverage(population, name, draws)} |"


if __name__ == "__main__":
    for line in list_lines(int(sys.argv[1]) if len(sys.argv) > 1 else 100):
        print(line, flush=True)
