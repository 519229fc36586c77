"""The asset `multi_task_dataset`: rows of several agents, mixed by the setting `[mixing]`."""

from collections.abc import Sequence

import dagster as dg

from agent_pipeline.config.assets import MultiTaskConfig
from agent_pipeline.datasets.multi_task import MIXED_TABLE, MixedRows, build_multi_task
from agent_pipeline.datasets.sft_tables import HELDOUT_TABLE, SFT_TABLE
from agent_pipeline.datasets.splits import SPLITS
from agent_pipeline.defs.datasets.datasets import near_check, result, split_check
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import table
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import asset_options
from agent_pipeline.keys import PartitionKey, parse_key

_FROM_ALL = [
    dg.AssetDep(table, partition_mapping=dg.AllPartitionMapping())
    for table in (SFT_TABLE, HELDOUT_TABLE)
]


@dg.asset(
    **asset_options(
        "datasets",
        {"parquet", "dataset"},
        options=MultiTaskConfig,
        partitions=None,
        checks=[split_check(MIXED_TABLE, partitions=None)],
    ),
    deps=_FROM_ALL,
)
def multi_task_dataset(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """One row per conversation of several agents, to train one model on all of them.

    The setting `[mixing]` sets each agent's share. Each row keeps its split. If a row is held out
    for one agent, it is not a training row of another agent.
    """
    with user_errors():
        config = in_force(context, workspace, MultiTaskConfig)
        lake, mixing = workspace.open_lake(), workspace.settings().mixing
        known = sorted(
            parse_key(key) for key in context.instance.get_dynamic_partitions(AGENTS.name or "")
        )
        built = build_multi_task(
            lake, known, mixing.weights, mixing.strategy, mixing.seed, mixing.total, config
        )
        mix, missing = built.mixed, built.agents_without_rows
        if missing:
            context.log.warning(
                f"{len(missing)} agents have no {SFT_TABLE}, so the other agents get their share: "
                f"{_named(missing)}."
            )
        more = {
            "proportions": _proportions(mix),
            "too_few_rows": {
                agent: share.shortfall for agent, share in mix.shares.items() if share.shortfall
            },
            "without_an_sft_dataset": _named(missing) or "none",
            "mixing": mixing.model_dump(),
        }
        return result(workspace, None, built.dataset, config, more)


def _proportions(mix: MixedRows) -> dg.MetadataValue:
    """Return one line per agent with its wanted share, its actual share, and its rows by split."""
    total = sum(share.taken for share in mix.shares.values())
    head = ["agent", "wanted", "real", "rows to train on", "asked for", "too few", *SPLITS]
    return table(
        head,
        (
            [agent, f"{share.share:.2%}", f"{share.taken / total:.2%}"]
            + [
                f"{count:,}"
                for count in (
                    share.available,
                    share.asked,
                    share.shortfall,
                    *(mix.splits[agent][split] for split in SPLITS),
                )
            ]
            for agent, share in mix.shares.items()
        ),
    )


def _named(keys: Sequence[PartitionKey], most: int = 20) -> str:
    return ", ".join(map(str, keys[:most])) + (
        f" and {len(keys) - most} more" if len(keys) > most else ""
    )


@dg.asset_check(asset=multi_task_dataset)
def no_held_out_row_of_an_agent_is_nearly_a_training_row_of_any(
    workspace: dg.ResourceParam[Workspace],
) -> dg.AssetCheckResult:
    """Passes if no held-out conversation of an agent is nearly equal to a training conversation of
    any agent (80 % of the words, by MinHash). If the check fails, set `task_pattern` so that both
    conversations get the same task."""
    return near_check(workspace, MIXED_TABLE, None)
