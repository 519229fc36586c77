"""The folder that servers read: the champion of every partition, ready for llama.cpp's server, vLLM and Ollama.

    <lake>/serving/llama-server.ini          llama-server --models-preset: every partition is a model (`model: "shop/support"`)
    <lake>/serving/base-1f0c….gguf           the base that their adapters share
    <lake>/serving/shop/support/Modelfile    ollama create shop-support -f Modelfile
    <lake>/serving/shop/support/             the GGUF files; adapter_config.json and the weights, for vLLM

Large files are hard links to those of the lake, where its disk has such. Files appear whole, and what was served before goes last.
"""

import os
import shutil
import urllib.request
from pathlib import Path
from uuid import uuid4

from agent_pipeline.datasets.jsonl import write_atomically
from agent_pipeline.errors import DataError
from agent_pipeline.export.converter import LORA
from agent_pipeline.export.gguf_export import ADAPTER, base_gguf_file
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.filesystem import sha256_file
from agent_pipeline.storage.lake import Lake

PRESET = "llama-server.ini"
SECTION = "preset.ini"
PEFT = ("adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "tokenizer.json", "tokenizer_config.json")
SECONDS = 5.0


def base_folder(lake: Lake) -> Path:
    """Where this machine keeps the GGUF files of base models."""
    return lake.fs.cache / "base-gguf"


def serving_root(lake: Lake) -> Path:
    """The folder of all partitions, on this machine."""
    return lake.fs.local(lake.root / "serving").resolve()


def partition_folder(lake: Lake, key: PartitionKey) -> Path:
    """The folder of one partition."""
    return serving_root(lake) / key.project / key.agent


def served_gguf(export: Artifact) -> Path:
    """The whole model of an export that is served: the smallest that passed.

    Raises:
        DataError: the export does not say which.
    """
    if name := export.manifest["report"].get("ollama", {}).get("gguf"):
        return export.path / name
    raise DataError(f"The export {export.identity[:16]} of {export.key} is of an older version: materialize gguf_export again.")


def write_folder(lake: Lake, key: PartitionKey, export: Artifact, adapter: Artifact | None) -> str:
    """Put an export into its partition's folder, and the partition into the preset; says how llama.cpp's server gets it.

    The adapter is served over the shared base where it passed as such and this machine has the base's GGUF, else the merged model is.
    """
    root, folder, report = serving_root(lake), partition_folder(lake, key), export.manifest["report"]
    whole, short = served_gguf(export), export.identity[:16]
    # A server sees by its name that a file is another one.
    merged, alone = folder / f"{whole.stem}-{short}.gguf", folder / f"adapter-{short}.gguf"
    files = {merged: whole} | {folder / name: adapter.path / name for name in PEFT if adapter and (adapter.path / name).is_file()}
    section = {"model": merged, "ctx-size": report["ollama"]["num_ctx"]}
    made_from = adapter.manifest["made_from"] if adapter else {}
    base = base_gguf_file(base_folder(lake), made_from["base_model"], made_from["base_revision"]) if made_from else None
    over = base is not None and base.is_file() and (export.path / ADAPTER).is_file() and LORA not in report.get("failed", {})
    if over and base:
        files |= {alone: export.path / ADAPTER, root / base.name: base}
        section |= {"model": root / base.name, "lora": alone, "chat-template-file": folder / "chat_template.jinja"}
    for target, source in files.items():
        _link(source, target)
    modelfile = (export.path / "Modelfile").read_text(encoding="utf-8")
    modelfile = modelfile.replace(f"FROM ./{whole.name}", f"FROM ./{merged.name}", 1)
    write_atomically(folder / "Modelfile", modelfile.encode("utf-8"))
    text = "\n".join([f"[{key}]", *(f"{name} = {value}" for name, value in section.items())])
    write_atomically(folder / SECTION, f"{text}\n".encode())
    write_preset(lake)
    for path in folder.glob("*.gguf"):
        if path not in files:
            path.unlink()
    return "an adapter over the shared base" if over else f"a merged model, {whole.name}"


def write_preset(lake: Lake) -> None:
    """Every partition's section, in one preset of llama-server's router."""
    root = serving_root(lake)
    with lake.fs.lock(lake.root / ".locks" / "serving.lock"):
        sections = [path.read_text(encoding="utf-8") for path in sorted(root.glob(f"*/*/{SECTION}"))]
        write_atomically(root / PRESET, "\n".join(["version = 1\n", *sections]).encode("utf-8"))


def reload_preset(server: str) -> str:
    """Ask a running llama-server to read its preset again; says in a sentence what came of it, or what to do without a server's URL."""
    if not server:
        return "A llama-server that is running keeps the old preset: restart it, or set serving.server to its URL."
    # No proxy: what is set in the environment has no business with a server of one's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{server.rstrip('/')}/models?reload=1", timeout=SECONDS):
            return f"llama-server at {server} has read its preset again."
    except (OSError, ValueError) as error:
        return f"llama-server at {server} keeps the old preset ({error}): restart it, or set serving.server to its URL."


def _link(source: Path, target: Path) -> None:
    """A file in its place, whole, as a hard link or a copy; nothing where it is there."""
    # The names of the large ones say what they are.
    same = target.is_file() and target.stat().st_size == source.stat().st_size
    if same and (target.suffix == ".gguf" or sha256_file(target) == sha256_file(source)):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}-{uuid4().hex[:8]}")
    try:
        os.link(source, new)
    except OSError:  # another disk, or one without hard links
        shutil.copyfile(source, new)
    new.replace(target)
