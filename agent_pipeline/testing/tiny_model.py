"""A tiny model that is made in seconds, without a download."""

import json
from pathlib import Path

from agent_pipeline.testing.weather import weather_row


def make_tiny_model(folder: Path) -> Path:
    """Write a model into a folder, and return the folder.

    The model is a Llama of 3 million random weights. Its tokenizer is a byte-level BPE of 600
    tokens, which was trained on the sessions of the weather agent. The setting `base_model` can
    name the folder. llama.cpp's converter does not know the tokenizer, so the model cannot be
    exported as GGUF.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=600,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
