"""The status of an agent: its sessions, the last training, decision, and what waits for a person.

The models alone belong to `model_list`. The next night belongs to `defs.automation`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from agent_pipeline.config.settings import Settings
from agent_pipeline.datasets.sft_tables import SFT_TABLE, read_sft_columns
from agent_pipeline.errors import DataError
from agent_pipeline.gateway.traffic import describe_rules, read_rules
from agent_pipeline.gateway.turn_checks import TrafficRules
from agent_pipeline.governance.model_list import ModelSummary, summarize_models
from agent_pipeline.governance.played_world import find_world_in_force
from agent_pipeline.judging.decisions import DropReason
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import measure_write_threshold
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.promotion.request_changes import describe_changes
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.chain import STEPS, name_adapter_asset
from agent_pipeline.training.report import SkippedReport, StepReport, read_step_report

KEPT = "kept"
NO_VERDICT = "none"


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of an agent in the lake.

    Attributes:
        partition: The agent's partition.
        was_read: Whether the sessions of the agent were ever read into the lake.
        sessions: The number of sessions.
        kept: The number of sessions that are training examples.
        dropped: The numbers of the other sessions, by the reason.
        verdicts: The numbers of sessions by verdict; `none` for sessions without a verdict.
        rows: The numbers of SFT rows, by split.
        pairs: The number of preference pairs.
        trained_at: The time (UTC) of the last training; null if there was none.
        training: The loss and the rows of the last training, in words.
        model: The champion, the latest export and the decision; null if nothing was exported.
        waits: What waits for a person, one sentence each.
        changed_requests: How the newest sessions differ from the requests that a model was trained
            for, one sentence per model.
        traffic: The champion's share of the traffic, and its accepted calls; empty without a
            gateway.
        next_step: The next sensible command, without the name of the program.
    """

    partition: str
    was_read: bool
    sessions: int
    kept: int
    dropped: dict[str, int]
    verdicts: dict[str, int]
    rows: dict[str, int]
    pairs: int
    trained_at: str | None
    training: str
    model: ModelSummary | None
    waits: list[str]
    changed_requests: list[str] = []
    traffic: str = ""
    next_step: str


class NightStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The next night.

    Attributes:
        begins: The time at which the next night begins; null if `night.cron` is wrong.
        is_on: Whether the schedule `nightly` is switched on; null if it is not known.
        note: The action that is needed so that the night begins; empty if none is needed.
    """

    begins: str | None
    is_on: bool | None
    note: str


class Status(msgspec.Struct, frozen=True):
    """The status of all agents.

    Attributes:
        lake: The address of the lake.
        agents: The agents of the store.
        next_night: The next night.
    """

    lake: str
    agents: list[AgentStatus]
    next_night: NightStatus


def read_agent_status(settings: Settings, key: PartitionKey) -> AgentStatus:
    """Return the status of an agent.

    Raises:
        DataError: A table is damaged, or an artifact is of an older version.
    """
    lake = settings.open_lake()
    gateway = _read_gateway(settings, key)
    was_read = lake.has("sessions", key) or lake.has("curated_sessions", key)
    uses = _count_values(lake, "curated_sessions", "drop_reason", key, KEPT)
    verdicts = _count_values(lake, "judged_sessions", "verdict", key, NO_VERDICT)
    pointers = lake.pointers(EXPORT, key)
    model = summarize_models(lake, key, pointers) if pointers.latest else None
    training = _find_last_training(lake, key)
    dropped = {name: count for name, count in uses.most_common() if name != KEPT}
    unjudged = uses[DropReason.UNJUDGED.value] if uses else verdicts[NO_VERDICT]
    sessions = uses.total() or verdicts.total() or _count_rows(lake, "sessions", key)
    return AgentStatus(
        partition=str(key),
        was_read=was_read,
        sessions=sessions,
        kept=uses[KEPT],
        dropped=dropped,
        verdicts=dict(verdicts),
        rows=dict(count_splits(lake, key)),
        pairs=_count_rows(lake, "preference_dataset", key),
        trained_at=training.trained_at,
        training=training.text,
        model=model,
        waits=[*_list_waiting(key, model, unjudged), *gateway.waits],
        changed_requests=describe_changes(lake, key),
        traffic=gateway.traffic,
        next_step=_choose_next_step(key, was_read, model, uses, verdicts),
    )


class _Gateway(NamedTuple):
    """The traffic of a champion, in words, and what waits for a person."""

    traffic: str = ""
    waits: Sequence[str] = ()


def _read_gateway(settings: Settings, key: PartitionKey) -> _Gateway:
    """Return the champion's traffic, and whether the gateway checks its calls by earlier settings.

    The settings `reads`, `act` and `preconditions` reach the gateway only if `agent-pipeline
    traffic` runs. If the champion gets no traffic, nobody has to run the command.
    """
    try:
        rules = read_rules(settings.open_lake()).get(str(key))
    except DataError as error:
        return _Gateway(waits=[str(error)])
    if rules is None:
        return _Gateway()
    are_same = {
        "reads": set(rules.reads) == set(settings.reads(key)),
        "act": rules.act == settings.traffic(key).act,
        "preconditions": rules.preconditions == settings.preconditions(key),
    }
    changed = [name for name, is_same in are_same.items() if not is_same]
    waits = []
    if changed:
        waits.append(
            "The gateway still checks calls with earlier settings, because these settings have "
            f"changed: {', '.join(changed)}. Run `agent-pipeline traffic {key}`."
        )
    if rules.share and rules.act == "sure":
        waits += _check_threshold(settings, key, rules)
    return _Gateway(describe_rules(rules), waits if rules.share else ())


def _check_threshold(settings: Settings, key: PartitionKey, rules: TrafficRules) -> list[str]:
    """Return a sentence if the gateway's threshold is not the one of the episodes in force."""
    lake = settings.open_lake()
    champion = lake.champion(EXPORT, key)
    if champion is None:
        return []
    world = find_world_in_force(settings, lake, key)
    threshold = measure_write_threshold(lake, key, champion.identity, world)
    if threshold.confidence == rules.threshold:
        is_lost = rules.threshold is None and world.is_unreadable
        return [f"The large model makes every write, because {world.why_not}."] if is_lost else []
    why_not = threshold.why_not
    no_threshold = f"its episodes give no threshold now, because {why_not}"
    reason = no_threshold if why_not else "it played again"
    return [
        f"The gateway still uses an earlier threshold for the champion's writes ({reason}). Run "
        f"`agent-pipeline traffic {key}`."
    ]


