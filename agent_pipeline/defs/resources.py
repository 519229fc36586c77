"""The Dagster resource of the assets: the settings, the session store, and the lake."""

import os
from dataclasses import fields

import dagster as dg

from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.judging import Labels, read_labels
from agent_pipeline.judging.labels import compute_labels_signature
from agent_pipeline.judging.llm_client import Endpoint, LlmClient, NightlyLimits, SpendLimits
from agent_pipeline.judging.llm_judge import LlmJudge, read_rubric
from agent_pipeline.judging.store_versions import StoreVersions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sources import TraceSource
from agent_pipeline.storage.lake import Lake


def read_labels_of_agent(settings: Settings, key: PartitionKey) -> Labels:
    """Return people's judgments of an agent's sessions.

    Raises:
        SettingsError: the labels cannot be read.
    """
    path, agent = settings.labels_path(key), settings.agents.get(str(key))
    return read_labels(path, key, is_own_file=bool(agent and agent.labels)) if path else Labels()


class Workspace(dg.ConfigurableResource):
    """The user's settings, read when a run starts."""

    def settings(self) -> Settings:
        """Return the current settings.

        Raises:
            SettingsError: a setting is wrong.
        """
        return load_settings()

    def open_store(self) -> TraceSource:
        """Return the reader of the session store, or of several stores as one.

        Raises:
            StoreError: a store cannot be read.
            SettingsError: a reader does not exist.
        """
        return self.settings().open_store()

    def open_lake(self) -> Lake:
        """Return the lake that the settings name.

        Raises:
            SettingsError: the lake's address is wrong.
        """
        return self.settings().open_lake()

    def labels(self, key: PartitionKey) -> Labels:
        """Return people's judgments of an agent's sessions.

        Raises:
            SettingsError: the labels cannot be read.
        """
        return read_labels_of_agent(self.settings(), key)

    def store_signature(self, source: TraceSource) -> str:
        """Return a text that changes whenever the store or the labels may have changed."""
        return "|".join(
            [source.signature(), *map(compute_labels_signature, self.settings().labels_paths)]
        )

    def versions(
        self, source: TraceSource, seconds: float | None = None, after: int = 0
    ) -> StoreVersions:
        """Return the data versions of the store's partitions.

        Args:
            source: The reader of the store.
            seconds: The time after which reading stops; None means no limit.
            after: The number of a reading of the store; only later changes are returned.

        Raises:
            SettingsError: the labels cannot be read.
            DataError: the record of the versions is damaged.
        """
        settings = self.settings()
        name = hash_json(list(map(str, settings.stores)))[:16]
        return StoreVersions(source, self.open_lake(), name, settings.labels_path, seconds, after)

    def open_judge(self, limits: SpendLimits, night: str = "") -> LlmJudge:
        """Return the language model that judges sessions, as a context manager.

        Args:
            limits: The limits of the run.
            night: The name of the night that the run belongs to, whose limits hold too.

        Raises:
            SettingsError: the judge's settings are wrong.
        """
        settings = self.settings()
        judge = settings.judge.checked()
        same = judge.model_dump(include={field.name for field in fields(Endpoint)})
        endpoint = Endpoint(
            judge.endpoint, api_key=os.environ.get(judge.api_key_variable, ""), **same
        )
        rubric = read_rubric(settings.rubric_path) if settings.rubric_path else ""
        night_limits = SpendLimits(
            settings.night.judge_requests, settings.night.judge_tokens, settings.night.judge_usd
        )
        client = LlmClient(
            endpoint,
            limits,
            settings.cache_path / "judge.sqlite",
            NightlyLimits(night, night_limits) if night else None,
        )
        return LlmJudge(client, rubric, max_characters=judge.max_characters)
