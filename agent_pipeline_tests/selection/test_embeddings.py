"""Embeddings by a model, with tiny models that are made here."""

import sys

import numpy as np
import pytest

from agent_pipeline.errors import ModelError, SettingsError
from agent_pipeline.keys import parse_key
from agent_pipeline.selection import embeddings
from agent_pipeline.selection.embeddings import check_embeddings, find_encoder
from agent_pipeline.selection.vectors import read_vectors, store_vectors
from agent_pipeline.storage.lake import Lake

KEY = parse_key("shop/support")
WORDS = ["cat", "dog", "hen", "fish", "corn", "eats", "the", "at", "noon"]
TEXTS = ["the cat eats fish", "the dog eats fish", "the hen eats corn at noon"]


@pytest.fixture
def static(tmp_path):
    """A static model of nine words, saved by model2vec."""
    from model2vec import StaticModel
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(
        models.WordLevel(
            {word: place for place, word in enumerate(["[UNK]", *WORDS])}, unk_token="[UNK]"
        )
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    vectors = np.random.default_rng(0).normal(size=(10, 8)).astype(np.float32)
    StaticModel(vectors, words).save_pretrained(str(tmp_path / "static"))
    return tmp_path / "static", vectors


@pytest.fixture
def bert(tmp_path):
    """A sentence-transformers model of random weights that takes eight tokens, two of them its own."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    )
    tokenizer = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), model_max_length=8)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    BertModel(
        BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **sizes)
    ).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    words = Transformer(str(tmp_path / "bert"), max_seq_length=8)
    model = SentenceTransformer(modules=[words, Pooling(16)], device="cpu")
    model.save(str(tmp_path / "sentences"))
    return tmp_path / "sentences", model


def test_a_static_model_places_a_text_at_the_mean_of_its_words_however_long(static):
    folder, vectors = static
    found = find_encoder(f"model2vec:{folder}").vectors([*TEXTS, "cat " * 2000 + "dog"])
    places = [
        [WORDS.index(word) + 1 for word in text.split()] for text in [*TEXTS, "cat " * 2000 + "dog"]
    ]
    for vector, words in zip(found, places, strict=True):
        mean = vectors[words].mean(axis=0)
        assert vector == pytest.approx(mean / np.linalg.norm(mean), abs=1e-4)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-3)


def test_a_sentence_transformer_takes_a_long_text_in_parts(bert):
    folder, model = bert
    long = "the cat eats fish at noon the dog eats corn"
    found = find_encoder(f"sentence-transformers:{folder}").vectors([TEXTS[0], long])
    first, last, short = model.encode(
        ["the cat eats fish at noon", "the dog eats corn", TEXTS[0]], normalize_embeddings=True
    )
    mean = first * 6 + last * 4
    assert found[0] == pytest.approx(short, abs=1e-4) and found[1] == pytest.approx(
        mean / np.linalg.norm(mean), abs=1e-4
    )
    assert found[1] != pytest.approx(model.encode(long, normalize_embeddings=True), abs=1e-2), (
        "the model itself cuts it"
    )


def test_a_night_asks_the_model_only_of_texts_that_are_new_and_another_revision_of_all(
    static, tmp_path, monkeypatch
):
    folder, _ = static
    lake = Lake(tmp_path / "lake")

    def night(texts):
        asked = []
        model = find_encoder(f"model2vec:{folder}")
        recording = embeddings.Encoder(
            model.origin, lambda new: asked.extend(new) or model.vectors(new)
        )
        counts = store_vectors(lake, KEY, recording, texts)
        assert lake.open("embeddings", KEY).metadata.num_rows == len(set(texts)), (
            "what is forgotten does not stay"
        )
        return read_vectors(lake, KEY, model.origin, texts), asked, counts

    first, asked, counts = night(TEXTS[:2])
    assert asked == TEXTS[:2] and counts["computed"] == 2 and first.shape == (2, 8)
    second, asked, counts = night([*TEXTS, TEXTS[0]])
    assert (
        asked == TEXTS[2:]
        and (counts["computed"], counts["kept"]) == (1, 2)
        and np.array_equal(second[:2], first)
    )
    monkeypatch.setattr(
        embeddings, "_load", lambda *given: pytest.fail("a model was loaded though nothing is new")
    )
    assert np.array_equal(night(TEXTS)[0], second[:3])
    monkeypatch.undo()
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    assert night(TEXTS)[1] == TEXTS
    lake.table("embeddings", KEY).write_bytes(b"half a file")
    assert night(TEXTS)[1] == TEXTS and night(TEXTS[1:])[0].shape == (2, 8)


def test_a_model_of_the_hub_is_taken_from_its_cache_and_known_by_its_commit(
    static, tmp_path, monkeypatch
):
    commit, asked = tmp_path / "0123abcd", []
    static[0].rename(commit)

    def download(name, local_files_only, **options):
        asked.append((name, local_files_only))
        return str(commit)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    model = find_encoder("model2vec:someone/static")
    assert model.origin == {"form": "model2vec 1", "revision": "0123abcd"} and asked == [
        ("someone/static", True)
    ]
    assert model.vectors(TEXTS).shape == (3, 8)


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        (
            "bert",
            SettingsError,
            "'bert': choose one of tfidf, hidden_states, model2vec:<folder or name>",
        ),
        ("model2vec:", SettingsError, "'model2vec:'"),
        ("tfidf", SettingsError, "do not name an embedding model"),
        ("model2vec:./nowhere", ModelError, "./nowhere does not exist"),
        ("sentence-transformers:nobody/nothing", ModelError, "nobody/nothing"),
    ],
)
def test_a_mistake_is_said_in_a_sentence(name, error, says, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(error) as raised:
        find_encoder(name)
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_a_folder_without_a_model_is_said_when_it_is_needed(tmp_path):
    (tmp_path / "empty").mkdir()
    for kind in ("model2vec", "sentence-transformers"):
        with pytest.raises(ModelError, match=f"cannot be loaded by {kind}"):
            find_encoder(f"{kind}:{tmp_path / 'empty'}").vectors(TEXTS)


@pytest.mark.parametrize("kind", ["model2vec", "sentence-transformers"])
def test_a_package_that_is_not_installed_is_named_with_its_extra(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, embeddings.PACKAGES[kind], None)
    with pytest.raises(SettingsError, match=rf"pip install 'agent-pipeline\[{kind}\]'"):
        check_embeddings(f"{kind}:some/model")
