"""`python -m benchmarks.memory_forecast`: the forecast of a training run's memory, and its measured peak.

Each model of random weights is trained for two steps on a CPU in float32, in a process of its own.
The peak is the largest resident memory minus the memory of a process that has imported everything
and trained nothing. Both figures are without the base of Python and PyTorch.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.device import EXACT
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.forecast import plan_training

MODELS = {
    "tiny (64 × 2)": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    "small (512 × 12)": {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 12},
}
TOKENS, ROWS, VOCABULARY = 700, 4, 49_152


def measure(model_name: str, checkpointing: str) -> None:
    """Print the forecast and the peak of one training run as JSON."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from agent_pipeline.models.loading import load_model, read_tokenizer
    from agent_pipeline.training.trainers.sft import SftJob, build_trainer
    from agent_pipeline_tests.tiny import embedded_base

    torch.manual_seed(0)
    tokenizer = read_tokenizer(embedded_base().path)
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096}
    with tempfile.TemporaryDirectory() as folder:
        shape = LlamaConfig(
            vocab_size=VOCABULARY, tie_word_embeddings=True, **heads, **MODELS[model_name]
        )
        LlamaForCausalLM(shape).save_pretrained(folder)
        base = BaseModel(model_name, Path(folder), "")
        config = TrainingConfig(
            max_steps=2, gradient_checkpointing=checkpointing, precision="float32"
        )
        rows = []
        for _ in range(ROWS):
            ids = torch.randint(10, VOCABULARY, (TOKENS,)).tolist()
            rows.append(Encoded(ids, [position > TOKENS // 2 for position in range(TOKENS)], []))
        plan = plan_training(base, config, rows, EXACT)
        assert plan is not None
        forecast = plan.forecast(1e12)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        model = load_model(base, EXACT)
        trainer = build_trainer(
            SftJob(rows, config, EXACT, Path(folder) / "work"), model, tokenizer, lambda *_: None
        )
        trainer.train()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(json.dumps({"forecast": forecast.total / 1e9, "peak": peak / 1e9}))


def main() -> None:
    """Print one line per model and setting."""
    print("| model | recomputed | forecast, GB | measured peak, GB | ratio |")
    print("|---|---|---:|---:|---:|")
    for model_name in MODELS:
        for checkpointing in ("off", "on"):
            command = [
                sys.executable,
                "-m",
                "benchmarks.memory_forecast",
                model_name,
                checkpointing,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            result = json.loads(done.stdout.strip().splitlines()[-1])
            ratio = result["forecast"] / result["peak"]
            print(
                f"| {model_name} | {checkpointing} | {result['forecast']:.2f} "
                f"| {result['peak']:.2f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        measure(sys.argv[1], sys.argv[2])
    else:
        main()
