"""The whole export: adapter → merged model → GGUF files → proof → Modelfile, all in one directory.

model-f16.gguf, model-q8_0.gguf   the model adapter.gguf                      the adapter alone, for
a base that many share, where it is asked for parity.json                       the report, below
Modelfile                         for `ollama create`; not where the adapter is served, which Ollama
takes no more
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock

from agent_pipeline.errors import ExportError
from agent_pipeline.export import parity
from agent_pipeline.export.conversations import Played, play
from agent_pipeline.export.converter import LORA, OUTTYPES, convert, convert_lora, find_converter
from agent_pipeline.export.limits import limits_by_tool
from agent_pipeline.export.llama import greedy_answers, two_servers
from agent_pipeline.export.merge import merge_adapter
from agent_pipeline.export.ollama import context_size, library_template, modelfile
from agent_pipeline.export.quantizer import (
    K_QUANTS,
    check_outtypes,
    find_quantizer,
    quantize,
    write_imatrix,
)
from agent_pipeline.export.served_answers import (
    SERVER_TURNS,
    gate,
    merged_answers,
    read,
    server_answers,
)
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import read_renderer, wrap_tokenizer
from agent_pipeline.models.device import exact_device
from agent_pipeline.models.families import find_family
from agent_pipeline.models.loading import load_model, read_tokenizer
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.filesystem import matches_checksum, write_checksum

LOGIT_PROMPTS = 4
"""Prompts on which logits are compared."""

EXACT_PROMPTS = 24
"""Prompts that an f16 or f32 file answers beside a quantised one, which answers all, and is served
where it passes. What is wrong with a file that hardly rounds a weight is wrong everywhere, and its
answers must be the merged model's word for word.
"""

LEAST_KEPT = 0.9
ADAPTER = "adapter.gguf"


Over = tuple[Path, Path] | str
"""The GGUF of a base, and an adapter as GGUF; or why there is none."""


def export(
    base: BaseModel,
    adapter_dir: Path,
    out_dir: Path,
    conversations: Sequence[dict[str, Any]],
    outtypes: Sequence[str] = ("f16", "q8_0"),
    max_new_tokens: int = 48,
    progress: Progress = silent,
    *,
    longest_row: int = 0,
    name: str = "",
    llama_cpp_path: str | None = None,
    least_kept: float = LEAST_KEPT,
    measured: Sequence[dict[str, Any]] = (),
    trained: Iterable[dict[str, Any]] = (),
    bases: Path | None = None,
) -> dict[str, Any]:
    """Exports an adapter and proves that what was exported is what was trained; `out_dir` is
    complete when this returns.

    `conversations`: held-out `{"messages", "tools"}`, of which an f16 or f32 file beside a
    quantised one answers `EXACT_PROMPTS`; `longest_row`: tokens of the longest training row, for
    `num_ctx`; `name`: the model's name inside the GGUF; `measured`: training rows of an importance
    matrix for k-quants; `trained`: training rows, whose calls are counted in `limits` if a server
    cannot serve them; `bases`: where the base's GGUF is kept, which adapters share.

    Returns the report (`parity.json`). `ollama.gguf` is the one file that is served: the adapter
    where it was asked for and passed, else the smallest whole model that did. `failed` says by type
    what is not to be served, and why: fewer than `least_kept` of the merged model's decisions or of
    its calls. `ok` is False where nothing is left, or where an f16 or f32 file gives fewer than
    `parity.GREEDY_THRESHOLD` of the merged model's greedy answers (exactly, or up to a near-tie);
    the caller decides what that means.

    Raises:
        ExportError, ModelError, DataError: a step fails, logits disagree, or template or tokens
        differ.
    """
    _check(outtypes, llama_cpp_path)
    renderer = read_renderer(adapter_dir, base.trust_remote_code)
    asked = parity.prompts(renderer.tokenizer, conversations, renderer.render)
    progress(0, 2 + 2 * len(outtypes), "export: merging the adapter")
    merged = BaseModel(base.name, out_dir / "merged", base.revision, base.trust_remote_code)
    logits = merge_adapter(
        base, adapter_dir, merged.path, [prompt.ids for prompt in asked[:LOGIT_PROMPTS]]
    )
    over: Over = ""
    if LORA in outtypes:
        try:
            adapter = convert_lora(base.path, adapter_dir, out_dir / ADAPTER, llama_cpp_path)
            over = base_gguf(base, bases or out_dir.parent, llama_cpp_path), adapter
        except ExportError as error:
            over = str(error)
    more: dict[str, Any] = {
        "longest_row": longest_row,
        "name": name,
        "llama_cpp_path": llama_cpp_path,
        "logits": logits,
    }
    more |= {"least_kept": least_kept, "measured": measured, "trained": trained, "over": over}
    report = export_whole(
        merged, out_dir, conversations, outtypes, max_new_tokens, progress, **more
    )
    shutil.rmtree(merged.path)
    return report


def base_gguf(base: BaseModel, folder: Path, llama_cpp_path: str | None = None) -> Path:
    """Return the base model as an f16 GGUF, which is converted once per machine.

    The file is converted again if it does not match its checksum.

    Raises:
        ExportError: the base model cannot be converted.
    """
    file = base_gguf_file(folder, base.name, base.revision)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        if not matches_checksum(file):
            convert(base.path, file, "f16", llama_cpp_path)
            write_checksum(file)
        return file


def base_gguf_file(folder: Path, name: str, revision: str) -> Path:
    """Where the GGUF of a base model is kept."""
    return folder / f"base-{hash_json([name, revision])[:16]}-f16.gguf"


def export_whole(
    whole: BaseModel,
    out_dir: Path,
    conversations: Sequence[dict[str, Any]],
    outtypes: Sequence[str],
    max_new_tokens: int = 48,
    progress: Progress = silent,
    *,
    longest_row: int = 0,
    name: str = "",
    llama_cpp_path: str | None = None,
    logits: dict[str, Any] | None = None,
    least_kept: float = LEAST_KEPT,
    measured: Sequence[dict[str, Any]] = (),
    trained: Iterable[dict[str, Any]] = (),
    over: Over = "",
) -> dict[str, Any]:
    """The same for a model that is whole already. Of one that was merged, `logits` is what merging
    measured, and `over` the adapter.

    A model without a chat template of its own has its answers compared on the conversations' words
    alone, and is served with the template of its family in Ollama's library, where an Ollama has
    that.

    Raises as `export`.
    """
    _check(outtypes, llama_cpp_path)
    steps = 2 + 2 * len(outtypes)
    tokenizer = read_tokenizer(whole.path, whole.trust_remote_code)
    renderer = wrap_tokenizer(tokenizer)
    render = renderer.render if renderer else parity.words_only
    asked = parity.prompts(tokenizer, conversations, render)
    progress(1, steps, f"export: writing {', '.join(outtypes)}")
    files = write_files(
        whole, out_dir, outtypes, llama_cpp_path, name, measured if renderer else []
    )
    failed = {LORA: over} if LORA in outtypes and isinstance(over, str) else {}
    loaded = {kind: (path, None) for kind, path in files.items()} | (
        {} if isinstance(over, str) else {LORA: over}
    )

    longest = max(len(prompt.ids) for prompt in asked)
    needed = -(-(longest + max_new_tokens + 1) // 256) * 256  # tokens of context, rounded up
    answered, template, served, played, limit = {}, {}, {}, {}, None
    for number, (kind, (path, adapter)) in enumerate(loaded.items(), 1 + len(outtypes)):
        progress(number, steps, f"export: answers of {kind}")
        with two_servers(
            path,
            n_ctx=needed,
            lora=adapter,
            chat_template=renderer.template.jinja if renderer and adapter else "",
        ) as servers:
            llama = servers[0]
            template[kind] = (
                parity.check_template(llama, renderer, conversations) if renderer else None
            )
            quantised = kind in parity.EXACT_TYPES and set(loaded) - {*parity.EXACT_TYPES, LORA}
            some = asked[:EXACT_PROMPTS] if quantised else asked
            answered[kind] = greedy_answers(
                servers, [prompt.ids for prompt in some], max_new_tokens
            )
            served[kind] = (
                server_answers(llama, asked, answered[kind], max_new_tokens) if renderer else {}
            )
            played[kind] = (
                play(llama, renderer, conversations, SERVER_TURNS, max_new_tokens)
                if renderer
                else Played()
            )
            limit = llama.context_length
    progress(1 + 2 * len(outtypes), steps, "export: comparing with the merged model")
    model = load_model(whole, exact_device())
    answers, begun = parity.compare_answers(model, tokenizer, asked, answered)
    merged = read(tokenizer, asked, merged_answers(model, tokenizer, asked, begun, max_new_tokens))
    own = {kind: read(tokenizer, asked[: len(each)], each) for kind, each in answered.items()}
    ties = {
        kind: {mismatch["prompt"] - 1 for mismatch in found["mismatches"] if mismatch["near_tie"]}
        for kind, found in answers.items()
    }
    kept = gate(merged, own, served, least_kept, ties)
    unequal = [
        kind
        for kind in (*parity.EXACT_TYPES, LORA)
        if kind in answers and answers[kind]["agreement"] < parity.GREEDY_THRESHOLD
    ]
    failed |= {
        kind: f"{answers[kind]['agreement']:.0%} of its greedy answers are the merged model's"
        for kind in unequal
    }
    failed |= {kind: each["failed"] for kind, each in kept.items() if each["failed"]}
    failed |= {
        kind: f"a conversation differs from training: {each.difference}"
        for kind, each in played.items()
        if each.difference
    }

    ends = renderer.template.stops if renderer else ()
    family = find_family(ends, model.config.model_type)
    stops = tuple(dict.fromkeys([*(family.stops if family else ()), *ends]))
    fallback = library_template(family.ollama_base) if family and not renderer else None
    num_ctx = context_size(longest_row or longest, limit)
    sizes = {kind: path.stat().st_size for kind, path in files.items()}
    best = (
        LORA
        if LORA in loaded and LORA not in failed
        else min(set(files) - set(failed) or files, key=sizes.__getitem__)
    )
    served_file = ADAPTER if best == LORA else files[best].name
    if best != LORA:
        (out_dir / "Modelfile").write_text(
            modelfile(served_file, stops, num_ctx, fallback), encoding="utf-8"
        )
    report = {
        "ok": best not in failed and not set(unequal) & set(parity.EXACT_TYPES),
        "threshold": parity.GREEDY_THRESHOLD,
        "max_new_tokens": max_new_tokens,
        "logits": logits,
        "template": template,
        "answers": answers,
        "gate": kept,
        "limits": limits_by_tool(
            chain(conversations, trained),
            renderer is not None and renderer.template.arguments_as == "dict",
            next((each["tools"] for each in template.values() if each), {}),
        ),
        "played": {kind: msgspec.to_builtins(each) for kind, each in played.items()},
        "failed": failed,
        "files": {path.name: sizes[kind] for kind, path in files.items()},
        "ollama": {
            "gguf": served_file,
            "family": family.name if family else None,
            "template": "gguf" if renderer else "ollama" if fallback else None,
            "stops": list(stops),
            "num_ctx": num_ctx,
        },
    }
    (out_dir / "parity.json").write_text(
        json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    progress(steps, steps, "export: done")
    return report


def write_files(
    whole: BaseModel,
    out_dir: Path,
    outtypes: Sequence[str],
    llama_cpp_path: str | None,
    name: str,
    measured: Sequence[dict[str, Any]],
) -> dict[str, Path]:
    """A GGUF file for each type; k-quants are made of the longest of them, weighed by what the rows
    `measured` pass through the model.
    """
    place = {kind: out_dir / f"model-{kind}.gguf" for kind in outtypes if kind != LORA}
    with ThreadPoolExecutor(
        2
    ) as threads:  # a converter has one thread, and half of its time are imports
        writing = {
            kind: threads.submit(convert, whole.path, place[kind], kind, llama_cpp_path, name)
            for kind in place
            if kind in OUTTYPES
        }
    files = {kind: written.result() for kind, written in writing.items()}
    if not set(outtypes) & set(K_QUANTS):
        return files
    source = next((files[kind] for kind in parity.EXACT_TYPES if kind in files), None)
    source = source or convert(whole.path, out_dir / "whole.gguf", "f32", llama_cpp_path, name)
    imatrix = None
    if measured:
        renderer = read_renderer(whole.path, whole.trust_remote_code)
        texts = [
            renderer.token_ids(renderer.render(row["messages"], row.get("tools") or []))
            for row in measured
        ]
        imatrix = write_imatrix(
            load_model(whole, exact_device()),
            texts,
            source,
            out_dir / "imatrix.gguf",
            f"{len(texts)} training rows",
        )
    files |= {
        kind: quantize(source, path, kind, imatrix, llama_cpp_path)
        for kind, path in place.items()
        if kind in K_QUANTS
    }
    if source not in files.values():
        source.unlink()
    return {kind: files[kind] for kind in place}


def _check(outtypes: Sequence[str], llama_cpp_path: str | None) -> None:
    """What can be known before the minutes are spent. Raises `ExportError`."""
    check_outtypes(outtypes)
    find_converter(llama_cpp_path)
    if set(outtypes) & set(K_QUANTS):
        find_quantizer(llama_cpp_path)
