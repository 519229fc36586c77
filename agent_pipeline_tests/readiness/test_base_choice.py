"""The base model that fits the machine and the rows, and the expected training run."""

import msgspec
import pytest

from agent_pipeline.models.base_model import EMBEDDED
from agent_pipeline.models.device import EXACT, Device
from agent_pipeline.readiness.base_choice import (
    KNOWN_BASES,
    choose_base,
    foresee_with_base,
)
from agent_pipeline.readiness.report import AgentReport, TokenCounts
from agent_pipeline.readiness.training_outlook import TrainingMachine
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.forecast import measure_shape
from agent_pipeline_tests.readiness.examined import chat, examine_one, write_chats

CPU = TrainingMachine(EXACT, 24e9, 1e11)
GPU = TrainingMachine(Device("cuda", True), 80e9, 4e14)


@pytest.fixture(scope="module")
def small_agent(tmp_path_factory: pytest.TempPathFactory) -> AgentReport:
    chats = [chat(f"s-{n}", f"find thing {n}", judgment="acceptable") for n in range(40)]
    return examine_one(write_chats(tmp_path_factory.mktemp("s") / "chats.jsonl", chats))


def with_rows(agent: AgentReport, rows: int) -> AgentReport:
    """The agent with another number of rows."""
    tasks = msgspec.structs.replace(agent.tasks, rows={"train": rows, "select": 1, "test": 1})
    return msgspec.structs.replace(agent, tasks=tasks)


def counts(p90: int, longest: int, **fields: bool) -> TokenCounts:
    """The lengths of the sessions."""
    return TokenCounts(
        base_model=EMBEDDED, median=p90 // 2, p90=p90, longest=longest, sampled=200, **fields
    )


@pytest.mark.parametrize(
    ("machine", "rows", "p90", "longest", "name"),
    [
        (CPU, 5_000, 900, 1_500, EMBEDDED),
        (TrainingMachine(EXACT, 24e9, 4e11), 40, 9_000, 12_000, "Qwen/Qwen3-0.6B"),
        (GPU, 40, 900, 1_500, EMBEDDED),
        (GPU, 5_000, 900, 1_500, "Qwen/Qwen3-1.7B"),
        (TrainingMachine(GPU.device, 4e9, 4e14), 5_000, 900, 1_500, "Qwen/Qwen3-0.6B"),
    ],
)
def test_base_fits_the_machine_and_the_rows(
    small_agent: AgentReport, machine: TrainingMachine, rows: int, p90: int, longest: int, name: str
) -> None:
    """The model is small on a CPU and for few rows. It reads 90 % of the sessions."""
    agent, lengths = with_rows(small_agent, rows), counts(p90, longest)
    choice = choose_base([agent], machine, lambda *names: lengths)
    assert choice.base_model == name, choice.why
    known = next(known for known in KNOWN_BASES if known.name == name)
    outlook = foresee_with_base(agent, known, lengths, machine)
    assert not outlook.missing_gb and outlook.memory_gb > 0 and outlook.max_length >= p90


def test_no_base_fits(small_agent: AgentReport) -> None:
    """The reason names each model. The smallest model is proposed all the same."""
    lengths = counts(90_000, 90_000)
    choice = choose_base([with_rows(small_agent, 40)], CPU, lambda *names: lengths)
    assert choice.base_model == EMBEDDED
    assert all(known.name in choice.why for known in KNOWN_BASES)


def with_name(agent: AgentReport, partition: str) -> AgentReport:
    """The agent with another name."""
    return msgspec.structs.replace(agent, partition=partition)


