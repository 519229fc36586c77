"""Filters for an agent's runs, and the conversion of good runs into training rows."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from agent_pipeline._compat.transformers import render_jinja
from agent_pipeline.compat.examples import ExampleMaker, drop_system_messages, format_counts
from agent_pipeline.compat.sage.trajectories.collector import (
    Agent,
    CollectorConfig,
    Judge,
    TrajectoryCollector,
    find_unfit_reason,
)
from agent_pipeline.compat.sage.trajectories.trajectory import AgentTrajectory, make_run_session
from agent_pipeline.datasets.splits import TaskSplit, add_splits
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.models.families import write_hermes_template
from agent_pipeline.models.rendering import as_template_wants
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Message, Tool

Format = Literal["chatml", "chatml_text", "alpaca"]


@dataclass(frozen=True)
class TrajectoryFilter:
    """A filter for an agent's runs. A run with unknown reward or success does not pass.

    Attributes:
        min_reward: The lowest reward.
        require_success: Whether the run must have succeeded.
        max_steps: The largest number of steps; None for no limit.
    """

    min_reward: float = 0.5
    require_success: bool = True
    max_steps: int | None = None

    def filter(self, trajectories: Iterable[AgentTrajectory]) -> list[AgentTrajectory]:
        """Return the runs that pass the filter, in order."""
        return [run for run in trajectories if self.find_reason(run) is None]

    def get_stats(self, trajectories: Iterable[AgentTrajectory]) -> dict[str, object]:
        """Return the numbers of runs as `total`, `kept` and `dropped` (by first reason)."""
        runs = list(trajectories)
        dropped = dict(sorted(self.count_dropped(runs).items()))
        kept = len(runs) - sum(dropped.values())
        return {"total": len(runs), "kept": kept, "dropped": dropped}

    def count_dropped(self, trajectories: Iterable[AgentTrajectory]) -> Counter[str]:
        """Count the runs that do not pass the filter, by their first reason."""
        reasons = [self.find_reason(run) for run in trajectories]
        return Counter(reason for reason in reasons if reason is not None)

    def find_reason(self, run: AgentTrajectory) -> str | None:
        """Return the reason why a run does not pass the filter, or None if it passes."""
        unfit_reason = find_unfit_reason(run, self.require_success)
        if unfit_reason is not None:
            return unfit_reason
        if self.max_steps is not None and len(run.steps) > self.max_steps:
            return "too_many_steps"
        if run.total_reward is None:
            return "reward_unknown"
        # A reward that is NaN does not pass.
        return None if run.total_reward >= self.min_reward else "reward_below_min"


@dataclass(frozen=True)
class SFTConversionConfig:
    """Options for the format of the training rows.

    | format | columns |
    |---|---|
    | `chatml` | `messages` and `tools`, for the trainers of this package |
    | `chatml_text` | `text`, rendered by the training template |
    | `alpaca` | `instruction`, `input`, `output`, and `system` and `tools` if the run has them |

    The output of `alpaca` is the run as text, in the form of ReAct. A trainer of such rows also
    trains on the tool results.

    Attributes:
        format: The format.
        include_observation: Whether tool results are kept. If not, the run is one text of the agent
            in every format.
        system_prompt: A system prompt that replaces that of the run.
        redaction: What is redacted.

    Raises:
        SettingsError: The format does not exist.
    """

    format: Format = "chatml"
    include_observation: bool = True
    system_prompt: str | None = None
    redaction: RedactionOptions = field(default_factory=RedactionOptions)

    def __post_init__(self) -> None:
        formats = get_args(Format)
        if self.format not in formats:
            raise SettingsError(
                f"The trajectory format {self.format!r} does not exist: choose one of "
                f"{', '.join(formats)}.",
                setting="format",
            )


class TrajectoryToSFTConverter:
    """A converter of runs into training rows.

    The runs are repaired and redacted like the sessions of the lake. Each row has `session_id`,
    `content_sha256` and `task_key`.

    Attributes:
        config: The form of the rows.
        counts: What became of the runs of the last `convert`: `trajectories` = `rows` + the reasons
            why runs were left out.
    """

    def __init__(self, config: SFTConversionConfig | None = None) -> None:
        self.config = config or SFTConversionConfig()
        self.counts: Counter[str] = Counter()
        self._example_maker = ExampleMaker(self.config.redaction)

    def convert(self, trajectories: Iterable[AgentTrajectory]) -> list[dict[str, object]]:
        """Convert each run that can become a row into a row, in order."""
        self.counts = Counter()
        rows: list[dict[str, object]] = []
        for trajectory in trajectories:
            row = self._make_row(trajectory)
            self.counts["trajectories"] += 1
            self.counts[row if isinstance(row, str) else "rows"] += 1
            if not isinstance(row, str):
                rows.append(row)
        return rows

    def convert_single(self, trajectory: AgentTrajectory) -> dict[str, object]:
        """Convert a run into a row.

        Raises:
            DataError: The run cannot be a row. The message has the reason.
        """
        row = self._make_row(trajectory)
        if isinstance(row, str):
            raise DataError(
                f"The trajectory of task {trajectory.task_id} cannot become a row in the format "
                f"{self.config.format} ({row}): leave it out, or repair it."
            )
        return row

    def _make_row(self, trajectory: AgentTrajectory) -> dict[str, object] | str:
        """Convert a run into a row, or return the reason why this is not possible."""
        session = make_run_session(trajectory)
        system_prompt = self.config.system_prompt
        if system_prompt is not None:
            session.messages = drop_system_messages(session.messages)
            if system_prompt:
                session.messages.insert(0, {"role": "system", "content": system_prompt})
        example = self._example_maker.make(session)
        if isinstance(example, str):
            return example
        messages, tools = example.messages, session.tools
        if self.config.format == "alpaca" or not self.config.include_observation:
            if sum(message["role"] == "user" for message in messages) != 1:
                return "not_one_user_message"
            run_text = write_react_text(messages, self.config.include_observation)
            if self.config.format == "alpaca":
                return _make_alpaca_columns(messages, tools, run_text) | example.lineage
            messages = [message for message in messages if message["role"] in ("system", "user")]
            messages.append({"role": "assistant", "content": run_text})
        if self.config.format == "chatml":
            return {"messages": messages, "tools": tools, **example.lineage}
        return {"text": render_chatml_text(messages, tools), **example.lineage}


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
) -> list[dict[str, object]]:
    """Run an agent on tasks, and return the rows of the good runs in the order of the tasks.

    Args:
        agent: The agent.
        tasks: The tasks.
        min_reward: The lowest reward of a good run.
        require_success: Whether a good run must have succeeded.
        collector: Options of the collection.
        conversion: The form of the rows.
        judge: Decides whether a run succeeded.
        split: A ledger of splits. Each row then has the split of its task.

    Raises:
        DataError: No run makes a row. The message has the counts.
    """
    collector_config = collector or CollectorConfig(require_success=require_success)
    trajectory_collector = TrajectoryCollector(agent, collector_config, judge)
    runs = trajectory_collector.collect(tasks)
    trajectory_filter = TrajectoryFilter(min_reward, require_success)
    converter = TrajectoryToSFTConverter(conversion)
    rows = converter.convert(trajectory_filter.filter(runs))
    if not rows:
        dropped = trajectory_filter.count_dropped(runs)
        counts = trajectory_collector.counts | dropped | converter.counts
        raise DataError(
            "None of the agent's runs can become a training row "
            f"({format_counts(counts, 'trajectories')}): lower `min_reward`, or give tasks that "
            "the agent can do."
        )
    return rows if split is None else list(add_splits(rows, split))


def write_react_text(messages: list[Message], include_observations: bool = True) -> str:
    """Return the agent's steps as text in the ReAct format.

    The lines begin with `Thought`, `Action`, `Action Input`, `Observation` or `Final Answer`.
    """
    lines: list[str] = []
    for message in messages:
        content = message["content"]
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or []
            is_answer = message is messages[-1] and not calls
            if content:
                lines.append(f"{'Final Answer' if is_answer else 'Thought'}: {content}")
            for call in calls:
                lines.append(f"Action: {call['function']['name']}")
                lines.append(f"Action Input: {call['function']['arguments']}")
        elif message["role"] == "tool" and include_observations:
            lines.append(f"Observation: {content}")
    return "\n".join(lines)


def render_chatml_text(messages: list[Message], tools: list[Tool]) -> str:
    """Return a chat as ChatML text, rendered by the chat template for training."""
    return render_jinja(write_hermes_template(), as_template_wants(messages, "text"), tools or None)


def _make_alpaca_columns(
    messages: list[Message], tools: list[Tool], output: str
) -> dict[str, object]:
    first_texts: dict[str, str] = {}
    for message in messages:
        first_texts.setdefault(message["role"], message["content"])
    row: dict[str, object] = {
        "instruction": first_texts.get("user", ""),
        "input": "",
        "output": output,
    }
    if first_texts.get("system"):
        row["system"] = first_texts["system"]
    if tools:
        functions = [tool.get("function", tool) for tool in tools]
        row["tools"] = json.dumps(functions, ensure_ascii=False)
    return row
