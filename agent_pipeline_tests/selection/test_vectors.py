"""Embeddings kept in the lake."""

import numpy as np
import pytest

from agent_pipeline.keys import parse_key
from agent_pipeline.selection.embeddings import Space
from agent_pipeline.selection.vectors import KeptEmbeddings
from agent_pipeline.storage.lake import Lake

KEY = parse_key("shop/support")
TEXTS = [f"the {animal} eats {food} at {hour}" for animal in ("cat", "dog", "hen") for food in ("fish", "corn") for hour in range(5)]


@pytest.fixture
def lake(tmp_path) -> Lake:
    return Lake(tmp_path)


def test_a_night_computes_only_what_is_new(lake, monkeypatch):
    first = KeptEmbeddings(lake, KEY)
    vectors = first(TEXTS)
    assert +first.counts == {"computed": 30, "fitted": 1, "stored": 30}
    seen: list[str] = []
    place = Space.vectors
    monkeypatch.setattr(Space, "vectors", lambda self, texts: seen.extend(texts) or place(self, texts))
    second = KeptEmbeddings(lake, KEY)
    again = second([*TEXTS, "the hen eats corn at noon", TEXTS[0]])
    assert seen == ["the hen eats corn at noon"] and (second.counts["computed"], second.counts["kept"]) == (1, 30)
    assert np.array_equal(again[:30], vectors) and np.array_equal(again[31], vectors[0]) and second.counts["fitted"] == 0


def test_the_order_of_texts_does_not_matter(lake, tmp_path):
    there = KeptEmbeddings(lake, KEY)(TEXTS)
    back = KeptEmbeddings(Lake(tmp_path / "other"), KEY)(TEXTS[::-1])
    assert np.array_equal(there, back[::-1])


def test_twice_as_many_texts_are_placed_anew_together(lake):
    KeptEmbeddings(lake, KEY)(TEXTS[:10])
    grown = KeptEmbeddings(lake, KEY)
    vectors = grown(TEXTS)
    assert (grown.counts["fitted"], grown.counts["computed"]) == (1, 30)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3) and vectors.shape[1] > 9


def test_what_is_forgotten_does_not_stay(lake):
    KeptEmbeddings(lake, KEY)(TEXTS)
    KeptEmbeddings(lake, KEY)(TEXTS[:20])
    assert lake.open("embeddings", KEY).metadata.num_rows == 20


def test_a_damaged_file_or_another_seed_is_no_cache(lake):
    vectors = KeptEmbeddings(lake, KEY)(TEXTS)
    other = KeptEmbeddings(lake, KEY, seed=1)
    other(TEXTS)
    assert other.counts["computed"] == 30
    lake.table("embedding_space", KEY).write_bytes(b"half a file")
    mended = KeptEmbeddings(lake, KEY)
    assert np.array_equal(mended(TEXTS), vectors) and mended.counts["computed"] == 30


def test_no_texts_and_texts_without_words_have_vectors_too(lake):
    assert KeptEmbeddings(lake, KEY)([]).shape[0] == 0
    assert not KeptEmbeddings(lake, KEY)(["", "..."]).any()
    assert KeptEmbeddings(lake, KEY)(["", "..."]).shape == (2, 1)
