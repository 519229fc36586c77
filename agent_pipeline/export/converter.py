"""Hugging Face directory → GGUF, by llama.cpp's own `convert_hf_to_gguf.py`, and LoRA adapter →
GGUF by its classes.

The script is another project's code and wants its own version of the `gguf` package, so it is
neither copied into this project nor imported: it is found on disk and run in a process of its own,
with its folder first on the path. https://github.com/ggml-org/llama.cpp
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent_pipeline.errors import ExportError

SCRIPT = "convert_hf_to_gguf.py"
OUTTYPES = ("f32", "f16", "bf16", "q8_0")
"""The precisions that the converter itself writes; `quantizer.K_QUANTS` are made of these."""

LORA = "lora"
"""The adapter alone, for llama.cpp's server over a base that many adapters share."""

OUT = "<out>"
"""Stands in a command for the file to write."""

USUAL_PLACES = (
    "~/llama.cpp",
    "~/src/llama.cpp",
    "~/git/llama.cpp",
    "./llama.cpp",
    "/opt/llama.cpp",
    "/usr/local/llama.cpp",
)


def installed_folder() -> Path:
    """Where `make install` puts the pinned converter (`requirements/converter.txt`)."""
    return Path(sys.prefix) / "share" / "agent-pipeline" / "llama-cpp-convert"


def find_converter(explicit: str | os.PathLike[str] | None = None) -> Path:
    """The converter script: explicit path, then `$LLAMA_CPP_PATH`, then the pinned package, then
    the usual places.

    A path may be the script or the llama.cpp folder that holds it. One that was *named* and does
    not lead to a script is an error, never silently passed over.

    Raises:
        ExportError: there is none.
    """
    for origin, value in (
        ("the setting llama_cpp", explicit),
        ("the environment variable LLAMA_CPP_PATH", os.environ.get("LLAMA_CPP_PATH")),
    ):
        if value:
            path = Path(value).expanduser()
            script = path if path.is_file() else path / SCRIPT
            if not script.is_file():
                raise ExportError(
                    f"{origin} is {path}, where there is no {SCRIPT}: give the llama.cpp folder "
                    f"that holds it."
                )
            return script.resolve()
    for place in (installed_folder(), *(Path(place).expanduser() for place in USUAL_PLACES)):
        if (place / SCRIPT).is_file():
            return (place / SCRIPT).resolve()
    raise ExportError(
        f"llama.cpp's {SCRIPT} was not found: run `make install` (it puts the pinned converter "
        f"into {installed_folder()}), or set "
        f"llama_cpp in pipeline.toml (or AGENT_PIPELINE_LLAMA_CPP) to a llama.cpp checkout, or "
        f"clone one to {USUAL_PLACES[0]}."
    )


def environment(script: Path) -> dict[str, str]:
    """The subprocess's environment: the script's own `gguf` wins over any in site-packages; nothing
    is fetched from the network.
    """
    folder = script.parent
    # A git checkout keeps its gguf package under gguf-py/, the pinned package beside the script.
    package_folders = [str(path) for path in (folder / "gguf-py", folder) if path.is_dir()]
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(package_folders + inherited),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def convert(
    model_dir: Path,
    out_file: Path,
    outtype: str = "f16",
    llama_cpp_path: str | os.PathLike[str] | None = None,
    name: str = "",
) -> Path:
    """Converts `model_dir` (config, safetensors, tokenizer) to the GGUF `out_file`, which appears
    complete or not at all.

    `name` is the model's name inside the file (`general.name`); without one the converter takes the
    folder's.

    Raises:
        ExportError: no converter, or the converter failed (with its last line).
    """
    script = find_converter(llama_cpp_path)
    if not (model_dir / "config.json").is_file():
        raise ExportError(
            f"{model_dir} holds no config.json, so it is not a model that can be converted to "
            f"GGUF: merge the adapter first."
        )
    named = ["--model-name", name] if name else []
    command = [
        sys.executable,
        str(script),
        str(model_dir),
        "--outfile",
        OUT,
        "--outtype",
        outtype,
        *named,
    ]
    return run_tool(
        command,
        out_file,
        f"Converting {model_dir} to GGUF ({outtype})",
        environment(script),
        f"check that {script} supports it",
    )


def convert_lora(
    base_dir: Path,
    adapter_dir: Path,
    out_file: Path,
    llama_cpp_path: str | os.PathLike[str] | None = None,
) -> Path:
    """Converts a LoRA adapter (PEFT's directory) of the model in `base_dir` to the GGUF `out_file`,
    in f16.

    Raises:
        ExportError: no converter, or the adapter is more than a plain LoRA.
    """
    script = find_converter(llama_cpp_path)
    # -P: the folder of a script is not first on its path, where our modules could hide others.
    command = [
        sys.executable,
        "-P",
        str(Path(__file__).with_name("lora_to_gguf.py")),
        str(base_dir),
        str(adapter_dir),
        OUT,
    ]
    return run_tool(
        command,
        out_file,
        f"Converting the adapter {adapter_dir} to GGUF",
        environment(script),
        f"leave {LORA} out of outtypes",
    )


def run_tool(
    command: list[str], out_file: Path, what: str, env: dict[str, str], otherwise: str
) -> Path:
    """Runs one of llama.cpp's tools, which is to write `OUT`; the file appears complete or not at
    all.

    Raises:
        ExportError: it failed; says `what`, its last line, and what to do `otherwise`.
    """
    out_file.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays .gguf: the converter puts a name of its own choosing beside any other.
    unfinished = out_file.with_name(f".{out_file.stem}.unfinished.gguf")
    try:
        done = run([str(unfinished) if part == OUT else part for part in command], env=env)
        if done.returncode != 0 or not unfinished.is_file():
            reason = last_line(done).rstrip(".") or "nothing"
            raise ExportError(
                f"{what} failed with exit code {done.returncode}, the last line being '{reason}': "
                f"{otherwise}."
            )
        unfinished.replace(out_file)
    finally:
        unfinished.unlink(missing_ok=True)
    return out_file


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program that can ask nothing, to its end. What it says is captured."""
    options |= {
        "capture_output": True,
        "encoding": "utf-8",
        "errors": "replace",
        "stdin": subprocess.DEVNULL,
    }
    return subprocess.run(command, check=False, **options)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of errors, else of output, with something on it, as a terminal would show it
    (progress bars overwrite themselves with `\\r`).
    """
    lines = [
        line.split("\r")[-1].strip()
        for text in (done.stdout, done.stderr)
        for line in text.splitlines()
    ]
    return next((line for line in reversed(lines) if line), "")
