"""The search of files and texts that leave the lake, and of the texts of exceptions."""

import gzip
import json
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFEndian, GGUFReader, GGUFValueType, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agent_pipeline.errors import PrivateDataError
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.redaction.exceptions import redact_exception, redact_sentence
from agent_pipeline.redaction.files import (
    finds_in_files,
    kinds_in_texts,
    refuse_private,
    texts_of_file,
)

PRIVATE = "ann.lee@shop.io"


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor(RedactionOptions())


def write_gguf(path: Path, **fields: str) -> None:
    """Write a GGUF file with a vocabulary that holds an address."""
    writer = GGUFWriter(path, "llama")
    for name, text in fields.items():
        writer.add_string(name.replace("__", "."), text)
    writer.add_array("general.tags", ["a", "b"])
    writer.add_array("tokenizer.ggml.tokens", ["a", PRIVATE])
    writer.add_tensor("weights", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/1.json", json.dumps({"input": PRIVATE}))


FILES = {
    "a.gguf": lambda path: write_gguf(path, general__description=f"by {PRIVATE}"),
    "a.eval": write_archive,
    "a.log.gz": lambda path: path.write_bytes(gzip.compress(PRIVATE.encode())),
    "Modelfile": lambda path: path.write_text(f"SYSTEM write to {PRIVATE}"),
    "a.jsonl": lambda path: path.write_text(json.dumps({"text": PRIVATE.replace("@", "\\u0040")})),
    "a.html": lambda path: path.write_text(f"<p>{PRIVATE.replace('@', '&#64;')}</p>"),
    "tokenizer.json": lambda path: path.write_text(
        json.dumps({"model": {"vocab": {"a": 1}}, "added_tokens": [{"content": PRIVATE}]})
    ),
    "far.md": lambda path: path.write_text("word " * 400_000 + PRIVATE),
    "border.md": lambda path: path.write_text("x" * ((1 << 20) - 5) + " " + PRIVATE),
}


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path, redactor, name):
    """Models' metadata, logs and cards were published without a search."""
    FILES[name](tmp_path / name)
    finds = finds_in_files({name: tmp_path / name}, redactor)
    assert list(finds) == [name] and set(finds[name]) == {"EMAIL"}


def test_vocabularies_weights_and_made_up_values(tmp_path, redactor):
    write_gguf(tmp_path / "a.gguf", general__name="shop/support")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {PRIVATE: 1}}}))
    (tmp_path / "a.bin").write_bytes(PRIVATE.encode())
    files = {path.name: path for path in tmp_path.iterdir()}
    assert len(files) == 3 and finds_in_files(files, redactor) == {}
    assert kinds_in_texts([PRIVATE], redactor, allowed=[PRIVATE]) == {}


