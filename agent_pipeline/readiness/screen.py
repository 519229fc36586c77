"""The text of a readiness report for people: one screen of 80 columns."""

import json
import shlex
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from agent_pipeline.evaluation.tool_effects import DECLARED
from agent_pipeline.promotion.next_steps import RECENT_DAYS
from agent_pipeline.readiness.precondition_proposals import ProposedPrecondition
from agent_pipeline.readiness.report import (
    AgentReport,
    BlockerKind,
    Contents,
    DecisionOutlook,
    Judges,
    Machine,
    Readiness,
    Tasks,
    TrainingOutlook,
    VerdictOrigin,
    Worth,
)

WIDTH = 80
_LABEL = 11
"""Width of the column of labels."""
_MAX_KINDS = 5
"""Maximum number of kinds that a line names."""
_MAX_NOTES = 5
_MAX_AGENTS = 5
"""Maximum number of agents that a report on several agents describes."""
_FAR_AWAY_WEEKS = 520
_MINUTES_PER_HOUR = 60
_LARGE_RATE = 10
"""Rate from which no decimals are shown."""
_LONG_HOURS = 3
"""Time from which hours are shown instead of minutes."""

_ORIGINS = {
    "person": "by a person",
    "benchmark": "by a benchmark",
    "store": "by a judgment in the store",
    "score": "by a score",
    "metrics": "by a metric",
    "model": "by a language model",
    "policy": "by a setting",
    "nobody": "by nobody",
}


REASONS: dict[BlockerKind, str] = {
    "no_sessions": "they have no sessions",
    "no_agent": "no agent answers",
    "no_request": "no session has a request",
    "unread_metrics": "no setting says which values of their metrics are good",
    "unjudged": "nobody judged the sessions",
    "all_bad": "all judged sessions are bad",
    "all_dropped": "no good session can be used",
    "leaks": "trials of a task are in two splits",
    "overlap": "a session is in two splits",
    "split": "a split is empty",
    "length": "sessions are too long",
}


def describe_readiness(report: Readiness, store: str = "") -> Iterator[str]:
    """Yield the lines of a report on all agents and the machine: one screen.

    If there are several agents, the agents that are nearest to a model have two or three lines
    each, and the other agents are counted.

    Args:
        report: The report.
        store: The store, if `doctor` got it as an argument.
    """
    yield from _wrap("store", ", ".join(report.stores))
    if len(report.agents) > 1:
        yield from _describe_agents(report.agents, store)
    for agent in report.agents if len(report.agents) == 1 else ():
        yield ""
        yield from describe_agent(agent)
    yield ""
    yield from describe_machine(report.machine)
    if report.unknown:
        names = ", ".join(report.unknown[:_MAX_KINDS])
        yield from _wrap(
            "note", (f"No reader recognizes {_count(len(report.unknown), 'file')}: {names}")
        )
    for error in report.errors[:_MAX_NOTES]:
        yield from _wrap("error", error)
    if len(report.errors) > _MAX_NOTES:
        yield from _wrap("error", f"{len(report.errors) - _MAX_NOTES:,} more errors: see --json.")


def _describe_agents(agents: Sequence[AgentReport], store: str) -> Iterator[str]:
    """Yield the lines about several agents."""
    contents, judges = [agent.contents for agent in agents], [agent.judges for agent in agents]
    sessions = sum(content.sessions for content in contents)
    ready = sum(agent.is_ready for agent in agents)
    yield from _wrap(
        "agents",
        f"{len(agents):,} agents: {ready:,} trainable, {len(agents) - ready:,} not yet.",
    )
    yield from _wrap(
        "content",
        f"{_count(sessions, 'session')}, {_count(sum(item.turns for item in contents), 'turn')}, "
        f"{_count(sum(item.calls for item in contents), 'call')}; damage in "
        f"{_count(sum(item.damaged for item in contents), 'session')}.",
    )
    origins: Counter[VerdictOrigin] = Counter()
    for agent_judges in judges:
        origins.update(agent_judges.verdicts)
    yield from _wrap(
        "judged",
        ", ".join(f"{count:,} {_ORIGINS[origin]}" for origin, count in origins.most_common())
        + f"; {sum(item.acceptable for item in judges):,} acceptable, "
        f"{sum(item.unacceptable for item in judges):,} unacceptable.",
    )
    ordered = sorted(agents, key=measure_distance)
    for agent in ordered[:_MAX_AGENTS]:
        yield ""
        yield from _describe_briefly(agent)
    yield ""
    others = ordered[_MAX_AGENTS:]
    if others:
        yield from _wrap("others", f"{_count(len(others), 'agent')}: {_count_states(others)}.")
    command = " ".join(filter(None, ["agent-pipeline doctor", shlex.quote(store) if store else ""]))
    yield from _wrap(
        "details", f"`{command} AGENT` shows an agent with its settings, tools and rules."
    )


