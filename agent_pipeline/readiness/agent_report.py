"""The report on one agent, from the facts about each of its sessions.

The functions of the assets compare the sessions, split the tasks and find leaks. Reading sessions
belongs to `examination`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

import msgspec
import pyarrow as pa

from agent_pipeline.config.assets import AdapterConfig, ChampionConfig
from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import Settings
from agent_pipeline.datasets.ledger import LEDGER_TABLE, Ledger, add_tasks, read_ledger
from agent_pipeline.datasets.sketches import group_similar_texts
from agent_pipeline.datasets.splits import (
    MIN_REQUEST_SIMILARITY,
    SPLITS,
    SplitSizes,
    find_empty_splits,
    find_overlaps,
    find_root_tasks,
    is_unnamed_task,
)
from agent_pipeline.evaluation.intervals import NORMAL_QUANTILE_OF_95
from agent_pipeline.evaluation.tool_effects import ToolEffect, ToolEffects
from agent_pipeline.ingestion.task_patterns import propose_pattern
from agent_pipeline.judging.agreement import Agreement
from agent_pipeline.judging.curation import curate
from agent_pipeline.judging.decisions import CurationDecision
from agent_pipeline.judging.verdict_policy import JudgedSession, Opinion
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.error_budget import (
    count_tasks_for_decision,
    count_tests_in_year,
)
from agent_pipeline.promotion.ledger import open_ledger
from agent_pipeline.promotion.next_steps import (
    MAX_HELD_OUT,
    SHARE_STEPS_PER_ONE,
    collect_tasks,
    share_that_suffices,
    tasks_per_day,
)
from agent_pipeline.readiness.base_choice import find_known_base
from agent_pipeline.readiness.examination import Examination, ExaminationRules, SessionFacts
from agent_pipeline.readiness.precondition_proposals import (
    ProposedPrecondition,
    propose_preconditions,
)
from agent_pipeline.readiness.proposal import propose_settings
from agent_pipeline.readiness.report import (
    AgentReport,
    AgreementFacts,
    Blocker,
    Contents,
    DecisionOutlook,
    Judges,
    MetricFacts,
    Tasks,
    TrainingOutlook,
    VerdictOrigin,
    Worth,
)
from agent_pipeline.readiness.token_counts import (
    ONE_AGENT,
    BaseTokens,
    TokenBudget,
    choose_max_length,
    count_tokens,
    find_length_problem,
)
from agent_pipeline.readiness.training_outlook import TrainingMachine, foresee_training
from agent_pipeline.readiness.verdicts import EmptySplits, find_blockers
from agent_pipeline.selection.leaks import Leaks, compare_trials
from agent_pipeline.sessions.cost import (
    DAYS_PER_MONTH,
    NO_PRICES,
    Prices,
    TokenUsage,
    compute_cost,
    read_tokens,
)
from agent_pipeline.sessions.tables import make_column
from agent_pipeline.shares import wilson
from agent_pipeline.sources.registry import SOURCES
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.size_defaults import describe_context_limit

MIN_LABELLED = 30
"""Minimum number of labelled sessions from which the agreement of a judge is reported."""

_BENCHMARKS = frozenset(
    reader.name for reader in SOURCES if ".sources.benchmarks." in f"{reader.__module__}."
)
"""Readers of the results of benchmarks. Their judgments and scores come from the benchmark."""
_MACHINE_JUDGES = ("score", "metrics", "llm")


@dataclass(frozen=True)
class AgentSettingsInForce:
    """The settings of an agent that a report needs, and the lake's state.

    Attributes:
        settings: All settings.
        lake: The lake. Its split ledger and its decisions count; nothing is written.
        key: The partition.
        rules: The rules of the examination.
        tokens: The tokenizer of the base model.
        machine: The device on which models are trained; None to foresee no training run.
        prices: The prices for the comparison.
        budget: The number of sessions that are tokenized.
    """

    settings: Settings
    lake: Lake
    key: PartitionKey
    rules: ExaminationRules
    tokens: BaseTokens
    machine: TrainingMachine | None
    prices: Prices = NO_PRICES
    budget: TokenBudget = ONE_AGENT


@dataclass(frozen=True)
class SplitRows:
    """The sessions of an agent with their tasks and splits.

    Attributes:
        task_keys: The task of every session, where forks have the tasks of their root sessions.
        groups: The group of each unnamed task that has nearly the same request as another task.
        ledger: The splits of the tasks.
        rows: A table with `session_id`, `task_key`, `content_sha256` and `split` of the trainable
            sessions.
        trainable: The facts about the trainable sessions.
    """

    task_keys: dict[str, str]
    groups: Mapping[str, str]
    ledger: Ledger
    rows: pa.Table
    trainable: list[SessionFacts]


def report_agent(examination: Examination, agent: AgentSettingsInForce) -> AgentReport:
    """Return the report on an agent's examined sessions.

    Raises:
        DataError: The split ledger or the decisions of the lake are damaged.
        SettingsError: A setting is wrong.
    """
    sessions = examination.sessions
    decisions = list(curate(examination.candidates, agent.rules.max_sessions))
    split = split_sessions(sessions, decisions, agent)
    leaks = _find_leaks(split)
    overlaps = find_overlaps(split.rows)
    adapter = resolve(agent.settings, AdapterConfig, agent.key).options
    contents = _describe_contents(examination, agent)
    max_length = choose_max_length(adapter.model_dump(), contents.tokens, agent.tokens)
    length_problem = find_length_problem(
        examination,
        {facts.session_id for facts in split.trainable},
        agent.tokens,
        adapter.model_copy(update={"max_length": max_length}),
        agent.budget.encoded,
    )
    judges = _describe_judges(sessions, agent.rules)
    tasks = _describe_tasks(sessions, split, leaks)
    dropped = _count_dropped(sessions, decisions)
    outlook = _look_ahead(split, agent, contents.last)
    empty_splits = find_empty_splits(split.rows, agent.settings.split_sizes)
    fuller = _find_fuller_split(split, agent) if empty_splits else None
    blockers = find_blockers(
        contents, judges, dropped, EmptySplits(empty_splits, fuller), agent.key
    )
    if any(overlaps.values()):
        blockers.append(Blocker("overlap", _OVERLAP))
    if leaks.leaks and agent.settings.split.leaks == "refuse":
        blockers.append(Blocker("leaks", leaks.describe(agent.key)))
    if length_problem:
        blockers.append(Blocker("length", length_problem.sentence))
    report = AgentReport(
        partition=str(agent.key),
        contents=contents,
        judges=judges,
        tasks=tasks,
        is_ready=not blockers,
        max_length=max_length,
        trainable=len(split.trainable),
        dropped=dropped,
        blockers=blockers,
        fuller_split=fuller,
        most_dropped=length_problem.most_dropped if length_problem else None,
        outlook=outlook,
        worth=_weigh(sessions, split, judges, contents, agent.prices),
        training=_foresee_training(adapter, contents, tasks, agent),
        preconditions=_propose_preconditions(examination, split, agent),
        notes=list(
            filter(None, dict.fromkeys([_describe_context(adapter, contents), *examination.notes]))
        ),
        tool_effects=_list_effects(examination, agent),
    )
    return msgspec.structs.replace(report, settings=propose_settings(report))


def _describe_context(adapter: AdapterConfig, contents: Contents) -> str:
    """Return a sentence if training lowers the set `max_length` to the base model's context."""
    context = contents.tokens.context if contents.tokens else None
    sentence = describe_context_limit(adapter.max_length, context)
    return f"sft_adapter trains with {sentence}" if sentence else ""


