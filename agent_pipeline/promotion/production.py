"""The comparison of the champion with the agent that it replaces, in the sessions of production.

Two things are computed from the sessions: figures per model and week with 95 % intervals, and a
sequential test of whether the champion is worse. The test may be looked at every night
(`evaluation.sequential`).

Which model answered a session belongs to `production_sessions`, the pairs that the test compares to
`production_pairs`, the rollback of a worse champion to `probation`, and the page to
`production_page`.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from typing import Any, Literal

import msgspec
from pydantic import Field

from agent_pipeline.errors import DamageError
from agent_pipeline.evaluation.intervals import share_interval
from agent_pipeline.evaluation.paired import paired
from agent_pipeline.evaluation.sequential import run_sequential_test
from agent_pipeline.keys import PartitionKey
from agent_pipeline.options import Options
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.promotion.own_models import OwnModels
from agent_pipeline.promotion.production_pairs import (
    Pair,
    PairList,
    WeeklyTask,
    extend_pairs,
    list_drops,
    make_weekly_tasks,
)
from agent_pipeline.promotion.production_sessions import (
    ChampionTimes,
    ProductionSessions,
    ServedSession,
    Server,
    read_sessions,
)
from agent_pipeline.sessions.cost import DAYS_PER_MONTH, NO_PRICES, Prices, compute_cost
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import Artifact, ArtifactDetails
from agent_pipeline.storage.lake import Lake
from agent_pipeline.structs import convert_value, decode_json

ASSET = "production"
PAIRS_FILE = "pairs.json"
DAYS_PER_WEEK = 7
SERVERS: tuple[Server, ...] = ("champion", "previous champion", "agent", "other")

Rival = Literal["agent", "previous champion"]


class ProductionOptions(Options):
    """Options of `production`: the sequential test, and the prices."""

    false_alarm: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description=(
            "Maximum probability of a false alarm, over the whole time in which a champion is "
            "served. A false alarm reports a champion as worse although it is not worse."
        ),
    )
    margin: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description=(
            "Accepted drop in the share of good tasks, compared with the agent that the champion "
            "replaces. For example, 0.02 accepts a champion that is up to 2 points worse."
        ),
    )
    weeks: int = Field(
        default=12,
        ge=1,
        description=(
            "Number of weeks in the report. The champion is also compared with the agent's "
            "sessions from this number of weeks before the promotion."
        ),
    )
    input_price: float = Field(
        default=0.0,
        ge=0,
        description=(
            "Price of the model that the champion replaces, in US dollars per million input "
            "tokens. If this setting is 0, the cost in the store is used."
        ),
    )
    output_price: float = Field(
        default=0.0,
        ge=0,
        description=(
            "Price of the model that the champion replaces, in US dollars per million output "
            "tokens."
        ),
    )
    serving_price: float = Field(
        default=0.0,
        ge=0,
        description=(
            "Price of the machine that serves the champion, in US dollars per month. If this "
            "setting is 0, the cost in the store is used."
        ),
    )

    @property
    def prices(self) -> Prices:
        """Return the prices of both models."""
        return Prices(self.input_price, self.output_price, self.serving_price or None)


class Estimate(msgspec.Struct, frozen=True):
    """A mean or a share with its 95 % interval.

    Attributes:
        count: The number of sessions or tasks.
        value: The mean; None without sessions.
        low: The lower end of the interval; None if it is not known.
        high: The upper end of the interval; None if it is not known.
    """

    count: int
    value: float | None = None
    low: float | None = None
    high: float | None = None


class ModelWeek(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of one model in one week, or in all weeks.

    The intervals treat the sessions of one task as dependent.

    Attributes:
        week: The Monday of the week; an empty text for all weeks.
        server: The model that served the sessions.
        model: The name of the model in the sessions; an empty text for all names.
        sessions: The number of sessions.
        tasks: The number of tasks.
        with_help: The number of sessions in which another model answered too.
        good: The share of good sessions among the judged sessions.
        good_by_people: The share of good sessions among those that people judged.
        good_by_judges: The share of good sessions among those that other judges judged.
        failed: The share of sessions in which the infrastructure failed.
        turns: The messages of the agent per session.
        input_tokens: The input tokens per session.
        output_tokens: The output tokens per session.
        cost_usd: The US dollars per session.
    """

    week: str
    server: Server
    model: str
    sessions: int
    tasks: int
    with_help: int
    good: Estimate
    good_by_people: Estimate
    good_by_judges: Estimate
    failed: Estimate
    turns: Estimate
    input_tokens: Estimate
    output_tokens: Estimate
    cost_usd: Estimate


