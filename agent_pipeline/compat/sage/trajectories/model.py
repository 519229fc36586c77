"""What an agent did for a task, step by step, and the files that hold it.

A trajectory says the same as a chat. A step with an action is the agent's words (`thought`) with a
tool call, its observation the tool's result. A step without one is words to the user, its
observation what the user wrote next; the last such step is the answer. ReAct's `finish` at the end,
with the answer as its one text, is that too.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from agent_pipeline.errors import DataError, StoreError
from agent_pipeline.sessions.json_text import dump_json_line, repair_arguments
from agent_pipeline.sessions.session import Message, Session, Tool, hash_json
from agent_pipeline.sources.formats.fields import number
from agent_pipeline.storage.filesystem import write_atomically

FINISH = "finish"
"""The action with which a ReAct agent gives its answer (in any case)."""


class TrajectoryStep(msgspec.Struct):
    """One step; see the module. `observation` is `None` where none came, `reward` where nobody gave
    one.

    `parallel`: called in one breath with the step before. `invalid_input` is what the agent wrote
    where that was not a JSON object.
    """

    thought: str = ""
    action: str = ""
    action_input: dict[str, Any] = {}
    observation: str | None = None
    reward: float | None = None
    parallel: bool = False
    invalid_input: str = ""


class AgentTrajectory(msgspec.Struct):
    """One run of one task. `success` and `total_reward` are `None` where nobody knows.

    `cut`: the agent was stopped at the collector's limit. `error` is a failure of the
    infrastructure (an endpoint, a program), not of the agent: such a run is neither good nor bad.
    `tools` are OpenAI function schemas.
    """

    task_id: str
    instruction: str
    steps: list[TrajectoryStep] = []
    success: bool | None = None
    total_reward: float | None = None
    cut: bool = False
    error: str | None = None
    system_prompt: str = ""
    tools: list[Tool] = []
    model_id: str | None = None

    @property
    def trajectory_id(self) -> str:
        """Its name among the runs of its task: the task and the hash of what was done."""
        return (
            f"{self.task_id}:{hash_json([self.instruction, msgspec.to_builtins(self.steps)])[:16]}"
        )

    @property
    def answer(self) -> str | None:
        """The agent's last words, if it ended with words; else `None`."""
        return _words(self.steps[-1]) if self.steps and is_answer(self.steps[-1]) else None


def is_answer(step: TrajectoryStep) -> bool:
    """Whether a step, if it is the last, ends the run in words."""
    return not step.observation and (not step.action or _finish(step) is not None)


def save_trajectories(path: str | Path, trajectories: Iterable[AgentTrajectory]) -> Path:
    """Write a JSON lines file that `load_trajectories` reads; the whole file, or nothing.

    Raises:
        OSError: it cannot be written.
    """
    lines = (dump_json_line(msgspec.to_builtins(trajectory)) for trajectory in trajectories)
    return write_atomically(Path(path), "".join(lines).encode("utf-8"))


