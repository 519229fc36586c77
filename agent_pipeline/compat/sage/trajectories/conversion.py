"""Good trajectories as rows that trainers read."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from agent_pipeline._compat.transformers import render_jinja
from agent_pipeline.compat.examples import Intake, counted, without_system
from agent_pipeline.compat.sage.trajectories.collecting import (
    Agent,
    CollectorConfig,
    Judge,
    TrajectoryCollector,
    why_not,
)
from agent_pipeline.compat.sage.trajectories.model import AgentTrajectory, session_of
from agent_pipeline.datasets.splits import TaskSplit, add_splits
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.models.families import write_hermes_template
from agent_pipeline.models.rendering import as_template_wants
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Message, Tool

Format = Literal["chatml", "chatml_text", "alpaca"]


@dataclass(frozen=True)
class TrajectoryFilter:
    """Which trajectories are good enough. An unknown reward or success is not enough."""

    min_reward: float = 0.5
    require_success: bool = True
    max_steps: int | None = None

    def filter(self, trajectories: Iterable[AgentTrajectory]) -> list[AgentTrajectory]:
        """The good ones, in their order."""
        return [trajectory for trajectory in trajectories if self.reason(trajectory) is None]

    def get_stats(self, trajectories: Iterable[AgentTrajectory]) -> dict[str, Any]:
        """`total`, `kept`, and `dropped`: how many for which reason, the first that holds."""
        reasons = Counter(self.reason(trajectory) for trajectory in trajectories)
        kept = reasons.pop(None, 0)
        dropped = {reason: reasons[reason] for reason in sorted(filter(None, reasons))}
        return {"total": kept + sum(dropped.values()), "kept": kept, "dropped": dropped}

    def reason(self, trajectory: AgentTrajectory) -> str | None:
        """Why one is not good enough; `None` where it is."""
        if reason := why_not(trajectory, self.require_success):
            return reason
        if self.max_steps is not None and len(trajectory.steps) > self.max_steps:
            return "too_many_steps"
        if trajectory.total_reward is None:
            return "reward_unknown"
        # NaN fails too.
        return None if trajectory.total_reward >= self.min_reward else "reward_below_min"


@dataclass(frozen=True)
class SFTConversionConfig:
    """What rows look like. `system_prompt`, where it is given, replaces the trajectory's own.

    `chatml`: `messages` and `tools`, which the trainers of this package take. `chatml_text`:
    `text`, rendered by the template that they train with. `alpaca`: `instruction`, `input`,
    `output` (and `system`, `tools` where there are some); its output is the run in words, as ReAct
    writes it. A trainer of such rows also trains on tool results, unless they are left out.

    Without `include_observation` the run is one text of the agent's, in every format.

    Raises:
        SettingsError: there is no such format.
    """

    format: Format = "chatml"
    include_observation: bool = True
    system_prompt: str | None = None
    redaction: RedactionOptions = field(default_factory=RedactionOptions)

    def __post_init__(self) -> None:
        if self.format not in get_args(Format):
            raise SettingsError(
                f"There is no trajectory format {self.format!r}: choose one of "
                f"{', '.join(get_args(Format))}."
            )


class TrajectoryToSFTConverter:
    """Trajectories to rows, repaired and redacted as every session is. Each row has `session_id`,
    `content_sha256` and `task_key`.

    `counts`, of the last `convert`, says what became of each: `trajectories` = `rows` + the
    reasons.
    """

    def __init__(self, config: SFTConversionConfig | None = None) -> None:
        self.config = config or SFTConversionConfig()
        self.counts: Counter[str] = Counter()
        self._intake = Intake(self.config.redaction)

    def convert(self, trajectories: Iterable[AgentTrajectory]) -> list[dict[str, Any]]:
        """A row for each trajectory that can be one, in their order; the others are counted."""
        self.counts = Counter()
        rows = []
        for trajectory in trajectories:
            row = self._row(trajectory)
            self.counts["trajectories"] += 1
            self.counts[row if isinstance(row, str) else "rows"] += 1
            if not isinstance(row, str):
                rows.append(row)
        return rows

    def convert_single(self, trajectory: AgentTrajectory) -> dict[str, object]:
        """One row.

        Raises:
            DataError: the trajectory can be none; says why.
        """
        row = self._row(trajectory)
        if isinstance(row, str):
            raise DataError(
                f"The trajectory of task {trajectory.task_id} makes no {self.config.format} row "
                f"({row}): leave it out, or repair it."
            )
        return row

    def _row(self, trajectory: AgentTrajectory) -> dict[str, object] | str:
        session = session_of(trajectory)
        if (system := self.config.system_prompt) is not None:
            prompt: list[Message] = [{"role": "system", "content": system}] if system else []
            session.messages = [*prompt, *without_system(session.messages)]
        example = self._intake.take(session)
        if isinstance(example, str):
            return example
        messages, tools, alpaca = example.messages, session.tools, self.config.format == "alpaca"
        if alpaca or not self.config.include_observation:
            if sum(message["role"] == "user" for message in messages) != 1:
                return "not_one_user_message"
            run = react_text(messages, self.config.include_observation)
            if alpaca:
                return _alpaca(messages, tools, run) | example.lineage
            messages = [
                *(message for message in messages if message["role"] in ("system", "user")),
                {"role": "assistant", "content": run},
            ]
        if self.config.format == "chatml":
            return {"messages": messages, "tools": tools, **example.lineage}
        return {"text": chatml_text(messages, tools), **example.lineage}


def collect_and_convert(
    agent: Agent,
    tasks: Iterable[object],
    min_reward: float = 0.5,
    require_success: bool = True,
    *,
    collector: CollectorConfig | None = None,
    conversion: SFTConversionConfig | None = None,
    judge: Judge | None = None,
    split: TaskSplit | None = None,
) -> list[dict[str, Any]]:
    """Rows of the runs that went well, in the order of the tasks; with `split` (a ledger), each has
    the split of its task.

    Raises:
        DataError: none did; says what became of them.
    """
    collecting = TrajectoryCollector(
        agent, collector or CollectorConfig(require_success=require_success), judge
    )
    runs = collecting.collect(tasks)
    chosen, converter = (
        TrajectoryFilter(min_reward, require_success),
        TrajectoryToSFTConverter(conversion),
    )
    rows = converter.convert(chosen.filter(runs))
    if not rows:
        reasons = counted(
            collecting.counts | Counter(chosen.get_stats(runs)["dropped"]) | converter.counts,
            "trajectories",
        )
        raise DataError(
            f"No run of the agent makes a training row ({reasons}): lower min_reward, or give "
            f"tasks that it can do."
        )
    return rows if split is None else list(add_splits(rows, split))


def react_text(messages: list[Message], observations: bool = True) -> str:
    """What the agent did, as one text: `Thought`, `Action`, `Action Input`, `Observation`, and its
    last words as `Final Answer`.
    """
    lines: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or ()
            if message["content"]:
                lines.append(
                    f"Thought: {message['content']}"
                    if calls or message is not messages[-1]
                    else f"Final Answer: {message['content']}"
                )
            for call in calls:
                lines += [
                    f"Action: {call['function']['name']}",
                    f"Action Input: {call['function']['arguments']}",
                ]
        elif message["role"] == "tool" and observations:
            lines.append(f"Observation: {message['content']}")
    return "\n".join(lines)


def chatml_text(messages: list[Message], tools: list[Tool]) -> str:
    """A chat as ChatML text, by the template that the pipeline trains with."""
    return render_jinja(write_hermes_template(), as_template_wants(messages, "text"), tools or None)


def _alpaca(messages: list[Message], tools: list[Tool], output: str) -> dict[str, str]:
    texts = {
        role: next((message["content"] for message in messages if message["role"] == role), "")
        for role in ("system", "user")
    }
    functions = [tool.get("function", tool) for tool in tools]
    optional = {
        "system": texts["system"],
        "tools": json.dumps(functions, ensure_ascii=False) if functions else "",
    }
    return {
        "instruction": texts["user"],
        "input": "",
        "output": output,
        **{name: text for name, text in optional.items() if text},
    }
