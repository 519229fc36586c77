"""The settings that `init` writes and that `doctor` shows, from a readiness report."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

import msgspec

from agent_pipeline.config.settings import read_tools
from agent_pipeline.config.starting_file import Choice, write_tables
from agent_pipeline.errors import SettingsError
from agent_pipeline.readiness.base_choice import BaseChoice, propose_max_length
from agent_pipeline.readiness.report import (
    AgentReport,
    MetricFacts,
    Readiness,
    TokenCounts,
)
from agent_pipeline.readiness.screen import WIDTH

JudgeChoice = Literal["labels", "model", "nobody"]
"""Who will judge sessions without a verdict: people, a language model, or nobody yet."""
JUDGES: tuple[JudgeChoice, ...] = get_args(JudgeChoice)

LABELS_FOLDER = "labels"


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to the questions of `init`.

    Attributes:
        base: The base model.
        use_patterns: Whether the proposed task patterns are used.
        judge: Who judges sessions without a verdict.
        metrics: The direction of each metric that judges: higher, lower or a comparison.
        tools: The file of tool schemas, if the store does not record them.
        tools_files: Files beside the stores that have the schemas of an agent's tools, by
            partition.
    """

    base: BaseChoice
    use_patterns: bool = True
    judge: JudgeChoice = "labels"
    metrics: Mapping[str, str] = {}
    tools: str = ""
    tools_files: Mapping[str, str] = {}


def propose_choices(report: Readiness, stores: Sequence[str], answers: Answers) -> list[Choice]:
    """Return the proposed settings for the stores of a report.

    Args:
        report: The report, made without the proposed settings.
        stores: The stores, as the file will name them.
        answers: The answers to the questions.
    """
    base = answers.base
    sessions = sum(agent.contents.sessions for agent in report.agents)
    unjudged = sum(agent.judges.verdicts.get("nobody", 0) for agent in report.agents)
    choices = [
        Choice(
            (),
            "store",
            stores[0] if len(stores) == 1 else list(stores),
            f"Where the sessions are: {sessions:,} sessions of {_name_agents(report)}. "
            "agent-pipeline never changes them.",
        ),
        Choice((), "lake", "lake", "Where agent-pipeline writes tables and models."),
        Choice((), "base_model", base.base_model, f"The model to train: {base.why}."),
    ]
    if base.preset:
        choices.append(Choice((), "preset", base.preset, "Settings for this kind of machine."))
    choices.append(
        Choice(
            (),
            "labels",
            LABELS_FOLDER,
            f"People's judgments. {unjudged:,} of {sessions:,} sessions have no verdict yet.",
            is_hint=not unjudged or answers.judge != "labels",
        )
    )
    if unjudged and answers.judge == "model":
        judge = ("judge",)
        choices += [
            Choice(judge, "endpoint", "https://host/v1", "The model that judges.", is_hint=True),
            Choice(judge, "model", "name-of-the-model", is_hint=True),
        ]
    choices.append(
        Choice(
            ("notify",),
            "urls",
            [],
            "Addresses for notifications of nightly runs, such as slack://…: see "
            "docs/how-to/slack.md.",
        )
    )
    choices += [
        Choice(
            ("agents", partition, "assets", "sft_adapter"),
            "base_model",
            agent_base.base_model,
            f"The model to train for this agent: {agent_base.why}.",
        )
        for partition, agent_base in base.own.items()
    ]
    choices += _shorten_hints(
        [choice for agent in report.agents for choice in _propose_for_agent(agent, answers)]
    )
    if not (answers.use_patterns and any(agent.tasks.task_pattern for agent in report.agents)):
        # A task pattern changes the tasks, so that the splits are only known with the pattern.
        choices += propose_split(report.agents)
    return choices


def _shorten_hints(choices: Sequence[Choice]) -> list[Choice]:
    """Return the settings of all agents, with each comment for the first agents only.

    A store of 85 agents made a file of 340 lines, nearly all of which said the same.
    """
    hints: defaultdict[str, list[Choice]] = defaultdict(list)
    for choice in choices:
        if choice.is_hint:
            hints[choice.name].append(choice)
    shortened = []
    for choice in choices:
        same = hints[choice.name] if choice.is_hint else []
        more = len(same) - _MAX_NAMES
        if choice in same[_MAX_NAMES:]:
            continue
        if more > 0 and choice is same[_MAX_NAMES - 1]:
            what = f"You can set {choice.name} of {more:,} other agents in the same way."
            choice = msgspec.structs.replace(choice, comment=f"{choice.comment} {what}")
        shortened.append(choice)
    return shortened


def propose_remedies(agents: Sequence[AgentReport]) -> list[Choice]:
    """Return settings that remove blockers: longer rows, sizes of the splits, shortened sessions.

    The other proposed settings must be in force already. The base model and the schemas of the
    tools change the lengths, and task patterns change the tasks.

    Args:
        agents: The reports on the agents.
    """
    longer = []
    for agent in agents:
        tokens = agent.contents.tokens
        if tokens and not tokens.is_estimate:
            length = propose_max_length(tokens)
            if length > agent.max_length:
                longer.append(_choose_length(agent, tokens, length))
    shortened = [
        Choice(
            ("agents", agent.partition, "assets", "sft_adapter"),
            "most_dropped",
            agent.most_dropped,
            "Maximum share of the rows that may be longer than the context of the base model. "
            "These rows lose their oldest messages. A base model with a longer context can read "
            "them completely.",
        )
        for agent in agents
        if agent.most_dropped is not None
    ]
    return longer + propose_split(agents) + shortened


