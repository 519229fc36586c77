"""The house rules of the shop: what the system prompt says, and what the rules allow.

The rules differ between tasks, so an agent must read them in the system prompt. The policy that
follows the rules is in `agent`, and the difficulty of the tasks is in `difficulty`.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

RETURN_DAYS = (10, 12, 13, 15, 18, 20, 21, 23, 24, 25, 28, 30, 33, 35, 40, 42, 45, 50, 56, 60)
"""The refund windows of the sample's tasks, in days after delivery. All have two digits, because
small models often forget the leading zero of a bound.
"""

OTHER_RETURN_DAYS = (11, 14, 16, 17, 22, 27, 32, 38, 48, 54)
"""The refund windows of the variant `changed_rule`. No session of the sample has them."""

LIMITS = (100, 110, 120, 140, 150, 180, 200)
"""The largest refunds in dollars, for tasks whose rules have such a limit."""


@dataclass(frozen=True)
class Rules:
    """The house rules of one task.

    Attributes:
        return_days: The number of days after delivery during which a refund is possible.
        limit: The largest refund in dollars; None if there is no limit.
        cancels_shipped: Whether orders that have shipped may be cancelled.
    """

    return_days: int = 30
    limit: int | None = None
    cancels_shipped: bool = False

    @property
    def system(self) -> str:
        """Return the system prompt that states these rules."""
        limit = f", at most {self.limit} dollars" if self.limit else ""
        return (
            "Find orders by id (like K482), else by name. Refund price x units within "
            f"{self.return_days} days{limit}. Cancel {self.cancellable} orders. Unwanted: refund "
            "if delivered, else cancel. State the facts, then act."
        )

    @property
    def cancellable(self) -> str:
        """Return the states in which an order may be cancelled, in words."""
        return "open or shipped" if self.cancels_shipped else "only open"

    def allow(self, order: dict[str, Any], units: int | None) -> bool:
        """Return whether the rules allow a refund of a delivered order, or the cancellation of any
        other order.

        Args:
            order: The record of the order.
            units: The number of units to refund; None for all.
        """
        if order["status"] != "delivered":
            return order["status"] == "open" or self.cancels_shipped
        amount = order["price"] * (units or order["units"])
        return bool(order["days"] <= self.return_days and amount <= (self.limit or amount))


USUAL_RULES = Rules()
"""The rules of a request that says nothing about them."""


def draw_rules(limited: float, cancels_shipped: float, rng: Random) -> Rules:
    """Return random rules.

    Args:
        limited: The share of rules with a limit for refunds.
        cancels_shipped: The share of rules that allow the cancellation of shipped orders.
        rng: The random stream.
    """
    days, limit = rng.choice(RETURN_DAYS), rng.choice(LIMITS)
    has_limit, cancels = rng.random() < limited, rng.random() < cancels_shipped
    return Rules(days, limit if has_limit else None, cancels)


def change_days(rules: Rules, rng: Random) -> Rules:
    """Return the rules with a refund window that no session of the sample has."""
    return replace(rules, return_days=rng.choice(OTHER_RETURN_DAYS))
