"""`python -m benchmarks.gpu [ROWS.json]`: row tokens a second of trainings on a GPU, and the share of what it multiplies at most.

A model of Qwen2.5-0.5B's shape with random weights, in bfloat16, under the LoRA of `sft_adapter`'s defaults, learns rows of the sample's
`shop/support`: over trees of prefixes, as the pipeline trains, and by plain TRL (padded), the same rows in the same steps. `SHAPE=7b` takes
Qwen2.5-7B's shape. The first steps of each training are not counted. The peak is that of an 8192 × 8192 × 8192 product, measured first; a
training's work is that of its model's matrices for each token that it computes, forward and for the gradient of what goes in (what is
frozen has none), nothing that is computed again, and attention left out. Trees use Liger Kernel where it is installed.

Then the model goes on with 128 of the rows for 64 tokens each, in our batches and by Hugging Face's `generate`, and all rows are scored.

`python -m benchmarks.gpu rows ROWS.json` writes the rows, for a machine that has no more than PyTorch, transformers, TRL and PEFT.
"""

import gc
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback

from agent_pipeline.engine.generation import BATCH, generate
from agent_pipeline.engine.scoring import compute_losses
from agent_pipeline.engine.tree_loss import shared_fraction
from agent_pipeline.models.device import fast_device
from agent_pipeline.progress import silent
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.trainers import sft
from agent_pipeline.training.trainers.common import apply_liger

SHAPES = {
    "0.5b": {
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
    },
    "7b": {
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
    },
}
SHAPE = os.environ.get("SHAPE", "0.5b")
STEP_ROWS = [int(each) for each in os.environ.get("STEP_ROWS", "2,16,64").split(",")]
WARM_UP, STEPS = 4, 16
ANSWERS, ANSWER_TOKENS = 128, 64
PLAIN, TREES = "plain TRL", "trees of prefixes"


