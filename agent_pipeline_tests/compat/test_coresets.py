"""`CoresetSelector`: samples without ids, and the losses of real models."""

import numpy as np
import pytest

from agent_pipeline.compat.sage.coresets import CoresetSelector
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline_tests.selection.test_coresets import TOPICS, row, world


def samples(n: int, topics: tuple[str, ...] = TOPICS) -> list[dict]:
    return [{"messages": each["messages"]} for each in world(n, topics)]


def test_the_selector_takes_samples_without_ids_in_their_own_order():
    given = samples(60)
    picked = CoresetSelector(target_size=20).select(
        given, model=lambda rows: [float(len(r["messages"][1]["content"])) for r in rows]
    )
    places = [given.index(sample) for sample in picked]
    assert (
        len(picked) == 20
        and places == sorted(places)
        and all("row_id" not in sample for sample in picked)
    )
    assert CoresetSelector("random", 20).select(given) == CoresetSelector("random", 20).select(
        given
    )
    assert len(CoresetSelector().select(given)) == 60, "with room for all, no model is asked"


@pytest.mark.parametrize("model", [None, lambda rows: [1.0]])
def test_losses_are_needed_for_every_sample(model):
    with pytest.raises(DataError):
        CoresetSelector(target_size=2).select(samples(9), model)


def test_an_unknown_strategy_is_refused_at_once():
    with pytest.raises(SettingsError):
        CoresetSelector("kmeans")


def test_diversity_scores_are_highest_for_what_is_unlike_the_rest():
    given = [*samples(40, TOPICS[:1]), {"messages": row("x", "qwxz vbnmk plorf")["messages"]}]
    scores = CoresetSelector().compute_diversity(given)
    assert scores.shape == (41,) and scores.argmax() == 40
    assert np.allclose(CoresetSelector().compute_diversity(given[::-1])[::-1], scores)


@pytest.mark.slow
def test_losses_are_a_real_models_on_the_assistants_tokens(convertible_base, tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM

    from agent_pipeline.models.chat_renderer import load_renderer
    from agent_pipeline.tokenization.encoding import encode_row

    monkeypatch.setenv("AGENT_PIPELINE_CACHE", str(tmp_path / "cache"))
    model = AutoModelForCausalLM.from_pretrained(convertible_base)
    given = samples(6)
    given.append(
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "word " * 3000},
            ]
        }
    )
    selector = CoresetSelector("loss_topk", 2)
    found = selector.compute_losses(given, model)
    assert found[-1] is None, "what does not fit has no loss, never 0"
    renderer = load_renderer(convertible_base)
    for sample, loss in zip(given[:-1], found, strict=False):
        encoded = encode_row(
            renderer, {"tools": [], "row_id": "r", "session_id": "s", **sample}, 2048
        ).encoded
        with torch.no_grad():
            plain = model(
                torch.tensor([encoded.input_ids]), labels=torch.tensor([encoded.labels])
            ).loss.item()
        assert loss == pytest.approx(plain, abs=1e-4)
    assert selector.compute_losses(given, convertible_base) == pytest.approx(found, abs=1e-4), (
        "the same from its folder"
    )
    with pytest.warns(UserWarning, match="often chooses noise"):
        hardest = selector.select(given, model)
    assert sorted(found[given.index(sample)] for sample in hardest) == sorted(found[:-1])[-2:]
