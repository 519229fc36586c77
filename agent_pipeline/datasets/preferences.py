"""Preference pairs: a good and a bad trial of one task, from one and the same prompt.

A pair needs equal system prompt, tools and first user turn; call ids are made comparable first, since every run draws its own. The
prompt is the longest common beginning from which both sides go on with the agent's message. Equal answers of the agent, or one side's
being the beginning of the other's, make no pair (they say that a shorter answer is worse, or better, than itself), nor do equal scores.
A failure of the infrastructure is no bad answer, and an obeyed injection no good one: both stand on neither side.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from hashlib import sha256
from heapq import merge
from itertools import groupby, islice, product
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from agent_pipeline.datasets.sft import to_last_assistant
from agent_pipeline.datasets.splits import TaskSplit
from agent_pipeline.sessions.session import Message, Session, canonical_json, json_bytes, sha256_of
from agent_pipeline.sessions.text import characters

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
TRIALS_IN_MEMORY = 64


Trial = Callable[[], Session]
"""Reads a session: it may lie on disk until it is looked at."""
Opened = tuple[Session, list[Message]]


class Case(NamedTuple):
    """The good and the bad trials of a task."""

    task_key: str
    good: Sequence[Trial]
    bad: Sequence[Trial]


class _Side(NamedTuple):
    """What of a trial is known while its session is not at hand; `said` has 16 bytes of a hash for each of the agent's messages."""

    session_id: str
    score: float | None
    length: int
    said: bytes
    trial: Trial


class _Candidate(NamedTuple):
    chosen: _Side
    rejected: _Side
    margin: float | None

    @property
    def ids(self) -> tuple[str, str]:
        return self.chosen.session_id, self.rejected.session_id


class _Group(NamedTuple):
    """The candidates that two scores make: all good trials of the one with all bad ones of the other, both by id."""

    margin: float | None
    good: list[_Side]
    bad: list[_Side]

    def candidates(self) -> Iterator[_Candidate]:
        return (_Candidate(chosen, rejected, self.margin) for chosen, rejected in product(self.good, self.bad))

    def unused(self, used: set[str]) -> int:
        """How many of them have both trials unused."""
        good, bad = (sum(each.session_id not in used for each in side) for side in (self.good, self.bad))
        return good * bad


def preference_rows(
    good: Iterable[Session],
    bad: Iterable[Session],
    split: TaskSplit,
    counts: Counter[str] | None = None,
    pairing: Pairing = DEFAULT_PAIRING,
) -> Iterator[dict[str, Any]]:
    """`rows_of_cases` of sessions that are in memory; their order does not matter."""
    tasks: dict[str, tuple[list[Trial], list[Trial]]] = defaultdict(lambda: ([], []))
    for side, members in enumerate((good, bad)):
        for session in members:
            tasks[session.task_key][side].append(partial(_itself, session))
    return rows_of_cases((Case(task, *tasks[task]) for task in sorted(tasks)), split, counts, pairing)


def _itself(session: Session) -> Session:
    return session


def rows_of_cases(
    cases: Iterable[Case], split: TaskSplit, counts: Counter[str] | None = None, pairing: Pairing = DEFAULT_PAIRING
) -> Iterator[dict[str, Any]]:
    """Rows of `PREFERENCES`, in the order of the cases and of each in that of the strategy.

    `margin` is the difference of the two scores, null where one of them has none and the verdicts alone say which is better. `counts` gets
    `pairs`; the pairings that made none (`equal_answers`, `one_is_a_beginning_of_the_other`, `different_prompts`,
    `not_better_by_the_margin`); `pairings_over_the_limit`, which were not tried; and the sessions `left_out_as_infrastructure_error` or
    `_attack_succeeded`, and `sessions_without_a_partner`, which are for the unpaired (KTO) set.
    """
    counts = Counter() if counts is None else counts
    for case in cases:
        # Several pairings look at one trial, and a case may have more trials than memory should hold.
        opened = lru_cache(maxsize=TRIALS_IN_MEMORY)(_opened)
        starts: dict[str, tuple[list[_Side], list[_Side]]] = defaultdict(lambda: ([], []))
        for side, trials in enumerate((case.good, case.bad)):
            for trial in trials:
                session, messages = opened(trial)
                if (unfit := unfit_to_compare(session)) is not None:
                    counts[f"left_out_as_{unfit}"] += 1
                    continue
                counts["sessions_without_a_partner"] += 1
                known = _Side(session.session_id, session.score, spoken(session.messages), _said(messages), trial)
                starts[_start(session)][side].append(known)
        groups = [group for sides in starts.values() for group in _groups(*sides, pairing.min_margin, counts)]
        partnered: set[str] = set()
        for pair, parts in _pairs(groups, pairing, opened, counts):
            counts["pairs"] += 1
            partnered |= set(pair.ids)
            yield _row(case.task_key, split, opened(pair.chosen.trial)[0], opened(pair.rejected.trial)[0], pair.margin, parts)
        counts["sessions_without_a_partner"] -= len(partnered)


