"""The pairs of tasks on which the sequential test compares the champion with another model.

A pair is a task that the champion did in one week, and one or more tasks that the other model did:
the same task if possible, otherwise other tasks, from the same week if possible. Every task of a
week is used once. Which sessions form a pair does not depend on verdicts. The pairs are stored, so
that sessions that are judged late do not change earlier pairs.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date

import msgspec

from agent_pipeline.promotion.production_sessions import ServedSession, Server

MAX_TASKS_PER_PAIR = 10
"""Maximum number of the other model's tasks in one pair. More tasks make a pair hardly more exact.
"""
EXPECTED_PAIRS = 200
"""Number of pairs for which the other model's tasks should suffice, if no more tasks arrive."""


class PairedTask(msgspec.Struct, frozen=True):
    """A task in a pair.

    Attributes:
        sessions: The ids of its sessions when the pair was formed. `forget` replaces ids under this
            name.
    """

    sessions: list[str]


class Pair(msgspec.Struct, frozen=True):
    """A task of the champion, and tasks of the other model.

    Attributes:
        champion: The task of the champion.
        rival: The tasks of the other model.
    """

    champion: PairedTask
    rival: list[PairedTask]

    @property
    def sessions(self) -> list[str]:
        """Return the ids of all sessions of the pair."""
        return [name for task in (self.champion, *self.rival) for name in task.sessions]


class PairList(msgspec.Struct, frozen=True):
    """The pairs of a champion and another model, in the order in which they were formed.

    Attributes:
        champion: The identity of the champion.
        rival: The identity of the other model, or `agent`.
        pairs: The pairs.
    """

    champion: str
    rival: str
    pairs: list[Pair]


class WeeklyTask(msgspec.Struct, frozen=True):
    """The judged sessions of one task in one week, which count as one session.

    Attributes:
        task_key: The task.
        week: The Monday of the week.
        sessions: The ids of the sessions.
        share: The share of good sessions.
    """

    task_key: str
    week: date
    sessions: list[str]
    share: float


def make_weekly_tasks(sessions: Iterable[ServedSession], server: Server) -> list[WeeklyTask]:
    """Return the judged tasks of one model per week, in the order of their first sessions."""
    grouped: defaultdict[tuple[str, date], list[ServedSession]] = defaultdict(list)
    for session in sorted(sessions, key=lambda session: (session.created_at, session.session_id)):
        if session.server == server and session.is_good is not None:
            grouped[session.task_key, session.week].append(session)
    return [
        WeeklyTask(
            task_key,
            week,
            [session.session_id for session in group],
            sum(session.is_good is True for session in group) / len(group),
        )
        for (task_key, week), group in grouped.items()
    ]


class _UnusedTasks:
    """The other model's tasks that are not in a pair yet."""

    def __init__(self, tasks: Iterable[WeeklyTask]) -> None:
        self._by_task: defaultdict[str, list[WeeklyTask]] = defaultdict(list)
        self._by_week: defaultdict[date, list[WeeklyTask]] = defaultdict(list)
        self._taken: set[tuple[str, date]] = set()
        for task in sorted(tasks, key=_shuffle):
            self._by_task[task.task_key].append(task)
            self._by_week[task.week].append(task)

    def take_same(self, task: WeeklyTask, count: int) -> list[WeeklyTask]:
        """Take up to `count` tasks with the same key, the nearest weeks first."""
        unused = [
            other
            for other in self._by_task[task.task_key]
            if (other.task_key, other.week) not in self._taken
        ]
        unused.sort(key=lambda other: abs(other.week - task.week))
        return self._take(unused[:count])

    def take_near(self, task: WeeklyTask, count: int) -> list[WeeklyTask]:
        """Take up to `count` tasks, the nearest weeks first."""
        chosen: list[WeeklyTask] = []
        for week in sorted(self._by_week, key=lambda week: (abs(week - task.week), week)):
            waiting = self._by_week[week]
            while waiting and len(chosen) < count:
                other = waiting.pop()
                if (other.task_key, other.week) not in self._taken:
                    chosen.append(other)
            if not waiting:
                del self._by_week[week]
            if len(chosen) == count:
                break
        return self._take(chosen)

    def _take(self, tasks: list[WeeklyTask]) -> list[WeeklyTask]:
        self._taken |= {(task.task_key, task.week) for task in tasks}
        return tasks


def _shuffle(task: WeeklyTask) -> str:
    """Return a key that orders tasks by chance, and in the same way every night."""
    return hashlib.sha256(f"{task.task_key} {task.week}".encode()).hexdigest()


def extend_pairs(
    earlier: Sequence[Pair], champion: Sequence[WeeklyTask], rival: Sequence[WeeklyTask]
) -> list[Pair]:
    """Return the earlier pairs, and new pairs of the tasks that are in no pair yet.

    A task that the other model did too may be in one pair per week. Any other task of the champion
    is in only one pair, because the sessions of a task resemble each other. If the other model has
    too few tasks, the rest of the champion's tasks waits.

    Args:
        earlier: The stored pairs.
        champion: The champion's tasks per week.
        rival: The other model's tasks per week.
    """
    used = {session_id for pair in earlier for session_id in pair.sessions}
    unused_rival = [task for task in rival if used.isdisjoint(task.sessions)]
    tasks_in_pairs = {task.task_key for task in champion if not used.isdisjoint(task.sessions)}
    unused = _UnusedTasks(unused_rival)
    count = min(max(len(unused_rival) // EXPECTED_PAIRS, 1), MAX_TASKS_PER_PAIR)
    new = [task for task in champion if used.isdisjoint(task.sessions)]
    same = {(task.task_key, task.week): unused.take_same(task, count) for task in new}
    pairs = list(earlier)
    for task in new:
        others = same[task.task_key, task.week]
        if not others and task.task_key not in tasks_in_pairs:
            others = unused.take_near(task, count)
        if others:
            tasks_in_pairs.add(task.task_key)
            paired_tasks = [PairedTask(other.sessions) for other in others]
            pairs.append(Pair(PairedTask(task.sessions), paired_tasks))
    return pairs


def list_drops(
    pairs: Iterable[Pair], champion: Iterable[WeeklyTask], rival: Iterable[WeeklyTask]
) -> list[float]:
    """Return by how much the champion is worse in each pair, between −1 and 1.

    If a verdict has changed since, the present verdict counts. A pair whose sessions are not judged
    anymore is left out.
    """
    shares = {
        session_id: task.share for tasks in (champion, rival) for task in tasks
        for session_id in task.sessions
    }  # fmt: skip
    drops = []
    for pair in pairs:
        champion_share = _find_share(pair.champion, shares)
        known = [_find_share(task, shares) for task in pair.rival]
        others = [share for share in known if share is not None]
        if champion_share is not None and others:
            drops.append(sum(others) / len(others) - champion_share)
    return drops


def _find_share(task: PairedTask, shares: Mapping[str, float]) -> float | None:
    """Return the share of good sessions of a task in a pair; None if it is not judged anymore."""
    return next((shares[name] for name in task.sessions if name in shares), None)
