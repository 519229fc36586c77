"""What all assets say of themselves in the same way: group, owner, kinds, tags, code version, partitions, storage."""

from typing import Any

import dagster as dg

from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.run_config import config_fields
from agent_pipeline.options import Options

OWNER = "team:agent-pipeline"
CODE_VERSION = "5"
"""Raise it when the meaning of a stored table or artifact changes: assets of an older version then show as stale."""

TABLES, ARTIFACTS = "tables", "artifacts"

CANDIDATE = "sft_adapter"
"""The asset whose adapter is evaluated and exported: the last one of the training chain."""


def asset_options(stage: str, kinds: set[str], io_manager: str = TABLES, options: type[Options] | None = None) -> dict[str, Any]:
    """The options of a partitioned asset of a stage."""
    return {
        "partitions_def": AGENTS,
        "group_name": stage,
        "owners": [OWNER],
        "kinds": kinds,
        "tags": {"stage": stage},
        "code_version": CODE_VERSION,
        "io_manager_key": io_manager,
        "config_schema": config_fields(options) if options else None,
    }


def version(sha256: str) -> dg.DataVersion:
    """The data version of what has this sha256: two materializations with the same bytes are the same data."""
    return dg.DataVersion(sha256[:16])
