"""The tape: which recorded sessions are on it, what it keeps of them, and how they are removed."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.evaluation import tape as tape_module
from agent_pipeline.evaluation.tape import (
    MIN_SHARED_READS,
    FirstRead,
    SharedRead,
    add_tapes,
    find_shared_reads,
    list_steps,
    list_tape_sessions,
    read_tapes,
    record_tape,
)
from agent_pipeline.evaluation.tool_effects import CHANGED_READ, READ_NAME, UNKNOWN, ToolEffects
from agent_pipeline.governance.forgetting import forget
from agent_pipeline.governance.lineage import OWN, session_lineage
from agent_pipeline.keys import parse_key
from agent_pipeline.sessions.session import Message, Tool
from agent_pipeline.sessions.tables import JUDGED, to_batches, to_rows
from agent_pipeline.storage.lake import Lake

KEY = parse_key("shop/support")
TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
        },
    }
    for name in ("find_order", "refund")
]


def call(tool: str, result: str, **arguments: object) -> list[Message]:
    """A call and its result."""
    call_id = f"{tool}-{json.dumps(arguments)}-{result}"
    return [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": tool, "arguments": json.dumps(arguments)},
                }
            ],
        },
        {"role": "tool", "tool_call_id": call_id, "content": result},
    ]


def say(user: str, *steps: list[Message], answer: str = "Done.") -> list[Message]:
    """A conversation of one request."""
    return [
        {"role": "user", "content": user},
        *(message for step in steps for message in step),
        {"role": "assistant", "content": answer},
    ]


def refund(answer: str = "Done.") -> list[Message]:
    """A conversation in which the agent refunds an order."""
    return say(
        "Refund K1.",
        call("find_order", '{"K1":"mug, 20"}', order="K1"),
        call("refund", '{"ok":true}', order="K1", amount=20.0),
        call("find_order", '{"K1":"refunded"}', order="K1"),
        answer=answer,
    )


GOOD = refund()


def naming(session_id: str, messages: list[Message]) -> list[Message]:
    """The messages with an answer that names the session, which makes them no copy."""
    last: Any = messages[-1] | {"content": f"{messages[-1]['content']} This is {session_id}."}
    return [*messages[:-1], last]


def session(
    session_id: str, messages: list[Message] | None = None, **columns: Any
) -> dict[str, Any]:
    """A row of `judged_sessions`. Without messages, the agent refunds and names the session."""
    messages = messages or refund(f"This is {session_id}.")
    row = dict.fromkeys(JUDGED.names) | {
        "project": "shop",
        "agent": "support",
        "source": "test",
        "content_sha256": session_id,
        "task_key": "task:1",
        "archived": False,
        "tools": TOOLS,
        "tools_origin": "source",
        "scores": {},
        "ends_on_tool": False,
        "usage": {},
        "reasoning": [],
        "damage": {},
        "skipped": {},
        "context": {},
        "measures": {},
        "verdict": "acceptable",
    }
    return row | {"session_id": session_id, "messages": messages} | columns


def recorded(lake: Lake, *rows: dict[str, Any], reads: tuple[str, ...] = ()) -> Any:
    """The tape of these sessions, committed."""
    for name in ("sessions", "judged_sessions"):
        lake.stage(name, KEY, to_batches(rows, JUDGED), JUDGED).commit()
    tape = record_tape(lake, KEY, SplitSizes(), reads)
    tape.table.commit()
    return tape


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def test_key_of_a_result(lake: Lake) -> None:
    """A result is kept with the canonical arguments and the writes before it."""
    recorded(lake, session("a"))
    rows = [row for row in to_rows(lake.open("tape", KEY).read()) if row["tool"]]
    assert [(row["tool"], row["arguments"], row["writes"]) for row in rows] == [
        ("find_order", '{"order":"K1"}', False),
        ("refund", '{"amount":20,"order":"K1"}', True),
        ("find_order", '{"order":"K1"}', False),
    ]
    assert json.loads(rows[0]["writes_before"]) == []
    assert json.loads(rows[2]["writes_before"]) == ['refund({"amount":20,"order":"K1"})']


def test_failed_write_changes_nothing(lake: Lake) -> None:
    messages = say("Refund K1.", call("refund", '{"error":"no such order"}', order="K1"))
    recorded(lake, session("a", messages))
    [row] = [row for row in to_rows(lake.open("tape", KEY).read()) if row["tool"]]
    assert row["failed"] and not row["writes"]


def with_other_ids(messages: list[Message]) -> list[Message]:
    """The messages of a run that differs only in the ids of the calls."""
    return json.loads(json.dumps(messages).replace('"find_order-', '"run2-find_order-'))


@pytest.mark.parametrize(
    "columns",
    [
        {"session_id": "played-1"},
        {"broken": "orphan_output"},
        {"archived": True},
        {"error": "timeout"},
        {"attack_succeeded": True},
        {"content_sha256": "a"},
    ],
)
def test_left_out(lake: Lake, columns: dict[str, Any]) -> None:
    """Sessions that show no sound recording of the task are not on its tape."""
    tape = recorded(lake, session("a"), session("b") | columns)
    assert tape.sessions == 1 and sum(tape.left_out.values()) == 1
    assert read_tapes(lake, KEY, ["task:1"])["task:1"].session_ids == {"a"}


def test_large_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is too large to be held is read twice, with the same result."""
    rows = [session("a"), session("b", say("Hi.")), session("c", broken="orphan_output")]
    held = recorded(lake, *rows)
    table = lake.open("tape", KEY).read()
    monkeypatch.setattr(tape_module, "MOST_HELD_BYTES", 0)
    read_twice = recorded(lake, *rows)
    assert lake.open("tape", KEY).read() == table
    assert read_twice.left_out == held.left_out and read_twice.sessions == held.sessions == 2


