"""The sessions of an agent in the form in which they are stored: played, judged, marked, copied and
damaged.
"""

import json
import uuid
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta
from random import Random
from typing import Any

from agent_pipeline.sample.cast import FLAWS, Agent
from agent_pipeline.sample.damage import DAMAGES
from agent_pipeline.sample.draw import deck, stream
from agent_pipeline.sample.flaws import flaws_of
from agent_pipeline.sample.items import items
from agent_pipeline.sample.judge import Verdict, judge
from agent_pipeline.sample.office import OFFICE
from agent_pipeline.sample.play import play, play_flawed
from agent_pipeline.sample.shop import SHOP
from agent_pipeline.sample.world import Domain, Task

DOMAINS: dict[str, Domain] = {"shop": SHOP, "office": OFFICE}
OPPOSITE = {"acceptable": "unacceptable", "unacceptable": "acceptable"}


@dataclass(frozen=True)
class Recorded:
    """A stored session with its ground truth. `verdicts` are in the order of their rows, and the
    last verdict counts.
    """

    session_id: str
    partition: str
    started: datetime
    texts: list[str]
    verdicts: list[Verdict | None]
    task: Task | None = None
    trial: int | None = None
    archived: bool = False
    flaw: str | None = None
    broken: str | None = None
    copy_of: str | None = None
    context: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def judgment(self) -> str | None:
        """Return the judgment of the last verdict, or None if there is no verdict."""
        return self.verdicts[-1].judgment if self.verdicts and self.verdicts[-1] else None


def record(agent: Agent, seed: int) -> list[Recorded]:
    """Return all sessions of an agent, in the order in which they began."""
    rng = stream(seed, agent.partition, "marks")
    played = play_all(agent, seed)
    marked = marks(agent, played, rng)
    plain = [
        s for s in marked if s.judgment == "acceptable" and not s.archived and len(s.verdicts) == 1
    ]
    copied = [copy(session, rng) for session in rng.sample(plain, agent.copies)]
    return sorted(
        [*marked, *copied, *damaged(agent, seed)],
        key=lambda session: (session.started, session.session_id),
    )


def play_all(agent: Agent, seed: int) -> list[Recorded]:
    """Return every trial of every task. The agent's skill is the share of trials without a flaw.

    Trials of the same task never have the same flaw.
    """
    domain, rng = DOMAINS[agent.project], stream(seed, agent.partition, "play")
    tasks = tasks_of(agent, seed)
    rounds = [(task, trial) for trial in range(agent.trials) for task in tasks]
    rounds += [(task, agent.trials) for task in rng.sample(tasks, agent.extra_trials)]
    good = deck({True: agent.skill, False: 1 - agent.skill}, len(rounds), rng)
    weights = {flaw: weight for flaw, weight in FLAWS.items() if flaw in flaws_of(domain)}
    first_choice = iter(deck(weights, good.count(False), rng))
    shown: dict[str, set[str]] = {task.task_id: set() for task in tasks}
    sessions = []
    for (task, trial), is_good in zip(rounds, good, strict=True):
        if is_good:
            sessions.append(session_of(agent, task, trial, None, rng))
            continue
        others = rng.sample(list(weights), len(weights))
        flaws = [flaw for flaw in (next(first_choice), *others) if flaw not in shown[task.task_id]]
        sessions.append(session_of(agent, task, trial, flaws, rng))
        shown[task.task_id].add(sessions[-1].flaw)
    return sessions


def session_of(
    agent: Agent, task: Task, trial: int, flaws: list[str] | None, rng: Random
) -> Recorded:
    """Play one trial, with the first of the flaws that can appear, and return the session with its
    verdict.

    Args:
        agent: The agent.
        task: The task.
        trial: The number of the trial.
        flaws: The flaws in the order in which they are tried; None for a session without a flaw.
        rng: The random stream.
    """
    domain = DOMAINS[agent.project]
    wording = int(task.task_id.rpartition("-")[2]) + trial
    if flaws is None:
        episode, flaw = play(task, domain, None, wording, rng), None
    else:
        episode, flaw = play_flawed(task, domain, flaws, wording, rng)
    stored = items(task.system, episode.events, rng.random() < agent.preamble, rng)
    texts = [json.dumps(item, ensure_ascii=False) for item in stored]
    context = {
        "task_id": task.task_id,
        "trial": trial,
        "model": f"simulated-{agent.name}",
        "tools": list(domain.world.tools),
    }
    started = datetime.combine(task.day, time(8)) + timedelta(seconds=rng.randrange(10 * 3600))
    verdicts: list[Verdict | None] = [judge(task, domain, episode)]
    return Recorded(
        new_id(rng),
        agent.partition,
        started,
        texts,
        verdicts,
        task,
        trial,
        flaw=flaw,
        context=context,
    )


def marks(agent: Agent, played: list[Recorded], rng: Random) -> list[Recorded]:
    """Mark some sessions: some are archived, some lose their verdict, and some are judged twice.

    Every second session that loses its verdict keeps an empty row instead.
    """
    chosen = iter(rng.sample(range(len(played)), agent.archived + agent.unjudged + agent.rejudged))
    sessions = list(played)
    for _, index in zip(range(agent.archived), chosen, strict=False):
        sessions[index] = replace(played[index], archived=True)
    for number, index in zip(range(agent.unjudged), chosen, strict=False):
        sessions[index] = replace(played[index], verdicts=[None] if number % 2 else [])
    for _, index in zip(range(agent.rejudged), chosen, strict=False):
        last = played[index].verdicts[-1]
        hasty = Verdict(OPPOSITE[last.judgment], "judged in haste; see the later row")
        sessions[index] = replace(played[index], verdicts=[hasty, last])
    return sessions


def copy(session: Recorded, rng: Random) -> Recorded:
    """Return a copy of a session with another id and a slightly later time."""
    later = session.started + timedelta(minutes=rng.randint(5, 50))
    return replace(session, session_id=new_id(rng), started=later, copy_of=session.session_id)


def damaged(agent: Agent, seed: int) -> list[Recorded]:
    """Return additional good trials of some tasks, judged and then damaged.

    An empty session has no task and no verdict.
    """
    rng = stream(seed, agent.partition, "damage")
    kinds = [kind for kind, count in agent.broken.items() for _ in range(count)]
    sessions = []
    for kind, task in zip(kinds, rng.sample(tasks_of(agent, seed), len(kinds)), strict=True):
        session = session_of(agent, task, agent.trials + 1, None, rng)
        session = replace(session, texts=DAMAGES[kind](session.texts, rng), broken=kind)
        if kind == "empty":
            session = replace(session, task=None, trial=None, context=None, verdicts=[])
        sessions.append(session)
    return sessions


def tasks_of(agent: Agent, seed: int) -> list[Task]:
    """Return the tasks of an agent. They depend only on the seed and the agent."""
    return DOMAINS[agent.project].tasks(
        agent.name, agent.tasks, stream(seed, agent.partition, "tasks")
    )


def new_id(rng: Random) -> str:
    """Return a session id, which is a random UUID from the seeded stream."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
