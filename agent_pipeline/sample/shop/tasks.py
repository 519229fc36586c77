"""The shop's tasks: the user's wishes (cases), the way in which the user names each order (a path),
the house rules, and the final state of the world.
"""

from dataclasses import replace
from random import Random
from typing import Any, get_args

from agent_pipeline.sample.draw import deck, working_day
from agent_pipeline.sample.names import draw_names, personal_detail
from agent_pipeline.sample.shop import wording
from agent_pipeline.sample.shop.agent import Intent
from agent_pipeline.sample.shop.difficulty import (
    CANCELS_SHIPPED,
    CASES,
    LAST_DAY,
    LIMITED,
    MULTIPLE,
    NEAR_WINDOW,
    NEXT_PATHS,
    PATHS,
    PERSONAL,
    PRICES,
    REQUESTS,
)
from agent_pipeline.sample.shop.rules import LIMITS, Rules, change_days, draw_rules
from agent_pipeline.sample.shop.script import Plot, turns
from agent_pipeline.sample.shop.wording import Words
from agent_pipeline.sample.shop.world import after, order
from agent_pipeline.sample.world import Records, Task, Variant

REFUSED = ("refund late", "refund large", "cancel shipped", "unwanted late", "unwanted shipped")
"""The cases in which the house rules may forbid the request."""


def make_tasks(prefix: str, count: int, rng: Random, variant: Variant = "") -> list[Task]:
    """Return `count` tasks with ids `<prefix>-001`, and so on. All of them begin with different
    messages.

    A task of a variant has the same case, path and orders as the task without a variant.

    Args:
        prefix: The first part of the ids.
        count: The number of tasks.
        rng: The random stream.
        variant: How the tasks differ from those of the sample; empty if they do not differ.
    """
    decks = [deck(weights, count, rng) for weights in (CASES, PATHS, REQUESTS, PERSONAL)]
    tasks: dict[str, Task] = {}
    for number, (case, path, requests, detail) in enumerate(zip(*decks, strict=True), start=1):
        if variant == "second_request":
            requests = max(requests, 2)
        while True:
            maker = TaskMaker(f"{prefix}-{number:03d}", Random(rng.random()), variant)
            task = maker.make(case, path, requests)
            if detail:
                task = with_personal(task, detail, maker.rng)
            if tasks.setdefault(task.turns[0].text, task) is task:
                break
    return list(tasks.values())


def with_personal(task: Task, detail: str, rng: Random) -> Task:
    """Return the task with a personal detail at the end of its first message."""
    first, *others = task.turns
    first = replace(first, text=first.text + personal_detail(detail, rng))
    return replace(task, turns=(first, *others), personal=detail)


