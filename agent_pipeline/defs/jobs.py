"""The jobs: the whole graph of a partition, from its sessions to its model; and the mix of all agents, which has no partition."""

import dagster as dg

RETRAIN, MIX = "retrain", "mix"

_OF_ALL_AGENTS = dg.AssetSelection.assets("multi_task_dataset")

retrain = dg.define_asset_job(
    RETRAIN,
    selection=dg.AssetSelection.all() - _OF_ALL_AGENTS,
    description="Everything of one agent: read, judge, curate, build datasets, select, train, evaluate, export.",
)

mix = dg.define_asset_job(MIX, selection=_OF_ALL_AGENTS, description="One data set of several agents, by the weights of the settings.")
