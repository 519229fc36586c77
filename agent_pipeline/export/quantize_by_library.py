"""A script that quantizes with the function `llama_model_quantize` of a shared libllama
(`llama.h`), with the arguments of llama.cpp's program.

    python quantize_by_library.py <libllama.so> [--imatrix <file>] <gguf> <file to write> <Q6_K |
    Q5_K_M | Q4_K_M>
"""

import ctypes
import sys
from pathlib import Path

FTYPES = {"Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18}
"""Values of the C enum `llama_ftype`, by type name."""


class Importance(ctypes.Structure):
    """The C struct `llama_model_imatrix_data`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.POINTER(ctypes.c_float)),
        ("size", ctypes.c_size_t),
    )


class Parameters(ctypes.Structure):
    """The C struct `llama_model_quantize_params`."""

    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in ("nthread", "ftype", "output_tensor_type", "token_embedding_type")
        ),
        *(
            (name, ctypes.c_bool)
            for name in (
                "allow_requantize",
                "quantize_output_tensor",
                "only_copy",
                "pure",
                "keep_split",
                "dry_run",
            )
        ),
        ("imatrix", ctypes.POINTER(Importance)),
        *((name, ctypes.c_void_p) for name in ("kv_overrides", "tt_overrides", "prune_layers")),
    )


def main(library: Path, *arguments: str) -> None:
    """Quantize a GGUF file.

    Raises:
        SystemExit: The library has another version, or it refuses to quantize.
    """
    llama = ctypes.CDLL(str(library))
    llama.llama_model_quantize_default_params.restype = Parameters
    llama.llama_model_quantize.argtypes = (
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.POINTER(Parameters),
    )
    llama.llama_model_quantize.restype = ctypes.c_uint32
    llama.llama_backend_init()
    chosen = llama.llama_model_quantize_default_params()
    known = (
        chosen.quantize_output_tensor,
        chosen.allow_requantize,
        chosen.only_copy,
        chosen.pure,
        chosen.dry_run,
        bool(chosen.imatrix),
    )
    if known != (True, False, False, False, False, False):
        raise SystemExit(
            f"{library} has parameters that differ from the llama.cpp version that this script "
            "supports"
        )
    *options, source, out, kind = arguments
    chosen.ftype = FTYPES[kind]
    if options:
        chosen.imatrix = importance(Path(options[1]))
    if llama.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(chosen)):
        raise SystemExit(f"llama.cpp could not quantize {source}")


def importance(file: Path) -> "ctypes.Array[Importance]":
    """Return the mean square of each input of each weight, from an importance matrix in GGUF. The
    last element marks the end of the array.
    """
    import gguf

    tensors = {tensor.name: tensor.data.ravel() for tensor in gguf.GGUFReader(file).tensors}
    means = {
        name.removesuffix(".in_sum2"): sums / tensors[name.replace(".in_sum2", ".counts")]
        for name, sums in tensors.items()
        if name.endswith(".in_sum2")
    }
    rows = [
        Importance(name.encode(), (ctypes.c_float * len(mean))(*mean.tolist()), len(mean))
        for name, mean in means.items()
    ]
    return (Importance * (len(rows) + 1))(*rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