def measure_distance(agent: AgentReport) -> tuple[bool, bool, int, int]:
    """Return how far an agent is from a model, as a key that sorts the nearest agent first."""
    return (
        not agent.is_ready,
        not agent.outlook.is_possible,
        len(agent.blockers),
        -(agent.trainable or agent.judges.acceptable),
    )


def _describe_briefly(agent: AgentReport) -> Iterator[str]:
    """Yield the verdict on an agent, and its first reason or its training run."""
    yield from textwrap.wrap(f"{agent.partition}: {describe_verdict(agent)}", WIDTH)
    if agent.blockers:
        yield from _wrap("because", agent.blockers[0].sentence.partition("\n")[0])
    elif agent.training:
        yield from _wrap("training", describe_training(agent.training))


def _count_states(agents: Sequence[AgentReport]) -> str:
    """Return how many agents are trainable, and the first reasons against the others."""
    ready = sum(agent.is_ready for agent in agents)
    reasons = Counter(REASONS[agent.blockers[0].kind] for agent in agents if agent.blockers)
    parts = [f"{ready:,} trainable"] if ready else []
    parts += [f"{count:,} not yet, because {reason}" for reason, count in reasons.most_common()]
    return "; ".join(parts)


def describe_agent(agent: AgentReport) -> Iterator[str]:
    """Yield the lines of the report on an agent. The verdict comes first."""
    yield from textwrap.wrap(f"{agent.partition}: {describe_verdict(agent)}", WIDTH)
    for blocker in agent.blockers:
        for line_index, line in enumerate(blocker.sentence.splitlines()):
            yield from _wrap("because" if not line_index else "", line)
    yield from _describe_contents(agent.contents)
    yield from _wrap("judged", _describe_judges(agent.judges))
    yield from _describe_agreement(agent.judges)
    yield from _wrap("dropped", _list_counts(agent.dropped))
    yield from _wrap("tasks", _describe_tasks(agent.tasks))
    if agent.trainable:
        yield from _wrap("decision", describe_outlook(agent.outlook))
    if agent.training:
        yield from _wrap("training", describe_training(agent.training))
    yield from _describe_effects(agent)
    yield from _wrap("own model", describe_worth(agent.worth))
    for note in agent.notes[:_MAX_NOTES]:
        yield from _wrap("note", note.partition("\n")[0])
    if agent.settings:
        yield from _wrap("settings", "to paste into pipeline.toml:")
        yield from (f"  {line}" for line in agent.settings)
    if agent.preconditions:
        yield from _wrap("rules", "to paste into pipeline.toml, if they are meant as rules:")
        yield from (f"  {line}" for line in describe_preconditions(agent))


def _describe_effects(agent: AgentReport) -> Iterator[str]:
    """Yield the tools that read and the tools that write, with the reasons.

    If the settings do not name the tools that read, a line to confirm them follows.
    """
    by_reason: defaultdict[tuple[bool, str], list[str]] = defaultdict(list)
    for effect in agent.tool_effects:
        by_reason[effect.writes, effect.described_reason].append(effect.tool)
    groups = sorted(by_reason.items())
    for index, ((writes, reason), tools) in enumerate(groups):
        word = "write" if writes else "read"
        yield from _wrap("" if index else "tools", f"{word}: {', '.join(tools)} ({reason})")
    if any(effect.reason != DECLARED for effect in agent.tool_effects):
        reads = [effect.tool for effect in agent.tool_effects if not effect.writes]
        line = f"reads = {json.dumps(reads, ensure_ascii=False)}"
        yield from _wrap("", f'correct and confirm it in [agents."{agent.partition}"]:')
        yield f"  {line}"


def describe_preconditions(agent: AgentReport) -> Iterator[str]:
    """Yield the proposed preconditions as lines of TOML, with the evidence as comments."""
    yield f'[agents."{agent.partition}".preconditions]'
    by_tool: defaultdict[str, list[ProposedPrecondition]] = defaultdict(list)
    for proposal in agent.preconditions:
        by_tool[proposal.tool].append(proposal)
    for tool, proposals in by_tool.items():
        yield f"{json.dumps(tool)} = ["
        for proposal in proposals:
            yield f"    # {proposal.evidence}"
            yield f"    {json.dumps(proposal.precondition, ensure_ascii=False)},"
        yield "]"


