"""The steps of an agent's run, files of runs, and the conversion to and from sessions.

A trajectory holds the same facts as a chat:

| step | chat |
|---|---|
| with an action | the agent's words (`thought`) with a tool call; the observation is its result |
| without an action | words to the user; the observation is the user's next message |
| the last step, without an action | the answer |
| the last step, with ReAct's action `finish` and one text | the answer |

How agents are run belongs to `collector`.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from agent_pipeline.errors import DataError, StoreError
from agent_pipeline.sessions.json_text import dump_json_line, repair_arguments
from agent_pipeline.sessions.session import Message, Session, Tool, ToolCall, hash_json
from agent_pipeline.sources.formats.fields import number
from agent_pipeline.storage.filesystem import write_atomically
from agent_pipeline.structs import decode_json

FINISH = "finish"
"""Name of the action with which a ReAct agent gives its answer, in any letter case."""

VERDICTS: dict[bool | None, str | None] = {True: "acceptable", False: "unacceptable", None: None}


class TrajectoryStep(msgspec.Struct):
    """One step of an agent's run.

    Attributes:
        thought: The agent's words.
        action: The name of the tool; empty if the step has no call.
        action_input: The arguments of the call.
        observation: What came back; None if nothing came back.
        reward: The reward; None if nobody gave a reward.
        parallel: Whether the call belongs to the same message as the call of the step before.
        invalid_input: The arguments as the agent wrote them, if they are not a JSON object.
    """

    thought: str = ""
    action: str = ""
    action_input: dict[str, Any] = {}
    observation: str | None = None
    reward: float | None = None
    parallel: bool = False
    invalid_input: str = ""


class AgentTrajectory(msgspec.Struct):
    """One run of an agent on one task.

    Attributes:
        task_id: The task.
        instruction: The words of the task.
        steps: The steps.
        success: Whether the run succeeded; None if it is not known.
        total_reward: The reward of the run; None if it is not known.
        cut: Whether the collector stopped the run at its limit.
        error: A failure of the infrastructure, such as an endpoint. Such a run is neither good nor
            bad.
        system_prompt: The system prompt of the agent.
        tools: OpenAI schemas of the tools.
        model_id: The model.
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
        """Return the id of the run, which consists of the task's id and a hash of the steps."""
        content = [self.instruction, msgspec.to_builtins(self.steps)]
        return f"{self.task_id}:{hash_json(content)[:16]}"

    @property
    def answer(self) -> str | None:
        """Return the agent's last text, or None if the run does not end with a text."""
        if not self.steps or not is_answer(self.steps[-1]):
            return None
        return _join_words(self.steps[-1])


def is_answer(step: TrajectoryStep) -> bool:
    """Return whether a step, if it is the last step, ends the run with a text."""
    return not step.observation and (not step.action or _get_finish(step) is not None)


def save_trajectories(path: str | Path, trajectories: Iterable[AgentTrajectory]) -> Path:
    """Write runs to a JSON Lines file. If writing fails, the old file stays unchanged.

    Raises:
        OSError: The file cannot be written.
    """
    lines = (dump_json_line(msgspec.to_builtins(trajectory)) for trajectory in trajectories)
    return write_atomically(Path(path), "".join(lines).encode("utf-8"))


