"""Codex: the history as Codex itself rebuilds it, without turns that were taken back, and after compactions."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.agents.codex import CodexSource
from agent_pipeline_tests.sources.samples import WRITTEN, codex_lines, lines, put
from agent_pipeline_tests.sources.test_plain import read


def line(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-06-01T10:00:00.000Z", "type": kind, "payload": payload}


def meta(name: str = "t1", **more: Any) -> dict[str, Any]:
    return line(
        "session_meta",
        id=name,
        timestamp="2026-06-01T10:00:00.000Z",
        cwd="/w/app",
        cli_version="0.169.0",
        **more,
    )


def message(role: str, words: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": words}]}


def said(role: str, words: str) -> dict[str, Any]:
    return line("response_item", **message(role, words))


def turn(asked: str, answer: str, call: str = "") -> list[dict[str, Any]]:
    made = [
        line("response_item", type="function_call", name="shell", arguments="{}", call_id=call),
        line("response_item", type="function_call_output", call_id=call, output="ok"),
    ]
    return [
        said("user", asked),
        line("event_msg", type="user_message", message=asked),
        *(made if call else []),
        said("assistant", answer),
    ]


def event(kind: str, **more: Any) -> dict[str, Any]:
    return line("event_msg", type=kind, **more)


def sessions_of(folder: Path, *files: list[dict[str, Any]]) -> list[Session]:
    put(
        folder, {f"rollout-{number}.jsonl": lines(*records) for number, records in enumerate(files)}
    )
    return sorted(read(CodexSource(folder)), key=lambda session: session.session_id)


def spoken(session: Session) -> list[str]:
    return [entry["content"] for entry in session.messages if entry["role"] != "tool"]


def weights(session: Session) -> list[int | None]:
    return [entry.get("weight") for entry in session.messages if entry["role"] == "assistant"]


ENVIRONMENT = said("user", "<environment_context>\n  <cwd>/w/app</cwd>\n</environment_context>")


@pytest.mark.parametrize("turns", [1, 2])
def test_turns_that_the_user_took_back_are_left_out(tmp_path: Path, turns: int) -> None:
    records = [
        meta(),
        ENVIRONMENT,
        *turn("Add a README.", "Added.", "c1"),
        *turn("Delete all tests.", "Deleted.", "c2"),
    ]
    records += turn("And docs.", "Gone.") if turns == 2 else []
    records += [event("thread_rolled_back", num_turns=turns), *turn("Mark slow tests.", "Marked.")]
    (session,) = sessions_of(tmp_path, records)
    assert (
        spoken(session)[1:] == ["Add a README.", "", "Added.", "Mark slow tests.", "Marked."]
        and not session.damage
    )
    assert session.skipped == {"taken_back": 2 + 2 * turns}


def test_more_turns_than_there_are_take_back_all_but_the_context(tmp_path: Path) -> None:
    records = [
        meta(),
        ENVIRONMENT,
        *turn("One.", "1."),
        event("thread_rolled_back", num_turns=9),
        *turn("Two.", "2."),
    ]
    (session,) = sessions_of(tmp_path, records)
    assert [entry["role"] for entry in session.messages] == [
        "system",
        "user",
        "assistant",
    ] and spoken(session)[1:] == ["Two.", "2."]


@given(steps=st.lists(st.one_of(st.just(0), st.integers(1, 3)), max_size=12))
def test_the_conversation_is_what_remains_of_turns_and_rollbacks(
    steps: list[int], tmp_path_factory: Any
) -> None:
    """A step of 0 is a turn of the user; any other step takes back as many turns."""
    records, left = [meta()], []
    for number, step in enumerate(steps):
        if step:
            records.append(event("thread_rolled_back", num_turns=step))
            left = left[:-step]
        else:
            records += turn(f"q{number}", f"a{number}")
            left.append(number)
    (session,) = sessions_of(tmp_path_factory.mktemp("codex"), records)
    assert (
        spoken(session) == [words for number in left for words in (f"q{number}", f"a{number}")]
        and not session.damage
    )


@pytest.mark.parametrize("turns", [None, 0, -1, "1", True, 1.5])
def test_a_rollback_of_an_unknown_number_of_turns_is_damage(tmp_path: Path, turns: Any) -> None:
    (session,) = sessions_of(
        tmp_path, [meta(), *turn("One.", "1."), event("thread_rolled_back", num_turns=turns)]
    )
    assert session.damage == {"unread": 1}


SUMMARY = "SUMMARY: one was asked."


def test_after_a_compaction_the_agent_saw_the_replacement(tmp_path: Path) -> None:
    replacement = [message("user", "One."), message("user", SUMMARY)]
    records = [
        meta(),
        *turn("One.", "1."),
        line("compacted", message=SUMMARY, replacement_history=replacement),
        *turn("Two.", "2."),
    ]
    last, before = sessions_of(tmp_path, records)
    assert spoken(last) == ["One.", SUMMARY, "Two.", "2."] and spoken(before) == ["One.", "1."]
    assert (before.session_id, before.parent_session_id, last.parent_session_id) == (
        "t1:before-compaction-1",
        "t1",
        None,
    )
    assert not last.damage and not before.damage


def test_without_a_replacement_the_users_words_and_the_summary_remain(tmp_path: Path) -> None:
    """Older versions rebuild the history in this way."""
    records = [
        meta(),
        ENVIRONMENT,
        *turn("One.", "1."),
        *turn("Two.", "2."),
        line("compacted", message=SUMMARY),
        *turn("Three.", "3."),
    ]
    last, before = sessions_of(tmp_path, records)
    assert (
        spoken(last)[1:] == ["One.", "Two.", SUMMARY, "Three.", "3."]
        and last.messages[0]["role"] == "system"
    )
    assert not last.damage and len(before.messages) == 5


def test_answers_that_a_compaction_kept_are_not_trained_again(tmp_path: Path) -> None:
    replacement = [message("user", "One."), message("assistant", "1."), message("user", SUMMARY)]
    records = [
        meta(),
        *turn("One.", "1."),
        line("compacted", message=SUMMARY, replacement_history=replacement),
        *turn("Two.", "2."),
    ]
    last, _ = sessions_of(tmp_path, records)
    assert [entry.get("weight") for entry in last.messages] == [None, 0, None, None, None]


@pytest.mark.parametrize("kind", ["compaction", "context_compaction"])
def test_a_summary_that_cannot_be_read_is_damage(tmp_path: Path, kind: str) -> None:
    hidden = {"type": kind, "encrypted_content": "gAAA"}
    records = [
        meta(),
        *turn("One.", "1."),
        line("compacted", message="", replacement_history=[hidden]),
        *turn("Two.", "2."),
    ]
    last, before = sessions_of(tmp_path, records)
    assert last.damage == {"unread": 1} and not before.damage


def test_a_turn_that_was_taken_back_over_a_compaction_is_damage_where_it_began(
    tmp_path: Path,
) -> None:
    records = [meta(), *turn("One.", "1."), *turn("Delete all.", "Deleting.")]
    records += [
        line(
            "compacted",
            message="",
            replacement_history=[message("user", "One."), message("user", "Delete all.")],
        )
    ]
    records += [
        said("assistant", "Deleted."),
        event("thread_rolled_back", num_turns=1),
        *turn("Two.", "2."),
    ]
    last, before = sessions_of(tmp_path, records)
    assert (
        spoken(last) == ["One.", "Two.", "2."]
        and not last.damage
        and before.damage == {"unread": 1}
    )


PARENT = [meta("p"), *turn("Which port?", "8080."), *turn("Use 9090.", "It is 9090.", "c1")]


def fork(own: list[dict[str, Any]], copied: int = 9, **more: Any) -> list[dict[str, Any]]:
    copies = [record | {"timestamp": "2026-06-02T00:00:00.000Z"} for record in PARENT[: copied + 1]]
    return [meta("f", **more), *copies, *own]


@pytest.mark.parametrize(
    "more",
    [
        {"forked_from_id": "p"},
        {"source": {"subagent": {"thread_spawn": {"parent_thread_id": "p"}}}},
    ],
)
@pytest.mark.parametrize("copied", [3, 9])
def test_the_turns_that_a_fork_copied_are_not_trained_again(
    tmp_path: Path, more: dict, copied: int
) -> None:
    child, parent = sessions_of(
        tmp_path, PARENT, fork(turn("Rather 7070.", "It is 7070."), copied, **more)
    )
    assert (child.session_id, child.parent_session_id, parent.session_id) == ("f", "p", "p")
    answers = [entry for entry in child.messages if entry["role"] == "assistant"]
    assert [entry.get("weight") for entry in answers] == [0] * (len(answers) - 1) + [None]
    assert not any("weight" in entry for entry in parent.messages)


def test_a_fork_whose_parent_is_not_in_the_store_is_trained_and_noted(tmp_path: Path) -> None:
    source = CodexSource(put(tmp_path, {"rollout-1.jsonl": lines(*fork([], forked_from_id="p"))}))
    (session,) = read(source)
    assert (session.session_id, session.parent_session_id) == ("f", "p")
    assert not any("weight" in entry for entry in session.messages) and any(
        "not in this store" in note for note in source.notes
    )


@pytest.mark.parametrize(
    "more",
    [
        {"source": {"subagent": "review"}, "parent_thread_id": "p"},
        {"source": {"subagent": {"thread_spawn": {"parent_thread_id": "p"}}}},
        {"forked_from_id": "p"},
    ],
)
def test_every_kind_of_child_names_its_parent(tmp_path: Path, more: dict) -> None:
    (session,) = sessions_of(tmp_path, [meta(**more), *turn("One.", "1.")])
    assert session.parent_session_id == "p"


@pytest.mark.parametrize("where", ["instructions", "base_instructions"])
def test_instructions_that_a_message_repeats_stand_once(tmp_path: Path, where: str) -> None:
    rules = "## House rules\nUse tabs."
    injected = said(
        "user", f"# AGENTS.md instructions for /w/app\n\n<INSTRUCTIONS>\n{rules}\n</INSTRUCTIONS>"
    )
    told = rules if where == "instructions" else {"text": rules}
    (session,) = sessions_of(
        tmp_path, [meta(**{where: told}), injected, ENVIRONMENT, *turn("Tabs?", "Yes.")]
    )
    assert session.messages[0]["content"].count("Use tabs.") == 1 and len(session.messages) == 3


def test_a_turn_that_was_aborted_is_cut(tmp_path: Path) -> None:
    records = [
        meta(),
        *turn("One.", "1."),
        said("user", "Two."),
        said("assistant", "I now"),
        event("turn_aborted", reason="interrupted"),
    ]
    (session,) = sessions_of(tmp_path, [*records, *turn("Three.", "3.")])
    assert weights(session) == [None, 0, None] and session.damage == {"cut_message": 1}


def test_all_calls_of_a_turn_that_was_aborted_are_cut(tmp_path: Path) -> None:
    calls = [
        line("response_item", type="function_call", name="shell", arguments="{}", call_id=name)
        for name in ("a", "b")
    ]
    results = [
        line("response_item", type="function_call_output", call_id=name, output="aborted")
        for name in ("a", "b")
    ]
    aborted = event("turn_aborted", reason="interrupted")
    records = [
        meta(),
        said("user", "Two."),
        said("assistant", "I run both."),
        *calls,
        *results,
        aborted,
        *turn("Three.", "3."),
    ]
    (session,) = sessions_of(tmp_path, records)
    assert weights(session) == [0, None] and len(session.messages[1]["tool_calls"]) == 2


def test_the_note_that_a_turn_was_aborted_cuts_it_as_well(tmp_path: Path) -> None:
    note = said("user", "<turn_aborted>\nThe user interrupted the turn.\n</turn_aborted>")
    (session,) = sessions_of(tmp_path, [meta(), *turn("One.", "1."), note, *turn("Two.", "2.")])
    assert weights(session) == [0, None] and session.damage == {"cut_message": 1}


def test_an_abort_before_the_agent_said_anything_cuts_nothing(tmp_path: Path) -> None:
    records = [
        meta(),
        *turn("One.", "1."),
        said("user", "Two."),
        event("turn_aborted", reason="interrupted"),
    ]
    (session,) = sessions_of(tmp_path, records)
    assert weights(session) == [None] and not session.damage


UNKNOWN = [
    event("steering", text="Delete it."),
    event("item_completed", item={"type": "Steering", "text": "Delete it."}),
    line("relay", note="two words"),
    line("inter_agent_communication", content="Delete it."),
    event("user_message", message="Delete it."),
    event(
        "item_completed",
        item={"type": "UserMessage", "content": [{"type": "text", "text": "Delete it."}]},
    ),
    {"payload": {"content": "no type"}},
]


@pytest.mark.parametrize("record", UNKNOWN)
def test_a_line_that_nobody_knows_and_that_says_something_is_damage(
    tmp_path: Path, record: dict
) -> None:
    (session,) = sessions_of(tmp_path, [meta(), *turn("One.", "1."), record, *turn("Two.", "2.")])
    assert session.damage == {"unread": 1}


@pytest.mark.parametrize(
    "record",
    [
        event("exec_command_end", stdout="two words"),
        event("item_completed", item={"type": "CommandExecution", "output": "ok"}),
        line("world_state", state={"note": "two words"}),
        line("response_item", type="ghost_snapshot", ghost_commit={"id": "x"}),
        event("steering", count=3, on=True),
        event("user_message", message=" One. "),
    ],
)
def test_bookkeeping_is_no_damage(tmp_path: Path, record: dict) -> None:
    (session,) = sessions_of(tmp_path, [meta(), *turn("One.", "1."), record, *turn("Two.", "2.")])
    assert not session.damage and spoken(session) == ["One.", "1.", "Two.", "2."]


def test_a_missing_line_between_numbered_ones_is_damage(tmp_path: Path) -> None:
    rows = (WRITTEN / "codex.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "rollout-1.jsonl").write_bytes(b"".join([*rows[:7], *rows[8:]]))
    (session,) = read(CodexSource(tmp_path / "rollout-1.jsonl"))
    assert session.skipped["unread:missing line"] == 1


def test_tools_that_are_added_later_are_tools(tmp_path: Path) -> None:
    tool = {
        "type": "function",
        "name": "find",
        "description": "Find.",
        "parameters": {"type": "object", "properties": {}},
    }
    records = [*codex_lines(), line("response_item", type="additional_tools", tools=[tool])]
    (session,) = sessions_of(tmp_path, records)
    assert [entry["function"]["name"] for entry in session.tools] == ["find"]


def test_a_picture_that_only_an_event_names_is_damage(tmp_path: Path) -> None:
    """The user's message without its picture is no request for what the agent answers."""
    told = event(
        "user_message",
        message="What is the total?",
        images=["data:image/png;base64,x"],
        local_images=[],
    )
    (session,) = sessions_of(
        tmp_path, [meta(), said("user", "What is the total?"), told, said("assistant", "48.20")]
    )
    assert session.damage == {"unread": 1}
