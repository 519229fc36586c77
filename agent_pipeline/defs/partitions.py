"""The partitions definition: one dynamic dimension whose keys are `project/agent`."""

import dagster as dg

from agent_pipeline.errors import PartitionError
from agent_pipeline.keys import PartitionKey, parse_key

AGENTS = dg.DynamicPartitionsDefinition(name="agent_pipeline_project_agent")


def agent_key(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> PartitionKey:
    """Return the run's partition key after validating it, because anybody can add a key in the UI.

    Raises:
        PartitionError: the run has no partition, or a malformed one.
    """
    if not context.has_partition_key:
        raise PartitionError(
            "This run has no partition: choose an agent (project/agent) in the launchpad, and "
            "launch it again."
        )
    return parse_key(context.partition_key)
