"""The shop's state and tools: `find_orders` reads the orders, and `refund` and `cancel` change
them.
"""

import re
from typing import Any

from agent_pipeline.sample.world import Call, Records, World, tool

LINE = re.compile(r"(\d+) x (.+) at \$(\d+), (\w+)(?: (\d+) days ago)?")


def order(
    order_id: str, customer: str, item: str, units: int, price: int, status: str, days: int = 0
) -> dict[str, Any]:
    """Return the record of an order.

    Args:
        order_id: The id.
        customer: The customer's full name.
        item: The item.
        units: The number of units.
        price: The price of one unit in dollars.
        status: The status of the order.
        days: The number of days since delivery.
    """
    record = {
        "order": order_id,
        "customer": customer,
        "item": item,
        "units": units,
        "price": price,
        "status": status,
    }
    return {**record, "days": days} if status == "delivered" else record


class Shop(World):
    """A shop with orders by id."""

    tools = (
        tool("find_orders", query={"type": "string"}),
        tool("refund", order={"type": "string"}, amount={"type": "integer"}),
        tool("cancel", order={"type": "string"}),
    )
    reads = frozenset({"find_orders"})

    def find_orders(self, query: str) -> dict[str, str]:
        """Return one line per order with this id, or of the customer with this full name. Return
        `{}` if there are no such orders.
        """
        return {
            key: line(record)
            for key, record in self.records.items()
            if query in (record["order"], record["customer"])
        }

    def refund(self, order: str, amount: int) -> dict[str, object]:
        """Refund `amount` dollars."""
        if order not in self.records:
            return {"error": "unknown order"}
        record = self.records[order]
        record["refunded"] = record.get("refunded", 0) + amount
        return {"ok": True}

    def cancel(self, order: str) -> dict[str, object]:
        """Cancel an order, regardless of its state."""
        if order not in self.records:
            return {"error": "unknown order"}
        self.records[order]["status"] = "cancelled"
        return {"ok": True}


def line(record: dict[str, object]) -> str:
    """Return an order as the tool describes it, such as `2 x mug at $15, delivered 12 days ago`.

    JSON fields would cost half as many tokens again.
    """
    age = f" {record['days']} days ago" if record["status"] == "delivered" else ""
    return f"{record['units']} x {record['item']} at ${record['price']}, {record['status']}{age}"


def read_line(order_id: str, text: str) -> dict[str, object]:
    """Return the record that an agent reads from a line of `find_orders`. The customer is missing."""
    units, item, price, status, days = LINE.fullmatch(text).groups()
    return order(order_id, "", item, int(units), int(price), status, int(days or 0))


def looked_up(call: Call, results: list[tuple[Call, Any]]) -> bool:
    """Return whether an earlier `find_orders` showed the order that this call changes."""
    return any(
        call.arguments["order"] in orders_found
        for past, orders_found in results
        if past.name == "find_orders"
    )


def after(records: Records, order_id: str, **changes: object) -> Records:
    """Return the records after changes to one order."""
    return {**records, order_id: {**records[order_id], **changes}}
