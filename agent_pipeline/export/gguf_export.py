"""The whole export: adapter → merged model → GGUF files → proof → Modelfile, all in one directory.

model-f16.gguf, model-q8_0.gguf   the model
parity.json                       the report, below
Modelfile                         for `ollama create`
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agent_pipeline.export import parity
from agent_pipeline.export.converter import check_outtypes, convert, find_converter
from agent_pipeline.export.llama import LlamaCpp
from agent_pipeline.export.merge import merge_adapter
from agent_pipeline.export.modelfile import context_size, modelfile
from agent_pipeline.export.ollama import library_template
from agent_pipeline.progress import Progress, silent
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.config import EXACT
from agent_pipeline.training.families import family_of
from agent_pipeline.training.loading import load_model, read_tokenizer
from agent_pipeline.training.rendering import render
from agent_pipeline.training.templates import probe

EXACT_TYPES = ("f32", "f16")
"""The types whose greedy answers are held to the threshold; rounding to fewer bits may change an answer for good."""

LOGIT_PROMPTS = 4
"""Prompts on which logits are compared; greedy answers are compared on all."""


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
) -> dict[str, Any]:
    """Exports an adapter and proves that what was exported is what was trained; `out_dir` is complete when this returns.

    `conversations`: held-out `{"messages", "tools"}`; `longest_row`: tokens of the longest training row, for `num_ctx`; `name`: the
    model's name inside the GGUF.

    Returns the report (`parity.json`): `ok` is False where an f16 or f32 file gives fewer than `parity.GREEDY_THRESHOLD` of the merged
    model's greedy answers (exactly, or up to a near-tie); the caller decides what that means.

    Raises:
        ExportError, ModelError, DataError: a step fails, logits disagree, or template or tokens differ.
    """
    _check(outtypes, llama_cpp_path)
    asked = parity.prompts(read_tokenizer(adapter_dir, base.trust_remote_code), conversations)
    progress(0, 2 + 2 * len(outtypes), "export: merging the adapter")
    merged = BaseModel(base.name, out_dir / "merged", base.revision, base.trust_remote_code)
    logits = merge_adapter(base, adapter_dir, merged.path, [prompt.ids for prompt in asked[:LOGIT_PROMPTS]])
    more = {"longest_row": longest_row, "name": name, "llama_cpp_path": llama_cpp_path, "logits": msgspec.to_builtins(logits)}
    report = export_whole(merged, out_dir, conversations, outtypes, max_new_tokens, progress, **more)
    shutil.rmtree(merged.path)
    return report


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
) -> dict[str, Any]:
    """The same for a model that is whole already. `logits` is what merging measured, if the model was merged.

    A model without a chat template of its own has its answers compared on the conversations' words alone, and is served with the template
    of its family in Ollama's library, where an Ollama has that.

    Raises as `export`.
    """
    _check(outtypes, llama_cpp_path)
    steps = 2 + 2 * len(outtypes)
    tokenizer = read_tokenizer(whole.path, whole.trust_remote_code)
    has_template = bool(tokenizer.chat_template)
    asked = parity.prompts(tokenizer, conversations, render if has_template else parity.words_only)
    files = {}
    for number, kind in enumerate(outtypes, 1):
        progress(number, steps, f"export: writing {kind}")
        files[kind] = convert(whole.path, out_dir / f"model-{kind}.gguf", kind, llama_cpp_path, name)

    needed = parity.context_needed(asked, max_new_tokens)
    answered, template, limit = {}, {}, None
    for number, (kind, path) in enumerate(files.items(), 1 + len(outtypes)):
        progress(number, steps, f"export: answers of {kind}")
        with LlamaCpp(path, n_ctx=needed) as llama:
            template[kind] = parity.check_template(llama, tokenizer, conversations) if has_template else None
            answered[kind] = parity.gguf_answers(llama, asked, max_new_tokens)
            limit = llama.context_length
    progress(1 + 2 * len(outtypes), steps, "export: comparing with the merged model")
    model = load_model(whole, EXACT)
    answers = parity.compare_answers(model, tokenizer, asked, answered)

    ends = probe(tokenizer, tokenizer.chat_template).stops if has_template else ()
    family = family_of(ends, model.config.model_type)
    stops = tuple(dict.fromkeys([*(family.stops if family else ()), *ends]))
    fallback = library_template(family.ollama_base) if family and not has_template else None
    num_ctx = context_size(longest_row or max(len(prompt.ids) for prompt in asked), limit)
    served = "q8_0" if "q8_0" in files else outtypes[0]
    (out_dir / "Modelfile").write_text(modelfile(files[served].name, stops, num_ctx, fallback), encoding="utf-8")
    report = {
        "ok": all(answers[kind]["agreement"] >= parity.GREEDY_THRESHOLD for kind in answers if kind in EXACT_TYPES),
        "threshold": parity.GREEDY_THRESHOLD,
        "max_new_tokens": max_new_tokens,
        "logits": logits,
        "template": template,
        "answers": answers,
        "files": {path.name: path.stat().st_size for path in files.values()},
        "ollama": {
            "gguf": files[served].name,
            "family": family.name if family else None,
            "template": "gguf" if has_template else "ollama" if fallback else None,
            "stops": list(stops),
            "num_ctx": num_ctx,
        },
    }
    (out_dir / "parity.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    progress(steps, steps, "export: done")
    return report


def _check(outtypes: Sequence[str], llama_cpp_path: str | None) -> None:
    """What can be known before the minutes are spent. Raises `ExportError`."""
    check_outtypes(outtypes)
    find_converter(llama_cpp_path)