def _propose_preconditions(
    examination: Examination, split: SplitRows, agent: AgentSettingsInForce
) -> list[ProposedPrecondition]:
    """Return rules that the trainable sessions of the sample satisfy, and that are not set yet."""
    trainable = {facts.session_id for facts in split.trainable}
    proposals = propose_preconditions(
        [session.messages for session in examination.sample if session.session_id in trainable]
    )
    known = agent.settings.preconditions(agent.key)
    return [
        proposal
        for proposal in proposals
        if proposal.precondition not in known.get(proposal.tool, ())
    ]


def _list_effects(examination: Examination, agent: AgentSettingsInForce) -> list[ToolEffect]:
    """Return the effects of the tools that the sampled sessions call, as the asset `tape` does."""
    effects = ToolEffects()
    for session in examination.sample:
        effects.add(session.messages, session.tools)
    return effects.list_effects(agent.settings.reads(agent.key))


_OVERLAP = (
    "A session, task or text is in more than one split: give all trials of a task the same task "
    "id (`task_pattern`). If two sessions are equal, remove one of them from the store."
)


def _foresee_training(
    adapter: AdapterConfig, contents: Contents, tasks: Tasks, agent: AgentSettingsInForce
) -> TrainingOutlook | None:
    known = find_known_base(adapter.base_model)
    shape = known.shape if known else agent.tokens.shape
    if shape is None or contents.tokens is None or agent.machine is None:
        return None
    rows = tasks.rows["train"] or contents.sessions
    return foresee_training(adapter, shape, contents.tokens, rows, agent.machine)


