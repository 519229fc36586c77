"""Whether the ids of sessions say that several of them are trials of one task, and the `task_pattern` that would read that.

A proposal needs evidence: the ids fall into groups, and the requests within a group are more alike than those of different groups.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from statistics import mean
from typing import NamedTuple

_WORDS = (
    *(
        "trial",
        "rollout",
        "attempt",
        "repeat",
        "repetition",
        "replica",
        "epoch",
        "run",
        "rep",
        "seed",
        "sample",
        "retry",
        "try",
        "iteration",
    ),
    *("iter", "copy", "pass", "turn"),
)
_LETTERS = ("k", "t", "r", "s", "n")
_SIGN = r"[-_.:/~#]"
_SIGNS = "-_.:/~#"
_TIMES_IF_NAMED, _TIMES = 1.15, 1.4
"""How many times as alike as others the requests of a group must be, with a word such as "trial" in the ids, and without one."""
_SUFFIXES = (rf"^(.+){_SIGN}\d+$", rf"^\d{{1,3}}{_SIGN}(.+)$", rf"^(.+){_SIGN}[0-9a-f]{{6,}}$")
_FEWEST_SESSIONS = 4
_LEAST_SHARE = 0.6
"""Share of the ids that must fit the pattern and have a group."""
_LEAST_ALIKE = 0.2
_MOST_PAIRS = 1000
_EQUAL = 0.9
"""Requests within groups that are as alike as this are equal, however alike all requests are."""


class PatternProposal(NamedTuple):
    """A `task_pattern`, and by session id the task that it would name."""

    pattern: str
    tasks: dict[str, str]

    @property
    def trials(self) -> int:
        """How many sessions would be trials of a task that has another trial."""
        sizes = _groups(self.tasks)
        return sum(len(ids) for ids in sizes.values() if len(ids) > 1)

    def lines(self, partition: str) -> str:
        """Return what to paste into `pipeline.toml`."""
        return f"[agents.\"{partition}\"]\ntask_pattern = '{self.pattern}'"


def propose_pattern(requests: Mapping[str, str]) -> PatternProposal | None:
    """Propose a `task_pattern` for sessions that the source puts to no task.

    Args:
        requests: The request of each session, by session id.

    Returns:
        The first pattern with evidence; `None` if the ids show no trials. The order of the sessions does not matter.
    """
    if len(requests) < _FEWEST_SESSIONS:
        return None
    words = {
        session_id: frozenset(re.findall(r"\w+", text.lower()))
        for session_id, text in requests.items()
    }
    ids = sorted(requests)
    for pattern, times in _candidates():
        tasks = _tasks(pattern, ids)
        groups = [ids for ids in _groups(tasks).values() if len(ids) > 1]
        grouped = sum(map(len, groups))
        if len(groups) < 2 or grouped < _LEAST_SHARE * len(requests):
            continue
        within = _alike(words, (pair for pairs in _in_turn(groups) for pair in pairs))
        across = _alike(words, ((one[0], other[-1]) for one, other in combinations(groups, 2)))
        if within >= _LEAST_ALIKE and (within >= times * across or within >= _EQUAL > across):
            return PatternProposal(_simplest(pattern, tasks), tasks)
    return None


def _candidates() -> Iterator[tuple[str, float]]:
    for mark in (*_WORDS, *_LETTERS):
        yield (
            rf"(?i)^(.*?){_SIGN}?(?<![a-z]){mark}[-_=:.]?\d+(?![a-z0-9])(.*)$",
            _TIMES_IF_NAMED if mark in _WORDS else _TIMES,
        )
    for suffix in _SUFFIXES:
        yield suffix, _TIMES


def _simplest(pattern: str, tasks: Mapping[str, str]) -> str:
    """A pattern that is easier to read, if it names the same tasks."""
    mark = re.search(r"\(\?<!\[a-z\]\)(\w+)", pattern)
    starts = [rf"{sign}{mark[1]}" for sign in _SIGNS] if mark else list(_SIGNS)
    simple = (rf"^(.+){start}{sign}\d+$" for start in starts for sign in ("", *"-_=:"))
    return next((each for each in simple if _tasks(each, list(tasks)) == tasks), pattern)


def _tasks(pattern: str, ids: Iterable[str]) -> dict[str, str]:
    """The tasks that a pattern names, by session id; a setting `task_pattern` names the same ones."""
    found = ((session_id, re.search(pattern, session_id)) for session_id in ids)
    tasks = {
        session_id: "-".join(group for group in match.groups() if group)
        for session_id, match in found
        if match
    }
    return {session_id: task for session_id, task in tasks.items() if task}


def _groups(tasks: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for session_id, task in tasks.items():
        groups[task].append(session_id)
    return groups


def _in_turn(groups: Sequence[Sequence[str]]) -> Iterator[Iterable[tuple[str, str]]]:
    """Some pairs of each group, so that no large group speaks for all."""
    most = max(1, _MOST_PAIRS // len(groups))
    for ids in groups:
        yield islice(combinations(ids, 2), most)


def _alike(words: Mapping[str, frozenset[str]], pairs: Iterable[tuple[str, str]]) -> float:
    """The mean share of words that two requests have in common."""
    return mean(
        [_share(words[one], words[other]) for one, other in islice(pairs, _MOST_PAIRS)] or [0.0]
    )


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 0.0
