"""A simulated world in the form in which a model plays it: the environment contract of TRL's
`GRPOTrainer`, with a scripted user.

`reset` begins a task, the public methods of a subclass are the tools, and `get_reward` returns at
the end whether the task is done. TRL does not require the other attributes: `system` and `tools`
begin the conversation, `user` answers the model, `must_act` and `kind` describe the task, and
`wrong_changes` lists the changes that the task did not ask for.
"""

import itertools
from functools import lru_cache
from random import Random
from typing import Any, ClassVar

from agent_pipeline.errors import DataError
from agent_pipeline.sample.cast import CAST
from agent_pipeline.sample.draw import DEFAULT_SEED, stream
from agent_pipeline.sample.items import compact
from agent_pipeline.sample.judge import difference, haste, repetition
from agent_pipeline.sample.play import Episode, play
from agent_pipeline.sample.world import Call, Domain, Result, Task, Turn


class ScriptedUser:
    """A simulated user who says the next line of the task's script, regardless of the model's
    answer.
    """

    def __init__(self, turns: tuple[Turn, ...]) -> None:
        self._lines = iter([turn.text for turn in turns])

    def reply(self, answer: str) -> str | None:
        """Return the user's next message, or None if the script is finished."""
        return next(self._lines, None)


class Environment:
    """A simulated world that plays one task at a time. A subclass sets the `domain` and has its
    tools as methods.
    """

    domain: ClassVar[Domain]

    def reset(self, task_key: str = "", seed: int = DEFAULT_SEED, **row: object) -> str:
        """Begin a task of the sample, and return the user's first message.

        Args:
            task_key: The id of the task, such as `support-012`.
            seed: The seed with which the sample was made.
            row: Other columns of a dataset's row, which are ignored.

        Raises:
            DataError: No agent of this world has such a task.
        """
        self._task = task = task_of(self.domain, task_key, seed)
        self._world = self.domain.world(task.start)
        self._events: list[Call | Result] = []
        self.system, self.tools = task.system, list(self.domain.world.tools)
        self.user = ScriptedUser(task.turns[1:])
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
        )

    @property
    def wrong_changes(self) -> list[str]:
        """Return the fields of the world that were changed to a value that the task does not ask
        for.
        """
        start, goal, final = self._task.start, self._task.goal, self._world.records
        changes = []
        for key in sorted(start.keys() | final.keys()):
            before, wanted, after = (records.get(key, {}) for records in (start, goal, final))
            for field in sorted(before.keys() | after.keys()):
                if after.get(field) not in (before.get(field), wanted.get(field)):
                    changes.append(
                        f"{key}: {field} is {after.get(field)}, should be {wanted.get(field)}"
                    )
        return changes

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
        call = Call(name, arguments)
        result = self._world.run(call)
        self._events += [call, Result(result)]
        return compact(result)


def kind_of(domain: Domain, task: Task) -> str:
    """Return the kind of decision that a task asks for.

    The decision consists of the calls with which a good agent changes the world (`cancel, book`),
    or is `refuse or ask`.
    """
    events = play(task, domain, None, 0, Random(0)).events
    changes = [
        event.name
        for event in events
        if isinstance(event, Call) and event.name not in domain.world.reads
    ]
    return ", ".join(changes) or "refuse or ask"


def task_of(domain: Domain, task_id: str, seed: int) -> Task:
    """Return a task by its id, whose first part is the agent's name."""
    try:
        return tasks_by_id(domain, task_id.rpartition("-")[0], seed)[task_id]
    except KeyError:
        raise DataError(
            f"The sample has no task {task_id!r} with the seed {seed}: use a task id such as "
            "support-012."
        ) from None


@lru_cache(maxsize=16)
def tasks_by_id(domain: Domain, agent_name: str, seed: int) -> dict[str, Task]:
    """Return all tasks of an agent of the sample by id. An unknown agent has no tasks."""
    sessions = [
        domain.tasks(agent.name, agent.tasks, stream(seed, agent.partition, "tasks"))
        for agent in CAST
        if agent.name == agent_name
    ]
    return {task.task_id: task for tasks in sessions for task in tasks}
