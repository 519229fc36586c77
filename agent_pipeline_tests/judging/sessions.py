"""Small sessions to judge."""

import json
from collections.abc import Sequence
from typing import Any

from agent_pipeline.judging import (
    EvaluationContext,
    JudgedSession,
    Label,
    Opinion,
    VerdictPolicy,
    parse_measures,
)
from agent_pipeline.judging.free_opinions import collect_opinions
from agent_pipeline.judging.turn_facts import find_turn_facts
from agent_pipeline.judging.verdict_policy import decide_verdict
from agent_pipeline.sessions.session import Session

ANSWERED = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def calls(*made: tuple[str, Any], content: str = "") -> dict[str, Any]:
    """An assistant message with calls `(name, arguments)`, ids 1, 2, ..."""
    functions = [
        (name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for name, arguments in made
    ]
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": str(number),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for number, (name, arguments) in enumerate(functions, 1)
        ],
    }


def result(content: str, call_id: str = "1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": "", "parameters": parameters},
    }


def session(messages: Any = ANSWERED, session_id: str = "s", **fields: Any) -> Session:
    return Session(
        session_id=session_id, project="p", agent="a", source="test", messages=messages, **fields
    )


def judge(
    session: Session,
    measures: Sequence[str],
    policy: VerdictPolicy | None = None,
    label: Label | None = None,
    llm: Opinion | None = None,
) -> JudgedSession:
    """Take the measures, hear the judges and give the verdict."""
    context, policy = EvaluationContext.from_session(session), policy or VerdictPolicy()
    results = {each.name: each.take(context) for each in parse_measures(measures)}
    opinions = collect_opinions(session, results, policy, label) | ({"llm": llm} if llm else {})
    return decide_verdict(session, policy, results, opinions)._replace(
        turns=find_turn_facts(context)
    )
