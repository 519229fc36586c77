"""The readiness report on all agents of the stores."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from agent_pipeline.config.assets import (
    AdapterConfig,
    CurationConfig,
    ServingConfig,
    SessionsConfig,
    SftConfig,
)
from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import PipelineError, without_credentials
from agent_pipeline.judging.free_opinions import describe_scales
from agent_pipeline.judging.labels import Labels
from agent_pipeline.judging.llm_client import SpendLimits
from agent_pipeline.judging.llm_judge import LlmJudge
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.readiness.agent_report import AgentSettingsInForce, report_agent
from agent_pipeline.readiness.examination import Examination, ExaminationRules, examine
from agent_pipeline.readiness.examination_pool import ExaminationPool
from agent_pipeline.readiness.machine import measure_machine
from agent_pipeline.readiness.report import AgentReport, Readiness, TokenCounts
from agent_pipeline.readiness.token_counts import (
    ONE_AGENT,
    BaseTokens,
    TokenBudget,
    count_tokens,
    load_tokens,
)
from agent_pipeline.readiness.training_outlook import TrainingMachine
from agent_pipeline.sessions.cost import NO_PRICES, Prices
from agent_pipeline.sources.base import TraceSource, files_of
from agent_pipeline.storage.lake import Lake

CACHED_ANSWERS_ONLY = SpendLimits(tokens=1)
"""Limits with which the language model that judges answers from its cache only."""


MIN_BYTES_FOR_PROCESSES = 10_000_000
"""Total size of the stores from which several processes examine the sessions."""


@dataclass(frozen=True)
class Examined:
    """The examined sessions of an agent.

    Attributes:
        deciding: The options and labels that decide on the sessions.
        examination: The result.
    """

    deciding: list[object]
    examination: Examination


@dataclass
class Doctor:
    """The examiner of the agents of the stores that the settings name.

    Attributes:
        settings: The settings.
        read_labels: Returns people's labels of an agent.
        open_judge: Returns the language model that judges, within given limits.
        prices: Prices of today's model and of an own model.
        unknown: Files beside the stores that no reader knows.
        earlier: The examiner of the same stores with other settings. Sessions are examined again
            only if a setting changed that decides on them.
        uses_model: Whether the tokenizer and the speed of the machine are used. Without them, the
            report says nothing about lengths and about the training run, and PyTorch is not loaded.
    """

    settings: Settings
    read_labels: Callable[[PartitionKey], Labels]
    open_judge: Callable[[SpendLimits], LlmJudge]
    prices: Prices = NO_PRICES
    unknown: list[str] = field(default_factory=list)
    earlier: "Doctor | None" = None
    uses_model: bool = True
    _tokens: dict[str, BaseTokens] = field(default_factory=dict)
    _examined: dict[PartitionKey, "Examined"] = field(default_factory=dict)
    _started: dict[PartitionKey, Callable[[], Examination]] = field(default_factory=dict)
    _pool: ExaminationPool | None = None

    def report(
        self,
        noting: Callable[[PartitionKey], None] = lambda key: None,
        only: PartitionKey | None = None,
    ) -> Readiness:
        """Return the report on all agents, or on one agent, and on the machine.

        An agent that cannot be examined is reported with its error.

        Args:
            noting: Is called before each agent is examined.
            only: The agent to report; None for all agents.

        Raises:
            PipelineError: The store or the settings cannot be read at all.
        """
        start = time.monotonic()
        settings = self.settings
        lake, source = settings.open_lake(), settings.open_store()
        keys = [only] if only else source.partitions()
        budget = TokenBudget.for_agents(len(keys))
        agents: list[AgentReport] = []
        errors: list[str] = []
        with self._start_processes(keys):
            for key in keys:
                noting(key)
                try:
                    agents.append(self.examine_agent(source, lake, key, budget))
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

    def examine_agent(
        self,
        source: TraceSource,
        lake: Lake,
        key: PartitionKey,
        budget: TokenBudget = ONE_AGENT,
    ) -> AgentReport:
        """Return the report on one agent.

        Args:
            source: The store.
            lake: The lake.
            key: The partition.
            budget: The number of sessions that are tokenized.

        Raises:
            PipelineError: The sessions cannot be read, or a setting is wrong.
        """
        labels = self.read_labels(key)
        rules = ExaminationRules.load(self.settings, lake, key, labels)
        deciding = self._list_deciding(key, labels)
        examined = self.earlier._examined.get(key) if self.earlier else None
        if examined is None or examined.deciding != deciding:
            examined = Examined(deciding, self._examine(source, key, rules, labels))
        self._examined[key] = examined
        adapter = resolve(self.settings, AdapterConfig, key).options
        return report_agent(
            examined.examination,
            AgentSettingsInForce(
                self.settings,
                lake,
                key,
                rules,
                self._load_tokens(adapter.base_model)
                if self.uses_model
                else BaseTokens(adapter.base_model, None, None, "the tokenizer is not loaded"),
                self.training_machine if self.uses_model else None,
                self.prices,
                budget,
            ),
        )

    def count_tokens(self, base_model: str, partition: str) -> TokenCounts | None:
        """Return the lengths of an agent's examined sessions in tokens of a base model.

        Return None if the agent has no answers.
        """
        budget = TokenBudget.for_agents(len(self._examined))
        examined = self._examined[parse_key(partition)]
        return count_tokens(examined.examination, self._load_tokens(base_model), budget.counted)

    def _list_deciding(self, key: PartitionKey, labels: Labels) -> list[object]:
        """Return the options and labels that decide on the sessions of an agent."""
        settings = self.settings
        policy = resolve(settings, JudgingOptions, key).options.policy
        return [settings.reading(key), labels.by_id, settings.preconditions(key), policy] + [
            resolve(settings, options, key).options
            for options in (
                SessionsConfig,
                JudgingOptions,
                CurationConfig,
                ServingConfig,
                SftConfig,
            )
        ]

    @contextmanager
    def _start_processes(self, keys: Sequence[PartitionKey]) -> Iterator[None]:
        """Let several processes examine the agents of large stores, except for known agents.

        Sessions that a language model judges are examined in this process.
        """
        if not self._is_large():
            yield
            return
        unknown: dict[PartitionKey, Labels] = {}
        for key in keys:
            with suppress(PipelineError):  # `examine_agent` reports the error
                labels = self.read_labels(key)
                judging = resolve(self.settings, JudgingOptions, key).options
                examined = self.earlier._examined.get(key) if self.earlier else None
                is_known = examined and examined.deciding == self._list_deciding(key, labels)
                if not (is_known or judging.policy.has_judge("llm")):
                    unknown[key] = labels
        if not unknown:
            yield
            return
        if self.uses_model:
            _ = self.training_machine  # is measured while the cores are free
        with ExaminationPool(self.settings.store, len(unknown)) as pool:
            self._pool = pool
            with suppress(BrokenExecutor):  # `_examine` examines the other agents
                for key, labels in unknown.items():
                    self._started[key] = pool.start(key, labels)
            try:
                yield
            finally:
                self._started, self._pool = {}, None

    def _examine(
        self, source: TraceSource, key: PartitionKey, rules: ExaminationRules, labels: Labels
    ) -> Examination:
        """Examine the sessions of an agent.

        The scales of the scores are known after the first pass. If they change verdicts, the
        sessions are examined again, as the assets judge them.
        """
        is_started = key in self._started
        examination = self._examine_once(source, key, rules, labels)
        scales = examination.measure_scales()
        if scales.change_verdicts(rules.judging.policy):
            if is_started and self._pool:
                with suppress(BrokenExecutor):  # this process examines the sessions
                    self._started[key] = self._pool.start(key, labels, scales)
            rules = replace(rules, scales=scales)
            examination = self._examine_once(source, key, rules, labels)
        unknown = labels.by_id.keys() - {facts.session_id for facts in examination.sessions}
        examination.notes += [*labels.notes, *filter(None, [labels.describe_unknown(unknown)])]
        examination.notes += describe_scales(scales, rules.judging.policy, key)
        return examination

    def _examine_once(
        self, source: TraceSource, key: PartitionKey, rules: ExaminationRules, labels: Labels
    ) -> Examination:
        """Examine the sessions of an agent in one pass, with the scales that the rules contain."""
        examination = None
        if key in self._started:
            with suppress(BrokenExecutor):  # a process was killed, perhaps because memory is short
                examination = self._started.pop(key)()
        if examination is None:
            judged_by_llm = rules.judging.policy.has_judge("llm")
            llm = self.open_judge(CACHED_ANSWERS_ONLY) if judged_by_llm else None
            source.notes.clear()
            examination = examine(source, key, rules, labels, llm)
        return examination

    @cached_property
    def training_machine(self) -> TrainingMachine:
        """The device on which models are trained, which is measured once."""
        return self.earlier.training_machine if self.earlier else TrainingMachine.measure()

    def _is_large(self) -> bool:
        """Return whether the stores are large enough for several processes."""
        if any(store.is_url for store in self.settings.stores):
            return False
        files = [file for store in self.settings.stores for file in files_of(Path(store.where))]
        return sum(file.stat().st_size for file in files) >= MIN_BYTES_FOR_PROCESSES

    def _load_tokens(self, base_model: str) -> BaseTokens:
        """Return the tokenizer of a base model, which is loaded once."""
        if self.earlier and base_model in self.earlier._tokens:
            return self.earlier._tokens[base_model]
        if base_model not in self._tokens:
            settings = self.settings
            self._tokens[base_model] = load_tokens(
                base_model, settings.cache_path, settings.trust_remote_code
            )
        return self._tokens[base_model]
