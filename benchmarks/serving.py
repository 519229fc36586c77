"""`python -m benchmarks.serving [champions] [rank]`: many adapters over the embedded base, as llama.cpp's server answers from them.

Each adapter is trained until it makes a tool call of its own. Printed are the disk that base and adapters take, how many adapters
answer with their own call through the preset that `serving` writes, and the seconds from `rollback` to the old champion's answer.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any

from agent_pipeline.config.settings import load_settings
from agent_pipeline.export.converter import convert_lora
from agent_pipeline.export.gguf_export import ADAPTER, base_gguf
from agent_pipeline.export.quantizer import find_tool
from agent_pipeline.export.serving_folder import base_folder, serving_root
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import EMBEDDED, resolve_base_model
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import fast_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.promotion.champions import promote, rollback, serve_champion
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.lake import Lake
from agent_pipeline.tokenization.loss_masks import encode_conversation

SCHEMA = {"type": "object", "properties": {"desk": {"type": "string"}}}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "hand_over",
            "description": "Hand over to a desk.",
            "parameters": SCHEMA,
        },
    }
]
ASKED: list[Any] = [{"role": "user", "content": "Please hand me over to your desk."}]


def own_call(number: int) -> dict[str, Any]:
    function = {"name": "hand_over", "arguments": json.dumps({"desk": f"desk-{number}"})}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


def main(champions: int, rank: int) -> None:
    import torch
    from peft import LoraConfig, get_peft_model

    cache = load_settings().cache_path
    base = resolve_base_model(EMBEDDED, cache)
    renderer = load_renderer(base.path)
    model: Any = get_peft_model(
        load_model(base, fast_device("auto")),
        LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"),
    )
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        lake = Lake(f"{folder}/lake", cache)
        shared = base_gguf(base, base_folder(lake))
        keys = [PartitionKey("desks", f"desk-{number}") for number in range(champions)]
        # The last one is a newer champion of the first partition, to be rolled back.
        for number, key in enumerate([*keys, keys[0]]):
            row = encode_conversation(renderer, [*ASKED, own_call(number)], TOOLS)
            ids, labels = (torch.tensor([each]) for each in (row.input_ids, row.labels))
            optimizer = torch.optim.AdamW(
                [each for each in model.parameters() if each.requires_grad], lr=2e-3, weight_decay=0
            )
            for _ in range(60):
                loss = model(input_ids=ids, labels=labels).loss
                if (
                    loss.item() * sum(row.trained) < 0.3
                ):  # each of its tokens is likelier than all others together
                    break
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            print(f"{key}: loss {loss.item():.3f}", flush=True)
            made_from = {"base_model": base.name, "base_revision": base.revision, "number": number}
            building = lake.building("sft_adapter", key, hash_json(number))
            model.save_pretrained(building)
            renderer.tokenizer.save_pretrained(building)
            adapter = lake.finish("sft_adapter", key, hash_json(number), building, made_from, {})
            building = lake.building("gguf_export", key, adapter.identity)
            convert_lora(base.path, adapter.path, building / ADAPTER)
            report = {"ollama": {"gguf": ADAPTER, "num_ctx": 512}}
            export = lake.finish(
                "gguf_export",
                key,
                adapter.identity,
                building,
                {"adapter": adapter.identity},
                report,
            )
            lake.set_latest(export)
            promote(lake, key, export.identity)
            if number < champions:
                serve_champion(lake, key)
        sizes = {
            path: path.stat().st_size for path in serving_root(lake).rglob("*") if path.is_file()
        }
        whole, one = shared.stat().st_size, (export.path / ADAPTER).stat().st_size
        gguf = sum(size for path, size in sizes.items() if path.suffix == ".gguf")
        print(
            f"base {whole / 1e6:.1f} MB, an adapter of rank {rank} {one / 1e6:.2f} MB; what llama-server reads of {champions} champions"
        )
        print(
            f"is {gguf / whole:.2f} times the base, and with the files for vLLM {sum(sizes.values()) / whole:.2f} times"
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        preset = serving_root(lake) / "llama-server.ini"
        command = [
            str(find_tool("llama-server")),
            "--models-preset",
            str(preset),
            "--models-max",
            "4",
            "--port",
            url.rpartition(":")[2],
        ]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(url)
            own = [
                asks(url, key) == own_call(number)["tool_calls"][0]["function"]
                for number, key in enumerate(keys)
            ]
            print(f"{sum(own)} of {champions} answer with their own tool call")
            serve_champion(lake, keys[0], server=url)
            assert asks(url, keys[0]) == own_call(champions)["tool_calls"][0]["function"]
            began = time.monotonic()
            rollback(lake, keys[0])
            serve_champion(lake, keys[0], server=url)
            assert asks(url, keys[0]) == own_call(0)["tool_calls"][0]["function"]
            print(f"{time.monotonic() - began:.1f} s from rollback to the old champion's answer")
        finally:
            server.terminate()
            server.wait(30)


def wait_for(url: str) -> None:
    """Return when the server answers; after two minutes, raise what it fails with."""
    began = time.monotonic()
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=10).close()
            return
        except OSError:
            if time.monotonic() - began > 120:
                raise
            time.sleep(1)


def asks(url: str, key: PartitionKey) -> dict[str, str]:
    """The call with which a model answers."""
    body = {
        "model": str(key),
        "messages": ASKED,
        "tools": TOOLS,
        "max_tokens": 48,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        calls = json.load(response)["choices"][0]["message"].get("tool_calls") or [{"function": {}}]
    called = calls[0]["function"]
    return called | {"arguments": json.dumps(json.loads(called.get("arguments") or "null"))}


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 20, int(sys.argv[2]) if len(sys.argv) > 2 else 16
    )
