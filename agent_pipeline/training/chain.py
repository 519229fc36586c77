"""The chain of an agent's training steps: imitation, a teacher's answers, preferences, and rewards.

The last adapter of the chain is the candidate, which is evaluated and exported. How a step trains
belongs to `sft`, `preference_steps` and `on_policy_steps`.
"""

from collections.abc import Collection, Sequence
from typing import get_args

from agent_pipeline.errors import DataError, name_asset_to_select
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline.training.config import PREFERENCES, Step
from agent_pipeline.training.report import SkippedReport, read_step_report, read_training_report

STEPS: tuple[Step, ...] = get_args(Step)
"""All training steps, in the order in which a chain runs them."""


def name_adapter_asset(step: Step) -> str:
    """Return the name of the asset that a training step makes."""
    return f"{step}_adapter"


def find_session_uses(chain: Collection[Step]) -> set[str]:
    """Return the `use` of the sessions on which a chain trains."""
    return {"positive", "negative"} if PREFERENCES.keys() & set(chain) else {"positive"}


def check_chain(steps: list[Step]) -> list[Step]:
    """Check that the steps of a chain are in a valid order, and return the chain.

    Raises:
        ValueError: the chain does not begin with sft, names a step twice, or has another order than
            `STEPS`.
    """
    if steps != [step for step in STEPS if step in steps] or "sft" not in steps:
        raise ValueError(f"begin it with sft, and keep the order {', '.join(STEPS)}")
    return steps


def find_candidate(lake: Lake, key: PartitionKey, chain: Sequence[Step]) -> Artifact:
    """Return the adapter of the last training step that trained an adapter.

    Raises:
        DataError: a step was never materialized, or its adapter was trained from another adapter
            than the latest one of the step before; or a report is of an older version and cannot be
            read.
    """
    last = lake.latest(name_adapter_asset(chain[0]), key)
    for step in chain[1:]:
        adapter = lake.latest(name_adapter_asset(step), key)
        if adapter.manifest["made_from"]["reference"] != last.identity:
            raise DataError(
                f"The {adapter.asset} {adapter.identity[:16]} of {key} was trained from another "
                f"adapter than the {last.asset} {last.identity[:16]}: materialize "
                f"`{name_asset_to_select(adapter.asset)}` again."
            )
        if not isinstance(read_step_report(adapter), SkippedReport):
            last = adapter
    return last


def find_trained_adapters(lake: Lake, key: PartitionKey, identity: str) -> list[Artifact]:
    """Return an adapter and the adapters that it was trained from, in the order of training.

    The list is empty if the adapter is gone.

    Raises:
        DamageError: An adapter is damaged. A damaged adapter must not count as one that never
            existed.
    """
    for step in STEPS:
        adapter = lake.find_undamaged(name_adapter_asset(step), key, identity)
        if adapter is None:
            continue
        reference = adapter.manifest["made_from"].get("reference")
        earlier_adapters = find_trained_adapters(lake, key, reference) if reference else []
        return [*earlier_adapters, adapter]
    return []


def describe_used_template(adapters: Sequence[Artifact]) -> str:
    """Return which chat template the adapters of a chain use, and why.

    The text is empty if the report of the first adapter does not name the template.
    """
    if not adapters:
        return ""
    return read_training_report(adapters[0]).template_reason