class TaskMaker:
    """A generator of one task.

    Attributes:
        task_id: The id of the task.
        rng: The random stream of the facts. The wording has a stream of its own, so that other
            words do not change the facts.
    """

    def __init__(self, task_id: str, rng: Random, variant: Variant) -> None:
        self.task_id, self.rng, self._variant = task_id, rng, variant
        self._words_rng = Random(rng.random())
        self._words: Words = wording.OTHER if variant == "other_words" else wording.TRAINED
        self._rules = draw_rules(LIMITED, CANCELS_SHIPPED, rng)
        letters = [rng.choice("KRT") for _ in range(12)]
        numbers = rng.sample(range(100, 1000), 12)
        self._ids = [f"{letter}{digits}" for letter, digits in zip(letters, numbers, strict=True)]
        self._names = draw_names(
            5, self._words_rng, self._words.first_names, self._words.last_names
        )
        self._items = self._words_rng.sample(self._words.items, 12)
        self._units: dict[str, int | None] = {}

    def make(self, case: str, path: str, requests: int) -> Task:
        """Return the task: the user's orders among a stranger's orders, the turns, and the goal.

        Args:
            case: The case of the first request.
            path: The path of the first request.
            requests: The number of requests.
        """
        if case == "refund large" and not self._rules.limit:
            self._rules = replace(self._rules, limit=self.rng.choice(LIMITS[:5]))
        changed_rules = change_days(self._rules, self.rng)
        if self._variant == "changed_rule":
            self._rules = changed_rules
        name, *other_names = self._names
        refused = self.rng.choice([case for case in REFUSED if self._refuses(case)])
        main = self._order(name, case)
        plot = self._plot(case, main, refused)
        orders = [main]
        other_case = ""
        if path in ("one of two", "ask which", "instead"):
            other_case = refused if path == "instead" else self._draw_case()
            other = self._order(name, other_case, item=plot.other_item)
            orders.append(other)
            self.rng.shuffle(orders)
        script, story = list(turns(path, plot)), [(case, path, plot)]
        for customer in other_names[: requests - 1]:
            next_path = self.rng.choices(list(NEXT_PATHS), list(NEXT_PATHS.values()))[0]
            if next_path == "other order" and (path == "instead" or not other_case):
                next_path = "by id"
            if next_path == "other order":
                next_case, next_order = other_case, other
                other_case = ""
            else:
                next_case = self._draw_case()
                next_order = self._order(customer, next_case)
                orders.append(next_order)
            plot = replace(self._plot(next_case, next_order, refused), is_first=False)
            script += turns(next_path, plot)
            story.append((next_case, next_path, plot))
        orders += [self._order(self._names[-1], "cancel open") for _ in range(3)]
        start = {record["order"]: record for record in orders}
        goal = start
        for _, _, plot in story:
            goal = fulfill(goal, plot.order, plot.units, self._rules)
        kind = ", then ".join(f"{case}, {path}" for case, path, _ in story)
        day = working_day(self.rng)
        return Task(self.task_id, kind, day, self._rules.system, tuple(script), start, goal)

    def _refuses(self, case: str) -> bool:
        """Return whether the house rules of this task forbid the request of a case."""
        if case.endswith("large"):
            return self._rules.limit is not None
        if case.endswith("shipped"):
            return not self._rules.cancels_shipped
        return case.endswith("late")

    def _draw_case(self) -> str:
        """Return a random case that is possible with the house rules of this task."""
        cases = {
            case: weight
            for case, weight in CASES.items()
            if case != "refund large" or self._rules.limit
        }
        return self.rng.choices(list(cases), list(cases.values()))[0]

    def _plot(self, case: str, main: dict[str, Any], refused: str) -> Plot:
        """Return the facts of a request for an order.

        Args:
            case: The case of the request.
            main: The order.
            refused: The case of a request that the agent must refuse.
        """
        return Plot(
            INTENTS[case.split()[0]],
            main,
            self._units[main["order"]],
            self._items.pop(),
            INTENTS[refused.split()[0]],
            self._ids.pop(),
            self._rules,
            self._words,
            self._words_rng,
        )

    def _order(self, customer: str, case: str, item: str = "") -> dict[str, Any]:
        """Return the record of an order in the state that a case needs.

        Args:
            customer: The full name of the customer.
            case: The case.
            item: The product; empty for a random product.
        """
        rng = Random(self.rng.random())
        order_id, item = self._ids.pop(), item or self._items.pop()
        while True:
            record, units = draw_order(order_id, customer, item, case, self._rules, rng)
            is_late = record.get("days", 0) > self._rules.return_days
            if record["status"] != "delivered" or (
                is_late == case.endswith("late")
                and (is_late or self._rules.allow(record, units) != case.endswith("large"))
            ):
                self._units[order_id] = units
                return record


INTENTS: dict[str, Intent] = {intent: intent for intent in get_args(Intent)}


def draw_order(
    order_id: str, customer: str, item: str, case: str, rules: Rules, rng: Random
) -> tuple[dict[str, Any], int | None]:
    """Return the record of a random order, and the number of units that the user means.

    Args:
        order_id: The id of the order.
        customer: The full name of the customer.
        item: The product.
        case: The case of the user's request.
        rules: The house rules.
        rng: The random stream.

    Returns:
        The record, and the number of units; None for all units.
    """
    several = case in ("refund part", "refund large") or rng.random() < MULTIPLE
    units = rng.randint(2, 4) if several else 1
    status = next((state for state in ("open", "shipped") if case.endswith(state)), "delivered")
    near, last_day = rng.random() < NEAR_WINDOW, rng.random() < LAST_DAY
    days = rules.return_days - rng.randint(0, 2 if near else rules.return_days)
    if case.endswith("late"):
        days = rules.return_days + rng.randint(1, 3 if near else 39)
    elif last_day:
        days = rules.return_days
    record = order(order_id, customer, item, units, rng.choice(PRICES), status, days)
    return record, rng.randint(1, units - 1) if case == "refund part" else None


def fulfill(records: Records, wanted: dict[str, Any], units: int | None, rules: Rules) -> Records:
    """Return the records after a request was handled by the house rules.

    Args:
        records: The state of the world before the request.
        wanted: The order that the user means.
        units: The number of units to refund; None for all units.
        rules: The house rules.
    """
    if not rules.allow(wanted, units):
        return records
    if wanted["status"] != "delivered":
        return after(records, wanted["order"], status="cancelled")
    return after(records, wanted["order"], refunded=wanted["price"] * (units or wanted["units"]))
