"""Model directories: what is stored is the pointer to the complete directory that the asset built."""

import dagster as dg

from agent_pipeline.config.settings import load_settings
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.governance.lineage import made_of
from agent_pipeline.keys import parse_key
from agent_pipeline.storage.lake import Artifact, Lake


class ArtifactIOManager(dg.ConfigurableIOManager):
    """Makes an `Artifact` its partition's current one, and loads the current one."""

    lake: str = ""

    def handle_output(self, context: dg.OutputContext, obj: Artifact) -> None:
        with user_errors():
            self._lake().set_current(obj)
        files = obj.manifest["files"]
        context.add_output_metadata(
            {
                "path": dg.MetadataValue.path(str(obj.path)),
                "identity": obj.identity,
                "made_of": dg.MetadataValue.json(made_of(obj.manifest)),
                "files": dg.MetadataValue.json({name: file["bytes"] for name, file in files.items()}),
                "size_bytes": sum(file["bytes"] for file in files.values()),
            }
        )

    def load_input(self, context: dg.InputContext) -> Artifact:
        with user_errors():
            return self._lake().current(context.asset_key.path[-1], parse_key(context.asset_partition_key))

    def _lake(self) -> Lake:
        settings = load_settings()
        return Lake(self.lake or settings.lake_url, settings.cache_path)
