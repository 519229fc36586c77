"""Preference pairs: a positive and a negative trial of one task, from the same prompt.

A pair needs an equal system prompt, tools and request: everything before the agent answers the first user message that says something.
Call ids are numbered first, since every run draws its own. The two conversations are cut at the first message that differs, and only where
both continue with the agent's message there: if a user or a tool
answered differently first, the agents were not asked the same, and there is no pair. Equal answers make no pair, nor does an answer that is
the beginning of the other, nor do equal scores. A failure of the infrastructure and an obeyed injection are neither positive nor negative.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from hashlib import sha256
from heapq import merge
from itertools import groupby, islice, product
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from agent_pipeline.datasets.pair_messages import (
    Parts,
    answer_length,
    answers,
    comparable,
    no_difference,
    parted,
    to_last_answer,
)
from agent_pipeline.datasets.splits import TaskSplit
from agent_pipeline.sessions.greetings import find_request_end
from agent_pipeline.sessions.session import Message, Session, encode_json, hash_json
from agent_pipeline.sessions.tables import define_optional, define_required

PREFERENCES = pa.schema(
    [
        *define_required(
            pa.string(),
            row_id="the pair: both session ids",
            case_id="the task that both sessions are trials of",
            session_id="the good session",
            rejected_session_id="the bad session",
            content_sha256="sha256 (hex) of the good session's messages and tools",
            rejected_content_sha256="sha256 (hex) of the bad session's messages and tools",
            task_key="the sessions' task",
            split="the task's permanent split: train, select or test",
        ),
        *define_optional(
            pa.float64(),
            margin="the good session's score less the bad one's (0 to 1); null: one has no score",
        ),
        *define_required(
            pa.json_(),
            prompt="the chat messages that both sessions begin with",
            chosen="the good session's messages from the first that differs",
            rejected="the bad session's messages from the first that differs",
            tools="the tools that the agent had: OpenAI function schemas",
        ),
        *define_optional(
            pa.string(),
            verdict_by="the judge that found the good session good; unverified: nobody checked it",
            rejected_verdict_by="the judge that found the bad session bad; unverified: nobody checked it",
        ),
    ]
)

Strategy = Literal["margin", "best_worst", "all_pairs", "nearest_length"]


class Pairing(NamedTuple):
    """How the positive and the negative sessions of a case are paired.

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
"""Reads a session, which may lie on disk until then."""
Opened = tuple[Session, list[Message]]


class Case(NamedTuple):
    """The positive (`good`) and the negative (`bad`) trials of a task."""

    task_key: str
    good: list[Trial]
    bad: list[Trial]


class _Member(NamedTuple):
    """What is known of a trial while its session is not in memory; `answers` has 16 bytes of a hash for each of the agent's messages."""

    session_id: str
    score: float | None
    length: int
    answers: bytes
    trial: Trial


class _Candidate(NamedTuple):
    chosen: _Member
    rejected: _Member
    margin: float | None

    @property
    def ids(self) -> tuple[str, str]:
        return self.chosen.session_id, self.rejected.session_id


class _Group(NamedTuple):
    """The candidates of two scores: all positive trials with the one and all negative ones with the other, both by id."""

    margin: float | None
    good: list[_Member]
    bad: list[_Member]

    def candidates(self) -> Iterator[_Candidate]:
        return (
            _Candidate(chosen, rejected, self.margin)
            for chosen, rejected in product(self.good, self.bad)
        )

    def unused(self, used: set[str]) -> int:
        """How many of them have both trials unused."""
        good, bad = (
            sum(each.session_id not in used for each in members)
            for members in (self.good, self.bad)
        )
        return good * bad


def preference_rows(
    good: Iterable[Session],
    bad: Iterable[Session],
    split: TaskSplit,
    counts: Counter[str] | None = None,
    pairing: Pairing = DEFAULT_PAIRING,
) -> Iterator[dict[str, Any]]:
    """`rows_of_cases` of sessions that are in memory; their order does not matter."""
    trials: dict[str, tuple[list[Trial], list[Trial]]] = defaultdict(lambda: ([], []))
    for at, sessions in enumerate((good, bad)):
        for session in sessions:
            trials[session.task_key][at].append(partial(_unchanged, session))
    return rows_of_cases(
        (Case(task, *trials[task]) for task in sorted(trials)), split, counts, pairing
    )


