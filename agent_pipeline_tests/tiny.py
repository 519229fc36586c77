"""The embedded base model, and one that trains in seconds: SmolLM2's tokenizer, which the converter knows, on a Llama of random weights."""

import copy
import os
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from agent_pipeline.models.base_model import EMBEDDED, BaseModel, resolve_base_model
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.testing import make_tiny_model

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "agent-pipeline"


def embedded_base() -> BaseModel:
    """SmolLM2, converted once into the user's cache: by one worker, while the others wait."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / "embedded-base.lock"):
        return resolve_base_model(EMBEDDED, CACHE)


def with_jinja(renderer: ChatRenderer, jinja: str) -> ChatRenderer:
    """Return a copy of a renderer with the text of another chat template, and the same facts."""
    template = replace(renderer.template, jinja=jinja)
    return ChatRenderer(copy.deepcopy(renderer.tokenizer), template)


def make_tiny_base(directory: Path) -> Path:
    """Write the model into `directory` and return it."""
    from transformers import AutoTokenizer

    return make_tiny_model(
        directory,
        AutoTokenizer.from_pretrained(embedded_base().path),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        max_position_embeddings=2048,
        initializer_range=0.15,
    )
