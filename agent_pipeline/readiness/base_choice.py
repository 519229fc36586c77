"""The base model that fits the machine and the sessions.

The sizes of the proposed models are listed here, so that a proposal needs no download.
"""

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

FEW_ROWS = 500
"""Number of training rows below which the smallest base model that fits is proposed."""
MAX_SHARE_TOO_LONG = 0.1
"""Maximum share of sessions of agents that a model may cut: those with long sessions."""
MAX_HOURS = 8
"""Longest training run that is proposed: it must end within a night."""


class BaseChoice(msgspec.Struct, frozen=True):
    """A proposed base model.

    Attributes:
        base_model: The id of the model.
        preset: The preset of settings that goes with it.
        why: Why it is proposed.
    """

    base_model: str
    preset: str
    why: str


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
    agents: Sequence[AgentReport],
    machine: TrainingMachine,
    count: Callable[[str], Mapping[str, TokenCounts]],
) -> BaseChoice:
    """Return the base model that is proposed for the agents of a report on this machine.

    On a CPU, and for agents with few rows, the smallest model that fits is proposed. On a GPU, the
    largest model that fits is proposed for agents with many rows.

    Args:
        agents: The reports on the agents.
        machine: The device, its free memory and its speed.
        count: Returns the lengths of the sessions in tokens of a base model, by partition. Each
            model has a tokenizer of its own, and another one counts up to twice as many tokens.
    """
    on_gpu = machine.device.name != "cpu"
    most_rows = max((count_rows(agent) for agent in agents), default=0)
    has_few_rows = most_rows < FEW_ROWS
    preset = "gpu" if on_gpu else ""
    ordered = KNOWN_BASES if has_few_rows or not on_gpu else KNOWN_BASES[::-1]
    problems: list[str] = []
    for known in ordered:
        counts = count_for_base(known, count)
        problem = find_problem(agents, known, counts, machine)
        if not problem:
            why = _explain(has_few_rows, most_rows, on_gpu, problems)
            return BaseChoice(known.name, preset, why)
        problems.append(f"{known.name} {problem}")
    smallest = KNOWN_BASES[0]
    why = f"no known model fits this machine and these sessions ({'; '.join(problems)})"
    return BaseChoice(smallest.name, preset, why)


def count_for_base(
    known: KnownBase, count: Callable[[str], Mapping[str, TokenCounts]]
) -> dict[str, TokenCounts]:
    """Return the lengths of the sessions for a base model, by partition.

    Without the tokenizer of the model, the tokens of the embedded model are counted: it knows fewer
    words, so it counts more tokens.
    """
    counts = count(known.name)
    if any(agent.is_estimate for agent in counts.values()):
        counts = count(EMBEDDED)
    return {
        partition: msgspec.structs.replace(agent, base_model=known.name, context=known.context)
        for partition, agent in counts.items()
    }


def _explain(has_few_rows: bool, most_rows: int, on_gpu: bool, problems: Sequence[str]) -> str:
    if has_few_rows:
        reason = f"the smallest model that fits, because an agent has at most {most_rows:,} rows"
    elif on_gpu:
        reason = "the largest known model that fits the GPU and the rows"
    else:
        reason = "the smallest model that fits, because PyTorch has no GPU on this machine"
    return f"{reason} ({'; '.join(problems)})" if problems else reason


def count_rows(agent: AgentReport) -> int:
    """Return the number of training rows of an agent, or of its sessions if none is judged yet."""
    return agent.tasks.rows.get("train", 0) or agent.contents.sessions


def foresee_all(
    agents: Sequence[AgentReport],
    known: KnownBase,
    counts: Mapping[str, TokenCounts],
    machine: TrainingMachine,
) -> dict[str, TrainingOutlook]:
    """Return the expected training run of each agent that has answers, with the default options."""
    preset = PRESETS["gpu" if machine.device.name != "cpu" else "cpu"].get("sft_adapter", {})
    outlooks = {}
    for agent in agents:
        if agent.partition in counts:
            lengths = counts[agent.partition]
            values = {**preset, "max_length": propose_max_length(lengths)}
            options = AdapterConfig.model_validate({"base_model": known.name} | values)
            outlooks[agent.partition] = foresee_training(
                options, known.shape, lengths, count_rows(agent), machine
            )
    return outlooks


def propose_max_length(counts: TokenCounts) -> int:
    """Return the `max_length` with which the sessions fit, or 0 if the default is enough.

    The longest sessions count up to `LONGEST_DEFAULT` tokens, because memory grows with the length.
    """
    if counts.longest <= SMALL_BASE_OPTIONS["max_length"]:
        return 0
    length = propose_length(min(counts.longest, max(counts.p90, LONGEST_DEFAULT)))
    return min(length, counts.context) if counts.context else length


def find_problem(
    agents: Sequence[AgentReport],
    known: KnownBase,
    counts: Mapping[str, TokenCounts],
    machine: TrainingMachine,
) -> str:
    """Return why a base model does not fit, or an empty text."""
    too_long = sum(
        agent.contents.sessions
        for agent in agents
        if agent.partition in counts and counts[agent.partition].p90 > known.context
    )
    if too_long > MAX_SHARE_TOO_LONG * sum(agent.contents.sessions for agent in agents):
        return f"reads {known.context:,} tokens, and too many sessions are longer"
    for outlook in foresee_all(agents, known, counts, machine).values():
        if outlook.missing_gb:
            return f"needs {outlook.missing_gb:.1f} GB more memory than is free"
        if outlook.hours > MAX_HOURS:
            return f"would train for {outlook.hours:,.0f} hours"
    return ""
