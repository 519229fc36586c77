"""`python -m benchmarks.training [TOKENS]`: row tokens a core-second of a training over trees of prefixes against plain TRL.

Two data sets: the sample's `shop/support`, and the AgentDojo agent with the most rows (of `AGENT_PIPELINE_REAL_TRACES`; left out where that
is not there). Of each, rows drawn by chance, as an epoch draws them, up to `TOKENS`; and the same rows with a token of its own before each
one, so that they share nothing and are only packed. The base model is the embedded one, and the settings
are the defaults of `sft_adapter` (`STEP_ROWS` rows a step). All trainings make the same steps in float32, in turn, in one process;
core-seconds are the process's own CPU time, from tokens to the last step, so that other load cancels out. Where this CPU multiplies faster
by oneDNN, each training runs by PyTorch's default (MKL), as a script with TRL would, and by oneDNN, as a night in float32 does.

`SHAPES=gemma3,lfm2,qwen3_5,granite4` takes models of random weights in these shapes (8 layers as wide as the embedded model's, and its
tokenizer), and only the sample's rows and the faster library.
"""

import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agent_pipeline.config.settings import load_settings
from agent_pipeline.engine.tree_loss import shared_fraction
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import EMBEDDED, BaseModel, resolve_base_model
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import EXACT, Device, exact_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import silent
from agent_pipeline.sources import open_source
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.trainers import sft
from benchmarks.redaction import REAL_TRACES
from benchmarks.strategies import AGENT, ROOT, data_assets

TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
CONFIG = TrainingConfig(save_steps=10_000)
STEP_ROWS = int(os.environ.get("STEP_ROWS", CONFIG.step_rows))
PLAIN, TREES = "plain TRL", "trees of prefixes"
LAYERS = 8
SHAPES: dict[str, dict[str, Any]] = {
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": 128,
        "layer_types": [*["sliding_attention"] * 5, "full_attention", *["sliding_attention"] * 2],
    },
    "lfm2": {
        "model_type": "lfm2",
        "layer_types": ["conv", "conv", "full_attention", *["conv", "full_attention"] * 2, "conv"],
        "block_auto_adjust_ff_dim": False,
    },
    "qwen3_5": {
        "model_type": "qwen3_5_text",
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 2,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
    },
    "granite4": {
        "model_type": "granitemoehybrid",
        "layer_types": [*["linear_attention"] * 5, "full_attention", *["linear_attention"] * 2],
        "num_local_experts": 0,
        # TRL 1.16 computes a loss of the experts that this model does not have, and fails.
        "router_aux_loss_coef": 0.0,
        "shared_intermediate_size": 1536,
        "mamba_n_heads": 18,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
    },
}
"""The kinds of layers of hybrid models, in about the ratio of the real ones."""


def main() -> None:
    base = resolve_base_model(EMBEDDED, load_settings().cache_path)
    if names := os.environ.get("SHAPES"):
        rows = chosen_rows(base, ROOT / "data" / "sample", AGENT)
        for name in names.split(","):
            with tempfile.TemporaryDirectory() as folder:
                compare(base_of_shape(base, name, Path(folder)), name, rows, [exact_device()])
        return
    stores = [(ROOT / "data" / "sample", AGENT)]
    if (dojo := REAL_TRACES / "agentdojo").is_dir():
        stores.append((dojo, largest(dojo)))
    sets = [(str(key), chosen_rows(base, store, key)) for store, key in stores]
    sets += [
        (f"{name}, nothing shared", [alone(number, row) for number, row in enumerate(rows)])
        for name, rows in sets
    ]
    for name_of_set, rows in sets:
        compare(base, name_of_set, rows, list(dict.fromkeys([EXACT, exact_device()])))


def base_of_shape(base: BaseModel, name: str, folder: Path) -> BaseModel:
    """A model of random weights in a shape of `SHAPES`, with the tokenizer of a base model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = load_renderer(base.path).tokenizer
    options = {
        "vocab_size": len(tokenizer),
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        **SHAPES[name],
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return BaseModel(name, folder, name)


def compare(base: BaseModel, name_of_set: str, rows: list[Encoded], devices: list[Device]) -> None:
    """Print the table of one set of rows."""
    print(
        "| rows | step | steps | row tokens | left in trees | training | row tokens a core-second | ratio | last loss |"
    )
    print("|---|---:|---:|---:|---:|---|---:|---:|---:|")
    found = {
        f"{name}{' (oneDNN)' * device.onednn}": measured(base, rows, name == TREES, device)
        for device in devices
        for name in (PLAIN, TREES)
    }
    max_nodes = sft.limit_nodes(CONFIG, max(len(row.input_ids) for row in rows))
    tokens, left = (
        sum(len(row.input_ids) for row in rows),
        shared_fraction(rows, STEP_ROWS, max_nodes),
    )
    first = next(iter(found.values()))
    for name, (seconds, losses) in found.items():
        about = f"| {name_of_set} | {STEP_ROWS} rows | {len(losses)} | {tokens:,} | {left:.2f}"
        print(
            f"{about} | {name} | {tokens / seconds:.0f} | {first[0] / seconds:.2f} | {losses[-1]:.4f} |",
            flush=True,
        )
    plain = first[1]
    apart = max(
        abs(one - other)
        for _, losses in found.values()
        for one, other in zip(plain, losses, strict=True)
    )
    print(f"\n{name_of_set}: largest difference of a step's loss {apart:.1e}\n")


def largest(store: Path) -> PartitionKey:
    """The agent of a store with the most sessions, the first by name of those."""
    source = open_source(store)
    return max(
        sorted(source.partitions(), key=str), key=lambda key: sum(1 for _ in source.sessions(key))
    )


def chosen_rows(base: BaseModel, store: Path, key: PartitionKey) -> list[Encoded]:
    """Training rows drawn by chance, whole steps of at most `TOKENS` together (at least one step)."""
    renderer = load_renderer(base.path)
    rows = [row for row in data_assets(store, key) if row["split"] == "train"]
    encoded = [
        each.encoded
        for each in encode_rows(
            renderer, random.Random(0).sample(rows, len(rows)), CONFIG.max_length
        ).rows
    ]
    sizes = [
        sum(len(row.input_ids) for row in encoded[:number])
        for number in range(STEP_ROWS, len(encoded) + 1, STEP_ROWS)
    ]
    return encoded[: STEP_ROWS * max(1, sum(size <= TOKENS for size in sizes))]


def alone(number: int, row: Encoded) -> Encoded:
    """The row behind a token that no other row begins with."""
    return Encoded([1000 + number, *row.input_ids], [False, *row.trained], [])


def measured(
    base: BaseModel, rows: list[Encoded], as_trees: bool, device: Device
) -> tuple[float, list[float]]:
    """Core-seconds of one pass over the rows, and the loss of each step."""
    vars(sft)["trains_as_trees"] = lambda *_: as_trees
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(base, device)
        tokenizer = load_renderer(base.path).tokenizer
        config = CONFIG.changed(gradient_accumulation_steps=STEP_ROWS)
        began = time.process_time()
        trainer = sft.build_trainer(
            sft.SftJob(rows, config, device, Path(folder)), model, tokenizer, silent
        )
        trainer.train()
        return time.process_time() - began, [
            entry["loss"] for entry in trainer.state.log_history if "loss" in entry
        ]


if __name__ == "__main__":
    main()
