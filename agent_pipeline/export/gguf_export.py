"""The whole export of an adapter into one folder: merged model, GGUF files, checks, and Modelfile.

    model-f16.gguf, model-q8_0.gguf   the whole model
    adapter.gguf                      the adapter alone, for a shared base model, if requested
    parity.json                       the report
    Modelfile                         for `ollama create`

There is no Modelfile if the adapter is served, because Ollama does not accept adapters anymore.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import ExportError
from agent_pipeline.export import parity
from agent_pipeline.export.conversations import play
from agent_pipeline.export.converter import LORA, OUTTYPES, convert, convert_lora, find_converter
from agent_pipeline.export.limits import limits_by_tool
from agent_pipeline.export.llama import Completion, greedy_answers, two_servers
from agent_pipeline.export.merge import merge_adapter
from agent_pipeline.export.ollama import context_size, library_template, modelfile
from agent_pipeline.export.parity import Prompt
from agent_pipeline.export.quantizer import (
    K_QUANTS,
    check_outtypes,
    find_quantizer,
    quantize,
    write_imatrix,
)
from agent_pipeline.export.report import (
    ExportReport,
    MergeLogits,
    Played,
    ServedFile,
    TemplateParity,
)
from agent_pipeline.export.served_answers import (
    SERVER_TURNS,
    Content,
    gate,
    merged_answers,
    read,
    server_answers,
)
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import ChatRenderer, read_renderer, wrap_tokenizer
from agent_pipeline.models.device import exact_device
from agent_pipeline.models.families import find_family
from agent_pipeline.models.loading import load_model, read_tokenizer
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.filesystem import matches_checksum, write_checksum
from agent_pipeline.tokenization.length_check import read_context_length

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOGIT_PROMPTS = 4
"""Number of prompts on which logits are compared."""

EXACT_PROMPTS = 24
"""Number of prompts that an f16 or f32 file answers if there is also a quantized file, which
answers all prompts. A few prompts are enough, because an error in a file that hardly rounds its
weights appears at every prompt, and its answers must equal the merged model's answers word for
word.
"""

LEAST_KEPT = 0.9
ADAPTER = "adapter.gguf"


@dataclass(frozen=True)
class ExportRows:
    """The rows that an export reads from the datasets.

    Attributes:
        conversations: Held-out conversations. An f16 or f32 file next to a quantized file answers
            the first `EXACT_PROMPTS` of them. Every other file answers all of them.
        measured: Training rows for the importance matrix of k-quants.
        trained: Training rows whose calls are counted in `limits` if a server cannot serve them.
        too_long: The number of held-out conversations that were left out, because they do not fit
            into the model's context.
    """

    conversations: Sequence[DatasetRow]
    measured: Sequence[DatasetRow] = ()
    trained: Iterable[DatasetRow] = ()
    too_long: int = 0


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        outtypes: The types of the files.
        max_new_tokens: The maximum number of tokens in a compared answer.
        longest_row: The number of tokens in the longest training row, for `num_ctx`; 0 if it is not
            known.
        name: The model's name inside the GGUF.
        llama_cpp_path: A checkout of llama.cpp; None for the installed converter.
        least_kept: The minimum share of the merged model's decisions and calls that a file must
            keep.
        bases: The folder for the GGUF files of base models, which adapters share; None for the
            parent of the export's folder.
    """

    outtypes: Sequence[str] = ("f16", "q8_0")
    max_new_tokens: int = 48
    longest_row: int = 0
    name: str = ""
    llama_cpp_path: str | None = None
    least_kept: float = LEAST_KEPT
    bases: Path | None = None

    def check(self) -> None:
        """Check the options before the slow steps begin.

        Raises:
            ExportError: A type is not known, or llama.cpp's converter or quantizer is missing.
        """
        check_outtypes(self.outtypes)
        find_converter(self.llama_cpp_path)
        if set(self.outtypes) & set(K_QUANTS):
            find_quantizer(self.llama_cpp_path)


@dataclass(frozen=True)
class AdapterFiles:
    """The GGUF file of an adapter, and the GGUF file of its base model."""

    base: Path
    adapter: Path


@dataclass(frozen=True)
class MergedFrom:
    """The facts about a model that was merged with an adapter.

    Attributes:
        logits: The differences of logits that merging caused.
        files: The adapter as a separate file; None if it was not requested or is not possible.
        why_no_files: The reason why the adapter cannot be a separate file; empty if it can.
    """

    logits: MergeLogits
    files: AdapterFiles | None = None
    why_no_files: str = ""