def describe_verdict(agent: AgentReport) -> str:
    """Return the verdict on an agent: trainable or not yet, and the numbers behind it."""
    word = "trainable" if agent.is_ready else "not yet trainable"
    if agent.is_ready and not agent.outlook.is_possible:
        word = "trainable, but a decision is not possible yet"
    trained = sum(agent.tasks.trained.values())
    held_out = agent.tasks.trained.get("select", 0)
    numbers = (
        f"{agent.trainable:,} of {agent.contents.sessions:,} sessions can be used for training"
    ) + (
        f"; {_count(trained, 'task')}, {held_out:,} of them held out for the decision"
        if trained
        else ""
    )
    return f"{word}. {numbers}."


def describe_outlook(outlook: DecisionOutlook) -> str:
    """Return a sentence about the held-out tasks that a decision needs."""
    turns = f"{outlook.turns_per_task:g} {'turn' if outlook.turns_per_task == 1 else 'turns'}"
    need = (
        f"needs about {outlook.needed:,} held-out tasks of {turns} to see a gain of "
        f"{outlook.gain:.0%}; "
        f"{outlook.held_out:,} are held out"
    )
    if outlook.is_possible:
        return f"{need}: possible now."
    ways = []
    if outlook.weeks is not None:
        weeks = "more than ten years"
        if outlook.weeks <= _FAR_AWAY_WEEKS:
            weeks = _count(max(1, round(outlook.weeks)), "week")
        ways.append(
            f"in {weeks} at the rate of the last {RECENT_DAYS} days "
            f"({_show_rate(outlook.tasks_per_day)} new tasks per day)"
        )
    if outlook.share is not None:
        ways.append(f"now with split.select = {outlook.share:g}")
    if not ways:
        ways.append("log sessions of more tasks")
    return f"{need}: {', or '.join(ways)}."


def describe_training(training: TrainingOutlook) -> str:
    """Return a sentence about the expected training run."""
    time = _count(max(1, round(training.hours * _MINUTES_PER_HOUR)), "minute")
    if training.hours >= _LONG_HOURS:
        time = f"{training.hours:,.0f} hours"
    sentence = (
        f"{_count(training.rows, 'row')} of up to {training.max_length:,} tokens, "
        f"{_count(training.step_rows, 'row')} per step: about {training.memory_gb:.1f} of "
        f"{training.free_gb:.1f} GB free memory and {time} on {training.device}."
    )
    return f"{sentence} {training.warning}".strip()


def describe_worth(worth: Worth) -> str:
    """Return a sentence about how frequent, narrow and checkable the agent's work is."""
    parts = []
    if worth.sessions_per_day:
        parts.append(f"{_show_rate(worth.sessions_per_day)} sessions per day")
    parts += [
        _count(worth.tools, "tool"),
        _count(worth.requests, "distinct request"),
        f"{worth.call_share:.0%} of turns are calls",
    ]
    if worth.input_tokens is not None:
        output = f" + {worth.output_tokens:,.0f} out" if worth.output_tokens is not None else ""
        parts.append(f"{worth.input_tokens:,.0f} tokens in{output} per session")
    if worth.usd_per_month is not None:
        parts.append(f"costs {worth.usd_per_month:,.2f} USD per month today")
    sentence = "; ".join(parts)
    if worth.is_cheaper is None:
        return f"{sentence}."
    word = "worth it" if worth.is_cheaper else "not worth it"
    return (
        f"{sentence}. Your own model for {worth.usd_own_model:,.2f} USD is {word} at your prices."
    )


def describe_machine(machine: Machine) -> Iterator[str]:
    """Yield the lines about the machine."""
    disk = "" if machine.disk_gb is None else f", {machine.disk_gb:,.0f} GB of free disk"
    gpus = ", ".join(f"{gpu.name} with {gpu.memory_gb:.0f} GB" for gpu in machine.gpus)
    server = machine.llama_server or "no llama-server (make llama-server installs it)"
    yield from _wrap(
        "machine",
        f"{_count(machine.cores, 'core')}, {machine.memory_gb:,.0f} GB of memory{disk}; "
        f"{gpus or 'no GPU'}; torch {machine.torch}; {server}.",
    )
    for error in machine.errors:
        yield from _wrap("error", error)


