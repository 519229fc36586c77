"""A base model that trains in seconds: SmolLM2's real tokenizer (the converter must know it) on a Llama of random weights."""

import os
from pathlib import Path

from agent_pipeline.training.base_model import EMBEDDED, resolve_base_model

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "agent-pipeline"


def make_tiny_base(directory: Path) -> Path:
    """Write the model into `directory` and return it."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(resolve_base_model(EMBEDDED, CACHE).path)
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
