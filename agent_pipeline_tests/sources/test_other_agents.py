"""More coding agents: what each tool's own form says, what it hides, and what nobody knows."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source
from agent_pipeline.sources.agents.claude_stream import ClaudeStreamSource
from agent_pipeline.sources.agents.cline import ClineSource
from agent_pipeline.sources.agents.codex_exec import CodexExecSource
from agent_pipeline.sources.agents.copilot_cli import CopilotCLISource
from agent_pipeline.sources.agents.goose import GooseSource
from agent_pipeline.sources.agents.opencode import OpenCodeSource
from agent_pipeline.sources.agents.pi import PiSource
from agent_pipeline.sources.agents.qwen_code import IFlowSource, QwenCodeSource
from agent_pipeline.sources.formats.file_source import FileSource
from agent_pipeline_tests.sources.agent_samples import (
    ANSWER,
    ASKED,
    IFLOW_ID,
    READ,
    cline_messages,
    codex_exec_lines,
    copilot_lines,
    goose_lines,
    iflow_lines,
    opencode_export,
    opencode_storage,
    pi_lines,
    qwen_lines,
    stream_lines,
)
from agent_pipeline_tests.sources.samples import SAMPLES, document, lines, put
from agent_pipeline_tests.sources.test_plain import read

Lines = list[dict[str, Any]]


def of(reader: type[FileSource], folder: Path, records: Lines) -> list[Session]:
    return read(reader(put(folder, {"s.jsonl": lines(*records)})))


def spoken(session: Session) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in session.messages]


def weights(session: Session) -> list[int | None]:
    return [message.get("weight") for message in session.messages if message["role"] == "assistant"]


PLAYED = {
    "claude_stream": "shop/claude-code",
    "claude_stream_list": "shop/claude-code",
    "copilot_cli": "shop/copilot-cli",
    "opencode": "shop/opencode",
    "opencode_storage": "shop/opencode",
    "cline": "shop/cline",
    "cline_lines": "shop/cline",
    "goose": "shop/goose",
    "pi": "shop/pi",
    "session_trace": "trace/my-agent",
    "qwen_code": "shop/qwen-code",
}


@pytest.mark.parametrize("name", PLAYED)
def test_a_session_in_the_tools_own_form_is_the_conversation(name: str, tmp_path: Path) -> None:
    reader, files = SAMPLES[name]
    store = open_source(put(tmp_path / name, files))
    assert type(store) is reader
    ((key, session),) = [
        (key, session) for key in store.partitions() for session in store.sessions(key)
    ]
    assert str(key) == PLAYED[name]
    turns = [message for message in session.messages if message["role"] != "system"]
    assert [message["role"] for message in turns] == ["user", "assistant", "tool", "assistant"]
    assert (
        ASKED in turns[0]["content"]
        and READ in turns[2]["content"]
        and turns[3]["content"] == ANSWER
    )
    (call,) = turns[1]["tool_calls"]
    assert "order.txt" in call["function"]["arguments"] and turns[2]["tool_call_id"] == call["id"]
    assert not session.damage and session.error is None


UNKNOWN: list[tuple[type[FileSource], Lines, dict[str, Any]]] = [
    (
        ClaudeStreamSource,
        stream_lines(),
        {"type": "steering", "session_id": "st-1", "text": "Stop it."},
    ),
    (
        ClaudeStreamSource,
        stream_lines(),
        {"type": "system", "subtype": "steering", "session_id": "st-1", "text": "Stop it."},
    ),
    (
        CodexExecSource,
        codex_exec_lines(),
        {"type": "item.completed", "item": {"id": "x", "type": "web_search", "query": "two words"}},
    ),
    (CodexExecSource, codex_exec_lines(), {"type": "steering", "text": "Stop it."}),
    (
        CopilotCLISource,
        copilot_lines(),
        {"type": "system.notification", "data": {"content": "Stop it."}},
    ),
    (
        CopilotCLISource,
        copilot_lines(),
        {"type": "hook.end", "data": {"output": {"additionalContext": "Stop it."}}},
    ),
    (GooseSource, goose_lines(), {"note": "Stop it.", "content": "Stop it."}),
    (PiSource, pi_lines(), {"type": "steering", "id": "e9", "parentId": "e3", "text": "Stop it."}),
    (
        QwenCodeSource,
        qwen_lines(),
        {
            "type": "system",
            "subtype": "steering",
            "sessionId": "qw-1",
            "systemPayload": {"text": "Stop it."},
        },
    ),
    (IFlowSource, iflow_lines(), {"type": "steering", "sessionId": IFLOW_ID, "text": "Stop it."}),
    (ClineSource, cline_messages(), {"ts": 3, "note": "Stop it."}),
]


@pytest.mark.parametrize(("reader", "records", "line"), UNKNOWN)
@pytest.mark.parametrize("at", [2, None])
def test_a_line_that_nobody_knows_is_damage_if_it_says_something(
    reader: type[FileSource], records: Lines, line: dict[str, Any], at: int | None, tmp_path: Path
) -> None:
    """Wherever it stands, and only then: the same line without words is bookkeeping."""
    before = sum(
        session.damage.get("unread", 0) for session in of(reader, tmp_path / "whole", records)
    )
    place = len(records) if at is None else at
    (session,) = of(reader, tmp_path / "told", [*records[:place], line, *records[place:]])
    assert session.damage["unread"] == before + 1
    silent = {
        name: value
        for name, value in line.items()
        if name in ("type", "id", "parentId", "session_id", "sessionId", "ts")
    }
    (session,) = of(reader, tmp_path / "silent", [*records[:place], silent, *records[place:]])
    assert session.damage.get("unread", 0) == before


def test_a_stream_that_does_not_say_what_was_asked_is_damage_and_says_why(tmp_path: Path) -> None:
    """`claude -p` does not print the prompt, unless it is told to."""
    silent = [line for line in stream_lines() if line.get("uuid") != "u1"]
    source = ClaudeStreamSource(put(tmp_path, {"s.jsonl": lines(*silent)}))
    (session,) = read(source)
    assert session.skipped["unread:missing request"] == 1 and any(
        "--replay-user-messages" in note for note in source.notes
    )


def test_the_second_turn_of_a_stream_needs_its_request_too(tmp_path: Path) -> None:
    more = [line for line in stream_lines() if line["type"] != "system"]
    (session,) = of(ClaudeStreamSource, tmp_path, [*stream_lines(), *more])
    assert not session.damage.get("unread")
    (session,) = of(ClaudeStreamSource, tmp_path / "silent", [*stream_lines(), *more[1:]])
    assert session.skipped["unread:missing request"] == 1


def test_a_stream_whose_result_no_message_says_lacks_a_line(tmp_path: Path) -> None:
    (session,) = of(
        ClaudeStreamSource, tmp_path, [line for line in stream_lines() if line.get("uuid") != "u5"]
    )
    assert session.skipped["unread:result"] == 1


def test_a_sub_agents_messages_in_a_stream_are_a_session_of_their_own(tmp_path: Path) -> None:
    inner = [
        line | {"parent_tool_use_id": "t9", "uuid": f"s{at}"}
        for at, line in enumerate(stream_lines()[1:6])
    ]
    main, side = of(
        ClaudeStreamSource, tmp_path, [*stream_lines()[:3], *inner, *stream_lines()[3:]]
    )
    assert (main.session_id, side.session_id, side.parent_session_id) == ("st-1", "st-1:t9", "st-1")
    assert len(main.messages) == len(side.messages) == 4 and not main.damage and not side.damage


@pytest.mark.parametrize(
    ("words", "lost"), [("This session is being continued: so far.", 0), ("Go on.", 1)]
)
def test_a_stream_that_was_compacted_is_two_sessions(tmp_path: Path, words: str, lost: int) -> None:
    boundary = {
        "type": "system",
        "subtype": "compact_boundary",
        "session_id": "st-1",
        "compact_metadata": {"trigger": "auto"},
    }
    said = {"type": "user", "message": {"role": "user", "content": words}, "session_id": "st-1"}
    after = [line for line in stream_lines() if line.get("uuid") in ("u5", "u6")]
    last, before = of(ClaudeStreamSource, tmp_path, [*stream_lines(), boundary, said, *after])
    assert (before.session_id, len(before.messages), spoken(last)) == (
        "st-1:before-compaction-1",
        4,
        [("user", words), ("assistant", ANSWER)],
    )
    assert last.damage.get("unread", 0) == lost and not before.damage


@pytest.mark.parametrize(
    ("change", "error"),
    [({"subtype": "error_during_execution"}, True), ({"subtype": "error_max_turns"}, False)],
)
def test_a_run_of_the_sdk_that_failed_has_an_error(
    tmp_path: Path, change: dict, error: bool
) -> None:
    *rest, end = stream_lines()
    (session,) = of(ClaudeStreamSource, tmp_path, [*rest, end | change])
    assert (session.error is not None) is error


def test_what_codex_exec_prints_is_damage_since_nobody_knows_the_request(tmp_path: Path) -> None:
    source = CodexExecSource(put(tmp_path, {"s.jsonl": lines(*codex_exec_lines())}))
    (session,) = read(source)
    assert (
        session.session_id == "ex-1"
        and session.damage == {"unread": 1}
        and any("rollouts" in note for note in source.notes)
    )
    assert [role for role, _ in spoken(session)] == [
        "assistant",
        "tool",
        "assistant",
    ] and session.usage["output_tokens"] == 4


def test_a_turn_of_codex_exec_that_failed_is_cut_and_an_error(tmp_path: Path) -> None:
    failed = {"type": "turn.failed", "error": {"message": "stream lost"}}
    (session,) = of(CodexExecSource, tmp_path, [*codex_exec_lines()[:-1], failed])
    assert (
        session.error == "stream lost"
        and session.damage["cut_message"] == 1
        and weights(session)[-1] == 0
    )


def test_an_item_of_codex_exec_that_did_not_end_is_damage(tmp_path: Path) -> None:
    (session,) = of(
        CodexExecSource, tmp_path, [line for at, line in enumerate(codex_exec_lines()) if at != 4]
    )
    assert session.damage["unread"] == 2


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data, "id": f"x{kind}", "timestamp": "2026-06-01T10:01:00Z"}


def test_what_copilot_aborted_is_cut(tmp_path: Path) -> None:
    (session,) = of(
        CopilotCLISource, tmp_path, [*copilot_lines(), event("abort", reason="user initiated")]
    )
    assert weights(session) == [None, 0] and session.damage == {"cut_message": 1}


@pytest.mark.parametrize(
    "change",
    [
        event("session.compaction_complete", success=True, summaryContent="So far."),
        event("session.truncation", tokenLimit=3),
    ],
)
def test_after_a_compaction_of_copilot_nobody_knows_what_the_model_saw(
    tmp_path: Path, change: dict
) -> None:
    more = [
        line | {"id": f"y{at}", "parentId": None} for at, line in enumerate(copilot_lines()[2:])
    ]
    more = [
        {name: value for name, value in line.items() if name not in ("id", "parentId")}
        for line in more
    ]
    last, before = of(CopilotCLISource, tmp_path, [*copilot_lines(), change, *more])
    assert last.damage == {"unread": 1} and not before.damage and len(before.messages) == 5


def test_the_work_of_copilots_sub_agents_is_counted_and_not_the_main_agents(tmp_path: Path) -> None:
    helper = event(
        "assistant.message", content="I am a helper.", parentToolCallId="t1", toolRequests=[]
    )
    before, after = copilot_lines()[:6], copilot_lines()[6:]
    helper["parentId"], after[0]["parentId"] = "e5", helper["id"]
    (session,) = of(CopilotCLISource, tmp_path, [*before, helper, *after])
    assert (
        "helper" not in str(session.messages)
        and session.skipped == {"line:subagent": 1}
        and not session.damage
    )


def test_a_call_of_copilot_that_failed_is_an_error(tmp_path: Path) -> None:
    records = copilot_lines()
    records[6]["data"] = {
        "toolCallId": "t1",
        "success": False,
        "error": {"message": "no such file"},
    }
    (session,) = of(CopilotCLISource, tmp_path, records)
    assert [(m["content"], m.get("is_error")) for m in session.messages if m["role"] == "tool"] == [
        ("no such file", True)
    ]


def opencode(folder: Path, change: Any) -> list[Session]:
    export = json.loads(json.dumps(opencode_export()))
    change(export)
    return read(OpenCodeSource(put(folder, {"s.json": document(export)})))


@pytest.mark.parametrize(
    "change",
    [
        {"finish": "length"},
        {"error": {"name": "MessageAbortedError", "data": {}}},
        {"finish": "error"},
    ],
)
def test_a_message_of_opencode_that_did_not_end_is_cut(tmp_path: Path, change: dict) -> None:
    (session,) = opencode(tmp_path, lambda export: export["messages"][2]["info"].update(change))
    assert weights(session) == [None, 0] and session.damage == {"cut_message": 1}


def test_what_the_user_of_opencode_reverted_is_left_out(tmp_path: Path) -> None:
    (session,) = opencode(
        tmp_path, lambda export: export["info"].update(revert={"messageID": "msg_3"})
    )
    assert len(session.messages) == 3 and session.skipped == {"taken_back": 1}


def test_what_stands_before_a_summary_of_opencode_is_a_session_of_its_own(tmp_path: Path) -> None:
    def summarize(export: dict) -> None:
        asked = {
            "info": {"id": "msg_4", "role": "user", "time": {"created": 1780308000004}},
            "parts": [{"id": "p", "type": "compaction"}],
        }
        summary = {
            "info": {
                "id": "msg_5",
                "role": "assistant",
                "summary": True,
                "time": {"created": 1780308000005},
            }
        }
        more = {
            "info": {"id": "msg_6", "role": "user", "time": {"created": 1780308000006}},
            "parts": [{"type": "text", "text": "And 8?"}],
        }
        answer = {
            "info": {"id": "msg_7", "role": "assistant", "time": {"created": 1780308000007}},
            "parts": [{"type": "text", "text": "No."}],
        }
        export["messages"] += [
            asked,
            summary | {"parts": [{"type": "text", "text": "So far."}]},
            more,
            answer,
        ]

    last, before = opencode(tmp_path, summarize)
    assert [words for _, words in spoken(last)] == [
        "What did we do so far?",
        "So far.",
        "And 8?",
        "No.",
    ] and weights(last) == [0, None]
    assert (
        (before.session_id, len(before.messages)) == ("ses_1:before-compaction-1", 4)
        and not last.damage
        and not before.damage
    )


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "shown on the screen", "ignored": True},
        {"type": "file", "mime": "text/plain", "filename": "a.txt", "url": "file:///a.txt"},
    ],
)
def test_parts_that_opencode_does_not_show_to_the_model_are_left_out(
    tmp_path: Path, part: dict
) -> None:
    (session,) = opencode(tmp_path, lambda export: export["messages"][0]["parts"].append(part))
    assert spoken(session)[0] == ("user", ASKED) and not session.damage


@pytest.mark.parametrize(
    "change",
    [
        lambda export: export["messages"][1]["parts"][2]["state"]["time"].update(compacted=3),
        lambda export: export["messages"][1]["parts"].append(
            {"type": "steering", "text": "Stop it.", "toolCallId": "x"}
        ),
        lambda export: export["messages"][1]["parts"][2]["state"].update(status="running"),
        lambda export: export["messages"][1].update(parts=[]),
    ],
)
def test_what_opencode_cleared_lost_or_did_not_end_is_damage(tmp_path: Path, change: Any) -> None:
    (session,) = opencode(tmp_path, change)
    assert session.damage.get("unread")


@pytest.mark.parametrize("lost", ["message/ses_1/msg_2.json", "part/msg_2/prt_22.json"])
@pytest.mark.parametrize("torn", [True, False])
def test_a_file_of_opencodes_storage_that_is_torn_or_missing_is_damage(
    tmp_path: Path, lost: str, torn: bool
) -> None:
    """A missing part is a missing result at least. A missing message leaves its parts without a home."""
    files = opencode_storage()
    raw = files.pop(f"storage/{lost}")
    (session,) = read(
        OpenCodeSource(put(tmp_path, files | ({f"storage/{lost}": raw[:-20]} if torn else {})))
    )
    assert session.damage.get("torn_record" if torn else "unread") or (
        not torn and len(session.messages) == 2
    )


def test_a_message_of_cline_that_was_interrupted_is_cut(tmp_path: Path) -> None:
    records = cline_messages()
    records[3]["content"][0]["text"] = "It is\n\n[Response interrupted by user]"
    (session,) = of(ClineSource, tmp_path, records)
    assert weights(session) == [None, 0] and session.damage == {"cut_message": 1}


def test_calls_that_cline_made_in_words_stay_words(tmp_path: Path) -> None:
    """The words are what the model wrote, and what came back is a message of the user, as recorded."""
    records = cline_messages()
    records[1]["content"] = [
        {"type": "text", "text": "<read_file>\n<path>order.txt</path>\n</read_file>"}
    ]
    records[2]["content"] = [
        {"type": "text", "text": f"[read_file for 'order.txt'] Result:\n{READ}"}
    ]
    (session,) = of(ClineSource, tmp_path, records)
    assert [role for role, _ in spoken(session)] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ] and not session.damage


def test_messages_that_cline_shortened_later_are_damage(tmp_path: Path) -> None:
    task = {"tasks/1/api_conversation_history.json": document(cline_messages())}
    (session,) = read(
        ClineSource(
            put(tmp_path, task | {"tasks/1/context_history.json": document([[1, [0, []]]])})
        )
    )
    assert session.damage == {"unread": 1}
    (session,) = read(
        ClineSource(put(tmp_path / "no", task | {"tasks/1/context_history.json": b"[]"}))
    )
    assert not session.damage


@pytest.mark.parametrize(
    ("folder", "agent"),
    [("rooveterinaryinc.roo-cline", "roo-code"), ("kilocode.kilo-code", "kilo-code")],
)
def test_the_folder_of_the_extension_says_which_tool_it_was(
    tmp_path: Path, folder: str, agent: str
) -> None:
    store = put(
        tmp_path, {f"{folder}/tasks/1/api_conversation_history.json": document(cline_messages())}
    )
    assert [key.agent for key in ClineSource(store).partitions()] == [agent]


def test_what_stands_before_a_condensation_of_roo_is_a_session_of_its_own(tmp_path: Path) -> None:
    records = [record | {"condenseParent": "c1"} for record in cline_messages()]
    summary = {"role": "user", "content": "So far.", "ts": 9, "isSummary": True, "condenseId": "c1"}
    more = [
        {"role": "user", "content": "And 8?", "ts": 10},
        {"role": "assistant", "content": "No.", "ts": 11},
    ]
    last, before = of(ClineSource, tmp_path, [*records, summary, *more])
    assert (
        spoken(last) == [("user", "So far."), ("user", "And 8?"), ("assistant", "No.")]
        and len(before.messages) == 4
    )
    assert not last.damage and not before.damage


def test_messages_that_goose_hides_from_the_model_are_a_session_of_their_own(
    tmp_path: Path,
) -> None:
    head, *records = goose_lines()
    hidden = [
        record | {"metadata": {"userVisible": True, "agentVisible": False}} for record in records
    ]
    more = [("user", "So far."), ("user", "And 8?"), ("assistant", "No.")]
    shown = [
        {"role": role, "created": 9, "content": [{"type": "text", "text": words}]}
        for role, words in more
    ]
    last, before = of(GooseSource, tmp_path, [head, *hidden, *shown])
    assert spoken(last) == more and len(before.messages) == 4


def entry(name: str, parent: str, kind: str = "message", **fields: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "id": name,
        "parentId": parent,
        "timestamp": "2026-06-01T10:01:00.000Z",
    } | fields


def pi_turn(first: str, parent: str, words: str, answer: str, stop: str = "stop") -> Lines:
    said = {"role": "assistant", "content": [{"type": "text", "text": answer}], "stopReason": stop}
    return [
        entry(first, parent, message={"role": "user", "content": words}),
        entry(f"{first}a", first, message=said),
    ]


def test_of_the_branches_of_pi_that_of_the_last_entry_is_taken(tmp_path: Path) -> None:
    left = pi_turn("l", "e3", "Delete it.", "Deleted.")
    (session,) = of(PiSource, tmp_path, [*pi_lines(), *left, *pi_turn("m", "e3", "And 8?", "No.")])
    assert (
        "Deleted." not in str(session.messages)
        and len(session.messages) == 6
        and session.skipped == {"other_branch": 2}
    )


@pytest.mark.parametrize(
    "kept",
    [{"firstKeptEntryId": "e3"}, {"retainedTail": [{"role": "assistant", "content": ANSWER}]}],
)
def test_after_a_compaction_pi_shows_the_summary_and_what_was_kept(
    tmp_path: Path, kept: dict
) -> None:
    compacted = entry("c", "e3", "compaction", summary="So far.", tokensBefore=9, **kept)
    last, before = of(
        PiSource, tmp_path, [*pi_lines(), compacted, *pi_turn("m", "c", "And 8?", "No.")]
    )
    assert [role for role, _ in spoken(last)] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ] and "So far." in last.messages[0]["content"]
    assert (
        weights(last) == [0, None]
        and len(before.messages) == 4
        and not last.damage
        and not before.damage
    )


def test_a_compaction_of_pi_whose_first_kept_entry_is_missing_is_damage(tmp_path: Path) -> None:
    compacted = entry("c", "e3", "compaction", summary="So far.", firstKeptEntryId="gone")
    last, _ = of(PiSource, tmp_path, [*pi_lines(), compacted, *pi_turn("m", "c", "And 8?", "No.")])
    assert last.damage == {"unread": 1}


@pytest.mark.parametrize("stop", ["aborted", "error"])
def test_answers_that_pi_gave_up_are_counted_and_not_shown_again(tmp_path: Path, stop: str) -> None:
    records = [
        *pi_lines(),
        *pi_turn("m", "e3", "And 8?", "I", stop),
        *pi_turn("n", "ma", "Go on.", "No."),
    ]
    (session,) = of(PiSource, tmp_path, records)
    assert spoken(session)[4:] == [
        ("user", "And 8?"),
        ("user", "Go on."),
        ("assistant", "No."),
    ] and session.damage == {"cut_message": 1}


def test_an_answer_of_pi_that_the_token_limit_cut_is_not_trained(tmp_path: Path) -> None:
    (session,) = of(
        PiSource, tmp_path, [*pi_lines(), *pi_turn("m", "e3", "And 8?", "No. It", "length")]
    )
    assert weights(session) == [None, None, 0] and session.damage == {"cut_message": 1}


def test_commands_that_the_user_of_pi_ran_are_shown_unless_they_are_hidden(tmp_path: Path) -> None:
    ran = {"role": "bashExecution", "command": "ls", "output": "order.txt", "exitCode": 0}
    records = [
        entry("b", "e3", message=ran),
        entry("h", "b", message=ran | {"command": "env", "excludeFromContext": True}),
    ]
    (session,) = of(
        PiSource, tmp_path, [*pi_lines(), *records, *pi_turn("m", "h", "And 8?", "No.")]
    )
    assert (
        "Ran `ls`" in session.messages[4]["content"]
        and "env" not in str(session.messages)
        and len(session.messages) == 7
    )


def test_the_turns_that_a_fork_of_pi_copied_are_not_trained_again(tmp_path: Path) -> None:
    head, *entries = pi_lines()
    fork = head | {
        "id": "pi-2",
        "parentSession": "/home/me/.pi/agent/sessions/--w-shop--/2026-06-01T10-00-00-000Z_pi-1.jsonl",
    }
    made = {
        "2026_pi-1.jsonl": lines(head, *entries),
        "2026_pi-2.jsonl": lines(fork, *entries, *pi_turn("m", "e3", "And 8?", "No.")),
    }
    parent, child = read(PiSource(put(tmp_path, made)))
    assert (
        weights(parent) == [None, None]
        and weights(child) == [0, 0, None]
        and child.parent_session_id == "pi-1"
    )


def test_a_missing_entry_of_pi_is_damage(tmp_path: Path) -> None:
    (session,) = of(PiSource, tmp_path, [line for line in pi_lines() if line["id"] != "e1"])
    assert session.skipped["unread:missing line"] == 1


def test_after_a_compression_qwen_code_shows_the_compressed_history(tmp_path: Path) -> None:
    contents = [
        {"role": "user", "parts": [{"text": "So far."}]},
        {"role": "model", "parts": [{"text": "Got it."}]},
    ]
    base = {"sessionId": "qw-1", "cwd": "/w/shop"}
    compressed = base | {
        "uuid": "c",
        "parentUuid": "u4",
        "type": "system",
        "subtype": "chat_compression",
    }
    asked = base | {
        "uuid": "m",
        "parentUuid": "c",
        "type": "user",
        "message": {"role": "user", "parts": [{"text": "And 8?"}]},
    }
    answer = base | {
        "uuid": "n",
        "parentUuid": "m",
        "type": "assistant",
        "message": {"role": "model", "parts": [{"text": "No."}]},
    }
    told = compressed | {"systemPayload": {"info": {}, "compressedHistory": contents}}
    last, before = of(QwenCodeSource, tmp_path, [*qwen_lines(), told, asked, answer])
    assert [words for _, words in spoken(last)] == [
        "So far.",
        "Got it.",
        "And 8?",
        "No.",
    ] and weights(last) == [0, None]
    assert len(before.messages) == 4 and not last.damage
    last, _ = of(
        QwenCodeSource,
        tmp_path / "lost",
        [*qwen_lines(), compressed | {"systemPayload": {"info": "not kept"}}, asked, answer],
    )
    assert last.damage == {"unread": 1}


def test_lines_of_iflow_that_repeat_a_call_are_one_message(tmp_path: Path) -> None:
    """And no call is lost: every line names the user's line as its parent, so they are no branches."""
    store = open_source(put(tmp_path, {f"{IFLOW_ID}.jsonl": lines(*iflow_lines())}))
    (key,) = store.partitions()
    (session,) = store.sessions(key)
    assert (store.name, str(key)) == ("iflow", "shop/iflow") and not session.damage
    assert [role for role, _ in spoken(session)] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [call["id"] for call in session.messages[1]["tool_calls"]] == [
        "a",
        "b",
    ] and session.messages[2]["content"] == READ