def test_only_own_task(lake: Lake) -> None:
    """Calls of another task are never on the tape of a task, however similar they are."""
    recorded(lake, session("a"), session("b", task_key="task:2"))
    assert read_tapes(lake, KEY, ["task:1"])["task:1"].session_ids == {"a"}


def test_side_chain_has_the_task_of_its_root(lake: Lake) -> None:
    recorded(lake, session("a"), session("b", task_key="task:9", parent_session_id="a"))
    assert read_tapes(lake, KEY, ["task:1"])["task:1"].session_ids == {"a", "b"}


def test_forget(lake: Lake) -> None:
    """A forgotten session leaves no row and no text on the tape."""
    secret = say("Refund K7, it is for Zoe.", call("find_order", "Zoe's mug", order="K7"))
    recorded(lake, session("a"), session("zoe", secret))
    forget(lake, "zoe")
    assert {row["session_id"] for row in to_rows(lake.open("tape", KEY).read())} == {"a"}
    assert b"Zoe" not in Path(str(lake.table("tape", KEY))).read_bytes()


def test_lineage(lake: Lake) -> None:
    """Every row that comes from a session is found by its id."""
    recorded(lake, session("a"), session("zoe"))
    rows = [row for row in session_lineage(lake, "zoe").rows if row.asset == "tape"]
    assert len(rows) == len(list_steps(GOOD, {})) and {row.role for row in rows} == {OWN}


def test_sessions_of_a_tape(lake: Lake) -> None:
    """Episodes name the sessions of their tapes in their manifest, so that `forget` finds them."""
    recorded(lake, session("a"), session("b"), session("c", task_key="task:2"))
    row = cast(DatasetRow, {"task_key": "task:1"})
    assert list_tape_sessions(add_tapes(lake, KEY, [row], surrogates=False)) == {"a", "b"}


