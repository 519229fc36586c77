"""Seeded draws that keep their proportions."""

from collections.abc import Mapping
from datetime import date, timedelta
from random import Random
from typing import TypeVar

T = TypeVar("T")

DEFAULT_SEED = 7
"""The seed of the committed sample."""

FIRST_DAY = date(2026, 3, 2)
"""A Monday: the sample's sessions fall on the working days of the four weeks after it."""


def stream(*names: object) -> Random:
    """An independent random stream for each purpose, so that a change in one place does not
    reshuffle all the others.
    """
    return Random("/".join(map(str, names)))


def deck(weights: Mapping[T, float], size: int, rng: Random) -> list[T]:
    """`size` values in the proportions of `weights` (largest remainders), shuffled.

    Unlike independent draws, the shares come out the same for every seed: a knob set to 10 % is 10
    %.
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
    """One of the sample's twenty working days."""
    week, weekday = rng.randrange(4), rng.randrange(5)
    return FIRST_DAY + timedelta(weeks=week, days=weekday)
