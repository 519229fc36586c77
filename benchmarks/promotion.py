"""`python -m benchmarks.promotion`: what the decision does over a year of nights, and whether it stops models that do harm.

Models are simulated on turns like those of the sample's held-out tasks: `TURNS` a task, of which `CALLS` expect a call, `RIGHT` of them
right. Two trainings of the same rows differ on `DIFFER` of the turns: each turn has a chance to be right of its own (a beta distribution
with that mean and that spread), and half of the draw is shared by the turns of a task. `SEEDS` years of `NIGHTS_PER_YEAR` nights each. `NOISE` sets
these four: `NOISE="3 0.55 0.87 0.11"` is what the trainings of `benchmarks.week` show.

- *A/A*: every night's candidate is as good as the champion. Years with a promotion are false.
- *A true gain*: candidates are 10 points better from the first night, or from day 180 on. Promoted within 14 nights?
- *Probation*: a champion that is as good as the one before it, or 10 to 30 points worse.
- *Planted harm*: 20 candidates each of several kinds; none may be promoted.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from agent_pipeline.evaluation.paired import Difference, paired
from agent_pipeline.evaluation.scores import EpisodeScore, Scores, TurnScore
from agent_pipeline.promotion.decision import Decision, DecisionFacts, SanityAnswer
from agent_pipeline.promotion.error_budget import NIGHTS_PER_YEAR, error_of_next_decision
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.rules import check_probation, decide_on_candidate

SEEDS = int(os.environ.get("SEEDS", "200"))
_NOISE = os.environ.get("NOISE", "2 0.46 0.7 0.25").split()
TURNS, (CALLS, RIGHT, DIFFER) = int(_NOISE[0]), map(float, _NOISE[1:])
WITHIN = 14
LOST = "one capability 15 points down on 200 rows"
SCHEDULES: dict[str, Callable[[int], float]] = {
    "2.5 % every night": lambda k: 0.025,
    "6/π²k²": lambda k: 0.05 * 6 / (np.pi * k) ** 2,
    "5 % / 365": lambda k: 0.05 / NIGHTS_PER_YEAR,
    "half and half (ours)": lambda k: error_of_next_decision(k - 1, 0.05),
}


class Tasks:
    """Held-out tasks, and models that answer their turns: of each turn, the chance that a training of the recipe gets it right."""

    def __init__(self, tasks: int, rng: np.random.Generator, differ: float = DIFFER) -> None:
        self.rng, self.tasks = rng, tasks
        self.names = [f"task {i}" for i in range(tasks) for _ in range(TURNS)]
        self.calls = rng.random(tasks * TURNS) < CALLS
        # E[2p(1 − p)] = DIFFER for a beta distribution with mean RIGHT: its total weight follows.
        ratio = differ / (2 * RIGHT * (1 - RIGHT))
        weight = ratio / (1 - ratio)
        self.chance = rng.beta(RIGHT * weight, (1 - RIGHT) * weight, tasks * TURNS)

    def right(self, gain: float = 0.0) -> np.ndarray:
        """One model's turns. A gain turns wrong ones right."""
        shared, own = self.rng.random(self.tasks).repeat(TURNS), self.rng.random(self.tasks * TURNS)
        right = np.where(self.rng.random(self.tasks * TURNS) < 0.5, shared, own) < self.chance
        return right | (self.rng.random(len(right)) < gain / (1 - RIGHT))

    def scores(self, right: np.ndarray, called: np.ndarray | None = None) -> Scores:
        """As the decision takes them. Without `called`, wrong calls are calls with wrong arguments, and wrong answers are calls."""
        calls = (
            np.where(self.calls, right | (np.arange(len(right)) % 2 == 0), ~right)
            if called is None
            else called
        )
        capability = np.where(
            self.calls, np.where(np.arange(len(right)) % 5 < 3, "find", "refund"), "answer"
        )
        columns = zip(self.names, capability, self.calls, calls, right, strict=True)
        return Scores(
            "same",
            tuple(
                TurnScore(str(i), n, str(k), bool(e), bool(c), bool(r))
                for i, (n, k, e, c, r) in enumerate(columns)
            ),
        )