def export(
    base: BaseModel,
    adapter_dir: Path,
    out_dir: Path,
    rows: ExportRows,
    options: ExportOptions,
    progress: Progress = silent,
) -> ExportReport:
    """Export an adapter, and check that the exported files behave like the trained model.

    Args:
        base: The base model.
        adapter_dir: The folder of the adapter.
        out_dir: The folder of the files, which is complete when this function returns.
        rows: The rows.
        options: The options.
        progress: A callback that reports progress.

    Returns:
        The report (`parity.json`). `ollama.gguf` is the file to serve: the adapter if it was
        requested and passed the checks, otherwise the smallest whole model that passed. `failed`
        has the reason, by type, why a file must not be served: it keeps less than `least_kept` of
        the merged model's decisions or calls. `ok` is False if no file is left, or if the answers
        of an f16 or f32 file agree with the merged model's answers (exactly, or up to a near-tie)
        on less than `parity.GREEDY_THRESHOLD` of the prompts. The caller decides about the
        consequences.

    Raises:
        ExportError: A step fails, logits disagree, or the template or the tokens differ.
        ModelError: A model cannot be loaded.
        DataError: There are no held-out conversations.
    """
    options.check()
    renderer = read_renderer(adapter_dir, base.trust_remote_code)
    rows = leave_out_long(rows, base, renderer.tokenizer, renderer.render, options)
    prompts = parity.prompts(renderer.tokenizer, rows.conversations, renderer.render)
    progress(0, 2 + 2 * len(options.outtypes), "export: merging the adapter")
    merged = BaseModel(base.name, out_dir / "merged", base.revision, base.trust_remote_code)
    logits = merge_adapter(
        base, adapter_dir, merged.path, [prompt.ids for prompt in prompts[:LOGIT_PROMPTS]]
    )
    merged_from = MergedFrom(logits)
    if LORA in options.outtypes:
        llama_cpp_path, bases = options.llama_cpp_path, options.bases or out_dir.parent
        try:
            adapter = convert_lora(base.path, adapter_dir, out_dir / ADAPTER, llama_cpp_path)
            files = AdapterFiles(base_gguf(base, bases, llama_cpp_path), adapter)
            merged_from = MergedFrom(logits, files)
        except ExportError as error:
            merged_from = MergedFrom(logits, None, str(error))
    report = export_whole(merged, out_dir, rows, options, progress, merged_from)
    shutil.rmtree(merged.path)
    return report


def base_gguf(base: BaseModel, folder: Path, llama_cpp_path: str | None = None) -> Path:
    """Return the base model as an f16 GGUF file. The base model is converted once per machine.

    The file is converted again if it does not match its checksum.

    Args:
        base: The base model.
        folder: The folder for the GGUF files of base models.
        llama_cpp_path: A checkout of llama.cpp; None for the installed converter.

    Raises:
        ExportError: The base model cannot be converted.
    """
    file = base_gguf_file(folder, base.name, base.revision)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        if not matches_checksum(file):
            convert(base.path, file, "f16", llama_cpp_path)
            write_checksum(file)
        return file


def base_gguf_file(folder: Path, name: str, revision: str) -> Path:
    """Return the path of a base model's GGUF."""
    return folder / f"base-{hash_json([name, revision])[:16]}-f16.gguf"


def leave_out_long(
    rows: ExportRows,
    model: BaseModel,
    tokenizer: "PreTrainedTokenizerBase",
    render: Callable[..., str],
    options: ExportOptions,
) -> ExportRows:
    """Return the rows without held-out conversations that are longer than the model's context.

    Training cuts such rows at their beginning, but llama.cpp refuses their prompts.

    Args:
        rows: The rows.
        model: The model, whose configuration names its context.
        tokenizer: The tokenizer.
        render: The function that renders messages and tools as text.
        options: The options, with the length of an answer.

    Raises:
        ExportError: No conversation fits.
    """
    context = read_context_length(model.path)
    if context is None:
        return rows
    fitting = [
        row
        for row in rows.conversations
        if len(tokenizer(render(row["messages"], row.get("tools") or []))["input_ids"])
        + options.max_new_tokens
        < context
    ]
    left_out = len(rows.conversations) - len(fitting)
    if left_out and not fitting:
        raise ExportError(
            f"None of the {left_out} held-out conversations fits into the {context:,} tokens of "
            f"context of {model.name}, so the exported files cannot be checked: choose a base "
            "model with a longer context."
        )
    return replace(rows, conversations=fitting, too_long=rows.too_long + left_out)


