"""What `agent-pipeline explain` says of a session."""

import pytest

from agent_pipeline.errors import DataError
from agent_pipeline.governance.explain import explain
from agent_pipeline.judging import JudgingRun, VerdictPolicy, parse_measures
from agent_pipeline.judging.curation import CurationBounds
from agent_pipeline.judging.labels import Label, Labels
from agent_pipeline.judging.tables import curate_sessions, judge_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import SESSIONS, make_session_row, to_batches
from agent_pipeline.storage.lake import Lake

KEY = PartitionKey("p", "a")


def session(name: str, answer: str, **fields) -> Session:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": answer}]
    return Session(
        session_id=name,
        project="p",
        agent="a",
        source="chat",
        messages=messages,
        task_key="t",
        **fields,
    )


def test_a_sessions_way_is_told_from_its_source_to_its_rows(tmp_path):
    lake = Lake(str(tmp_path))
    rows = [
        session("copy", "Hello"),
        session("good", "Hello", score=1.0),
        session("toxic", "No!", scores={"toxicity": 1.0}),
    ]
    rows.append(
        session(
            "cut off", "Hm", error="503", skipped={"unread:web_search_call": 2, "media:image": 1}
        )
    )
    lake.stage(
        "sessions", KEY, to_batches(map(make_session_row, rows), SESSIONS), SESSIONS
    ).commit()
    labels = Labels(by_id={"copy": Label("acceptable", "polite")})
    panel = JudgingRun(
        parse_measures(["ended_with_answer"]), VerdictPolicy(metrics={"toxicity": "lower"}), labels
    )
    judge_sessions(lake, KEY, panel).commit()
    assert panel.pending == 0 and panel.verdicts.total() == 4
    curated = curate_sessions(lake, KEY, ["ended_with_answer"], CurationBounds(), [])
    table, curation = curated.table, curated.curation
    table.commit()
    assert [each.use for each in curation.decisions] == [
        "positive",
        "neither",
        "negative",
        "neither",
    ]

    copy, toxic = explain(lake, "good", KEY), explain(lake, "toxic")
    assert len(copy) <= 10
    assert any("duplicate" in line and "copy" in line for line in copy) and any(
        "acceptable by score" in line for line in copy
    )
    assert any("unacceptable by metrics (toxicity)" in line for line in toxic) and any(
        "negative: unacceptable" in line for line in toxic
    )
    assert "verdict    none: infrastructure error: neither good nor bad" in explain(lake, "cut off")
    assert {"unread     web_search_call 2", "left out   media:image 1"} <= set(
        explain(lake, "cut off")
    )
    with pytest.raises(DataError):
        explain(lake, "nobody")


def test_a_verdict_names_its_judge_once(tmp_path):
    lake = Lake(str(tmp_path))
    rows = [
        session("plain", "Hello"),
        session("reasoned", "Hi"),
        session("several", "Ho", score=1.0),
    ]
    lake.stage(
        "sessions", KEY, to_batches(map(make_session_row, rows), SESSIONS), SESSIONS
    ).commit()
    labels = Labels(
        by_id={
            "plain": Label("acceptable", ""),
            "reasoned": Label("unacceptable", "label: it was rude"),
            "several": Label("acceptable", "polite"),
        }
    )
    panel = JudgingRun(parse_measures(["ended_with_answer"]), VerdictPolicy(), labels)
    judge_sessions(lake, KEY, panel).commit()

    def verdict_of(session_id: str) -> str:
        (line,) = [line for line in explain(lake, session_id) if line.startswith("verdict")]
        return line.removeprefix("verdict").strip()

    assert verdict_of("plain") == "acceptable by label"
    assert verdict_of("reasoned") == "unacceptable by label: label: it was rude"
    assert verdict_of("several").startswith("acceptable by label: polite")
