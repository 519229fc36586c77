"""A model in any form that people have it in: a name, a directory, one of transformers in memory, a
trainer.
"""

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
"""Tokens of a row or a prompt."""


def base_model(name: str | Path) -> BaseModel:
    """The model of a name or directory, by the settings. Raises ModelError, SettingsError."""
    settings = load_settings()
    return resolve_base_model(str(name), settings.cache_path, settings.trust_remote_code)


def answering_of(
    model: Any, max_length: int = MAX_LENGTH, progress: Progress = silent
) -> TurnAnswerer | None:
    """A model with its tokenizer and template: of a name, a directory, one of transformers, or an
    `AgentSFTTrainer`; `None` for anything else (a function, say). Raises ModelError,
    SettingsError.
    """
    if isinstance(model, str | Path):
        return TurnAnswerer.of(
            base_model(model), None, max_length, progress, probe_device()
        )  # as transformers would load it
    if hasattr(model, "get_output_embeddings"):
        return TurnAnswerer(
            model.eval(), load_renderer(Path(model.name_or_path)), max_length, progress
        )
    answering = getattr(model, "answering", None)
    return answering if isinstance(answering, TurnAnswerer) else None


def copied_model(model: Path, path: str | Path) -> str:
    """Copy a model's directory, without checkpoints and GGUF files; the copy's path."""
    target = Path(path).expanduser()
    if target.resolve() != model.resolve():
        shutil.copytree(
            model, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoint-*", "gguf")
        )
    return str(target)
