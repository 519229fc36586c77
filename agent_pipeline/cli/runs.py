"""Materializing assets from a shell or a notebook, with the graph and instance of the UI."""

import re
from collections.abc import Sequence

import dagster as dg

from agent_pipeline._compat.dagster import RepositoryAddress, execute_shell_run
from agent_pipeline.cli.instance import WORKSPACE
from agent_pipeline.config.assets import STEP_GROUPS
from agent_pipeline.config.overrides import overrides
from agent_pipeline.config.resolution import fingerprint
from agent_pipeline.config.trust import trust
from agent_pipeline.defs.asset_keys import add_prefix, asset_key
from agent_pipeline.defs.jobs import MIX, RETRAIN
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import config_by_asset, set_tags
from agent_pipeline.defs.runs import LOCATION_TAGS, REPOSITORY, version_tags
from agent_pipeline.defs.worker_client import FRESH_TAG
from agent_pipeline.errors import PartitionError, SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.options import did_you_mean

OPERATORS = ("and", "or", "not")
"""Words in Dagster's selection syntax that are not asset names."""


def materialize(
    defs: dg.Definitions,
    instance: dg.DagsterInstance,
    key: PartitionKey | None,
    select: str = "*",
    settings: Sequence[str] = (),
    fresh: bool = False,
    job_name: str = RETRAIN,
) -> dg.JobExecutionResult:
    """Run the selected assets of a partition in this process.

    The partition becomes known to the instance if the store has it. Without a partition, the assets
    that have no partitions are run, and every partition of the store becomes known.

    Args:
        defs: The Dagster definitions.
        instance: The Dagster instance.
        key: The agent's partition, or None.
        select: The assets, in Dagster's selection syntax.
        settings: Settings of the run, as `asset.setting=value` or `setting=value`.
        fresh: Whether models are made again even if they exist.
        job_name: The name of the job to run, without the prefix.

    Raises:
        PartitionError: the store has no such partition.
        SettingsError: the selection or a setting names something that does not exist.
    """
    workspace = Workspace()
    source = workspace.open_store()
    partitions = source.partitions()
    if key and key not in partitions:
        known = ", ".join(map(str, partitions)) or "none"
        where = ", ".join(map(str, workspace.settings().stores))
        raise PartitionError(f"The store {where} has no partition {key}: it has {known}.")
    workspace.open_lake().prepare()
    instance.add_dynamic_partitions(
        AGENTS.name or "", [str(name) for name in ([key] if key else partitions)]
    )
    job = defs.resolve_job_def(add_prefix(job_name if key else MIX))
    selected = selected_assets(defs, job, select)
    values = overrides(settings, selected)
    trust(values)
    tags = {
        **LOCATION_TAGS,
        **set_tags([f"{asset}.{name}" for asset, group in values.items() for name in group]),
    }
    if (
        key
        and job.name == add_prefix(RETRAIN)
        and selected == {asset.path[-1] for asset in job.asset_layer.executable_asset_keys}
    ):
        version = workspace.versions(source).find_version(key).version
        tags |= version_tags(
            version, fingerprint(workspace.settings(), key, values), source.reader_versions()
        )
    if fresh:
        tags[FRESH_TAG] = "true"
    assets = [asset_key(name) for name in sorted(selected)]
    config = {
        "loggers": {"console": {}},
        "ops": config_by_asset(values),
    }
    return execute_shell_run(
        job,
        instance,
        address=RepositoryAddress(WORKSPACE, REPOSITORY),
        assets=assets,
        partition=str(key) if key else None,
        config=config,
        tags=tags,
    )


def selected_assets(defs: dg.Definitions, job: dg.JobDefinition, select: str) -> set[str]:
    """Return the names of the selected assets.

    A bare name is allowed where Dagster wants `key:name`, and a comma where it wants `or`.

    Raises:
        SettingsError: the selection names something that does not exist, or nothing that can be
            run.
    """
    graph = defs.resolve_asset_graph()
    keys_by_name = {key.path[-1]: key for key in graph.get_all_asset_keys()}
    every = sorted(keys_by_name)
    written = select
    bare_name = re.compile(rf'(?<![\w:"/])({"|".join(every)})(?!\w)')
    select = bare_name.sub(
        lambda match: f'key:"{keys_by_name[match.group()].to_user_string()}"', select
    ).replace(",", " or ")
    try:
        selection = dg.AssetSelection.from_string(select)
        # Assets that one pass writes, such as sft_dataset and heldout_dataset, run together.
        keys = set(selection.required_multi_asset_neighbors().resolve(graph))
    except dg.DagsterError as error:
        words = re.findall(r'(?<![\w:"])(?:key:)?"?([A-Za-z_]\w*)"?(?![\w:(])', written)
        if steps := [word for word in words if word in STEP_GROUPS]:
            raise SettingsError(
                f"{steps[0]!r} cannot be selected, because it is a step of the asset `adapter`: "
                "select `adapter`, and choose its steps with the setting `train`."
            ) from error
        if unknown := [word for word in words if word not in (*every, *OPERATORS)]:
            raise SettingsError(
                f"There is no asset {unknown[0]!r} to select{did_you_mean(unknown[0], every)}"
            ) from error
        raise SettingsError(
            f"Dagster does not understand the selection {written!r}: give assets or groups, such "
            "as 'adapter', '+sft_dataset' or 'group:exports', and join them with 'or'."
        ) from error
    names = {key.path[-1] for key in keys & set(job.asset_layer.executable_asset_keys)}
    if not names:
        having = "without" if job.name == add_prefix(MIX) else "with"
        known = ", ".join(sorted(key.path[-1] for key in job.asset_layer.executable_asset_keys))
        raise SettingsError(
            f"The selection {written!r} contains no asset that can be materialized {having} a "
            f"partition: choose from {known}."
        )
    return names
