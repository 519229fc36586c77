"""LangSmith: chunks of streamed answers are messages, and feedback is what people and evaluators said of a run."""

from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source
from agent_pipeline_tests.sources.platforms.exports import write

OPTIONS = ReadingOptions(redaction=RedactionOptions(enabled=False))


def message(name: str, **kwargs: Any) -> dict[str, Any]:
    return {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", name],
        "kwargs": kwargs | {"type": name},
    }


HUMAN = message("HumanMessage", content="When do you open?") | {
    "kwargs": {"content": "When do you open?", "type": "human"}
}
CALLED = message(
    "AIMessageChunk",
    content=[
        {"text": "I look it up.", "type": "text", "index": 0},
        {
            "id": "t1",
            "input": {},
            "name": "search",
            "type": "tool_use",
            "index": 1,
            "partial_json": '{"query": "opening hours"}',
        },
    ],
    tool_calls=[
        {"name": "search", "args": {"query": "opening hours"}, "id": "t1", "type": "tool_call"}
    ],
    response_metadata={"stop_reason": "tool_use"},
)
TOLD = {
    "kwargs": {
        "content": "9 to 5",
        "type": "tool",
        "tool_call_id": "t1",
        "name": "search",
        "status": "success",
    }
}
RESULT = message("ToolMessage") | TOLD
ANSWER = message("AIMessageChunk", content="From nine to five.")


def run(number: int, given: list[Any], answer: Any, **more: Any) -> dict[str, Any]:
    own = {
        "id": f"r{number}",
        "trace_id": f"r{number}",
        "dotted_order": str(number),
        "run_type": "llm",
        "name": "desk",
    }
    times = {
        "start_time": f"2026-06-01T10:00:0{number}",
        "session_name": "shop",
        "extra": {"metadata": {"thread_id": "t1"}},
    }
    generations = [[{"text": "", "type": "ChatGenerationChunk", "message": answer}]]
    return (
        own
        | times
        | {"inputs": {"messages": [given]}, "outputs": {"generations": generations}}
        | more
    )


RUNS = [run(1, [HUMAN], CALLED), run(2, [HUMAN, CALLED, RESULT], ANSWER)]


def feedback(of: str, key: str, **said: Any) -> dict[str, Any]:
    return {
        "id": f"f-{of}-{key}",
        "run_id": of,
        "trace_id": of,
        "key": key,
        "score": None,
        "value": None,
    } | said


def read(path: Path) -> Session:
    source = open_source(path)
    assert source.name == "langsmith"
    (session,) = (
        session for key in source.partitions() for session in read_sessions(source, key, OPTIONS)
    )
    return session


def test_streamed_answers(tmp_path: Path) -> None:
    """`AIMessageChunk` was no message, so its runs were dropped; the arguments are in `partial_json` (langchain#34406)."""
    session = read(write(tmp_path / "runs.jsonl", RUNS))
    assert [each["role"] for each in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert session.messages[1]["tool_calls"][0]["function"] == {
        "name": "search",
        "arguments": '{"query": "opening hours"}',
    }
    assert not session.damage and not session.skipped


def test_runs_of_a_chosen_list_of_fields(tmp_path: Path) -> None:
    """`list_runs(select=[...])` writes runs without `dotted_order`; no reader knew them."""
    runs = [
        {name: value for name, value in run.items() if name != "dotted_order"}
        | {"parent_run_id": None}
        for run in RUNS
    ]
    assert read(write(tmp_path / "runs.jsonl", runs)) == read(write(tmp_path / "all.jsonl", RUNS))


@pytest.mark.parametrize("place", ["records", "statistics", "both"])
def test_feedback(place: str, tmp_path: Path) -> None:
    """Feedback is a metric; what stands in a record and in a run's statistics counts once, and runs of a session count alike."""
    stats = {"correctness": {"n": 1, "avg": 1.0, "values": {}}}
    first = RUNS[0] | ({"feedback_stats": stats} if place != "records" else {})
    second = RUNS[1] | (
        {"feedback_stats": {"correctness": {"n": 1, "avg": 0.0}}} if place != "records" else {}
    )
    said = (
        [feedback("r1", "correctness", score=1.0), feedback("r2", "correctness", score=0)]
        if place != "statistics"
        else []
    )
    session = read(write(tmp_path / "runs.jsonl", [*said, first, second]))
    assert session.scores == {"correctness": 0.5}
    assert session.judgment is None


def test_feedback_of_a_step_and_of_nothing(tmp_path: Path) -> None:
    """A run within a trace is found by its own id; feedback about a run that is not there is noted."""
    inner = RUNS[1] | {"id": "r9", "trace_id": "r1", "parent_run_id": "r1", "dotted_order": "1.2"}
    said = [
        feedback("r9", "helpful", score=1, trace_id=None),
        feedback("gone", "helpful", score=0, trace_id=None),
    ]
    source = open_source(write(tmp_path / "runs.jsonl", [RUNS[0], inner, *said]))
    (session,) = (session for key in source.partitions() for session in source.sessions(key))
    assert session.scores == {"helpful": 1.0}
    assert any("runs that are not in the store" in note for note in source.notes)


@pytest.mark.parametrize(
    ("source_type", "judgment"), [("app", "unacceptable"), ("model", None), ("api", None)]
)
def test_word_of_a_person(source_type: str, judgment: str | None, tmp_path: Path) -> None:
    """What a person wrote on the whole run in LangSmith's UI judges it, as in Phoenix."""
    said = feedback("r1", "review", value="bad", feedback_source={"type": source_type})
    assert read(write(tmp_path / "runs.jsonl", [*RUNS, said])).judgment == judgment


def test_several_prompts_in_one_run_are_damage(tmp_path: Path) -> None:
    """Only one of them is the conversation of the answer that is read."""
    asked = run(1, [HUMAN], ANSWER)
    asked["inputs"]["messages"].append([HUMAN])
    assert read(write(tmp_path / "runs.jsonl", [asked])).damage == {"unread": 1}


def test_the_reason_beside_the_generations_cuts_the_answer(tmp_path: Path) -> None:
    asked = run(1, [HUMAN], ANSWER)
    asked["outputs"]["llm_output"] = {"stop_reason": "max_tokens"}
    assert read(write(tmp_path / "runs.jsonl", [asked])).damage == {"cut_message": 1}
