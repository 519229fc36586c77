"""Claude Code: what the model saw, also if the user typed meanwhile, stopped it, or the conversation was compacted."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.errors import StoreError
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source
from agent_pipeline.sources.agents.claude_code import ClaudeCodeSource
from agent_pipeline_tests.sources.samples import lines, put
from agent_pipeline_tests.sources.test_plain import read

HEAD = {
    "isSidechain": False,
    "sessionId": "cc-1",
    "cwd": "/w/app",
    "version": "2.1.284",
    "userType": "external",
}


class Log:
    """The lines of a session; each is the child of the line before."""

    def __init__(self, **more: Any) -> None:
        self.lines: list[dict[str, Any]] = []
        self.more = more

    def add(self, kind: str, **fields: Any) -> "Log":
        number = len(self.lines) + 1
        parent = next((line["uuid"] for line in reversed(self.lines) if "uuid" in line), None)
        made = HEAD | {"type": kind, "uuid": f"n{number}", "parentUuid": parent} | self.more
        self.lines.append(made | {"timestamp": f"2026-06-01T10:00:{number:02d}.000Z"} | fields)
        return self

    def note(self, kind: str, **fields: Any) -> "Log":
        """A line outside the tree."""
        self.lines.append({"type": kind, "sessionId": "cc-1"} | fields)
        return self

    def user(self, content: Any, **fields: Any) -> "Log":
        return self.add("user", message={"role": "user", "content": content}, **fields)

    def result(self, call: str, content: Any = "ok") -> "Log":
        return self.user([{"type": "tool_result", "tool_use_id": call, "content": content}])

    def agent(self, *words: str, call: str = "", stop: str | None = None, **fields: Any) -> "Log":
        blocks: list[dict[str, Any]] = [{"type": "text", "text": each} for each in words]
        blocks += (
            [{"type": "tool_use", "id": call, "name": "Bash", "input": {"command": call}}]
            if call
            else []
        )
        message = {
            "id": f"m{len(self.lines)}",
            "role": "assistant",
            "model": "m-1",
            "content": blocks,
        }
        return self.add(
            "assistant",
            message=message | {"stop_reason": stop or ("tool_use" if call else "end_turn")},
            **fields,
        )

    def attach(self, kind: str, **fields: Any) -> "Log":
        return self.add("attachment", attachment={"type": kind} | fields)


def sessions_of(folder: Path, *logs: Log) -> list[Session]:
    return read(
        ClaudeCodeSource(
            put(folder, {"cc-1.jsonl": lines(*[line for log in logs for line in log.lines])})
        )
    )


def spoken(session: Session) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in session.messages]


def weights(session: Session) -> list[int | None]:
    return [message.get("weight") for message in session.messages if message["role"] == "assistant"]


WORKING = Log().user("Rename area.").agent("I read first.", call="t1").result("t1")


def working() -> Log:
    log = Log()
    log.lines = list(WORKING.lines)
    return log


@pytest.mark.parametrize(
    "prompt", ["Delete it instead.", [{"type": "text", "text": "Delete it instead."}]]
)
def test_what_the_user_types_meanwhile_stands_where_the_model_saw_it(
    tmp_path: Path, prompt: Any
) -> None:
    log = working().note("queue-operation", operation="enqueue", content="Delete it instead.")
    log.note("queue-operation", operation="remove", reason="absorbed_mid_turn")
    log.attach("queued_command", prompt=prompt, commandMode="prompt").agent(
        "I delete it.", call="t2"
    ).result("t2").agent("Deleted.")
    (session,) = sessions_of(tmp_path, log)
    assert spoken(session)[2:5] == [
        ("tool", "ok"),
        ("user", "Delete it instead."),
        ("assistant", "I delete it."),
    ]
    assert not session.damage


def test_queued_words_beside_parallel_results_are_taken(tmp_path: Path) -> None:
    """The attachment may hang on another result than the one that the conversation goes on from."""
    log = working()
    log.attach("queued_command", prompt="Delete it.", commandMode="prompt")
    log.lines.append(
        log.lines[2]
        | {"uuid": "r9", "parentUuid": "n2", "message": {"role": "user", "content": []}}
    )
    log.agent("Deleted.")
    log.lines[-1]["parentUuid"] = "n3"
    (session,) = sessions_of(tmp_path, log)
    assert ("user", "Delete it.") in spoken(session)


def test_a_line_that_was_written_after_its_child_stands_before_it(tmp_path: Path) -> None:
    log = (
        working()
        .attach("queued_command", prompt="Delete it.", commandMode="prompt")
        .agent("I delete it.")
    )
    log.lines[-2:] = reversed(log.lines[-2:])
    (session,) = sessions_of(tmp_path, log)
    assert (
        spoken(session)[-2:] == [("user", "Delete it."), ("assistant", "I delete it.")]
        and not session.damage
    )


@pytest.mark.parametrize(
    ("operations", "lost"),
    [
        ([("enqueue", "Delete it.")], 1),
        ([("enqueue", "Delete it."), ("dequeue", None)], 1),
        ([("enqueue", "Delete it."), ("remove", None)], 1),
        ([("enqueue", "Delete it."), ("popAll", None)], 0),
        ([("enqueue", "Rename area.")], 1),
        ([("enqueue", "")], 0),
    ],
)
def test_queued_words_that_no_message_has_are_damage(
    tmp_path: Path, operations: list, lost: int
) -> None:
    """What the user took back is not lost. Words that were said before are not the queued ones."""
    log = working()
    for operation, content in operations:
        log.note(
            "queue-operation",
            operation=operation,
            **({"content": content} if content is not None else {}),
        )
    (session,) = sessions_of(tmp_path, log.agent("Done."))
    assert session.damage.get("unread", 0) == lost


@pytest.mark.parametrize(
    ("content", "shown"),
    [("one", "one\ntwo"), ("/review it", "<command-name>/review</command-name>")],
)
def test_queued_words_may_be_given_together_or_as_a_command(
    tmp_path: Path, content: str, shown: str
) -> None:
    log = working().agent("Read.").note("queue-operation", operation="enqueue", content=content)
    (session,) = sessions_of(
        tmp_path, log.note("queue-operation", operation="dequeue").user(shown).agent("Done.")
    )
    assert not session.damage


SUMMARY = "This session is being continued. Summary: timeouts are 30 s."


def compacted(**metadata: Any) -> Log:
    log = Log().user("Set timeouts.").agent("I set them.", call="t1").result("t1")
    log.add(
        "system",
        subtype="compact_boundary",
        content="Conversation compacted",
        parentUuid=None,
        logicalParentUuid="n3",
    )
    log.lines[-1] |= {"compactMetadata": metadata}
    return (
        log.user(SUMMARY, isCompactSummary=True, isVisibleInTranscriptOnly=True)
        .user("continue")
        .agent("30 s it is.")
    )


def test_a_file_that_begins_with_a_summary_keeps_it(tmp_path: Path) -> None:
    log = compacted()
    del log.lines[:3]
    (session,) = sessions_of(tmp_path, log)
    assert (
        spoken(session) == [("user", SUMMARY), ("user", "continue"), ("assistant", "30 s it is.")]
        and not session.damage
    )


def test_what_stands_before_a_compaction_is_a_session_of_its_own(tmp_path: Path) -> None:
    """No answer follows messages that the model did not see any more, and the earlier turns are trained, too."""
    last, before = sessions_of(tmp_path, compacted())
    assert (last.session_id, before.session_id) == ("cc-1", "cc-1:before-compaction-1")
    assert spoken(last) == [("user", SUMMARY), ("user", "continue"), ("assistant", "30 s it is.")]
    assert spoken(before) == [
        ("user", "Set timeouts."),
        ("assistant", "I set them."),
        ("tool", "ok"),
    ]
    assert (before.parent_session_id, before.ends_on_tool, last.parent_session_id) == (
        "cc-1",
        True,
        None,
    )
    assert not last.damage and not before.damage


def test_messages_that_a_compaction_kept_are_shown_and_not_trained_again(tmp_path: Path) -> None:
    kept = {"headUuid": "n2", "tailUuid": "n3", "anchorUuid": "n5"}
    last, _ = sessions_of(tmp_path, compacted(preservedSegment=kept))
    assert spoken(last)[:3] == [("user", SUMMARY), ("assistant", "I set them."), ("tool", "ok")]
    assert [
        message.get("weight") for message in last.messages if message["role"] == "assistant"
    ] == [0, None]
    lost, _ = sessions_of(
        tmp_path / "lost", compacted(preservedSegment=kept | {"tailUuid": "gone"})
    )
    assert lost.damage["unread"] == 1


def test_a_compaction_without_a_summary_is_damage(tmp_path: Path) -> None:
    log = compacted()
    del log.lines[4]
    log.lines[4]["parentUuid"] = "n4"
    last, _ = sessions_of(tmp_path, log)
    assert last.skipped["unread:system compaction"] == 1 and last.damage["unread"]


@pytest.mark.parametrize(
    "note", ["[Request interrupted by user]", "[Request interrupted by user for tool use]"]
)
def test_the_message_that_the_user_interrupted_is_cut(tmp_path: Path, note: str) -> None:
    log = (
        working()
        .agent("I now")
        .user([{"type": "text", "text": note}])
        .user("Stop.")
        .agent("I stopped.")
    )
    (session,) = sessions_of(tmp_path, log)
    assert weights(session) == [None, 0, None] and session.damage == {"cut_message": 1}


def test_an_interruption_before_the_agent_said_anything_cuts_nothing(tmp_path: Path) -> None:
    log = (
        working()
        .agent("Done.")
        .user("And now?")
        .user("[Request interrupted by user]")
        .user("Go on.")
        .agent("Yes.")
    )
    (session,) = sessions_of(tmp_path, log)
    assert not session.damage and weights(session) == [None, None, None]


def test_a_message_in_the_middle_of_which_the_api_failed_is_cut(tmp_path: Path) -> None:
    log = working().agent("I now", stop="")
    failed = {
        "id": "e",
        "role": "assistant",
        "model": "<synthetic>",
        "content": [{"type": "text", "text": "API Error"}],
    }
    log.add("assistant", message=failed, isApiErrorMessage=True).user("Again.").agent("Done.")
    (session,) = sessions_of(tmp_path, log)
    assert weights(session) == [None, 0, None] and session.damage == {"cut_message": 1}


def test_the_last_stop_reason_of_a_messages_lines_counts(tmp_path: Path) -> None:
    log = Log().user("Explain.").agent("It has two layers. The first is", stop="max_tokens")
    part = log.lines[-1]["message"]
    log.lines.insert(
        1,
        log.lines[-1]
        | {
            "uuid": "n1b",
            "parentUuid": "n1",
            "message": part | {"stop_reason": None, "content": []},
        },
    )
    log.lines[-1]["parentUuid"] = "n1b"
    (session,) = sessions_of(tmp_path, log.user("Go on.").agent("It is in memory."))
    assert weights(session) == [0, None] and session.damage == {"cut_message": 1}


UNKNOWN = [
    {"type": "relay", "content": "Delete it."},
    {"type": "relay", "data": {"note": "two words"}},
    {"type": "relay", "data": [{"toolUseId": "t9"}]},
    {"type": "marble-origami-commit", "summary": "So far."},
    {"type": "relay", "note": "删除所有文件"},
    {"content": "without a type"},
]
NAMED = [
    {"type": "system", "subtype": "steering", "content": "Delete it."},
    {"type": "system", "subtype": "microcompact_boundary", "content": "Context microcompacted"},
    {"type": "attachment", "attachment": {"type": "steering", "text": "Delete it."}},
    {"type": "content-replacement", "replacements": [{"kind": "image", "id": 3}]},
]


@pytest.mark.parametrize("line", [*UNKNOWN, *NAMED])
def test_a_line_of_an_unknown_type_that_says_something_is_damage(
    tmp_path: Path, line: dict
) -> None:
    log = working().add("x")
    del log.lines[-1]["type"]
    log.lines[-1] |= line
    (session,) = sessions_of(tmp_path, log.agent("Done."))
    assert session.damage.get("unread")


@pytest.mark.parametrize("line", UNKNOWN)
def test_a_line_that_names_no_session_damages_the_session_around_it(
    tmp_path: Path, line: dict
) -> None:
    log = working()
    log.lines.append(line)
    (session,) = sessions_of(tmp_path, log.agent("Done."))
    assert session.damage.get("unread")


@pytest.mark.parametrize(
    "line",
    [
        {"type": "relay", "data": {"count": 3, "path": "/w/app", "on": True}},
        {"type": "ai-title", "aiTitle": "Rename area"},
        {"type": "system", "subtype": "turn_duration", "durationMs": 3},
        {"type": "attachment", "attachment": {"type": "todo_reminder", "content": "Keep a list."}},
        {"type": "attachment"},
    ],
)
def test_bookkeeping_is_counted_and_no_damage(tmp_path: Path, line: dict) -> None:
    log = working().add("x")
    log.lines[-1] |= line
    (session,) = sessions_of(tmp_path, log.agent("Done."))
    assert not session.damage and session.skipped == {f"line:{line['type']}": 1}


@given(
    words=st.lists(
        st.text(st.characters(categories=["L", "N"]), min_size=1), min_size=2, max_size=3
    ).map(" ".join),
    names=st.lists(st.text(max_size=8).map("x{}".format), min_size=1, max_size=3),
)
def test_words_of_an_unknown_line_are_damage_whatever_holds_them(
    words: str, names: list[str], tmp_path_factory: Any
) -> None:
    value: Any = words
    for name in names:
        value = [{name: value}] if len(name) % 2 else {name: value}
    (session,) = sessions_of(
        tmp_path_factory.mktemp("cc"), working().add("relay", x=value).agent("Done.")
    )
    assert session.damage.get("unread")


START = {"line": 1, "character": 0}
FOUND = {
    "message": "x is not defined",
    "severity": "Error",
    "range": {"start": START},
    "code": "E1",
    "source": "pyright",
}


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (
            "file",
            {"filename": "a.py", "content": {"type": "text", "file": {"content": "timeout = 30"}}},
            "timeout = 30",
        ),
        ("edited_text_file", {"filename": "a.py", "snippet": "1 timeout = 30"}, "timeout = 30"),
        ("directory", {"path": "src", "content": "a.py b.py"}, "a.py b.py"),
        ("hook_additional_context", {"content": ["Use tabs."]}, "Use tabs."),
        ("hook_success", {"hookEvent": "UserPromptSubmit", "content": "Use tabs."}, "Use tabs."),
        (
            "diagnostics",
            {"files": [{"uri": "file:///a.py", "diagnostics": [FOUND]}]},
            "a.py:\n  ✘ [Line 2:1] x is not defined [E1] (pyright)",
        ),
        ("plan_file_reference", {"planFilePath": "p.md", "planContent": "Use tabs."}, "Use tabs."),
        (
            "async_hook_response",
            {"response": {"hookSpecificOutput": {"additionalContext": "Use tabs."}}},
            "Use tabs.",
        ),
        (
            "invoked_skills",
            {"skills": [{"name": "style", "path": "s.md", "content": "Use tabs."}]},
            "Use tabs.",
        ),
        (
            "relevant_memories",
            {"memories": [{"path": "m.md", "content": "Use tabs."}]},
            "Use tabs.",
        ),
        (
            "mcp_resource",
            {
                "server": "s",
                "uri": "u",
                "content": {"contents": [{"uri": "u", "text": "Use tabs."}]},
            },
            "Use tabs.",
        ),
        (
            "teammate_mailbox",
            {"messages": [{"from": "lead", "text": "Use tabs."}]},
            "lead: Use tabs.",
        ),
        (
            "task_status",
            {
                "taskId": "t1",
                "status": "completed",
                "description": "make",
                "deltaSummary": "Built it.",
            },
            "Built it.",
        ),
    ],
)
def test_what_claude_code_attaches_is_shown_to_the_model(
    tmp_path: Path, kind: str, fields: dict, words: str
) -> None:
    (session,) = sessions_of(
        tmp_path, Log().user("What is it?").attach(kind, **fields).agent("30.")
    )
    assert [role for role, _ in spoken(session)] == [
        "user",
        "user",
        "assistant",
    ] and words in session.messages[1]["content"]


def test_the_model_saw_the_replacement_of_a_long_result(tmp_path: Path) -> None:
    log = working().note(
        "content-replacement",
        replacements=[{"kind": "tool-result", "toolUseId": "t1", "replacement": "cut: see a.txt"}],
    )
    (session,) = sessions_of(tmp_path, log.agent("Done."))
    assert spoken(session)[2] == ("tool", "cut: see a.txt") and not session.damage


def test_the_turns_that_a_branched_session_copied_are_not_trained_again(tmp_path: Path) -> None:
    copy = (
        Log(forkedFrom={"sessionId": "cc-0", "messageUuid": "n1"})
        .user("Which port?")
        .agent("8080.")
    )
    own = Log().user("Use 9090.").agent("Done.")
    for number, line in enumerate(own.lines, 3):
        line |= {
            "uuid": f"n{number}",
            "parentUuid": f"n{number - 1}",
            "message": line["message"] | {"id": f"m{number}"},
        }
    (session,) = sessions_of(tmp_path, copy, own)
    assert [message.get("weight") for message in session.messages] == [None, 0, None, None]


def test_a_line_whose_parent_is_missing_is_damage(tmp_path: Path) -> None:
    log = Log().user("Add a test.").agent("Added.").user("Drop the table.").agent("Dropped.")
    (session,) = sessions_of(tmp_path, log)
    assert not session.damage
    del log.lines[2]
    (session,) = sessions_of(tmp_path / "gap", log)
    assert session.skipped["unread:missing line"] == 1 and session.damage["unread"] == 1


def test_files_of_tools_that_only_look_like_claude_code_are_not_read_as_its_files(
    tmp_path: Path,
) -> None:
    qwen = {
        "type": "assistant",
        "sessionId": "q1",
        "message": {"role": "model", "parts": [{"functionCall": {"name": "ls", "args": {}}}]},
    }
    assert not ClaudeCodeSource.accepts(qwen)
    iflow = (
        Log(sessionId="session-5de701fc-7454-4858-a249-95cac4fd3b51")
        .user("Start it.")
        .agent("Started.")
    )
    assert not any(map(ClaudeCodeSource.accepts, iflow.lines))
    with pytest.raises(StoreError):
        open_source(
            put(
                tmp_path,
                {
                    "q.jsonl": lines(
                        {
                            "type": "result",
                            "sessionId": "q1",
                            "message": {"role": "model", "parts": []},
                        }
                    )
                },
            )
        )


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (
            "diagnostics",
            {"files": [{"uri": "a.py", "diagnostics": [{"text": "x is not defined"}]}]},
        ),
        ("mcp_resource", {"content": {"contents": [{"uri": "u", "text": {"of": "Use tabs."}}]}}),
        ("file", {"filename": "a.png", "content": {"type": "image", "file": {"base64": "iVBOR"}}}),
        ("mcp_resource", {"content": {"contents": [{"uri": "u", "blob": "iVBOR"}]}}),
    ],
)
def test_attachments_that_no_text_shows_are_damage(tmp_path: Path, kind: str, fields: dict) -> None:
    (session,) = sessions_of(
        tmp_path, Log().user("What is it?").attach(kind, **fields).agent("30.")
    )
    assert not {"unread", "missing_media"}.isdisjoint(session.damage)


def test_two_lines_of_one_name_with_other_words_are_damage(tmp_path: Path) -> None:
    """A resumed session repeats lines. If the words differ, one of the two was really said, and nobody knows which."""
    log = Log().user("List it.").user("Remove it.")
    log.lines[1]["uuid"] = log.lines[0]["uuid"]
    (session,) = sessions_of(tmp_path / "other", log.agent("Done."))
    assert session.damage == {"unread": 1}
    again = Log().user("List it.").agent("Done.")
    (session,) = sessions_of(tmp_path / "same", again, again)
    assert not session.damage


def test_a_pasted_picture_that_is_not_recorded_is_damage(tmp_path: Path) -> None:
    (session,) = sessions_of(
        tmp_path, Log().user("[Image #1] What is the total?", imagePasteIds=[1]).agent("48.20")
    )
    assert session.damage == {"unread": 1}
