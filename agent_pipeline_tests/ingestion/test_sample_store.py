"""The committed sample, read: it is what its maker says."""

from collections import Counter

import pytest

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.judging.curation import curate, make_candidate
from agent_pipeline.judging.decisions import CurationCandidate
from agent_pipeline.judging.tables import make_verdict_columns
from agent_pipeline.keys import parse_key
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import make_session_row
from agent_pipeline.sources import open_source
from agent_pipeline_tests.judging.sessions import judge

MEASURES = ["ended_with_answer", "no_tool_error_at_end", "all_calls_answered"]


def candidate(session: Session) -> CurationCandidate:
    return make_candidate(
        make_session_row(session) | make_verdict_columns(judge(session, MEASURES)),
        None,
        ["ended_with_answer"],
    )


@pytest.mark.parametrize("partition", ["shop/support", "shop/intern", "office/rooms"])
def test_the_sample_is_read_as_its_manifest_says(partition, sample_store, sample_manifest):
    source = open_source(sample_store)
    truth = sample_manifest["partitions"][partition]
    sessions = list(read_sessions(source, parse_key(partition), ReadingOptions()))
    assert not source.notes
    assert len(sessions) == truth["sessions"]
    judgments = Counter(session.judgment or "unjudged" for session in sessions)
    assert judgments == {name: truth[name] for name in ("acceptable", "unacceptable", "unjudged")}
    assert sum(session.archived for session in sessions) == truth["archived"]
    facts = {
        session.session_id: sample_manifest["sessions"][session.session_id] for session in sessions
    }
    kinds = {
        "cut_json": "invalid_item",
        "orphan_output": "orphan_output",
        "unanswered_call": "unanswered_call",
    }
    for session in sessions:
        broken = facts[session.session_id].get("broken")
        assert bool(set(session.damage) - {"trailing_user", "trailing_tool"}) == (
            broken in kinds
        ), session.session_id
        assert broken not in kinds or kinds[broken] in session.damage
        assert session.task_key == facts[session.session_id].get("task_id", session.task_key)
    decisions = {decision.session_id: decision for decision in curate(map(candidate, sessions))}
    dropped_as = Counter(decision.reason or "kept" for decision in decisions.values())
    assert sum(dropped_as.values()) == len(sessions)
    assert dropped_as["kept"] == truth["clean_acceptable"]
    assert dropped_as["archived"] == truth["archived"]
    copies = {session_id for session_id, fact in facts.items() if "duplicate_of" in fact}
    assert {
        decision.session_id for decision in decisions.values() if decision.reason == "duplicate"
    } <= copies | {facts[copy]["duplicate_of"] for copy in copies}
