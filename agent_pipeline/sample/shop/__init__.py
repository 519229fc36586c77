"""A web shop: orders that users want refunded or cancelled, and an agent that must look before it
acts.
"""

from agent_pipeline.sample.environment import Environment
from agent_pipeline.sample.shop.agent import PHRASES, support
from agent_pipeline.sample.shop.answers import said_wrong
from agent_pipeline.sample.shop.slips import SLIPS, imagine
from agent_pipeline.sample.shop.tasks import make_tasks
from agent_pipeline.sample.shop.world import Shop, looked_up
from agent_pipeline.sample.world import Domain

SHOP = Domain(
    Shop,
    support,
    PHRASES,
    make_tasks,
    imagine,
    SLIPS,
    looked_up,
    said_wrong,
    variants=("changed_rule", "other_words", "second_request"),
)


class World(Environment):
    """The shop as an environment of TRL's `GRPOTrainer`, and of the asset `episodes`."""

    domain = SHOP
    variants = SHOP.variants

    def find_orders(self, query: str) -> str:
        """Find the orders with an id, or of a customer.

        Args:
            query: The order's id, or the customer's full name.

        Returns:
            The orders by id, a line each, as JSON.
        """
        return self._call("find_orders", query=query)

    def refund(self, order: str, amount: int) -> str:
        """Pay money back for an order.

        Args:
            order: The order's id.
            amount: The dollars to pay back.

        Returns:
            {"ok":true}, or an error, as JSON.
        """
        return self._call("refund", order=order, amount=amount)

    def cancel(self, order: str) -> str:
        """Cancel an order.

        Args:
            order: The order's id.

        Returns:
            {"ok":true}, or an error, as JSON.
        """
        return self._call("cancel", order=order)
