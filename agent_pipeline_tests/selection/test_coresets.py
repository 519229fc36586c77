"""What every strategy promises, and what each one does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.selection.clusters import apportion, largest, neighbourhood, outliers
from agent_pipeline.selection.coresets import CoresetSelector, Options, select
from agent_pipeline.selection.coverage import coverage, covered
from agent_pipeline.selection.embeddings import conversation_text, embed, fit
from agent_pipeline.selection.pool import Pool, Ranking, Strategy
from agent_pipeline.selection.registry import STRATEGIES, strategy

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


WANTED = [row("w1", f"{TOPICS[1]} please") | {"split": "select"}, row("w2", f"{TOPICS[3]} please") | {"split": "select"}]
AT_A_DISTANCE = ("diversity", "k_center", "hybrid_classic")
"""Strategies that never take two rows whose embeddings are equal, though places be left."""


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_strategy_keeps_its_promises(strategy, data):
    texts = data.draw(st.lists(st.sampled_from([f"{topic} {i}" for topic in TOPICS for i in range(6)]), min_size=1, max_size=40))
    scores = data.draw(st.lists(st.floats(0, 1) | st.none(), min_size=len(texts), max_size=len(texts)))
    scores[0] = 1.0
    rows = [row(f"r{i}", text) | {"score": score} for i, (text, score) in enumerate(zip(texts, scores, strict=True))]
    losses = {one["row_id"]: data.draw(st.floats(0, 5) | st.none()) for one in rows}
    size, seed = data.draw(st.integers(1, 45)), data.draw(st.integers(0, 3))
    best = min(rows, key=lambda one: (-(one["score"] or 0) if one["score"] is not None else 9, one["row_id"]))
    losses[best["row_id"]] = 1.0
    options = Options(losses=losses, wanted=WANTED)
    choices = select(rows, strategy, size, seed, options=options)

    assert choices == select(data.draw(st.permutations(rows)), strategy, size, seed, options=options)
    assert [choice.row_id for choice in choices] == sorted(one["row_id"] for one in rows)
    assert all(choice.reason and (choice.rank is not None) == choice.chosen for choice in choices)
    picked = chosen(choices)
    assert [c.rank for c in sorted((c for c in choices if c.chosen), key=lambda c: c.rank)] == list(range(1, len(picked) + 1))
    if size >= len(rows):
        assert len(picked) == len(rows) and {choice.reason for choice in choices} == {"all rows kept: n ≤ target size"}
        return
    by_id = {one["row_id"]: one for one in rows}
    assert len({conversation_text(by_id[row_id]["messages"]) for row_id in picked}) == len(picked), "identical rows were both chosen"
    needs = {"deita": lambda row_id: by_id[row_id]["score"] is not None}
    if STRATEGIES[strategy].needs_losses:
        needs[strategy] = lambda row_id: losses[row_id] is not None
    stands = [choice.row_id for choice in choices if not choice.reason.startswith("identical to row")]
    allowed = [row_id for row_id in stands if needs.get(strategy, bool)(row_id)]
    assert set(picked) <= set(allowed)
    if strategy in ("diversity", "hybrid"):
        good = [row_id for row_id in allowed if by_id[row_id]["score"] is None or by_id[row_id]["score"] >= 0.5]
        assert not good or set(picked) <= set(good)
        assert len(picked) <= min(size, len(good) or len(allowed))
    elif strategy not in AT_A_DISTANCE:
        assert len(picked) == min(size, len(allowed))
    assert picked or not allowed


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
    assert set(coverage(rows, select(rows, "random", 500)).values()) == {0.0}


def test_hybrid_takes_its_share_by_loss_and_the_rest_as_typical():
    rows = world(90)  # below a hundred rows none is an outlier
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
    # Words that only differ in case have one embedding, and are not identical.
    rows = [row(f"r{i:03d}", "".join(c.upper() if i >> k & 1 else c for k, c in enumerate(TOPICS[0]))) for i in range(60)]
    losses = {one["row_id"]: 1.0 for one in rows} | {"r050": 1e9, "r010": 2.0, "r011": 2.0, "r012": 2.0, "r013": 2.0}
    # All are the same text, so nothing but loss and id decides; capped, the absurd one stands behind its equals.
    assert chosen(select(rows, "hybrid", 4, losses=losses, loss_ratio=1.0)) == ["r010", "r011", "r012", "r013"]


def test_system_prompt_and_tools_do_not_place_a_row_but_arguments_do():
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
        ({"strategy": "hybrid"}, DataError, "'hybrid' needs judged rows"),
        ({"strategy": "deita"}, DataError, "'deita' needs judged rows"),
        ({"strategy": "targeted"}, DataError, "'targeted' needs wanted examples"),
        ({"strategy": "no.such:thing"}, SettingsError, "'no.such:thing' cannot be loaded"),
        ({"strategy": "agent_pipeline.selection.pool:LOSS_RATIO"}, SettingsError, "is a float, no function of a Pool"),
        ({"options": Options(loss_band=(0.9, 0.1))}, SettingsError, "loss_band of a coreset is 0.9 to 0.1"),
        ({"options": Options(min_score=2)}, SettingsError, "min_score of a coreset is 2"),
        ({"options": Options(near=1.5)}, SettingsError, "threshold of near duplicates is 1.5"),
        ({"options": Options(wanted=[{"split": "test"}])}, SettingsError, "Wanted examples of the split test"),
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


def test_random_takes_of_every_tool_its_share():
    rows = [row(f"a{i:02d}", f"x{i}", name="find", arguments=str(i)) for i in range(60)]
    rows += [row(f"b{i:02d}", f"y{i}", name="pay", arguments=str(i)) for i in range(20)]
    for seed in range(3):
        picked = chosen(select(rows, "random", 8, seed))
        assert sorted(row_id[0] for row_id in picked) == ["a"] * 6 + ["b"] * 2


def test_rows_judged_bad_are_not_chosen_for_diversity_and_unjudged_ones_may_be():
    rows = [one | {"score": None if i % 3 == 0 else 0.2 if i % 3 == 1 else 0.9} for i, one in enumerate(world(60))]
    for name in ("diversity", "hybrid"):
        choices = select(rows, name, 15)
        scores = [one["score"] for one, choice in zip(rows, choices, strict=True) if choice.chosen]
        assert len(scores) == 15 and 0.2 not in scores and (name == "hybrid" or None in scores)
        assert sum(choice.reason == "its score is below 0.5" for choice in choices) == 20


def test_hybrid_without_losses_takes_the_best_judged_of_each_cluster():
    rows = [one | {"score": 0.5 + (i * 7 % 50) / 100} for i, one in enumerate(world(80))]
    scores = {one["row_id"]: one["score"] for one in rows}
    choices = select(rows, "hybrid", 20, loss_ratio=1.0)
    assert np.mean([scores[i] for i in chosen(choices)]) > np.mean(list(scores.values())) + 0.1
    assert all(choice.reason.startswith("score 0.") for choice in choices if choice.chosen)


def test_loss_band_leaves_out_what_is_known_and_what_is_hopeless():
    rows = world(100)
    losses = {one["row_id"]: float(i) for i, one in enumerate(rows)}
    picked = chosen(select(rows, "loss_band", 30, losses=losses))
    assert len(picked) == 30 and all(24 <= losses[row_id] <= 75 for row_id in picked)
    more = {losses[row_id] for row_id in chosen(select(rows, "loss_band", 60, losses=losses))}
    assert {float(i) for i in range(25, 75)} <= more and more <= {float(i) for i in range(19, 81)}, "then the nearest to the band"


def test_longest_counts_the_assistants_words_only():
    rows = [row(f"r{i}", "word " * (50 - i)) for i in range(10)]
    rows[4]["messages"][-1]["content"] = "far more words than all the others have"
    assert chosen(select(rows, "longest", 1)) == ["r4"]
    assert chosen(select(rows, "longest", 1, options=Options(lengths={"r2": 99}))) == ["r2"], "a tokenizer's count comes first"


def test_deita_takes_good_long_rows_unlike_each_other_first():
    vectors = np.repeat(np.eye(4, dtype=np.float32), 3, axis=0)  # four kinds of row, three of each
    scores, lengths = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.9, 0.9, 0.9, None, None, None], [10] * 6 + [1] * 3 + [99] * 3
    pool = Pool([f"r{i:02d}" for i in range(12)], 5, lambda: vectors, scores=scores, lengths=lengths)
    ranking = STRATEGIES["deita"].choose(pool)
    assert ranking.picked == [0, 3, 6, 1, 2], "of each kind the best, then what is left"
    assert ranking.picks[3][2].endswith("like a chosen row, but places were left")
    assert ranking.passed[10] == "it has no score: null is not zero" and "like it" in ranking.passed[4]


def test_targeted_takes_in_turn_what_is_nearest_to_each_wanted_example():
    rows = [row(f"{topic}-{i}", f"{words} {i}") for topic, words in enumerate(TOPICS) for i in range(10)]
    picked = chosen(select(rows, "targeted", 10, options=Options(wanted=WANTED)))
    assert [row_id[0] for row_id in picked] == ["1", "3"] * 5


def test_facility_location_serves_all_better_than_chance():
    rng = np.random.default_rng(0)
    vectors = (np.repeat(np.eye(16), 30, axis=0) + 0.1 * rng.normal(size=(480, 16))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    picked = STRATEGIES["facility_location"].choose(Pool([f"{i:03d}" for i in range(480)], 16, lambda: vectors)).picked
    assert len({index // 30 for index in picked}) >= 15


def test_a_strategy_of_the_users_is_found_by_its_path():
    rows = world(20)
    choices = select(rows, f"{__name__}:users_strategy", 2)
    assert chosen(choices) == ["r0019", "r0018"] and choices[0].reason == "not last"
    assert strategy(f"{__name__}:USERS").warning == "mind the gap"


def users_strategy(pool: Pool) -> Ranking:
    """The last rows by id: what a user might write."""
    ranking = Ranking("not last")
    for index in reversed(range(len(pool.ids) - pool.size, len(pool.ids))):
        ranking.take(index, None, "last")
    return ranking


USERS = Strategy(users_strategy, warning="mind the gap")


def test_near_duplicates_are_left_out_though_there_be_room():
    rows = [*world(30), row("z", TOPICS[0] + " please and thank you all")]
    rows += [row("zz", TOPICS[0] + " please and thank you all now")]
    choices = select(rows, "diversity", 100, options=Options(near=0.8))
    assert choices[-1].reason == "near-duplicate of row z (similarity 0.92)" and choices[-2].chosen
    assert all(choice.chosen for choice in select(rows, "diversity", 100))


def test_a_strategy_that_picks_noise_warns():
    samples = [{"messages": one["messages"]} for one in world(30)]
    with pytest.warns(UserWarning, match="'k_center': it picks what is strange"):
        assert len(CoresetSelector("k_center", 5).select(samples)) == 5


def test_noise_is_hardly_chosen_by_diversity_and_hybrid_but_by_k_center():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, 32))
    vectors = np.concatenate([centres[rng.integers(40, size=1960)] + 0.4 * rng.normal(size=(1960, 32)), 2 * rng.normal(size=(40, 32))])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    losses = [*rng.normal(1, 0.2, size=1960), *rng.normal(3, 0.5, size=40)]
    pool = Pool([f"{i:04d}" for i in range(2000)], 100, lambda: vectors, losses=losses)
    noise = {
        name: np.mean(np.array(STRATEGIES[name].choose(pool).picked) >= 1960) for name in ("diversity", "hybrid", "k_center", "loss_topk")
    }
    assert noise["diversity"] <= 0.01 and noise["hybrid"] <= 0.01
    assert noise["k_center"] > 0.2 and noise["loss_topk"] == 0.4, "what the warning says"


def test_the_largest_of_a_line_are_found_by_folding():
    values = np.random.default_rng(0).normal(size=(50, 2100)).astype(np.float32)
    assert np.array_equal(np.sort(largest(values, 5)), np.sort(values)[:, -5:])
    assert np.array_equal(np.sort(largest(values[:, :40], 5)), np.sort(values[:, :40])[:, -5:])


def test_a_row_is_no_neighbour_of_itself_and_the_strange_are_alone():
    vectors = np.eye(8, dtype=np.float32)
    assert not neighbourhood(vectors, 0).any()
    crowd = np.tile(np.eye(8, dtype=np.float32)[0], (200, 1))
    crowd[[3, 70]] = np.eye(8, dtype=np.float32)[[1, 2]]
    assert {3, 70} <= set(outliers(crowd, 0, keep=10).tolist()) and len(outliers(crowd, 0, keep=199)) == 1


def test_a_space_places_a_text_the_same_with_others_or_alone():
    texts = [f"{TOPICS[i % 4]} {i}" for i in range(50)]
    space = fit(texts)
    assert np.array_equal(space.vectors(texts)[7:8], space.vectors(texts[7:8])) and not space.vectors(["zzz", ""]).any()
    assert fit([]).vectors(["a"]).shape == fit(["", ""]).vectors(["a"]).shape == (1, 1)


def test_tools_and_tasks_of_the_chosen_are_counted():
    rows = [row(f"r{i}", "x", name=f"tool{i % 3}", arguments="{}") | {"task_key": f"t{i // 2}"} for i in range(6)]
    choices = select(rows[:1], "random", 1)
    assert covered(rows, choices) == {"tools": (1, 3), "tasks": (1, 3)}


def test_losses_are_a_real_models_on_the_assistants_tokens(tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM

    from agent_pipeline.training.encoding import encode_row
    from agent_pipeline.training.templates import load_tokenizer
    from agent_pipeline_tests.tiny import make_tiny_base

    monkeypatch.setenv("AGENT_PIPELINE_CACHE", str(tmp_path / "cache"))
    base = make_tiny_base(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(base)
    samples = [{"messages": one["messages"]} for one in world(6)]
    samples.append({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "word " * 3000}]})
    selector = CoresetSelector("loss_topk", 2)
    found = selector.compute_losses(samples, model)
    assert found[-1] is None, "what does not fit has no loss, never 0"
    tokenizer, _ = load_tokenizer(base)
    for sample, loss in zip(samples[:-1], found, strict=False):
        encoded = encode_row(tokenizer, {"tools": [], "row_id": "r", "session_id": "s", **sample}, 2048).encoded
        with torch.no_grad():
            plain = model(torch.tensor([encoded.input_ids]), labels=torch.tensor([encoded.labels])).loss.item()
        assert loss == pytest.approx(plain, abs=1e-4)
    assert selector.compute_losses(samples, base) == pytest.approx(found, abs=1e-4), "the same from its folder"
    with pytest.warns(UserWarning, match="picks what is strange"):
        hardest = selector.select(samples, model)
    assert sorted(found[samples.index(sample)] for sample in hardest) == sorted(found[:-1])[-2:]
