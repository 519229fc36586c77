"""What assets are given: the store to read, the lake to write, the settings in force."""

import dagster as dg

from agent_pipeline.lake import Lake
from agent_pipeline.settings import Settings, load_settings
from agent_pipeline.traces.sources import TraceSource, open_source


class Workspace(dg.ConfigurableResource):
    """The user's settings, read when a run starts; a field that is set here beats them (tests, several workspaces in one instance)."""

    store: str = ""
    lake: str = ""

    def settings(self) -> Settings:
        """The settings in force; raises SettingsError."""
        given = {name: value for name, value in (("store", self.store), ("lake", self.lake)) if value}
        return load_settings(**given)

    def open_store(self) -> TraceSource:
        """The session store's reader; raises StoreError."""
        return open_source(self.settings().store_path)

    def open_lake(self) -> Lake:
        settings = self.settings()
        return Lake(settings.lake_url, settings.cache_path)