def gain(tasks: Tasks, candidate: np.ndarray, champion: np.ndarray) -> Difference:
    """The gain that the decision tests."""
    difference = paired(
        tasks.names,
        candidate.astype(float).tolist(),
        champion.astype(float).tolist(),
        groups=list(map(str, tasks.calls)),
    )
    assert difference is not None
    return difference


def first_promotion(
    ps: Sequence[float], schedule: Callable[[int], float], begin: int = 0
) -> int | None:
    """The first night, from 0, whose p value is within what the schedule gives it; the schedule began `begin` nights earlier."""
    return next((night for night, p in enumerate(ps) if p <= schedule(begin + night + 1)), None)


def nights(tasks: int, seed: int, gained: float, count: int) -> list[float]:
    """The p values of as many nights: one champion, a new candidate each night, the same tasks."""
    world = Tasks(tasks, np.random.default_rng([seed, tasks]))
    champion = world.right()
    return [gain(world, world.right(gained), champion).p for _ in range(count)]


def false_years(tasks: int) -> str:
    years = [nights(tasks, seed, 0.0, NIGHTS_PER_YEAR) for seed in range(SEEDS)]
    return " | ".join(
        f"{np.mean([first_promotion(year, of) is not None for year in years]):.1%}"
        for of in SCHEDULES.values()
    )


def promoted(tasks: int, begin: int) -> str:
    weeks = [nights(tasks, 1000 + seed, 0.1, WITHIN) for seed in range(SEEDS)]
    return " | ".join(
        f"{np.mean([first_promotion(each, of, begin) is not None for each in weeks]):.0%}"
        for of in SCHEDULES.values()
    )


def confirmed(tasks: int, newer: int = 20) -> str:
    """How often a true gain is promoted within the nights where it must be above zero on `newer` of the tasks too."""
    found = 0
    for seed in range(SEEDS):
        world = Tasks(tasks, np.random.default_rng([1000 + seed, tasks]))
        champion, last = world.right(), np.arange(tasks * TURNS) >= (tasks - newer) * TURNS
        for night in range(WITHIN):
            candidate = world.right(0.1)
            if gain(world, candidate, champion).p <= error_of_next_decision(night, 0.05):
                by_kind = [
                    (candidate[last & kind] * 1.0 - champion[last & kind]).mean()
                    for kind in (world.calls, ~world.calls)
                ]
                if sum(by_kind) > 0:
                    found += 1
                    break
    return f"{found / SEEDS:.0%}"


def rolled_back(worse: float) -> str:
    """How often probation rolls back a champion that is so much worse than the one before it: 20 newer tasks at first, 3 more each night,
    after ten decisions of the year."""
    found = 0
    for seed in range(SEEDS):
        world = Tasks(20 + 3 * WITHIN, np.random.default_rng([seed, 11]))
        before, champion = world.right(), world.right()
        champion &= world.rng.random(len(champion)) >= worse / RIGHT
        scores, names = (
            (world.scores(champion), world.scores(before)),
            list(dict.fromkeys(world.names)),
        )
        looks = (
            check_probation(*scores, set(names[: 20 + 3 * night]), PromotionPolicy(), 10 + night)
            for night in range(WITHIN)
        )
        found += any(look.outcome == "roll back" for look in looks)
    return f"{found / SEEDS:.1%}"


