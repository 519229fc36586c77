"""A world small enough to train in seconds: one tool, tasks that name a city, a Llama of 3 million random weights."""

from pathlib import Path
from typing import Any

from agent_pipeline.progress import silent
from agent_pipeline.testing import tiny_model, weather
from agent_pipeline.training import sft
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.provenance import SftInput

CITIES = weather.CITIES
TOOL = weather.WEATHER_TOOL
call = weather.make_call
row = weather.weather_row
make_base = tiny_model.make_tiny_model
TRAINING = TrainingConfig(
    num_train_epochs=4,
    learning_rate=4e-3,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=1,
    max_length=512,
    save_steps=4,
    lora_r=8,
    precision="float32",
    masked_names=0,
    extra_tools=0,
)


def train_adapter(
    rows: list[dict[str, Any]],
    base: Any,
    config: TrainingConfig,
    out: Path,
    heldout: Any = (),
    progress: Any = silent,
    **more: Any,
) -> dict[str, Any]:
    """`sft.train_adapter` with the fields of its input as arguments."""
    return sft.train_adapter(SftInput(rows, base, config, **more), out, heldout, progress)
