"""Replay: exact ratios, uniform buffers."""

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from agent_pipeline.errors import SettingsError
from agent_pipeline.selection.buffer import (
    OnlineContinualLearner,
    count_replayed,
    draw_replay,
    keep_bottom_k,
    parse_ratio,
    spread_replayed,
    update_buffer,
)


def rows(count: int, start: int = 0) -> list[dict]:
    return [{"session_id": f"s{i}", "n": i} for i in range(start, start + count)]


def learner(ratio: float = 0.25, size: int = 50, seen: int = 200) -> OnlineContinualLearner:
    made = OnlineContinualLearner(size, ratio)
    made.update_buffer(rows(seen))
    return made


@pytest.mark.parametrize(
    ("ratio", "batch", "replayed"),
    [(0.25, 6, 2), (0.25, 30, 10), (0.5, 8, 8), (0.1, 9, 1), (0.0, 5, 0), (0.9, 2, 18)],
)
def test_the_ratio_is_exact_in_every_batch_that_can_have_it(ratio, batch, replayed):
    made = learner(ratio)
    for _ in range(20):
        mixed = made.mix_with_replay(rows(batch, 1000))
        assert mixed[:batch] == rows(batch, 1000) and len(mixed) == batch + replayed
        assert len({row["n"] for row in mixed}) == len(mixed), "a row came twice in a batch"


@given(st.floats(0, 0.95), st.lists(st.integers(0, 9), max_size=30))
def test_any_run_of_batches_is_exact_to_less_than_a_row(ratio, sizes):
    made = learner(ratio, 20)
    new = replayed = 0
    for size in sizes:
        before = replayed
        replayed += len(made.mix_with_replay(rows(size, 1000))) - size
        new += size
        wanted = new * ratio / (1 - ratio)
        assert wanted - 1 - 1e-3 < replayed <= wanted + 1e-3
        assert abs(replayed - before - size * ratio / (1 - ratio)) < 1 + 1e-3


def test_an_empty_buffer_replays_nothing_and_a_small_one_repeats():
    made = OnlineContinualLearner()
    assert (made.buffer_size, made.replay_ratio, made.selection_strategy) == (
        2048,
        0.25,
        "reservoir",
    )
    assert made.mix_with_replay(rows(12)) == rows(12)
    made.update_buffer(rows(2))
    counts = Counter(row["n"] for row in made.mix_with_replay(rows(15, 100))[15:])
    assert sum(counts.values()) == 5 and set(counts) == {0, 1} and max(counts.values()) == 3
    made.clear_buffer()
    assert made.mix_with_replay(rows(12)) == rows(12) and made.seen == 0


def test_samples_are_distinct_and_never_more_than_there_are():
    made = learner(size=10)
    assert len({row["n"] for row in made.get_replay_samples(6)}) == 6
    assert len(made.get_replay_samples(99)) == 10 and made.get_replay_samples(-1) == []


def test_every_row_is_as_likely_to_be_kept():
    counts: Counter[int] = Counter()
    for seed in range(1500):
        made = OnlineContinualLearner(10, seed=seed)
        for start in range(0, 50, 10):
            made.update_buffer(rows(10, start))
        assert len(made.buffer) == 10 and made.seen == 50
        counts.update(row["n"] for row in made.buffer)
    assert chisquare([counts[n] for n in range(50)]).pvalue > 0.001


@given(
    st.lists(st.integers(0, 30), max_size=60), st.integers(1, 12), st.integers(0, 3), st.randoms()
)
def test_the_choice_by_hash_is_idempotent_order_free_and_mergeable(
    ids, size, seed, rng: random.Random
):
    # Two versions of a session may differ; which one is kept must not depend on order either.
    seen = [{"session_id": f"s{i}", "version": place % 2} for place, i in enumerate(ids)]
    found = keep_bottom_k(seen, size, seed)
    assert keep_bottom_k([*seen, *seen, *found], size, seed) == found
    shuffled = rng.sample(seen, len(seen))
    assert keep_bottom_k(shuffled, size, seed) == found
    cut = rng.randint(0, len(seen))
    assert (
        keep_bottom_k(
            [*keep_bottom_k(seen[:cut], size, seed), *keep_bottom_k(seen[cut:], size, seed)],
            size,
            seed,
        )
        == found
    )
    assert len(found) == min(size, len(set(ids)))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"buffer_size": 0}, "buffer_size. of replay is 0"),
        ({"replay_ratio": 1.0}, "replay_ratio` is 1.0"),
        ({"replay_ratio": float("nan")}, "replay_ratio` is nan"),
        ({"replay_ratio": 0.99999999}, "replay_ratio` is 0.99999999"),
        ({"selection_strategy": "newest"}, "selection_strategy. 'newest' of replay"),
    ],
)
def test_mistakes_are_said(asked, says):
    with pytest.raises(SettingsError, match=says):
        OnlineContinualLearner(**asked)


@given(st.integers(1, 400), st.integers(0, 400), st.integers(1, 40))
def test_replayed_rows_are_spread_so_that_every_run_of_rows_has_its_share_to_less_than_a_row(
    new, replayed, size
):
    places = spread_replayed(new, replayed)
    assert places.count(True) == replayed and len(places) == new + replayed
    share = Fraction(replayed, new + replayed)
    for start in range(max(len(places) - size, 0)):
        assert abs(sum(places[start : start + size]) - size * share) < 1


@given(st.integers(0, 5000), st.floats(0, 0.99))
def test_the_share_that_is_due_is_never_exceeded_and_one_row_more_would(new, ratio):
    ratio = parse_ratio(ratio)
    count = count_replayed(new, ratio)
    assert count <= ratio * (new + count) and count + 1 > ratio * (new + count + 1)


