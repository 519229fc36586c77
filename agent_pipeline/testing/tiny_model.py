"""A tiny model that is made in seconds, without a download."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.testing.weather import weather_row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MIN_VOCABULARY = 600
"""Minimum number of tokens of the model. The tokenizer of the weather agent has almost as many."""


def make_tiny_model(
    folder: Path, tokenizer: "PreTrainedTokenizerBase | None" = None, **config: object
) -> Path:
    """Write a model into a folder, and return the folder.

    The model is a Llama of 3 million random weights. The setting `base_model` can name the folder.

    Args:
        folder: The folder.
        tokenizer: The tokenizer of the model. The default is a byte-level BPE of 600 tokens, which
            is trained on the sessions of the weather agent. llama.cpp's converter does not know
            this tokenizer, so such a model cannot be exported as GGUF.
        config: Options of `LlamaConfig` to use instead of the usual ones, such as `hidden_size`.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer or _train_tokenizer()
    is_pad_own = tokenizer.pad_token_id != tokenizer.eos_token_id
    options: dict[str, object] = {
        "vocab_size": max(len(tokenizer), MIN_VOCABULARY),
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id if is_pad_own else None,
    }
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**(options | config))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _train_tokenizer() -> "PreTrainedTokenizerBase":
    """Return a tokenizer that was trained on the sessions of the weather agent."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    corpus = [json.dumps(weather_row(number)) for number in range(40)]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
