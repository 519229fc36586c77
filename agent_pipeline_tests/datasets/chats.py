"""Chats for tests: by hand, and of every shape that `to_messages` can make."""

import json
from typing import Any

from hypothesis import strategies as st

from agent_pipeline.datasets.kto import make_kto_rows
from agent_pipeline.judging import EvaluationContext, parse_measures
from agent_pipeline.judging.turn_facts import find_turn_facts
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.repair import repair_messages
from agent_pipeline.sessions.session import Message, Session
from agent_pipeline.sessions.tables import make_session_row

WORDS = st.sampled_from(["a", "b", "ü\n"])
ARGUMENTS = st.sampled_from(["{}", '{"x": 1}', '{ "x":1 }', '{"x": 2}'])


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def calls(*calls: tuple[str, str, dict[str, Any]], text: str = "") -> Message:
    """An assistant's message with calls, each (id, name, arguments)."""
    made = [
        {
            "id": id_,
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for id_, name, arguments in calls
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


def answers(id_: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": id_, "content": text}


def session(session_id: str, messages: list[Message], **fields: Any) -> Session:
    return Session(
        **(
            {
                "session_id": session_id,
                "project": "p",
                "agent": "a",
                "source": "test",
                "messages": messages,
                "task_key": "t",
            }
            | fields
        )
    )


@st.composite
def chats(draw: st.DrawFn) -> list[Message]:
    """What a reader can give: several turns, parallel calls, ids of a run's own; every call answered."""
    items: list[dict[str, Any]] = [{"role": "user", "content": "the same start"}]
    prefix, number = draw(st.sampled_from(["call_", "run2_", ""])), 0
    for kind in draw(
        st.lists(st.sampled_from(["user", "assistant", "call", "call", "calls"]), max_size=6)
    ):
        if kind in ("user", "assistant"):
            items.append({"role": kind, "content": draw(WORDS)})
            continue
        made = [f"{prefix}{number + each}" for each in range(2 if kind == "calls" else 1)]
        number += len(made)
        items += [
            {
                "type": "function_call",
                "call_id": each,
                "name": draw(st.sampled_from("fg")),
                "arguments": draw(ARGUMENTS),
            }
            for each in made
        ]
        items += [
            {"type": "function_call_output", "call_id": each, "output": draw(WORDS)}
            for each in reversed(made)
        ]
    return repair_messages(read_chat(items).messages).messages


def rows_of(*sessions):
    """Sessions as rows of the lake's first table."""
    return [make_session_row(each) for each in sessions]


def with_turns(*sessions, measures=()):
    """Sessions as rows with the column `turns`."""
    facts = [
        find_turn_facts(EvaluationContext.from_session(each), parse_measures(measures))
        for each in sessions
    ]
    return [
        row | {"turns": [turn._asdict() for turn in turns]}
        for row, turns in zip(rows_of(*sessions), facts, strict=True)
    ]


def kto_rows(good, bad, split, paired=(), counts=None):
    """`labelled_rows` of good and bad sessions, by id."""
    labelled = [
        (each, label) for sessions, label in ((good, True), (bad, False)) for each in sessions
    ]
    return make_kto_rows(
        sorted(labelled, key=lambda pair: pair[0].session_id), split, paired, counts
    )
