"""The one job: the whole graph of a partition, from its sessions to its model."""

import dagster as dg

RETRAIN = "retrain"

retrain = dg.define_asset_job(
    RETRAIN,
    selection=dg.AssetSelection.all(),
    description="Everything of one agent: read, judge, curate, build datasets, select, train, evaluate, export.",
)
