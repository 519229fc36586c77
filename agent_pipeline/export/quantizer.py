"""K-quants, which llama.cpp's own quantizer makes (the program `llama-quantize`, or the library
function that it calls), and the importance matrix for them.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.errors import ExportError
from agent_pipeline.export.converter import LORA, OUT, OUTTYPES, installed_folder, run_tool

if TYPE_CHECKING:
    from transformers import PreTrainedModel

K_QUANTS = ("q6_k", "q5_k_m", "q4_k_m")
KINDS = (*OUTTYPES, *K_QUANTS, LORA)
"""All types that can be exported."""


def check_outtypes(outtypes: Sequence[str]) -> None:
    """Check that all types can be written, and that at least one of them is a whole model.

    Raises:
        ExportError: A type is not known, or no type is a whole model.
    """
    if not set(outtypes) - {LORA} or any(kind not in KINDS for kind in outtypes):
        raise ExportError(
            f"The GGUF types to export (`outtypes`) are {list(outtypes)}: choose from "
            f"{', '.join(KINDS)}, and choose at least one type besides {LORA}."
        )


def find_tool(name: str, llama_cpp_path: str | os.PathLike[str] | None = None) -> Path | None:
    """Return a program or library of a llama.cpp build, or None if it is not found.

    It is searched in the given checkout, on PATH, and in the pinned package
    (`requirements/llama-server.txt`).
    """
    folders = [
        Path(named).expanduser()
        for named in (llama_cpp_path, os.environ.get("LLAMA_CPP_PATH"))
        if named
    ]
    places = [
        place / name
        for folder in folders
        for place in (folder, folder / "build" / "bin", folder.parent / "build" / "bin")
    ]
    program = shutil.which(name)
    packaged = sorted(installed_folder().with_name("llama-server").glob(f"*/bin/{name}"))
    return next(
        (
            place.resolve()
            for place in [*places, *([Path(program)] if program else []), *packaged]
            if place.is_file()
        ),
        None,
    )


def find_quantizer(llama_cpp_path: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the first arguments of the command that quantizes a file.

    Raises:
        ExportError: There is no build of llama.cpp.
    """
    if program := find_tool("llama-quantize", llama_cpp_path):
        return [str(program)]
    if library := find_tool("libllama.so", llama_cpp_path):
        return [
            sys.executable,
            "-P",
            str(Path(__file__).with_name("quantize_by_library.py")),
            str(library),
        ]
    raise ExportError(
        f"The types {', '.join(K_QUANTS)} need llama.cpp's quantizer, which was not found: run "
        "`make llama-server`, put llama-quantize on PATH, or set `llama_cpp` to a llama.cpp "
        "checkout that is built."
    )


def quantize(
    source: Path,
    out_file: Path,
    kind: str,
    imatrix: Path | None = None,
    llama_cpp_path: str | os.PathLike[str] | None = None,
) -> Path:
    """Quantize a GGUF (f32 or f16) to a k-quant.

    Args:
        source: The GGUF to quantize.
        out_file: The GGUF to write.
        kind: One of `K_QUANTS`.
        imatrix: The importance matrix, which weights the rounding errors.
        llama_cpp_path: A checkout of llama.cpp.

    Raises:
        ExportError: There is no quantizer, or the quantizer failed.
    """
    weighed = ["--imatrix", str(imatrix)] if imatrix else []
    command = [*find_quantizer(llama_cpp_path), *weighed, str(source), OUT, kind.upper()]
    return run_tool(
        command,
        out_file,
        f"Quantizing {source} to {kind}",
        dict(os.environ),
        f"remove {kind} from `outtypes`",
    )


def write_imatrix(
    model: "PreTrainedModel",
    texts: Sequence[list[int]],
    gguf_file: Path,
    out_file: Path,
    origin: str,
) -> Path:
    """Write the importance matrix of a model as GGUF: the mean square of the inputs of each weight.

    llama.cpp's `llama-imatrix` measures the same values while it reads a text. Here, the merged
    model reads the training rows, including special tokens.
    https://github.com/ggml-org/llama.cpp/tree/master/tools/imatrix

    Args:
        model: The merged model.
        texts: The token ids of each text.
        gguf_file: A conversion of the model, which has the names of the weights.
        out_file: The file to write.
        origin: A description of the texts.
    """
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

    linear = {
        names.get_name(name): module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    hooks = [
        module.register_forward_pre_hook(partial(measure, name))
        for name, module in linear.items()
        if name
    ]
    with torch.inference_mode():
        for ids in texts:
            model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    writer = gguf.GGUFWriter(out_file, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", [origin])
    writer.add_uint32("imatrix.chunk_count", len(texts))
    writer.add_uint32("imatrix.chunk_size", max(map(len, texts)))
    for name, squares in sums.items():
        writer.add_tensor(f"{name}.weight.in_sum2", squares.numpy()[None])
        writer.add_tensor(
            f"{name}.weight.counts", numpy.array([[sum(map(len, texts))]], dtype=numpy.float32)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out_file
