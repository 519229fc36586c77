"""Coding agents: one conversation out of many lines or files, as the agents wrote it and in the cases that they did not meet."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.judging.builtin_measures import all_calls_answered, ended_with_answer
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Session, list_calls
from agent_pipeline.sessions.transcript import is_failed
from agent_pipeline.sources import TraceSource, open_source, parse_location
from agent_pipeline.sources.agents.claude_code import ClaudeCodeSource
from agent_pipeline.sources.agents.codex import CodexSource
from agent_pipeline.sources.agents.gemini_cli import GeminiCLISource
from agent_pipeline.sources.agents.openhands import OpenHandsSource
from agent_pipeline.sources.benchmarks.swe_agent import SWEAgentSource
from agent_pipeline_tests.sources.samples import (
    TOOL,
    WRITTEN,
    claude_lines,
    codex_lines,
    document,
    lines,
    openhands_events,
    put,
)
from agent_pipeline_tests.sources.test_plain import read


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("claude_code.jsonl", "claude_code"),
        ("codex.jsonl", "codex"),
        ("gemini_cli.jsonl", "gemini_cli"),
        ("openhands", "openhands"),
    ],
)
def test_what_an_agent_wrote_is_the_conversation_that_was_played_with_it(
    name: str, source: str
) -> None:
    store = open_source(WRITTEN / name)
    (key,) = store.partitions()
    (session,) = store.sessions(key)
    assert (store.name, key.agent) == (source, source.replace("_", "-"))
    turns = [message for message in session.messages if message["role"] != "system"]
    assert [message["role"] for message in turns] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    said = [turns[at]["content"] for at in (0, 3, 4, 5)]
    assert said == ["Where is order 7?", "Your order is in Ulm.", "Thanks", "You are welcome."]
    (call,) = turns[1]["tool_calls"]
    assert (
        "order.txt" in call["function"]["arguments"]
        and turns[2]["tool_call_id"] == call["id"]
        and "in Ulm" in turns[2]["content"]
    )
    assert {session.usage.get(name) for name in ("input_tokens", "input", "prompt_tokens")} == {
        30,
        None,
    }, "three calls of ten, once each"
    assert (
        session.created_at
        and session.ended_at
        and session.created_at < session.ended_at
        and session.model_id
    )
    assert (
        not session.damage
        and all(name.startswith("line:") for name in session.skipped)
        and session.error is None
    )


def test_a_run_of_mini_swe_agent_ends_with_the_call_that_hands_in_the_work() -> None:
    source = open_source(WRITTEN / "mini_swe_agent.traj.json")
    (session,) = read(source)
    assert [message["role"] for message in session.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert (source.name, session.task_id, session.model_id, session.ends_on_tool) == (
        "swe_agent",
        "mini_swe_agent",
        "openai/m-1",
        True,
    )
    assert (
        session.context["exit_status"] == "Submitted"
        and session.usage["prompt_tokens"] == 20
        and not session.damage
    )


@pytest.mark.parametrize(
    ("status", "ends"),
    [("submitted", True), ("submitted (exit_cost)", False), ("exit_cost", False), (None, False)],
)
def test_a_run_of_swe_agent_that_was_handed_in_ends_with_the_result_of_that_call(
    tmp_path: Path, status: str | None, ends: bool
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "submit", "arguments": "{}"}}
    history = [
        {"role": "user", "agent": "main", "content": "Mend it."},
        {"role": "assistant", "agent": "main", "content": "Done.", "tool_calls": [call]},
        {"role": "tool", "agent": "main", "content": "diff", "tool_call_ids": ["c1"]},
    ]
    (session,) = read(
        SWEAgentSource(
            put(
                tmp_path,
                {"shed-1.traj": document({"history": history, "info": {"exit_status": status}})},
            )
        )
    )
    context = EvaluationContext.from_session(session)
    assert (session.ends_on_tool, ended_with_answer(context).passed) == (
        ends,
        ends,
    ) and all_calls_answered(context).passed


GEMINI = (
    json.dumps(json.dumps({"output": "in Ulm\n"}, separators=(", ", ":"))),
    json.dumps("in Ulm\n"),
)
"""Harbor takes a result out of the object that Gemini is sent."""


@pytest.mark.parametrize("name", ["claude_code", "codex", "gemini_cli"])
def test_what_harbor_makes_of_an_agents_file_is_what_the_file_says_and_has_the_trials_verdict(
    name: str,
) -> None:
    def said(store: TraceSource) -> tuple[Session, list]:
        (key,) = store.partitions()
        (session,) = read_sessions(
            store, key, ReadingOptions(redaction=RedactionOptions(enabled=False))
        )
        begin = next(
            at
            for at, message in enumerate(session.messages)
            if message["content"] == "Where is order 7?"
        )
        return session, json.loads(
            json.dumps(session.messages[begin:]).replace(r"\": ", r"\":").replace(*GEMINI)
        )

    trial, told = said(open_source(parse_location(f"atif:{WRITTEN / 'harbor' / f'order__{name}'}")))
    own, expected = said(open_source(WRITTEN / f"{name}.jsonl"))
    assert (told, trial.usage["prompt_tokens"], trial.broken) == (expected, 30, None)
    assert (trial.project, trial.agent, trial.model_id is not None) == ("shop", own.agent, True)
    assert (trial.task_id, trial.trial, trial.scores["speed"]) == ("order", f"order__{name}", 0.5)
    assert trial.judgment == ("unacceptable" if name == "codex" else "acceptable")


def test_a_trajectory_says_what_is_not_to_be_trained_and_which_agents_it_called(
    tmp_path: Path,
) -> None:
    copied = {"step_id": 1, "source": "agent", "message": "Earlier.", "is_copied_context": True}
    call = {"tool_call_id": "c1", "function_name": "look_up", "arguments": {"order": 7}}
    made = {
        "source": "agent",
        "message": "",
        "tool_calls": [call],
        "observation": {"results": [{"source_call_id": "c1", "content": "Ulm"}]},
    }
    head = {
        "schema_version": "ATIF-v1.8",
        "session_id": "s1",
        "agent": {"name": "main", "tool_definitions": [TOOL]},
    }
    inner = {
        **head,
        "session_id": None,
        "trajectory_id": "sub",
        "agent": {"name": "helper"},
        "steps": [{"source": "user", "message": "hi"}],
    }
    whole = head | {
        "steps": [copied, {**made, "llm_call_count": 0}, made, "x"],
        "subagent_trajectories": [inner],
    }
    failed = {
        "trial_name": "t",
        "exception_info": {"exception_type": "AgentTimeoutError", "exception_message": ""},
    }
    store = put(
        tmp_path, {"t/agent/trajectory.json": document(whole), "t/result.json": document(failed)}
    )
    main, side = sorted(
        read(open_source(parse_location(f"atif:{store}"))), key=lambda each: each.session_id
    )
    assert [
        message.get("weight") for message in main.messages if message["role"] == "assistant"
    ] == [0, None]
    assert (main.error, main.damage, [tool["function"]["name"] for tool in main.tools]) == (
        "AgentTimeoutError",
        {"invalid_item": 1},
        ["find"],
    )
    assert (side.session_id, side.agent, side.parent_session_id, side.error) == (
        "s1~sub",
        "helper",
        "s1",
        None,
    )


def test_what_the_user_of_gemini_cli_took_back_is_left_out_and_counted(tmp_path: Path) -> None:
    said = [
        {"id": str(at), "type": ("user", "gemini")[at % 2], "content": f"m{at}"} for at in range(4)
    ]
    head = {
        "sessionId": "g1",
        "projectHash": "x",
        "startTime": "2026-01-02T03:04:05Z",
        "messages": said[:2],
    }
    (session,) = read(
        GeminiCLISource(
            put(
                tmp_path,
                {
                    "s.jsonl": lines(
                        head, *said[2:], {"$rewindTo": "2"}, {**said[2], "content": "again"}
                    )
                },
            )
        )
    )
    assert [message["content"] for message in session.messages] == [
        "m0",
        "m1",
        "again",
    ] and session.skipped == {"taken_back": 2}
    failed = {**head, "messages": [*said, {"id": "e", "type": "error", "content": "429"}]}
    (session,) = read(GeminiCLISource(put(tmp_path / "old", {"s.json": document(failed)})))
    assert (session.error, len(session.messages), session.skipped) == ("429", 4, {"line:error": 1})


def failing(folder: Path, name: str, *changes: tuple[str, str]) -> list[Session]:
    """The sessions of a written file in which the tool failed."""
    for file in [each for each in sorted((WRITTEN / name).rglob("*")) if each.is_file()] or [
        WRITTEN / name
    ]:
        text = file.read_text()
        for old, new in changes:
            text = text.replace(old, new)
        target = folder / file.relative_to(WRITTEN)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    source = open_source(folder / name)
    return [session for key in source.partitions() for session in source.sessions(key)]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("claude_code.jsonl", [('"type": "tool_result"', '"type": "tool_result", "is_error": true')]),
        ("gemini_cli.jsonl", [('"response": {"output"', '"response": {"error"')]),
        ("openhands", [('"is_error": false', '"is_error": true')]),
        ("codex.jsonl", [("exited with code 0", "exited with code 1")]),
        ("harbor/order__claude_code", [('"type": "tool_result"', '"type": "tool_result", "is_error": true')]),
        ("tau2.json", [('"error": false', '"error": true')]),
        ("langsmith_langgraph.jsonl", [('"status": "success"', '"status": "error"')]),
    ],
)  # fmt: skip
def test_the_results_of_a_tool_that_failed_are_errors_by_the_agents_own_record(
    tmp_path: Path, name: str, changes: list
) -> None:
    assert not [
        each
        for session in failing(tmp_path / "fine", name)
        for each in session.messages
        if each["role"] == "tool" and is_failed(each)
    ]
    failed = [
        each
        for session in failing(tmp_path / "bad", name, *changes)
        for each in session.messages
        if each["role"] == "tool"
    ]
    assert failed and all(map(is_failed, failed))


def test_of_the_branches_of_openhands_that_of_its_last_event_is_taken(tmp_path: Path) -> None:
    shutil.copytree(WRITTEN / "openhands", tmp_path / "c1")
    events = sorted((tmp_path / "c1" / "events").iterdir())
    state = json.loads((tmp_path / "c1" / "base_state.json").read_text())
    (tmp_path / "c1" / "base_state.json").write_text(
        json.dumps(state | {"leaf_event_id": json.loads(events[4].read_text())["id"]})
    )
    (session,) = read(OpenHandsSource(tmp_path))
    assert (session.session_id, session.messages[-1]["content"], session.skipped) == (
        "c1",
        "Your order is in Ulm.",
        {"other_branch": 2},
    )


OPENHANDS = openhands_events()


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 4, 3, 5, 6)])
def test_the_calls_of_one_response_of_openhands_are_one_message(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    (session,) = read(
        OpenHandsSource(put(tmp_path, {"c.jsonl": lines(*(OPENHANDS[at] for at in order))}))
    )
    assert [message["role"] for message in session.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [call["id"] for call in session.messages[2]["tool_calls"]] == [
        "a",
        "b",
    ] and session.messages[2]["content"] == "I read both."


def test_what_openhands_showed_before_a_condensation_is_a_session_of_its_own(
    tmp_path: Path,
) -> None:
    """The model sees the summary and what was kept. What was kept is not trained again."""
    condensed = {
        "kind": "Condensation",
        "id": "c",
        "timestamp": "2026-06-01T10:01:00",
        "source": "environment",
        "summary": "They differ: so far.",
    }
    condensed |= {
        "forgotten_event_ids": ["e2", "e3", "e4", "e5", "e6"],
        "summary_offset": 1,
        "llm_response_id": "r2",
    }
    asked = OPENHANDS[1] | {
        "id": "e8",
        "llm_message": {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
    }
    answer = OPENHANDS[6] | {"id": "e9"}
    last, before = read(
        OpenHandsSource(put(tmp_path, {"c.jsonl": lines(*OPENHANDS, condensed, asked, answer)}))
    )
    assert [message["content"] for message in last.messages] == [
        "You write code.",
        "They differ: so far.",
        "They differ.",
        "Why?",
        "They differ.",
    ]
    assert [message.get("weight") for message in last.messages] == [None, None, 0, None, None]
    assert (len(before.messages), before.session_id, before.parent_session_id) == (
        6,
        "c:before-compaction-1",
        "c",
    )
    assert not last.damage and not before.damage


def test_an_event_of_openhands_that_nobody_knows_is_damage_if_it_says_something(
    tmp_path: Path,
) -> None:
    told = {
        "kind": "SteeringEvent",
        "id": "x",
        "timestamp": "2026-06-01T10:01:00",
        "source": "user",
        "text": "Stop.",
    }
    silent = {"kind": "PauseEvent", "id": "y", "timestamp": "2026-06-01T10:01:00", "source": "user"}
    (session,) = read(OpenHandsSource(put(tmp_path, {"c.jsonl": lines(*OPENHANDS, told, silent)})))
    assert session.damage == {"unread": 1} and session.skipped == {"unread:event SteeringEvent": 1}


def test_a_missing_event_of_openhands_is_damage(tmp_path: Path) -> None:
    shutil.copytree(WRITTEN / "openhands", tmp_path / "c1")
    events = sorted((tmp_path / "c1" / "events").iterdir())
    events[3].unlink()
    (session,) = read(OpenHandsSource(tmp_path))
    assert session.skipped["unread:missing event"] == 1
    for event in [events[0], *events[4:]]:
        event.write_text(
            json.dumps(
                {
                    name: value
                    for name, value in json.loads(event.read_text()).items()
                    if name != "parent_id"
                }
            )
        )
    (tmp_path / "c1" / "base_state.json").unlink()
    (session,) = read(OpenHandsSource(tmp_path))
    assert session.skipped["unread:missing event"] == 1, (
        "without a tree, the numbers of the files tell"
    )


GEMINI_HEAD = {"sessionId": "g1", "projectHash": "x", "startTime": "2026-01-02T03:04:05Z"}


def gemini(*said: tuple[str, object]) -> list[dict]:
    return [
        GEMINI_HEAD,
        *(
            {"id": f"g{at}", "type": kind, "content": words}
            for at, (kind, words) in enumerate(said)
        ),
    ]


def test_notes_of_gemini_cli_cut_the_turn_that_the_user_cancelled(tmp_path: Path) -> None:
    said = gemini(
        ("user", "Remove it."),
        ("gemini", "I rem"),
        ("info", "Request cancelled."),
        ("user", "List it."),
        ("gemini", "a.bin"),
    )
    (session,) = read(GeminiCLISource(put(tmp_path, {"s.jsonl": lines(*said)})))
    assert [message.get("weight") for message in session.messages] == [
        None,
        0,
        None,
        None,
    ] and session.damage == {"cut_message": 1}


@pytest.mark.parametrize(
    ("kind", "words", "damaged"),
    [
        ("info", "A compressed context will be sent", 1),
        ("steering", "Stop it.", 1),
        ("info", "Update available!", 0),
        ("warning", "", 0),
    ],
)
def test_messages_of_gemini_cli_that_nobody_knows_are_damage(
    tmp_path: Path, kind: str, words: str, damaged: int
) -> None:
    said = gemini(("user", "Remove it."), (kind, words), ("gemini", "Removed."))
    (session,) = read(GeminiCLISource(put(tmp_path, {"s.jsonl": lines(*said)})))
    assert session.damage.get("unread", 0) == damaged and len(session.messages) == 2


def test_a_session_that_gemini_cli_copied_into_its_new_form_is_read_once(tmp_path: Path) -> None:
    old = document({**GEMINI_HEAD, "messages": gemini(("user", "Hi there"))[1:]})
    new = lines(*gemini(("user", "Hi there"), ("gemini", "Hello.")))
    (session,) = read(GeminiCLISource(put(tmp_path, {"chats/s.json": old, "chats/s.jsonl": new})))
    assert len(session.messages) == 2


def claude(tmp_path: Path, *records: dict) -> tuple[ClaudeCodeSource, list[Session]]:
    source = ClaudeCodeSource(put(tmp_path, {"cc-1.jsonl": lines(*records)}))
    return source, read(source)


def test_the_lines_of_a_session_are_its_branch_with_the_last_line_and_its_side_chains(
    tmp_path: Path,
) -> None:
    source, (main, side) = claude(tmp_path, *claude_lines())
    assert (str(source.partitions()[0]), main.model_id) == ("garden/claude-code", "claude-x")
    assert [message["role"] for message in main.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert main.messages[1]["content"] == "I read.", (
        "three lines of one API message are one message, with parallel calls"
    )
    assert [name for name, _ in list_calls(main.messages)] == ["Read", "Read"]
    assert [message["tool_call_id"] for message in main.messages if message["role"] == "tool"] == [
        "t1",
        "t2",
    ]
    assert main.reasoning == [{"message": 1, "text": "Read both."}]
    assert main.usage == {"input_tokens": 10, "output_tokens": 4 + 6}, (
        "once a message, and not of branches that were left"
    )
    assert "I refuse." not in str(main.messages) and main.skipped == {
        "other_branch": 1,
        "line:system": 1,
    }
    assert any(
        "1 messages of garden/claude-code are on conversation branches that were left" in note
        for note in source.notes
    )
    assert any("1 records of claude_code belong to no session" in note for note in source.notes), (
        "the summary line"
    )
    assert (side.session_id, side.parent_session_id, main.parent_session_id) == (
        "cc-1:ag7",
        "cc-1",
        None,
    )
    assert [message["content"] for message in side.messages] == ["Look deeper.", "Deep."]
    assert side.usage == {"input_tokens": 5, "output_tokens": 7}


def test_side_chains_without_an_agent_id_are_told_apart_by_their_first_line(tmp_path: Path) -> None:
    records = claude_lines()
    more = [
        dict(
            line,
            uuid=f"x{line['uuid']}",
            parentUuid=line["parentUuid"] and f"x{line['parentUuid']}",
        )
        for line in records
        if line.get("agentId")
    ]
    sides = [
        {name: value for name, value in line.items() if name != "agentId"}
        for line in [*records, *more]
        if line.get("agentId")
    ]
    _, sessions = claude(tmp_path, *[line for line in records if not line.get("agentId")], *sides)
    assert [session.session_id for session in sessions] == ["cc-1", "cc-1:s1", "cc-1:xs1"]


def test_lines_that_a_resumed_session_repeats_are_taken_once(tmp_path: Path) -> None:
    source = ClaudeCodeSource(
        put(tmp_path / "p", {"a.jsonl": lines(*claude_lines()), "b.jsonl": lines(*claude_lines())})
    )
    main, _ = read(source)
    assert len(main.messages) == 5 and main.skipped["other_branch"] == 1


def test_what_the_agent_was_asked_for_a_compaction_is_no_session_without_its_conversation(
    tmp_path: Path,
) -> None:
    fork = {
        "isSidechain": True,
        "agentId": "acompact-1",
        "sessionId": "cc-1",
        "timestamp": "2026-01-02T03:05:00Z",
    }
    asked = fork | {
        "type": "user",
        "uuid": "f1",
        "parentUuid": "aaa5",
        "message": {"role": "user", "content": "Summarize."},
    }
    said = {
        "id": "m9",
        "role": "assistant",
        "content": [{"type": "text", "text": "The shed was mended."}],
    }
    _, sessions = claude(
        tmp_path,
        *claude_lines(),
        asked,
        fork | {"type": "assistant", "uuid": "f2", "parentUuid": "f1", "message": said},
    )
    assert [session.session_id for session in sessions] == ["cc-1", "cc-1:ag7"]
    assert sessions[0].skipped["line:fork"] == 2 and "Summarize." not in str(sessions[0].messages)


def test_a_result_on_a_branch_that_was_left_does_not_answer_a_call_again(tmp_path: Path) -> None:
    records = claude_lines()
    at = next(number for number, line in enumerate(records) if line.get("uuid") == "r2")
    left = dict(
        records[at],
        uuid="r2-left",
        message={
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "no"}],
        },
    )
    _, (main, _) = claude(tmp_path, *records[:at], left, *records[at:])
    assert [message["content"] for message in main.messages if message["role"] == "tool"] == [
        "def shed(): ...",
        "def door(): ...",
    ]
    assert main.skipped["other_branch"] == 2


def test_lines_that_are_no_tree_follow_one_another(tmp_path: Path) -> None:
    records = [
        {name: value for name, value in line.items() if name not in ("uuid", "parentUuid")}
        for line in claude_lines()
    ]
    _, (main, _) = claude(tmp_path, *records)
    assert [message["role"] for message in main.messages].count(
        "tool"
    ) == 2 and "other_branch" not in main.skipped


def test_an_error_of_the_api_at_the_end_is_an_error_not_an_answer(tmp_path: Path) -> None:
    failed = {
        "type": "assistant",
        "uuid": "e",
        "parentUuid": "aaa5",
        "sessionId": "cc-1",
        "isApiErrorMessage": True,
    }
    failed["message"] = {
        "id": "m3",
        "role": "assistant",
        "model": "<synthetic>",
        "content": [{"type": "text", "text": "API Error: 529"}],
    }
    _, (main, _) = claude(tmp_path, *claude_lines(), failed)
    assert (
        main.error == "API Error: 529"
        and main.messages[-1]["content"] == "Mended."
        and main.model_id == "claude-x"
    )


@given(cut=st.lists(st.integers(0, 12), max_size=6, unique=True))
def test_every_line_that_is_there_is_taken_or_counted(cut: list[int], tmp_path_factory) -> None:
    kept = [line for number, line in enumerate(claude_lines()) if number not in cut]
    spoken = [line for line in kept if line["type"] in ("user", "assistant")]
    if not spoken:
        return
    _, sessions = claude(tmp_path_factory.mktemp("cc"), *kept)
    counted = sum(session.skipped.get("other_branch", 0) for session in sessions)
    blocks = [
        block
        for line in spoken
        if isinstance(line["message"]["content"], list)
        for block in line["message"]["content"]
    ]
    said = str([session.messages for session in sessions])
    missing = [block for block in blocks if block["type"] == "text" and block["text"] not in said]
    missing += [
        block
        for block in blocks
        if block["type"] == "tool_use" and f"'id': '{block['id']}'" not in said
    ]
    missing += [
        block
        for block in blocks
        if block["type"] == "tool_result"
        and f"'tool_call_id': '{block['tool_use_id']}'" not in said
    ]
    missing += [
        line
        for line in spoken
        if isinstance(line["message"]["content"], str) and line["message"]["content"] not in said
    ]
    assert len(missing) <= counted


def test_a_rollout_is_one_session_with_injected_context_in_the_system_message(
    tmp_path: Path,
) -> None:
    source = CodexSource(put(tmp_path, {"rollout-1.jsonl": lines(*codex_lines())}))
    (session,) = read(source)
    assert (str(source.partitions()[0]), session.session_id, session.model_id) == (
        "garden/codex",
        "roll-1",
        "gpt-5-codex",
    )
    assert [message["role"] for message in session.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert session.messages[0]["content"].startswith(
        "You code.\n\nSandboxed.\n\n<environment_context>"
    )
    assert session.messages[1]["content"] == "Mend the shed."
    assert session.reasoning == [{"message": 2, "text": "Look first."}]
    assert session.usage == {"input_tokens": 50, "output_tokens": 9, "total_tokens": 59}
    assert (
        session.created_at is not None
        and session.ended_at is not None
        and session.created_at < session.ended_at
    )
    assert not source.notes and not session.damage


def test_a_sub_agents_rollout_names_its_parent_and_an_error_at_the_end_is_kept(
    tmp_path: Path,
) -> None:
    records = codex_lines()
    records[0]["payload"]["source"] = {"subagent": {"thread_spawn": {"parent_thread_id": "roll-0"}}}
    records.append(
        {
            "timestamp": "2026-01-02T03:05:00Z",
            "type": "event_msg",
            "payload": {"type": "error", "message": "stream lost"},
        }
    )
    (session,) = read(CodexSource(put(tmp_path, {"rollout-1.jsonl": lines(*records)})))
    assert (session.parent_session_id, session.error) == ("roll-0", "stream lost")


def test_a_rollout_that_lost_its_first_line_is_named_by_its_file(tmp_path: Path) -> None:
    rest = lines(*codex_lines()[1:])
    (session,) = read(CodexSource(put(tmp_path / "one", {"rollout-9.jsonl": rest})))
    assert session.session_id == "rollout-9"
    two = read(
        CodexSource(put(tmp_path / "two", {"01/rollout-9.jsonl": rest, "02/rollout-9.jsonl": rest}))
    )
    assert [session.session_id for session in two] == ["01:rollout-9", "02:rollout-9"]


def test_a_failed_request_of_gemini_cli_cuts_the_turn_before_it(tmp_path: Path) -> None:
    """The stream ended with the error, so the words before it are the beginning of an answer."""
    said = gemini(
        ("user", "Remove it."),
        ("gemini", "I rem"),
        ("error", "[API Error: stream ended]"),
        ("user", "List it."),
        ("gemini", "a.bin"),
    )
    (session,) = read(GeminiCLISource(put(tmp_path, {"s.jsonl": lines(*said)})))
    assert session.damage == {"cut_message": 1} and session.messages[1]["weight"] == 0
