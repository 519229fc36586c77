"""The messages of a simulated shop user and their meaning, for each way of naming the order."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from agent_pipeline.sample.names import chatter
from agent_pipeline.sample.shop import wording
from agent_pipeline.sample.shop.agent import Intent, Request
from agent_pipeline.sample.shop.difficulty import CHATTER, UNTIDY_IDS
from agent_pipeline.sample.shop.rules import Rules
from agent_pipeline.sample.shop.wording import Words
from agent_pipeline.sample.world import Turn

Turns = tuple[Turn, ...]


@dataclass(frozen=True)
class Plot:
    """The facts of one request of a simulated user: the orders, the wish, and the names.

    Attributes:
        intent: The user's intent.
        order: The order that the user means.
        units: The number of units that the user means; None for all.
        other_item: The item in the user's other order.
        other_intent: The request about the other order, which the agent must refuse.
        wrong_id: An id that no order has.
        rules: The house rules.
        words: The phrases of the user.
        rng: The random stream for wording.
        is_first: Whether the request begins the conversation.
    """

    intent: Intent
    order: dict[str, Any]
    units: int | None
    other_item: str
    other_intent: Intent
    wrong_id: str
    rules: Rules
    words: Words
    rng: Random
    is_first: bool = True

    @property
    def item(self) -> str:
        """Return the ordered item as a word, such as `mug` or `mugs`."""
        return wording.things(self.order["item"], self.order["units"])

    @property
    def thing(self) -> str:
        """Return a phrase for what the user means, such as `the mugs` or `one of the two mugs`."""
        return (
            f"the {self.item}"
            if self.units is None
            else wording.part(self.order["item"], self.units, self.order["units"], self.rng)
        )

    @property
    def by_name(self) -> Request:
        """Return the request of a user who gives a name and an item."""
        return Request(
            self.intent, self.order["customer"], self.order["item"], self.units, self.rules
        )

    @property
    def by_id(self) -> Request:
        """Return the request of a user who gives the order's id."""
        return replace(self.by_name, key=self.order["order"], item=None)

    def ask(self, what: str, *, named: bool = False, intent: Intent | None = None) -> str:
        """Return the message that begins a request, with or without the user's name.

        Args:
            what: The thing that the user asks about.
            named: Whether the message contains the user's name.
            intent: The intent of the message; None for the plot's intent.
        """
        name = self.pick(self.words.by_name, name=self.order["customer"]) if named else ""
        text = self.pick(self.words.asks[intent or self.intent], what=what) + name
        if self.is_first:
            return chatter(text, CHATTER, self.rng)
        return self.pick(self.words.next_request, ask=text)

    def ask_with(self, order_id: str) -> str:
        """Return a message that names the order by its id, with or without the item."""
        by_item = self.units is not None or self.rng.random() < 0.3
        forms = self.words.by_id if by_item else self.words.whole
        return self.ask(self.rng.choice(forms).format(thing=self.thing, id=self.written(order_id)))

    def pick(self, forms: tuple[str, ...], **slots: str) -> str:
        """Return a random phrase with filled slots and a capital first letter."""
        return wording.first_upper(self.rng.choice(forms).format(**slots))

    def written(self, order_id: str) -> str:
        """Return an order id in a spelling that a user might choose, such as `k-482` for `K482`."""
        return wording.written_id(order_id, UNTIDY_IDS, self.rng)


def turns(path: str, plot: Plot) -> Turns:
    """Return the user's messages for a way of naming the order (see `difficulty.PATHS`)."""
    return SCRIPTS[path](plot)


def by_id(plot: Plot) -> Turns:
    """Return the messages of a user who gives the order's id at once."""
    return (Turn(plot.ask_with(plot.order["order"]), plot.by_id),)


def by_name(plot: Plot) -> Turns:
    """Return the messages of a user who gives name and item at once.

    The user has one or two orders.
    """
    return (Turn(plot.ask(plot.thing, named=True), plot.by_name),)


def ask_id(plot: Plot) -> Turns:
    """Return the messages of a user who gives an id or a name only when the agent asks for it."""
    unnamed = Turn(plot.ask(plot.thing), replace(plot.by_name, key=None))
    if plot.rng.random() < 0.6:
        return unnamed, Turn(
            plot.pick(plot.words.give_id, id=plot.written(plot.order["order"])), plot.by_id
        )
    return unnamed, Turn(plot.pick(plot.words.give_name, name=plot.order["customer"]), plot.by_name)


def wrong_id(plot: Plot) -> Turns:
    """Return the messages of a user who first gives a wrong order id."""
    first = Turn(plot.ask_with(plot.wrong_id), replace(plot.by_id, key=plot.wrong_id))
    return first, Turn(
        plot.pick(plot.words.correct, id=plot.written(plot.order["order"])), plot.by_id
    )


def ask_which(plot: Plot) -> Turns:
    """Return the messages of a user who has two orders and does not say which order is meant."""
    vague = (
        "my order"
        if plot.units is None
        else f"{wording.NUMBERS[plot.units]} of the things in my order"
    )
    first = Turn(plot.ask(vague, named=True), replace(plot.by_name, item=None))
    return first, Turn(plot.pick(plot.words.choose, thing=plot.item), plot.by_name)


def instead(plot: Plot) -> Turns:
    """Return the turns of a user who first asks for something that the rules refuse, and then makes
    the real request about another order.
    """
    vain = replace(plot.by_name, intent=plot.other_intent, item=plot.other_item, units=None)
    first = Turn(
        plot.ask(f"the {plot.other_item} order", named=True, intent=plot.other_intent), vain
    )
    return first, Turn(plot.pick(plot.words.instead[plot.intent], what=plot.thing), plot.by_name)


def other_order(plot: Plot) -> Turns:
    """Return the message of a user who names an order that an earlier look-up has shown."""
    return (Turn(plot.ask(plot.thing), plot.by_name),)


SCRIPTS: dict[str, Callable[[Plot], Turns]] = {
    "by id": by_id,
    "by name": by_name,
    "one of two": by_name,
    "ask id": ask_id,
    "wrong id": wrong_id,
    "ask which": ask_which,
    "instead": instead,
    "other order": other_order,
}
