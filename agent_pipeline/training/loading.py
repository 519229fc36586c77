"""A model in memory: the base alone, or with a trained adapter on top."""

from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.errors import ModelError
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.config import Device

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_model(base: BaseModel, device: Device, adapter_dir: Path | None = None) -> "PreTrainedModel":
    """The base model on `device`, in evaluation mode; with `adapter_dir`, wrapped as a `PeftModel` with that adapter on.

    Raises ModelError where the weights, or the adapter, cannot be read or do not fit each other.
    """
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(str(base.path), dtype=device.dtype, trust_remote_code=base.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"The base model in {base.path} cannot be loaded ({str(error).splitlines()[0]}): fetch it anew.") from error
    if adapter_dir is not None:
        from peft import PeftModel

        try:
            model = PeftModel.from_pretrained(model, str(adapter_dir))
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise ModelError(f"The adapter in {adapter_dir} does not load on {base.name} ({reason}): train it anew.") from error
    return model.to(device.name).eval()