def test_declared_reads_are_known_to_the_tape(lake: Lake) -> None:
    """Only a person's word makes a look-up harmless that no good session made."""
    recorded(lake, session("a"))
    assert not read_tapes(lake, KEY, ["task:1"])["task:1"].reads_are_declared
    recorded(lake, session("a"), reads=("find_order",))
    assert read_tapes(lake, KEY, ["task:1"])["task:1"].reads_are_declared


def test_equal_runs_are_recordings_of_their_own(lake: Lake) -> None:
    """Runs that differ only in the ids of their calls: the task lost its good recording."""
    recorded(lake, session("a", GOOD, verdict=None), session("b", with_other_ids(GOOD)))
    assert set(lake.open("tape", KEY).read(["session_id"])["session_id"].to_pylist()) == {"a", "b"}


def test_wording_is_learned_from_all_sessions(lake: Lake) -> None:
    """Two tasks whose sessions ask the same in other words show which words do not matter."""
    questions = ("Sag mir die Nummer, bitte?", "Wie lautet die Nummer?")
    recorded(
        lake,
        *(
            session(f"{task} {index}", ask(text, answer=f"{task}."), task_key=task)
            for task in ("task:1", "task:2", "task:3")
            for index, text in enumerate(questions)
        ),
    )
    wording = read_tapes(lake, KEY, ["task:3"])["task:3"].wording
    assert {"sag", "lautet"} <= set(wording) and "nummer" not in wording


def ask(question: str, answer: str) -> list[Message]:
    """A session in which the agent asks, and the user replies."""
    return [
        {"role": "user", "content": "Hallo"},
        {"role": "assistant", "content": question},
        *say("Es ist K1.", call("find_order", "?", order="K1"), answer=answer),
    ]


def test_pseudonyms_tie_calls_to_their_session(lake: Lake) -> None:
    """`<EMAIL_1>` of a result may be another address in another session."""
    found = call("find_order", "of <EMAIL_1>", order="K1")
    recorded(lake, session("a", say("Who ordered K1?", found)))
    [recording] = read_tapes(lake, KEY, ["task:1"])["task:1"].recordings
    assert recording.tied_calls == [0]


MAIL_TOOL: Tool = {
    "type": "function",
    "function": {"name": "find_order", "description": "Find an order, for example of <EMAIL_1>."},
}


@pytest.mark.parametrize(("address", "tied"), [("<EMAIL_1>", []), ("<EMAIL_2>", [0])])
def test_pseudonyms_of_the_tools(lake: Lake, address: str, tied: list[int]) -> None:
    """They are numbered first, so they are the same in all sessions, whatever the users say."""
    found = call("find_order", f"of {address}", order="K1")
    recorded(
        lake,
        *(
            session(user, say(user, found), tools=[MAIL_TOOL])
            for user in ("Who ordered K1?", "Whose order is K1?")
        ),
    )
    tape = read_tapes(lake, KEY, ["task:1"])["task:1"]
    assert [recording.tied_calls for recording in tape.recordings] == [tied, tied]


@pytest.mark.parametrize(("others", "tied"), [("<NAME_1>", []), ("<NAME_1>, or his", [0])])
def test_pseudonyms_of_the_user(lake: Lake, others: str, tied: list[int]) -> None:
    """They are known if the user begins alike in all sessions."""
    found = call("find_order", "of <NAME_1>", order="K1")
    users = ("<NAME_1>", others)
    rows = [session(f"s{n}", say(user, found), tools=[MAIL_TOOL]) for n, user in enumerate(users)]
    if users[0] == users[1]:
        rows[1] = session("s1", [*say(others, found), *say("Thanks.")], tools=[MAIL_TOOL])
    recorded(lake, *rows)
    tape = read_tapes(lake, KEY, ["task:1"])["task:1"]
    assert [recording.tied_calls for recording in tape.recordings] == [tied, tied]


