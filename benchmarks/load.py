"""`python -m benchmarks.load [ROUNDS]`: training steps and answers beside a process that takes one core, against without it.

The model has the shape of the embedded base model with fewer layers, and random weights; the rows have the shape of the sample's. Three
settings take turns in one process, so that other load of the machine meets all of them: the number of threads follows the load, all
threads, and one thread. Each setting is measured without and beside a process that computes all the time; the median counts. Idle threads
sleep soon, as in the worker. The probe of the threads is a part of the time. Beside it stands the share of the probed rate of matrix
products that the training's row tokens need. The load of the machine is printed, because a loaded machine has no "without".
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent_pipeline.models.threads import ThreadControl, let_idle_threads_sleep

let_idle_threads_sleep()

import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from agent_pipeline.engine.generation import generate  # noqa: E402
from agent_pipeline.models import threads  # noqa: E402
from agent_pipeline.models.device import fast_device  # noqa: E402
from agent_pipeline.progress import silent  # noqa: E402
from agent_pipeline.tokenization.loss_masks import Encoded  # noqa: E402
from agent_pipeline.training.config import TrainingConfig  # noqa: E402
from agent_pipeline.training.trainers import sft  # noqa: E402
from agent_pipeline.training.trainers.common import count_row_token_flops  # noqa: E402

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
STEPS, STEP_ROWS, ANSWERS, ANSWER_TOKENS = 4, 4, 4, 24
FOLLOWS, ALL, ONE = "follows the load", "all threads", "one thread"
BUSY = "while True: sum(range(100_000))"


def main() -> None:
    seconds: dict[tuple[str, str, bool], list[float]] = {}
    shares: dict[tuple[str, bool], list[float]] = {}
    print(f"load before {os.getloadavg()[0]:.1f}, {threads.thread_limit()} cores")
    for _ in range(ROUNDS):
        for is_beside in (False, True):
            busy = [subprocess.Popen([sys.executable, "-c", BUSY])] if is_beside else []
            try:
                for setting in (FOLLOWS, ALL, ONE):
                    for name, run in (("training", train), ("answers", answer)):
                        use(setting)
                        began = time.perf_counter()
                        share = run()
                        elapsed = time.perf_counter() - began
                        seconds.setdefault((name, setting, is_beside), []).append(elapsed)
                        if share:
                            shares.setdefault((setting, is_beside), []).append(share)
            finally:
                for process in busy:
                    process.kill()
                    process.wait()
    print(
        "| work | threads | without | beside | ratio | share of the probed rate |\n|---|---|---:|---:|---:|---:|"
    )
    for name in ("training", "answers"):
        for setting in (FOLLOWS, ALL, ONE):
            without, beside = (
                statistics.median(seconds[name, setting, is_beside]) for is_beside in (False, True)
            )
            figures = [
                f"{statistics.median(shares[setting, is_beside]):.2f}"
                for is_beside in (False, True)
                if name == "training" and (setting, is_beside) in shares
            ]
            print(
                f"| {name} | {setting} | {without:.2f} s | {beside:.2f} s | {beside / without:.2f} | {', '.join(figures)} |"
            )
    print(f"load after {os.getloadavg()[0]:.1f}")


def use(setting: str) -> None:
    """Let the number of threads follow the load, or set it once and for all."""
    threads._CONTROLS[:] = [ThreadControl()] if setting == FOLLOWS else []
    torch.set_num_threads(1 if setting == ONE else threads.thread_limit())


def model() -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=4096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to(fast_device().dtype)


def row(number: int) -> Encoded:
    """A row of 120 shared and 80 own tokens, of which the last 40 are trained."""
    own = [1000 + (number * 80 + offset) % 3000 for offset in range(80)]
    return Encoded([*range(3, 123), *own], [False] * 160 + [True] * 40, [])


def train() -> float:
    """Train a few steps. Return the share of the probed rate, or 0 if nothing was probed."""
    from benchmarks.gpu import tokenizer

    config = TrainingConfig(
        per_device_train_batch_size=STEP_ROWS,
        gradient_accumulation_steps=1,
        num_train_epochs=1,
        save_steps=10_000,
    )
    rows = [row(number) for number in range(STEPS * STEP_ROWS)]
    with tempfile.TemporaryDirectory() as folder:
        job = sft.SftJob(rows, config, fast_device(), Path(folder))
        trainer = sft.build_trainer(job, model(), tokenizer(), silent)
        began = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - began
    used = threads.current_thread_use()
    tokens = sum(len(row.input_ids) for row in rows)
    return tokens / seconds * count_row_token_flops(trainer.model) / used.flops if used else 0.0


def answer() -> float:
    """Answer a few prompts greedily."""
    answering: Callable[..., object] = generate
    prompts = [row(number).input_ids[:160] for number in range(ANSWERS)]
    answering(model().eval(), prompts, [ANSWER_TOKENS] * ANSWERS, [])
    return 0.0


if __name__ == "__main__":
    main()
