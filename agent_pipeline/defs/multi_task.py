"""The asset `multi_task_dataset`: the SFT rows of several agents, mixed by the weights of the settings; it has no partition."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import dagster as dg

from agent_pipeline.config.assets import MultiTaskConfig
from agent_pipeline.datasets.mixing import MixerConfig
from agent_pipeline.datasets.multi_task import (
    ASSET,
    MULTI_TASK,
    SOURCE,
    Mix,
    candidates,
    candidates_of_mixed,
    crossing,
    mix,
    mixed_rows,
    weights_of,
)
from agent_pipeline.datasets.splits import SPLITS, overlaps
from agent_pipeline.defs.datasets import Output, near_check
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import asset_options
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.storage.lake import Lake

_FROM_ALL = dg.AssetDep(SOURCE, partition_mapping=dg.AllPartitionMapping())


@dg.asset(**asset_options("datasets", {"parquet", "dataset"}, options=MultiTaskConfig) | {"partitions_def": None}, deps=[_FROM_ALL])
def multi_task_dataset(context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
    """Conversations of several agents to train one model on, in the proportions of the settings (`[mixing]`); each names its agent.

    A row stays on its side of the split. What two agents have in common, and what one of them holds out, is not trained on.
    """
    with user_errors():
        config = in_force(context, workspace, MultiTaskConfig)
        lake, settings = workspace.open_lake(), workspace.settings().mixing
        known = sorted(parse_key(key) for key in context.instance.get_dynamic_partitions(AGENTS.name or ""))
        weights = weights_of(known, settings.weights)
        keys = [key for key, weight in weights.items() if weight]
        if not keys:
            raise SettingsError(f"[mixing] gives none of the {len(known)} known agents a weight above 0: give weights, as {{'*' = 1}}.")
        missing = [key for key in keys if not lake.has(SOURCE, key)]
        if len(missing) == len(keys):
            raise DataError(f"None of {_named(keys)} has an {SOURCE}: materialize {SOURCE} of the agents that are to be mixed first.")
        if missing:
            context.log.warning(
                f"{len(missing)} of {len(keys)} agents have no {SOURCE}, their share goes to the others: {_named(missing)}."
            )
        counts = Counter(agents=len(keys), agents_without_a_weight=len(known) - len(keys), agents_without_an_sft_dataset=len(missing))
        mixer = MixerConfig(
            {str(key): weights[key] for key in keys}, settings.strategy, seed=settings.seed, total_samples=settings.total or None
        )
        found = {key: [] if key in missing else list(candidates(lake, key)) for key in keys}
        made = mix(found, mixer, counts)
        return _written(context, workspace, lake, config, made, counts, [key for key in keys if key not in missing], missing)


def _written(
    context: dg.AssetExecutionContext,
    workspace: Workspace,
    lake: Lake,
    config: MultiTaskConfig,
    made: Mix,
    counts: Counter[str],
    agents: Sequence[PartitionKey],
    missing: Sequence[PartitionKey],
) -> dg.MaterializeResult:
    mixing = workspace.settings().mixing
    more: dict[str, Any] = {
        "proportions": dg.MetadataValue.md(_proportions(made)),
        "too_few_rows": {agent: share.shortfall for agent, share in made.shares.items() if share.shortfall},
        "without_an_sft_dataset": _named(missing) or "none",
        "mixing": mixing.model_dump(),
    }
    weights = ", ".join(f"{name} = {weight:g}" for name, weight in mixing.weights.items())
    filters = [
        f"training rows mixed by the strategy {mixing.strategy}, weights {weights}",
        "rows that another agent has on a side that is held out more are left out; equal conversations are taken once",
    ]
    output = Output(ASSET, MULTI_TASK, "messages", "Conversations of several agents, to imitate.", "text-generation", config)
    rows = mixed_rows(lake, made.taken)
    return output.written(context, workspace, rows, counts, None, filters, config.format, lambda: more, agents)


def _proportions(made: Mix) -> str:
    """A line an agent: its share as wanted and as it came out, of what, and how many rows it gave to each side."""
    total = sum(share.taken for share in made.shares.values())
    lines = ["| agent | wanted | real | rows to train on | asked for | too few | train | select | test |", "|---|" + "---:|" * 8]
    for agent, share in made.shares.items():
        sides = " | ".join(f"{made.sides[agent][split]:,}" for split in SPLITS)
        real = f"{share.taken / total:.2%}"
        lines.append(f"| `{agent}` | {share.share:.2%} | {real} | {share.available:,} | {share.asked:,} | {share.shortfall:,} | {sides} |")
    return "\n".join(lines)


def _named(keys: Sequence[PartitionKey], most: int = 20) -> str:
    return ", ".join(map(str, keys[:most])) + (f" and {len(keys) - most} more" if len(keys) > most else "")


@dg.asset_check(asset=multi_task_dataset, blocking=True)
def nothing_of_any_agent_stands_on_two_sides_of_the_split(workspace: dg.ResourceParam[Workspace]) -> dg.AssetCheckResult:
    """No session, no task and no exact text is on two sides, in one agent or in two; nor what two agents were asked in the same words."""
    with user_errors():
        every = list(candidates_of_mixed(workspace.open_lake()))
        found = overlaps(
            {
                "session_id": f"{each.key}:{each.session_id}",
                "task_key": each.task_key,
                "content_sha256": each.text.hex(),
                "split": each.split,
            }
            for each in every
        )
        found["request"] = [each.row_id for each in crossing(every)["asked"]]
    return dg.AssetCheckResult(
        passed=not any(found.values()), metadata={name: ", ".join(values[:20]) or "none" for name, values in found.items()}
    )


@dg.asset_check(asset=multi_task_dataset)
def no_held_out_row_of_an_agent_is_nearly_a_training_row_of_any(workspace: dg.ResourceParam[Workspace]) -> dg.AssetCheckResult:
    """No row is nearly the same (four words in five, by MinHash) as a row of a side before its own, of the same agent or another."""
    return near_check(workspace, ASSET, None)
