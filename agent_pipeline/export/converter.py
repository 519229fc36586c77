"""The conversion of a Hugging Face folder to GGUF by llama.cpp's own `convert_hf_to_gguf.py`, and
of a LoRA adapter to GGUF by the script's classes.

The script belongs to another project and needs its own version of the `gguf` package. So it is
neither copied into this project nor imported. It is found on disk and runs as a subprocess with its
folder first on the path. https://github.com/ggml-org/llama.cpp
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent_pipeline.errors import ExportError

SCRIPT = "convert_hf_to_gguf.py"
OUTTYPES = ("f32", "f16", "bf16", "q8_0")
"""File types that the converter can write itself. The types in `quantizer.K_QUANTS` are made from
these files.
"""

LORA = "lora"
"""Export type that contains only the adapter, for a server of llama.cpp in which many adapters
share one base model.
"""

OUT = "<out>"
"""Placeholder in a command for the file that the command writes."""

USUAL_PLACES = (
    "~/llama.cpp",
    "~/src/llama.cpp",
    "~/git/llama.cpp",
    "./llama.cpp",
    "/opt/llama.cpp",
    "/usr/local/llama.cpp",
)


def installed_folder() -> Path:
    """Return the folder into which `make install` installs the pinned converter
    (`requirements/converter.txt`).
    """
    return Path(sys.prefix) / "share" / "agent-pipeline" / "llama-cpp-convert"


def find_converter(explicit: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of the converter script.

    The search order is the explicit path, `$LLAMA_CPP_PATH`, the pinned package, and the usual
    places. A path may be the script or the llama.cpp folder that contains it. If a given path does
    not lead to a script, an error is raised, and the other places are not searched.

    Raises:
        ExportError: There is no converter.
    """
    for origin, value in (
        ("The setting `llama_cpp`", explicit),
        ("The environment variable LLAMA_CPP_PATH", os.environ.get("LLAMA_CPP_PATH")),
    ):
        if value:
            path = Path(value).expanduser()
            script = path if path.is_file() else path / SCRIPT
            if not script.is_file():
                raise ExportError(
                    f"{origin} is {path}, which does not contain {SCRIPT}: set it to the "
                    f"llama.cpp folder that contains {SCRIPT}."
                )
            return script.resolve()
    for place in (installed_folder(), *(Path(place).expanduser() for place in USUAL_PLACES)):
        if (place / SCRIPT).is_file():
            return (place / SCRIPT).resolve()
    raise ExportError(
        f"The converter {SCRIPT} of llama.cpp was not found: run `make install`, which installs "
        f"it into {installed_folder()}. To use your own llama.cpp checkout, set `llama_cpp` in "
        f"pipeline.toml (or AGENT_PIPELINE_LLAMA_CPP), or clone llama.cpp to {USUAL_PLACES[0]}."
    )


def environment(script: Path) -> dict[str, str]:
    """Return the environment variables for the converter's process.

    The script's own `gguf` package comes before any package in site-packages, and nothing is loaded
    from the network.
    """
    folder = script.parent
    # A git checkout has its gguf package in gguf-py/, and the pinned package has it next to the
    # script.
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
    """Convert a model folder (config, safetensors, tokenizer) to a GGUF file. The file appears only
    when it is complete.

    Args:
        model_dir: The folder of the model.
        out_file: The GGUF file to write.
        outtype: The type of the file.
        llama_cpp_path: A checkout of llama.cpp; None for the installed converter.
        name: The model's name inside the file (`general.name`). By default, the converter uses the
            folder's name.

    Raises:
        ExportError: There is no converter, or the converter failed. The message has its last line.
    """
    script = find_converter(llama_cpp_path)
    if not (model_dir / "config.json").is_file():
        raise ExportError(
            f"{model_dir} does not contain a config.json, so it cannot be converted to GGUF: "
            "merge the adapter into its base model first."
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
        f"check that {script} supports the model",
    )


def convert_lora(
    base_dir: Path,
    adapter_dir: Path,
    out_file: Path,
    llama_cpp_path: str | os.PathLike[str] | None = None,
) -> Path:
    """Convert a LoRA adapter (PEFT's folder) to a GGUF file in f16.

    Args:
        base_dir: The folder of the base model.
        adapter_dir: The folder of the adapter.
        out_file: The GGUF file to write.
        llama_cpp_path: A checkout of llama.cpp; None for the installed converter.

    Raises:
        ExportError: There is no converter, or the adapter is not a plain LoRA.
    """
    script = find_converter(llama_cpp_path)
    # With -P, the script's folder is not first on the path, where our modules could hide other
    # modules.
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
        f"remove {LORA} from `outtypes`",
    )


def run_tool(
    command: list[str], out_file: Path, what: str, env: dict[str, str], otherwise: str
) -> Path:
    """Run a tool of llama.cpp that writes the file `OUT`. The file appears only when it is
    complete.

    Args:
        command: The command, with `OUT` for the file to write.
        out_file: The file.
        what: The name of the step, for the error message.
        env: The environment variables.
        otherwise: The remedy, for the error message.

    Raises:
        ExportError: The tool failed. The message has its last line.
    """
    out_file.parent.mkdir(parents=True, exist_ok=True)
    # The suffix must stay .gguf, because the converter adds a name of its own to any other suffix.
    unfinished = out_file.with_name(f".{out_file.stem}.unfinished.gguf")
    try:
        done = run([str(unfinished) if part == OUT else part for part in command], env=env)
        if done.returncode != 0 or not unfinished.is_file():
            reason = last_line(done).rstrip(".") or "nothing"
            raise ExportError(
                f"{what} failed with exit code {done.returncode} (last line '{reason}'): "
                f"{otherwise}."
            )
        unfinished.replace(out_file)
    finally:
        unfinished.unlink(missing_ok=True)
    return out_file


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program without input until it ends, and capture its output."""
    options |= {
        "capture_output": True,
        "encoding": "utf-8",
        "errors": "replace",
        "stdin": subprocess.DEVNULL,
    }
    return subprocess.run(command, check=False, **options)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last non-empty line of a program's error output, or of its standard output, as a
    terminal shows it.

    Progress bars overwrite themselves with `\\r`.
    """
    lines = [
        line.split("\r")[-1].strip()
        for text in (done.stdout, done.stderr)
        for line in text.splitlines()
    ]
    return next((line for line in reversed(lines) if line), "")