def count_splits(lake: Lake, key: PartitionKey) -> Counter[str]:
    """Count the SFT rows of a partition by split. Return an empty result without a table."""
    if not lake.has(SFT_TABLE, key):
        return Counter()
    return Counter(read_sft_columns(lake, key, ["split"])["split"].to_pylist())


def describe_training(report: StepReport) -> str:
    """Return the loss of a training run, and how many rows it used and left out."""
    if isinstance(report, SkippedReport):
        return f"nothing was trained: {report.skipped}"
    rows = report.rows
    others = [
        f"{count} {name.replace('_', ' ')}"
        for name, count in rows.items()
        if name not in ("in", "trained") and isinstance(count, int) and count
    ]
    dropped = f" ({', '.join(others)})" if others else ""
    loss = f"loss {report.loss_first:.3f} → {report.loss_last:.3f} over {report.steps} steps"
    return f"{loss}, {rows['trained']} of {rows['in']} rows{dropped}"


def _count_values(
    lake: Lake, asset: str, column: str, key: PartitionKey, null_name: str
) -> Counter[str]:
    """Count the values of a table's column. A null counts as `null_name`."""
    if not lake.has(asset, key):
        return Counter()
    with lake.open(asset, key) as table:
        values = table.read([column])[column].to_pylist()
    return Counter(null_name if value is None else value for value in values)


def _count_rows(lake: Lake, asset: str, key: PartitionKey) -> int:
    if not lake.has(asset, key):
        return 0
    with lake.open(asset, key) as table:
        return int(table.metadata.num_rows)


class _Training(NamedTuple):
    """The time of a training, and its result in words. The time is None if nothing was trained."""

    trained_at: str | None
    text: str


def _find_last_training(lake: Lake, key: PartitionKey) -> _Training:
    """Return the last training of any step of the chain."""
    last = _Training(None, "")
    for step in STEPS:
        asset = name_adapter_asset(step)
        pointers = lake.pointers(asset, key)
        if pointers.latest and pointers.when > (last.trained_at or ""):
            text = describe_training(read_step_report(lake.latest(asset, key)))
            last = _Training(pointers.when, f"{step}: {text}")
    return last


def _list_waiting(key: PartitionKey, model: ModelSummary | None, unjudged: int) -> list[str]:
    """Return what waits for a person, one sentence each."""
    waits = []
    if model and model.waits and model.latest:
        waits.append(
            f"{model.latest[:16]} can be promoted: look at it (`agent-pipeline report {key}`), "
            f"and promote it (`agent-pipeline promote {key}`)."
        )
    if unjudged:
        waits.append(
            f"{unjudged} sessions have no verdict: judge some of them "
            f"(`agent-pipeline review {key}`)."
        )
    return waits


def _choose_next_step(
    key: PartitionKey,
    was_read: bool,
    model: ModelSummary | None,
    uses: Counter[str],
    verdicts: Counter[str],
) -> str:
    """Return the next sensible command for an agent.

    Args:
        key: The agent's partition.
        was_read: Whether the agent's sessions were read.
        model: The agent's models.
        uses: The numbers of sessions by use.
        verdicts: The numbers of sessions by verdict.
    """
    if not was_read:
        return f"materialize {key} --select '+sft_dataset'"
    if verdicts.keys() == {NO_VERDICT} or (uses[DropReason.UNJUDGED.value] and not uses[KEPT]):
        return f"review {key}"
    if uses and not uses[KEPT]:
        return f"sessions list --agent {key}"
    if model is None:
        return f"materialize {key}"
    if model.champion is None or model.champion != model.latest:
        return f"report {key}"
    return f"chat {key}"
