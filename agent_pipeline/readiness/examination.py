"""The examination of an agent's sessions in memory, one session at a time.

The functions of the assets `sessions`, `judged_sessions`, `curated_sessions` and `sft_dataset`
prepare, judge and check each session. Nothing is written. Counting over all sessions belongs to
`agent_report`.
"""

import heapq
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec
import xxhash

from agent_pipeline.config.assets import CurationConfig, ServingConfig, SessionsConfig, SftConfig
from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import Settings
from agent_pipeline.datasets.sft import make_sft_rows
from agent_pipeline.datasets.splits import SplitSizes, find_first_request, join_request
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.reading import Preparation, ReadingOptions
from agent_pipeline.judging.curation import CurationRules, OwnSessions, check_row
from agent_pipeline.judging.decisions import CurationCandidate
from agent_pipeline.judging.free_opinions import UNKNOWN_SCALES, ScoreScales
from agent_pipeline.judging.judge_checks import JudgeCheck, check_judge
from agent_pipeline.judging.judging_run import JudgingRun
from agent_pipeline.judging.labels import Labels
from agent_pipeline.judging.llm_judge import LlmJudge
from agent_pipeline.judging.measures import parse_measures
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.preconditions import Preconditions
from agent_pipeline.judging.rows import JudgedRow
from agent_pipeline.judging.tables import make_verdict_columns, read_judge_checks
from agent_pipeline.judging.verdict_leaks import compile_leak_patterns
from agent_pipeline.judging.verdict_policy import JudgedSession, name_group
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.own_models import OwnModels
from agent_pipeline.readiness.report import TokenCounts
from agent_pipeline.readiness.scripts_of_writing import find_script
from agent_pipeline.sessions.damage import make_repair_policy
from agent_pipeline.sessions.session import (
    Message,
    Session,
    Tool,
    drop_error_marks,
    encode_json,
    list_calls,
)
from agent_pipeline.sessions.tool_schemas import ToolSchemas
from agent_pipeline.sessions.transcript import count_characters
from agent_pipeline.sources.base import TraceSource
from agent_pipeline.storage.lake import Lake

SAMPLE_SIZE = 200
"""Number of sessions whose tokens are counted. They are chosen by a hash of the session id."""


class Shard(NamedTuple):
    """One of several disjoint parts of an agent's sessions.

    Attributes:
        remainder: Which part, from 0.
        shards: Number of parts.
    """

    remainder: int
    shards: int


WHOLE = Shard(0, 1)
"""All sessions."""


@dataclass(frozen=True)
class ExaminationRules:
    """The settings that decide what the pipeline does with an agent's sessions.

    Attributes:
        reading: The options of reading.
        judging: The options of judging.
        curation: The rules that decide on a session alone.
        max_sessions: Maximum number of good sessions. 0 means no limit.
        untrained_facts: Facts about a turn that exclude the turn from training.
        thoughts: Whether rows include recorded thoughts.
        blocked: The forgotten sessions.
        checks: The checks of machine judges against people's labels; None without checks.
        scales: The scales of the agent's scores.
    """

    reading: ReadingOptions
    judging: JudgingOptions
    curation: CurationRules
    max_sessions: int
    untrained_facts: tuple[str, ...]
    thoughts: bool
    blocked: BlockList
    checks: Sequence[JudgeCheck] | None = None
    scales: ScoreScales = UNKNOWN_SCALES

    @classmethod
    def load(
        cls, settings: Settings, lake: Lake, key: PartitionKey, labels: Labels
    ) -> "ExaminationRules":
        """Return the rules of an agent's settings.

        Args:
            settings: The settings.
            lake: The lake, whose last verdicts show how precise a machine judge is.
            key: The partition.
            labels: People's labels.

        Raises:
            SettingsError: A setting is wrong.
        """
        curation = resolve(settings, CurationConfig, key).options
        serving = resolve(settings, ServingConfig, key).options
        sft = resolve(settings, SftConfig, key).options
        repair = make_repair_policy(resolve(settings, SessionsConfig, key).options.repair)
        own_models = OwnModels(lake, {key: (serving.name, serving.hub)})
        judging = resolve(settings, JudgingOptions, key).options
        least = settings.judge.least_precision
        checks = read_judge_checks(lake, key, judging.policy, labels, least)
        if least and not checks:
            # Without a table, the asset has no labelled sample either, and trusts no machine judge.
            checks = [
                check_judge(name_group(group), [], least) for group in judging.policy.machine_groups
            ]
        return cls(
            checks=checks if least else None,
            reading=replace(settings.reading(key), repair=repair),
            judging=judging,
            curation=CurationRules(
                compile_leak_patterns(curation.verdict_leaks),
                [measure.name for measure in parse_measures(curation.required_measures)],
                curation.max_characters,
                OwnSessions(own_models.made, curation.served_model_sessions),
                Preconditions.parse(settings.preconditions(key)),
            ),
            max_sessions=curation.max_sessions,
            untrained_facts=tuple(sft.untrained_turns),
            thoughts=sft.reasoning,
            blocked=BlockList.read(lake),
        )


