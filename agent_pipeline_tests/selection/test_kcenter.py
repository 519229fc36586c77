"""The fast farthest-point selection is the plain one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.selection import blocks
from agent_pipeline.selection.clusters import nearest_distance
from agent_pipeline.selection.kcenter import farthest


def plain(vectors: np.ndarray, count: int, chosen: list[int]) -> tuple[list[int], list[float]]:
    """The loop of the textbook, in float64."""
    vectors = vectors.astype(np.float64)
    picks, radii = [], []
    if not chosen:
        picks.append(int(np.square(vectors - vectors.mean(axis=0)).sum(axis=1).round(6).argmin()))
        radii.append(0.0)
    near = np.square(vectors[:, None] - vectors[chosen or picks]).sum(axis=2).min(axis=1)
    while len(picks) < count and near.max() > 1e-5:
        picks.append(int(near.argmax()))
        radii.append(float(np.sqrt(near.max())))
        near = np.minimum(near, np.square(vectors - vectors[picks[-1]]).sum(axis=1))
    return picks, radii


def cloud(n: int, d: int, seed: int, unit: bool = True) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if unit else vectors


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 99), st.booleans(), st.integers(1, 70), st.integers(0, 3))
def test_it_picks_what_the_plain_loop_picks(n, d, seed, unit, count, given_rows):
    vectors = cloud(n, d, seed, unit)
    vectors[n // 2 :] = vectors[: n - n // 2].copy() if seed % 3 == 0 else vectors[n // 2 :]  # with rows that are equal
    chosen = list(range(min(given_rows, n)))
    picks, radii = farthest(vectors, count, chosen)
    wanted_picks, wanted = plain(vectors, count, chosen)
    assert len(set(picks)) == len(picks) and not set(picks) & set(chosen)
    assert abs(len(picks) - len(wanted_picks)) <= (0 if min(wanted[1:], default=1) > 0.01 else n)
    assert np.allclose(radii[: len(wanted)], wanted[: len(radii)], atol=2e-3)


@pytest.mark.parametrize("unit", [True, False])
def test_rounds_and_pools_change_nothing(unit, monkeypatch):
    vectors = cloud(6000, 12, 5, unit)
    monkeypatch.setattr("agent_pipeline.selection.kcenter.POOL", 50)
    picks, radii = farthest(vectors, 300)
    wanted_picks, wanted = plain_fast(vectors, 300)
    assert np.allclose(radii, wanted, atol=1e-3) and len(set(picks) & set(wanted_picks)) >= 295


def plain_fast(vectors: np.ndarray, count: int) -> tuple[list[int], list[float]]:
    picks, radii = plain(vectors, 1, [])
    near = np.square(vectors - vectors[picks[0]]).sum(axis=1)
    for _ in range(count - 1):
        picks.append(int(near.argmax()))
        radii.append(float(np.sqrt(near.max())))
        near = np.minimum(near, np.square(vectors - vectors[picks[-1]]).sum(axis=1))
    return picks, radii


def test_the_picks_do_not_depend_on_the_number_of_threads(monkeypatch):
    vectors = cloud(20_000, 16, 1)
    found = farthest(vectors, 200)
    monkeypatch.setattr(blocks, "cores", lambda: 1)
    assert farthest(vectors, 200) == found


def test_equal_rows_are_never_both_picked():
    vectors = np.repeat(cloud(5, 8, 0), 10, axis=0)
    picks, radii = farthest(vectors, 50)
    assert sorted(pick // 10 for pick in picks) == [0, 1, 2, 3, 4] and min(radii[1:]) > 0


def test_nothing_to_pick_from_gives_nothing():
    assert farthest(np.zeros((0, 4)), 3) == ([], []) and farthest(cloud(3, 2, 0), 0) == ([], [])


def test_the_distance_to_the_nearest_is_the_plain_one():
    vectors = cloud(500, 6, 3, unit=False)
    plain_distance = np.linalg.norm(vectors[:, None] - vectors[None, :40], axis=2).min(axis=1)
    assert np.allclose(nearest_distance(vectors, vectors[:40]), plain_distance, atol=2e-3)
