"""Proposals for the setting `task_pattern`, derived from session ids.

Session ids may show that several sessions are trials of one task. A proposal needs evidence: the
ids form groups, and the requests within a group are more similar than the requests of different
groups. Applying a pattern belongs to `reading`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from statistics import mean

_TRIAL_WORDS = (
    *("trial", "rollout", "attempt", "repeat", "repetition", "replica", "epoch", "run", "rep"),
    *("seed", "sample", "retry", "try", "iteration", "iter", "copy", "pass", "turn"),
)
_TRIAL_LETTERS = ("k", "t", "r", "s", "n")
_SEPARATORS = "-_.:/~#"
_SEPARATOR = r"[-_.:/~#]"
_TRIAL_SUFFIXES = (
    rf"^(.+){_SEPARATOR}\d+$",
    rf"^\d{{1,3}}{_SEPARATOR}(.+)$",
    rf"^(.+){_SEPARATOR}[0-9a-f]{{6,}}$",
)

MIN_RATIO_WITH_WORD = 1.15
"""Minimum ratio of the request similarity within a task to the similarity across tasks, if the
session ids contain a word for "trial".
"""
MIN_RATIO = 1.4
"""Minimum ratio of the request similarity within a task to the similarity across tasks, if the
session ids contain no word for "trial".
"""
MIN_SESSIONS = 4
MIN_GROUPED_SHARE = 0.6
"""Minimum share of the session ids that must fit the pattern and share their task with another
session.
"""
MIN_SIMILARITY = 0.2
EQUAL_SIMILARITY = 0.9
"""Similarity of requests within a task above which the requests count as equal, even if all
requests are similar.
"""
_MAX_PAIRS = 1000


@dataclass(frozen=True)
class PatternProposal:
    """A proposed value of the setting `task_pattern`.

    Attributes:
        pattern: The regular expression.
        tasks: The task of each session according to the pattern, by session id.
    """

    pattern: str
    tasks: dict[str, str]

    @property
    def trials(self) -> int:
        """Number of sessions whose task would have more than one trial."""
        return sum(len(ids) for ids in _list_groups(self.tasks))

    def lines(self, partition: str) -> str:
        """Return the lines to add to `pipeline.toml`."""
        return f"[agents.\"{partition}\"]\ntask_pattern = '{self.pattern}'"


@dataclass(frozen=True)
class _Candidate:
    """A pattern to try, and the minimum ratio of similarity within groups to that across groups."""

    pattern: str
    min_ratio: float


def propose_pattern(requests: Mapping[str, str]) -> PatternProposal | None:
    """Propose a `task_pattern` for sessions whose source does not name a task.

    Args:
        requests: The request of each session, by session id. The order does not matter.

    Returns:
        The first pattern with evidence, or None if the ids do not show trials.
    """
    if len(requests) < MIN_SESSIONS:
        return None
    words = {
        session_id: frozenset(re.findall(r"\w+", text.lower()))
        for session_id, text in requests.items()
    }
    ids = sorted(requests)
    for candidate in _list_candidates():
        tasks = _name_tasks(candidate.pattern, ids)
        groups = _list_groups(tasks)
        grouped = sum(len(group) for group in groups)
        if len(groups) < 2 or grouped < MIN_GROUPED_SHARE * len(requests):
            continue
        within = _measure_similarity(words, _pair_within(groups))
        across = _measure_similarity(words, _pair_across(groups))
        is_clear = within >= candidate.min_ratio * across
        is_equal = within >= EQUAL_SIMILARITY > across
        if within >= MIN_SIMILARITY and (is_clear or is_equal):
            return PatternProposal(_simplify(candidate.pattern, tasks), tasks)
    return None


def _list_candidates() -> Iterator[_Candidate]:
    """Yield the patterns to try. The patterns that contain a word for "trial" come first."""
    for word in (*_TRIAL_WORDS, *_TRIAL_LETTERS):
        pattern = rf"(?i)^(.*?){_SEPARATOR}?(?<![a-z]){word}[-_=:.]?\d+(?![a-z0-9])(.*)$"
        yield _Candidate(pattern, MIN_RATIO_WITH_WORD if word in _TRIAL_WORDS else MIN_RATIO)
    for suffix in _TRIAL_SUFFIXES:
        yield _Candidate(suffix, MIN_RATIO)


def _simplify(pattern: str, tasks: Mapping[str, str]) -> str:
    """Return a simpler pattern if it finds the same tasks. Otherwise, return the given pattern."""
    word = re.search(r"\(\?<!\[a-z\]\)(\w+)", pattern)
    starts = [rf"{separator}{word[1]}" for separator in _SEPARATORS] if word else _SEPARATORS
    for start in starts:
        for sign in ("", *"-_=:"):
            simple_pattern = rf"^(.+){start}{sign}\d+$"
            if _name_tasks(simple_pattern, tasks) == tasks:
                return simple_pattern
    return pattern


def _name_tasks(pattern: str, ids: Iterable[str]) -> dict[str, str]:
    """Return the task that a pattern finds for each session id, as the setting would find it."""
    tasks = {}
    for session_id in ids:
        match = re.search(pattern, session_id)
        if match is None:
            continue
        task = "-".join(group for group in match.groups() if group)
        if task:
            tasks[session_id] = task
    return tasks


def _list_groups(tasks: Mapping[str, str]) -> list[list[str]]:
    """Return the session ids of each task that has more than one session."""
    ids_by_task: dict[str, list[str]] = defaultdict(list)
    for session_id, task in tasks.items():
        ids_by_task[task].append(session_id)
    return [ids for ids in ids_by_task.values() if len(ids) > 1]


def _pair_within(groups: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield pairs of sessions that are in the same group.

    Each group gives at most the same number of pairs, so that a large group does not dominate.
    """
    max_pairs = max(1, _MAX_PAIRS // len(groups))
    for ids in groups:
        yield from islice(combinations(ids, 2), max_pairs)


def _pair_across(groups: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield one pair of sessions from each pair of different groups."""
    for left_ids, right_ids in combinations(groups, 2):
        yield left_ids[0], right_ids[-1]


def _measure_similarity(
    words: Mapping[str, frozenset[str]], pairs: Iterable[tuple[str, str]]
) -> float:
    """Return the mean share of words that pairs of requests have in common.

    Args:
        words: The words of each request, by session id.
        pairs: Pairs of session ids. Only the first thousand pairs are compared.
    """
    shares = []
    for left_id, right_id in islice(pairs, _MAX_PAIRS):
        left, right = words[left_id], words[right_id]
        all_words = left | right
        shares.append(len(left & right) / len(all_words) if all_words else 0.0)
    return mean(shares) if shares else 0.0
