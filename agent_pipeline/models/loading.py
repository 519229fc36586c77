"""Models and tokenizers in memory: the one place that loads them from a directory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.errors import ModelError, first_line
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.device import Device

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_model(
    base: BaseModel,
    device: Device,
    adapter_dir: Path | None = None,
    trainable: bool = False,
    **options: Any,
) -> "PreTrainedModel":
    """The base model on `device`, in evaluation mode; with `adapter_dir`, as a `PeftModel` with that adapter switched on, and with
    `trainable` ready to be trained on.

    `options` are those of `from_pretrained` and override `dtype`; with a `device_map` the model stays where that puts it. On a
    machine without a GPU the process multiplies float32 matrices by the library of `device` from here on.

    Raises:
        ModelError: the weights or the adapter cannot be read, or do not fit each other.
    """
    import torch
    from transformers import AutoModelForCausalLM

    # "medium" is oneDNN's, which `device.product_speeds` has seen not to round on this CPU. It would let a GPU round.
    if device.name == "cpu" and not torch.cuda.is_available():
        torch.set_float32_matmul_precision("medium" if device.onednn else "highest")
    options = {
        "dtype": device.dtype,
        "trust_remote_code": base.trust_remote_code,
        "local_files_only": True,
    } | options
    try:
        model = AutoModelForCausalLM.from_pretrained(str(base.path), **options)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"The base model in {base.path} cannot be loaded ({first_line(error)}): fetch it anew."
        ) from error
    if adapter_dir is not None:
        model = _with_adapter(model, base, adapter_dir, trainable)
    return (model if options.get("device_map") else model.to(device.name)).eval()


def _with_adapter(
    model: "PreTrainedModel", base: BaseModel, adapter_dir: Path, trainable: bool
) -> "PreTrainedModel":
    from peft import PeftModel

    if not (adapter_dir / "adapter_config.json").is_file():
        raise ModelError(
            f"{adapter_dir} holds no adapter_config.json, so it is not a trained adapter: train one first."
        )
    try:
        return PeftModel.from_pretrained(model, str(adapter_dir), is_trainable=trainable)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"The adapter in {adapter_dir} does not load on {base.name} ({first_line(error)}): train it anew."
        ) from error


def read_tokenizer(directory: Path, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """The tokenizer of a model or adapter directory, with the chat template that lies there.

    Raises:
        ModelError: there is none that can be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"The tokenizer in {directory} cannot be read ({first_line(error)}): fetch or train the model anew."
        ) from error