class SessionFacts(msgspec.Struct, kw_only=True):
    """The facts about one session that a report counts.

    Attributes:
        session_id: The id of the session.
        source: The reader of the session.
        task_key: The key of the session's task.
        parent_session_id: The id of the session that started the session.
        created_at: The time at which the session began.
        turns: Number of the agent's messages.
        call_turns: Number of the agent's messages with a tool call.
        calls: Number of tool calls.
        called_tools: The names of the called tools.
        damage: Counts of damage, by kind.
        script: The script of the first request.
        request: The first request, without private data.
        has_system_prompt: Whether the session has a system prompt.
        tools_origin: The origin of the tool schemas before schemas are inferred.
        redacted: Counts of private values, by kind.
        usage: Token counts of the store, by name.
        cost_usd: The cost according to the store.
        score: The score of the store.
        metrics: The metrics of the store, by name.
        verdict: The verdict.
        verdict_by: The judge that decided.
        opinions: The verdict of each judge that has an opinion.
        has_row: Whether the session has a turn to train, so that a good verdict makes a row.
        text_hash: A hash of the texts of the row.
    """

    session_id: str
    source: str
    task_key: str
    parent_session_id: str | None
    created_at: datetime | None
    turns: int
    call_turns: int
    calls: int
    called_tools: list[str]
    damage: dict[str, int]
    script: str
    request: str
    has_system_prompt: bool
    tools_origin: str
    redacted: dict[str, int]
    usage: dict[str, int]
    cost_usd: float | None
    score: float | None
    metrics: dict[str, float]
    verdict: str | None = None
    verdict_by: str | None = None
    opinions: dict[str, str] = {}
    has_row: bool = False
    text_hash: str = ""


class SampledSession(msgspec.Struct, kw_only=True):
    """A session whose tokens are counted.

    Attributes:
        rank: The rank of the session in the sample: a hash of the session id.
        session_id: The id of the session.
        characters: Number of characters of the messages.
        messages: The messages up to the agent's last trained message.
        tools: The tools.
        has_own_tools: Whether the tools come from the source or from the settings.
    """

    rank: int
    session_id: str
    characters: int
    messages: list[Message]
    tools: list[Tool]
    has_own_tools: bool


@dataclass
class Examination:
    """The result of examining some sessions of an agent.

    Attributes:
        sessions: The facts about each session, in the order of the store.
        candidates: The facts for the comparison of sessions, in the same order.
        sample: The sessions whose tokens are counted.
        longest: The session with the most characters.
        schemas: The shapes of the calls of sessions without tools.
        forgotten: Number of the store's sessions that are on the block list.
        notes: Sentences for the user.
        token_counts: The lengths of the sessions, by the base model whose tokens were counted.
        lengths: The length of each sampled session, by the base model and the session id.
        encoded: The sampled sessions that were encoded as rows without a problem, by base model.
    """

    sessions: list[SessionFacts]
    candidates: list[CurationCandidate]
    sample: list[SampledSession]
    longest: SampledSession | None
    schemas: ToolSchemas
    forgotten: int
    notes: list[str]
    token_counts: dict[str, TokenCounts] = field(default_factory=dict)
    lengths: dict[str, dict[str, int]] = field(default_factory=dict)
    encoded: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def measure_scales(self) -> ScoreScales:
        """Return the scales of the scores of all sessions."""
        return ScoreScales.measure((facts.score, facts.metrics) for facts in self.sessions)


def examine(
    source: TraceSource,
    key: PartitionKey,
    rules: ExaminationRules,
    labels: Labels,
    llm: LlmJudge | None = None,
    shard: Shard = WHOLE,
) -> Examination:
    """Examine the sessions of an agent. Memory holds the messages of the sample only.

    Args:
        source: The store.
        key: The partition.
        rules: The agent's settings.
        labels: People's labels.
        llm: The language model that judges. Without it, the model has no opinion.
        shard: The sessions to examine.

    Raises:
        PipelineError: Reading, preparing or judging fails, as in the assets.
    """
    pass_over_store = _Pass(rules, shard)
    run = JudgingRun.from_options(rules.judging, labels)
    run.checks = rules.checks
    run.scales = rules.scales
    with llm or nullcontext() as run.llm:
        for (facts, session), judged in run.judge(pass_over_store.prepare(source, key)):
            pass_over_store.check(facts, session, judged)
    result = pass_over_store.result
    result.notes += source.notes
    return merge_examinations([result])


def merge_examinations(parts: Sequence[Examination]) -> Examination:
    """Return the examinations of the shards of an agent as one, ordered by session id."""
    merged = Examination([], [], [], None, ToolSchemas(), 0, [])
    for part in parts:
        merged.sessions += part.sessions
        merged.candidates += part.candidates
        merged.sample += part.sample
        merged.schemas.merge(part.schemas)
        merged.forgotten += part.forgotten
        merged.notes += [note for note in part.notes if note not in merged.notes]
    merged.sessions.sort(key=lambda facts: facts.session_id)
    merged.candidates.sort(key=lambda candidate: candidate.session_id)
    merged.sample.sort(key=lambda session: (session.rank, session.session_id))
    del merged.sample[SAMPLE_SIZE:]
    longest = [part.longest for part in parts if part.longest]
    merged.longest = max(
        longest, key=lambda session: (session.characters, session.session_id), default=None
    )
    return merged


