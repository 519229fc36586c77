"""The readiness report on all agents of the stores."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from agent_pipeline.config.assets import AdapterConfig
from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import PipelineError, without_credentials
from agent_pipeline.judging.labels import Labels
from agent_pipeline.judging.llm_client import SpendLimits
from agent_pipeline.judging.llm_judge import LlmJudge
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.readiness.agent_report import (
    NO_PRICES,
    AgentSettingsInForce,
    Prices,
    report_agent,
)
from agent_pipeline.readiness.examination import ExaminationRules, examine
from agent_pipeline.readiness.machine import measure_machine
from agent_pipeline.readiness.report import AgentReport, Readiness
from agent_pipeline.readiness.token_counts import BaseTokens, load_tokens
from agent_pipeline.sources.base import TraceSource
from agent_pipeline.storage.lake import Lake

CACHED_ANSWERS_ONLY = SpendLimits(tokens=1)
"""Limits with which the language model that judges answers from its cache only."""


@dataclass
class Doctor:
    """The examiner of the agents of the stores that the settings name.

    Attributes:
        settings: The settings.
        read_labels: Returns people's labels of an agent.
        open_judge: Returns the language model that judges, within given limits.
        prices: Prices of today's model and of an own model.
        unknown: Files beside the stores that no reader knows.
    """

    settings: Settings
    read_labels: Callable[[PartitionKey], Labels]
    open_judge: Callable[[SpendLimits], LlmJudge]
    prices: Prices = NO_PRICES
    unknown: list[str] = field(default_factory=list)
    _tokens: dict[str, BaseTokens] = field(default_factory=dict)

    def report(self, noting: Callable[[PartitionKey], None] = lambda key: None) -> Readiness:
        """Return the report on all agents and on the machine.

        An agent that cannot be examined is reported with its error.

        Args:
            noting: Is called before each agent is examined.

        Raises:
            PipelineError: The store or the settings cannot be read at all.
        """
        start = time.monotonic()
        settings = self.settings
        lake, source = settings.open_lake(), settings.open_store()
        agents: list[AgentReport] = []
        errors: list[str] = []
        for key in source.partitions():
            noting(key)
            try:
                agents.append(self.examine_agent(source, lake, key))
            except PipelineError as error:
                errors.append(without_credentials(str(error)))
        return Readiness(
            is_ready=any(agent.is_ready for agent in agents),
            stores=[without_credentials(str(store)) for store in settings.stores],
            agents=agents,
            machine=measure_machine(lake.root if lake.is_local else None),
            errors=errors,
            unknown=self.unknown,
            seconds=round(time.monotonic() - start, 1),
        )

    def examine_agent(self, source: TraceSource, lake: Lake, key: PartitionKey) -> AgentReport:
        """Return the report on one agent.

        Raises:
            PipelineError: The sessions cannot be read, or a setting is wrong.
        """
        rules = ExaminationRules.load(self.settings, lake, key)
        has_llm = resolve(self.settings, JudgingOptions, key).options.policy.has_judge("llm")
        llm = self.open_judge(CACHED_ANSWERS_ONLY) if has_llm else None
        earlier_notes = len(source.notes)
        examination = examine(source, key, rules, self.read_labels(key), llm)
        del source.notes[:earlier_notes]
        adapter = resolve(self.settings, AdapterConfig, key).options
        return report_agent(
            examination,
            AgentSettingsInForce(
                self.settings,
                lake,
                key,
                rules,
                self._load_tokens(adapter.base_model),
                self.prices,
            ),
        )

    def _load_tokens(self, base_model: str) -> BaseTokens:
        """Return the tokenizer of a base model, which is loaded once."""
        if base_model not in self._tokens:
            settings = self.settings
            self._tokens[base_model] = load_tokens(
                base_model, settings.cache_path, settings.trust_remote_code
            )
        return self._tokens[base_model]
