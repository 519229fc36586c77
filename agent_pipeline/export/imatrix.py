"""An importance matrix for the quantizer, from rendered training rows: the mean square of what passes into each weight.

llama.cpp's `llama-imatrix` measures the same while it runs a text. Here the merged model runs the rows as they are trained, special tokens
and all. https://github.com/ggml-org/llama.cpp/tree/master/tools/imatrix
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def write_imatrix(model: "PreTrainedModel", texts: Sequence[list[int]], gguf_file: Path, out_file: Path, origin: str) -> Path:
    """Writes the importance matrix of `model` over `texts` (token ids) as GGUF. The names of the weights are those of `gguf_file`, a
    conversion of the model; `origin` says what the texts are."""
    import gguf
    import numpy
    import torch

    architecture = gguf.GGUFReader(gguf_file).fields["general.architecture"].contents()
    known = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(known, model.config.num_hidden_layers)
    sums: dict[str, torch.Tensor] = {}

    def measure(name: str, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        squares = inputs[0].detach().float().square().flatten(0, -2).sum(0)
        sums[name] = sums[name] + squares if name in sums else squares

    linear = {names.get_name(name): module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    hooks = [module.register_forward_pre_hook(partial(measure, name)) for name, module in linear.items() if name]
    with torch.inference_mode():
        for ids in texts:
            model(input_ids=torch.tensor([ids]), use_cache=False)
    for each in hooks:
        each.remove()
    writer = gguf.GGUFWriter(out_file, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", [origin])
    writer.add_uint32("imatrix.chunk_count", len(texts))
    writer.add_uint32("imatrix.chunk_size", max(map(len, texts)))
    for name, squares in sums.items():
        writer.add_tensor(f"{name}.weight.in_sum2", squares.numpy()[None])
        writer.add_tensor(f"{name}.weight.counts", numpy.array([[sum(map(len, texts))]], dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out_file
