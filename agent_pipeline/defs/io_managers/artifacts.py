"""The IO manager of artifacts, which stores a pointer to the directory that an asset built."""

from dataclasses import dataclass

import dagster as dg

from agent_pipeline.config.settings import load_settings
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.io_managers.held import HoldingIOManager
from agent_pipeline.defs.metadata import table, tree
from agent_pipeline.governance.lineage import made_of
from agent_pipeline.keys import parse_key
from agent_pipeline.storage.lake import Artifact


@dataclass(frozen=True)
class ArtifactChain:
    """The artifacts of an asset that runs several training steps.

    Attributes:
        artifacts: One artifact per step, in the order of the steps.
        last: The artifact that later assets use.
    """

    artifacts: tuple[Artifact, ...]
    last: Artifact


class ArtifactIOManager(HoldingIOManager):
    """An IO manager that makes each stored artifact the latest of its partition, and loads it."""

    def handle_output(
        self, context: dg.OutputContext, obj: Artifact | ArtifactChain | None
    ) -> None:
        if obj is None:  # an agent without a world has no episodes
            return
        artifacts = obj.artifacts if isinstance(obj, ArtifactChain) else (obj,)
        with user_errors():
            lake = load_settings().open_lake()
            for artifact in artifacts:
                lake.set_latest(artifact, who=f"run {context.run_id}")
        if isinstance(obj, ArtifactChain):
            obj = obj.last
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
