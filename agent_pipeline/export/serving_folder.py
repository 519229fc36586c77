"""The serving folder: the champion of every partition, ready for llama.cpp's server, vLLM and
Ollama.

    <lake>/serving/llama-server.ini               for llama-server --models-preset
    <lake>/serving/base-1f0c….gguf                the base model that adapters share
    <lake>/serving/shop/support/                  GGUF files, and PEFT files for vLLM
    <lake>/serving/shop/support/Modelfile         for ollama create shop-support -f Modelfile
    <lake>/serving/shop/support/example.py        asks the model what it was trained for
    <lake>/serving/shop/support/served.json       preset section, and checksums of the files

In llama-server, every partition is a model (`model: "shop/support"`).

Large files are hard links to the files of the lake if both are on the same disk. A file appears
only when it is complete. The GGUF that was served before is deleted last. So a folder with exactly
one GGUF is complete, and `read_folder` notices a writer that was killed.
"""

import hashlib
import os
import re
import shutil
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from agent_pipeline.datasets.requests import TrainedRequests
from agent_pipeline.errors import DataError
from agent_pipeline.export.gguf_export import ADAPTER, base_gguf, base_gguf_file
from agent_pipeline.export.report import read_export_report
from agent_pipeline.export.request_files import (
    REQUEST_FILES,
    make_request_files,
    write_system_line,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import resolve_base_model
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.filesystem import (
    give_usual_mode,
    matches_checksum,
    sha256_file,
    write_atomically,
)
from agent_pipeline.storage.lake import Lake
from agent_pipeline.structs import decode_json
from agent_pipeline.training.chain import find_trained_adapters

PRESET = "llama-server.ini"
RECORD = "served.json"
_OLD_SECTION = "preset.ini"
"""The file in which older versions stored a partition's section of the preset."""
MODELFILE = "Modelfile"
PEFT = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "chat_template.jinja",
    "tokenizer.json",
    "tokenizer_config.json",
)
SECONDS = 5.0


def base_folder(lake: Lake) -> Path:
    """Return the folder in which this machine keeps the GGUF files of base models."""
    return lake.fs.cache / "base-gguf"


def serving_root(lake: Lake) -> Path:
    """Return the serving folder of all partitions on this machine."""
    return lake.fs.local(lake.root / "serving").resolve()


def partition_folder(lake: Lake, key: PartitionKey) -> Path:
    return serving_root(lake) / key.project / key.agent


class Form(msgspec.Struct, frozen=True):
    """The files of an export that a model server loads.

    Attributes:
        model: A whole model, or the base model of the adapter.
        lora: The adapter; None for a whole model.
        chat_template: The chat template with which the adapter was trained.
    """

    model: Path
    lora: Path | None = None
    chat_template: Path | None = None


class FolderContent(msgspec.Struct, frozen=True):
    """The content of a partition's serving folder.

    Attributes:
        folder: The folder.
        files: Whether the folder contains files.
        identity: The first 16 digits of the export in the folder; empty if there is no export or
            the folder is incomplete.
        damaged: The names of files that are missing or have changed.
    """

    folder: Path
    files: bool
    identity: str = ""
    damaged: tuple[str, ...] = ()


class ServedFiles(msgspec.Struct, frozen=True):
    """The record of the files that `write_folder` wrote into a partition's serving folder.

    Attributes:
        section: The partition's section of the preset.
        files: The sha256 of every file, by its name within the folder of all partitions.
        sha256: The checksum of the record.
    """

    section: str
    files: dict[str, str]
    sha256: str

    @classmethod
    def of(cls, section: str, files: dict[str, str]) -> "ServedFiles":
        """Return the record of a preset section and of the files with their sha256."""
        return cls(section, files, hash_json([section, files]))


_NAMED_BY_IDENTITY = re.compile(r".*-([0-9a-f]{16})\.gguf")


def read_folder(lake: Lake, key: PartitionKey) -> FolderContent:
    """Read the content of a partition's serving folder on this machine.

    If a writer was killed, the folder has no identity, because it has a second GGUF, or because the
    preset or the Modelfile names another GGUF.
    """
    root, folder = serving_root(lake), partition_folder(lake, key)
    files = [path for path in folder.glob("*") if path.is_file()] if folder.is_dir() else []
    damaged = _damaged_files(root, folder)
    if files and _read(root / PRESET) != _preset(root):
        damaged.append(PRESET)
    models = [path for path in files if path.suffix == ".gguf" and not path.name.startswith(".")]
    named = _NAMED_BY_IDENTITY.fullmatch(models[0].name) if len(models) == 1 else None
    section, preset = _section(folder), _read(root / PRESET)
    complete = bool(named and str(models[0]) in section and section in preset)
    if complete and "\nlora = " not in section:
        complete = models[0].name in _read(folder / MODELFILE)
    return FolderContent(
        folder,
        bool(files) or f"[{key}]" in preset.splitlines(),
        named.group(1) if named and complete else "",
        tuple(damaged),
    )


