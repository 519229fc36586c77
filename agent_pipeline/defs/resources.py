"""What assets are given: the store to read, the lake to write, the settings in force."""

import os
from dataclasses import fields

import dagster as dg

from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.judging import Labels, labels_signature, read_labels
from agent_pipeline.judging.client import Endpoint, Limits, LlmClient, Night
from agent_pipeline.judging.llm import LlmJudge, read_rubric
from agent_pipeline.judging.versions import StoreVersions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sources import TraceSource
from agent_pipeline.storage.lake import Lake


class Workspace(dg.ConfigurableResource):
    """The user's settings, read when a run starts."""

    def settings(self) -> Settings:
        """The settings in force; raises SettingsError."""
        return load_settings()

    def open_store(self) -> TraceSource:
        """The reader of the session store, or of all of them as one; raises StoreError, SettingsError."""
        return self.settings().open_store()

    def open_lake(self) -> Lake:
        """The lake of the settings; raises SettingsError."""
        return self.settings().open_lake()

    def labels(self, key: PartitionKey) -> Labels:
        """People's judgments of an agent's sessions; raises SettingsError."""
        settings = self.settings()
        path, agent = settings.labels_path(key), settings.agents.get(str(key))
        return read_labels(path, key, own=bool(agent and agent.labels)) if path else Labels()

    def store_signature(self, source: TraceSource) -> str:
        """A cheap text that changes whenever the store or the labels may have changed."""
        return "|".join([source.signature(), *map(labels_signature, self.settings().labels_paths)])

    def versions(
        self, source: TraceSource, seconds: float | None = None, after: int = 0
    ) -> StoreVersions:
        """The data versions of the store's partitions (`seconds` and `after` as in StoreVersions); raises SettingsError, DataError."""
        settings = self.settings()
        name = hash_json(list(map(str, settings.stores)))[:16]
        return StoreVersions(source, self.open_lake(), name, settings.labels_path, seconds, after)

    def open_judge(self, limits: Limits, night: str = "") -> LlmJudge:
        """The language model that judges, to be entered as a context, in a run of the `night` of that name; raises SettingsError."""
        settings = self.settings()
        judge = settings.judge.checked()
        same = judge.model_dump(include={each.name for each in fields(Endpoint)})
        endpoint = Endpoint(
            judge.endpoint, api_key=os.environ.get(judge.api_key_variable, ""), **same
        )
        rubric = read_rubric(settings.rubric_path) if settings.rubric_path else ""
        together = Limits(
            settings.night.judge_requests, settings.night.judge_tokens, settings.night.judge_usd
        )
        client = LlmClient(
            endpoint,
            limits,
            settings.cache_path / "judge.sqlite",
            Night(night, together) if night else None,
        )
        return LlmJudge(client, rubric, max_characters=judge.max_characters)