def main() -> None:
    if sys.argv[1:2] == ["rows"]:
        Path(sys.argv[2]).write_text(
            json.dumps([[row.input_ids, row.trained] for row in sample_rows()]), encoding="utf-8"
        )
        return
    read = (
        [Encoded(ids, trained, []) for ids, trained in json.loads(Path(sys.argv[1]).read_text())]
        if sys.argv[1:]
        else sample_rows()
    )
    peak = peak_flops()
    print(
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Qwen2.5-{SHAPE}'s shape; peak {peak / 1e12:.0f} TFLOP/s\n"
    )
    print(
        "| rows a step | training | row tokens | left in trees | step | row tokens a second | ratio | share of peak | memory | last loss |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for step_rows in STEP_ROWS:
        rows = (read * 20)[: step_rows * (WARM_UP + STEPS)]
        plain = None
        for training in (PLAIN, TREES):
            seconds, memory, loss = measured(rows, step_rows, training == TREES)
            tokens, left = (
                sum(len(row.input_ids) for row in rows) / (WARM_UP + STEPS),
                shared_fraction(rows, step_rows, 1 << 20),
            )
            plain = plain or seconds
            share = work(tokens * (left if training == TREES else 1)) / seconds / peak
            print(
                f"| {step_rows} | {training} | {tokens:,.0f} | {left:.2f} | {seconds * 1000:.0f} ms | {tokens / seconds:,.0f} "
                f"| {plain / seconds:.2f} | {share:.1%} | {memory / 1e9:.1f} GB | {loss:.4f} |",
                flush=True,
            )
    answered(read)


def answered(rows: list[Encoded]) -> None:
    """Print how fast a model answers, and how fast it scores rows. Random weights stop nowhere, so each answer has all its tokens."""
    model, prompts = (
        model_of_shape(),
        [row.input_ids[: max(20, len(row.input_ids) - 40)] for row in rows[:ANSWERS]],
    )

    def ours() -> int:
        return sum(map(len, generate(model, prompts, [ANSWER_TOKENS] * len(prompts), [])))

    def by_transformers() -> int:
        for begin in range(0, len(prompts), BATCH):
            some = prompts[begin : begin + BATCH]
            padding = [max(map(len, some)) - len(each) for each in some]
            ids = torch.tensor(
                [[0] * more + each for more, each in zip(padding, some, strict=True)], device="cuda"
            )
            mask = torch.tensor(
                [[0] * more + [1] * len(each) for more, each in zip(padding, some, strict=True)],
                device="cuda",
            )
            limits = {"max_new_tokens": ANSWER_TOKENS, "min_new_tokens": ANSWER_TOKENS}
            with torch.inference_mode():
                model.generate(
                    input_ids=ids, attention_mask=mask, do_sample=False, pad_token_id=0, **limits
                )
        return ANSWER_TOKENS * len(prompts)

    def scored() -> int:
        compute_losses(model, rows)
        return sum(len(row.input_ids) for row in rows)

    print(
        f"\n| {len(prompts)} answers, {BATCH} at once; scores of {len(rows)} rows | tokens a second |\n|---|---:|"
    )
    for name, run in (
        ("answers, ours", ours),
        ("answers, transformers", by_transformers),
        ("scores, row tokens", scored),
    ):
        run()
        torch.cuda.synchronize()
        began = time.perf_counter()
        tokens = run()
        torch.cuda.synchronize()
        print(f"| {name} | {tokens / (time.perf_counter() - began):,.0f} |", flush=True)


def sample_rows() -> list[Encoded]:
    """The sample's training rows, in the tokens of the embedded base model."""
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.models.base_model import EMBEDDED, resolve_base_model
    from benchmarks.strategies import AGENT, ROOT
    from benchmarks.training import chosen_rows

    return chosen_rows(
        resolve_base_model(EMBEDDED, load_settings().cache_path), ROOT / "data" / "sample", AGENT
    )


def peak_flops() -> float:
    """Operations a second of a large product in bfloat16, random numbers."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(13):
        torch.cuda.synchronize()
        began = time.perf_counter()
        left @ right
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 2 * 8192**3 / statistics.median(times[3:])


def model_of_shape() -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=151_936,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
        **SHAPES[SHAPE],
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return Qwen2ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def work(tokens: float) -> float:
    """Operations of a step: two for each weight of the layers and token, forward, and as many for the gradient of what goes in."""
    of = SHAPES[SHAPE]
    size = of["hidden_size"] // of["num_attention_heads"]
    attention = of["hidden_size"] * (2 * of["hidden_size"] + 2 * of["num_key_value_heads"] * size)
    return (
        tokens
        * 4
        * of["num_hidden_layers"]
        * (attention + 3 * of["hidden_size"] * of["intermediate_size"])
    )


def measured(
    rows: list[Encoded], step_rows: int, as_trees: bool, **options: Any
) -> tuple[float, int, float]:
    """The median seconds of a step, the most bytes of the GPU's memory, and the last loss."""
    vars(sft)["trains_as_trees"] = lambda *_: as_trees
    gc.collect()  # the model before
    torch.cuda.reset_peak_memory_stats()
    config = TrainingConfig(
        per_device_train_batch_size=step_rows,
        gradient_accumulation_steps=1,
        save_steps=10_000,
        in_order=True,
        **options,
    )
    model: Any = model_of_shape()
    if as_trees:
        apply_liger(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = sft.build_trainer(
            sft.SftJob(rows, config, fast_device(), Path(folder)), model, tokenizer(), silent
        )
        trainer.add_callback(clock := Clock())
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return statistics.median(clock.steps[WARM_UP:]), torch.cuda.max_memory_allocated(), losses[-1]


class Clock(TrainerCallback):
    """Seconds of each step, from the end of the one before it."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self._last = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.cuda.synchronize()
        self.steps.append(time.perf_counter() - self._last)
        self._last = time.perf_counter()


def tokenizer() -> PreTrainedTokenizerFast:
    """TRL wants one; the rows are tokens already."""
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<end>": 1}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="<end>", pad_token="<end>"
    )


if __name__ == "__main__":
    main()