@pytest.mark.parametrize("order", list(GGUFEndian))
def test_texts_of_gguf(tmp_path: Path, order: GGUFEndian) -> None:
    """They are those that gguf's own reader finds, beside values of all other kinds."""
    path = tmp_path / "a.gguf"
    writer = GGUFWriter(path, "llama", endianess=order)
    numbers = [kind for kind in GGUFValueType if kind.name not in ("STRING", "ARRAY")]
    for kind in numbers:
        writer.add_key_value(f"number.{kind.name}", 1, kind)
        writer.add_key_value(f"numbers.{kind.name}", [1, 0, 1], GGUFValueType.ARRAY, kind)
    writer.add_string("general.name", "shop/süpport")
    writer.add_array("general.tags", ["a", ""])
    writer.add_array("tokenizer.ggml.tokens", ["a", PRIVATE])
    writer.add_array("lists", [["b"], ["c", "d"]])
    writer.add_tensor("weights", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reader = GGUFReader(path)
    expected = [
        f"{name}: {bytes(field.parts[index]).decode()}"
        for name, field in reader.fields.items()
        if GGUFValueType.STRING in field.types and not name.startswith("tokenizer")
        for index in field.data
    ]
    assert list(texts_of_file(path)) == expected and len(expected) == 7
    assert len(GGUFValueType) == len(numbers) + 2 == 13


def test_a_gguf_that_is_cut_off(tmp_path: Path, redactor: Redactor) -> None:
    """What is there is searched, wherever the file ends."""
    write_gguf(tmp_path / "whole.gguf", general__description=PRIVATE)
    content = (tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "a.gguf"
    for length in range(content.index(PRIVATE.encode()) + len(PRIVATE), len(content), 7):
        path.write_bytes(content[:length])
        assert finds_in_files({"a.gguf": path}, redactor), length


@given(
    position=st.floats(0, 1, exclude_max=True),
    damage=st.sampled_from([b"\xff" * 8, b"\xff" * 4, (1 << 63).to_bytes(8, "little")])
    | st.binary(min_size=1, max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_damage_stops_no_search(gguf_content: bytes, position: float, damage: bytes) -> None:
    """A count of 2^63 raised an error that ended the scan. Any bytes may be damaged."""
    start = int(position * len(gguf_content))
    content = gguf_content[:start] + damage + gguf_content[start + len(damage) :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.gguf")
        path.write_bytes(content)
        assert all(isinstance(text, str) for text in texts_of_file(path))


@pytest.mark.parametrize("count", [1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_damaged_count_of_an_array(gguf_content: bytes, tmp_path, redactor, count: int) -> None:
    """The beginning of the file is searched as text, so the address in it is reported."""
    start = gguf_content.index(b"numbers") + len(b"numbers") + 8
    damaged = gguf_content[:start] + count.to_bytes(8, "little") + gguf_content[start + 8 :]
    (tmp_path / "a.gguf").write_bytes(damaged)
    assert finds_in_files({"a.gguf": tmp_path / "a.gguf"}, redactor)["a.gguf"]["EMAIL"]


@pytest.fixture(scope="module")
def gguf_content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small GGUF file with an address after an array of numbers."""
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("general.tags", ["a", "b"])
    writer.add_string("general.description", PRIVATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path.read_bytes()


def test_a_damaged_gguf_is_searched_as_text(tmp_path, redactor):
    (tmp_path / "a.gguf").write_text(f"GGUF {PRIVATE}")
    assert finds_in_files({"a.gguf": tmp_path / "a.gguf"}, redactor)


def test_the_error_counts_and_shows_no_value(tmp_path, redactor):
    FILES["Modelfile"](tmp_path / "Modelfile")
    with pytest.raises(PrivateDataError) as error:
        refuse_private(
            "The model", redactor, {"Modelfile": tmp_path / "Modelfile"}, {"card": PRIVATE}
        )
    assert error.value.kinds_by_file == {"Modelfile": {"EMAIL": 1}, "card": {"EMAIL": 1}}
    assert PRIVATE not in str(error.value)
    refuse_private("The model", redactor, texts={"card": "# shop/support"})


@pytest.mark.parametrize(
    "fail",
    [
        lambda: {}["password: s3cretPw9"],
        lambda: int(f"mail {PRIVATE}"),
        lambda: TypeAdapter(int).validate_python(PRIVATE),
        Path(f"/nowhere/{PRIVATE}").read_bytes,
        lambda: json.loads(PRIVATE),
        lambda: PRIVATE.encode("ascii").decode("utf-16"),
    ],
)
def test_exceptions(fail):
    """Dagster keeps the text of an exception and of its causes, and they quoted what they could not read."""
    try:
        try:
            fail()
        except Exception as cause:
            raise ValueError(f"it cannot be read: {PRIVATE}") from cause
    except ValueError as error:
        public = redact_exception(error, RedactionOptions())
    texts = " ".join(map(str, (public, public.__cause__, public.__context__)))
    assert isinstance(public, ValueError) and "it cannot be read: <EMAIL_1>" in texts
    assert PRIVATE not in texts and "s3cretPw9" not in texts and public.__cause__.__traceback__


def test_an_exception_without_private_data_stays_the_same():
    error = OSError(2, "No such file", "/tmp/a")
    assert redact_exception(error, RedactionOptions()) is error and error.args == (
        2,
        "No such file",
    )
    assert redact_sentence("The lake is away.", RedactionOptions()) == "The lake is away."
