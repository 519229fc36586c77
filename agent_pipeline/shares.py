"""The interval of a share, which any package may compute.

Intervals of differences between models belong to `evaluation.paired`.
"""

from math import sqrt


def wilson(share: float, trials: float, quantile: float) -> tuple[float, float]:
    """Return Wilson's interval (1927) of a share.

    The interval contains the share and lies between 0 and 1.

    Args:
        share: The observed share.
        trials: The (effective) number of trials.
        quantile: The quantile of the normal or the t distribution.
    """
    square = quantile * quantile
    middle = share + square / (2 * trials)
    half = quantile * sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    low, high = ((middle + side) / (1 + square / trials) for side in (-half, half))
    return min(max(0.0, low), share), max(min(1.0, high), share)