class TestToolEffects:
    def effects(self, *sessions: list[Message], declared: tuple[str, ...] = ()) -> dict[str, Any]:
        counts = ToolEffects()
        for messages in sessions:
            counts.add(messages, TOOLS)
        return {e.tool: (e.writes, e.reason) for e in counts.list_effects(declared)}

    def test_changed_look_up(self) -> None:
        """An equal look-up with another result shows that the call between them writes."""
        assert self.effects(GOOD) == {
            "find_order": (False, READ_NAME),
            "refund": (True, CHANGED_READ),
        }

    def test_notation_of_arguments(self) -> None:
        """Equal look-ups may be written with other blanks, or in another order."""
        effects = ToolEffects()
        first, second = (call("find_order", text, order="K1", day=1) for text in ("old", "new"))
        second[0]["tool_calls"][0]["function"]["arguments"] = '{ "day":1, "order": "K1" }'
        effects.add(say("?", first, call("do_it", "ok"), second), [])
        assert effects.changing == {"do_it": 1}

    def test_evidence_beats_the_name(self) -> None:
        look = [call("status", text, order="K1") for text in ("open", "seen")]
        messages = say("?", look[0], call("check_stock", "ok", order="K1"), look[1])
        assert self.effects(messages, messages)["check_stock"] == (True, CHANGED_READ)
        assert self.effects(messages)["check_stock"] == (False, READ_NAME)

    def test_unknown_tool_writes(self) -> None:
        assert self.effects(say("?", call("ping", "ok")))["ping"] == (True, UNKNOWN)

    def test_declared(self) -> None:
        """If tools are declared, every other tool writes, whatever its name says."""
        messages = say("?", call("ping", "ok"), call("get_it", "ok"))
        effects = self.effects(messages, declared=("ping",))
        assert {tool: writes for tool, (writes, _) in effects.items()} == {
            "get_it": True,
            "ping": False,
        }


class TestSharedReads:
    def reads(self, results: dict[str, str]) -> list[FirstRead]:
        """The same look-ups in two tasks; `results` has the second task's other results."""
        names = [f"K{number}" for number in range(MIN_SHARED_READS)]
        return [
            FirstRead(task, SharedRead("find", name, result, f"session of {task}"))
            for task, other in (("1", {}), ("2", results))
            for name in names
            for result in [other.get(name, f"result of {name}")]
        ]

    def test_same_state(self) -> None:
        own = FirstRead("2", SharedRead("find", "K99", "only here", "b"))
        assert own.read in find_shared_reads([*self.reads({}), own])

    def test_other_state(self) -> None:
        """Tasks that look the same thing up and see something else do not share anything."""
        assert find_shared_reads(self.reads({"K1": "else", "K2": "else"})) == []

    def test_too_few(self) -> None:
        assert find_shared_reads(self.reads({})[1:]) == []


def test_parallel_calls() -> None:
    """Each of several calls in one message gets its own result."""
    one, two = call("find_order", "1", order="K1"), call("find_order", "2", order="K2")
    both: Message = {**one[0], "tool_calls": [*one[0]["tool_calls"], *two[0]["tool_calls"]]}
    steps = list_steps([both, two[1], one[1]], {})
    assert [(step.arguments, step.text) for step in steps] == [
        ('{"order":"K1"}', "1"),
        ('{"order":"K2"}', "2"),
    ]


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("get_order", True),
        ("shop__find_orders", True),
        ("orders.list", True),
        ("readFile", True),
        ("Read", True),
        ("mark_as_read", False),
        ("create_list", False),
        ("update_count", False),
        ("check_out", False),
        ("check_in_guest", False),
        ("get_or_create_user", False),
        ("listen", False),
        ("getaway", False),
        ("findAndReplace", False),
    ],
)
def test_name_of_a_look_up(name: str, reads: bool) -> None:
    """A name says that a tool reads only if its verb does, and not if any word of it does."""
    assert ToolEffects().names_a_read(name) == reads