def test_pictures_of_copilot_cli_are_missing(tmp_path: Path) -> None:
    """The user's picture is named beside the words, and a tool's stands beside the text of its result."""
    head = {"type": "session.start", "id": "1", "parentId": None, "data": {"sessionId": "s"}}
    calls = [{"toolCallId": "c", "name": "view", "arguments": {}}]
    shown = {
        "content": "Viewed.",
        "contents": [{"type": "image", "data": "x", "mimeType": "image/png"}],
    }
    events = [
        (
            "user.message",
            {
                "content": "Total?",
                "attachments": [
                    {"type": "file", "path": "/w/a.png"},
                    {"type": "file", "path": "/w/a.py"},
                ],
            },
        ),
        ("assistant.message", {"content": "", "toolRequests": calls}),
        ("tool.execution_complete", {"toolCallId": "c", "success": True, "result": shown}),
        ("assistant.message", {"content": "48.20", "toolRequests": []}),
    ]
    told = [
        {"type": kind, "id": str(at), "parentId": str(at - 1), "data": data}
        for at, (kind, data) in enumerate(events, 2)
    ]
    (session,) = read(CopilotCLISource(put(tmp_path, {"events.jsonl": lines(head, *told)})))
    assert session.damage == {"missing_media": 2}
    assert [message["content"] for message in session.messages] == [
        "Total?\n[image]",
        "",
        "Viewed.\n[image]",
        "48.20",
    ]
