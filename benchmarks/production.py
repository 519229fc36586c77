"""`python -m benchmarks.production [MONTHS] [margin]`: after how many sessions a worse champion is found in production, and false alarms.

A month is simulated: the champion answers 20 sessions per night, for 30 nights. Before the promotion, the agent answered 1,000 sessions in 8
weeks. With *take-over*, the agent answers no more sessions; with *share*, it answers 60 more per night. Every session is judged. The pairs
are formed and tested every night, as by the asset `production`. Beside it stands an ordinary test, a one-sided z test of two shares at 5 %
that is repeated every night.

With *alike*, each task has three sessions in one night, which mostly have the same verdict. With *own tasks*, the champion and the agent do the
same 300 tasks, which differ in difficulty.

With the word `margin`, a champion is served for 180 nights with the option `margin` and without it. A champion that is 2 points worse is
accepted, so an alarm is wrong. A champion that is 10 points worse is not. The pairs are formed every 15 nights, which saves time.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from agent_pipeline.evaluation.sequential import log_capital
from agent_pipeline.promotion.production_pairs import (
    Pair,
    WeeklyTask,
    extend_pairs,
    list_drops,
)
from agent_pipeline.shares import wilson

NIGHTS, PER_NIGHT, BEFORE, DAYS_BEFORE, SHARED = 30, 20, 1000, 56, 60
FALSE_ALARM = 0.05
Z = 1.645
FIRST = date(2026, 6, 1)


@dataclass(frozen=True)
class Scenario:
    """A kind of month: the shares of good sessions, and how traffic and tasks are."""

    agent: float
    champion: float
    is_shared: bool = False
    margin: float = 0.0
    trials: int = 1
    tasks: int = 0
    nights: int = NIGHTS
    step: int = 1

    @property
    def name(self) -> str:
        traffic = "share" if self.is_shared else "take-over"
        kinds = (", alike" if self.trials > 1 else "") + (", own tasks" if self.tasks else "")
        return f"{traffic}{kinds}"


class Month:
    """A simulated month."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.rng, self.made = scenario, np.random.default_rng([seed, 7]), 0
        # Difficulties of the tasks: a beta distribution whose mean is the agent's share.
        self.chances = self.rng.beta(scenario.agent * 3, (1 - scenario.agent) * 3, 300)
        self.chances += scenario.agent - self.chances.mean()

    def draw(self, name: str, share: float, days: Sequence[int]) -> dict[int, list[WeeklyTask]]:
        """Tasks by day; `days` has the day of every session."""
        scenario, by_day = self.scenario, dict[int, list[WeeklyTask]]()
        done: set[tuple[str, date]] = set()
        for day in days:
            if self.rng.random() >= 1 / scenario.trials:
                continue
            chance, task = share, f"{name}{self.made}"
            if scenario.tasks:
                number = int(self.rng.integers(scenario.tasks))
                chance, task = float(self.chances[number]) + share - scenario.agent, f"t{number}"
            sessions = scenario.trials
            first = self.rng.random() < chance
            rest = self.rng.random(sessions - 1) < (0.9 if first else 0.1)
            good = np.append(rest, first).mean() if sessions > 1 else float(first)
            when = FIRST + timedelta(days=day)
            week = when - timedelta(days=when.weekday())
            if (task, week) in done:
                continue
            done.add((task, week))
            self.made += 1
            ids = [f"{name}{self.made}-{trial}" for trial in range(sessions)]
            by_day.setdefault(day, []).append(WeeklyTask(task, week, ids, float(good)))
        return by_day

    def play(self) -> tuple[int | None, bool]:
        """The champion's sessions until the alarm, and whether the repeated ordinary test raises one."""
        scenario = self.scenario
        nights = range(scenario.nights)
        own = self.draw("c", scenario.champion, np.repeat(nights, PER_NIGHT).tolist())
        days = self.rng.integers(-DAYS_BEFORE, 0, BEFORE).tolist()
        if scenario.is_shared:
            days += np.repeat(nights, SHARED).tolist()
        others = self.draw("a", scenario.agent, days)
        champion: list[WeeklyTask] = []
        rival = [task for day in sorted(others) if day < 0 for task in others[day]]
        pairs: list[Pair] = []
        ends: list[tuple[int, int]] = []
        ordinary = False
        for night in nights:
            champion += own.get(night, [])
            rival += others.get(night, [])
            if (night + 1) % scenario.step:
                continue
            pairs = extend_pairs(pairs, champion, rival)
            ends.append((len(pairs), sum(len(task.sessions) for task in champion)))
            ordinary |= differs(champion, rival)
        drops = np.asarray(list_drops(pairs, champion, rival))
        alarms = np.flatnonzero(log_capital(drops, scenario.margin) >= -np.log(FALSE_ALARM))
        if not len(alarms):
            return None, ordinary
        return next(sessions for count, sessions in ends if count > alarms[0]), ordinary


def differs(champion: Sequence[WeeklyTask], rival: Sequence[WeeklyTask]) -> bool:
    """Whether an ordinary test of two shares, over sessions, calls the champion worse."""
    counts = [sum(len(task.sessions) for task in tasks) for tasks in (champion, rival)]
    good = [sum(task.share * len(task.sessions) for task in tasks) for tasks in (champion, rival)]
    if not all(counts):
        return False
    pooled = sum(good) / sum(counts)
    error = np.sqrt(pooled * (1 - pooled) * (1 / counts[0] + 1 / counts[1]))
    return bool(good[1] / counts[1] - good[0] / counts[0] > Z * error > 0)


SCENARIOS = [
    Scenario(0.9, 0.9),
    Scenario(0.9, 0.9, True),
    Scenario(0.7, 0.7, True),
    Scenario(0.9, 0.9, True, trials=3),
    Scenario(0.9, 0.9, True, tasks=300),
    Scenario(0.9, 0.8),
    Scenario(0.9, 0.8, True),
    Scenario(0.7, 0.6, True),
    Scenario(0.9, 0.8, True, trials=3),
    Scenario(0.9, 0.8, True, tasks=300),
    Scenario(0.9, 0.85, True),
    Scenario(0.9, 0.7, True),
]
LONG = 180
MARGINS = [
    Scenario(0.9, champion, True, margin, nights=LONG, step=15)
    for champion in (0.88, 0.8)
    for margin in (0.0, 0.05)
]


def main() -> None:
    months = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    scenarios = MARGINS if "margin" in sys.argv[2:] else SCENARIOS
    print(
        "| agent | champion | traffic | margin | months with an alarm | sessions, median | "
        "sessions, 90 % of months | ordinary test every night |"
    )
    print("|---:|---:|---|---:|---:|---:|---:|---:|")
    for scenario in scenarios:
        played = [Month(scenario, seed).play() for seed in range(months)]
        sessions = sorted(count or 10**9 for count, _ in played)
        alarms = sum(count is not None for count, _ in played)
        low, high = wilson(alarms / months, months, 1.96)
        middle, late = (sessions[int(part * months)] for part in (0.5, 0.9))
        shown = [f"{count:,}" if count < 10**9 else "–" for count in (middle, late)]
        ordinary = sum(alarm for _, alarm in played) / months
        print(
            f"| {scenario.agent:.0%} | {scenario.champion:.0%} | {scenario.name} | "
            f"{scenario.margin:.0%} | {alarms / months:.1%} [{100 * low:.1f}, {100 * high:.1f}] | "
            f"{shown[0]} | {shown[1]} | {ordinary:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