def _describe_contents(contents: Contents) -> Iterator[str]:
    text = (
        f"{_count(contents.sessions, 'session')}, {_count(contents.turns, 'turn')}, "
        f"{_count(contents.calls, 'call')}"
    )
    if contents.first and contents.last:
        text += f", from {contents.first.date()} to {contents.last.date()}"
    if contents.scripts:
        text += f"; script: {_list_counts(contents.scripts)}"
    yield from _wrap("content", f"{text}.")
    tokens = contents.tokens
    if tokens:
        about = "about " if tokens.is_estimate else ""
        yield from _wrap(
            "tokens",
            f"{about}{tokens.median:,} (median), {tokens.p90:,} (90 %), {tokens.longest:,} "
            f"(longest) per session for {tokens.base_model}, "
            f"from {_count(tokens.sampled, 'session')}.",
        )
    if contents.damaged:
        yield from _wrap(
            "damage",
            f"in {_count(contents.damaged, 'session')}: {_list_counts(contents.damage)}.",
        )
    if contents.redacted:
        yield from _wrap("private", f"{_list_counts(contents.redacted)} (sessions); replaced.")
    missing = []
    if contents.without_request:
        missing.append(f"a user's message in {_count(contents.without_request, 'session')}")
    if contents.without_system_prompt:
        missing.append(f"a system prompt in {_count(contents.without_system_prompt, 'session')}")
    if contents.inferred_tools:
        missing.append(f"tool schemas in {_count(contents.inferred_tools, 'session')}")
    if missing:
        yield from _wrap("missing", f"{', '.join(missing)}.")


def _describe_judges(judges: Judges) -> str:
    origins = ", ".join(
        f"{count:,} {_ORIGINS[origin]}" for origin, count in judges.verdicts.items()
    )
    text = f"{origins or 'no sessions'}"
    if judges.acceptable or judges.unacceptable:
        text += f"; {judges.acceptable:,} acceptable, {judges.unacceptable:,} unacceptable"
    if judges.undecided_scores:
        text += f"; {judges.undecided_scores:,} scores between the limits give no verdict"
    if judges.undeclared_metrics and judges.verdicts.get("nobody"):
        names = ", ".join(list(judges.undeclared_metrics)[:_MAX_KINDS])
        text += f"; to let a metric judge ({names}), declare its direction in metrics"
    return f"{text}."


def _describe_agreement(judges: Judges) -> Iterator[str]:
    for row in judges.agreement:
        yield from _wrap(
            "agreement",
            f"{row.judge} agrees with people on {row.share:.0%} of "
            f"{_count(row.sessions, 'session')} (95 % interval {row.low:.0%} to {row.high:.0%}).",
        )


def _describe_tasks(tasks: Tasks) -> str:
    text = (
        f"{_count(tasks.tasks, 'task')}, {tasks.median_trials:g} "
        f"{'session' if tasks.median_trials == 1 else 'sessions'} per task (most "
        f"{tasks.most_trials:,}); "
    ) + (
        f"{_count(tasks.named, 'task')} with a name"
        if tasks.named
        else ("identified by their requests")
    )
    if sum(tasks.rows.values()):
        splits = ", ".join(f"{name} {count:,}" for name, count in tasks.trained.items())
        text += f"; trainable tasks by split: {splits}"
    if tasks.leaks:
        text += f"; {_count(tasks.leaks, 'held-out session')} look like trials of trained tasks"
    if tasks.task_pattern:
        text += (
            f"; the ids show {_count(tasks.grouped_tasks, 'task')} "
            f"(task_pattern = '{tasks.task_pattern}')"
        )
    return f"{text}."


def _list_counts(counts: Mapping[str, int]) -> str:
    """Return counts by name as a phrase. Rare names are added up."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name.replace('_', ' ')} {count:,}" for name, count in ordered[:_MAX_KINDS]]
    if len(ordered) > _MAX_KINDS:
        shown.append(f"others {sum(count for _, count in ordered[_MAX_KINDS:]):,}")
    return ", ".join(shown)


def _show_rate(rate: float) -> str:
    """Return a rate with the digits that a reader needs: 0.55, 3.5 or 1,204."""
    return f"{rate:.2g}" if rate < _LARGE_RATE else f"{rate:,.0f}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _wrap(label: str, text: str) -> Sequence[str]:
    """Return a text as lines with a label in front of the first line."""
    return (
        textwrap.wrap(
            text,
            WIDTH,
            initial_indent=label.ljust(_LABEL),
            subsequent_indent=" " * _LABEL,
            break_long_words=False,
            break_on_hyphens=False,
        )
        if text
        else []
    )
