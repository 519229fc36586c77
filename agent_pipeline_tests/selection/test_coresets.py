"""What every strategy promises, and what each one does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.selection.clusters import apportion
from agent_pipeline.selection.coresets import CoresetSelector, select
from agent_pipeline.selection.coverage import coverage
from agent_pipeline.selection.strategies import STRATEGIES

TOPICS = (
    "flight delay refund airline seat",
    "pizza oven dough cheese basil",
    "python traceback import module pip",
    "rent lease tenant deposit key",
)


def row(row_id: str, text: str, system: str = "You help.", **call: str) -> dict:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}, {"role": "assistant", "content": "Done."}]
    if call:
        messages[-1] |= {"content": "", "tool_calls": [{"type": "function", "function": call}]}
    return {"row_id": row_id, "messages": messages, "tools": []}


def world(n: int, topics: tuple[str, ...] = TOPICS) -> list[dict]:
    """`n` distinct conversations about a few topics, the first of them most often."""
    rng = np.random.default_rng(3)
    rows = []
    for i in range(n):
        words = topics[min(int(rng.exponential(0.7)), len(topics) - 1)].split()
        rows.append(row(f"r{i:04d}", f"{' '.join(rng.choice(words, 6))} number {i}"))
    return rows


def losses_of(rows: list[dict]) -> dict[str, float]:
    return {one["row_id"]: i % 17 / 10 for i, one in enumerate(rows)}


def chosen(choices) -> list[str]:
    return [choice.row_id for choice in sorted((c for c in choices if c.chosen), key=lambda c: c.rank)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_strategy_keeps_its_promises(strategy, data):
    texts = data.draw(st.lists(st.sampled_from([f"{topic} {i}" for topic in TOPICS for i in range(6)]), min_size=1, max_size=40))
    rows = [row(f"r{i}", text) for i, text in enumerate(texts)]
    losses = {one["row_id"]: data.draw(st.floats(0, 5) | st.none()) for one in rows} | {"r0": 1.0}
    size, seed = data.draw(st.integers(1, 45)), data.draw(st.integers(0, 3))
    choices = select(rows, strategy, size, seed, losses)

    assert choices == select(data.draw(st.permutations(rows)), strategy, size, seed, losses)
    assert [choice.row_id for choice in choices] == sorted(one["row_id"] for one in rows)
    assert all(choice.reason and (choice.rank is not None) == choice.chosen for choice in choices)
    picked = chosen(choices)
    assert [c.rank for c in sorted((c for c in choices if c.chosen), key=lambda c: c.rank)] == list(range(1, len(picked) + 1))
    if size >= len(rows):
        assert len(picked) == len(rows) and {choice.reason for choice in choices} == {"all rows kept: n ≤ target size"}
        return
    by_id = dict(zip((one["row_id"] for one in rows), texts, strict=True))
    assert len({by_id[row_id] for row_id in picked}) == len(picked), "identical rows were both chosen"
    eligible = {}  # the first row, by id, stands for its like
    for row_id in sorted(by_id):
        eligible.setdefault(by_id[row_id], row_id)
    allowed = [row_id for row_id in eligible.values() if strategy in ("random", "diversity") or losses[row_id] is not None]
    if allowed:
        assert len(picked) == min(size, len(allowed)) and set(picked) <= set(allowed)


def test_more_rows_change_few_random_choices():
    rows = world(400)
    before, after = (set(chosen(select(part, "random", 40))) for part in (rows[:380], rows))
    assert len(before & after) >= 35
    assert before != set(chosen(select(rows[:380], "random", 40, seed=1)))


def test_loss_topk_takes_the_hardest_and_never_a_row_without_a_loss():
    rows = world(10)
    losses = {"r0001": 3.0, "r0004": 2.0, "r0007": 1.0, "r0002": None, "r0003": float("nan")}
    choices = {choice.row_id: choice for choice in select(rows, "loss_topk", 2, losses=losses)}
    assert [row_id for row_id, choice in choices.items() if choice.chosen] == ["r0001", "r0004"]
    assert choices["r0001"].score == 3.0 and choices["r0001"].reason == "loss 3.000, the 1. highest of 3"
    assert choices["r0002"].reason == choices["r0003"].reason == choices["r0009"].reason == "it has no loss: null is not zero"
    assert choices["r0007"].reason == "its loss is lower than that of every chosen row"
    assert len(chosen(select(rows, "loss_topk", 9, losses=losses))) == 3


def test_diversity_takes_more_of_the_rare_topics_than_chance():
    rng = np.random.default_rng(0)
    rows = [
        row(f"{topic}-{i:03d}", " ".join(rng.choice(words.split(), 8)))
        for topic, (words, n) in enumerate(zip(TOPICS, (80, 4, 4, 4), strict=True))
        for i in range(n)
    ]
    topics = {
        name: np.mean([len({row_id[0] for row_id in chosen(select(rows, name, 8, seed))}) for seed in range(8)])
        for name in ("diversity", "random")
    }
    assert topics["diversity"] > topics["random"] + 1


def test_diversity_sets_aside_what_stands_alone_in_a_large_set():
    rows = [*world(150), row("zz", "qwxz vbnmk plorf")]
    alone = {choice.row_id for choice in select(rows, "diversity", 20) if choice.reason.startswith("outlier")}
    assert "zz" in alone and len(alone) == int(151 * 0.03)


def test_diversity_covers_better_than_chance():
    rows = world(300)
    found = coverage(rows, select(rows, "diversity", 30))
    assert found["mean_distance"] < found["random_mean_distance"] and 0.02 < found["gain"] < 1


def test_a_random_choice_covers_as_chance_does_and_everything_covers_all():
    rows = world(200)
    assert abs(coverage(rows, select(rows, "random", 20, seed=99))["gain"]) < 0.1
    assert coverage(rows, select(rows, "random", 500)) == {"mean_distance": 0.0, "random_mean_distance": 0.0, "gain": 0.0}


def test_hybrid_takes_its_share_by_loss_and_the_rest_as_typical():
    rows = world(200)
    choices = select(rows, "hybrid", 40, losses=losses_of(rows))
    reasons = [choice.reason.split(" of its cluster")[0] for choice in choices if choice.chosen]
    assert sum("among the highest" in reason for reason in reasons) == 24 and reasons.count("typical") == 16
    for ratio, kind in ((1.0, "among the highest"), (0.0, "typical")):
        choices = select(rows, "hybrid", 40, losses=losses_of(rows), loss_ratio=ratio)
        assert all(kind in choice.reason for choice in choices if choice.chosen)


def test_hybrid_prefers_harder_rows_than_chance():
    rows = world(300)
    losses = losses_of(rows)
    means = {
        name: np.mean([losses[i] for i in chosen(select(rows, name, 60, losses=losses))]) for name in ("hybrid", "random", "loss_topk")
    }
    assert means["random"] + 0.2 < means["hybrid"] < means["loss_topk"]


def test_an_absurd_loss_counts_no_more_than_the_95th_percentile():
    rows = [row(f"r{i:03d}", f"{TOPICS[0]}") | {"tools": [{"n": i}]} for i in range(60)]
    losses = {one["row_id"]: 1.0 for one in rows} | {"r050": 1e9, "r010": 2.0, "r011": 2.0, "r012": 2.0, "r013": 2.0}
    # All are the same text, so nothing but loss and id decides; capped, the absurd one stands behind its equals.
    assert chosen(select(rows, "hybrid", 4, losses=losses, loss_ratio=1.0)) == ["r010", "r011", "r012", "r013"]


def test_system_prompt_and_tools_do_not_place_a_row_but_arguments_do():
    from agent_pipeline.selection.embeddings import conversation_text, embed

    texts = [
        conversation_text(one["messages"])
        for one in (row("a", "hi", system="X"), row("b", "hi", system="Y"), row("c", "hi", name="f", arguments='{"city": "Oslo"}'))
    ]
    assert texts[0] == texts[1] == "hi\nDone." and "Oslo" in texts[2]
    vectors = embed([*texts, ""])
    assert (vectors[0] == vectors[1]).all() and (vectors[0] != vectors[2]).any() and not vectors[3].any()
    assert vectors.dtype == np.float32 and np.allclose(np.linalg.norm(vectors[:3], axis=1), 1, atol=1e-3)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=8), st.integers(0, 60))
def test_a_quota_is_shared_out_exactly(pairs, total):
    sizes, room = [a for a, _ in pairs], [b for _, b in pairs]
    shares = apportion(total, sizes, room)
    assert sum(shares) == min(total, sum(room)) and all(0 <= share <= most for share, most in zip(shares, room, strict=True))


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"strategy": "best"}, SettingsError, "no coreset strategy 'best': choose one of hybrid, diversity, loss_topk, random"),
        ({"target_size": 0}, SettingsError, "coreset of 0 rows"),
        ({"loss_ratio": 1.5}, SettingsError, "loss_ratio of a coreset is 1.5"),
        ({"strategy": "loss_topk"}, DataError, "'loss_topk' needs a loss"),
        ({"strategy": "hybrid", "losses": {"r0000": None}}, DataError, "'hybrid' needs a loss"),
        ({"rows": [row("a", "x"), row("a", "y"), row("b", "z")]}, DataError, "row id 'a' is given to more than one"),
    ],
)
def test_mistakes_are_said_in_a_sentence(asked, error, says):
    with pytest.raises(error, match=says) as caught:
        select(**({"rows": world(9), "strategy": "random", "target_size": 2} | asked))
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_no_rows_give_no_choices():
    assert select([], "random", 5) == []


def test_the_selector_takes_samples_without_ids_in_their_own_order():
    samples = [{"messages": one["messages"]} for one in world(60)]
    picked = CoresetSelector(target_size=20).select(samples, model=lambda rows: [float(len(r["messages"][1]["content"])) for r in rows])
    places = [samples.index(sample) for sample in picked]
    assert len(picked) == 20 and places == sorted(places) and all("row_id" not in sample for sample in picked)
    assert CoresetSelector("random", 20).select(samples) == CoresetSelector("random", 20).select(samples)
    assert len(CoresetSelector().select(samples)) == 60, "with room for all, no model is asked"


def test_the_selector_says_what_it_lacks():
    samples = [{"messages": one["messages"]} for one in world(9)]
    with pytest.raises(DataError, match="'hybrid' needs a model"):
        CoresetSelector(target_size=2).select(samples)
    with pytest.raises(DataError, match="gave 1 losses for 9 samples"):
        CoresetSelector(target_size=2).select(samples, model=lambda rows: [1.0])
    with pytest.raises(SettingsError, match="no coreset strategy"):
        CoresetSelector("kmeans")


def test_diversity_scores_are_highest_for_what_is_unlike_the_rest():
    samples = [{"messages": one["messages"]} for one in [*world(40, TOPICS[:1]), row("x", "qwxz vbnmk plorf")]]
    scores = CoresetSelector().compute_diversity(samples)
    assert scores.shape == (41,) and scores.argmax() == 40
    assert np.allclose(CoresetSelector().compute_diversity(samples[::-1])[::-1], scores)