def load_trajectories(path: str | Path, *, cut_off: bool = False) -> list[AgentTrajectory]:
    """Return the runs in a JSON Lines file, in order.

    Args:
        path: The file. Its empty lines and unknown fields are ignored.
        cut_off: Whether an incomplete last line is ignored, because its writer was killed.

    Raises:
        StoreError: The file cannot be read.
        DataError: A line is not a trajectory.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise StoreError(
            f"The trajectory file {path} cannot be read ({error.strerror}): give a JSON Lines "
            "file.",
            path=path,
        ) from error
    trajectories: list[AgentTrajectory] = []
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            trajectories.append(decode_json(line, AgentTrajectory))
        except (msgspec.MsgspecError, UnicodeError) as error:
            if cut_off and line_number == len(lines):
                break
            raise DataError(
                f"Line {line_number} of {path} is not a trajectory ({error}): write each line as "
                "an object with `task_id`, `instruction` and `steps`.",
                path=path,
            ) from error
    return trajectories


def make_run_messages(trajectory: AgentTrajectory) -> list[Message]:
    """Convert a run into a chat that is not repaired yet.

    Calls get the ids `call_1`, `call_2`, ….
    """
    messages: list[Message] = []
    if trajectory.system_prompt:
        messages.append({"role": "system", "content": trajectory.system_prompt})
    if trajectory.instruction:
        messages.append({"role": "user", "content": trajectory.instruction})
    results: list[Message] = []  # of the last message with calls
    call_count = 0
    for index, step in enumerate(trajectory.steps):
        is_last = index == len(trajectory.steps) - 1
        is_call = bool(step.action) and not (is_last and is_answer(step))
        is_parallel = is_call and step.parallel and bool(messages) and "tool_calls" in messages[-1]
        if not is_parallel:
            messages += results
            results = []
        if not is_call:
            words = _join_words(step)
            if words:
                messages.append({"role": "assistant", "content": words})
            if step.observation:
                messages.append({"role": "user", "content": step.observation})
            continue
        call_count += 1
        call = _make_call(step, f"call_{call_count}")
        if is_parallel:
            message = messages[-1]
            message["content"] = "\n".join(filter(None, (message["content"], step.thought)))
            message["tool_calls"].append(call)
        else:
            messages.append({"role": "assistant", "content": step.thought, "tool_calls": [call]})
        if step.observation is not None:
            results.append(
                {"role": "tool", "tool_call_id": call["id"], "content": step.observation}
            )
    return messages + results


def _make_call(step: TrajectoryStep, call_id: str) -> ToolCall:
    arguments = step.invalid_input or json.dumps(step.action_input, ensure_ascii=False)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": step.action, "arguments": arguments},
    }


def make_run_session(trajectory: AgentTrajectory) -> Session:
    """Convert a run into a session that is not repaired yet."""
    return Session(
        session_id=trajectory.trajectory_id,
        project="trajectories",
        agent=trajectory.model_id or "agent",
        source="trajectories",
        messages=make_run_messages(trajectory),
        tools=trajectory.tools,
        tools_origin="source" if trajectory.tools else "none",
        task_id=trajectory.task_id,
        model_id=trajectory.model_id,
        judgment=VERDICTS[trajectory.success],
        score=number(trajectory.total_reward),
        error=trajectory.error,
    )


def make_trajectory(session: Session) -> AgentTrajectory:
    """Convert a repaired session into a run.

    The user's first message is the instruction, and the user's later messages are observations. The
    judgment of the source is `success`, and its score is `total_reward`.
    """
    spoken = [message for message in session.messages if message["role"] != "system"]
    system_texts = [
        message["content"] for message in session.messages if message["role"] == "system"
    ]
    instruction = spoken[0]["content"] if spoken and spoken[0]["role"] == "user" else ""
    return AgentTrajectory(
        session.task_id or session.task_key or session.session_id,
        instruction,
        _make_steps(spoken[1:] if instruction else spoken),
        {"acceptable": True, "unacceptable": False}.get(session.judgment or ""),
        session.score,
        error=session.error,
        system_prompt="\n\n".join(system_texts),
        tools=session.tools,
        model_id=session.model_id,
    )


def _make_steps(messages: list[Message]) -> list[TrajectoryStep]:
    """Convert messages into the steps of a run.

    The result of a call is the message with the id of the call, before the next call with this id.
    """
    open_calls: dict[str, TrajectoryStep] = {}
    steps: list[TrajectoryStep] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            called_step = open_calls.pop(message.get("tool_call_id", ""), None)
            if called_step is not None:
                called_step.observation = content
        elif role == "assistant":
            calls = message.get("tool_calls") or []
            for index, call in enumerate(calls):
                step = _make_call_step(call["function"]["name"], call["function"]["arguments"])
                step.thought, step.parallel = "" if index else content, index > 0
                open_calls[call["id"]] = step
                steps.append(step)
            if not calls:
                steps.append(TrajectoryStep(content))
        elif steps and not steps[-1].action and steps[-1].observation is None:
            steps[-1].observation = content
        else:  # the user wrote twice, or after a result
            steps.append(TrajectoryStep(observation=content))
    return steps


def _make_call_step(name: str, arguments: str) -> TrajectoryStep:
    damage: Counter[str] = Counter()
    repaired = repair_arguments(arguments, damage)
    if damage["invalid_arguments"]:
        return TrajectoryStep(action=name, invalid_input=arguments)
    return TrajectoryStep(action=name, action_input=json.loads(repaired))


def _join_words(step: TrajectoryStep) -> str:
    """Return the text that a step says to the user."""
    finish = _get_finish(step) if step.action else ""
    return "\n".join(filter(None, (step.thought, finish)))


def _get_finish(step: TrajectoryStep) -> str | None:
    """Return the answer in the input of a ReAct agent's final action, or None."""
    if step.action.lower() != FINISH or step.invalid_input or len(step.action_input) != 1:
        return None
    (answer,) = step.action_input.values()
    return answer if isinstance(answer, str) else None
