"""Detection of sessions that repeat other sessions: duplicates, and beginnings of longer sessions.

Sessions are compared by hashes, which are stored as columns (`decisions.Decisions`). Everywhere in
the package, two sessions have the same conversation if their `hash_without_call_ids` are equal.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import xxhash

from agent_pipeline.judging.decisions import (
    PERSON,
    USE_CODES,
    Decisions,
    DropReason,
    SessionUse,
)
from agent_pipeline.sessions.session import (
    Message,
    Tool,
    dump_canonical_json,
    encode_json,
    encode_tools,
    hash_content,
    is_trained,
    list_calls,
)

_HASHES_AT_ONCE = 1 << 16


def hash_beginnings(messages: Sequence[Message], with_weights: bool = True) -> list[int]:
    """Return one hash per message, of the conversation up to this message without call ids.

    The list is empty if the agent has no message.

    Args:
        messages: The conversation.
        with_weights: Whether a message that is not trained (`weight: 0`) has a different hash than
            the same message with training. Two such sessions train different content.
    """
    if not any(message["role"] == "assistant" for message in messages):
        return []
    state = xxhash.xxh3_64()
    hashes: list[int] = []
    for message, spoken in zip(messages, _list_spoken(messages), strict=True):
        facts = [*spoken, is_trained(message)] if with_weights else spoken
        state.update(dump_canonical_json(facts).encode())
        hashes.append(state.intdigest())
    return hashes


def hash_without_call_ids(messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """Return the sha256 (hex) of a conversation and its tools, without the ids of the calls.

    Two sessions have the same conversation if these hashes are equal. Every run has its own ids, so
    two runs in which the agent did the same differ only in the ids. Which call a result belongs to
    still counts.
    """
    facts = [
        [*spoken, is_trained(message)]
        for message, spoken in zip(messages, _list_spoken(messages), strict=True)
    ]
    return hash_content(encode_json(facts), encode_tools(tools))


def _list_spoken(messages: Sequence[Message]) -> Iterator[list[object]]:
    """Yield the role, the text and the calls of every message, and the number of the answered call.

    Calls are numbered in their order in the conversation. If an id is used again, a result answers
    the last call that has this id.
    """
    call_numbers: dict[str, int] = {}
    call_count = 0
    for message in messages:
        for call in message.get("tool_calls") or ():
            call_numbers[call.get("id", "")] = call_count
            call_count += 1
        answered = call_numbers.get(message["tool_call_id"]) if "tool_call_id" in message else None
        yield [message["role"], message["content"], list_calls([message]), answered]


def is_among(hashes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return which hashes also occur in a second list of hashes, as (hashes,) bool.

    The comparison needs less memory than `np.isin`, because it works on parts of the hashes.
    """
    known = np.unique(others)
    is_known = np.zeros(len(hashes), bool)
    if not len(known):
        return is_known
    for start in range(0, len(hashes), _HASHES_AT_ONCE):
        part = hashes[start : start + _HASHES_AT_ONCE]
        nearest = np.searchsorted(known, part).clip(max=len(known) - 1)
        is_known[start : start + _HASHES_AT_ONCE] = known[nearest] == part
    return is_known


def drop_duplicates(decisions: Decisions) -> None:
    """Drop all except one of the sessions that have the same content, apart from the ids of calls.

    The sessions are ranked, and the first one is kept. A session that a person judged comes first,
    then one that a judge verified, then one with a good verdict, then the earliest, then the first
    by id.
    """
    usable = np.flatnonzero(decisions.has_use(SessionUse.POSITIVE, SessionUse.NEGATIVE))
    keys_by_importance = [
        PERSON - decisions.authority,
        decisions.has_use(SessionUse.NEGATIVE),
        decisions.times,
        decisions.rank,
    ]
    # `lexsort` expects the most important key last.
    order = np.lexsort([key[usable] for key in reversed(keys_by_importance)])
    usable = usable[order]
    _, first_positions, content_positions = np.unique(
        decisions.contents[usable], return_index=True, return_inverse=True
    )
    originals = usable[first_positions[content_positions]]
    is_copy = originals != usable
    decisions.drop(usable[is_copy], DropReason.DUPLICATE)
    decisions.duplicate_of[usable[is_copy]] = originals[is_copy]