def _damaged_files(root: Path, folder: Path) -> list[str]:
    """Return the names of a partition's served files that are missing or have changed. Every file
    is read.

    Older versions did not write a record, so their files cannot be checked.
    """
    if not (folder / RECORD).exists():
        return []
    record = _read_record(folder)
    if record is None:
        return [f"{folder.relative_to(root)}/{RECORD}"]
    return [
        name
        for name, sha256 in record.files.items()
        if not (root / name).is_file() or sha256_file(root / name) != sha256
    ]


def _read_record(folder: Path) -> ServedFiles | None:
    """Read the record of a partition's serving folder.

    Return `None` if the record is missing or damaged.
    """
    try:
        record = decode_json((folder / RECORD).read_bytes(), ServedFiles)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeError):
        return None
    return record if record == ServedFiles.of(record.section, record.files) else None


def _section(folder: Path) -> str:
    """Return the preset section of a partition, or an empty text if the folder's record is damaged.

    Older versions wrote the section into a separate file and wrote no record.
    """
    record = _read_record(folder)
    if record:
        return record.section
    return "" if (folder / RECORD).exists() else _read(folder / _OLD_SECTION)


def _read(path: Path) -> str:
    """Read the text of a file. Return an empty text if the file does not exist.

    Invalid bytes are replaced, so that the text does not match any expected text.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def clear_folder(lake: Lake, key: PartitionKey) -> None:
    """Stop serving a partition: remove it from the preset first, and then delete its folder."""
    folder = partition_folder(lake, key)
    (folder / RECORD).unlink(missing_ok=True)
    (folder / _OLD_SECTION).unlink(missing_ok=True)
    write_preset(lake)
    shutil.rmtree(folder, ignore_errors=True)


def served_form(lake: Lake, export: Artifact) -> Form:
    """Return the form (the files to load) in which an export plays its episodes and is served.

    If this machine does not have the base model as GGUF, it is converted.

    Raises:
        DataError: The export does not name its form, its report cannot be read, or its adapter does
            not exist anymore.
        ExportError: The base model cannot be converted.
        ModelError: The base model cannot be loaded.
    """
    short, name = export.identity[:16], read_export_report(export).ollama.gguf
    if not name:
        raise DataError(
            f"An older version of agent-pipeline wrote the export {short} of {export.key}: "
            "materialize `gguf_export` again."
        )
    if name != ADAPTER:
        return Form(export.path / name)
    adapters = find_trained_adapters(lake, export.key, export.manifest["made_from"]["adapter"])
    if not adapters:
        raise DataError(
            f"The adapter of the export {short} of {export.key} was deleted: materialize "
            "`gguf_export` again."
        )
    named = [adapters[-1].manifest["made_from"][field] for field in ("base_model", "base_revision")]
    file = base_gguf_file(base_folder(lake), *named)
    if not matches_checksum(file):
        file = base_gguf(
            resolve_base_model(named[0], lake.fs.cache, revision=named[1]), base_folder(lake)
        )
    return Form(file, export.path / name, adapters[-1].path / "chat_template.jinja")


def write_folder(
    lake: Lake,
    key: PartitionKey,
    export: Artifact,
    adapter: Artifact | None,
    requests: TrainedRequests | None = None,
) -> str:
    """Write an export into its partition's folder, and the partition into the preset. Return a
    description of the served form.

    Args:
        lake: The lake.
        key: The partition.
        export: The export.
        adapter: The adapter of the export, whose files vLLM needs; None if it does not exist.
        requests: The requests that the model was trained for; None if they are not recorded.

    Raises:
        DataError: As `served_form`.
        ExportError: As `served_form`.
        ModelError: As `served_form`.
    """
    root, folder, form, short = (
        serving_root(lake),
        partition_folder(lake, key),
        served_form(lake, export),
        export.identity[:16],
    )
    for left_by_a_killed_writer in [
        path for path in folder.glob(".*") if _LINKING.fullmatch(path.name)
    ]:
        left_by_a_killed_writer.unlink(missing_ok=True)
    _remove_stale_links(root)
    files = {
        folder / name: adapter.path / name
        for name in PEFT
        if adapter and (adapter.path / name).is_file()
    }
    # Servers notice a changed file by its name.
    if form.lora:
        model, lora = root / form.model.name, folder / f"adapter-{short}.gguf"
        files |= {model: form.model, lora: form.lora}
        section: dict[str, Path | int] = {
            "model": model,
            "lora": lora,
            "chat-template-file": folder / "chat_template.jinja",
        }
    else:
        model = folder / _name_served_model(export, form.model.name)
        files |= {model: form.model}
        section = {"model": model}
    section |= {"ctx-size": read_export_report(export).ollama.num_ctx}
    for target, source in files.items():
        _link(source, target)
    if form.lora:  # Ollama does not accept adapters
        (folder / MODELFILE).unlink(missing_ok=True)
    texts = {folder / name: text for name, text in _make_texts(key, export, requests).items()}
    for path, text in texts.items():
        write_atomically(path, text.encode("utf-8"))
    text = "\n".join([f"[{key}]", *(f"{name} = {value}" for name, value in section.items())])
    sources = files | {path: path for path in texts}
    checksums = {
        str(path.relative_to(root)): sha256_file(source) for path, source in sources.items()
    }
    write_atomically(folder / RECORD, msgspec.json.encode(ServedFiles.of(f"{text}\n", checksums)))
    write_preset(lake)
    stale = [folder / name for name in (*PEFT, *REQUEST_FILES, _OLD_SECTION)]
    for path in [*stale, *folder.glob("*.gguf")]:
        if path not in sources:
            path.unlink(missing_ok=True)
    return "an adapter over the shared base" if form.lora else f"a merged model, {form.model.name}"


def _name_served_model(export: Artifact, name: str) -> str:
    """Return the name in the serving folder of an export's whole model."""
    return f"{Path(name).stem}-{export.identity[:16]}.gguf"


