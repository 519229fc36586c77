"""A sequential test whose result may be read every night: does the mean of a stream of values
exceed a limit?

An ordinary test has its error rate only if it is made once, at a size that was fixed before. The
test of this module is *always valid*: the chance that it ever raises a false alarm is at most its
error rate, however often and however long somebody looks.

The test bets against the statement "the mean is at most the limit". If the statement is true, no
bet wins on average, so the capital of the gambler seldom becomes large: the chance that it ever
reaches 1 / error is at most the error rate (Ville, Étude critique de la notion de collectif, 1939).
The bets are those of Waudby-Smith and Ramdas (Estimating means of bounded random variables by
betting, Journal of the Royal Statistical Society B 86, 2024). The capital is divided evenly among
gamblers who always bet the same share, so no share has to be chosen (the method of mixtures:
Robbins, Statistical methods related to the law of the iterated logarithm, Annals of Mathematical
Statistics 41, 1970).

Tests that are made once belong to `evaluation.paired`, and so do their intervals.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

_GAMBLERS = np.geomspace(0.02, 0.95, 24)
"""The share of the largest possible bet that each gambler always bets. A share of 1 could lose
everything in one bet.
"""
_STEPS = 14
"""The number of times that the search for a limit halves its interval."""


class SequentialTest(msgspec.Struct, frozen=True):
    """The result of a sequential test of a mean.

    Attributes:
        count: The number of values.
        mean: The mean of the values; None without values.
        p_value: The always-valid p-value of the statement that the mean is at most the limit.
        low: The lower end of the confidence sequence, which holds at all times together.
        high: The upper end of the confidence sequence.
        alarm_after: The number of values after which the statement was rejected; None if it was not
            rejected.
    """

    count: int
    mean: float | None
    p_value: float
    low: float
    high: float
    alarm_after: int | None


def run_sequential_test(values: Sequence[float], limit: float, error: float) -> SequentialTest:
    """Test whether the mean of values between −1 and 1 exceeds a limit.

    The value that comes next must not depend on whether earlier values made the test stop.

    Args:
        values: The values, in the order in which they came.
        limit: The limit, at least 0 and below 1.
        error: The chance of a false alarm, over all times. Each end of the confidence sequence is
            wrong with this chance.

    Raises:
        ValueError: A value is not between −1 and 1.
    """
    stream = np.asarray(values, dtype=float)
    if not (np.abs(stream) <= 1).all():
        raise ValueError("A sequential test needs values from -1 to 1.")
    if not len(stream):
        return SequentialTest(0, None, 1.0, -1.0, 1.0, None)
    capital = log_capital(stream, limit)
    needed = -np.log(error)
    alarms = np.flatnonzero(capital >= needed)
    return SequentialTest(
        count=len(stream),
        mean=float(stream.mean()),
        p_value=float(min(1.0, np.exp(-capital.max()))),
        low=_find_lower_end(stream, needed),
        high=-_find_lower_end(-stream, needed),
        alarm_after=int(alarms[0]) + 1 if len(alarms) else None,
    )


def log_capital(values: np.ndarray, limit: float) -> np.ndarray:
    """Return the logarithm of the gamblers' capital after each value.

    Args:
        values: (values,) Values between −1 and 1.
        limit: The mean against which the gamblers bet, above −1 and at most 1.

    Returns:
        (values,) The logarithms. If the mean of the values is at most the limit, the expected
        capital is at most 1 at all times.
    """
    bets = _GAMBLERS / (1 + limit)  # the worst value, −1, must leave every gambler some capital
    capital = np.cumsum(np.log1p(np.outer(values - limit, bets)), axis=0)
    logarithms: np.ndarray = np.logaddexp.reduce(capital, axis=1) - np.log(len(bets))
    return logarithms


def _find_lower_end(values: np.ndarray, needed: float) -> float:
    """Return the largest mean that is rejected, by halving an interval; −1 if none is rejected.

    Args:
        values: The values.
        needed: The logarithm of the capital that rejects a mean.
    """
    rejected, kept = -1.0, 1.0
    for _ in range(_STEPS):
        middle = (rejected + kept) / 2
        if log_capital(values, middle).max() >= needed:
            rejected = middle
        else:
            kept = middle
    return rejected