def drop_bad_beginnings(decisions: Decisions, authority: int) -> None:
    """Drop good sessions that begin with a complete session that was judged bad.

    If a session begins with several judged sessions, the longest of them counts. If several judged
    sessions are equal, the last one by id counts.

    Args:
        decisions: The decisions, which are changed.
        authority: The authority of the judge of the shorter session. Only longer sessions whose
            verdict has less authority are dropped.
    """
    judged = np.flatnonzero(
        (decisions.authority == authority)
        & decisions.has_use(SessionUse.POSITIVE, SessionUse.NEGATIVE)
        & (decisions.count_beginnings() > 0)
    )
    judged = judged[np.argsort(-decisions.rank[judged])]
    judged_hashes, first_positions = np.unique(decisions.hash_whole(judged), return_index=True)
    owners = decisions.find_owners()
    may_be_dropped = decisions.has_use(SessionUse.POSITIVE) & (decisions.authority < authority)
    matches = np.flatnonzero(may_be_dropped[owners] & is_among(decisions.hashes, judged_hashes))
    # The last match of each session is its longest beginning.
    is_last_of_owner = np.diff(owners[matches], append=len(decisions)) > 0
    longest_matches = matches[is_last_of_owner]
    longer = owners[longest_matches]
    hash_positions = np.searchsorted(judged_hashes, decisions.hashes[longest_matches])
    shorter = judged[first_positions[hash_positions]]
    is_bad = decisions.has_use(SessionUse.NEGATIVE)[shorter]
    for longer_session, shorter_session in zip(longer[is_bad], shorter[is_bad], strict=True):
        shorter_id = decisions.ids[int(shorter_session)].as_py()
        decisions.drop(longer_session, DropReason.BEGINS_BADLY, shorter_id)


def drop_continued(decisions: Decisions) -> None:
    """Drop sessions that are the beginning of a longer session, so that no turn is trained twice.

    This applies if the longer session is good, or if both sessions are bad.
    """
    _drop_continued_by(decisions, SessionUse.POSITIVE, [SessionUse.POSITIVE, SessionUse.NEGATIVE])
    _drop_continued_by(decisions, SessionUse.NEGATIVE, [SessionUse.NEGATIVE])


def _drop_continued_by(
    decisions: Decisions, longer_use: SessionUse, shorter_uses: Sequence[SessionUse]
) -> None:
    """Drop sessions with some uses if a longer session with another use begins with them.

    A dropped session names the longest session that begins with it. If several sessions are equally
    long, it names the first one by id.
    """
    counts = decisions.count_beginnings()
    owners = decisions.find_owners()
    shorter = np.flatnonzero(decisions.has_use(*shorter_uses) & (counts > 0))
    shorter_hashes = decisions.hash_whole(shorter)
    matches = np.flatnonzero(
        _is_followed(decisions)
        & decisions.has_use(longer_use)[owners]
        & is_among(decisions.hashes, shorter_hashes)
    )
    is_matched = is_among(shorter_hashes, decisions.hashes[matches])
    shorter_by_hash: dict[int, list[int]] = {}
    for session, whole_hash in zip(shorter[is_matched], shorter_hashes[is_matched], strict=True):
        shorter_by_hash.setdefault(int(whole_hash), []).append(int(session))
    longer = owners[matches]
    longest_first = np.lexsort((matches, decisions.rank[longer], -counts[longer]))
    for match in matches[longest_first].tolist():
        longer_session = owners[match]
        if decisions.reasons[longer_session] != USE_CODES[longer_use]:
            continue  # a session that continues this session has already dropped it
        shorter_sessions = shorter_by_hash.pop(int(decisions.hashes[match]), None)
        if shorter_sessions:
            decisions.drop(shorter_sessions, DropReason.CONTINUED)
            decisions.continued_by[shorter_sessions] = longer_session


def _is_followed(decisions: Decisions) -> np.ndarray:
    """Return which beginnings are shorter than their whole session, as (beginnings,) bool."""
    is_followed = np.ones(len(decisions.hashes), bool)
    has_beginnings = decisions.count_beginnings() > 0
    last_beginnings = decisions.hash_offsets[1:][has_beginnings] - 1
    is_followed[last_beginnings] = False
    return is_followed
