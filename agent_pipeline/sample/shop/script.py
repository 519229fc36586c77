"""What a shop user says in turn, and what each turn means, by the path on which the agent is led to
the order.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from agent_pipeline.sample.names import chatter
from agent_pipeline.sample.shop import wording
from agent_pipeline.sample.shop.agent import Intent, Request
from agent_pipeline.sample.shop.difficulty import CHATTER, UNTIDY_IDS
from agent_pipeline.sample.world import Turn

Turns = tuple[Turn, ...]


@dataclass(frozen=True)
class Plot:
    """What there is to say: the intent, the order meant, how many of its units (None: all), and
    what may lead astray.

    `other_item` is in the user's other order, `other_intent` what is asked of it in vain;
    `wrong_id` is an id that nobody has.
    """

    intent: Intent
    order: dict[str, Any]
    units: int | None
    other_item: str
    other_intent: Intent
    wrong_id: str
    rng: Random

    @property
    def item(self) -> str:
        """The item as ordered, `mug` or `mugs`."""
        return wording.things(self.order["item"], self.order["units"])

    @property
    def thing(self) -> str:
        """The thing that it is about, `the mugs` or `one of the two mugs`."""
        return (
            f"the {self.item}"
            if self.units is None
            else wording.part(self.order["item"], self.units, self.order["units"], self.rng)
        )

    @property
    def by_name(self) -> Request:
        """The request of a user who gives a name and says which item."""
        return Request(self.intent, self.order["customer"], self.order["item"], self.units)

    @property
    def by_id(self) -> Request:
        """The request of a user who gives the order's id."""
        return replace(self.by_name, key=self.order["order"], item=None)

    def ask(self, what: str, *, named: bool = False, intent: Intent | None = None) -> str:
        """A first message: what is wanted, with or without the user's name."""
        name = self.pick(wording.BY_NAME, name=self.order["customer"]) if named else ""
        return chatter(
            self.pick(wording.ASKS[intent or self.intent], what=what) + name, CHATTER, self.rng
        )

    def ask_with(self, order_id: str) -> str:
        """A first message that names the order by an id, with or without the item."""
        forms = (
            wording.BY_ID if self.units is not None or self.rng.random() < 0.3 else wording.WHOLE
        )
        return self.ask(self.rng.choice(forms).format(thing=self.thing, id=self.written(order_id)))

    def pick(self, forms: tuple[str, ...], **slots: str) -> str:
        """One of the forms, filled in, beginning as a sentence does."""
        return wording.first_upper(self.rng.choice(forms).format(**slots))

    def written(self, order_id: str) -> str:
        """An order id as this user writes it."""
        return wording.written_id(order_id, UNTIDY_IDS, self.rng)


def turns(path: str, plot: Plot) -> Turns:
    """The turns of a path, by its name in `difficulty.PATHS`."""
    return SCRIPTS[path](plot)


def by_id(plot: Plot) -> Turns:
    """The id is given at once."""
    return (Turn(plot.ask_with(plot.order["order"]), plot.by_id),)


def by_name(plot: Plot) -> Turns:
    """Name and item are given at once; the user has one order, or two."""
    return (Turn(plot.ask(plot.thing, named=True), plot.by_name),)


def ask_id(plot: Plot) -> Turns:
    """Neither id nor name: one of them is given when asked for."""
    unnamed = Turn(plot.ask(plot.thing), replace(plot.by_name, key=None))
    if plot.rng.random() < 0.6:
        return unnamed, Turn(
            plot.pick(wording.GIVE_ID, id=plot.written(plot.order["order"])), plot.by_id
        )
    return unnamed, Turn(plot.pick(wording.GIVE_NAME, name=plot.order["customer"]), plot.by_name)


def wrong_id(plot: Plot) -> Turns:
    """The id is wrong at first."""
    first = Turn(plot.ask_with(plot.wrong_id), replace(plot.by_id, key=plot.wrong_id))
    return first, Turn(plot.pick(wording.CORRECT, id=plot.written(plot.order["order"])), plot.by_id)


def ask_which(plot: Plot) -> Turns:
    """The user has two orders and does not say which is meant."""
    vague = (
        "my order"
        if plot.units is None
        else f"{wording.NUMBERS[plot.units]} of the things in my order"
    )
    first = Turn(plot.ask(vague, named=True), replace(plot.by_name, item=None))
    return first, Turn(plot.pick(wording.CHOOSE, thing=plot.item), plot.by_name)


def instead(plot: Plot) -> Turns:
    """The user asks something of the other order that the rules refuse, then comes to the point."""
    vain = Request(plot.other_intent, plot.order["customer"], plot.other_item)
    first = Turn(
        plot.ask(f"the {plot.other_item} order", named=True, intent=plot.other_intent), vain
    )
    return first, Turn(plot.pick(wording.INSTEAD[plot.intent], what=plot.thing), plot.by_name)


SCRIPTS: dict[str, Callable[[Plot], Turns]] = {
    "by id": by_id,
    "by name": by_name,
    "one of two": by_name,
    "ask id": ask_id,
    "wrong id": wrong_id,
    "ask which": ask_which,
    "instead": instead,
}