class SameTasks(msgspec.Struct, frozen=True):
    """The tasks that both models did.

    Attributes:
        champion: The champion's share of good tasks.
        rival: The other model's share of good tasks.
        difference: The difference champion − other model.
    """

    champion: Estimate
    rival: Estimate
    difference: Estimate


class ProductionComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The champion next to another model that did the job.

    Attributes:
        rival: The other model.
        champion_share: The champion's share of good tasks, among the judged tasks.
        rival_share: The other model's share of good tasks.
        same_tasks: The tasks that both models did; None if there are no such tasks.
        pairs: The number of pairs.
        drop: The share by which the champion is worse, with an interval that holds at all times.
        p_value: The always-valid p-value of the statement that the champion is no worse.
        allowed_error: The p-value at which the champion is shown to be worse.
        margin: The accepted drop.
        alarm_after: The number of pairs after which the champion was shown to be worse; None if it
            was not.
    """

    rival: Rival
    champion_share: Estimate
    rival_share: Estimate
    same_tasks: SameTasks | None
    pairs: int
    drop: Estimate
    p_value: float
    allowed_error: float
    margin: float
    alarm_after: int | None

    @property
    def is_worse(self) -> bool:
        """Return whether the champion is shown to be worse."""
        return self.alarm_after is not None


class ProductionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of the asset `production`.

    Attributes:
        champion: The identity of the champion; an empty text if there is none.
        previous: The identity of the champion before it; an empty text if there is none.
        weeks: The figures per week and model, the newest week first.
        totals: The figures of all weeks, per model.
        comparisons: The comparisons of the champion with other models.
        without_time: The number of sessions that are left out, because they have no time.
        without_model: The number of sessions that are left out, because they name no model.
        notes: Sentences about what a reader should know.
    """

    champion: str
    previous: str
    weeks: list[ModelWeek]
    totals: list[ModelWeek]
    comparisons: list[ProductionComparison]
    without_time: int = 0
    without_model: int = 0
    notes: list[str] = []

    @property
    def worse_than(self) -> list[ProductionComparison]:
        """Return the comparisons in which the champion is shown to be worse."""
        return [comparison for comparison in self.comparisons if comparison.is_worse]


def measure_production(
    lake: Lake, key: PartitionKey, own_models: OwnModels, options: ProductionOptions
) -> Artifact:
    """Compare the champion with the models before it, and write the artifact of the comparison.

    Args:
        lake: The lake.
        key: The partition.
        own_models: The names of the lake's models.
        options: The options.

    Raises:
        DataError: The table `judged_sessions` is missing, damaged or from an older version.
    """
    times = ChampionTimes(lake, key)
    production = read_sessions(lake, key, times, own_models)
    stored, notes = _read_pairs(lake, key)
    sessions = _choose_weeks(production, times, options.weeks)
    pairs: list[PairList] = []
    comparisons: list[ProductionComparison] = []
    rivals = _list_rivals(times)
    for rival, identity in rivals.items():
        earlier = stored.get((times.champion, identity), [])
        champion_tasks = make_weekly_tasks(sessions, "champion")
        rival_tasks = make_weekly_tasks(sessions, rival)
        extended = extend_pairs(earlier, champion_tasks, rival_tasks)
        pairs.append(PairList(times.champion, identity, extended))
        allowed_error = options.false_alarm / len(rivals)
        comparisons.append(
            compare_models(
                rival, (champion_tasks, rival_tasks), extended, options.margin, allowed_error
            )
        )
    report = ProductionReport(
        champion=times.champion,
        previous=times.previous,
        weeks=_summarize_weeks(sessions, options),
        totals=_summarize_servers(sessions, options.prices),
        comparisons=comparisons,
        without_time=production.without_time,
        without_model=production.without_model,
        notes=notes,
    )
    kept = [
        PairList(champion, rival, list_of_pairs)
        for (champion, rival), list_of_pairs in stored.items()
        if champion == times.previous
    ]
    return _write_artifact(lake, key, report, pairs + kept)


def _list_rivals(times: ChampionTimes) -> dict[Rival, str]:
    """Return the models that the champion is compared with, and their identities."""
    if not times.champion:
        return {}
    rivals: dict[Rival, str] = {"agent": "agent"}
    if times.previous:
        rivals["previous champion"] = times.previous
    return rivals