@dataclass
class FileAnswers:
    """The answers of llama.cpp from each exported file, by the file's type.

    Attributes:
        answered: The greedy answers.
        template: The compared texts; None for a model without a template.
        served: The server's answers by the number of the prompt.
        played: The played conversations.
        limit: The context of the model in tokens; None if no file was loaded.
    """

    answered: dict[str, list[Completion]] = field(default_factory=dict)
    template: dict[str, TemplateParity | None] = field(default_factory=dict)
    served: dict[str, dict[int, Content]] = field(default_factory=dict)
    played: dict[str, Played] = field(default_factory=dict)
    limit: int | None = None


def export_whole(
    whole: BaseModel,
    out_dir: Path,
    rows: ExportRows,
    options: ExportOptions,
    progress: Progress = silent,
    merged_from: MergedFrom | None = None,
) -> ExportReport:
    """Export a model that is already whole, and check the files.

    If the model has no chat template, its answers are compared only on the words of the
    conversations. It is served with the template of its family from Ollama's library, if an Ollama
    has this template.

    Args:
        whole: The model.
        out_dir: The folder of the files.
        rows: The rows.
        options: The options.
        progress: A callback that reports progress.
        merged_from: The facts about a merged model; None if the model was never merged.

    Returns:
        The report, as from `export`.

    Raises:
        ExportError: As `export`.
        ModelError: As `export`.
        DataError: As `export`.
    """
    options.check()
    outtypes, max_new_tokens = options.outtypes, options.max_new_tokens
    steps = 2 + 2 * len(outtypes)
    tokenizer = read_tokenizer(whole.path, whole.trust_remote_code)
    renderer = wrap_tokenizer(tokenizer)
    render = renderer.render if renderer else parity.words_only
    rows = leave_out_long(rows, whole, tokenizer, render, options)
    prompts = parity.prompts(tokenizer, rows.conversations, render)
    progress(1, steps, f"export: writing {', '.join(outtypes)}")
    files = write_files(whole, out_dir, options, rows.measured if renderer else [])
    failed = {}
    loaded: dict[str, LoadedFile] = {kind: LoadedFile(path) for kind, path in files.items()}
    if merged_from and merged_from.files:
        loaded[LORA] = LoadedFile(merged_from.files.base, merged_from.files.adapter)
    elif LORA in outtypes:
        failed[LORA] = merged_from.why_no_files if merged_from else ""

    longest = max(len(prompt.ids) for prompt in prompts)
    file_answers = FileAnswers()
    for number, (kind, file) in enumerate(loaded.items(), 1 + len(outtypes)):
        progress(number, steps, f"export: answers of {kind}")
        has_quantised = bool(set(loaded) - {*parity.EXACT_TYPES, LORA})
        is_sampled = kind in parity.EXACT_TYPES and has_quantised
        some = prompts[:EXACT_PROMPTS] if is_sampled else prompts
        _answer_from_file(
            file_answers, kind, file, renderer, AskedPrompts(rows, prompts, some), options
        )
    progress(1 + 2 * len(outtypes), steps, "export: comparing with the merged model")
    model = load_model(whole, exact_device())
    answers, begun = parity.compare_answers(model, tokenizer, prompts, file_answers.answered)
    merged = read(
        tokenizer, prompts, merged_answers(model, tokenizer, prompts, begun, max_new_tokens)
    )
    own_answers = {
        kind: read(tokenizer, prompts[: len(completions)], completions)
        for kind, completions in file_answers.answered.items()
    }
    ties = {
        kind: {mismatch.prompt - 1 for mismatch in compared.mismatches if mismatch.near_tie}
        for kind, compared in answers.items()
    }
    kept = gate(merged, own_answers, file_answers.served, options.least_kept, ties)
    unequal = [
        kind
        for kind in (*parity.EXACT_TYPES, LORA)
        if kind in answers and answers[kind].agreement < parity.GREEDY_THRESHOLD
    ]
    failed |= {
        kind: (
            f"{answers[kind].agreement:.0%} of its greedy answers equal the answers of the merged "
            "model"
        )
        for kind in unequal
    }
    failed |= {kind: decisions.failed for kind, decisions in kept.items() if decisions.failed}
    failed |= {
        kind: f"a conversation is rendered differently than in training: {played.difference}"
        for kind, played in file_answers.played.items()
        if played.difference
    }

    sizes = {kind: path.stat().st_size for kind, path in files.items()}
    best = LORA
    if LORA not in loaded or LORA in failed:
        best = min(set(files) - set(failed) or files, key=sizes.__getitem__)
    ends = renderer.template.stops if renderer else ()
    family = find_family(
        ends,
        model.config.model_type,
        model.config.architectures or (),
        renderer.template.jinja if renderer else "",
    )
    fallback = library_template(family.ollama_base) if family and not renderer else None
    template = "gguf" if renderer else None
    if fallback:
        template = "ollama"
    served_file = ServedFile(
        gguf=ADAPTER if best == LORA else files[best].name,
        family=family.name if family else None,
        template=template,
        stops=list(dict.fromkeys([*(family.stops if family else ()), *ends])),
        num_ctx=context_size(options.longest_row or longest, file_answers.limit),
    )
    if best != LORA:
        text = modelfile(served_file.gguf, served_file.stops, served_file.num_ctx, fallback)
        (out_dir / "Modelfile").write_text(text, encoding="utf-8")
    differing = next((texts.tools for texts in file_answers.template.values() if texts), {})
    report = ExportReport(
        ok=best not in failed and not set(unequal) & set(parity.EXACT_TYPES),
        threshold=parity.GREEDY_THRESHOLD,
        max_new_tokens=max_new_tokens,
        logits=merged_from.logits if merged_from else None,
        template=file_answers.template,
        answers=answers,
        gate=kept,
        too_long=rows.too_long,
        limits=limits_by_tool(
            chain(rows.conversations, rows.trained),
            renderer is not None and renderer.template.arguments_as == "dict",
            differing,
        ),
        played=file_answers.played,
        failed=failed,
        files={path.name: sizes[kind] for kind, path in files.items()},
        ollama=served_file,
    )
    (out_dir / "parity.json").write_text(
        json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    progress(steps, steps, "export: done")
    return report


@dataclass(frozen=True)
class LoadedFile:
    """A GGUF of a whole model, or of a base model with an adapter."""

    path: Path
    adapter: Path | None = None


@dataclass(frozen=True)
class AskedPrompts:
    """The prompts that llama.cpp answers from an exported file.

    Attributes:
        rows: The rows of the export.
        prompts: The prompts of all held-out conversations.
        answered: The prompts that the file answers greedily.
    """

    rows: ExportRows
    prompts: list[Prompt]
    answered: list[Prompt]


def _answer_from_file(
    file_answers: FileAnswers,
    kind: str,
    file: LoadedFile,
    renderer: ChatRenderer | None,
    prompts: AskedPrompts,
    options: ExportOptions,
) -> None:
    """Load a file in llama.cpp and add its answers.

    Args:
        file_answers: The answers of all files.
        kind: The type of the file.
        file: The file.
        renderer: The model's tokenizer with its chat template, if it has one.
        prompts: The prompts.
        options: The options of the export.
    """
    max_new_tokens, conversations = options.max_new_tokens, prompts.rows.conversations
    longest = max(len(prompt.ids) for prompt in prompts.prompts)
    needed = -(-(longest + max_new_tokens + 1) // 256) * 256  # tokens of context, rounded up
    jinja = renderer.template.jinja if renderer and file.adapter else ""
    with two_servers(file.path, n_ctx=needed, lora=file.adapter, chat_template=jinja) as servers:
        llama = servers[0]
        file_answers.template[kind] = (
            parity.check_template(llama, renderer, conversations) if renderer else None
        )
        completions = greedy_answers(
            servers, [prompt.ids for prompt in prompts.answered], max_new_tokens
        )
        file_answers.answered[kind], file_answers.served[kind], file_answers.played[kind] = (
            completions,
            {},
            Played(),
        )
        if renderer:
            file_answers.served[kind] = server_answers(
                llama, prompts.prompts, completions, max_new_tokens
            )
            file_answers.played[kind] = play(
                llama, renderer, conversations, SERVER_TURNS, max_new_tokens
            )
        file_answers.limit = llama.context_length


def write_files(
    whole: BaseModel,
    out_dir: Path,
    options: ExportOptions,
    measured: Sequence[DatasetRow],
) -> dict[str, Path]:
    """Write a GGUF file for each type, and return the files by type.

    K-quants are made from the f32 or f16 file, or from a temporary f32 file. Their importance
    matrix is measured on
    `measured`.

    Args:
        whole: The model.
        out_dir: The folder of the files.
        options: The options.
        measured: The rows for the importance matrix.
    """
    outtypes, llama_cpp_path, name = options.outtypes, options.llama_cpp_path, options.name
    place = {kind: out_dir / f"model-{kind}.gguf" for kind in outtypes if kind != LORA}
    with ThreadPoolExecutor(
        2
    ) as threads:  # a converter has one thread and half of its time is imports
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
