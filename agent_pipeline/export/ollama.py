"""Registers an exported GGUF with Ollama, where there is one.

Not having Ollama is no failure: the GGUF and its Modelfile are complete without it. A registration that was tried and failed is one.
"""

import re
import shutil
import subprocess
from pathlib import Path

import msgspec

from agent_pipeline.errors import ExportError
from agent_pipeline.export.converter import last_line
from agent_pipeline.export.modelfile import quote

LONGEST_NAME = 80
"""Characters that Ollama takes for a model's name."""


class OllamaResult(msgspec.Struct):
    """`created`: Ollama has the model `name` now; `text`: what happened, or what to do, in a sentence."""

    name: str
    created: bool
    text: str


def model_name(project: str, agent: str) -> str:
    """`tau/airline` → `tau-airline`: a name that Ollama takes, lower case, of letters, digits, `.`, `_` and `-`.

    Raises `ExportError` where nothing is left.
    """
    name = re.sub(r"[^a-z0-9._-]+", "-", f"{project}-{agent}".lower()).strip("-._")[:LONGEST_NAME].rstrip("-._")
    if not name:
        raise ExportError(
            f"No Ollama model can be named after project '{project}' and agent '{agent}', which have no letter or digit of "
            "a to z or 0 to 9: give the model a name of your own."
        )
    return name


def create(name: str, modelfile_path: Path) -> OllamaResult:
    """`ollama create name -f modelfile`, where an `ollama` is on PATH.

    Raises `ExportError` where it fails: the step, its last line and what to do.
    """
    if not modelfile_path.is_file():
        raise ExportError(f"There is no Modelfile at {modelfile_path}: export the model to GGUF first.")
    ollama = shutil.which("ollama")
    by_hand = f"ollama create {name} -f {modelfile_path}"
    if not ollama:
        return OllamaResult(name, False, f"No ollama is on PATH, so {name} was not registered: install Ollama and run `{by_hand}`.")
    # From the Modelfile's folder: its FROM names the GGUF beside it.
    done = subprocess.run(
        [ollama, "create", name, "-f", str(modelfile_path.resolve())],
        cwd=modelfile_path.parent,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        reason = plain(last_line(done.stderr) or last_line(done.stdout)) or "nothing"
        raise ExportError(
            f"The step `ollama create {name}` failed with exit code {done.returncode}, its last line being '{reason}': see "
            f"that Ollama runs (`ollama serve`), then run `{by_hand}`."
        )
    return OllamaResult(name, True, f"Ollama has {name}: try `ollama run {name}`.")


def library_template(name: str) -> str | None:
    """The Go template of the model `name` of Ollama's library; None where no ollama is on PATH, it does not have that model, or a Modelfile
    cannot hold the template."""
    ollama = shutil.which("ollama")
    if not ollama:
        return None
    done = subprocess.run(
        [ollama, "show", "--template", name], capture_output=True, text=True, encoding="utf-8", stdin=subprocess.DEVNULL, check=False
    )
    template = done.stdout.strip() if done.returncode == 0 else ""
    try:
        quote(template)
    except ExportError:
        return None
    return template or None


def plain(line: str) -> str:
    """A terminal's line without its colours and cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip()
