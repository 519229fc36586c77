"""Near-duplicates across the sides of the split: conversations that are nearly the same under two tasks' names.

MinHash (rensa) of the words that users and agents said, called and were answered, in shingles of five; the system prompt and the
tools, which all sessions of an agent share, would make everything alike.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from agent_pipeline.datasets.splits import SPLITS
from agent_pipeline.traces.session import Message

SHINGLE = 5
PERMUTATIONS = 128
BANDS = 32
"""Of 4 hashes each: of two texts with a similarity of 0.8 fewer than one in ten million pairs is missed, of 0.5 one in eight."""


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
    from rensa import RMinHash, RMinHashLSH

    by_side: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for row in rows:
        minhash = RMinHash(PERMUTATIONS, 0)
        minhash.update(shingles(row["messages"]))
        by_side[row["split"]].append((row["session_id"], minhash))
    index, indexed = RMinHashLSH(threshold, PERMUTATIONS, BANDS), list[tuple[str, str, Any]]()
    found = []
    for split in SPLITS:
        side = sorted(by_side[split], key=lambda pair: pair[0])
        for session_id, minhash in side:
            # Keys are in the order of side and id: of two as near, the first is named.
            near = max(((minhash.jaccard(indexed[at][2]), -at) for at in index.query(minhash)), default=(0.0, 0))
            if near[0] >= threshold:
                other_id, other_split, _ = indexed[-near[1]]
                found.append(Near(session_id, split, other_id, other_split, round(near[0], 3)))
        index.insert_pairs([(len(indexed) + at, minhash) for at, (_, minhash) in enumerate(side)])
        indexed += [(session_id, split, minhash) for session_id, minhash in side]
    return sorted(found, key=lambda each: (-each.similarity, each.session_id))


def shingles(messages: list[Message]) -> list[str]:
    """Every five words in a row, in lower case; a shorter conversation is one shingle."""
    said = (text for message in messages if message["role"] != "system" for text in _texts(message))
    words = " ".join(said).lower().split()
    return sorted({" ".join(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))})


def _texts(message: Message) -> list[str]:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return [message["content"], *(text for call in calls for text in (call["name"], call["arguments"]))]