def harmful(kind: str, seed: int) -> Decision:
    """The decision on a candidate of a kind beside a champion as the sample's; it gains 20 points wherever it is not harmful."""
    tasks = Tasks(400 if kind == LOST else 200, np.random.default_rng([seed, 7]))
    champion, right = tasks.right(), tasks.right(0.2)
    first = kind.startswith("a first champion")
    old, called, answers, episodes = tasks.scores(champion), None, [], ([False] * 80, [False] * 80)
    if first:  # the base never calls, and harms nobody
        champion = ~tasks.calls
        old = tasks.scores(champion, np.full(len(right), False))
    if kind.endswith(("never calls", "trained on refusals")):
        refused = tasks.rng.random(len(right)) < (0.8 if kind == "trained on refusals" else 1.0)
        called = np.where(refused, False, tasks.calls)
        right = np.where(refused, ~tasks.calls, right)
    if kind.endswith("always calls"):
        called, right = np.full(len(right), True), tasks.calls.copy()
    if kind == LOST:
        rows = np.flatnonzero(tasks.calls & (np.arange(len(right)) % 5 < 3))[:200]
        right[rows] = champion[rows] & (tasks.rng.random(len(rows)) > 0.15 / champion[rows].mean())
    if kind == "sanity questions lost":
        answers = [SanityAnswer(f"{i}", "plain questions", True, i % 20 >= 12) for i in range(20)]
    if kind.endswith("harm in 5 of 80 episodes"):
        episodes = ([i < 5 for i in range(80)], [False] * 80)
    if kind.endswith("harms in 10 % of its episodes"):
        episodes = ((tasks.rng.random(80) < 0.1).tolist(), [False] * 80)
    if kind.endswith("harm in 1 of 80 episodes"):
        episodes = ([i < 1 for i in range(80)], [False] * 80)
    new = tasks.scores(right, called)
    candidate, rival = (
        Scores(
            of.evaluator,
            of.turns,
            world="w",
            episodes=tuple(
                EpisodeScore(f"e{i}", 0, None, True, harm) for i, harm in enumerate(harms)
            ),
        )
        for of, harms in zip((new, old), episodes, strict=True)
    )
    return decide_on_candidate(
        candidate,
        rival,
        PromotionPolicy(),
        DecisionFacts(sanity_answers=answers, is_first_champion=first),
    )


KINDS = (
    "no harm",
    "never calls",
    "always calls",
    "trained on refusals",
    LOST,
    "sanity questions lost",
    "harm in 5 of 80 episodes",
    "a first champion, no harm",
    "a first champion that never calls",
    "a first champion that always calls",
    "a first champion that harms in 10 % of its episodes",
    "a first champion, harm in 1 of 80 episodes",
)


def planted() -> None:
    print("\n| candidate | promoted | rejected | reasons against it |\n|---|---:|---:|---|")
    for kind in KINDS:
        decisions = [harmful(kind, seed) for seed in range(20)]
        outcomes = Counter(each.outcome for each in decisions)
        reasons = Counter(
            reason.name
            for each in decisions
            for reason in each.reasons
            if reason.against != "promote"
        )
        said = ", ".join(f"{name} {count}" for name, count in reasons.most_common(4))
        print(f"| {kind} | {outcomes['promote']} of 20 | {outcomes['reject']} | {said} |")


def main() -> None:
    planted()
    print("\n| on probation, the champion is | rolled back within 14 nights |\n|---|---:|")
    for worse in (0.0, 0.1, 0.2, 0.3):
        print(f"| {100 * worse:.0f} points worse | {rolled_back(worse)} |", flush=True)
    print(f"\n| tasks | | {' | '.join(SCHEDULES)} |\n|---:|---|{'---:|' * len(SCHEDULES)}")
    for tasks in map(int, sys.argv[1:] or ["30", "60", "120", "200"]):
        began = time.perf_counter()
        print(f"| {tasks} | years with a false promotion | {false_years(tasks)} |", flush=True)
        print(
            f"| {tasks} | +10 points from the first night, promoted within {WITHIN} | {promoted(tasks, 0)} |"
        )
        print(
            f"| {tasks} | the same, confirmed on 20 newer tasks | {confirmed(tasks)} (half and half) |",
            flush=True,
        )
        print(
            f"| {tasks} | +10 points from day 180 | {promoted(tasks, 180)} |  ({time.perf_counter() - began:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
