"""Hugging Face directory → GGUF, by llama.cpp's own `convert_hf_to_gguf.py` in a process of its own.

The script is another project's code and wants its own version of the `gguf` package, so it is neither copied into this project nor
imported: it is found on disk and run with its own folder first on the path. https://github.com/ggml-org/llama.cpp
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_pipeline.errors import ExportError

SCRIPT = "convert_hf_to_gguf.py"
OUTTYPES = ("f32", "f16", "bf16", "q8_0")
"""The precisions that the converter itself writes; k-quants and i-quants need a quantizer afterwards."""

USUAL_PLACES = ("~/llama.cpp", "~/src/llama.cpp", "~/git/llama.cpp", "./llama.cpp", "/opt/llama.cpp", "/usr/local/llama.cpp")


def installed_folder() -> Path:
    """Where `make install` puts the pinned converter (`requirements/converter.txt`)."""
    return Path(sys.prefix) / "share" / "agent-pipeline" / "llama-cpp-convert"


def find_converter(explicit: str | os.PathLike | None = None) -> Path:
    """The converter script: explicit path, then `$LLAMA_CPP_PATH`, then the pinned package, then the usual places.

    A path may be the script or the llama.cpp folder that holds it. One that was *named* and does not lead to a script is an error,
    never silently passed over.

    Raises:
        ExportError: there is none.
    """
    for origin, value in (("llama_cpp_path", explicit), ("the environment variable LLAMA_CPP_PATH", os.environ.get("LLAMA_CPP_PATH"))):
        if value:
            path = Path(value).expanduser()
            script = path if path.is_file() else path / SCRIPT
            if not script.is_file():
                raise ExportError(f"{origin} is {path}, where there is no {SCRIPT}: give the llama.cpp folder that holds it.")
            return script.resolve()
    for place in (installed_folder(), *(Path(place).expanduser() for place in USUAL_PLACES)):
        if (place / SCRIPT).is_file():
            return (place / SCRIPT).resolve()
    raise ExportError(
        f"llama.cpp's {SCRIPT} was not found: run `make install` (it puts the pinned converter into {installed_folder()}), or set "
        f"LLAMA_CPP_PATH or llama_cpp_path to a llama.cpp checkout, or clone one to {USUAL_PLACES[0]}."
    )


def check_outtypes(outtypes: Sequence[str]) -> None:
    """Raises ExportError where one of the types is none that the converter writes, or there is none."""
    if not outtypes or any(kind not in OUTTYPES for kind in outtypes):
        raise ExportError(f"The GGUF types to export are {list(outtypes)}: give one or more of {', '.join(OUTTYPES)}.")


def environment(script: Path) -> dict[str, str]:
    """The subprocess's environment: the script's own `gguf` wins over any in site-packages; nothing is fetched from the network."""
    folder = script.parent
    # A git checkout keeps its gguf package under gguf-py/, the pinned package beside the script.
    own = [str(path) for path in (folder / "gguf-py", folder) if path.is_dir()]
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(own + inherited),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def convert(model_dir: Path, out_file: Path, outtype: str = "f16", llama_cpp_path: str | os.PathLike | None = None, name: str = "") -> Path:
    """Converts `model_dir` (config, safetensors, tokenizer) to the GGUF `out_file`, which appears complete or not at all.

    `name` is the model's name inside the file (`general.name`); without one the converter takes the folder's.

    Raises:
        ExportError: unknown outtype, no converter, or the converter failed (with its last line).
    """
    check_outtypes([outtype])
    script = find_converter(llama_cpp_path)
    if not (model_dir / "config.json").is_file():
        raise ExportError(f"{model_dir} holds no config.json, so it is no model that can be converted to GGUF: merge the adapter first.")
    out_file.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays .gguf: the converter puts a name of its own choosing beside any other.
    unfinished = out_file.with_name(f".{out_file.stem}.unfinished.gguf")
    command = [sys.executable, str(script), str(model_dir), "--outfile", str(unfinished), "--outtype", outtype]
    try:
        done = subprocess.run(
            [*command, *(["--model-name", name] if name else [])],
            env=environment(script),
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode != 0 or not unfinished.is_file():
            raise ExportError(
                f"Converting {model_dir} to GGUF ({outtype}) failed with exit code {done.returncode}, the converter's last line being "
                f"'{last_line(done.stderr) or last_line(done.stdout) or 'nothing'}': check that {script} supports this model."
            )
        unfinished.replace(out_file)
    finally:
        unfinished.unlink(missing_ok=True)
    return out_file


def last_line(text: str) -> str:
    """The last line with something on it, as a terminal would show it (progress bars overwrite themselves with `\\r`)."""
    lines = [line.split("\r")[-1].strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "")