def split_sessions(
    sessions: list[SessionFacts],
    decisions: list[CurationDecision],
    agent: AgentSettingsInForce,
) -> SplitRows:
    """Return the tasks of the sessions and the splits that the SFT assets would choose."""
    root_tasks = find_root_tasks(
        {
            "session_id": facts.session_id,
            "parent_session_id": facts.parent_session_id,
            "task_key": facts.task_key,
        }
        for facts in sessions
    )
    task_keys = {
        facts.session_id: root_tasks.get(facts.session_id, facts.task_key) for facts in sessions
    }
    groups = group_similar_texts(
        (
            (task_keys[facts.session_id], facts.request)
            for facts in sessions
            if facts.request and is_unnamed_task(task_keys[facts.session_id])
        ),
        MIN_REQUEST_SIMILARITY,
    )
    ledger = read_ledger(agent.lake, agent.key, agent.settings.split_sizes)
    ledger = add_tasks(ledger, _make_texts(task_keys.values()), lambda: groups)
    trainable = [
        facts
        for facts, decision in zip(sessions, decisions, strict=True)
        if decision.reason is None and facts.has_row
    ]
    columns: dict[str, list[str]] = {
        "session_id": [facts.session_id for facts in trainable],
        "task_key": [task_keys[facts.session_id] for facts in trainable],
        "content_sha256": [facts.text_hash for facts in trainable],
        "split": [ledger.find_split(task_keys[facts.session_id]) for facts in trainable],
    }
    rows = pa.table({name: _make_texts(values) for name, values in columns.items()})
    return SplitRows(task_keys, groups, ledger, rows, trainable)


def _make_texts(values: Iterable[str]) -> pa.Array:
    return make_column(list(values), pa.field("text", pa.string()))


def _find_leaks(split: SplitRows) -> Leaks:
    splits: dict[str, str] = {}
    requests: dict[str, str] = {}
    held_out = 0
    for facts in split.trainable:
        task_key = split.task_keys[facts.session_id]
        task_split = split.ledger.find_split(task_key)
        held_out += task_split != "train"
        if is_unnamed_task(task_key):
            splits[facts.session_id] = task_split
            requests[facts.session_id] = facts.request
    return compare_trials(splits, requests, held_out)


def _describe_contents(examination: Examination, agent: AgentSettingsInForce) -> Contents:
    sessions = examination.sessions
    times = [facts.created_at for facts in sessions if facts.created_at]
    return Contents(
        sessions=len(sessions),
        forgotten=examination.forgotten,
        turns=sum(facts.turns for facts in sessions),
        calls=sum(facts.calls for facts in sessions),
        damage=_count_kinds(facts.damage for facts in sessions),
        damaged=sum(bool(facts.damage) for facts in sessions),
        scripts=_count_kinds({facts.script: 1} for facts in sessions if facts.script),
        redacted=_count_kinds(facts.redacted for facts in sessions),
        without_system_prompt=sum(not facts.has_system_prompt for facts in sessions),
        without_request=sum(not facts.request for facts in sessions),
        called_tools=sorted({name for facts in sessions for name in facts.called_tools}),
        inferred_tools=sum(facts.tools_origin == "none" and facts.calls > 0 for facts in sessions),
        first=min(times, default=None),
        last=max(times, default=None),
        tokens=count_tokens(examination, agent.tokens, agent.budget.counted),
    )