def load_trajectories(path: str | Path, *, cut_off: bool = False) -> list[AgentTrajectory]:
    """The trajectories of a JSON lines file, in its order; fields that there are not are passed
    over, empty lines too.

    `cut_off`: a last line that ends in the middle (its writer was killed) is left out.

    Raises:
        StoreError: the file cannot be read.
        DataError: a line is not a trajectory; says which, and why.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise StoreError(
            f"The trajectories {path} cannot be read ({error.strerror}): give a JSON lines file."
        ) from error
    trajectories = []
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            trajectories.append(msgspec.json.decode(line, type=AgentTrajectory))
        except (msgspec.MsgspecError, UnicodeError) as error:
            if cut_off and line_number == len(lines):
                break
            raise DataError(
                f"Line {line_number} of {path} is not a trajectory ({error}): give each line as an "
                f"object with task_id, instruction and steps."
            ) from error
    return trajectories


def messages_of(trajectory: AgentTrajectory) -> list[Message]:
    """The trajectory as chat messages, before any repair; calls are numbered (`call_1`, …)."""
    messages: list[Message] = []
    if trajectory.system_prompt:
        messages.append({"role": "system", "content": trajectory.system_prompt})
    if trajectory.instruction:
        messages.append({"role": "user", "content": trajectory.instruction})
    results: list[Message] = []
    calls = 0
    for index, step in enumerate(trajectory.steps):
        last = index == len(trajectory.steps) - 1
        if not step.action or (last and is_answer(step)):
            messages += results
            results = []
            if words := _words(step):
                messages.append({"role": "assistant", "content": words})
            if step.observation:
                messages.append({"role": "user", "content": step.observation})
            continue
        calls += 1
        if step.parallel and messages and messages[-1].get("tool_calls"):
            calling = messages[-1]
            calling["content"] = "\n".join(filter(None, (calling["content"], step.thought)))
        else:
            messages += results
            results = []
            calling = {"role": "assistant", "content": step.thought, "tool_calls": []}
            messages.append(calling)
        arguments = step.invalid_input or json.dumps(step.action_input, ensure_ascii=False)
        calling["tool_calls"].append(
            {
                "id": f"call_{calls}",
                "type": "function",
                "function": {"name": step.action, "arguments": arguments},
            }
        )
        if step.observation is not None:
            results.append(
                {"role": "tool", "tool_call_id": f"call_{calls}", "content": step.observation}
            )
    return messages + results


def session_of(trajectory: AgentTrajectory) -> Session:
    """The trajectory as a canonical session, before any repair."""
    judgment = (
        None
        if trajectory.success is None
        else "acceptable"
        if trajectory.success
        else "unacceptable"
    )
    return Session(
        session_id=trajectory.trajectory_id,
        project="trajectories",
        agent=trajectory.model_id or "agent",
        source="trajectories",
        messages=messages_of(trajectory),
        tools=trajectory.tools,
        tools_origin="source" if trajectory.tools else "none",
        task_id=trajectory.task_id,
        model_id=trajectory.model_id,
        judgment=judgment,
        score=number(trajectory.total_reward),
        error=trajectory.error,
    )


def trajectory_of(session: Session) -> AgentTrajectory:
    """A repaired session as a trajectory: a user's message at its beginning is the instruction,
    later ones are observations.

    Of the source's verdict `success` is the judgment and `total_reward` the score.
    """
    spoken = [message for message in session.messages if message["role"] != "system"]
    request = spoken[0]["content"] if spoken and spoken[0]["role"] == "user" else ""
    system = "\n\n".join(
        message["content"] for message in session.messages if message["role"] == "system"
    )
    verdicts = {"acceptable": True, "unacceptable": False}
    return AgentTrajectory(
        session.task_id or session.task_key or session.session_id,
        request,
        _steps(spoken[bool(request) :]),
        verdicts.get(session.judgment or ""),
        session.score,
        error=session.error,
        system_prompt=system,
        tools=session.tools,
        model_id=session.model_id,
    )


def _steps(messages: list[Message]) -> list[TrajectoryStep]:
    """Steps of the messages from the agent's first one on; a call's result is the message that
    names it, anywhere before the next call with its id.
    """
    open_calls: dict[str, TrajectoryStep] = {}
    steps: list[TrajectoryStep] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            called = open_calls.pop(message.get("tool_call_id", ""), None)
            if called is not None:
                called.observation = content
        elif role == "assistant":
            for index, call in enumerate(message.get("tool_calls") or ()):
                step = _called(call["function"]["name"], call["function"]["arguments"])
                step.thought, step.parallel = "" if index else content, index > 0
                open_calls[call["id"]] = step
                steps.append(step)
            if not message.get("tool_calls"):
                steps.append(TrajectoryStep(content))
        elif steps and not steps[-1].action and steps[-1].observation is None:
            steps[-1].observation = content
        else:  # the user spoke where the agent had not
            steps.append(TrajectoryStep(observation=content))
    return steps


def _called(name: str, raw: str) -> TrajectoryStep:
    """The step of a call; arguments that are no JSON object in any of the forms that repair can fix
    are its `invalid_input`.
    """
    damage: Counter[str] = Counter()
    text = repair_arguments(raw, damage)
    if damage["invalid_arguments"]:
        return TrajectoryStep(action=name, invalid_input=raw)
    return TrajectoryStep(action=name, action_input=json.loads(text))


def _words(step: TrajectoryStep) -> str:
    """What a step says to the user."""
    finish = _finish(step) if step.action else ""
    return "\n".join(filter(None, (step.thought, finish)))


def _finish(step: TrajectoryStep) -> str | None:
    """The answer that ReAct's closing action carries: the one value of its input, if that is a
    text.
    """
    values = list(step.action_input.values())
    closes = (
        step.action.lower() == FINISH
        and not step.invalid_input
        and len(values) == 1
        and isinstance(values[0], str)
    )
    return values[0] if closes else None
