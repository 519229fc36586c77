"""The mistakes of a shop agent in changing calls, and the results that it makes up if it skips a
look-up.
"""

from dataclasses import replace
from random import Random

from agent_pipeline.sample.shop.agent import Request
from agent_pipeline.sample.shop.world import line, order
from agent_pipeline.sample.world import Call


def wrong_tool(call: Call, rng: Random) -> Call:
    """Return a `cancel` instead of a `refund`, or a `refund` instead of a `cancel`."""
    if call.name == "refund":
        return replace(call, name="cancel", arguments={"order": call.arguments["order"]})
    return replace(
        call, name="refund", arguments={**call.arguments, "amount": rng.choice((10, 20, 50))}
    )


def wrong_amount(call: Call, rng: Random) -> Call | None:
    """Return the refund with half of the amount, double the amount, or 10 dollars too much."""
    if call.name != "refund":
        return None
    amount = call.arguments["amount"]
    return replace(
        call,
        arguments={
            **call.arguments,
            "amount": rng.choice((amount * 2, max(amount // 2, 1), amount + 10)),
        },
    )


def invented_id(call: Call, rng: Random) -> Call:
    """Return the call with an order that nobody mentioned: the right id with other digits."""
    order_id = call.arguments["order"]
    digits = (int(order_id[1:]) + rng.randrange(1, 900)) % 1000
    return replace(call, arguments={**call.arguments, "order": f"{order_id[0]}{digits:03d}"})


SLIPS = {"wrong_tool": wrong_tool, "wrong_amount": wrong_amount, "invented_id": invented_id}


def imagine(look_up: Call, request: Request, rng: Random) -> dict[str, str]:
    """Return a made-up order that suits the request. If the user gave a name, its id is made up
    too.
    """
    key = look_up.arguments["query"]
    order_id = f"{rng.choice('KRT')}{rng.randrange(100, 1000)}" if " " in key else key
    status = "open" if request.intent == "cancel" else "delivered"
    return {
        order_id: line(
            order(order_id, "", request.item or "item", 1, rng.choice((10, 20, 25)), status, 3)
        )
    }
