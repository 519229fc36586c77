"""Strategies by name: ours, those of installed packages (entry points of the group `agent_pipeline.strategies`), and dotted paths."""

import importlib
from importlib.metadata import entry_points

from agent_pipeline.errors import SettingsError
from agent_pipeline.selection import strategies as ours
from agent_pipeline.selection.pool import Strategy

ENTRY_POINTS = "agent_pipeline.strategies"

NOISE = "it picks what is strange: with 2 % of noise in the rows, half to nine tenths of its picks were noise; 'diversity' sets noise aside"

STRATEGIES: dict[str, Strategy] = {
    "hybrid": Strategy(ours.hybrid, needs_losses=True),
    "diversity": Strategy(ours.diversity),
    "loss_topk": Strategy(ours.loss_topk, needs_losses=True, warning=NOISE),
    "random": Strategy(ours.random_rows),
    "loss_band": Strategy(ours.loss_band, needs_losses=True),
    "k_center": Strategy(ours.k_center, warning=NOISE),
    "hybrid_classic": Strategy(ours.hybrid_classic, needs_losses=True, warning=NOISE),
    "facility_location": Strategy(ours.facility_location),
    "deita": Strategy(ours.deita),
    "longest": Strategy(ours.longest),
    "targeted": Strategy(ours.targeted, needs_wanted=True),
}


def strategy(name: str) -> Strategy:
    """The strategy of a name: one of ours, an entry point's, or `package.module:function` (a `Strategy`, or a function of a `Pool`).

    Raises:
        SettingsError: there is none, or it cannot be loaded.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    points = entry_points(group=ENTRY_POINTS)
    dotted = next((point.value for point in points if point.name == name), name)
    module, colon, attribute = dotted.partition(":")
    if not colon:
        known = ", ".join([*STRATEGIES, *sorted(points.names)])
        raise SettingsError(f"There is no coreset strategy '{name}': choose one of {known}, or give package.module:function.")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # what another's module raises when it is imported
        raise SettingsError(
            f"The coreset strategy '{name}' cannot be loaded ({type(error).__name__}: {error}): correct its path."
        ) from error
    if isinstance(found, Strategy):
        return found
    if not callable(found):
        raise SettingsError(f"The coreset strategy '{name}' is a {type(found).__name__}, no function of a Pool.")
    return Strategy(found)
