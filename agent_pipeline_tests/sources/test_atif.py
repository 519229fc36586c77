"""ATIF's observations: which call a result answers, as Harbor 0.26's converters write them."""

from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source
from agent_pipeline_tests.sources.samples import document, put

OPTIONS = ReadingOptions(redaction=RedactionOptions(enabled=False))
TASK = {"step_id": 1, "source": "user", "message": "Create hello.txt."}


def call(name: str, function: str = "bash_command") -> dict[str, Any]:
    return {
        "tool_call_id": name,
        "function_name": function,
        "arguments": {"keystrokes": f"{name}\n"},
    }


def step(
    message: str, calls: list[dict[str, Any]], *results: dict[str, Any], **more: Any
) -> dict[str, Any]:
    observation = {"observation": {"results": list(results)}} if results else {}
    return (
        {"step_id": 2, "source": "agent", "message": message, "tool_calls": calls}
        | observation
        | more
    )


def read(folder: Path, *steps: dict[str, Any], version: str = "ATIF-v1.8") -> Session:
    trajectory = {
        "schema_version": version,
        "session_id": "s1",
        "agent": {"name": "terminus-2", "version": "2"},
        "steps": [TASK, *steps],
    }
    source = open_source(put(folder, {"trajectory.json": document(trajectory)}))
    (session,) = (
        session for key in source.partitions() for session in read_sessions(source, key, OPTIONS)
    )
    return session


def turns(session: Session) -> list[tuple[str, Any]]:
    """Roles with words, and a result with the id of its call."""
    return [
        (message.get("tool_call_id", message["role"]), message["content"])
        for message in session.messages
    ]


def test_one_screen_for_several_commands(tmp_path: Path) -> None:
    """Terminus shows what a batch of commands wrote together; its trajectories were dropped (4 of 4 of Harbor's fixtures)."""
    session = read(
        tmp_path,
        step("Look.", [call("c1"), call("c2")], {"content": "$ c1\n$ c2"}),
        step("Done.", []),
    )
    assert turns(session)[1:] == [
        ("assistant", "Look."),
        ("c1", ""),
        ("c2", "$ c1\n$ c2"),
        ("assistant", "Done."),
    ]
    assert not session.damage and session.broken is None


def test_completion_beside_a_command(tmp_path: Path) -> None:
    calls = [call("c1"), call("end", "mark_task_complete")]
    session = read(
        tmp_path, step("Do.", calls, {"source_call_id": "c1", "content": "$ c1"}), step("Done.", [])
    )
    assert sorted(turns(session)[2:4]) == [("c1", "$ c1"), ("end", "")]
    assert not session.damage


@pytest.mark.parametrize("results", [(), ({"content": ""},)])
def test_run_that_ends_with_a_call(results: tuple[dict[str, Any], ...], tmp_path: Path) -> None:
    """OpenHands' `finish` is not answered, and Terminus' last screen may be empty."""
    session = read(tmp_path, step("Done.", [call("end", "finish")], *results))
    assert session.ends_on_tool and session.broken is None


def test_results_in_order(tmp_path: Path) -> None:
    session = read(
        tmp_path,
        step("Look.", [call("c1"), call("c2")], {"content": "one"}, {"content": "two"}),
        step("Done.", []),
    )
    assert turns(session)[2:4] == [("c1", "one"), ("c2", "two")]


def test_observation_without_a_call(tmp_path: Path) -> None:
    """In raw mode, what the terminal shows is what the agent is told next."""
    session = read(
        tmp_path,
        step('{"commands": []}', [], {"content": "New terminal output"}),
        step("Done.", []),
    )
    assert turns(session)[1:] == [
        ("assistant", '{"commands": []}'),
        ("user", "New terminal output"),
        ("assistant", "Done."),
    ]
    assert not session.damage


def test_lost_result(tmp_path: Path) -> None:
    """A call whose result is not there stays unanswered, and results that no call asked for are damage."""
    lost = step("Look.", [call("c1"), call("c2")], {"source_call_id": "c1", "content": "one"})
    assert read(tmp_path / "lost", lost, step("Done.", [])).broken == "unanswered_call"
    many = step(
        "Look.", [call("c1"), call("c2"), call("c3")], {"content": "one"}, {"content": "two"}
    )
    assert read(tmp_path / "many", many, step("Done.", [])).broken == "unread"


def test_compaction(tmp_path: Path) -> None:
    """From there on, the model saw a summary and not the steps before it."""
    marked = {
        "step_id": 3,
        "source": "system",
        "message": "Performed context summarization and handoff to continue task.",
    }
    marked |= {
        "observation": {
            "results": [{"subagent_trajectory_ref": [{"trajectory_path": "t.summary.json"}]}]
        }
    }
    marked |= {"extra": {"context_management": {"type": "compaction", "boundary": "replace"}}}
    assert (
        read(
            tmp_path, step("Look.", [call("c1")], {"content": "one"}), marked, step("Done.", [])
        ).broken
        == "unread"
    )


def test_parts_and_references(tmp_path: Path) -> None:
    """Parts of text are text; a reference to a called agent's trajectory is no result."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    reference = {
        "source_call_id": "c1",
        "content": "asked",
        "subagent_trajectory_ref": [{"trajectory_id": "t2"}],
    }
    session = read(
        tmp_path,
        step("Ask.", [call("c1")], reference),
        step("Look.", [call("c2")], {"content": parts}),
        step("Done.", []),
    )
    assert [each for each in turns(session) if each[0] in ("c1", "c2")] == [
        ("c1", "asked"),
        ("c2", "one\ntwo"),
    ]


def test_result_of_a_called_agent(tmp_path: Path) -> None:
    """What a called agent answered may stand in its own trajectory only. The agent saw it, and the row would not have it."""
    reference = {"source_call_id": "c1", "subagent_trajectory_ref": [{"trajectory_id": "t2"}]}
    assert (
        read(tmp_path, step("Ask.", [call("c1")], reference), step("Done.", [])).broken == "unread"
    )


def test_cut_step(tmp_path: Path) -> None:
    """A step's further fields may say why the model stopped."""
    assert read(
        tmp_path, step("The total is and", []) | {"extra": {"finish_reason": "length"}}
    ).damage == {"cut_message": 1}
