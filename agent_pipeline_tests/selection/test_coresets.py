"""What every strategy promises, and what each one does."""

import tracemalloc
from collections import namedtuple
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection import coresets, embeddings
from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.clusters import measure_coverage
from agent_pipeline.selection.coresets import CoresetOptions, build_coreset
from agent_pipeline.selection.embeddings import embed, format_conversation
from agent_pipeline.selection.pool import DESCRIPTIONS, Pool, Ranking, Reason, Strategy
from agent_pipeline.selection.strategies import STRATEGIES, load_strategy
from agent_pipeline.selection.tables import CORESET
from agent_pipeline.storage.lake import Lake

TOPICS = (
    "flight delay refund airline seat",
    "pizza oven dough cheese basil",
    "python traceback import module pip",
    "rent lease tenant deposit key",
)


def row(row_id: str, text: str, system: str = "You help.", **call: str) -> dict:
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": text},
        {"role": "assistant", "content": "Done."},
    ]
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
    return {row["row_id"]: i % 17 / 10 for i, row in enumerate(rows)}


Choice = namedtuple("Choice", CORESET.names)


def select(
    rows: list[dict], strategy: str, size: int, seed: int = 0, losses=None, **options
) -> list[Choice]:
    options = CoresetOptions(strategy=strategy, target_size=size, seed=seed, **options)
    return [
        Choice(**each)
        for each in coresets.select(Candidates.of(lambda: rows), options, losses).index.to_pylist()
    ]