def sft(session: int | str, text: str = "", task: str = "") -> dict:
    """A training row of a session."""
    said = [
        {"role": "user", "content": text or f"do {session}"},
        {"role": "assistant", "content": f"done {session}"},
    ]
    return {
        "row_id": f"s{session}",
        "session_id": f"s{session}",
        "content_sha256": f"{session}",
        "task_key": task,
        "messages": said,
    }


def night(
    before: list[dict],
    table: list[int],
    chosen: list[int],
    dropped: set[int] = frozenset(),
    size: int = 2048,
):
    """The buffer after a night whose store has the sessions of `table`, and `dropped` ones that curation does not keep."""
    current = {f"s{n}": sft(n) for n in table}
    met = {f"s{n}" for n in [*table, *dropped]}
    updated = update_buffer(
        before,
        current,
        [f"s{n}" for n in chosen],
        met,
        lambda row: row["task_key"] == "tested",
        size,
    )
    return updated.rows, updated.counts


def test_a_buffer_remembers_what_was_trained_on_also_when_the_store_does_not():
    first, counts = night([], list(range(10)), list(range(6)))
    assert {row["session_id"] for row in first} == {f"s{n}" for n in range(6)} and counts == {
        "new": 6
    }
    second, counts = night(first, list(range(3, 12)), [3, 4, 10, 11])
    assert {row["session_id"] for row in second} == {f"s{n}" for n in (0, 1, 2, 3, 4, 5, 10, 11)}
    assert counts == {
        "new": 2,
        "of earlier nights": 3,
        "of earlier nights, gone from the store": 3,
    }
    assert night(second, list(range(3, 12)), [3, 4, 10, 11])[0] == second


def test_what_is_dropped_or_held_out_now_is_let_go_and_counted():
    first, _ = night([], list(range(6)), list(range(6)))
    first[0]["task_key"] = "tested"
    session = int(first[0]["session_id"][1:])
    bad = (session + 1) % 6
    rows, counts = night(first, [], [], dropped={bad})
    assert {row["session_id"] for row in rows} == {f"s{n}" for n in range(6)} - {
        f"s{session}",
        f"s{bad}",
    }
    assert counts["removed: held out"] == 1 and counts["removed: no longer a training row"] == 1
    assert counts.total() == 6


def test_a_session_that_changed_is_remembered_as_it_is_now():
    first, _ = night([], [1, 2], [1, 2])
    changed = {"s1": sft(1, "do 1 and more")}
    rows = update_buffer(first, changed, [], {"s1", "s2"}, lambda row: False, 10).rows
    assert [row["messages"][0]["content"] for row in rows] == ["do 1 and more"]


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40))), max_size=6),
    st.integers(0, 12),
)
def test_after_any_nights_the_buffer_is_the_lowest_hashes_of_all_that_were_trained_on(nights, size):
    buffer: list[dict] = []
    trained: dict[str, dict] = {}
    for table, picks in nights:
        chosen = sorted(table & picks)
        before = buffer
        buffer, counts = night(before, sorted(table), chosen, size=size)
        trained |= {f"s{n}": sft(n) for n in chosen}
        assert buffer == keep_bottom_k(trained.values(), size)
        assert counts.total() == len(
            {row["session_id"] for row in before} | {f"s{n}" for n in chosen}
        )
        assert night(buffer, sorted(table), chosen, size=size)[0] == buffer


def test_a_draw_has_none_of_the_new_rows_and_as_many_as_the_ratio_asks():
    buffer = [sft(n) for n in range(60)]
    training = [sft(n) for n in range(40, 85)]
    drawn = draw_replay(buffer, training, 0.1, lambda row: False)
    assert (drawn.wanted, len(drawn.rows), drawn.candidates) == (5, 5, 40) and drawn.got == 0.1
    assert not {row["session_id"] for row in drawn.rows} & {row["session_id"] for row in training}
    assert drawn.left_out == {"among the new rows": 20}
    assert draw_replay(buffer[::-1], training[::-1], 0.1, lambda row: False).rows == drawn.rows
    other = draw_replay(buffer, [*training, sft(99)], 0.1, lambda row: False)
    assert {row["session_id"] for row in other.rows} != {row["session_id"] for row in drawn.rows}, (
        "every night the same rows"
    )


def test_a_draw_leaves_out_what_another_row_stands_for_and_what_is_held_out():
    twin, double = sft("twin", "do 1"), [sft("a", "same"), sft("b", "same")]
    twin["messages"][1]["content"] = "done 1"
    for row in double:
        row["messages"][1]["content"] = "same"
    tested = sft("tested", task="tested")
    buffer = [twin, *double, tested, sft("like"), sft("old")]
    drawn = draw_replay(buffer, [sft(1)], 0.9, lambda row: row["task_key"] == "tested", {"slike"})
    assert sorted(row["session_id"] for row in drawn.rows) == ["sa", "sold"]
    assert drawn.left_out == {"an equal row is replayed or new": 3, "held out": 1}
    assert drawn.report()["could_not_be_had"] == 7 and "7 rows are missing" in drawn.describe()


def test_a_first_night_and_a_ratio_of_zero_replay_nothing_and_say_so():
    rows = [sft(n) for n in range(20)]
    first = draw_replay(rows, rows, 0.1, lambda row: False)
    assert first.rows == [] and first.describe().startswith("nothing is replayed, because all rows")
    assert first.report()["could_not_be_had"] == 2 and first.got == 0
    assert (
        draw_replay(rows, rows[:9], 0.0, lambda row: False).describe()
        == "nothing is replayed, because replay_ratio is 0"
    )
    assert (
        draw_replay(rows, rows[:8], 0.1, lambda row: False)
        .describe()
        .endswith("10.0% of the rows is less than one row")
    )