class _Pass:
    """One pass over the sessions of a store.

    Attributes:
        result: The result so far.
    """

    def __init__(self, rules: ExaminationRules, shard: Shard) -> None:
        self.result = Examination([], [], [], None, ToolSchemas(), 0, [])
        self._rules = rules
        self._shard = shard
        self._preparation = Preparation(rules.reading)
        self._ranked: list[tuple[int, str]] = []
        self._sampled: dict[str, SampledSession] = {}

    def prepare(
        self, source: TraceSource, key: PartitionKey
    ) -> Iterator[tuple[tuple[SessionFacts, Session], Session]]:
        """Yield each session with its facts, prepared as for the table `sessions`."""
        for stored in source.stored_share(key, self._shard.remainder, self._shard.shards):
            if self._rules.blocked.has(stored.session_id, key):
                self.result.forgotten += 1
                continue
            session = self._rules.blocked.replace_names(stored.build(), key)
            prepared = self._preparation.prepare(session)
            self.result.schemas.add(prepared.calls)
            facts = _describe_session(session, dict(prepared.redacted))
            yield (facts, session), session

    def check(self, facts: SessionFacts, session: Session, judged: JudgedSession) -> None:
        """Add the verdict to a session's facts, and decide on the session alone."""
        facts.verdict, facts.verdict_by = judged.verdict, judged.verdict_by
        facts.opinions = {
            judge: opinion.verdict
            for judge, opinion in judged.opinions.items()
            if opinion.verdict is not None
        }
        row: dict[str, Any] = {name: getattr(session, name) for name in session.__struct_fields__}
        row["content_sha256"] = session.hash_content()
        row |= make_verdict_columns(judged)
        checked = check_row(cast(JudgedRow, row), self._rules.curation)
        clean_row: dict[str, Any] = dict(checked.row)
        clean_row["messages"] = drop_error_marks(clean_row["messages"])
        rows = list(
            make_sft_rows(
                [clean_row],
                _NO_SPLIT,
                untrained_facts=self._rules.untrained_facts,
                thoughts=self._rules.thoughts,
            )
        )
        facts.has_row = bool(rows)
        if rows:
            text = encode_json([rows[0]["messages"], rows[0]["tools"]])
            facts.text_hash = xxhash.xxh3_128_hexdigest(text)
            self._sample(session, cast("list[Message]", rows[0]["messages"]))
        self.result.sessions.append(facts)
        self.result.candidates.append(checked.candidate)

    def _sample(self, session: Session, messages: list[Message]) -> None:
        """Add a session to the sample if its hash is among the smallest, or if it is longest."""
        rank = xxhash.xxh3_64_intdigest(session.session_id.encode())
        characters = count_characters(messages)
        longest = self.result.longest
        is_longest = longest is None or characters > longest.characters
        is_sampled = len(self._ranked) < SAMPLE_SIZE or -rank > self._ranked[0][0]
        if not (is_longest or is_sampled):
            return
        sampled = SampledSession(
            rank=rank,
            session_id=session.session_id,
            characters=characters,
            messages=messages,
            tools=session.tools,
            has_own_tools=bool(session.tools),
        )
        if is_longest:
            self.result.longest = sampled
        if is_sampled:
            push = heapq.heappush if len(self._ranked) < SAMPLE_SIZE else heapq.heappushpop
            removed = push(self._ranked, (-rank, session.session_id))
            self._sampled[session.session_id] = sampled
            if removed is not None:
                self._sampled.pop(removed[1], None)
            self.result.sample = list(self._sampled.values())


_NO_SPLIT = SplitSizes(0.0, 0.0)
"""Sizes with which every row is trained. The split of a task is only known after all sessions."""


def _describe_session(session: Session, redacted: dict[str, int]) -> SessionFacts:
    """Return the facts about a prepared session that do not depend on a verdict."""
    calls = list_calls(session.messages)
    request = join_request(find_first_request(session.messages))
    return SessionFacts(
        session_id=session.session_id,
        source=session.source,
        task_key=session.task_key,
        parent_session_id=session.parent_session_id,
        created_at=session.created_at,
        turns=sum(message["role"] == "assistant" for message in session.messages),
        call_turns=sum(bool(message.get("tool_calls")) for message in session.messages),
        calls=len(calls),
        called_tools=sorted({name for name, _ in calls}),
        damage={kind: count for kind, count in session.damage.items() if count},
        script=find_script(request),
        request=request,
        has_system_prompt=any(message["role"] == "system" for message in session.messages),
        tools_origin=session.tools_origin,
        redacted=redacted,
        usage=session.usage,
        cost_usd=session.cost_usd,
        score=session.score,
        metrics=session.scores,
    )
