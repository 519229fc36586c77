"""The collector, which runs an agent on tasks and stores the runs.

An agent is a function of a task, or a coroutine function. There are two kinds of agents:

- An agent yields its steps. It is stopped at the limit of steps.
- An agent returns the whole run: a trajectory, an object with `messages` or `steps` (and `success`
  and `reward`), or its last words as text.

If the agent has the attributes `tool_schemas`, `model_id` or `system_prompt`, they are recorded. An
exception of an agent is a failure of the infrastructure, not a bad run.

Which runs are trained on belongs to `conversion`.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from agent_pipeline.compat.examples import get_text, get_value, make_session
from agent_pipeline.compat.sage.trajectories.trajectory import (
    AgentTrajectory,
    TrajectoryStep,
    is_answer,
    load_trajectories,
    make_trajectory,
    save_trajectories,
)
from agent_pipeline.errors import DataError, InfrastructureError, PipelineError, SettingsError
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.damage import DAMAGE_KINDS, DEFAULT_REPAIR_POLICY
from agent_pipeline.sessions.json_text import dump_json_line, make_storable
from agent_pipeline.sessions.repair import repair_session
from agent_pipeline.sessions.session import Session, Tool, hash_json
from agent_pipeline.sources.formats.fields import number, text, verdict
from agent_pipeline.structs import convert_value

Agent = Callable[[Any], Any]
Judge = Callable[[AgentTrajectory], object]
"""A function that judges a run and returns a boolean, a word or a number.

1 is a success and 0 is a failure. A number between them is a reward without a verdict.
"""

MAX_FAILURES_IN_A_ROW = 5
"""Number of consecutive infrastructure failures after which no further task is run."""


@dataclass(frozen=True)
class Task:
    """A task, with its id and its instruction."""

    task_id: str
    instruction: str


@dataclass(frozen=True)
class CollectorConfig:
    """Options for collecting an agent's runs.

    Attributes:
        max_steps: The largest number of steps per run.
        require_success: Whether only successful runs are returned.
        save_intermediate: Whether a run is written when it ends. Otherwise all runs are written at
            the end.
        path: A JSON Lines file of all runs, also of unsuccessful runs. If the file exists, the
            collection resumes: tasks in the file are not run again, unless the infrastructure
            failed.
        redaction: What is redacted.

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
            raise SettingsError(
                f"The option `max_steps` of the collector is {self.max_steps}: set it to 1 or "
                "more.",
                setting="max_steps",
            )


