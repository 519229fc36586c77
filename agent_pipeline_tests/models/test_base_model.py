"""Where a base model comes from, and what its revision says."""

import shutil

import pytest

from agent_pipeline.errors import ModelError
from agent_pipeline.models import base_model
from agent_pipeline.models.base_model import EMBEDDED, resolve_base_model


def test_a_directory_is_itself_and_its_revision_follows_its_weights(tiny_base, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny_base.path, copy)
    assert resolve_base_model(str(copy), tmp_path).revision == tiny_base.revision
    weights = next(copy.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    changed = resolve_base_model(str(copy), tmp_path)
    assert (
        changed.path == copy
        and changed.revision.startswith("sha256:")
        and changed.revision != tiny_base.revision
    )


def test_a_pinned_revision_is_the_one_that_is_loaded_or_an_error(tiny_base, tmp_path, monkeypatch):
    assert (
        resolve_base_model(str(tiny_base.path), tmp_path, revision=tiny_base.revision).revision
        == tiny_base.revision
    )
    with pytest.raises(ModelError):
        resolve_base_model(str(tiny_base.path), tmp_path, revision="sha256:0")
    asked = []

    def download(name, revision, **options):
        asked.append((name, revision))
        return tiny_base.path

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_base_model("some/model", tmp_path, revision="0badcafe").path == tiny_base.path
    assert resolve_base_model("some/model", tmp_path).path == tiny_base.path
    assert asked == [("some/model", "0badcafe"), ("some/model", None)]


@pytest.mark.parametrize("name", ["nobody/no-such-model", "./no/such/directory", "a/b/c"])
def test_a_model_that_does_not_exist_is_one_sentence(name, tmp_path):
    with pytest.raises(ModelError) as error:
        resolve_base_model(name, tmp_path)
    text = str(error.value)
    assert name in text and "\n" not in text and text.endswith(".")


def test_a_directory_without_weights_says_what_is_missing(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="safetensors"):
        resolve_base_model(str(tmp_path), tmp_path)


def test_the_default_needs_no_network(smollm2):
    assert smollm2.name == EMBEDDED
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        file.name for file in smollm2.path.iterdir()
    }


def test_the_embedded_tokenizer_splits_digits_as_the_original_does(smollm2_renderer):
    assert smollm2_renderer.tokenizer("  12").input_ids == [256, 33, 34]


def test_what_the_installation_converted_is_taken_and_nothing_is_converted_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(base_model, "INSTALLED", tmp_path / "share")
    monkeypatch.setattr(base_model, "convert_embedded", lambda target: target.mkdir(parents=True))
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda *args, **options: (_ for _ in ()).throw(OSError("no network")),
    )
    cache = tmp_path / "cache"
    first = resolve_base_model(EMBEDDED, cache)
    assert first.path.is_relative_to(cache)
    installed = tmp_path / "share" / first.path.name
    installed.mkdir(parents=True)
    then = resolve_base_model(EMBEDDED, cache)
    assert (then.path, then.revision) == (installed, first.revision)
