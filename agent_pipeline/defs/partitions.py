"""The one partitions definition: a dynamic dimension whose keys are `project/agent`."""

import dagster as dg

from agent_pipeline.keys import PartitionKey, parse_key

AGENTS = dg.DynamicPartitionsDefinition(name="agent_pipeline_project_agent")


def agent_key(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> PartitionKey:
    """The run's partition, checked again: the UI lets anybody add any key."""
    return parse_key(context.partition_key)
