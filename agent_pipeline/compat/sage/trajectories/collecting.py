"""Running an agent on tasks, and keeping what it did (FireAct, Chen et al. 2023).

An agent is a callable of one task, asynchronous or not. It yields its steps one by one, and is then
stopped at the limit, or it answers with the whole run: a trajectory, an object with `messages` or
`steps` (and `success`, `reward`), or its last words. Its attributes `tool_schemas`, `model_id` and
`system_prompt`, where it has them, are recorded in each trajectory.

Whatever an agent raises is a failure of the infrastructure, not a bad run: an agent's mistakes are
in what it does.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agent_pipeline.compat.examples import session_of_chat, value_of
from agent_pipeline.compat.sage.trajectories.model import (
    AgentTrajectory,
    TrajectoryStep,
    is_answer,
    load_trajectories,
    save_trajectories,
    trajectory_of,
)
from agent_pipeline.errors import DataError, InfrastructureError, PipelineError, SettingsError
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.damage import DAMAGE_KINDS, DEFAULT_REPAIR_POLICY
from agent_pipeline.sessions.json_text import dump_json_line, make_storable
from agent_pipeline.sessions.repair import repair_session
from agent_pipeline.sessions.session import Session, hash_json
from agent_pipeline.sources.formats.fields import number, text, verdict

Agent = Callable[[Any], Any]
Judge = Callable[[AgentTrajectory], Any]
"""A bool, a word or a number of a finished run: 1 is success, 0 is none, what lies between is a
reward that does not decide.
"""

_FAILURES_IN_A_ROW = 5


class Task(NamedTuple):
    task_id: str
    instruction: str


@dataclass(frozen=True)
class CollectorConfig:
    """How runs are collected: at most `max_steps` steps a run; without `require_success`
    unsuccessful runs are returned too.

    `path` is a JSON lines file of all runs, also the unsuccessful ones. If the file exists, the
    collection resumes: only tasks that it does not have, or that the infrastructure failed, are
    run. With `save_intermediate` each run is written as soon as it ends, else all are written at
    the end.

    Raises:
        SettingsError: `max_steps` is below 1.
    """

    max_steps: int = 10
    require_success: bool = True
    save_intermediate: bool = True
    path: str | Path | None = None
    redaction: RedactionOptions = field(default_factory=RedactionOptions)

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise SettingsError(f"The collector's max_steps is {self.max_steps}: give 1 or more.")


class TrajectoryCollector:
    """Runs an agent, one task after the other; what it returns and writes is redacted.

    `judge`, if there is one, decides on each run that ended by itself; else the agent's own word
    counts. After `collect`, `counts` and `dropped` say what became of every task: `tasks` =
    `collected` + `not_run` + the reasons (`known_before` were in the file).
    """

    def __init__(
        self, agent: Agent, config: CollectorConfig | None = None, judge: Judge | None = None
    ) -> None:
        self.agent, self.config, self.judge = agent, config or CollectorConfig(), judge
        self.counts: Counter[str] = Counter()
        self.dropped: list[tuple[str, AgentTrajectory]] = []
        self._redactor = Redactor(self.config.redaction)

    def collect(self, tasks: Iterable[object]) -> list[AgentTrajectory]:
        """The runs of all tasks, in their order; those that are left out are in `dropped`, each
        with its reason.

        A task is its words, or an object with `task_id` and `instruction`. After five failures of
        the infrastructure in a row the rest is not run.

        Raises:
            DataError: the infrastructure failed every run, or a task or the agent's answer is
            invalid.
        """
        tasks = list(tasks)
        named = [task_of(task) for task in tasks]
        self.counts, self.dropped = Counter(tasks=len(tasks)), []
        known = self._known()
        before, runs, failures = list(known), [], 0
        for task, name in zip(tasks, named, strict=True):
            run = next(
                (earlier_run for earlier_run in before if earlier_run.task_id == name.task_id), None
            )
            if run is not None:
                before.remove(run)
            elif failures == _FAILURES_IN_A_ROW:
                self.counts["not_run"] += 1
                continue
            else:
                run = self.collect_single(task)
                failures = failures + 1 if run.error else 0
                known.append(run)
                self._save(run)
            runs.append(run)
        if self.config.path is not None and not self.config.save_intermediate:
            save_trajectories(self.config.path, known)
        collected = self._sorted_out(runs)
        if runs and all(run.error for run in runs):
            raise DataError(
                f"The infrastructure failed every run of the agent, {len(runs)} of {len(tasks)} "
                f"tasks: {runs[-1].error}"
            )
        return collected

    def collect_single(self, task: object) -> AgentTrajectory:
        """One run, whatever became of it; `error` says what failed beside the agent.

        Raises:
            DataError: the task, or the agent's answer, is invalid.
        """
        name = task_of(task)
        run = AgentTrajectory(name.task_id, name.instruction)
        try:
            run = self._run(run, task)
            self._judge(run)
        except InfrastructureError as error:
            run.error = str(error)
        except PipelineError:
            raise
        except (
            Exception
        ) as error:  # an agent and a judge may raise anything; it must cost their own run
            run.error = f"{type(error).__name__}: {error}"
        if run.error:
            run.success = run.total_reward = None
        return self._redacted(run)

    def _run(self, run: AgentTrajectory, task: object) -> AgentTrajectory:
        for ours, theirs in (
            ("tools", "tool_schemas"),
            ("model_id", "model_id"),
            ("system_prompt", "system_prompt"),
        ):
            if value := value_of(self.agent, theirs):
                setattr(run, ours, value)
        answer = self.agent(task)
        if inspect.isawaitable(answer):
            answer = _awaited(answer)
        if not isinstance(answer, Iterator):
            run = _completed(run, answer)
            run.cut |= len(run.steps) > self.config.max_steps
            run.steps = run.steps[: self.config.max_steps]
            return run
        for step in answer:
            run.steps.append(_step(step))
            if len(run.steps) == self.config.max_steps:
                run.cut = not is_answer(run.steps[-1])
                break
        if (close := getattr(answer, "close", None)) is not None:
            close()
        return run

    def _judge(self, run: AgentTrajectory) -> None:
        """Success and reward, as far as anybody says."""
        if run.error:
            return
        rewards = [step.reward for step in run.steps if step.reward is not None]
        if run.cut:
            run.success, run.total_reward = False, sum(rewards) if rewards else 0.0
            return
        if self.judge is not None:
            score, decided = verdict(self.judge(run))
            run.success = None if decided is None else decided == "acceptable"
            run.total_reward = score
        elif run.total_reward is None and rewards:
            run.total_reward = sum(rewards)
        elif run.total_reward is None and run.success is not None:
            run.total_reward = float(run.success)

    def _sorted_out(self, runs: list[AgentTrajectory]) -> list[AgentTrajectory]:
        """The runs to return; `counts` and `dropped` get what became of each."""
        reasons = [why_not(run, self.config.require_success) for run in runs]
        self.counts.update(reason or "collected" for reason in reasons)
        self.dropped = [(reason, run) for reason, run in zip(reasons, runs, strict=True) if reason]
        return [run for reason, run in zip(reasons, runs, strict=True) if reason is None]

    def _known(self) -> list[AgentTrajectory]:
        """The runs that an earlier collection wrote, without those that failed beside the agent,
        which the file then has no more.
        """
        if self.config.path is None or not Path(self.config.path).is_file():
            return []
        known = [run for run in load_trajectories(self.config.path, cut_off=True) if not run.error]
        save_trajectories(self.config.path, known)
        self.counts["known_before"] = len(known)
        return known

    def _save(self, run: AgentTrajectory) -> None:
        if self.config.path is None or not self.config.save_intermediate:
            return
        path = Path(self.config.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(dump_json_line(msgspec.to_builtins(run)))

    def _redacted(self, run: AgentTrajectory) -> AgentTrajectory:
        """A session carries the trajectory through the redactor, which walks all its texts."""
        carrier = Session(
            session_id="",
            project="",
            agent="",
            source="",
            context=make_storable(msgspec.to_builtins(run), Counter()),
        )
        self._redactor.redact(carrier)
        redacted = msgspec.convert(carrier.context, AgentTrajectory)
        redacted.task_id = run.task_id  # ids are names and stay
        return redacted


def _awaited(answer: Awaitable[object]) -> object:
    """What an asynchronous agent answers; in a thread of its own, since a notebook's has a loop
    already.
    """

    async def wait() -> object:
        return await answer

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait()).result()


def why_not(run: AgentTrajectory, require_success: bool) -> str | None:
    """Why a run is not an example, by what is known of its end; `None` where it may be one."""
    if run.error:
        return "infrastructure_error"
    if not require_success or run.success:
        return None
    if run.cut:
        return "max_steps"
    return "success_unknown" if run.success is None else "unsuccessful"


def task_of(task: object) -> Task:
    """A task as it was given: its words (the id is then their hash), or an object (also with
    attributes) of `task_id` and `instruction`.

    Raises:
        DataError: it has no words.
    """
    words = text(
        task if isinstance(task, str) else value_of(task, "instruction", "prompt", "question")
    )
    if words is None:
        raise DataError(
            f"A task of type {type(task).__name__} has no words: give a text, or an object with "
            f"task_id and instruction."
        )
    name = None if isinstance(task, str) else text(value_of(task, "task_id", "id"))
    return Task(name or f"text:{hash_json(' '.join(words.lower().split()))[:16]}", words)


def _completed(run: AgentTrajectory, answer: object) -> AgentTrajectory:
    """The run with what the agent answered.

    Raises:
        DataError: the answer is not a run.
    """
    if isinstance(answer, str):
        answer = {"steps": [TrajectoryStep(answer)]}
    if isinstance(answer, AgentTrajectory):
        fields = {
            name: getattr(answer, name) or getattr(run, name)
            for name in ("instruction", "tools", "model_id", "system_prompt")
        }
        return msgspec.structs.replace(
            answer, task_id=run.task_id, steps=[_step(step) for step in answer.steps], **fields
        )
    if not isinstance(answer, Mapping) or not (answer.get("steps") or answer.get("messages")):
        raise DataError(
            f"The agent answered task {run.task_id} with {type(answer).__name__}, which is not a "
            f"run: let it yield steps, or answer with a "
            "trajectory, its last words, or an object with steps or messages, success and reward."
        )
    if answer.get("messages"):
        session = session_of_chat(
            read_chat(answer["messages"]),
            None,
            "trajectories",
            session_id="",
            project="",
            agent="",
        )
        repair_session(
            session, DEFAULT_REPAIR_POLICY
        )  # a trajectory has no place for a result without its call
        run = _completed(run, trajectory_of(session))
        run.error = (
            f"the run was recorded with {DAMAGE_KINDS[session.broken].meaning}"
            if session.broken
            else None
        )
    else:
        run.steps = [_step(step) for step in answer["steps"]]
    run.success = answer["success"] if isinstance(answer.get("success"), bool) else run.success
    run.total_reward = number(answer.get("reward"))
    run.error = str(answer["error"]) if answer.get("error") else run.error
    return run


def _step(step: object) -> TrajectoryStep:
    """A step as it can be stored.

    Raises:
        DataError: it is none.
        ValueError: it holds what JSON cannot (a NaN, say).
    """
    try:
        # Through what JSON has: whoever makes a step in a program may put anything into it.
        stored = msgspec.convert(
            make_storable(msgspec.to_builtins(step), Counter()), TrajectoryStep
        )
    except (msgspec.ValidationError, TypeError) as error:
        raise DataError(
            f"The agent gave a step that is none ({error}): give thought, action, action_input, "
            f"observation, reward."
        ) from error
    stored.reward = number(stored.reward)
    dump_json_line(stored.action_input)
    return stored