def test_large_agent_does_not_decide_for_a_small_one(small_agent: AgentReport) -> None:
    """An agent that would train for days on any model took the fitting model from all agents."""
    small = [with_name(with_rows(small_agent, 40), f"p/small-{n}") for n in range(2)]
    large = with_name(with_rows(small_agent, 90_000), "p/large")
    machine = TrainingMachine(EXACT, 24e9, 4e11)
    lengths = {**dict.fromkeys(("p/small-0", "p/small-1"), counts(9_000, 12_000))}
    lengths["p/large"] = counts(7_000, 8_000)
    choice = choose_base([large, *small], machine, lambda _, partition: lengths[partition])
    alone = choose_base(small[:1], machine, lambda _, partition: lengths[partition])
    assert (choice.base_model, choice.why) == (alone.base_model, alone.why)
    assert choice.base_model == KNOWN_BASES[1].name
    assert [*choice.own] == ["p/large"]
    assert choice.own["p/large"].base_model == EMBEDDED and not choice.own["p/large"].fits


def test_agents_without_answers_choose_nothing(small_agent: AgentReport) -> None:
    """Three agents without answers made the smallest model the base of all."""
    contents = msgspec.structs.replace(small_agent.contents, tokens=None)
    silent = msgspec.structs.replace(small_agent, contents=contents)
    agents = [with_name(silent, f"p/silent-{n}") for n in range(3)]
    machine = TrainingMachine(EXACT, 24e9, 4e11)
    lengths = {"p/a": counts(9_000, 12_000)}
    choice = choose_base(
        [*agents, with_rows(small_agent, 40)], machine, lambda _, partition: lengths.get(partition)
    )
    assert choice.base_model == KNOWN_BASES[1].name and not choice.own
    assert choose_base(agents, machine, lambda *names: None).base_model == EMBEDDED


def test_many_rows_of_one_agent_are_no_reason_for_another(small_agent: AgentReport) -> None:
    """On a GPU, one agent with many rows gave an agent with 40 rows the largest model."""
    agents = [
        with_name(with_rows(small_agent, rows), f"p/{rows}") for rows in (40, 5_000, 60, 6_000, 30)
    ]
    choice = choose_base(agents, GPU, lambda *names: counts(900, 1_500))
    assert choice.base_model == EMBEDDED and "at most 60 rows" in choice.why
    largest = KNOWN_BASES[-1].name
    assert {name: own.base_model for name, own in choice.own.items()} == {
        "p/5000": largest,
        "p/6000": largest,
    }


def test_long_sessions_raise_max_length(small_agent: AgentReport) -> None:
    agent, lengths = with_rows(small_agent, 40), counts(2_500, 3_000)
    assert foresee_with_base(agent, KNOWN_BASES[0], lengths, CPU).max_length == 3_072


def test_each_base_counts_with_its_own_tokenizer(small_agent: AgentReport) -> None:
    """The lengths of one tokenizer chose another model: a second `init` proposed a base that does
    not fit. Without its tokenizer, a model gets the larger counts of the embedded model.
    """
    machine = TrainingMachine(EXACT, 24e9, 4e11)
    agents = [with_rows(small_agent, 40)]
    qwen = KNOWN_BASES[1].name
    own = {EMBEDDED: counts(9_000, 12_000), qwen: counts(5_000, 7_000)}
    assert choose_base(agents, machine, lambda name, _: own[name]).base_model == qwen
    own[EMBEDDED] = counts(50_000, 60_000)
    assert choose_base(agents, machine, lambda name, _: own[name]).base_model == qwen
    own[qwen] = counts(5_000, 7_000, is_estimate=True)
    own[KNOWN_BASES[2].name] = counts(5_000, 7_000)
    why = choose_base(agents, machine, lambda name, _: own[name]).why
    assert f"{qwen} reads 40,960 tokens" in why


def test_known_sizes_are_those_of_the_models() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    for known in KNOWN_BASES:
        shape = known.shape
        sizes = {
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.inner_size,
            "num_hidden_layers": shape.layers,
            "tie_word_embeddings": True,
        }
        with torch.device("meta"):
            if known.name == EMBEDDED:
                heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
                model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
            else:
                heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
                model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads))
        assert measure_shape(model, TrainingConfig(lora_r=1)) == shape
