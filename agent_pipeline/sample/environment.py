"""A simulated world in the form in which a model plays it: the environment contract of TRL's
`GRPOTrainer`, with a scripted user.

`reset` begins a task, the public methods of a subclass are the tools, and `get_reward` returns at
the end whether the task is done. TRL does not require the other attributes: `system` and `tools`
begin the conversation, `user` answers the model, `must_act` and `kind` describe the task, and
`reads` names the tools that only look things up. At the end, `wrong_changes`, `acted_early` and
`said_wrong` tell what a careful person would count against the model.
"""

import copy
import itertools
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any, ClassVar

from agent_pipeline.errors import DataError
from agent_pipeline.sample.cast import CAST
from agent_pipeline.sample.draw import DEFAULT_SEED, stream
from agent_pipeline.sample.items import compact
from agent_pipeline.sample.judge import difference, haste, repetition
from agent_pipeline.sample.play import Episode, play
from agent_pipeline.sample.world import Call, Domain, Event, Result, Say, Task, Turn, User, Variant
from agent_pipeline.sample.writes import Write, early_writes, good_conduct, wrong_writes


class ScriptedUser:
    """A simulated user who says the next line of the task's script, regardless of the model's
    answer. The answers and the lines are added to `events`.
    """

    def __init__(self, turns: tuple[Turn, ...], events: list[Event]) -> None:
        self._lines = iter([turn.text for turn in turns])
        self._events = events

    def reply(self, answer: str) -> str | None:
        """Return the user's next message, or None if the script is finished."""
        self._events.append(Say(answer, kind=""))
        line = next(self._lines, None)
        if line is not None:
            self._events.append(User(line))
        return line


class Environment:
    """A simulated world that plays one task at a time. A subclass sets the `domain` and has its
    tools as methods.
    """

    domain: ClassVar[Domain]
    variants: ClassVar[Sequence[Variant]]

    def reset(
        self,
        task_key: str = "",
        seed: int = DEFAULT_SEED,
        variant: Variant = "",
        **row: object,
    ) -> str:
        """Begin a task of the sample, and return the user's first message.

        Args:
            task_key: The id of the task, such as `support-012`.
            seed: The seed with which the sample was made.
            variant: How the task differs from the task of the sample; one of `variants`, or empty.
            row: Other columns of a dataset's row, which are ignored.

        Raises:
            DataError: No agent of this world has such a task.
        """
        self._task = task = task_of(self.domain, task_key, seed, variant)
        self._world = self.domain.world(task.start)
        self._events: list[Event] = [User(task.turns[0].text)]
        self._writes: list[Write] = []
        self._good = good_conduct(task, self.domain)
        self.system, self.tools = task.system, list(self.domain.world.tools)
        self.user = ScriptedUser(task.turns[1:], self._events)
        self.must_act = task.start != task.goal
        self.kind = kind_of(self.domain, task)
        return task.turns[0].text

    def get_reward(self) -> float:
        """Return 1.0 if the world is in the task's final state and the house rules were kept,
        otherwise 0.0.
        """
        return 0.0 if self.complaint else 1.0

    @property
    def complaint(self) -> str | None:
        """Return the reason why the task is not done, or None if it is done."""
        episode = Episode(tuple(self._events), self._world.records)
        return (
            repetition(episode)
            or haste(episode, self.domain)
            or difference(self._task.goal, episode.final)
            or next(iter(self.wrong_changes), None)
            or next((f"acted early: {text}" for text in self.acted_early), None)
        )

    @property
    def reads(self) -> frozenset[str]:
        """Return the names of the tools that change nothing."""
        return self.domain.world.reads

    @property
    def wrong_changes(self) -> list[str]:
        """Return the changes that do not lead towards the state that the task asks for, also those
        that were taken back later.
        """
        return wrong_writes(self._task, self._good, self._writes, self._world.records)

    @property
    def acted_early(self) -> list[str]:
        """Return the changes that were made before the user had said enough."""
        return early_writes(self._task, self.domain, self._good, self._writes)

    @property
    def said_wrong(self) -> str | None:
        """Return the reason why the last answer is wrong, or None if it is right."""
        last = self._events[-1]
        if not isinstance(last, Say):
            return "the user's last message has no answer"
        calls = [write.call for write in self._writes]
        return self.domain.said_wrong(last.text, self._good.answers[-1], calls)

    @classmethod
    def fresh_tasks(cls, count: int, seed: int, like: str = "") -> list[dict[str, Any]]:
        """Return arguments of `reset` for `count` tasks that are made with the seeds from `seed`
        on.

        The tasks belong to the agent that also has the task `like`.

        Args:
            count: The number of tasks.
            seed: The first seed.
            like: The id of a task of the agent.
        """
        name = next(
            (agent.name for agent in CAST if like.startswith(f"{agent.name}-")), CAST[0].name
        )
        tasks = (
            {"task_key": task_id, "seed": candidate_seed}
            for candidate_seed in itertools.count(seed)
            for task_id in tasks_by_id(cls.domain, name, candidate_seed)
        )
        return list(itertools.islice(tasks, count))

    def _call(self, name: str, **arguments: object) -> str:
        call, before = Call(name, arguments), copy.deepcopy(self._world.records)
        result = self._world.run(call)
        self._events += [call, Result(result)]
        if self._world.records != before:
            turn = sum(isinstance(event, User) for event in self._events)
            self._writes.append(Write(call, turn, before, copy.deepcopy(self._world.records)))
        return compact(result)


def kind_of(domain: Domain, task: Task) -> str:
    """Return the kind of decision that a task asks for.

    The kind names the tools with which a good agent changes the world (`book, cancel`), or is
    `refuse or ask`.
    """
    events = play(task, domain, None, 0, Random(0)).events
    changes = {
        event.name
        for event in events
        if isinstance(event, Call) and event.name not in domain.world.reads
    }
    return ", ".join(sorted(changes)) or "refuse or ask"


def task_of(domain: Domain, task_id: str, seed: int, variant: Variant = "") -> Task:
    """Return a task by its id, whose first part is the agent's name.

    Args:
        domain: The domain of the task.
        task_id: The id of the task.
        seed: The seed with which the sample was made.
        variant: How the task differs from the task of the sample.

    Raises:
        DataError: The domain has no such task or no such variant.
    """
    if variant and variant not in domain.variants:
        raise DataError(
            f"This world has no variant {variant!r}: use {' or '.join(domain.variants)}."
        )
    try:
        return tasks_by_id(domain, task_id.rpartition("-")[0], seed, variant)[task_id]
    except KeyError:
        raise DataError(
            f"The sample has no task {task_id!r} with the seed {seed}: use a task id such as "
            "support-012."
        ) from None


@lru_cache(maxsize=32)
def tasks_by_id(
    domain: Domain, agent_name: str, seed: int, variant: Variant = ""
) -> dict[str, Task]:
    """Return all tasks of an agent of the sample by id. An unknown agent has no tasks."""
    sessions = [
        domain.tasks(agent.name, agent.tasks, stream(seed, agent.partition, "tasks"), variant)
        for agent in CAST
        if agent.name == agent_name
    ]
    return {task.task_id: task for tasks in sessions for task in tasks}
