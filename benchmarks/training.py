"""`python -m benchmarks.training [steps]`: row tokens a core-second of a training over trees of prefixes against plain TRL.

The rows are those of the sample's `shop/support`, the base model is the embedded one, and the settings are the demo's. Both trainings make
the same steps in float32, in turn, in one process; core-seconds are the process's own CPU time, so that other load cancels out.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from agent_pipeline.config.settings import EMBEDDED_BASE_MODEL, load_settings
from agent_pipeline.progress import silent
from agent_pipeline.training.base_model import resolve_base_model
from agent_pipeline.training.config import TrainingConfig, probe_device
from agent_pipeline.training.encoding import encode_rows
from agent_pipeline.training.loading import load_model
from agent_pipeline.training.templates import load_tokenizer
from agent_pipeline.training.trainers import sft
from benchmarks.strategies import data_assets

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 8
STEP_ROWS = int(os.environ.get("STEP_ROWS", "4"))


def main() -> None:
    base = resolve_base_model(EMBEDDED_BASE_MODEL, load_settings().cache_path)
    tokenizer, _ = load_tokenizer(base.path)
    rows = [each.encoded for each in encode_rows(tokenizer, [row for row in data_assets() if row["split"] == "train"], 2048)[0]]
    config = TrainingConfig(max_steps=STEPS, epochs=100, gradient_accumulation=STEP_ROWS, checkpoint_steps=10_000)
    speeds, losses = {}, {}
    for name, as_trees in (("plain TRL, row by row", False), ("trees of prefixes", True)):
        sft.trains_as_trees = lambda *_, value=as_trees: value
        with tempfile.TemporaryDirectory() as folder:
            model = load_model(base, probe_device())
            trainer = sft.build_trainer(model, tokenizer, rows, config, probe_device(), Path(folder), silent)
            began = time.process_time()
            trainer.train()
            speeds[name] = trainer._total_train_tokens / (time.process_time() - began)
            losses[name] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    plain, trees = losses.values()
    print("| training | row tokens a core-second | last loss |\n|---|---:|---:|")
    for name, speed in speeds.items():
        print(f"| {name} | {speed:.0f} | {losses[name][-1]:.4f} |")
    slow, fast = speeds.values()
    difference = max(abs(a - b) for a, b in zip(plain, trees, strict=True))
    print(f"\nratio {fast / slow:.2f}; largest difference of a step's loss {difference:.1e}")


if __name__ == "__main__":
    main()
