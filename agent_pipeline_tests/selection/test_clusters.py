"""Structure in a cloud of vectors."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from agent_pipeline.selection.clusters import (
    apportion,
    cluster,
    find_farthest,
    find_outliers,
    measure_nearest,
    measure_neighbourhood,
)


def cloud(n: int, d: int, seed: int, unit: bool = True) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if unit else vectors


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 60))
def test_a_quota_is_shared_out_exactly(room, total):
    shares = apportion(total, room)
    assert sum(shares) == min(total, sum(room)) and all(
        0 <= share <= most for share, most in zip(shares, room, strict=True)
    )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 60), st.integers(1, 6), st.integers(0, 99), st.integers(0, 70), st.integers(1, 3)
)
def test_each_pick_is_the_row_farthest_from_all_before_and_no_place_is_picked_twice(
    n, d, seed, count, given_rows
):
    vectors = cloud(n, d, seed)
    vectors[n // 2 :] = (
        vectors[: n - n // 2].copy() if seed % 3 == 0 else vectors[n // 2 :]
    )  # with rows that are equal
    taken = list(range(min(given_rows, n)))
    for row, distance in find_farthest(vectors, count, taken):
        exact = np.linalg.norm(vectors.astype(np.float64)[:, None] - vectors[taken], axis=2).min(
            axis=1
        )
        assert (
            row not in taken
            and abs(exact[row] - distance) < 2e-3
            and exact.max() - exact[row] < 2e-3
        )
        taken.append(row)
    if len(taken) < min(given_rows, n) + count:
        assert np.linalg.norm(vectors[:, None] - vectors[taken], axis=2).min(axis=1).max() < 3e-3, (
            "places were left though rows were far"
        )


def test_the_distance_to_the_nearest_is_the_plain_one():
    vectors = cloud(500, 6, 3, unit=False)
    plain = np.linalg.norm(vectors[:, None] - vectors[None, :40], axis=2).min(axis=1)
    assert np.allclose(measure_nearest(vectors, vectors[:40]), plain, atol=2e-3)


def test_neither_clusters_nor_neighbours_depend_on_the_number_of_threads():
    vectors = cloud(9000, 16, 1)

    def found(threads: int) -> tuple:
        with threadpool_limits(threads):
            return (
                np.concatenate(cluster(vectors, 30, 0)),
                measure_neighbourhood(vectors, 0),
                measure_nearest(vectors, vectors[:40]),
            )

    assert all(map(np.array_equal, found(1), found(2)))


def test_a_neighbourhood_is_the_mean_similarity_to_the_five_nearest_others():
    vectors = cloud(60, 5, 2)
    similar = vectors @ vectors.T - 9 * np.eye(60)
    assert np.allclose(
        measure_neighbourhood(vectors, 0), np.sort(similar)[:, -5:].mean(axis=1), atol=2e-5
    )


def test_a_row_is_no_neighbour_of_itself_and_the_strange_are_alone():
    vectors = np.eye(8, dtype=np.float32)
    assert not measure_neighbourhood(vectors, 0).any()
    crowd = np.tile(np.eye(8, dtype=np.float32)[0], (200, 1))
    crowd[[3, 70]] = np.eye(8, dtype=np.float32)[[1, 2]]
    assert {3, 70} <= set(find_outliers(crowd, 0, keep=10).tolist()) and len(
        find_outliers(crowd, 0, keep=199)
    ) == 1
