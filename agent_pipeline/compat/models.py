"""Models in the forms that users can pass: a name, a directory, a model in memory, or a trainer."""

import shutil
from pathlib import Path
from typing import Any

from agent_pipeline.config.settings import load_settings
from agent_pipeline.evaluation.turns import TurnAnswerer
from agent_pipeline.models.base_model import BaseModel, resolve_base_model
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import probe_device
from agent_pipeline.progress import Progress, silent

MAX_LENGTH = 2048
"""Default maximum number of tokens in a row or a prompt."""


def find_base_model(name: str | Path) -> BaseModel:
    """Return the base model with a given name or in a given directory, according to the settings.

    Raises:
        ModelError: The model is not available.
        SettingsError: The settings are invalid.
    """
    settings = load_settings()
    return resolve_base_model(str(name), settings.cache_path, settings.trust_remote_code)


def load_answerer(
    model: Any, max_length: int = MAX_LENGTH, progress: Progress = silent
) -> TurnAnswerer | None:
    """Return a model with its tokenizer and its chat template.

    Args:
        model: A name, a directory, a model of transformers in memory, or an `AgentSFTTrainer`.
        max_length: The longest prompt, in tokens.
        progress: The progress to report to.

    Returns:
        The model, or None if `model` is something else, such as a function.

    Raises:
        ModelError: The model cannot be loaded.
        SettingsError: The settings are invalid.
    """
    if isinstance(model, str | Path):
        # The device that transformers would choose.
        device = probe_device()
        return TurnAnswerer.of(find_base_model(model), None, max_length, progress, device)
    if hasattr(model, "get_output_embeddings"):
        renderer = load_renderer(Path(model.name_or_path))
        return TurnAnswerer(model.eval(), renderer, max_length, progress)
    answerer = getattr(model, "answerer", None)
    return answerer if isinstance(answerer, TurnAnswerer) else None


def copy_model(model_dir: Path, path: str | Path) -> str:
    """Copy the directory of a model without checkpoints and GGUF files, and return the copy."""
    target = Path(path).expanduser()
    if target.resolve() != model_dir.resolve():
        ignored = shutil.ignore_patterns("checkpoint-*", "gguf")
        shutil.copytree(model_dir, target, dirs_exist_ok=True, ignore=ignored)
    return str(target)