def _unchanged(session: Session) -> Session:
    return session


def rows_of_cases(
    cases: Iterable[Case],
    split: TaskSplit,
    counts: Counter[str] | None = None,
    pairing: Pairing = DEFAULT_PAIRING,
) -> Iterator[dict[str, Any]]:
    """Rows of `PREFERENCES`, in the order of the cases, and within a case in that of the strategy.

    `margin` is the difference of the two scores, `None` where one of them has none and the verdicts alone say which is better.

    `counts` gets `pairs`; the pairings that made none, by reason (`equal_answers`, `one_is_a_beginning_of_the_other`,
    `a_user_or_tool_differs_first`, `no_common_request`, `a_turn_is_not_to_be_trained`, `not_better_by_the_margin`);
    `pairings_over_the_limit`, which were not tried; `reasoning_left_out`, the recorded thoughts of pairs that their messages do not have;
    the sessions `left_out_as_infrastructure_error` or `_attack_succeeded`; and `sessions_without_a_partner`, which are for the unpaired
    (KTO) set, of these `no_negative_of_the_task`, `no_positive_of_the_task` and `no_partner_with_the_same_prompt`.
    """
    counts = Counter() if counts is None else counts
    for case in cases:
        # Several pairings look at one trial, and a case may have more trials than memory should hold.
        opened = lru_cache(maxsize=TRIALS_IN_MEMORY)(_opened)
        starts: dict[str, tuple[list[_Member], list[_Member]]] = defaultdict(lambda: ([], []))
        for at, trials in enumerate((case.good, case.bad)):
            for trial in trials:
                session, messages = opened(trial)
                if (unfit := unfit_to_compare(session)) is not None:
                    counts[f"left_out_as_{unfit}"] += 1
                    continue
                counts["sessions_without_a_partner"] += 1
                member = _Member(
                    session.session_id,
                    session.score,
                    answer_length(session.messages),
                    answers(messages),
                    trial,
                )
                starts[_start(session)][at].append(member)
        missing = (
            None
            if case.good and case.bad
            else "no_positive_of_the_task"
            if case.bad
            else "no_negative_of_the_task"
        )
        for members in starts.values():
            if not all(members):
                counts[missing or "no_partner_with_the_same_prompt"] += len(members[0]) + len(
                    members[1]
                )
        groups = [
            group
            for members in starts.values()
            for group in _groups(*members, pairing.min_margin, counts)
        ]
        partnered: set[str] = set()
        for pair, parts in _pairs(groups, pairing, opened, counts):
            counts["pairs"] += 1
            partnered |= set(pair.ids)
            chosen, rejected = (opened(each.trial)[0] for each in (pair.chosen, pair.rejected))
            if left_out := len(chosen.reasoning) + len(rejected.reasoning):
                counts["reasoning_left_out"] += left_out
            yield _row(case.task_key, split, chosen, rejected, pair.margin, parts)
        counts["sessions_without_a_partner"] -= len(partnered)


def _opened(trial: Trial) -> Opened:
    """A session, and its messages as they are compared."""
    session = trial()
    return session, to_last_answer(comparable(session.messages))


def unfit_to_compare(session: Session) -> str | None:
    """Why a session is neither a positive nor a negative example, whatever its verdict; `None` where it may be one."""
    if session.error is not None:
        return "infrastructure_error"
    return "attack_succeeded" if session.attack_succeeded else None


def _groups(
    good: list[_Member], bad: list[_Member], min_margin: float, counts: Counter[str]
) -> Iterator[_Group]:
    by_score: tuple[dict[float | None, list[_Member]], ...] = (defaultdict(list), defaultdict(list))
    for scored, members in zip(by_score, (good, bad), strict=True):
        for member in sorted(members, key=lambda member: member.session_id):
            scored[member.score].append(member)
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
    """The candidates of a case in the order of the strategy. They are made lazily where that is possible: a case may have millions."""
    everyone = (each for group in groups for each in group.candidates())
    if strategy == "nearest_length":
        yield from sorted(
            everyone, key=lambda each: (abs(each.chosen.length - each.rejected.length), each.ids)
        )
    elif strategy == "all_pairs":
        # Among pairs of one margin the hash decides: by id, a limit would leave only pairs of the first positive session.
        yield from sorted(everyone, key=lambda each: (-_width(each), hash_json(each.ids)))
    else:
        for _, alike in groupby(sorted(groups, key=lambda group: -_width(group)), key=_width):
            yield from merge(*(group.candidates() for group in alike), key=lambda each: each.ids)


