"""Loading of models and tokenizers from a directory, which no other module does.

Where the directory comes from belongs in `base_model`, and a tokenizer's chat template in
`chat_renderer`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.errors import ModelError, first_line
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.device import Device

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_LOADING_ERRORS = (OSError, ValueError, RuntimeError, KeyError)
"""Errors that transformers and PEFT raise for files that cannot be loaded."""


def load_model(
    base: BaseModel,
    device: Device,
    adapter_dir: Path | None = None,
    trainable: bool = False,
    **options: object,
) -> "PreTrainedModel":
    """Load a base model on a device, in evaluation mode.

    On a machine without a GPU, the process multiplies float32 matrices by the library of `device`
    from then on.

    Args:
        base: The base model.
        device: Where the model is computed, and in which type.
        adapter_dir: An adapter. The result is then a `PeftModel` with this adapter switched on.
        trainable: Whether the adapter can be trained on.
        **options: Options of `from_pretrained`, which override `dtype`. With a `device_map` the
            model stays where that option puts it.

    Raises:
        ModelError: The weights or the adapter cannot be read, or do not fit each other.
    """
    import torch
    from transformers import AutoModelForCausalLM

    # "medium" is oneDNN, which does not round on this CPU: `device.measure_product_speeds` has
    # checked that. On a machine with a GPU, "medium" would let the GPU round.
    if device.name == "cpu" and not torch.cuda.is_available():
        torch.set_float32_matmul_precision("medium" if device.onednn else "highest")
    all_options = {
        "dtype": device.dtype,
        "trust_remote_code": base.trust_remote_code,
        "local_files_only": True,
    } | options
    try:
        model = AutoModelForCausalLM.from_pretrained(str(base.path), **all_options)
    except _LOADING_ERRORS as error:
        raise ModelError(
            f"The base model in {base.path} cannot be loaded ({first_line(error)}): download the "
            "base model again."
        ) from error
    if adapter_dir is not None:
        model = _add_adapter(model, base, adapter_dir, trainable)
    if not all_options.get("device_map"):
        model = model.to(device.name)
    return model.eval()


def _add_adapter(
    model: "PreTrainedModel", base: BaseModel, adapter_dir: Path, trainable: bool
) -> "PreTrainedModel":
    """Load an adapter onto a model, and return the model with the adapter. Raises ModelError.

    Args:
        model: The base model in memory.
        base: The base model, for an error.
        adapter_dir: The adapter.
        trainable: Whether the adapter can be trained on.
    """
    from peft import PeftModel

    if not (adapter_dir / "adapter_config.json").is_file():
        raise ModelError(
            f"{adapter_dir} contains no adapter_config.json, so it is not a trained adapter: "
            "train an adapter first."
        )
    try:
        return PeftModel.from_pretrained(model, str(adapter_dir), is_trainable=trainable)
    except _LOADING_ERRORS as error:
        raise ModelError(
            f"The adapter in {adapter_dir} does not load on {base.name} ({first_line(error)}): "
            "train the adapter again."
        ) from error


def read_tokenizer(directory: Path, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a model or adapter directory, with the chat template saved in it.

    Raises:
        ModelError: There is no tokenizer that can be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"The tokenizer in {directory} cannot be read ({first_line(error)}): download or "
            "train the model again."
        ) from error