def _choose_weeks(
    production: ProductionSessions, times: ChampionTimes, weeks: int
) -> list[ServedSession]:
    """Return the sessions since some weeks before the promotion, or before the newest session."""
    if not production.sessions:
        return []
    newest = max(session.created_at for session in production.sessions)
    begin = min(newest, times.promoted or newest) - timedelta(days=DAYS_PER_WEEK * weeks)
    return [session for session in production.sessions if session.created_at >= begin]


def _read_pairs(
    lake: Lake, key: PartitionKey
) -> tuple[dict[tuple[str, str], list[Pair]], list[str]]:
    """Return the stored pairs by champion and rival, and notes about them."""
    identity = lake.pointers(ASSET, key).latest
    if identity is None:
        return {}, []
    try:
        artifact = lake.find_undamaged(ASSET, key, identity)
        content = artifact.read(PAIRS_FILE) if artifact else b"[]"
        stored = decode_json(content, list[PairList])
    except (FileNotFoundError, DamageError, msgspec.MsgspecError) as error:
        return {}, [f"the sequential test begins again, because its pairs cannot be read ({error})"]
    return {(pairs.champion, pairs.rival): pairs.pairs for pairs in stored}, []


def _write_artifact(
    lake: Lake, key: PartitionKey, report: ProductionReport, pairs: list[PairList]
) -> Artifact:
    """Write the report and the pairs. The manifest names the sessions, so that `forget` works."""
    content = msgspec.json.format(msgspec.json.encode(pairs), indent=1)
    built: dict[str, Any] = msgspec.to_builtins(report)
    session_ids = {
        session_id
        for pair_list in pairs
        for pair in pair_list.pairs
        for session_id in pair.sessions
    }
    made_from = {
        EXPORT: report.champion,
        "measures": [ASSET],  # marks the sessions as measured, and not as trained on
        "sessions": sorted(session_ids),
        "report": hash_json(built),
        "pairs": hashlib.sha256(content).hexdigest(),
    }
    identity = hash_json(made_from)
    building = lake.building(ASSET, key, identity)
    (building / PAIRS_FILE).write_bytes(content)
    parents = [report.champion] if report.champion else []
    details = ArtifactDetails(parents=parents)
    return lake.finish(ASSET, key, identity, building, made_from, built, details)


def read_production_report(artifact: Artifact) -> ProductionReport:
    """Return the report of an artifact of the asset `production`.

    Raises:
        DataError: An older version wrote the report.
    """
    return artifact.read_report(lambda report: convert_value(report, ProductionReport))


# The figures


def compare_models(
    rival: Rival,
    tasks: tuple[Sequence[WeeklyTask], Sequence[WeeklyTask]],
    pairs: Sequence[Pair],
    margin: float,
    allowed_error: float,
) -> ProductionComparison:
    """Compare the champion with another model.

    Args:
        rival: The other model.
        tasks: The champion's tasks per week, and the other model's.
        pairs: The pairs.
        margin: The accepted drop.
        allowed_error: The chance of a false alarm.
    """
    champion_tasks, rival_tasks = tasks
    drops = list_drops(pairs, champion_tasks, rival_tasks)
    test = run_sequential_test(drops, margin, allowed_error)
    return ProductionComparison(
        rival=rival,
        champion_share=_estimate_share(champion_tasks),
        rival_share=_estimate_share(rival_tasks),
        same_tasks=_compare_same_tasks(champion_tasks, rival_tasks),
        pairs=test.count,
        drop=Estimate(test.count, test.mean, test.low, test.high),
        p_value=test.p_value,
        allowed_error=allowed_error,
        margin=margin,
        alarm_after=test.alarm_after,
    )


def _estimate_share(tasks: Sequence[WeeklyTask]) -> Estimate:
    keys, shares = [task.task_key for task in tasks], [task.share for task in tasks]
    return _estimate(keys, shares, is_share=True)


def _compare_same_tasks(
    champion: Sequence[WeeklyTask], rival: Sequence[WeeklyTask]
) -> SameTasks | None:
    """Return the tasks that both models did, each task with its mean over all weeks."""
    means = [_average_by_task(tasks) for tasks in (champion, rival)]
    both = sorted(means[0].keys() & means[1].keys())
    if not both:
        return None
    shares = [[mean[task] for task in both] for mean in means]
    difference = paired(both, shares[0], shares[1], shares=True)
    assert difference is not None  # there are tasks
    return SameTasks(
        _estimate(both, shares[0], is_share=True),
        _estimate(both, shares[1], is_share=True),
        Estimate(len(both), difference.value, difference.low, difference.high),
    )


