"""The jobs: all assets of one agent, the dataset of several agents, and comparing methods."""

import dagster as dg

from agent_pipeline.defs.asset_keys import OWN_ASSETS

RETRAIN, MIX, COMPARE = "retrain", "mix", "compare_methods"

_OF_ALL_AGENTS = OWN_ASSETS & dg.AssetSelection.key_substring("multi_task_dataset")
_COMPARISON = OWN_ASSETS & dg.AssetSelection.key_substring("method_comparison")

retrain = dg.define_asset_job(
    RETRAIN,
    executor_def=dg.in_process_executor,
    selection=OWN_ASSETS - _OF_ALL_AGENTS - _COMPARISON,
    # A run whose process was killed makes its tables again, in seconds; models that are there are
    # reused.
    tags={"dagster/retry_strategy": "ALL_STEPS"},
    description="Runs every asset of one agent, from its sessions to the served model. The "
    "schedule `nightly` starts this job.",
)

mix = dg.define_asset_job(
    MIX,
    executor_def=dg.in_process_executor,
    selection=_OF_ALL_AGENTS,
    description=(
        "Builds one dataset from the rows of several agents. The setting [mixing] sets the share "
        "of each agent."
    ),
)

compare_methods = dg.define_asset_job(
    COMPARE,
    executor_def=dg.in_process_executor,
    selection=_COMPARISON,
    description=(
        "Trains a model of one agent with several methods, and reports which method is better, "
        "and what each method costs."
    ),
)