def _pairs(
    groups: list[_Group], pairing: Pairing, opened: Callable[[Trial], Opened], counts: Counter[str]
) -> Iterator[tuple[_Candidate, Parts]]:
    """The pairs of a case, in the order of the strategy."""
    limit = 1 if pairing.strategy == "best_worst" else pairing.max_per_case
    once = pairing.strategy in ("margin", "nearest_length")
    used: set[str] = set()
    pairs = 0
    for tried, each in enumerate(_ordered(groups, pairing.strategy)):
        if limit and pairs == limit:
            barred = used if once else set()
            before = islice(_ordered(groups, pairing.strategy), tried)
            free = sum(group.unused(barred) for group in groups) - sum(
                not barred & set(other.ids) for other in before
            )
            counts["pairings_over_the_limit"] += free
            return
        if once and used & set(each.ids):
            continue
        parts = no_difference(each.chosen.answers, each.rejected.answers) or parted(
            opened(each.chosen.trial)[1], opened(each.rejected.trial)[1]
        )
        if isinstance(parts, str):
            counts[parts] += 1
            continue
        pairs += 1
        used |= set(each.ids)
        yield each, parts


_NO_PAIR = {
    "no_negative_of_the_task": "sessions have no negative trial of their task",
    "no_positive_of_the_task": "sessions have no positive trial of their task",
    "no_partner_with_the_same_prompt": "sessions have no partner with the same system prompt, tools and first request",
    "left_out_as_infrastructure_error": "sessions ended in a failure of the infrastructure",
    "left_out_as_attack_succeeded": "sessions obeyed an injection",
    "not_better_by_the_margin": "pairings have scores that do not differ by the margin",
    "equal_answers": "pairings have equal answers",
    "one_is_a_beginning_of_the_other": "pairings have an answer that is the beginning of the other",
    "a_user_or_tool_differs_first": "pairings differ first in what a user or a tool answered",
    "no_common_request": "pairings have no request in common",
    "a_turn_is_not_to_be_trained": "pairings have an answer with a turn of weight 0",
}


def why_no_pairs(counts: Mapping[str, int]) -> str:
    """A sentence for the case that there are no pairs, from the counts of `rows_of_cases`, the most frequent reason first."""
    reasons = sorted(
        ((counts[name], text) for name, text in _NO_PAIR.items() if counts.get(name)), reverse=True
    )
    return f"There are no pairs: {'; '.join(f'{count:,} {text}' for count, text in reasons) or 'there are no judged sessions'}."


def length_ratio(row: Mapping[str, Any]) -> float:
    """The length of a pair's chosen answer by that of the rejected one; where it is far from 1, a model learns the length first."""
    return answer_length(row["chosen"]) / max(1, answer_length(row["rejected"]))


def _start(session: Session) -> str:
    """Identity of everything before the agent's answer to the request, and of the tools.

    If the users greet first, the request comes after the agent's greeting. Without it, two sessions that both begin with "Hi" would pair.
    """
    messages = comparable(session.messages)
    begin = find_request_end(messages) or 0
    first = next(
        (index for index in range(begin, len(messages)) if messages[index]["role"] == "assistant"),
        len(messages),
    )
    return sha256(encode_json([messages[:first], session.tools])).hexdigest()


def _row(
    task_key: str,
    split: TaskSplit,
    chosen: Session,
    rejected: Session,
    margin: float | None,
    parts: Parts,
) -> dict[str, Any]:
    prompt, chosen_rest, rejected_rest = parts
    return {
        "row_id": f"{chosen.session_id}|{rejected.session_id}",
        "case_id": task_key,
        "session_id": chosen.session_id,
        "rejected_session_id": rejected.session_id,
        "content_sha256": chosen.hash_content(),
        "rejected_content_sha256": rejected.hash_content(),
        "task_key": task_key,
        "split": split.of(task_key),
        "margin": margin,
        "prompt": prompt,
        "chosen": chosen_rest,
        "rejected": rejected_rest,
        "tools": chosen.tools,
        "verdict_by": None,
        "rejected_verdict_by": None,
    }
