"""Assets of the stage `datasets`: curated sessions in the formats that trainers read."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import dagster as dg

from agent_pipeline.config.assets import KtoConfig, PreferenceConfig, SftConfig, ShareGptConfig
from agent_pipeline.datasets.build import (
    BuiltDataset,
    build_kto,
    build_preferences,
    build_sft,
    build_sharegpt,
    push_dataset,
)
from agent_pipeline.datasets.preferences import Pairing, explain_missing_pairs
from agent_pipeline.datasets.publishing import FileOptions
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.datasets.sft_tables import HELDOUT_TABLE, SFT_TABLE, read_sft_columns
from agent_pipeline.datasets.splits import (
    MIN_REQUEST_SIMILARITY,
    SPLITS,
    find_empty_splits,
    find_first_request,
)
from agent_pipeline.datasets.verdicts import describe_verdicts
from agent_pipeline.defs.asset_keys import asset_key
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import counts_table, histogram, preview, table
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import (
    asset_options,
    check_result,
    multi_asset_options,
    own_check,
    version,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import Redactor
from agent_pipeline.selection.duplicates import find_near_across_splits
from agent_pipeline.selection.leaks import find_leaks
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.sessions.session import Message

SPLIT_CHECK = "nothing_is_in_two_splits"


def split_check(
    asset: str, partitions: dg.PartitionsDefinition | None = AGENTS
) -> dg.AssetCheckSpec:
    """Return the result of the split check, which an asset runs before it replaces its table."""
    what = (
        "Passes if no session, no task and no text is in more than one split (train, select, "
        "test). If the check fails, the previous version of the table is kept. Give all trials "
        "of a task the same task id."
    )
    return own_check(asset, SPLIT_CHECK, what, blocking=True, partitions=partitions)


_SFT_DESCRIPTIONS = {
    SFT_TABLE: (
        "One row per positive session: a conversation (`messages`, `tools`) that the model "
        "learns to imitate.\n\nThe table has the splits `train` and `select`. The model is "
        "trained only on rows of `train`. DPO, KTO, GRPO and distillation use the rows of "
        "`select` to decide when to stop. The rows of the split `test` are in `heldout_dataset`."
    ),
    HELDOUT_TABLE: (
        "One row per positive session of a held-out task: a conversation (`messages`, `tools`) "
        "on which models are evaluated.\n\nThe table contains the split `test`. No training step "
        "reads this table. The evaluation, the check of the exported model and the episodes use "
        "its rows."
    ),
}


# The assets read the columns and rows that they need themselves, in the order in which they need
# them.
@dg.multi_asset(
    **multi_asset_options(
        SFT_TABLE,
        "datasets",
        {"parquet", "dataset"},
        _SFT_DESCRIPTIONS,
        SftConfig,
        [split_check(table) for table in _SFT_DESCRIPTIONS],
    ),
    deps=["curated_sessions"],
)
def sft_and_heldout_dataset(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> Iterator[dg.MaterializeResult]:
    """Write `sft_dataset` and `heldout_dataset` in one pass over the curated sessions."""
    with user_errors():
        config = in_force(context, workspace, SftConfig)
        built = build_sft(
            workspace.open_lake(),
            agent_key(context),
            workspace.settings().split_sizes,
            config.untrained_turns,
            config,
            config.reasoning,
        )
        classes = {
            f"{split}: {name}": count
            for split, turn_class in built.turn_classes.items()
            for name, count in turn_class.items()
        }
        trained = result(
            workspace,
            agent_key(context),
            built,
            config,
            {"turn_classes": counts_table(classes, "split: class of the turn")},
        )
    assert built.heldout is not None
    yield trained
    yield materialize_table(built.heldout)


@dg.asset(
    **asset_options(
        "datasets",
        {"parquet", "dataset"},
        options=PreferenceConfig,
        checks=[split_check("preference_dataset")],
    ),
    deps=["curated_sessions"],
)
def preference_dataset(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """One row per pair of a good and a bad session of one task, for DPO.

    The two sessions begin with the same messages (`prompt`) and then differ (`chosen`,
    `rejected`).
    """
    with user_errors():
        config = in_force(context, workspace, PreferenceConfig)
        pairing = Pairing(config.strategy, config.min_margin, config.max_pairs_per_case)
        built = build_preferences(
            workspace.open_lake(),
            agent_key(context),
            workspace.settings().split_sizes,
            pairing,
            config,
            config.reasoning,
        )
        more = _lengths(built.length_ratios)
        if not built.table.rows:
            more["why_no_pairs"] = explain_missing_pairs(built.counts)
            context.log.warning(more["why_no_pairs"])
        return result(workspace, agent_key(context), built, config, more)


@dg.asset(
    **asset_options(
        "datasets", {"parquet", "dataset"}, options=KtoConfig, checks=[split_check("kto_dataset")]
    ),
    deps=["curated_sessions", preference_dataset],
)
def kto_dataset(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """One row per judged session: its `prompt`, its `completion` and whether the session is good
    (`label`), for KTO.

    By default, sessions that are part of a preference pair are left out.
    """
    with user_errors():
        config = in_force(context, workspace, KtoConfig)
        lake, key = workspace.open_lake(), agent_key(context)
        built = build_kto(
            lake,
            key,
            workspace.settings().split_sizes,
            config.all_sessions,
            config,
            config.reasoning,
        )
        return result(workspace, key, built, config)


@dg.asset(
    **asset_options(
        "datasets",
        {"parquet", "dataset"},
        options=ShareGptConfig,
        checks=[split_check("sharegpt_dataset")],
    ),
    deps=[SFT_TABLE, HELDOUT_TABLE],
)
def sharegpt_dataset(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """One row per conversation of `sft_dataset` and `heldout_dataset`, in the ShareGPT format.

    The format is for other training tools. Tool calls are `function_call` turns, and tool results
    are `observation` turns.
    """
    with user_errors():
        config = in_force(context, workspace, ShareGptConfig)
        key = agent_key(context)
        built = build_sharegpt(workspace.open_lake(), key, config.alternating, config)
        return result(workspace, key, built, config)


def result(
    workspace: Workspace,
    key: PartitionKey | None,
    built: BuiltDataset,
    files: FileOptions,
    more: dict[str, object] | None = None,
) -> dg.MaterializeResult:
    """Push a dataset to the hub if its `files` settings require it, and return the UI metadata.

    Raises:
        PrivateDataError: it would be pushed, and something private is in it.
        ExportError: the hub refuses it.
    """
    if files.push_to:
        redactor = Redactor(workspace.settings().redaction_options)
        push_dataset(workspace.open_lake(), key, built, files, redactor)
    metadata: dict[str, object] = {"counts": counts_table(built.counts, "what"), **(more or {})}
    metadata |= built.rows_without_form
    if built.moved_tasks is not None:
        metadata["tasks_in_another_split_than_the_settings_would_give"] = built.moved_tasks
    for name, folder in (("jsonl", built.jsonl), ("huggingface", built.huggingface)):
        if folder is not None:
            metadata[name] = dg.MetadataValue.path(str(folder))
    if built.pushed_to is not None:
        metadata["pushed_to"] = dg.MetadataValue.url(built.pushed_to)
    return materialize_table(built, metadata)


def materialize_table(
    built: BuiltDataset, more: dict[str, object] | None = None
) -> dg.MaterializeResult:
    """Return the materialization of a dataset's table, with the result of its split check.

    `more` is metadata besides the figures of the table.
    """
    metadata: dict[str, Any] = {
        "rows": built.table.rows,
        "splits": counts_table(built.splits, "split"),
        "tasks": built.task_count,
        "rows_made_by_a_served_model": built.served_rows,
        **(
            {
                "verdicts": describe_verdicts(built.verdicts),
                "verdicts_by": counts_table(built.verdicts["by"], "judge"),
            }
            if built.verdicts["by"]
            else {}
        ),
        "preview": preview(built.first_rows, built.kind.text),
        "lengths": histogram(
            built.lengths, f"{built.kind.asset}: {built.kind.text} of a row", "bytes of JSON"
        ),
        **(more or {}),
    }
    # One pass writes several tables, so the results name their asset.
    key = asset_key(built.kind.asset)
    check = check_result(True, None, dict.fromkeys(built.overlaps, "none"), SPLIT_CHECK)
    return dg.MaterializeResult(
        asset_key=key,
        value=built.table,
        data_version=version(built.table.sha256),
        metadata=metadata,
        check_results=[check._replace(asset_key=key)],
    )


def _lengths(ratios: Sequence[float]) -> dict[str, Any]:
    """Return how long the chosen answers are, compared with the rejected answers."""
    if not ratios:
        return {}
    return {
        "median_length_of_chosen_by_rejected": round(median(ratios), 3),
        "share_of_pairs_whose_chosen_is_longer": round(
            sum(ratio > 1 for ratio in ratios) / len(ratios), 3
        ),
        "length_ratio": histogram(
            ratios, "length of chosen / length of rejected", "ratio of the agent's characters"
        ),
    }


@dg.asset_check(asset=SFT_TABLE, partitions_def=AGENTS)
def every_split_has_rows(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """Passes if every split whose share is above 0 has rows. If the check fails, log sessions of
    more tasks. The result of the check says how many tasks are needed."""
    with user_errors():
        columns = ["split", "task_key"]
        rows = read_sft_columns(workspace.open_lake(), agent_key(context), columns)
        empty_splits = find_empty_splits(rows, workspace.settings().split_sizes)
        empty = [empty_split.describe() for empty_split in empty_splits]
    return check_result(
        not empty,
        " ".join(empty) or None,
        {"empty_splits": "\n".join(empty) or "none"},
        blocks=False,
    )


@dg.asset_check(asset=SFT_TABLE, partitions_def=AGENTS)
def no_held_out_row_is_nearly_a_training_row(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """Passes if no held-out conversation is nearly equal to a training conversation (80 % of the
    words, by MinHash). If the check fails, set `task_pattern` so that both conversations get the
    same task.
    """
    return near_check(workspace, SFT_TABLE, agent_key(context))


@dg.asset_check(asset=SFT_TABLE, partitions_def=AGENTS)
def no_held_out_request_is_nearly_a_training_request(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """Passes if held-out sessions do not look like further trials of training tasks. The check
    compares the first requests and the session ids. If the check fails, add the name of the task to
    the logged sessions, or set `task_pattern` as the result of the check proposes.
    """
    key = agent_key(context)
    with user_errors():
        leaks = find_leaks(workspace.open_lake(), key)
    near = near_check(workspace, SFT_TABLE, key, MIN_REQUEST_SIMILARITY, find_first_request)
    if not leaks.leaks:
        return near
    head = ["session", "its split", "is a trial of the task of", "of the split"]
    more = {
        "leaked_sessions": len(leaks.leaks),
        "held_out_sessions": leaks.held_out,
        "leaks": table(head, [list(vars(leak).values()) for leak in leaks.leaks[:20]]),
    }
    return check_result(False, leaks.describe(key), {**near.metadata, **more}, blocks=False)


def near_check(
    workspace: Workspace,
    asset: str,
    key: PartitionKey | None,
    alike: float = 0.8,
    part: Callable[[list[Message]], list[Message]] = list,
) -> dg.AssetCheckResult:
    """Return the check that no part of a conversation nearly equals this part in an earlier split.

    The result is a warning with the ids of the first cases. Their texts stay in the lake.

    Args:
        workspace: The lake.
        asset: The dataset.
        key: The agent's partition; None for the dataset of several agents.
        alike: The smallest similarity that counts, from 0 to 1.
        part: Returns the messages of a conversation that are compared.
    """
    with user_errors():
        lake, columns = workspace.open_lake(), ["session_id", "split", "messages"]
        if asset == SFT_TABLE:
            row_count = read_sft_columns(lake, key, ["split"]).num_rows
        else:
            row_count = lake.open(asset, key).metadata.num_rows

        def rows() -> Iterator[DatasetRow]:
            for row in read_dataset_rows(lake, key, SPLITS, asset, columns):
                messages = part(row["messages"])
                if messages:
                    yield {**row, "messages": messages}

        near = find_near_across_splits(rows, alike)
    head = ["session", "its split", "is nearly", "of the split", "similarity"]
    examples = table(
        head,
        [
            [
                pair.session_id,
                pair.split,
                pair.other_session_id,
                pair.other_split,
                f"{pair.similarity:.2f}",
            ]
            for pair in near[:20]
        ],
    )
    metadata = {"near_duplicates": len(near), "rows": row_count, "examples": examples}
    why = None
    if near:
        first = near[0]
        why = (
            f"{len(near)} are nearly equal to a session of another split, such as "
            f"{first.session_id} ({first.split}) and {first.other_session_id} "
            f"({first.other_split}): set task_pattern"
        )
    return check_result(not near, why, metadata, blocks=False)
