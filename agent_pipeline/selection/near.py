"""Near-duplicates across the sides of the split: conversations that are nearly the same under two tasks' names.

MinHash of the words that users and agents said, called and were answered, in shingles of five; the system prompt and the
tools, which all sessions of an agent share, would make everything alike.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from agent_pipeline.datasets.splits import SPLITS
from agent_pipeline.selection.minhash import Sketches
from agent_pipeline.sessions.session import Message

SHINGLE = 5


class Near(NamedTuple):
    """A held-out session and the one nearest to it on a side before its own (`train`, `select`, `test`), with their similarity."""

    session_id: str
    split: str
    other_session_id: str
    other_split: str
    similarity: float


def near_duplicates(rows: Iterable[Mapping[str, Any]], threshold: float = 0.8) -> list[Near]:
    """The rows (of the columns of `SFT`) that are nearly one of another side: the most alike first, then by id.

    `threshold` is the estimated Jaccard similarity of their shingles, from which on they are. Each row has one line, with its nearest.
    """
    sketches = Sketches(threshold)
    known = ((SPLITS.index(row["split"]), row["session_id"], sketches.of(shingles(row["messages"]))) for row in rows)
    ordered = sorted(known, key=lambda row: row[:2])
    for number, (_, _, sketch) in enumerate(ordered):
        sketches.add(number, sketch)
    found = []
    for side, session_id, sketch in ordered:
        if side == 0:
            continue
        # Numbers are in the order of side and id: of two as near, the first is named.
        others = (number for number in sketches.like(sketch) if ordered[number][0] < side)
        similarity, first = max(((sketch.jaccard(ordered[number][2]), -number) for number in others), default=(0.0, 0))
        if similarity >= threshold:
            other_side, other_id, _ = ordered[-first]
            found.append(Near(session_id, SPLITS[side], other_id, SPLITS[other_side], round(similarity, 3)))
    return sorted(found, key=lambda each: (-each.similarity, each.session_id))


def shingles(messages: list[Message]) -> list[str]:
    """Every five words in a row, in lower case; a shorter conversation is one shingle."""
    said = (text for message in messages if message["role"] != "system" for text in _texts(message))
    words = " ".join(said).lower().split()
    return sorted({" ".join(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))})


def _texts(message: Message) -> list[str]:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return [message["content"], *(text for call in calls for text in (call["name"], call["arguments"]))]