def _count_kinds(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the number of sessions with each kind, the most frequent kind first."""
    total: Counter[str] = Counter()
    for kinds in counts:
        total.update(kinds.keys())
    return dict(total.most_common())


def _describe_judges(sessions: list[SessionFacts], rules: ExaminationRules) -> Judges:
    verdicts = Counter(_name_origin(facts) for facts in sessions)
    agreement = Agreement()
    for facts in sessions:
        agreement.add(_restore_opinions(facts))
    policy = rules.judging.policy
    values: dict[str, list[float]] = defaultdict(list)
    for facts in sessions:
        for name in facts.metrics.keys() - policy.metrics.keys():
            values[name].append(facts.metrics[name])
    return Judges(
        verdicts=dict(verdicts.most_common()),
        acceptable=sum(facts.verdict == "acceptable" for facts in sessions),
        unacceptable=sum(facts.verdict == "unacceptable" for facts in sessions),
        labelled=sum("label" in facts.opinions for facts in sessions),
        agreement=[
            AgreementFacts(
                row.name,
                row.sessions,
                row.share,
                *wilson(row.share, row.sessions, NORMAL_QUANTILE_OF_95),
            )
            for row in agreement.list_rows()
            if row.name in _MACHINE_JUDGES and row.sessions >= MIN_LABELLED
        ],
        undeclared_metrics={
            name: MetricFacts(len(numbers), min(numbers), max(numbers))
            for name, numbers in sorted(values.items())
        },
        undecided_scores=sum(
            facts.score is not None and "score" not in facts.opinions for facts in sessions
        ),
    )


def _name_origin(facts: SessionFacts) -> VerdictOrigin:
    """Return who gave the verdict on a session."""
    if facts.verdict is None:
        return "nobody"
    match facts.verdict_by:
        case "label":
            return "person"
        case "judgment" | "score" if facts.source in _BENCHMARKS:
            return "benchmark"
        case "judgment":
            return "store"
        case "score":
            return "score"
        case "metrics":
            return "metrics"
        case "llm":
            return "model"
    return "policy"


def _restore_opinions(facts: SessionFacts) -> JudgedSession:
    """Return the opinions on a session in the form that the agreement is computed from."""
    opinions = {}
    if "label" in facts.opinions:
        # Only a label is known to come from a person.
        for judge, verdict in facts.opinions.items():
            opinions[judge] = Opinion("acceptable" if verdict == "acceptable" else "unacceptable")
    return JudgedSession(None, None, None, None, None, {}, opinions)


def _describe_tasks(sessions: list[SessionFacts], split: SplitRows, leaks: Leaks) -> Tasks:
    trials = Counter(split.task_keys.values())
    tasks_by_split: dict[str, set[str]] = {name: set() for name in SPLITS}
    rows_by_split: dict[str, int] = dict.fromkeys(SPLITS, 0)
    for facts in split.trainable:
        task_key = split.task_keys[facts.session_id]
        task_split = split.ledger.find_split(task_key)
        tasks_by_split[task_split].add(task_key)
        rows_by_split[task_split] += 1
    proposal = propose_pattern(
        {
            facts.session_id: facts.request
            for facts in sessions
            if is_unnamed_task(split.task_keys[facts.session_id])
        }
    )
    return Tasks(
        tasks=len(trials),
        named=sum(not is_unnamed_task(task_key) for task_key in trials),
        median_trials=median(trials.values()) if trials else 0,
        most_trials=max(trials.values(), default=0),
        trained={name: len(tasks) for name, tasks in tasks_by_split.items()},
        rows=rows_by_split,
        leaks=len(leaks.leaks),
        task_pattern=proposal.pattern if proposal else "",
        grouped=proposal.trials if proposal else 0,
        grouped_tasks=len(set(proposal.tasks.values())) if proposal else 0,
    )


def _count_dropped(
    sessions: list[SessionFacts], decisions: list[CurationDecision]
) -> dict[str, int]:
    """Return the number of sessions that cannot be trained on, by reason."""
    dropped: Counter[str] = Counter()
    for facts, decision in zip(sessions, decisions, strict=True):
        if decision.reason is not None:
            detail = decision.detail if decision.reason in _WITH_DETAIL else ""
            dropped[f"{decision.reason.value}: {detail}" if detail else decision.reason.value] += 1
        elif not facts.has_row:
            dropped["no_turn_to_train"] += 1
    return dict(dropped.most_common())


_WITH_DETAIL = ("broken", "precondition", "measure", "unmeasured")


def _look_ahead(
    split: SplitRows, agent: AgentSettingsInForce, last: datetime | None
) -> DecisionOutlook:
    """Return when a decision is possible, by the rules of the asset `champion`."""
    policy = resolve(agent.settings, ChampionConfig, agent.key).options
    entries = open_ledger(agent.lake, agent.key).records()
    decisions = count_tests_in_year(entries, datetime.now(UTC).isoformat())
    tasks = collect_tasks(
        {
            "task_key": split.task_keys[facts.session_id],
            "created_at": facts.created_at,
            "split": split.ledger.find_split(split.task_keys[facts.session_id]),
        }
        for facts in split.trainable
    )
    turns = _count_turns_per_task(split, tasks.select, policy.select_turns)
    needed = count_tasks_for_decision(policy, decisions, turns)
    sizes = agent.settings.split_sizes
    rate = tasks_per_day(tasks.first_seen.values(), last) if last else 0.0
    missing = needed - len(tasks.select)
    can_wait = missing > 0 and rate * sizes.select > 0
    return DecisionOutlook(
        held_out=len(tasks.select),
        needed=needed,
        turns_per_task=round(turns, 1),
        gain=policy.gain_sought,
        tasks_per_day=rate,
        is_possible=missing <= 0,
        weeks=missing / (rate * sizes.select) / 7 if can_wait else None,
        share=(share_that_suffices(tasks, needed, sizes) if missing > 0 else None),
    )


def _find_fuller_split(split: SplitRows, agent: AgentSettingsInForce) -> SplitSizes | None:
    """Return the smallest sizes with which every split has a trainable task.

    Returns:
        The sizes, or None if no sizes help, or if the splits of the tasks are already recorded.
    """
    if agent.lake.has(LEDGER_TABLE, agent.key):
        return None
    keys = {split.task_keys[facts.session_id] for facts in split.trainable}
    tasks = {split.groups.get(key, key) for key in keys}
    steps = [step / SHARE_STEPS_PER_ONE for step in range(1, SHARE_STEPS_PER_ONE)]
    candidates = [
        SplitSizes(test, select)
        for test in steps
        for select in steps
        if test + select <= MAX_HELD_OUT
    ]
    for sizes in sorted(candidates, key=lambda sizes: sizes.test + sizes.select):
        if len({sizes.find_split(task) for task in tasks}) == len(SPLITS):
            return sizes
    return None


def _count_turns_per_task(split: SplitRows, select: set[str], select_turns: int) -> float:
    """Return the number of turns per held-out task that a decision compares.

    If no task is held out yet, all trainable tasks are counted.

    Args:
        split: The sessions with their tasks.
        select: The held-out tasks.
        select_turns: The setting `champion.select_turns`, which limits the compared turns.
    """
    turns: Counter[str] = Counter()
    for facts in split.trainable:
        task_key = split.task_keys[facts.session_id]
        if task_key in select or not select:
            turns[task_key] += facts.turns
    if not turns:
        return 1.0
    return max(1.0, min(turns.total() / len(turns), select_turns / max(1, len(select))))


def _weigh(
    sessions: list[SessionFacts],
    split: SplitRows,
    judges: Judges,
    contents: Contents,
    prices: Prices,
) -> Worth:
    """Return how frequent, narrow and checkable an agent's work is, and what it costs today."""
    times = [facts.created_at for facts in sessions]
    per_day = tasks_per_day(times, contents.last) if contents.last else 0.0
    counts = [read_tokens(facts.usage) for facts in sessions]
    tokens = TokenUsage(
        _average(count.input for count in counts), _average(count.output for count in counts)
    )
    cost = compute_cost(_average(facts.cost_usd for facts in sessions), tokens, prices)
    task_keys = {split.task_keys[facts.session_id] for facts in sessions if facts.request}
    requests = {split.groups.get(task_key, task_key) for task_key in task_keys}
    judged = judges.acceptable + judges.unacceptable
    return Worth(
        sessions_per_day=per_day,
        tools=len(contents.called_tools),
        requests=len(requests),
        call_share=_share(sum(facts.call_turns for facts in sessions), contents.turns),
        judged_share=_share(judged, len(sessions)),
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        usd_per_month=cost * per_day * DAYS_PER_MONTH if cost is not None and per_day else None,
        usd_own_model=prices.own_model_usd,
    )


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