def _make_texts(
    key: PartitionKey, export: Artifact, requests: TrainedRequests | None
) -> dict[str, str]:
    """Return the texts that are served with an export, by file name."""
    texts = make_request_files(key, requests)
    name = read_export_report(export).ollama.gguf
    if name != ADAPTER:
        modelfile = (export.path / MODELFILE).read_text(encoding="utf-8")
        served = f"FROM ./{_name_served_model(export, name)}"
        modelfile = modelfile.replace(f"FROM ./{name}", served, 1)
        texts[MODELFILE] = modelfile + write_system_line(requests)
    return texts


def rewrite_texts(
    lake: Lake, key: PartitionKey, export: Artifact, requests: TrainedRequests | None
) -> list[Path]:
    """Write the texts of a served export again if they differ from the record of its training.

    Args:
        lake: The lake.
        key: The partition.
        export: The export in the folder.
        requests: The requests that the model was trained for; None if they are not recorded.

    Returns:
        The files that changed or were deleted.

    Raises:
        DataError: The report of the export cannot be read.
        OSError: The Modelfile of the export cannot be read.
        UnicodeError: The Modelfile of the export is not valid UTF-8.
    """
    texts = _make_texts(key, export, requests)
    return _replace_texts(lake, key, {name: text.encode("utf-8") for name, text in texts.items()})


def find_served_export(lake: Lake, key: PartitionKey) -> Artifact:
    """Return the export in a partition's serving folder, which may not be the champion any more.

    Raises:
        DataError: The record of the folder or the export is damaged or missing.
    """
    folder = partition_folder(lake, key)
    record = _read_record(folder)
    if record is None:
        raise DataError(f"{folder / RECORD} is damaged or missing")
    identities = [entry.champion for entry in lake.history("gguf_export", key) if entry.champion]
    for identity in reversed(identities):
        if f"-{identity[:16]}.gguf" in record.section:
            export = lake.find_undamaged("gguf_export", key, identity)
            if export is not None:
                return export
    raise DataError(f"the export in {folder} is not in the lake")


def delete_texts(lake: Lake, key: PartitionKey) -> list[Path]:
    """Delete the served files that show the requests of training, and the line `SYSTEM`.

    Return the files that changed or were deleted.
    """
    path = partition_folder(lake, key) / MODELFILE
    content = path.read_bytes() if path.exists() else b""
    kept = _SYSTEM.split(content, maxsplit=1)[0]
    return _replace_texts(lake, key, {} if kept == content else {MODELFILE: kept})


