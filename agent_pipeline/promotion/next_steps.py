"""What a person can do after a decision, and when a decision may promote: the lines that end a run in the shell."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import NamedTuple

from agent_pipeline.datasets.ledger import LEDGER_TABLE
from agent_pipeline.datasets.splits import SPLITS, SplitSizes
from agent_pipeline.evaluation.scores import Decision
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.ledger import EXPORT, last_decision
from agent_pipeline.promotion.report import headline, sentence
from agent_pipeline.selection.tables import DATASET, read_dataset_rows
from agent_pipeline.storage.lake import Lake

RECENT_DAYS = 30
"""New tasks are counted over so many days."""
MAX_HELD_OUT = 0.7
"""`split.test` and `split.select` together: a larger share leaves too little to train on to be proposed."""
FAR_AWAY_DAYS = 3650


class HeldOutTasks(NamedTuple):
    """The tasks of a partition: when each was seen first (`None`: its sessions have no time), and the keys of those in `select`."""

    first_seen: dict[str, datetime | None]
    select: set[str]


def held_out_tasks(lake: Lake, key: PartitionKey) -> HeldOutTasks:
    """Read the tasks of the table `sft_dataset`; none if there is no table.

    Raises:
        DataError: the table is damaged.
    """
    first_seen: dict[str, datetime | None] = {}
    select: set[str] = set()
    if lake.has(DATASET, key):
        for row in read_dataset_rows(lake, key, SPLITS, columns=["task_key", "created_at"]):
            task, when = row["task_key"], row["created_at"]
            earlier = first_seen.get(task)
            first_seen[task] = min(when, earlier) if when and earlier else when or earlier
            if row["split"] == "select":
                select.add(task)
    return HeldOutTasks(first_seen, select)


def tasks_per_day(first_seen: Iterable[datetime | None], today: datetime) -> float:
    """Return how many new tasks came per day in the last `RECENT_DAYS` days, or since the first task if that is later."""
    days = [(today - when) / timedelta(days=1) for when in first_seen if when is not None]
    recent = [age for age in days if 0 <= age <= RECENT_DAYS]
    return len(recent) / min(RECENT_DAYS, max(1.0, max(days))) if recent else 0.0


def share_that_suffices(tasks: HeldOutTasks, needed: int, sizes: SplitSizes) -> float | None:
    """Return the smallest `split.select`, in steps of 0.05, that holds out `needed` of today's tasks; `None` if no share does."""
    step = 20
    for twentieths in range(ceil(sizes.select * step), step):
        share = twentieths / step
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
    """Say how many held-out tasks there are, how many a decision needs, and when or by which setting there will be enough.

    Args:
        decision: the decision that was taken.
        sizes: the sizes of the split in the settings.
        select_turns: the setting `champion.select_turns`.
        today: the time from which dates are counted; default: now.

    Returns:
        A few sentences; an empty text for a decision of an older version.

    Raises:
        DataError: the table `sft_dataset` is damaged.
    """
    needed, asked = decision.needed_tasks, decision.tasks
    if not needed:
        return ""
    tasks = held_out_tasks(lake, key)
    there = max(len(tasks.select), asked)
    total = f" of {len(tasks.first_seen)}" if tasks.first_seen else ""
    if decision.p is not None and decision.p <= decision.error:
        held_out = f"{there}{total} tasks are held out for the decision (split select), and they were enough to see a gain."
        return f"{held_out} More tasks alone do not promote this model."
    known = f"{there}{total} tasks are held out for the decision (split select), and it needs {needed} to see the gain that is sought."
    if asked >= needed:
        return f"{known} That is enough: more tasks alone do not promote this model."
    if there >= needed:
        return f"{known} champion.select_turns = {select_turns} lets only {asked} of them be asked: raise it."
    return " ".join(
        [
            known,
            _when(tasks, needed - there, sizes, today or datetime.now(UTC)),
            *_setting(lake, key, tasks, needed, sizes),
        ]
    )


def _when(tasks: HeldOutTasks, missing: int, sizes: SplitSizes, today: datetime) -> str:
    rate = tasks_per_day(tasks.first_seen.values(), today)
    if not rate or not sizes.select:
        return (
            f"No new task came in the last {RECENT_DAYS} days, so waiting does not help."
            if not rate
            else "split.select is 0."
        )
    days = ceil(missing / (rate * sizes.select))
    when = (
        "in more than ten years"
        if days > FAR_AWAY_DAYS
        else f"around {(today + timedelta(days=days)).date()}"
    )
    return f"At the recent rate ({rate:.1f} new tasks per day, {sizes.select:.0%} of them held out) there are enough {when}."


def _setting(
    lake: Lake, key: PartitionKey, tasks: HeldOutTasks, needed: int, sizes: SplitSizes
) -> list[str]:
    share = share_that_suffices(tasks, needed, sizes)
    if share is None:
        return [
            f"No larger split.select holds out {needed} of today's {len(tasks.first_seen)} tasks: let more tasks come in."
        ]
    if lake.pointers(EXPORT, key).champion:
        return [f"`split.select = {share:g}` gets there sooner: it applies to new tasks."]
    return [
        f"`split.select = {share:g}` gets there now, if you also delete {lake.table(LEDGER_TABLE, key)}, which keeps each task in its split. "
        "Do so only before the first promotion."
    ]


def outcome_lines(
    lake: Lake,
    key: PartitionKey,
    sizes: SplitSizes,
    select_turns: int,
    today: datetime | None = None,
) -> list[str]:
    """Say what was decided on a partition's latest export, what is served, and what to do next. Empty if there is no export.

    Raises:
        DataError: a table is damaged.
    """
    pointers = lake.pointers(EXPORT, key)
    if not pointers.latest:
        return []
    export, champion = pointers.latest[:16], (pointers.champion or "")[:16]
    if pointers.champion == pointers.latest:
        return [f"{key}: {export} is the champion, and is served."]
    serves = f"{champion} is still served" if champion else "nothing is served"
    record = last_decision(lake, key, pointers.latest)
    if record is None:
        return [
            f"{key}: nothing was decided on {export}, and {serves}. To serve it, run `agent-pipeline promote {key}`."
        ]
    decision = record.decision
    first = sentence(decision.reasons[0]) if decision.reasons else "no reason is known"
    look = f"Look at what it does: `agent-pipeline report {key} --open`."
    if decision.outcome == "promote":
        return [
            f"{key}: {export} wins ({first}), and waits for you; {serves}.",
            f"{look} To serve it: `agent-pipeline promote {key}`.",
        ]
    if decision.outcome == "reject":
        return [
            f"{key}: {export} is rejected ({first}), and {serves}.",
            f"{look} The next training makes another candidate.",
        ]
    lines = [f"{key}: {export} is not promoted ({headline(decision)}: {first}), and {serves}."]
    if text := outlook(lake, key, decision, sizes, select_turns, today):
        lines.append(text)
    return [*lines, f"{look} To serve it all the same: `agent-pipeline promote {key}`."]