class TrajectoryCollector:
    """A collector that runs an agent on one task after another, and redacts the runs.

    Args:
        agent: The agent.
        config: The options.
        judge: Decides whether a run that ended by itself succeeded. Without a judge, the agent's
            own verdict counts.

    Attributes:
        counts: The outcomes of the tasks of the last collection: `tasks` = `collected` + `not_run`
            + the reasons why runs were left out. `known_before` counts the runs in the file.
        dropped: The runs that were left out, each with its reason.
    """

    def __init__(
        self, agent: Agent, config: CollectorConfig | None = None, judge: Judge | None = None
    ) -> None:
        self.agent, self.config, self.judge = agent, config or CollectorConfig(), judge
        self.counts: Counter[str] = Counter()
        self.dropped: list[tuple[str, AgentTrajectory]] = []
        self._redactor = Redactor(self.config.redaction)

    def collect(self, tasks: Iterable[object]) -> list[AgentTrajectory]:
        """Run all tasks, and return the runs in the order of the tasks.

        Args:
            tasks: Texts, or objects with `task_id` and `instruction`.

        Raises:
            DataError: The infrastructure failed in every run, or a task or an answer of the agent
                is invalid.
        """
        given_tasks = list(tasks)
        named_tasks = [parse_task(task) for task in given_tasks]
        self.counts, self.dropped = Counter(tasks=len(given_tasks)), []
        all_runs = self._load_earlier_runs()
        earlier_runs, runs, failures = list(all_runs), [], 0
        for task, named_task in zip(given_tasks, named_tasks, strict=True):
            matching = [run for run in earlier_runs if run.task_id == named_task.task_id]
            if matching:
                run = matching[0]
                earlier_runs.remove(run)
            elif failures == MAX_FAILURES_IN_A_ROW:
                self.counts["not_run"] += 1
                continue
            else:
                run = self.collect_single(task)
                failures = failures + 1 if run.error else 0
                all_runs.append(run)
                self._append_to_file(run)
            runs.append(run)
        if self.config.path is not None and not self.config.save_intermediate:
            save_trajectories(self.config.path, all_runs)
        collected = self._sort_out(runs)
        if runs and all(run.error for run in runs):
            raise DataError(
                f"The infrastructure failed in all {len(runs)} runs of the agent "
                f"({len(given_tasks)} tasks were given). The last error was: {runs[-1].error}"
            )
        return collected

    def collect_single(self, task: object) -> AgentTrajectory:
        """Run the agent on one task, and return the run.

        If the infrastructure failed, `error` is set.

        Raises:
            DataError: The task, or the agent's answer, is invalid.
        """
        named_task = parse_task(task)
        run = AgentTrajectory(named_task.task_id, named_task.instruction)
        try:
            run = self._run(run, task)
            self._judge(run)
        except InfrastructureError as error:
            run.error = str(error)
        except PipelineError:
            raise
        except Exception as error:  # agents and judges may raise anything
            run.error = f"{type(error).__name__}: {error}"
        if run.error:
            run.success = run.total_reward = None
        return self._redact(run)

    def _run(self, run: AgentTrajectory, task: object) -> AgentTrajectory:
        run.tools = cast("list[Tool]", get_value(self.agent, "tool_schemas") or run.tools)
        run.model_id = get_text(self.agent, "model_id") or run.model_id
        run.system_prompt = get_text(self.agent, "system_prompt") or run.system_prompt
        answer = self.agent(task)
        if inspect.isawaitable(answer):
            answer = _wait_for(answer)
        if not isinstance(answer, Iterator):
            run = _complete_run(run, answer)
            run.cut |= len(run.steps) > self.config.max_steps
            run.steps = run.steps[: self.config.max_steps]
            return run
        for step in answer:
            run.steps.append(_make_step(step))
            if len(run.steps) == self.config.max_steps:
                run.cut = not is_answer(run.steps[-1])
                break
        if hasattr(answer, "close"):
            answer.close()
        return run

    def _judge(self, run: AgentTrajectory) -> None:
        """Set the success and the reward of a run, if the agent or the judge gave them."""
        if run.error:
            return
        rewards = [step.reward for step in run.steps if step.reward is not None]
        if run.cut:
            run.success, run.total_reward = False, sum(rewards) if rewards else 0.0
        elif self.judge is not None:
            run.total_reward, decided = verdict(self.judge(run))
            run.success = None if decided is None else decided == "acceptable"
        elif run.total_reward is None and rewards:
            run.total_reward = sum(rewards)
        elif run.total_reward is None and run.success is not None:
            run.total_reward = float(run.success)

    def _sort_out(self, runs: list[AgentTrajectory]) -> list[AgentTrajectory]:
        """Return the runs to keep.

        The other runs are counted in `counts` and added to `dropped`.
        """
        kept: list[AgentTrajectory] = []
        for run in runs:
            reason = find_unfit_reason(run, self.config.require_success)
            self.counts[reason or "collected"] += 1
            if reason is None:
                kept.append(run)
            else:
                self.dropped.append((reason, run))
        return kept

    def _load_earlier_runs(self) -> list[AgentTrajectory]:
        """Return the runs in the file, and remove runs in which the infrastructure had failed."""
        path = self.config.path
        if path is None or not Path(path).is_file():
            return []
        runs = [run for run in load_trajectories(path, cut_off=True) if not run.error]
        save_trajectories(path, runs)
        self.counts["known_before"] = len(runs)
        return runs

    def _append_to_file(self, run: AgentTrajectory) -> None:
        if self.config.path is None or not self.config.save_intermediate:
            return
        path = Path(self.config.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(dump_json_line(msgspec.to_builtins(run)))

    def _redact(self, run: AgentTrajectory) -> AgentTrajectory:
        """Return a run without private data. Its task id does not change."""
        # The redactor searches all texts in the context of a session.
        carrier = Session(
            session_id="",
            project="",
            agent="",
            source="",
            context=make_storable(msgspec.to_builtins(run), Counter()),
        )
        self._redactor.redact(carrier)
        redacted = convert_value(carrier.context, AgentTrajectory)
        redacted.task_id = run.task_id
        return redacted


def _wait_for(answer: Awaitable[object]) -> object:
    """Wait for the result of an asynchronous agent, and return the result.

    The answer is awaited in its own thread, because a notebook already has an event loop.
    """

    async def wait() -> object:
        return await answer

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait()).result()


