"""Preference pairs: a good and a bad trial of one task, from one and the same prompt.

A pair needs equal system prompt, tools and first user turn; call ids are made comparable first, since every run draws its own. The
prompt is the longest common beginning from which both sides go on with the agent's message. Equal answers of the agent, or one side's
being the beginning of the other's, make no pair (they say that a shorter answer is worse, or better, than itself), nor do equal scores.
A failure of the infrastructure is no bad answer, and an obeyed injection no good one: both stand on neither side.
"""

import copy
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from agent_pipeline.datasets.sft import to_last_assistant
from agent_pipeline.datasets.splits import TaskSplit
from agent_pipeline.traces.curation import characters
from agent_pipeline.traces.session import Message, Session, canonical_json, sha256_of

PREFERENCES = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("case_id", pa.string(), nullable=False),
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("rejected_session_id", pa.string(), nullable=False),
        pa.field("content_sha256", pa.string(), nullable=False),
        pa.field("rejected_content_sha256", pa.string(), nullable=False),
        pa.field("task_key", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("margin", pa.float64()),
        pa.field("prompt", pa.json_(), nullable=False),
        pa.field("chosen", pa.json_(), nullable=False),
        pa.field("rejected", pa.json_(), nullable=False),
        pa.field("tools", pa.json_(), nullable=False),
    ]
)

Strategy = Literal["margin", "best_worst", "all_pairs", "nearest_length"]


class Pairing(NamedTuple):
    """How the good and the bad sessions of a case are put together.

    `margin`: the widest difference of scores first, each session once. `best_worst`: the one pair with the widest difference.
    `all_pairs`: every pair. `nearest_length`: the most alike in length first, each session once, so that length says least about which
    is better. Scores must differ by `min_margin`; a case has at most `max_per_case` pairs (0: no limit).
    """

    strategy: Strategy = "margin"
    min_margin: float = 0.0
    max_per_case: int = 8


DEFAULT_PAIRING = Pairing()


@dataclass
class _Side:
    session: Session

    @cached_property
    def messages(self) -> list[Message]:
        return to_last_assistant(comparable(self.session.messages))

    @cached_property
    def length(self) -> int:
        return spoken(self.session.messages)


class _Candidate(NamedTuple):
    chosen: _Side
    rejected: _Side
    margin: float | None

    @property
    def ids(self) -> tuple[str, str]:
        return self.chosen.session.session_id, self.rejected.session.session_id


def preference_rows(
    good: Iterable[Session],
    bad: Iterable[Session],
    split: TaskSplit,
    counts: Counter[str] | None = None,
    pairing: Pairing = DEFAULT_PAIRING,
) -> Iterator[dict[str, Any]]:
    """Rows of `PREFERENCES`, by case and then in the order of the strategy; the order of the sessions does not matter.

    `margin` is the difference of the two scores, null where one of them has none and the verdicts alone say which is better. `counts` gets
    `pairs`; the pairings that made none (`equal_answers`, `one_is_a_beginning_of_the_other`, `different_prompts`,
    `not_better_by_the_margin`);
    `pairings_over_the_limit`, which were not tried; and the sessions `left_out_as_infrastructure_error` or `_attack_succeeded`, and
    `sessions_without_a_partner`, which are for the unpaired (KTO) set.
    """
    counts = Counter() if counts is None else counts
    cases: dict[str, dict[str, tuple[list[_Side], list[_Side]]]] = defaultdict(lambda: defaultdict(lambda: ([], [])))
    sessions = 0
    for side, members in enumerate((good, bad)):
        for session in members:
            if (unfit := unfit_to_compare(session)) is not None:
                counts[f"left_out_as_{unfit}"] += 1
                continue
            sessions += 1
            cases[session.task_key][_start(session)][side].append(_Side(session))
    partnered: set[str] = set()
    for task_key, starts in sorted(cases.items()):
        candidates = [pair for sides in starts.values() for pair in _candidates(*sides, pairing.min_margin, counts)]
        for chosen, rejected, margin, parts in _pairs(candidates, pairing, counts):
            counts["pairs"] += 1
            partnered |= {chosen.session_id, rejected.session_id}
            yield _row(task_key, split, chosen, rejected, margin, parts)
    counts["sessions_without_a_partner"] += sessions - len(partnered)


def unfit_to_compare(session: Session) -> str | None:
    """Why a session is neither a good nor a bad answer, whatever its verdict; null where it is one."""
    if session.error is not None:
        return "infrastructure_error"
    return "attack_succeeded" if session.attack_succeeded else None


