"""A base model of any family is trained with no other setting than its name."""

import os

import pytest

from agent_pipeline.config.assets import AdapterConfig
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.sft import resolve_sft_options
from agent_pipeline_tests.families.subjects import SUBJECTS, Subject
from agent_pipeline_tests.families.table import make_base
from agent_pipeline_tests.training.world import row, train_adapter

pytestmark = pytest.mark.slow

ALWAYS = ("Qwen3, thinking or not", "Llama 3.1", "Gemma 3")
OTHERS = pytest.mark.skipif(
    not os.environ.get("AGENT_PIPELINE_ALL_FAMILIES"),
    reason="set AGENT_PIPELINE_ALL_FAMILIES=1 for all families",
)


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(each, id=each.name, marks=() if each.name in ALWAYS else OTHERS)
        for each in SUBJECTS
    ],
)
def test_the_loss_falls(subject: Subject, tmp_path) -> None:
    """All options are the defaults of `sft_adapter`, which the model and the rows fill in."""
    base = make_base(subject, tmp_path / "base")
    rows = [row(number) for number in range(24)]
    options = AdapterConfig(base_model=str(base.path))
    values = options.model_dump(include=set(TrainingConfig.model_fields))
    config = TrainingConfig(**resolve_sft_options(values, base, rows))
    lines: list[str] = []
    report = train_adapter(
        rows, base, config, tmp_path / "adapter", progress=lambda *line: lines.append(line[2])
    )
    losses = [entry["loss"] for entry in report.log_history]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert any("Expected memory" in line and "Expected time" in line for line in lines)
