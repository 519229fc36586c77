"""A world small enough to train in seconds: one tool, tasks that name a city, a Llama of 3 million random weights."""

import json
from pathlib import Path
from typing import Any

from agent_pipeline.progress import silent
from agent_pipeline.training import sft
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.provenance import SftInput

CITIES = [
    "Oslo",
    "Rome",
    "Bonn",
    "Lima",
    "Kyiv",
    "Riga",
    "Bern",
    "Cork",
    "Graz",
    "Pisa",
    "Nice",
    "Turin",
]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
TRAINING = TrainingConfig(
    num_train_epochs=4,
    learning_rate=4e-3,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=1,
    max_length=512,
    save_steps=4,
    lora_r=8,
    precision="float32",
)


def call(name: str, arguments: dict[str, Any], call_id: str = "call00001") -> dict[str, Any]:
    """A tool call in canonical form."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def row(number: int, split: str = "train") -> dict[str, Any]:
    """Row `number`: a question about a city, the call, its result, the answer."""
    city, days = CITIES[number % len(CITIES)], 1 + number % 5
    return {
        "row_id": f"row-{number}",
        "session_id": f"session-{number}",
        "content_sha256": f"{number:064x}",
        "task_key": f"task-{number}",
        "split": split,
        "messages": [
            {"role": "system", "content": "You report the weather."},
            {"role": "user", "content": f"How is {city} for {days} days?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [call("weather", {"city": city, "days": days})],
            },
            {
                "role": "tool",
                "tool_call_id": "call00001",
                "content": f'{{"city": "{city}", "sun": true}}',
            },
            {"role": "assistant", "content": f"It is sunny in {city}."},
        ],
        "tools": [TOOL],
    }


def make_base(directory: Path) -> None:
    """A Llama of 3 million random weights, with a byte-level BPE of 600 tokens trained on the world's own text."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    corpus = [json.dumps(row(n)) for n in range(40)]
    bpe.train_from_iterator(
        corpus,
        trainers.BpeTrainer(vocab_size=600, special_tokens=specials, initial_alphabet=alphabet),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=600, hidden_size=256, intermediate_size=768, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def train_adapter(
    rows: list[dict[str, Any]],
    base: Any,
    config: TrainingConfig,
    out: Path,
    heldout: Any = (),
    progress: Any = silent,
    **more: Any,
) -> dict[str, Any]:
    """`sft.train_adapter` with the fields of its input as arguments."""
    return sft.train_adapter(SftInput(rows, base, config, **more), out, heldout, progress)
