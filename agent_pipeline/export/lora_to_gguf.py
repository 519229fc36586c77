"""A script that writes a LoRA adapter as a GGUF file with the converter's own classes. It runs in
the converter's environment (`converter.convert_lora`).

    python lora_to_gguf.py <base model> <adapter> <file to write>

llama.cpp adds `alpha / r · B·A` to a weight. The converter renames a base model's weights and
reorders the rows of some weights. The rows of B are reordered in the same way, and A is not
changed.
"""

import json
import sys
from pathlib import Path
from typing import Any

PREFIX = "base_model.model."


def main(base: Path, adapter: Path, out: Path) -> None:
    """Write the adapter as a GGUF file in f16.

    Args:
        base: The folder of the base model.
        adapter: The folder of the adapter.
        out: The file to write.

    Raises:
        SystemExit: The adapter is not a plain LoRA.
    """
    import gguf
    import torch
    from conversion import ModelBase, get_model_architecture, get_model_class
    from conversion.base import ModelType
    from safetensors.torch import load_file

    alpha = scale_of(json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8")))
    architecture = get_model_architecture(ModelBase.load_hparams(base, False), ModelType.TEXT)
    model = get_model_class(architecture)(base, gguf.LlamaFileType.MOSTLY_F16, out)
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[model.model_arch])
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, a in tensors.items():
        module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        if name.endswith(".lora_B.weight"):
            continue
        if module == name.removeprefix(PREFIX):
            raise SystemExit(f"The adapter contains the tensor {name}, which is not a LoRA matrix")
        layer = next((int(part) for part in module.split(".") if part.isdecimal()), None)
        rows = tensors[f"{PREFIX}{module}.lora_B.weight"]
        for new, b in model.modify_tensors(rows, f"{module}.weight", layer):
            if b.shape != rows.shape:
                raise SystemExit(
                    f"llama.cpp cannot load the LoRA of {module}, because the converter splits "
                    "this module"
                )
            for part, tensor in (("lora_a", a), ("lora_b", b)):
                writer.add_tensor(f"{new}.{part}", tensor.to(torch.float16).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def scale_of(config: dict[str, Any]) -> float:
    """Return the value `alpha` of a plain LoRA adapter, read from its PEFT configuration.

    Raises:
        SystemExit: The adapter is not a plain LoRA.
    """
    more = [
        name
        for name in (
            "use_dora",
            "modules_to_save",
            "rank_pattern",
            "alpha_pattern",
            "lora_bias",
            "trainable_token_indices",
        )
        if config.get(name)
    ]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or more:
        raise SystemExit(
            "llama.cpp loads only plain LoRA adapters, but this adapter uses "
            f"{', '.join(more) or 'another type'}"
        )
    return float(config["lora_alpha"] * (config["r"] ** 0.5 if config.get("use_rslora") else 1))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