def chosen(choices: list[Choice]) -> list[str]:
    return [
        choice.row_id for choice in sorted((c for c in choices if c.chosen), key=lambda c: c.rank)
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_strategy_keeps_its_promises(strategy, data):
    texts = data.draw(
        st.lists(
            st.sampled_from([f"{topic} {i}" for topic in TOPICS for i in range(6)]),
            min_size=1,
            max_size=40,
        )
    )
    rows = [
        row(f"r{i}", text) | {"score": data.draw(st.floats(0, 1) | st.none())}
        for i, text in enumerate(texts)
    ]
    losses = {each["row_id"]: data.draw(st.floats(0, 5) | st.none()) for each in rows}
    stands = min(
        rows, key=lambda each: (9 if each["score"] is None else -each["score"], each["row_id"])
    )
    losses[stands["row_id"]] = 1.0
    size, seed = data.draw(st.integers(1, 45)), data.draw(st.integers(0, 3))
    choices = select(rows, strategy, size, seed, losses)

    assert choices == select(data.draw(st.permutations(rows)), strategy, size, seed, losses)
    assert [choice.row_id for choice in choices] == sorted(each["row_id"] for each in rows)
    assert all(
        choice.reason in DESCRIPTIONS and (choice.rank is not None) == choice.chosen
        for choice in choices
    )
    picked = chosen(choices)
    assert sorted(c.rank for c in choices if c.chosen) == list(range(1, len(picked) + 1))
    if size >= len(rows):
        assert len(picked) == len(rows) and {choice.reason for choice in choices} == {
            Reason.ALL_FIT
        }
        return
    by_id = {each["row_id"]: each for each in rows}
    assert len({format_conversation(by_id[row_id]["messages"]) for row_id in picked}) == len(
        picked
    ), "identical rows were both chosen"
    distinct = [choice.row_id for choice in choices if choice.duplicate_of is None]
    allowed = [
        row_id
        for row_id in distinct
        if not STRATEGIES[strategy].needs_losses or losses[row_id] is not None
    ]
    assert set(picked) <= set(allowed) and (picked or not allowed)
    if strategy != "diversity":
        assert len(picked) <= min(size, len(allowed))
    if strategy in ("random", "loss_topk"):
        assert len(picked) == min(size, len(allowed))


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
    assert (choices["r0001"].score, choices["r0001"].reason) == (3.0, Reason.HIGH_LOSS)
    assert {choices[name].reason for name in ("r0002", "r0003", "r0009")} == {Reason.NO_LOSS}
    assert choices["r0007"].reason == Reason.NOT_PICKED
    assert len(chosen(select(rows, "loss_topk", 9, losses=losses))) == 3


def test_diversity_takes_more_of_the_rare_topics_than_chance():
    rng = np.random.default_rng(0)
    rows = [
        row(f"{topic}-{i:03d}", " ".join(rng.choice(words.split(), 8)))
        for topic, (words, n) in enumerate(zip(TOPICS, (80, 4, 4, 4), strict=True))
        for i in range(n)
    ]
    topics = {
        name: np.mean(
            [
                len({row_id[0] for row_id in chosen(select(rows, name, 8, seed))})
                for seed in range(8)
            ]
        )
        for name in ("diversity", "random")
    }
    assert topics["diversity"] > topics["random"] + 1


def test_diversity_sets_aside_what_stands_alone_in_a_large_set():
    rows = [*world(150), row("zz", "qwxz vbnmk plorf")]
    alone = {
        choice.row_id for choice in select(rows, "diversity", 20) if choice.reason == Reason.OUTLIER
    }
    assert "zz" in alone and len(alone) == int(151 * 0.03)


def test_diversity_covers_better_than_chance_and_a_random_choice_as_chance_does():
    rows = sorted(world(300), key=lambda row: row["row_id"])
    vectors = embed([format_conversation(row["messages"]) for row in rows])

    def gain(strategy: str, size: int, seed: int) -> float:
        return measure_coverage(
            vectors,
            [i for i, choice in enumerate(select(rows, strategy, size, seed)) if choice.chosen],
        ).gain

    assert 0.02 < gain("diversity", 30, 0) < 1 and abs(gain("random", 30, 99)) < 0.1
    assert set(vars(measure_coverage(vectors, range(300))).values()) == {0.0}


def test_hybrid_takes_its_share_by_loss_and_the_rest_as_typical():
    rows = world(90)  # below a hundred rows none is an outlier
    for ratio, hard in ((0.6, 24), (1.0, 40), (0.0, 0)):
        reasons = [
            choice.reason
            for choice in select(rows, "hybrid", 40, losses=losses_of(rows), loss_ratio=ratio)
            if choice.chosen
        ]
        assert (reasons.count(Reason.HIGH_LOSS), reasons.count(Reason.TYPICAL)) == (hard, 40 - hard)


def test_hybrid_prefers_harder_rows_than_chance():
    rows = world(300)
    losses = losses_of(rows)
    means = {
        name: np.mean([losses[i] for i in chosen(select(rows, name, 60, losses=losses))])
        for name in ("hybrid", "random", "loss_topk")
    }
    assert means["random"] + 0.2 < means["hybrid"] < means["loss_topk"]


def test_an_absurd_loss_counts_no_more_than_the_95th_percentile():
    # Words that only differ in case have one embedding, and are not identical.
    rows = [
        row(f"r{i:03d}", "".join(c.upper() if i >> k & 1 else c for k, c in enumerate(TOPICS[0])))
        for i in range(60)
    ]
    losses = {one["row_id"]: 1.0 for one in rows} | {
        "r050": 1e9,
        "r010": 2.0,
        "r011": 2.0,
        "r012": 2.0,
        "r013": 2.0,
    }
    # All are the same text, so nothing but loss and id decides; capped, the absurd one stands behind its equals.
    assert chosen(select(rows, "hybrid", 4, losses=losses, loss_ratio=1.0)) == [
        "r010",
        "r011",
        "r012",
        "r013",
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_score_sets_no_row_aside_that_curation_kept(strategy):
    rows = [each | {"score": 0.0} for each in world(60)]
    assert len(chosen(select(rows, strategy, 15, losses=losses_of(rows)))) == 15


def test_system_prompt_and_tools_do_not_place_a_row_but_arguments_do():
    texts = [
        format_conversation(one["messages"])
        for one in (
            row("a", "hi", system="X"),
            row("b", "hi", system="Y"),
            row("c", "hi", name="f", arguments='{"city": "Oslo"}'),
        )
    ]
    assert texts[0] == texts[1] == "hi\nDone." and "Oslo" in texts[2]
    vectors = embed([*texts, ""])
    assert (
        (vectors[0] == vectors[1]).all()
        and (vectors[0] != vectors[2]).any()
        and not vectors[3].any()
    )
    assert vectors.dtype == np.float32 and np.allclose(
        np.linalg.norm(vectors[:3], axis=1), 1, atol=1e-3
    )


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"strategy": "best"}, SettingsError),
        ({"target_size": 0}, SettingsError),
        ({"loss_ratio": 1.5}, SettingsError),
        ({"near_duplicates": 1.5}, SettingsError),
        ({"strategy": "no.such:thing"}, SettingsError),
        ({"strategy": "agent_pipeline.selection.pool:LOSS_RATIO"}, SettingsError),
        ({"strategy": "loss_topk"}, DataError),
        ({"strategy": "hybrid"}, DataError),
    ],
)
def test_mistakes_are_errors_of_the_user(asked, error):
    with pytest.raises(error):
        coresets.select(
            Candidates.of(lambda: world(9)),
            CoresetOptions(**({"strategy": "random", "target_size": 2} | asked)),
        )


def test_two_rows_of_one_id_are_refused_and_no_rows_give_no_choices():
    with pytest.raises(DataError):
        select([row("a", "x"), row("a", "y"), row("b", "z")], "random", 2)
    assert select([], "random", 5) == []


