"""Defaults that depend on how large the base model is: the learning rate and the epochs.

| weights | imitation | further steps | GRPO | epochs of imitation |
|---|---|---|---|---|
| below 0.3 billion | 1.5e-3 | 2e-4 | 5e-5 | 1 |
| below 1 billion | 5e-4 | 5e-5 | 2e-5 | 2 |
| below 20 billion | 2e-4 | 2e-5 | 1e-5 | 2 |
| more | 1e-4 | 1e-5 | 5e-6 | 2 |

The first line was measured with SmolLM2-135M (docs/training.md). 2e-4 for 7 and 13 billion weights, and 1e-4 for 33 and 65 billion, are the
rates of QLoRA (Dettmers et al. 2023, table 9); on Llama 2 7B, the best rates of LoRA lie between 2e-4 and 5e-4 (Biderman et al. 2024). The
second line lies between. A full fine-tune takes a tenth of LoRA's rate (Schulman et al. 2025, "LoRA Without Regret").
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_pipeline.errors import ModelError, first_line
from agent_pipeline.models.base_model import BaseModel

_BOUNDS = (0.3e9, 1e9, 20e9)
_UNKNOWN = 7e9
"""Weights that are assumed of a model whose files do not say: a rate that is too low trains slowly, a rate that is too high destroys."""
_RATES = {"sft": (1.5e-3, 5e-4, 2e-4, 1e-4), "grpo": (5e-5, 2e-5, 1e-5, 5e-6)}
_FURTHER = (2e-4, 5e-5, 2e-5, 1e-5)
_EPOCHS = (1.0, 2.0, 2.0, 2.0)


def count_weights(folder: Path) -> int | None:
    """Return how many weights a model has, from the headers of its safetensors files; `None` if there are none.

    Raises:
        ModelError: a file is not a safetensors file, or is cut off.
    """
    from math import prod

    from safetensors import SafetensorError, safe_open

    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="np") as file:
                count += sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise ModelError(
                f"The weights {path} cannot be read ({first_line(error)}): fetch the base model again."
            ) from error
    return count or None


def with_sizes(values: Mapping[str, Any], method: str, weights: float | None) -> dict[str, Any]:
    """Fill in the learning rate and the epochs that are left to the size of the base model (0).

    Args:
        values: Options of a training step, by name.
        method: The step: sft, dpo, kto, sdft, distill or grpo.
        weights: The number of weights of the base model; `None` if it is unknown.

    Returns:
        The options; those that were set stay.
    """
    place = sum((weights or _UNKNOWN) >= bound for bound in _BOUNDS)
    rate = _RATES.get(method, _FURTHER)[place] * (1.0 if values.get("use_lora", True) else 0.1)
    epochs = _EPOCHS[place] if method == "sft" else 1.0
    return {
        **values,
        "learning_rate": values.get("learning_rate") or rate,
        "epochs": values.get("epochs") or epochs,
    }


def sized(values: Mapping[str, Any], method: str, base: BaseModel) -> dict[str, Any]:
    """`with_sizes` for a base model on disk; its files are read only if something is left to its size."""
    if values.get("learning_rate") and values.get("epochs"):
        return dict(values)
    return with_sizes(values, method, count_weights(base.path))


def sized_sentence(given: Mapping[str, Any], values: Mapping[str, Any], base: BaseModel) -> str:
    """Return which options follow from the size of the base model, as a sentence; empty if none does."""
    names = [name for name in ("learning_rate", "epochs") if not given.get(name)]
    if not names:
        return ""
    count = count_weights(base.path)
    size = f"{count / 1e9:.2g} billion weights" if count else "unknown size"
    return f"{' and '.join(f'{name} = {values[name]:g}' for name in names)}: the default for a base model of {size} ({base.name})."
