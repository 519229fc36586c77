"""The chain of an agent's trainings: imitation, a teacher, preferences, rewards. Its last adapter is the candidate, which is exported."""

from collections.abc import Collection, Sequence
from typing import get_args

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline.training.config import PREFERENCES, Step

STEPS: tuple[Step, ...] = get_args(Step)
SKIPPED = "skipped"
"""In the report of a step that trained nothing: the reason."""


def adapter_of(step: Step) -> str:
    """The asset of a step of the chain."""
    return f"{step}_adapter"


def uses_of(chain: Collection[Step]) -> set[str]:
    """The `use` of the sessions that a chain trains on."""
    return {"positive", "negative"} if PREFERENCES.keys() & set(chain) else {"positive"}


def checked_chain(steps: list[Step]) -> list[Step]:
    """The chain itself.

    Raises:
        ValueError: it does not begin with sft, names a step twice, or has another order than `STEPS`.
    """
    if steps != [step for step in STEPS if step in steps] or "sft" not in steps:
        raise ValueError(f"it must begin with sft, and keep the order {', '.join(STEPS)}")
    return steps


def candidate(lake: Lake, key: PartitionKey, chain: Sequence[Step]) -> Artifact:
    """The adapter of the last step that trained something.

    Raises:
        DataError: a step was never materialized, or was trained from another adapter than the one before it now is.
    """
    last = lake.latest(adapter_of(chain[0]), key)
    for step in chain[1:]:
        adapter = lake.latest(adapter_of(step), key)
        if adapter.manifest["made_from"]["reference"] != last.identity:
            raise DataError(
                f"The {adapter.asset} {adapter.identity[:16]} of {key} was trained from another adapter than the {last.asset} "
                f"{last.identity[:16]}: materialize {adapter.asset} again."
            )
        if SKIPPED not in adapter.manifest["report"]:
            last = adapter
    return last


def trained_adapters(lake: Lake, key: PartitionKey, identity: str) -> list[Artifact]:
    """Return an adapter by its identity, after the adapters that it was trained on from. The list is empty if it was deleted.

    Raises:
        DamageError: an adapter is damaged.
    """
    for step in STEPS:
        if adapter := lake.find_undamaged(adapter_of(step), key, identity):
            before = adapter.manifest["made_from"].get("reference")
            return [*(trained_adapters(lake, key, before) if before else ()), adapter]
    return []


def template_used(adapters: Sequence[Artifact]) -> str:
    """Which chat template adapters that were trained one on another speak, and why that one; empty where their reports do not say."""
    return adapters[0].manifest["report"].get("template", {}).get("why", "") if adapters else ""