_SYSTEM = re.compile(rb'^SYSTEM """', re.MULTILINE)
"""The beginning of the last value in a Modelfile."""


def _replace_texts(lake: Lake, key: PartitionKey, texts: dict[str, bytes]) -> list[Path]:
    """Write served texts, by file name, and delete the request files that are not among them.

    Return the files that changed or were deleted.
    """
    root, folder = serving_root(lake), partition_folder(lake, key)
    record = _read_record(folder)
    contents = {folder / name: content for name, content in texts.items()}
    stale = [
        folder / name for name in REQUEST_FILES if name not in texts and (folder / name).exists()
    ]
    changed = [
        path
        for path, content in contents.items()
        if not path.exists() or path.read_bytes() != content
    ]
    for path in changed:
        write_atomically(path, contents[path])
    for path in stale:
        path.unlink()
    if record is None:
        return [*changed, *stale]
    gone = {str((folder / name).relative_to(root)) for name in REQUEST_FILES if name not in texts}
    checksums = {name: sha256 for name, sha256 in record.files.items() if name not in gone} | {
        str(path.relative_to(root)): hashlib.sha256(content).hexdigest()
        for path, content in contents.items()
    }
    if checksums != record.files:
        new_record = ServedFiles.of(record.section, checksums)
        write_atomically(folder / RECORD, msgspec.json.encode(new_record))
    return [*changed, *stale]


_LINKING = re.compile(r"\..+-[0-9a-f]{8}")
"""The name of a file that `_link` or `write_atomically` is writing."""


_STALE_SECONDS = 3600.0


def _remove_stale_links(root: Path) -> None:
    """Remove files in the folder of all partitions that killed writers left more than an hour ago.

    Newer files may belong to writers of other partitions that are still running.
    """
    for path in root.glob(".*"):
        with suppress(OSError):  # another writer was faster
            # A hard link has the modification time of the file that it links to. Only the change
            # time of its inode is new.
            if (
                _LINKING.fullmatch(path.name)
                and time.time() - path.lstat().st_ctime > _STALE_SECONDS
            ):
                path.unlink()


def write_preset(lake: Lake) -> None:
    """Write the sections of all partitions into the preset of llama-server's router."""
    root = serving_root(lake)
    with lake.fs.lock(lake.root / ".locks" / "serving.lock"):
        write_atomically(root / PRESET, _preset(root).encode("utf-8"))


def _preset(root: Path) -> str:
    """Return the text of the preset for llama-server's router, made from the sections of the
    partitions.
    """
    folders = {path.parent for name in (RECORD, _OLD_SECTION) for path in root.glob(f"*/*/{name}")}
    sections = [_section(folder) for folder in sorted(folders)]
    return "\n".join(["version = 1\n", *(section for section in sections if section)])


def reload_preset(server: str) -> str:
    """Ask a running llama-server to read its preset again, and return a sentence about the result.

    Without the URL of a server, the sentence says what to do.
    """
    if not server:
        return (
            "A running llama-server keeps the old preset: restart it, or set `serving.server` to "
            "its URL."
        )
    # No proxy: the environment's proxy must not be used for the user's own server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{server.rstrip('/')}/models?reload=1", timeout=SECONDS):
            return f"llama-server at {server} has read its preset again."
    except (OSError, ValueError) as error:
        return (
            f"llama-server at {server} keeps the old preset ({error}): restart it, or correct "
            "`serving.server`."
        )


def _link(source: Path, target: Path) -> None:
    """Create a hard link to a file or a copy of it. The new file appears only when it is complete.

    An existing file is kept if its content is the same.
    """
    same = target.is_file() and target.stat().st_size == source.stat().st_size
    if same and (target.samefile(source) or sha256_file(target) == sha256_file(source)):
        _open_to_servers(target, source)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}-{uuid4().hex[:8]}")
    try:
        os.link(source, new)
    except OSError:  # on another disk, or on a disk without hard links
        shutil.copyfile(source, new)
    _open_to_servers(new, source)
    new.replace(target)


def _open_to_servers(target: Path, source: Path) -> None:
    """Make a file readable for other users if new files in this folder are readable for them,
    because a server may run as another user.
    """
    try:
        give_usual_mode(target)
    except OSError:  # the file is a link to another user's file
        copy = target.with_name(f".{target.name}-{uuid4().hex[:8]}")
        shutil.copyfile(source, copy)
        copy.replace(target)