def _average_by_task(tasks: Iterable[WeeklyTask]) -> dict[str, float]:
    shares: defaultdict[str, list[float]] = defaultdict(list)
    for task in tasks:
        shares[task.task_key].append(task.share)
    return {name: sum(values) / len(values) for name, values in shares.items()}


def _estimate(tasks: Sequence[str], values: Sequence[float], is_share: bool = False) -> Estimate:
    """Return the mean of values with its interval, given the task of each value."""
    if not values:
        return Estimate(0)
    if is_share:
        return Estimate(len(values), sum(values) / len(values), *share_interval(tasks, values))
    mean = paired(tasks, values, [0.0] * len(values))
    assert mean is not None  # there are values
    return Estimate(len(values), mean.value, mean.low, mean.high)


def _summarize_weeks(
    sessions: Sequence[ServedSession], options: ProductionOptions
) -> list[ModelWeek]:
    """Return the figures of the last weeks, per week and model, the newest week first."""
    grouped: defaultdict[tuple[date, Server, str], list[ServedSession]] = defaultdict(list)
    for session in sessions:
        grouped[session.week, session.server, session.model].append(session)
    newest = max((week for week, _, _ in grouped), default=date.min)
    oldest = newest.toordinal() - DAYS_PER_WEEK * (options.weeks - 1)
    shown = [name for name in grouped if name[0].toordinal() >= oldest]
    shown.sort(key=lambda name: (-name[0].toordinal(), SERVERS.index(name[1]), name[2]))
    return [
        _summarize(grouped[name], name[0].isoformat(), name[2], options.prices) for name in shown
    ]


def _summarize_servers(sessions: Sequence[ServedSession], prices: Prices) -> list[ModelWeek]:
    """Return the figures of all weeks, per server."""
    grouped: defaultdict[Server, list[ServedSession]] = defaultdict(list)
    for session in sessions:
        grouped[session.server].append(session)
    return [_summarize(grouped[server], "", "", prices) for server in SERVERS if server in grouped]


def _summarize(
    sessions: Sequence[ServedSession], week: str, model: str, prices: Prices
) -> ModelWeek:
    """Return the figures of sessions that the same server served."""
    by_people = [session for session in sessions if session.by_person]
    by_judges = [session for session in sessions if not session.by_person]
    return ModelWeek(
        week=week,
        server=sessions[0].server,
        model=model,
        sessions=len(sessions),
        tasks=len({session.task_key for session in sessions}),
        with_help=sum(session.has_help for session in sessions),
        good=_estimate_sessions(sessions, _read_verdict, is_share=True),
        good_by_people=_estimate_sessions(by_people, _read_verdict, is_share=True),
        good_by_judges=_estimate_sessions(by_judges, _read_verdict, is_share=True),
        failed=_estimate_sessions(sessions, lambda session: float(session.failed), is_share=True),
        turns=_estimate_sessions(sessions, lambda session: float(session.turns)),
        input_tokens=_estimate_sessions(sessions, lambda session: session.tokens.input),
        output_tokens=_estimate_sessions(sessions, lambda session: session.tokens.output),
        cost_usd=_estimate_cost(sessions, prices),
    )


def _read_verdict(session: ServedSession) -> float | None:
    return None if session.is_good is None else float(session.is_good)


def _estimate_cost(sessions: Sequence[ServedSession], prices: Prices) -> Estimate:
    """Return the US dollars per session.

    The machine that serves the champion is paid for every week in which the champion answered.
    """
    is_own = sessions[0].server != "agent"
    if is_own and prices.own_model_usd is not None:
        weeks = len({session.week for session in sessions})
        usd = prices.own_model_usd * weeks * DAYS_PER_WEEK / DAYS_PER_MONTH
        return Estimate(len(sessions), usd / len(sessions))
    per_token = NO_PRICES if is_own else prices
    return _estimate_sessions(
        sessions, lambda session: compute_cost(session.cost_usd, session.tokens, per_token)
    )


def _estimate_sessions(
    sessions: Iterable[ServedSession],
    read: Callable[[ServedSession], float | None],
    is_share: bool = False,
) -> Estimate:
    """Return the mean of a value of sessions with its interval. Unknown values are left out.

    Args:
        sessions: The sessions.
        read: Returns the value of a session, or None if it is not known.
        is_share: Whether the values are between 0 and 1.
    """
    tasks: list[str] = []
    values: list[float] = []
    for session in sessions:
        value = read(session)
        if value is not None:
            tasks.append(session.task_key)
            values.append(value)
    return _estimate(tasks, values, is_share)