def propose_split(agents: Sequence[AgentReport]) -> list[Choice]:
    """Return sizes of the splits, if no agent can be trained because splits are empty.

    The sizes count for all agents. They suit the agent with the most trainable sessions.

    Args:
        agents: The reports on the agents.
    """
    if any(agent.is_ready for agent in agents):
        return []
    agent = max(
        (agent for agent in agents if agent.fuller_split),
        key=lambda agent: agent.trainable,
        default=None,
    )
    if agent is None or agent.fuller_split is None:
        return []
    comment = (
        f"With the default sizes, a split of {agent.partition} has no task. Do not change the "
        "sizes after the first night."
    )
    sizes = agent.fuller_split
    return [
        Choice(("split",), "test", sizes.test, comment),
        Choice(("split",), "select", sizes.select),
    ]


def match_tools_files(files: Sequence[str], agents: Sequence[AgentReport]) -> dict[str, str]:
    """Return the files with the schemas of the tools that agents without schemas call.

    Args:
        files: Files that no reader of sessions knows.
        agents: The reports on the agents.

    Returns:
        The first such file of each agent, by partition.
    """
    names_by_file: dict[str, set[str]] = {}
    for file in files:
        with suppress(SettingsError, KeyError, TypeError):  # another kind of file
            if file.endswith(".json"):
                schemas = read_tools(Path(file))
                names_by_file[file] = {tool["function"]["name"] for tool in schemas}
    matches: dict[str, str] = {}
    for agent in agents:
        called = set(agent.contents.called_tools)
        for file, names in names_by_file.items():
            if agent.contents.inferred_tools and called <= names:
                matches.setdefault(agent.partition, file)
    return matches


def _name_agents(report: Readiness) -> str:
    names = [agent.partition for agent in report.agents]
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES} others"


_MAX_NAMES = 3


def propose_settings(agent: AgentReport) -> list[str]:
    """Return lines for `pipeline.toml` that would improve what a report on an agent says."""
    judged = ("agents", agent.partition, "assets", "judged_sessions")
    choices = list(_propose_pattern(agent))
    judges = agent.judges
    if judges.undeclared_metrics and not (judges.acceptable or judges.unacceptable):
        choices += [
            _choose_direction((*judged, "metrics"), name, facts)
            for name, facts in judges.undeclared_metrics.items()
        ]
    choices += propose_remedies([agent])
    if agent.fuller_split is None and agent.outlook.share is not None:
        comment = (
            "Holds out enough of the current tasks for a decision. Do not change the sizes after "
            "the first night."
        )
        choices.append(Choice(("split",), "select", agent.outlook.share, comment))
    return list(write_tables(choices, WIDTH - len("  ")))


def _choose_direction(table: tuple[str, ...], name: str, facts: MetricFacts) -> Choice:
    """Return the setting of a metric whose direction only a person knows, as a comment.

    The limits of scores fit values between 0 and 1. For other values, a comparison is shown.

    Args:
        table: The table of the metrics.
        name: The name of the metric.
        facts: The values of the metric.
    """
    known = f"From {facts.low:g} to {facts.high:g} in {facts.sessions:,} sessions"
    if facts.low >= 0 and facts.high <= 1:
        comment = (
            f"{known}. If lower values are better, write lower. You can also write a comparison, "
            "such as '>= 0.8'."
        )
        return Choice(table, name, "higher", comment, is_hint=True)
    spread = facts.high - facts.low
    most, least = facts.low + 0.2 * spread, facts.low + 0.8 * spread
    comment = (
        f"{known}: choose the limit. If less is better, '<= {most:.3g}' for example. The words "
        "higher and lower are for values from 0 to 1."
    )
    return Choice(table, name, f">= {least:.3g}", comment, is_hint=True)


def _propose_pattern(agent: AgentReport, is_hint: bool = False) -> Iterator[Choice]:
    """Yield the proposed task pattern, if there is one."""
    tasks = agent.tasks
    if tasks.task_pattern:
        yield Choice(
            ("agents", agent.partition),
            "task_pattern",
            tasks.task_pattern,
            f"{tasks.grouped:,} sessions look like trials of {tasks.grouped_tasks:,} tasks, by "
            "their ids and requests.",
            is_hint,
        )


def _choose_length(agent: AgentReport, tokens: TokenCounts, length: int) -> Choice:
    """Return the setting of the longest training row, which the evaluations follow."""
    comment = (
        f"The longest session has {tokens.longest:,} tokens, and 90 % have at most {tokens.p90:,}."
    )
    table = ("agents", agent.partition, "assets", "sft_adapter")
    return Choice(table, "max_length", length, comment)


def _propose_for_agent(agent: AgentReport, answers: Answers) -> Iterator[Choice]:
    """Yield the proposed settings of one agent."""
    table = ("agents", agent.partition)
    contents = agent.contents
    yield from _propose_pattern(agent, is_hint=not answers.use_patterns)
    if contents.without_system_prompt:
        yield Choice(
            table,
            "system_prompt",
            "",
            f"{contents.without_system_prompt:,} sessions have no system prompt: write the prompt "
            "that the agent will have when it is served.",
            is_hint=True,
        )
    if contents.inferred_tools:
        file = answers.tools or answers.tools_files.get(agent.partition, "")
        comment = (
            f"The store has no tool schemas for {contents.inferred_tools:,} sessions: without a "
            "file of OpenAI function schemas, the schemas are inferred from the calls."
        )
        if file:
            comment = f"{comment} This file has a schema of every tool that was called."
        yield Choice(table, "tools", file or "tools.json", comment, is_hint=not file)
    judged = ("agents", agent.partition, "assets", "judged_sessions")
    declared = {
        name: rule
        for name, rule in answers.metrics.items()
        if name in agent.judges.undeclared_metrics
    }
    if declared:
        yield Choice(judged, "metrics", declared, "The metrics of the store that give verdicts.")
