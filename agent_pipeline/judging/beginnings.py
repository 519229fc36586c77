"""Hashes by which sessions that begin alike are found."""

from collections.abc import Sequence

import numpy as np
import xxhash

from agent_pipeline.sessions.session import Message, dump_canonical_json, is_trained, list_calls


def is_among(hashes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n,) bool: which of many hashes are among the others, in less memory than `np.isin` takes."""
    known, found = np.unique(others), np.zeros(len(hashes), bool)
    for start in range(0, len(hashes) if len(known) else 0, 1 << 16):
        part = hashes[start : start + (1 << 16)]
        found[start : start + (1 << 16)] = (
            known[np.searchsorted(known, part).clip(max=len(known) - 1)] == part
        )
    return found


def beginnings_of(messages: Sequence[Message]) -> list[int]:
    """Hashes of a conversation up to each of its messages, call ids aside; empty where the agent says nothing.

    A message that is not trained (`weight: 0`) is another than the same one trained: nobody else would train on what it leaves out.
    """
    if not any(message["role"] == "assistant" for message in messages):
        return []
    state, hashes = xxhash.xxh3_64(), []
    for message in messages:
        state.update(
            dump_canonical_json(
                [message["role"], message["content"], list_calls([message]), is_trained(message)]
            ).encode()
        )
        hashes.append(state.intdigest())
    return hashes
