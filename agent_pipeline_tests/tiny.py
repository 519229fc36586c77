"""The embedded base model, and one that trains in seconds: SmolLM2's tokenizer, which the converter knows, on a Llama of random weights."""

import copy
import os
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from agent_pipeline.models.base_model import EMBEDDED, BaseModel, resolve_base_model
from agent_pipeline.models.chat_renderer import ChatRenderer

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
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(embedded_base().path)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.15,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
