"""The messages at the end of a run in the shell: the outcome, and the next steps for a person.

The sentences for the reasons of a decision are in `decision_wording`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

from agent_pipeline.datasets.ledger import LEDGER_TABLE
from agent_pipeline.datasets.splits import SPLITS, SplitSizes
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision import Decision
from agent_pipeline.promotion.decision_wording import (
    describe_hold,
    describe_outcome,
    describe_reason,
)
from agent_pipeline.promotion.ledger import EXPORT, find_last_decision
from agent_pipeline.selection.tables import DATASET, read_dataset_rows
from agent_pipeline.storage.lake import Lake

RECENT_DAYS = 14
"""Number of days over which new tasks and sessions are counted."""
MIN_RATE_PERIOD = timedelta(days=2)
"""Time that tasks must cover before their number per day says something.

The tasks of an export that was written at once show no rate.
"""
MAX_HELD_OUT = 0.7
"""Maximum sum of `split.test` and `split.select` that is proposed. A larger sum would leave too few
tasks for training.
"""
SHARE_STEPS_PER_ONE = 20
"""Number of steps between 0 and 1 in which shares are proposed: proposed shares are multiples of
1/20.
"""
FAR_AWAY_DAYS = 3650


@dataclass(frozen=True)
class HeldOutTasks:
    """The tasks of a partition, and which of them are in the split `select`.

    Attributes:
        first_seen: The time at which each task was first seen, by its key; `None` if its sessions
            have no time.
        select: The keys of the tasks in the split `select`.
    """

    first_seen: dict[str, datetime | None]
    select: set[str]


def held_out_tasks(lake: Lake, key: PartitionKey) -> HeldOutTasks:
    """Return the tasks of `sft_dataset` and `heldout_dataset`, or no tasks without the tables.

    Raises:
        DataError: A table is damaged.
    """
    if not lake.has(DATASET, key):
        return HeldOutTasks({}, set())
    return collect_tasks(read_dataset_rows(lake, key, SPLITS, columns=["task_key", "created_at"]))


def collect_tasks(rows: Iterable[Mapping[str, Any]]) -> HeldOutTasks:
    """Return the tasks of rows with the columns `task_key`, `created_at` and `split`."""
    first_seen: dict[str, datetime | None] = {}
    select: set[str] = set()
    for row in rows:
        task, created = row["task_key"], row["created_at"]
        earlier = first_seen.get(task)
        first_seen[task] = min(created, earlier) if created and earlier else created or earlier
        if row["split"] == "select":
            select.add(task)
    return HeldOutTasks(first_seen, select)


def tasks_per_day(first_seen: Iterable[datetime | None], today: datetime) -> float:
    """Return the number of new tasks per day in the last `RECENT_DAYS` days.

    If the first task is more recent, the rate is counted from the first task. If all tasks came
    within less than `MIN_RATE_PERIOD`, there is no rate, and the result is 0.
    """
    known = [seen for seen in first_seen if seen is not None]
    ages = [(today - seen) / timedelta(days=1) for seen in known]
    recent = [age for age in ages if 0 <= age < RECENT_DAYS]
    if not recent or max(known) - min(known) < MIN_RATE_PERIOD:
        return 0.0
    return len(recent) / min(RECENT_DAYS, max(1.0, max(ages)))


def share_that_suffices(tasks: HeldOutTasks, needed: int, sizes: SplitSizes) -> float | None:
    """Return the smallest `split.select` that holds out `needed` of the current tasks.

    Shares are tried in steps of 0.05.

    Args:
        tasks: The tasks of the partition.
        needed: The number of tasks to hold out.
        sizes: The current sizes of the split.

    Returns:
        The share, or `None` if no share is large enough.
    """
    for step in range(ceil(sizes.select * SHARE_STEPS_PER_ONE), SHARE_STEPS_PER_ONE):
        share = step / SHARE_STEPS_PER_ONE
        if sizes.test + share > MAX_HELD_OUT:
            return None
        wider = SplitSizes(sizes.test, share)
        if sum(wider.find_split(task) == "select" for task in tasks.first_seen) >= needed:
            return share
    return None


def outlook(
    lake: Lake,
    key: PartitionKey,
    decision: Decision,
    sizes: SplitSizes,
    select_turns: int,
    today: datetime | None = None,
) -> str:
    """Return sentences about the held-out tasks: how many there are, and how many are needed.

    Args:
        lake: The lake.
        key: The partition.
        decision: The decision that was made.
        sizes: The sizes of the split in the settings.
        select_turns: The setting `champion.select_turns`.
        today: The time from which dates are counted; by default now.

    Returns:
        A few sentences, or an empty text for a decision of an older version.

    Raises:
        DataError: The table `sft_dataset` is damaged.
    """
    needed, compared = decision.needed_tasks, decision.tasks
    if not needed:
        return ""
    tasks = held_out_tasks(lake, key)
    available = max(len(tasks.select), compared)
    total = f" of {len(tasks.first_seen)}" if tasks.first_seen else ""
    held_out = f"{available}{total} tasks are held out for the decision (split select), and"
    if decision.p_value is not None and decision.p_value <= decision.allowed_error:
        return (
            f"{held_out} they were enough to see a gain. So more tasks alone would not promote "
            "this model."
        )
    known = (
        f"{held_out} {needed} are needed to detect a gain as small as the setting `gain_sought`."
    )
    if compared >= needed:
        return f"{known} So more tasks alone would not promote this model."
    if available >= needed:
        return (
            f"{known} Only {compared} of these tasks are compared: raise `champion.select_turns` "
            f"above {select_turns}."
        )
    when = _describe_date(tasks, needed - available, sizes, today or datetime.now(UTC))
    return " ".join([known, when, _describe_setting(lake, key, tasks, needed, sizes)]).strip()


def _describe_date(tasks: HeldOutTasks, missing: int, sizes: SplitSizes, today: datetime) -> str:
    """Return a sentence with the date on which enough tasks will be held out."""
    rate = tasks_per_day(tasks.first_seen.values(), today)
    if not rate:
        return _explain_missing_rate(tasks, today)
    if not sizes.select:
        return "split.select is 0."
    days = ceil(missing / (rate * sizes.select))
    when = f"around {(today + timedelta(days=min(days, FAR_AWAY_DAYS))).date()}"
    if days > FAR_AWAY_DAYS:
        when = "in more than ten years"
    return (
        f"At the rate of the last {RECENT_DAYS} days ({rate:.1f} new tasks per day, "
        f"{sizes.select:.0%} of them held out), there will be enough tasks {when}."
    )


def _explain_missing_rate(tasks: HeldOutTasks, today: datetime) -> str:
    """Return a sentence that says why nobody knows when more tasks will come."""
    known = [seen for seen in tasks.first_seen.values() if seen is not None]
    if any(seen > today - timedelta(days=RECENT_DAYS) for seen in known):
        return (
            f"All tasks came within {MIN_RATE_PERIOD.days} days, so the number of new tasks per "
            "day is unknown."
        )
    return f"No new task came in the last {RECENT_DAYS} days, so waiting does not help."


def _describe_setting(
    lake: Lake, key: PartitionKey, tasks: HeldOutTasks, needed: int, sizes: SplitSizes
) -> str:
    """Return a sentence with a setting that makes enough held-out tasks available sooner."""
    share = share_that_suffices(tasks, needed, sizes)
    if share is None:
        return (
            f"A larger `split.select` does not help, because {needed} of the "
            f"{len(tasks.first_seen)} tasks cannot be held out: log sessions of more tasks."
        )
    if lake.pointers(EXPORT, key).champion:
        return (
            f"With `split.select = {share:g}`, there will be enough tasks sooner. The setting "
            "applies to new tasks only."
        )
    return (
        f"With `split.select = {share:g}`, there are enough tasks now, if you also delete "
        f"{lake.table(LEDGER_TABLE, key)}, which keeps each task in its split. Delete it only "
        "before the first promotion."
    )


def outcome_lines(
    lake: Lake,
    key: PartitionKey,
    sizes: SplitSizes,
    select_turns: int,
    today: datetime | None = None,
) -> list[str]:
    """Return lines with the decision on the latest export, the served model, and the next step.

    Args:
        lake: The lake.
        key: The partition.
        sizes: The sizes of the split in the settings.
        select_turns: The setting `champion.select_turns`.
        today: The time from which dates are counted; by default now.

    Returns:
        A few lines. The list is empty if there is no export.

    Raises:
        DataError: A table is damaged.
    """
    pointers = lake.pointers(EXPORT, key)
    if not pointers.latest:
        return []
    export, champion = pointers.latest[:16], (pointers.champion or "")[:16]
    if pointers.champion == pointers.latest:
        return [f"{key}: {export} is the champion, and is served."]
    served = f"{champion} is still served" if champion else "nothing is served"
    entry = find_last_decision(lake, key, pointers.latest)
    if entry is None:
        return [
            f"{key}: there is no decision on {export} yet, and {served}. To serve {export}, run "
            f"`agent-pipeline promote {key}`."
        ]
    decision = entry.decision
    reason = describe_reason(decision.reasons[0]) if decision.reasons else "no reason is known"
    hold = describe_hold(lake, key, pointers.latest)
    if hold:
        reason = hold if entry.is_hold_of_person else f"{reason}; {hold}"
    look = f"Look at what the model does: `agent-pipeline report {key}`."
    if decision.outcome == "promote" and not hold:
        return [
            f"{key}: {export} can be promoted ({reason}), and waits for you; {served}.",
            f"{look} To serve the model: `agent-pipeline promote {key}`.",
        ]
    if decision.outcome == "reject":
        return [
            f"{key}: {export} is rejected ({reason}), and {served}.",
            f"{look} The next training run makes another candidate.",
        ]
    outcome = describe_outcome(decision)
    lines = [f"{key}: {export} is not promoted ({outcome}: {reason}), and {served}."]
    tasks = outlook(lake, key, decision, sizes, select_turns, today)
    if tasks:
        lines.append(tasks)
    return [*lines, f"{look} To serve the model anyway: `agent-pipeline promote {key}`."]
