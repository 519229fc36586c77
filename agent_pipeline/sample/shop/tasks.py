"""The shop's tasks: the user's wish (a case), the way in which the user names the order (a path),
and the final state of the world.
"""

from dataclasses import replace
from random import Random
from typing import Any

from agent_pipeline.sample.draw import deck, working_day
from agent_pipeline.sample.names import personal_detail, two_names
from agent_pipeline.sample.shop.difficulty import (
    CASES,
    MULTIPLE,
    NEAR_WINDOW,
    PATHS,
    PERSONAL,
    PRICES,
)
from agent_pipeline.sample.shop.script import Plot, turns
from agent_pipeline.sample.shop.world import RETURN_DAYS, SYSTEM, after, order
from agent_pipeline.sample.world import Records, Task

ITEMS = ("kettle", "lamp", "mug", "chair", "desk", "clock", "rug", "towel", "pillow", "basket", "mirror", "plate",
         "bowl", "tent", "backpack", "jacket", "shirt", "scarf", "helmet", "radio", "camera", "suitcase", "keyboard",
         "toaster")  # fmt: skip
REFUSED = ("refund late", "cancel shipped", "unwanted late", "unwanted shipped")
"""The cases in which the house rules forbid the request."""


def make_tasks(prefix: str, count: int, rng: Random) -> list[Task]:
    """Return `count` tasks with ids `<prefix>-001`, and so on. All of them begin with different
    messages.
    """
    decks = deck(CASES, count, rng), deck(PATHS, count, rng), deck(PERSONAL, count, rng)
    tasks: dict[str, Task] = {}
    for number, (case, path, detail) in enumerate(zip(*decks, strict=True), start=1):
        while True:
            task = make_task(f"{prefix}-{number:03d}", case, path, rng)
            if detail:
                task = with_personal(task, detail, rng)
            if tasks.setdefault(task.turns[0].text, task) is task:
                break
    return list(tasks.values())


def with_personal(task: Task, detail: str, rng: Random) -> Task:
    """Return the task with a personal detail at the end of its first message."""
    first, *others = task.turns
    first = replace(first, text=first.text + personal_detail(detail, rng))
    return replace(task, turns=(first, *others), personal=detail)


def make_task(task_id: str, case: str, path: str, rng: Random) -> Task:
    """Return a task: the user's orders among a stranger's orders, the turns, and the goal."""
    main_id, other_id, wrong_id, *strange_ids = (
        f"{rng.choice('KRT')}{n}" for n in rng.sample(range(100, 1000), 6)
    )
    name, stranger = two_names(rng)
    item, other_item, *strange_items = rng.sample(ITEMS, 5)
    main = an_order(main_id, name, item, case, rng)
    refused = rng.choice(REFUSED)
    orders = [main]
    if path in ("one of two", "ask which", "instead"):
        other_case = refused if path == "instead" else rng.choice(tuple(CASES))
        orders.append(an_order(other_id, name, other_item, other_case, rng))
        rng.shuffle(orders)
    strange = zip(strange_ids, strange_items, strict=True)
    orders += [
        an_order(order_id, stranger, thing, "cancel open", rng) for order_id, thing in strange
    ]
    start = {record["order"]: record for record in orders}
    units = rng.randint(1, main["units"] - 1) if case == "refund part" else None
    plot = Plot(case.split()[0], main, units, other_item, refused.split()[0], wrong_id, rng)
    goal = goal_of(case, start, main, units)
    return Task(
        task_id, f"{case}, {path}", working_day(rng), SYSTEM, turns(path, plot), start, goal
    )


def goal_of(case: str, start: Records, main: dict[str, Any], units: int | None) -> Records:
    """Return the final state of the world according to the house rules.

    `units` is the number of units to refund (None for all units).
    """
    if case in REFUSED:
        return start
    if main["status"] == "open":
        return after(start, main["order"], status="cancelled")
    return after(start, main["order"], refunded=main["price"] * (units or main["units"]))


def an_order(order_id: str, name: str, item: str, case: str, rng: Random) -> dict[str, Any]:
    """Return an order in the state that a case needs."""
    units = rng.randint(2, 4) if case == "refund part" or rng.random() < MULTIPLE else 1
    status = next((state for state in ("open", "shipped") if case.endswith(state)), "delivered")
    near = rng.random() < NEAR_WINDOW
    past_window = (
        rng.randint(1, 3 if near else 40)
        if case.endswith("late")
        else -rng.randint(0, 2 if near else 28)
    )
    return order(order_id, name, item, units, rng.choice(PRICES), status, RETURN_DAYS + past_window)
