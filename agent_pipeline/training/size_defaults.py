"""The options of a training run that follow from the base model's size and the rows.

A user has to name only the base model. An option that is left at 0 is filled in here, before a
weight is loaded: the number of weights comes from the model's configuration, on PyTorch's meta
device. Options that were set keep their values. What a run needs in memory belongs to `forecast`.

| weights           | SFT    | further steps | GRPO | epochs of SFT |
|-------------------|--------|---------------|------|---------------|
| below 0.3 billion | 1.5e-3 | 2e-4          | 5e-5 | 1             |
| below 1 billion   | 5e-4   | 5e-5          | 2e-5 | 2             |
| below 20 billion  | 2e-4   | 2e-5          | 1e-5 | 2             |
| more              | 1e-4   | 1e-5          | 5e-6 | 2             |

The first line was measured with SmolLM2-135M (docs/results.md). QLoRA (Dettmers et al. 2023, table
9) uses 2e-4 for 7 and 13 billion weights, and 1e-4 for 33 and 65 billion. The best LoRA rates of
Llama 2 7B lie between 2e-4 and 5e-4 (Biderman et al. 2024). The second line lies in between. A full
fine-tune takes a tenth of LoRA's rate (Schulman et al. 2025, "LoRA Without Regret",
https://huggingface.co/docs/trl/main/en/lora_without_regret).

The same report finds that LoRA loses more than a full fine-tune if a step has many rows. So a step
has at most 16 rows, and fewer if an epoch would otherwise have fewer than 64 steps. Rows are never
batched in one forward pass by default: a step's rows are packed anyway for most models, and the
trained model must not depend on the memory of the machine.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agent_pipeline.errors import ModelError, first_line
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.tokenization.length_check import propose_length

_SIZE_BOUNDS = (0.3e9, 1e9, 20e9)
_SFT_RATES = (1.5e-3, 5e-4, 2e-4, 1e-4)
_FURTHER_RATES = (2e-4, 5e-5, 2e-5, 1e-5)
_GRPO_RATES = (5e-5, 2e-5, 1e-5, 5e-6)
_SFT_EPOCHS = (1.0, 2.0, 2.0, 2.0)

_UNKNOWN_WEIGHTS = 7e9
"""Number of weights that is assumed if the files of a model do not state it.

A rate that is too low trains slowly. A rate that is too high destroys the model.
"""

SMALL_BASE_OPTIONS: dict[str, int] = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "max_length": 2048,
}
"""The options for a base model below 0.3 billion weights, whatever the rows are. They were measured
with SmolLM2-135M. For larger models, they are the smallest values.
"""

LONGEST_DEFAULT = 8192
"""Longest `max_length` that is chosen without being asked. Longer rows lose their beginning."""

MOST_STEP_ROWS = 16
LEAST_STEPS = 64
"""Steps of an epoch below which a step has fewer rows."""

SIZED_OPTIONS = ("learning_rate", "num_train_epochs")


class RatesOfSize(NamedTuple):
    """The default learning rates for base models within one range of sizes.

    Attributes:
        size: The range of the number of weights, such as "below 1 billion".
        sft: The rate of the step sft.
        further: The rate of the steps sdft, distill, dpo and kto.
        grpo: The rate of the step grpo.
    """

    size: str
    sft: float
    further: float
    grpo: float


def list_size_rates() -> list[RatesOfSize]:
    """Return the default learning rates for each range of base model sizes."""
    bounds = [f"{bound / 1e9:g} billion" for bound in _SIZE_BOUNDS]
    sizes = [*(f"below {bound}" for bound in bounds), f"{bounds[-1]} or more"]
    rates = zip(sizes, _SFT_RATES, _FURTHER_RATES, _GRPO_RATES, strict=True)
    return [RatesOfSize(*row) for row in rates]


def count_weights(folder: Path) -> int | None:
    """Return the number of weights of a model, read from the headers of its safetensors files.

    Returns:
        The number of weights, or None if there are no safetensors files.

    Raises:
        ModelError: a file is not a safetensors file, or is cut off.
    """
    from math import prod

    from safetensors import SafetensorError, safe_open

    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118  it is not a dict
                    count += prod(file.get_slice(name).get_shape())
        except SafetensorError as error:
            raise ModelError(
                f"The weights {path} cannot be read ({first_line(error)}): download the base "
                "model again."
            ) from error
    return count or None


def count_base_weights(base: BaseModel) -> int | None:
    """Return the number of weights of a base model, without loading a weight.

    The model is built on the meta device from its configuration. Its files are not enough: a
    quantized file packs several weights into one number. The headers of the files count if the
    model cannot be built, for example because it needs code of its own.

    Raises:
        ModelError: a file is not a safetensors file, or is cut off.
    """
    model = build_meta_model(base)
    if model is None:
        return count_weights(base.path)
    weights: int = sum(parameter.numel() for parameter in model.parameters())
    return weights


def build_meta_model(base: BaseModel) -> Any:
    """Return a base model on the meta device, which has shapes and no weights.

    Returns:
        The model, or `None` if it cannot be built from its configuration.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (base.path / "config.json").is_file():
        return None
    try:
        config = AutoConfig.from_pretrained(
            str(base.path), local_files_only=True, trust_remote_code=base.trust_remote_code
        )
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(
                config, trust_remote_code=base.trust_remote_code
            )
    except Exception:  # the code of an architecture may raise any exception on the meta device
        return None


