"""The base model that fits the machine and the sessions.

The sizes of the proposed models are listed here, so that a proposal needs no download.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from agent_pipeline.config.assets import AdapterConfig
from agent_pipeline.config.presets import PRESETS
from agent_pipeline.models.base_model import EMBEDDED
from agent_pipeline.readiness.report import AgentReport, TokenCounts, TrainingOutlook
from agent_pipeline.readiness.training_outlook import TrainingMachine, foresee_training
from agent_pipeline.tokenization.length_check import propose_length
from agent_pipeline.training.forecast import ModelShape
from agent_pipeline.training.size_defaults import LONGEST_DEFAULT, SMALL_BASE_OPTIONS

TokenCounter = Callable[[str, str], TokenCounts | None]
"""A function that takes a base model and a partition, and returns the lengths of its sessions.

Each model has a tokenizer of its own, and another one counts up to twice as many tokens.
"""
FEW_ROWS = 500
"""Number of training rows below which the smallest base model that fits is proposed."""
MAX_HOURS = 8
"""Longest training run that is proposed: it must end within a night."""


class BaseChoice(msgspec.Struct, frozen=True):
    """The base model that is proposed for most agents of a report, and the agents' own models.

    Attributes:
        base_model: The id of the model.
        preset: The preset of settings that goes with it.
        why: Why it is proposed.
        own: The models of the agents that another model suits better, by partition.
    """

    base_model: str
    preset: str
    why: str
    own: "Mapping[str, AgentBase]" = {}


class AgentBase(msgspec.Struct, frozen=True):
    """The base model that suits one agent.

    Attributes:
        base_model: The id of the model.
        why: Why it is proposed.
        fits: Whether the model reads the agent's sessions and can be trained on this machine.
    """

    base_model: str
    why: str
    fits: bool


@dataclass(frozen=True)
class KnownBase:
    """A base model that can be proposed.

    Attributes:
        name: The id of the model.
        shape: The sizes of the model, with the adapter weights of rank 1.
        context: The longest text that the model reads, in tokens.
    """

    name: str
    shape: ModelShape
    context: int


KNOWN_BASES = (
    KnownBase(EMBEDDED, ModelShape(134_515_008, 305_280, 30, 576, 1_536, 49_152), 8_192),
    KnownBase(
        "Qwen/Qwen3-0.6B", ModelShape(596_049_920, 630_784, 28, 1_024, 3_072, 151_936), 40_960
    ),
    KnownBase(
        "Qwen/Qwen3-1.7B", ModelShape(1_720_574_976, 1_089_536, 28, 2_048, 6_144, 151_936), 40_960
    ),
)
"""The base models that are proposed. The smallest model comes first."""


def find_known_base(name: str) -> KnownBase | None:
    """Return the sizes of a base model, if they are listed here."""
    return next((known for known in KNOWN_BASES if known.name == name), None)


def choose_base(
    agents: Sequence[AgentReport], machine: TrainingMachine, count: TokenCounter
) -> BaseChoice:
    """Return the base model that is proposed for the agents of a report on this machine.

    A model is chosen for each agent, so that a large agent does not decide for a small one. The
    model that most agents get is proposed for all. The other agents get a model of their own.

    Args:
        agents: The reports on the agents.
        machine: The device, its free memory and its speed.
        count: Returns the lengths of an agent's sessions in tokens of a base model.
    """
    preset = "gpu" if machine.device.name != "cpu" else ""
    choices = {
        agent.partition: _choose_for_agent(agent, machine, count)
        for agent in _list_with_answers(agents) or agents
    }
    frequency = Counter(choice.base_model for choice in choices.values())
    most_frequent = max(KNOWN_BASES, key=lambda known: frequency[known.name]).name
    alike = [
        agent
        for agent in agents
        if agent.partition in choices and choices[agent.partition].base_model == most_frequent
    ]
    example = max(alike, key=lambda agent: (choices[agent.partition].fits, count_rows(agent)))
    return BaseChoice(
        most_frequent,
        preset,
        choices[example.partition].why,
        {name: base for name, base in choices.items() if base.base_model != most_frequent},
    )


def _list_with_answers(agents: Sequence[AgentReport]) -> list[AgentReport]:
    """Return the agents whose sessions have answers, because the others train nothing."""
    return [agent for agent in agents if agent.contents.tokens]


def _choose_for_agent(
    agent: AgentReport, machine: TrainingMachine, count: TokenCounter
) -> AgentBase:
    """Return the base model for an agent.

    On a CPU, and for an agent with few rows, it is the smallest model that fits. On a GPU, it is
    the largest model that fits an agent with many rows.
    """
    on_gpu = machine.device.name != "cpu"
    rows = count_rows(agent)
    ordered = KNOWN_BASES if rows < FEW_ROWS or not on_gpu else KNOWN_BASES[::-1]
    problems: list[str] = []
    for known in ordered:
        lengths = count_for_base(agent.partition, known, count)
        problem = find_problem(agent, known, lengths, machine) if lengths else ""
        if not problem:
            return AgentBase(known.name, _explain(rows, on_gpu, problems), fits=True)
        problems.append(f"{known.name} {problem}")
    why = f"no known model fits this machine and these sessions ({'; '.join(problems)})"
    return AgentBase(KNOWN_BASES[0].name, why, fits=False)


def count_for_base(partition: str, known: KnownBase, count: TokenCounter) -> TokenCounts | None:
    """Return the lengths of an agent's sessions for a base model, or None without answers.

    Without the tokenizer of the model, the tokens of the embedded model are counted: it knows fewer
    words, so it counts more tokens.
    """
    lengths = count(known.name, partition)
    if lengths is not None and lengths.is_estimate:
        lengths = count(EMBEDDED, partition)
    if lengths is None:
        return None
    return msgspec.structs.replace(lengths, base_model=known.name, context=known.context)


def _explain(rows: int, on_gpu: bool, problems: Sequence[str]) -> str:
    if rows < FEW_ROWS:
        reason = f"the smallest model that fits, because an agent has at most {rows:,} rows"
    elif on_gpu:
        reason = "the largest known model that fits the GPU and the rows"
    else:
        reason = "the smallest model that fits, because PyTorch has no GPU on this machine"
    return f"{reason} ({'; '.join(problems)})" if problems else reason


def count_rows(agent: AgentReport) -> int:
    """Return the number of training rows of an agent, or of its sessions if none is judged yet."""
    return agent.tasks.rows.get("train", 0) or agent.contents.sessions


def foresee_with_base(
    agent: AgentReport, known: KnownBase, lengths: TokenCounts, machine: TrainingMachine
) -> TrainingOutlook:
    """Return the expected training run of an agent with a base model and the default options."""
    preset = PRESETS["gpu" if machine.device.name != "cpu" else "cpu"].get("sft_adapter", {})
    values = {**preset, "max_length": propose_max_length(lengths)}
    options = AdapterConfig.model_validate({"base_model": known.name} | values)
    return foresee_training(options, known.shape, lengths, count_rows(agent), machine)


def propose_max_length(counts: TokenCounts) -> int:
    """Return the `max_length` with which the sessions fit, or 0 if the default is enough.

    The longest sessions count up to `LONGEST_DEFAULT` tokens, because memory grows with the length.
    """
    if counts.longest <= SMALL_BASE_OPTIONS["max_length"]:
        return 0
    length = propose_length(min(counts.longest, max(counts.p90, LONGEST_DEFAULT)))
    return min(length, counts.context) if counts.context else length


def find_problem(
    agent: AgentReport, known: KnownBase, lengths: TokenCounts, machine: TrainingMachine
) -> str:
    """Return why a base model does not fit an agent, or an empty text."""
    if lengths.p90 > known.context:
        return f"reads {known.context:,} tokens, and too many sessions are longer"
    outlook = foresee_with_base(agent, known, lengths, machine)
    if outlook.missing_gb:
        return f"needs {outlook.missing_gb:.1f} GB more memory than is free"
    return f"would train for {outlook.hours:,.0f} hours" if outlook.hours > MAX_HOURS else ""
