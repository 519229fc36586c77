"""Irrelevance twins: a training row again without the tool that it calls, so that the agent says that it cannot.

The pair differs in the list of tools only, which teaches to read that list (Hammer: Lin et al. 2024). Where a tool that is left may do the
same job, calling it would be right, so such a row has no twin.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from agent_pipeline.sessions.session import Message, Tool, is_trained, sha256_of
from agent_pipeline.sessions.tables import decoded
from agent_pipeline.sessions.turn_class import turn_class

Row = dict[str, Any]

CANNOT = (
    "I'm sorry, but I cannot do that: I have no tool for it.",
    "Unfortunately I am not able to do this. None of my tools is for it.",
    "I cannot help with that here: it needs a tool that I do not have.",
)

ALIKE = 0.5
"""Tools of which so many words of their names, or of their descriptions, are the same (Jaccard) may do the same job."""

_ANYTHING = {"code", "command", "cmd", "script", "sql", "shell"}
"""Parameters of tools that may do any job."""

_SMALL = {
    "and",
    "are",
    "can",
    "for",
    "from",
    "has",
    "have",
    "its",
    "not",
    "that",
    "the",
    "this",
    "use",
    "used",
    "with",
    "you",
    "your",
}


class Twins(NamedTuple):
    """`share` of the training rows, chosen by hash, that get a twin; `texts`: what its agent says, one of them, chosen by hash."""

    share: float = 0.0
    texts: Sequence[str] = CANNOT


def with_twins(rows: Iterable[Row], twins: Twins, counts: Counter[str]) -> Iterator[Row]:
    """The rows, each as it is, and after each that was chosen its twin; `counts` gets `twins` and `rows_without_a_possible_twin`."""
    for row in rows:
        yield row
        if (
            row["split"] == "train"
            and int(sha256_of(["twin", row["row_id"]])[:12], 16) / 16**12 < twins.share
        ):
            twin = irrelevance_twin(row, twins.texts)
            counts["twins" if twin else "rows_without_a_possible_twin"] += 1
            if twin:
                yield twin


def irrelevance_twin(row: Row, texts: Sequence[str] = CANNOT) -> Row | None:
    """The row up to one of its trained calls, without the called tool; there the agent says that it cannot, and only that is trained.

    None where no call can be taken away: a turn that calls one tool, which was not called before, and beside which others are left, none of
    them alike. JSON columns may be `msgspec.Raw`.
    """
    messages, tools = (decoded(row[name]) for name in ("messages", "tools"))
    possible = [at for at in range(len(messages)) if _may_be_missed(messages, at, tools)]
    if not possible:
        return None
    at = min(possible, key=lambda at: sha256_of([row["row_id"], at]))
    answer: Message = {
        "role": "assistant",
        "content": texts[int(sha256_of([row["row_id"]])[:12], 16) % len(texts)],
    }
    before = [
        message | {"weight": 0} if message["role"] == "assistant" else message
        for message in messages[:at]
    ]
    turns = sum(message["role"] == "assistant" for message in before)
    return row | {
        "row_id": f"{row['row_id']}#twin{at}",
        "messages": [*before, answer],
        "tools": [
            tool for tool in tools if _function(tool).get("name") not in _called(messages[at])
        ],
        "turn_classes": [*row["turn_classes"][:turns], turn_class(answer)],
        "twin_of": row["row_id"],
    }


def alike(one: Tool, other: Tool) -> bool:
    """Whether the second tool may do the job of the first."""
    first, second = _function(one), _function(other)
    parameters = set((second.get("parameters") or {}).get("properties") or {})
    return bool(parameters & _ANYTHING) or any(
        _overlap(first.get(of), second.get(of)) >= ALIKE for of in ("name", "description")
    )


def _may_be_missed(messages: Sequence[Message], at: int, tools: Sequence[Tool]) -> bool:
    called = _called(messages[at])
    if messages[at]["role"] != "assistant" or len(called) != 1 or not is_trained(messages[at]):
        return False
    taken = [tool for tool in tools if _function(tool).get("name") in called]
    left = [tool for tool in tools if _function(tool).get("name") not in called]
    before = {name for message in messages[:at] for name in _called(message)}
    return (
        bool(taken and left)
        and not called & before
        and not any(alike(tool, other) for tool in taken for other in left)
    )


def _called(message: Message) -> set[str]:
    return {call["function"]["name"] for call in message.get("tool_calls") or ()}


def _function(tool: Tool) -> Tool:
    return tool.get("function", tool)


def _overlap(one: str | None, other: str | None) -> float:
    first, second = _words(one or ""), _words(other or "")
    return len(first & second) / len(first | second) if first and second else 0.0


def _words(text: str) -> set[str]:
    """The words of a name or a description, without an ending s, small ones left out."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text).lower()
    return {word.rstrip("s") for word in re.findall(r"[^\W\d]{3,}", parted)} - _SMALL
