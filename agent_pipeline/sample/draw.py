"""Seeded random draws with exact proportions, and the seed and the days of the sample."""

from collections.abc import Mapping
from datetime import date, timedelta
from random import Random
from typing import TypeVar

T = TypeVar("T")

DEFAULT_SEED = 7
"""The seed of the committed sample."""

FIRST_DAY = date(2026, 3, 2)
"""A Monday. The sample's sessions are on the working days of the four weeks that begin on it."""


def stream(*names: object) -> Random:
    """Return an independent random stream for the given names.

    Each purpose has its own stream, so that a change in one place does not change all other draws.
    """
    return Random("/".join(map(str, names)))


def deck(weights: Mapping[T, float], size: int, rng: Random) -> list[T]:
    """Return `size` shuffled values in the proportions of `weights` (largest remainders).

    The proportions are the same for every seed, unlike those of independent draws: a weight of 10 %
    gives exactly 10 % of the values.

    Args:
        weights: The weight of each value.
        size: The number of values to return.
        rng: The random stream for the order.
    """
    total = sum(weights.values())
    shares = {value: size * weight / total for value, weight in weights.items()}
    counts = {value: int(share) for value, share in shares.items()}
    by_remainder = sorted(shares, key=lambda value: counts[value] - shares[value])
    for value in by_remainder[: size - sum(counts.values())]:
        counts[value] += 1
    cards = [value for value, count in counts.items() for _ in range(count)]
    rng.shuffle(cards)
    return cards


def working_day(rng: Random) -> date:
    """Return a random working day within the sample's four weeks."""
    week, weekday = rng.randrange(4), rng.randrange(5)
    return FIRST_DAY + timedelta(weeks=week, days=weekday)
