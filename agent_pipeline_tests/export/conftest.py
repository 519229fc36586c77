"""A model of 3.2 million random parameters, with SmolLM2's real tokenizer and our training template, and an adapter that matters.

The converter recognises a tokenizer by what it makes of a fixed text, so a vocabulary of our own would be unknown to it.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_pipeline.errors import ExportError
from agent_pipeline.export import converter
from agent_pipeline.export.converter import find_converter
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer, read_renderer
from agent_pipeline.models.device import EXACT
from agent_pipeline.models.loading import load_model
from agent_pipeline_tests.export.forked_converter import ForkedConverter

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
    {
        "type": "function",
        "function": {
            "name": "ping",
            "strict": False,
            "parameters": {"type": "object", "properties": {}},
        },
    },
]


def call(name: str, **arguments: object) -> dict:
    return {
        "id": "call_1",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


CONVERSATIONS = [
    {
        "messages": [
            {"role": "user", "content": "Say hello  12 times"},
            {"role": "assistant", "content": "Hello."},
        ],
        "tools": [],
    },
    {
        "messages": [
            {"role": "system", "content": "You book flights."},
            {"role": "user", "content": "Zürich → 東京, \"cheap\" <please> & 'soon'\n"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [call("find_flights", max_price=99.5, **{"from": "Zürich"})],
            },
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
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [call("ping", text='quote " and \\ and </tool_call>')],
            },
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
def converter_process(needs_converter: None) -> Iterator[ForkedConverter]:
    """A process that converts models in forks of itself."""
    process = ForkedConverter()
    yield process
    process.close()


@pytest.fixture(scope="module")
def forked_converter(converter_process: ForkedConverter) -> Iterator[None]:
    """Let this process convert models in forks, which have the imports."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(converter, "run", converter_process.run)
        yield


@pytest.fixture(scope="session")
def tiny_gguf(once, tiny, converter_process: ForkedConverter) -> Path:
    """The random Llama as an f16 file. Tests only read it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(converter, "run", converter_process.run)
        return (
            once("tiny-gguf", lambda folder: converter.convert(tiny["base"], folder / "a.gguf"))
            / "a.gguf"
        )


@pytest.fixture(scope="session")
def renderer(tiny):
    """SmolLM2's tokenizer with the training template."""
    return read_renderer(tiny["adapter"])


@pytest.fixture(scope="session")
def tokenizer(renderer):
    """The renderer's tokenizer."""
    return renderer.tokenizer


@pytest.fixture(scope="session")
def tiny(once, convertible_base) -> dict[str, Path]:
    """`base`: a random Llama; `adapter`: a random LoRA large enough to change its answers; `nothing`: one that changes nothing."""
    folder = once("export", lambda folder: write_tiny(convertible_base, folder))
    return {name: folder / name for name in ("base", "adapter", "nothing")}


def write_tiny(convertible_base: Path, folder: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model

    base = model_at(folder / "base")
    shutil.copytree(convertible_base, base.path)
    tokenizer = load_renderer(base.path).tokenizer
    tokenizer.save_pretrained(base.path)
    adapted = get_peft_model(
        load_model(base, EXACT), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
    )
    tokenizer.save_pretrained(folder / "nothing")
    adapted.save_pretrained(folder / "nothing")
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    adapted.save_pretrained(folder / "adapter")
    tokenizer.save_pretrained(folder / "adapter")


def model_at(folder: Path) -> BaseModel:
    """A model directory as a base model."""
    return BaseModel(str(folder), folder, "")
