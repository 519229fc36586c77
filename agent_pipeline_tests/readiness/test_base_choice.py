"""The base model that fits the machine and the rows, and the expected training run."""

import msgspec
import pytest

from agent_pipeline.models.base_model import EMBEDDED
from agent_pipeline.models.device import EXACT, Device
from agent_pipeline.readiness.base_choice import KNOWN_BASES, choose_base, foresee_all
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
    agent, lengths = with_rows(small_agent, rows), {"p/a": counts(p90, longest)}
    choice = choose_base([agent], machine, lambda base_model: lengths)
    assert choice.base_model == name, choice.why
    known = next(known for known in KNOWN_BASES if known.name == name)
    (outlook,) = foresee_all([agent], known, lengths, machine).values()
    assert not outlook.missing_gb and outlook.memory_gb > 0 and outlook.max_length >= p90


def test_no_base_fits(small_agent: AgentReport) -> None:
    """The reason names each model. The smallest model is proposed all the same."""
    lengths = {"p/a": counts(90_000, 90_000)}
    choice = choose_base([with_rows(small_agent, 40)], CPU, lambda base_model: lengths)
    assert choice.base_model == EMBEDDED
    assert all(known.name in choice.why for known in KNOWN_BASES)


def test_long_sessions_raise_max_length(small_agent: AgentReport) -> None:
    lengths = {"p/a": counts(2_500, 3_000)}
    outlooks = foresee_all([with_rows(small_agent, 40)], KNOWN_BASES[0], lengths, CPU)
    assert outlooks["p/a"].max_length == 3_072


def test_each_base_counts_with_its_own_tokenizer(small_agent: AgentReport) -> None:
    """The lengths of one tokenizer chose another model: a second `init` proposed a base that does
    not fit. Without its tokenizer, a model gets the larger counts of the embedded model.
    """
    machine = TrainingMachine(EXACT, 24e9, 4e11)
    agents = [with_rows(small_agent, 40)]
    qwen = KNOWN_BASES[1].name
    own = {EMBEDDED: counts(9_000, 12_000), qwen: counts(5_000, 7_000)}
    assert choose_base(agents, machine, lambda name: {"p/a": own[name]}).base_model == qwen
    own[EMBEDDED] = counts(50_000, 60_000)
    assert choose_base(agents, machine, lambda name: {"p/a": own[name]}).base_model == qwen
    own[qwen] = counts(5_000, 7_000, is_estimate=True)
    own[KNOWN_BASES[2].name] = counts(5_000, 7_000)
    why = choose_base(agents, machine, lambda name: {"p/a": own[name]}).why
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