def test_random_takes_of_every_tool_its_share():
    rows = [row(f"a{i:02d}", f"x{i}", name="find", arguments=str(i)) for i in range(60)]
    rows += [row(f"b{i:02d}", f"y{i}", name="pay", arguments=str(i)) for i in range(20)]
    for seed in range(3):
        picked = chosen(select(rows, "random", 8, seed))
        assert sorted(row_id[0] for row_id in picked) == ["a"] * 6 + ["b"] * 2


def test_a_strategy_of_the_users_is_found_by_its_path():
    choices = select(world(20), f"{__name__}:users_strategy", 2)
    assert chosen(choices) == ["r0019", "r0018"] and (choices[0].reason, choices[-1].reason) == (
        "not_last",
        "last",
    )
    assert load_strategy(f"{__name__}:USERS").warning == "mind the gap"


def users_strategy(pool: Pool) -> Ranking:
    """The last rows by id: what a user might write."""
    ranking = Ranking("not_last")
    for index in reversed(range(len(pool.ids) - pool.size, len(pool.ids))):
        ranking.take(index, None, "last")
    return ranking


USERS = Strategy(users_strategy, warning="mind the gap")


def test_near_duplicates_are_left_out_though_there_be_room_and_name_the_row_that_stands():
    rows = [*world(30), row("z", TOPICS[0] + " please and thank you all")]
    rows += [row("zz", TOPICS[0] + " please and thank you all now")]
    *_, first, second = select(rows, "diversity", 100, near_duplicates=0.8)
    assert first.chosen and (second.reason, second.duplicate_of) == (Reason.NEAR_DUPLICATE, "z")
    assert second.similarity == pytest.approx(11 / 12, abs=1e-3)
    assert all(choice.chosen for choice in select(rows, "diversity", 100))


def test_noise_is_hardly_chosen_by_diversity_and_hybrid():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, 32))
    vectors = np.concatenate(
        [
            centres[rng.integers(40, size=1960)] + 0.4 * rng.normal(size=(1960, 32)),
            2 * rng.normal(size=(40, 32)),
        ]
    )
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    losses = [*rng.normal(1, 0.2, size=1960), *rng.normal(3, 0.5, size=40)]
    pool = Pool([f"{i:04d}" for i in range(2000)], 100, lambda: vectors, losses=losses)
    noise = {
        name: np.mean(np.array(STRATEGIES[name].choose(pool).picked) >= 1960)
        for name in ("diversity", "hybrid", "loss_topk")
    }
    assert noise["diversity"] <= 0.01 and noise["hybrid"] <= 0.01 and noise["loss_topk"] == 0.4, (
        "what the warning says"
    )


def test_a_text_is_placed_the_same_whatever_the_order_and_without_words_nowhere():
    texts = [f"{TOPICS[i % 4]} {i}" for i in range(50)]
    assert (
        np.array_equal(embed(texts)[::-1], embed(texts[::-1]))
        and not embed([*texts, "..."])[-1].any()
    )
    assert embed([]).shape == (0, 1) and embed(["", "..."]).shape == (2, 1)


def test_of_many_texts_some_fit_the_space_which_does_not_depend_on_their_order(monkeypatch):
    monkeypatch.setattr(embeddings, "MAX_FITTED", 20)
    monkeypatch.setattr(embeddings, "CHUNK", 7)
    texts = [f"{TOPICS[i % 4]} {i}" for i in range(50)]
    vectors = embed(texts)
    assert (
        np.array_equal(vectors[::-1], embed(texts[::-1]))
        and vectors.any(axis=1).all()
        and vectors.shape[1] < 20
    )


def test_memory_holds_no_texts_of_the_rows_that_are_chosen_from(tmp_path):
    def read():
        return (row(f"r{i:03d}", f"{i} " * 5000) for i in range(300))

    lake, key = Lake(str(tmp_path)), PartitionKey("shop", "support")
    tracemalloc.start()
    made = build_coreset(
        read, lake, key, CoresetOptions(strategy="random", target_size=20), "tfidf", Mock()
    )
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.chosen == 20 and most < 2_000_000, "all texts have 6 MB"


def test_tools_and_tasks_of_the_chosen_are_counted_and_nothing_is_embedded_for_a_figure(tmp_path):
    rows = [
        row(f"r{i}", "x", name=f"tool{i % 3}", arguments=f'{{"n": {i}}}')
        | {"task_key": f"t{i // 2}"}
        for i in range(6)
    ]

    def never(*given):
        raise AssertionError("nobody asked for this")

    lake, key = Lake(str(tmp_path)), PartitionKey("shop", "support")
    made = build_coreset(
        lambda: rows, lake, key, CoresetOptions(strategy="random", target_size=2), "tfidf", never
    )
    assert (
        made.tools == (2, 3) and made.tasks[1] == 3 and made.chosen == 2 and made.coverage is None
    )
    everything = build_coreset(lambda: rows, lake, key, CoresetOptions(), "tfidf", never)
    assert everything.reasons == {Reason.ALL_FIT: 6} and not everything.had_to_choose