def _candidates(good: list[_Side], bad: list[_Side], min_margin: float, counts: Counter[str]) -> Iterator[_Candidate]:
    for chosen, rejected in product(good, bad):
        scores = chosen.session.score, rejected.session.score
        margin = None if scores[0] is None or scores[1] is None else scores[0] - scores[1]
        if margin is not None and (margin <= 0 or margin < min_margin):
            counts["not_better_by_the_margin"] += 1
            continue
        yield _Candidate(chosen, rejected, margin)


Parts = tuple[list[Message], list[Message], list[Message]]


def _pairs(candidates: list[_Candidate], pairing: Pairing, counts: Counter[str]) -> Iterator[tuple[Session, Session, float | None, Parts]]:
    """The pairs of a case, in the order of the strategy."""
    if pairing.strategy == "nearest_length":
        candidates.sort(key=lambda each: (abs(each.chosen.length - each.rejected.length), each.ids))
    else:  # verdicts without scores are as far apart as scores can be
        # Of all pairs as wide, a limit takes some by hash: by id they would all be the first good session's.
        tie = sha256_of if pairing.strategy == "all_pairs" else tuple
        candidates.sort(key=lambda each: (-1.0 if each.margin is None else -each.margin, tie(each.ids)))
    limit = 1 if pairing.strategy == "best_worst" else pairing.max_per_case
    once = pairing.strategy in ("margin", "nearest_length")
    used: set[str] = set()
    made = 0
    for at, each in enumerate(candidates):
        if limit and made == limit:
            counts["pairings_over_the_limit"] += sum(not (once and used & set(rest.ids)) for rest in candidates[at:])
            return
        if once and used & set(each.ids):
            continue
        parts = _parted(each.chosen.messages, each.rejected.messages)
        if isinstance(parts, str):
            counts[parts] += 1
            continue
        made += 1
        used |= set(each.ids)
        yield each.chosen.session, each.rejected.session, each.margin, parts


def split_pair(chosen: list[Message], rejected: list[Message]) -> Parts | str:
    """`(prompt, chosen rest, rejected rest)` with comparable call ids, or the name of the reason why the two make no pair."""
    return _parted(*(to_last_assistant(comparable(messages)) for messages in (chosen, rejected)))


def _parted(one: list[Message], other: list[Message]) -> Parts | str:
    # What users and tools said may differ between trials whose agents did the same: only the agents' own messages are compared.
    own, others = (_of_assistant(messages) for messages in (one, other))
    if own == others:
        return "equal_answers"
    if own == others[: len(own)] or others == own[: len(others)]:
        return "one_is_a_beginning_of_the_other"
    common = next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    while common and not one[common]["role"] == other[common]["role"] == "assistant":
        common -= 1
    if not any(message["role"] == "user" for message in one[:common]):
        return "different_prompts"
    return one[:common], one[common:], other[common:]


def _of_assistant(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message["role"] == "assistant"]


def spoken(messages: list[Message]) -> int:
    """How many characters the agent said and called with."""
    return characters(_of_assistant(messages))


def length_ratios(rows: Iterable[dict[str, Any]]) -> list[float]:
    """How much longer than the rejected side each chosen one is (1: as long); a bias of the pairs that a model would learn first."""
    return [spoken(row["chosen"]) / max(1, spoken(row["rejected"])) for row in rows]


def comparable(messages: list[Message]) -> list[Message]:
    """A copy in which call ids are numbered in order (`call_1`, …) and arguments are in canonical JSON."""
    copied = copy.deepcopy(messages)
    names: dict[str, str] = {}
    number = 0
    for message in copied:
        for call in message.get("tool_calls", ()):
            number += 1
            names[call["id"]] = made = f"call_{number}"
            call["id"] = made
            call["function"]["arguments"] = _canonical_arguments(call["function"]["arguments"])
        if "tool_call_id" in message:
            message["tool_call_id"] = names.get(message["tool_call_id"], message["tool_call_id"])
    return copied


def _canonical_arguments(text: str) -> str:
    try:
        return canonical_json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _start(session: Session) -> str:
    """Identity of everything before the agent's first message, and of the tools."""
    first = next((index for index, message in enumerate(session.messages) if message["role"] == "assistant"), len(session.messages))
    return sha256_of([session.messages[:first], session.tools])


def _row(task_key: str, split: TaskSplit, chosen: Session, rejected: Session, margin: float | None, parts: Parts) -> dict[str, Any]:
    prompt, chosen_rest, rejected_rest = parts
    return {
        "row_id": f"{chosen.session_id}|{rejected.session_id}",
        "case_id": task_key,
        "session_id": chosen.session_id,
        "rejected_session_id": rejected.session_id,
        "content_sha256": chosen.content_sha256(),
        "rejected_content_sha256": rejected.content_sha256(),
        "task_key": task_key,
        "split": split.of(task_key),
        "margin": margin,
        "prompt": prompt,
        "chosen": chosen_rest,
        "rejected": rejected_rest,
        "tools": chosen.tools,
    }
