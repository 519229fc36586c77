"""Model directories: what is stored is the pointer to the complete directory that the asset built."""

import dagster as dg

from agent_pipeline.config.settings import load_settings
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.io_managers.held import HoldingIOManager
from agent_pipeline.defs.metadata import table, tree
from agent_pipeline.governance.lineage import made_of
from agent_pipeline.keys import parse_key
from agent_pipeline.storage.lake import Artifact


class ArtifactIOManager(HoldingIOManager):
    """Makes an `Artifact` its partition's latest, and loads the latest."""

    def handle_output(self, context: dg.OutputContext, obj: Artifact | None) -> None:
        if obj is None:  # an agent without a world has no episodes
            return
        with user_errors():
            load_settings().open_lake().set_latest(obj, who=f"run {context.run_id}")
        files = obj.manifest["files"]
        context.add_output_metadata(
            {
                "path": dg.MetadataValue.path(str(obj.path)),
                "identity": obj.identity,
                "made_of": tree(made_of(obj.manifest), ["made of", "value"]),
                "files": table(
                    ["file", "bytes"],
                    ([name, f"{file['bytes']:,}"] for name, file in files.items()),
                ),
                "size_bytes": sum(file["bytes"] for file in files.values()),
            }
        )

    def load_input(self, context: dg.InputContext) -> Artifact:
        with user_errors():
            return (
                load_settings()
                .open_lake()
                .latest(context.asset_key.path[-1], parse_key(context.asset_partition_key))
            )