def fill_size_defaults(
    values: Mapping[str, object], method: str, weight_count: float | None
) -> dict[str, Any]:
    """Replace a learning rate or a number of epochs of 0 by the default for the base model's size.

    Args:
        values: Options of a training step, by name.
        method: The step: sft, dpo, kto, sdft, distill or grpo.
        weight_count: The number of weights of the base model; None if it is unknown.

    Returns:
        The options. Options that were set keep their values.
    """
    weights = weight_count or _UNKNOWN_WEIGHTS
    size_class = sum(weights >= bound for bound in _SIZE_BOUNDS)
    if method == "sft":
        rate, epochs = _SFT_RATES[size_class], _SFT_EPOCHS[size_class]
    elif method == "grpo":
        rate, epochs = _GRPO_RATES[size_class], 1.0
    else:
        rate, epochs = _FURTHER_RATES[size_class], 1.0
    if not values.get("use_lora", True):
        rate *= 0.1
    return {
        **values,
        "learning_rate": values.get("learning_rate") or rate,
        "num_train_epochs": values.get("num_train_epochs") or epochs,
    }


def resolve_size_defaults(
    values: Mapping[str, object], method: str, base: BaseModel
) -> dict[str, Any]:
    """Fill in the rate and the epochs that depend on the size of a base model on disk.

    The files of the model are read only if an option is left to its size.

    Args:
        values: Options of a training step, by name.
        method: The step: sft, dpo, kto, sdft, distill or grpo.
        base: The base model.
    """
    if all(values.get(name) for name in SIZED_OPTIONS):
        return dict(values)
    return fill_size_defaults(values, method, count_base_weights(base))


def fill_row_defaults(
    values: Mapping[str, object],
    weight_count: float | None,
    lengths: Sequence[int],
    context: int | None,
) -> dict[str, Any]:
    """Replace a length or a batch size of 0 by the default for the rows.

    Args:
        values: Options of the step sft, by name.
        weight_count: The number of weights of the base model; None if it is unknown.
        lengths: The length of each row in tokens, before it is shortened.
        context: The longest text that the base model reads, in tokens; None if it is unknown.

    Returns:
        The options. Options that were set keep their values, except for a `max_length` above the
        context of the base model, which becomes the context.
    """
    defaults = dict(SMALL_BASE_OPTIONS)
    is_small = (weight_count or _UNKNOWN_WEIGHTS) < _SIZE_BOUNDS[0]
    if not is_small and lengths:
        longest = min(propose_length(max(lengths)), LONGEST_DEFAULT)
        defaults["max_length"] = max(longest, SMALL_BASE_OPTIONS["max_length"])
    # A user who sets one of the two factors sets the size of a step.
    if not is_small and not values.get("per_device_train_batch_size"):
        rows = defaults["gradient_accumulation_steps"]
        while rows < MOST_STEP_ROWS and len(lengths) >= 2 * rows * LEAST_STEPS:
            rows *= 2
        defaults["gradient_accumulation_steps"] = rows
    filled: dict[str, Any] = {
        **values,
        **{name: values.get(name) or default for name, default in defaults.items()},
    }
    return limit_length(filled, context)


def limit_length(values: Mapping[str, object], context: int | None) -> dict[str, Any]:
    """Return options whose `max_length` is at most the context of the base model.

    Example:
        >>> limit_length({"max_length": 8192, "seed": 1}, 2048)
        {'max_length': 2048, 'seed': 1}

    Args:
        values: Options of a training step, of `evaluation` or of `episodes`, by name.
        context: The longest text that the base model reads, in tokens; None if it is unknown.
    """
    limited: dict[str, Any] = dict(values)
    if context and "max_length" in limited:
        limited["max_length"] = min(limited["max_length"], context)
    return limited


def needs_lengths(values: Mapping[str, object], weight_count: float | None) -> bool:
    """Return whether an option depends on the lengths of the rows."""
    is_small = (weight_count or _UNKNOWN_WEIGHTS) < _SIZE_BOUNDS[0]
    return not is_small and not all(values.get(name) for name in SMALL_BASE_OPTIONS)


def describe_size_defaults(
    set_values: Mapping[str, object], values: Mapping[str, object], base: BaseModel
) -> str:
    """Return sentences that name the options that depend on the base model and the rows.

    Args:
        set_values: The options as they were set; 0 means that the size decides.
        values: The options after they were filled in.
        base: The base model.

    Returns:
        The sentences, or an empty string if no option was filled in or lowered.
    """
    candidates = (*SIZED_OPTIONS, *SMALL_BASE_OPTIONS)
    names = [name for name in candidates if name in values and not set_values.get(name)]
    set_length, length = set_values.get("max_length"), values.get("max_length")
    lowered = ""
    if isinstance(set_length, int) and isinstance(length, int):
        lowered = describe_context_limit(set_length, length)
    if not names:
        return lowered
    count = count_base_weights(base)
    size = f"{count / 1e9:.2g} billion weights" if count else "unknown size"
    filled = ", ".join(f"{name} = {values[name]:g}" for name in names)
    by_size = f"{filled}: the default for a base model of {size} ({base.name})."
    return f"{by_size} {lowered}".strip()


def describe_context_limit(max_length: int, context: int | None) -> str:
    """Return a sentence about a `max_length` that the base model cannot read, or an empty text.

    Example:
        >>> describe_context_limit(2048, 1024)
        'max_length = 1024 instead of 2048: the base model reads at most 1024 tokens.'
        >>> describe_context_limit(2048, 8192)
        ''

    Args:
        max_length: The setting `max_length`; 0 if it is left to the size.
        context: The longest text that the base model reads, in tokens; None if it is unknown.
    """
    if not context or max_length <= context:
        return ""
    return (
        f"max_length = {context} instead of {max_length}: the base model reads at most {context} "
        "tokens."
    )