def find_unfit_reason(run: AgentTrajectory, require_success: bool) -> str | None:
    """Return the reason why a run cannot be a training example, or None if it can."""
    if run.error:
        return "infrastructure_error"
    if not require_success or run.success:
        return None
    if run.cut:
        return "max_steps"
    return "success_unknown" if run.success is None else "unsuccessful"


def parse_task(task: object) -> Task:
    """Convert a value into a task. The id of a task that is given as text is a hash of the text.

    Args:
        task: A text, or an object or mapping with `task_id` and `instruction`.

    Raises:
        DataError: The task has no words.
    """
    is_text = isinstance(task, str)
    words = text(task if is_text else get_value(task, "instruction", "prompt", "question"))
    if words is None:
        raise DataError(
            f"A task of type {type(task).__name__} has no instruction: give a text, or an object "
            "with `task_id` and `instruction`."
        )
    task_id = None if is_text else text(get_value(task, "task_id", "id"))
    return Task(task_id or f"text:{hash_json(' '.join(words.lower().split()))[:16]}", words)


def _complete_run(run: AgentTrajectory, answer: object) -> AgentTrajectory:
    """Return a run that has been completed with the agent's answer.

    Raises:
        DataError: The answer is not a run.
    """
    if isinstance(answer, str):
        answer = {"steps": [TrajectoryStep(answer)]}
    if isinstance(answer, AgentTrajectory):
        return msgspec.structs.replace(
            answer,
            task_id=run.task_id,
            steps=[_make_step(step) for step in answer.steps],
            instruction=answer.instruction or run.instruction,
            tools=answer.tools or run.tools,
            model_id=answer.model_id or run.model_id,
            system_prompt=answer.system_prompt or run.system_prompt,
        )
    if not isinstance(answer, Mapping) or not (answer.get("steps") or answer.get("messages")):
        raise DataError(
            f"The agent answered task {run.task_id} with a value of type {type(answer).__name__}, "
            "which is not a run: return a text, a trajectory, or an object with `steps` or "
            "`messages`, or yield the steps."
        )
    if answer.get("messages"):
        chat = read_chat(answer["messages"])
        session = make_session(chat, None, "trajectories", session_id="", project="", agent="")
        # A trajectory cannot hold a result without its call.
        repair_session(session, DEFAULT_REPAIR_POLICY)
        run = _complete_run(run, make_trajectory(session))
        run.error = None
        if session.broken:
            run.error = f"the run was recorded with {DAMAGE_KINDS[session.broken].meaning}"
    else:
        run.steps = [_make_step(step) for step in answer["steps"]]
    if isinstance(answer.get("success"), bool):
        run.success = answer["success"]
    run.total_reward = number(answer.get("reward"))
    if answer.get("error"):
        run.error = str(answer["error"])
    return run


def _make_step(step: object) -> TrajectoryStep:
    """Convert a value into a step that can be stored as JSON.

    Raises:
        DataError: The value is not a step.
        ValueError: JSON cannot hold the step, for example because of a NaN.
    """
    try:
        storable = make_storable(msgspec.to_builtins(step), Counter())
        checked = convert_value(storable, TrajectoryStep)
    except (msgspec.ValidationError, TypeError) as error:
        raise DataError(
            f"The agent returned an invalid step ({error}): give each step `thought`, `action`, "
            "`action_input`, `observation` and `reward`."
        ) from error
    checked.reward = number(checked.reward)
    dump_json_line(checked.action_input)
    return checked