def _opened(trial: Trial) -> Opened:
    """A session, and its messages as they are compared."""
    session = trial()
    return session, to_last_assistant(comparable(session.messages))


def unfit_to_compare(session: Session) -> str | None:
    """Why a session is neither a good nor a bad answer, whatever its verdict; null where it is one."""
    if session.error is not None:
        return "infrastructure_error"
    return "attack_succeeded" if session.attack_succeeded else None


def _groups(good: list[_Side], bad: list[_Side], min_margin: float, counts: Counter[str]) -> Iterator[_Group]:
    by_score: tuple[dict[float | None, list[_Side]], ...] = (defaultdict(list), defaultdict(list))
    for scored, side in zip(by_score, (good, bad), strict=True):
        for each in sorted(side, key=lambda one: one.session_id):
            scored[each.score].append(each)
    for (best, chosen), (worst, rejected) in product(by_score[0].items(), by_score[1].items()):
        margin = None if best is None or worst is None else best - worst
        if margin is None or (margin > 0 and margin >= min_margin):
            yield _Group(margin, chosen, rejected)
        else:
            counts["not_better_by_the_margin"] += len(chosen) * len(rejected)


def _width(of: _Candidate | _Group) -> float:
    """Verdicts without scores are as far apart as scores can be."""
    return 1.0 if of.margin is None else of.margin


def _ordered(groups: list[_Group], strategy: Strategy) -> Iterator[_Candidate]:
    """The candidates of a case in the order of the strategy. Of all but two strategies they are made when they are asked for: a case may
    have millions, and a few pairs."""
    everyone = (each for group in groups for each in group.candidates())
    if strategy == "nearest_length":
        yield from sorted(everyone, key=lambda each: (abs(each.chosen.length - each.rejected.length), each.ids))
    elif strategy == "all_pairs":
        # Of all pairs as wide, a limit takes some by hash: by id they would all be the first good session's.
        yield from sorted(everyone, key=lambda each: (-_width(each), sha256_of(each.ids)))
    else:
        for _, alike in groupby(sorted(groups, key=lambda group: -_width(group)), key=_width):
            yield from merge(*(group.candidates() for group in alike), key=lambda each: each.ids)


Parts = tuple[list[Message], list[Message], list[Message]]


def _pairs(
    groups: list[_Group], pairing: Pairing, opened: Callable[[Trial], Opened], counts: Counter[str]
) -> Iterator[tuple[_Candidate, Parts]]:
    """The pairs of a case, in the order of the strategy."""
    limit = 1 if pairing.strategy == "best_worst" else pairing.max_per_case
    once = pairing.strategy in ("margin", "nearest_length")
    used: set[str] = set()
    made = 0
    for tried, each in enumerate(_ordered(groups, pairing.strategy)):
        if limit and made == limit:
            barred = used if once else set()
            before = islice(_ordered(groups, pairing.strategy), tried)
            free = sum(group.unused(barred) for group in groups) - sum(not barred & set(other.ids) for other in before)
            counts["pairings_over_the_limit"] += free
            return
        if once and used & set(each.ids):
            continue
        parts = _alike(each.chosen.said, each.rejected.said) or _parted(opened(each.chosen.trial)[1], opened(each.rejected.trial)[1])
        if isinstance(parts, str):
            counts[parts] += 1
            continue
        made += 1
        used |= set(each.ids)
        yield each, parts


def split_pair(chosen: list[Message], rejected: list[Message]) -> Parts | str:
    """`(prompt, chosen rest, rejected rest)` with comparable call ids, or the name of the reason why the two make no pair."""
    one, other = (to_last_assistant(comparable(messages)) for messages in (chosen, rejected))
    return _alike(_said(one), _said(other)) or _parted(one, other)


def _said(messages: list[Message]) -> bytes:
    """What users and tools said may differ between trials whose agents did the same: only the agents' own messages are compared."""
    return b"".join(sha256(json_bytes(message)).digest()[:16] for message in _of_assistant(messages))


def _alike(one: bytes, other: bytes) -> str | None:
    if one == other:
        return "equal_answers"
    return "one_is_a_beginning_of_the_other" if one.startswith(other) or other.startswith(one) else None


def _parted(one: list[Message], other: list[Message]) -> Parts | str:
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
    copied, names = [], dict[str, str]()
    number = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            made = []
            for call in calls:
                number += 1
                names[call["id"]] = f"call_{number}"
                function = call["function"] | {"arguments": _canonical_arguments(call["function"]["arguments"])}
                made.append(call | {"id": names[call["id"]], "function": function})
            message = message | {"tool_calls": made}
        if "tool_call_id" in message:
            message = message | {"tool_call_id": names.get(message["tool_call_id"], message["tool_call_id"])}
        copied.append(message)
    return copied


def _canonical_arguments(text: str) -> str:
    try:
        return canonical_json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _start(session: Session) -> str:
    """Identity of everything before the agent's first message, and of the tools."""
    first = next((index for index, message in enumerate(session.messages) if message["role"] == "assistant"), len(session.messages))
    return sha256(json_bytes([session.messages[:first], session.tools])).hexdigest()


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
