"""The policy of a good support agent, which takes the right step in every state."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

from agent_pipeline.sample.shop.rules import USUAL_RULES, Rules
from agent_pipeline.sample.shop.world import read_line
from agent_pipeline.sample.world import Call, Mind, Say, Step

Intent = Literal["refund", "cancel", "unwanted"]

PHRASES = {
    "ask_key": (
        "What is the order id, or your name?",
        "Could you give me the order id or your name?",
        "Which order id or name is it under?",
        "Please tell me the order id or your full name.",
    ),
    "ask_which": (
        "Which one, the {first} or the {second}?",
        "Do you mean the {first} or the {second}?",
        "Is it about the {first} or the {second}?",
        "I see a {first} and a {second}. Which one?",
    ),
    "not_found": (
        "I can't find {key}. Could you check the id?",
        "There is no order {key}. Please check the id.",
        "{key} is not in our records. Is the id right?",
        "I see no order {key}. What is the right id?",
    ),
    "refunded": (
        "I have refunded {amount} dollars for {order}.",
        "Done: {amount} dollars refunded for {order}.",
        "You get {amount} dollars back for {order}.",
        "The refund of {amount} dollars for {order} is on its way.",
    ),
    "cancelled": (
        "Order {order} is cancelled.",
        "Done, {order} is cancelled.",
        "I have cancelled {order}.",
        "{order} has been cancelled for you.",
    ),
    "too_late": (
        "Sorry, {order} was delivered more than {days} days ago.",
        "{order} is past the {days} days, so no refund.",
        "I can't refund {order}: the {days} days are over.",
        "The {days} days for {order} are over, sorry.",
    ),
    "too_large": (
        "Sorry, I can't refund more than {limit} dollars for {order}.",
        "{order} is over the limit of {limit} dollars, so no refund.",
        "I can't refund {order}: the limit is {limit} dollars.",
        "A refund for {order} would be more than {limit} dollars, sorry.",
    ),
    "shipped": (
        "Sorry, {order} has already shipped.",
        "{order} has shipped, so I can't cancel it.",
        "I can't cancel {order}: it has shipped.",
        "It is too late to cancel {order}: it has shipped.",
    ),
    "failed": (
        "That did not work for {order}.",
        "Sorry, {order} could not be changed.",
        "Something went wrong with {order}.",
        "I could not do that for {order}.",
    ),
}


DIGITS = "0123456789"


@dataclass(frozen=True)
class Request:
    """A request that a user makes to the support agent.

    Attributes:
        intent: The kind of request.
        key: The order id or the full name; None if the user gave neither.
        item: The item, if the user named it.
        units: The number of units; None for all.
        rules: The house rules, which the agent reads in the system prompt.
    """

    intent: Intent
    key: str | None
    item: str | None = None
    units: int | None = None
    rules: Rules = USUAL_RULES


def support(request: Request, mind: Mind) -> Generator[Step, Any, None]:
    """Yield the steps of the agent: find the order, decide by the house rules, act, and answer. If
    something is missing, ask for it.
    """
    if request.key is None:
        yield mind.voice("ask_key").after("Given: no id, no name.")
        return
    if request.key not in mind.seen:
        given_key = "name" if " " in request.key else "id"
        mind.seen[request.key] = yield Call(
            "find_orders", {"query": request.key}, f"Given: {given_key} {request.key}."
        )
    orders = [read_line(order_id, text) for order_id, text in mind.seen[request.key].items()]
    matching = [order for order in orders if request.item in (None, order["item"])]
    if not matching:
        yield mind.voice("not_found", key=request.key)
    elif len(matching) > 1:
        yield mind.voice("ask_which", first=matching[0]["item"], second=matching[1]["item"]).after(
            asked(request, len(orders))
        )
    else:
        yield from act(request, matching[0], len(orders), mind)


def asked(request: Request, orders: int) -> str:
    """Return the agent's note before a decision: the user's request, and the number of orders
    found.

    Without this note, small models refund all units of an order although the user named fewer, or
    act on the first of two orders although the user named no item. The refund is written with the
    same words that precede the product ("refund 1, tent" and "refund 1 of 3"), because small models
    copy the text that followed the same word before.
    """
    by_name = " " in (request.key or "")
    which = request.item or ("any" if by_name else request.key)
    units = f" {request.units or 'all'}" if request.intent == "refund" else ""
    return f"Asked: {request.intent}{units}, {which}. Found: {orders}."


def act(
    request: Request, order: dict[str, Any], orders: int, mind: Mind
) -> Generator[Step, Any, None]:
    """Yield the steps that fulfill a request for an order, or that explain why it is refused.

    `orders` is the number of orders that were found.
    """
    step = decide(request, order, orders, mind)
    if isinstance(step, Say):
        yield step
        return
    result = yield step
    done = ("refunded" if step.name == "refund" else "cancelled") if result.get("ok") else "failed"
    yield mind.voice(done, **step.arguments)


def decide(request: Request, order: dict[str, Any], orders: int, mind: Mind) -> Step:
    """Return the right step by the house rules, with the facts that it relies on.

    The facts repeat the rule that decides, next to the value that is compared with it. If
    `mind.obeys` is false, the agent ignores the rules and does what the user asks for.

    Args:
        request: The user's request.
        order: The order that was found.
        orders: The number of orders that were found.
        mind: The state of the agent.
    """
    order_id, status = order["order"], order["status"]
    facts = f"{asked(request, orders)} {order['item'].capitalize()} {order_id}: {status}"
    if request.intent == "refund" or (request.intent == "unwanted" and status == "delivered"):
        return decide_refund(request, order, facts, mind)
    is_allowed = request.rules.allow(order, None)
    rule = f"rule: {request.rules.cancellable}, {status}: {'yes' if is_allowed else 'no'}"
    facts = f"{facts}, {rule}."
    if not is_allowed and mind.obeys:
        return mind.voice("shipped", order=order_id).after(facts)
    return Call("cancel", {"order": order_id}, facts)


def decide_refund(request: Request, order: dict[str, Any], facts: str, mind: Mind) -> Step:
    """Return the refund of an order, or the answer that the house rules forbid the refund.

    Args:
        request: The user's request.
        order: The order that was found.
        facts: The agent's note so far.
        mind: The state of the agent.
    """
    order_id, days, rules = order["order"], order.get("days", 0), request.rules
    is_late = days > rules.return_days
    facts = (
        f"{facts}, day {compare(days, rules.return_days, 2)}, {'late' if is_late else 'in time'}"
    )
    if is_late and mind.obeys:
        return mind.voice("too_late", order=order_id, days=rules.return_days).after(f"{facts}.")
    units = request.units or order["units"]
    amount = order["price"] * units
    facts = (
        f"{facts}, refund {request.units or 'all'} of {order['units']}, {units} x {order['price']} "
        f"= {amount}"
    )
    if rules.limit:
        is_large = amount > rules.limit
        facts = (
            f"{facts}, {compare(amount, rules.limit, 3)}, {'too much' if is_large else 'allowed'}"
        )
        if is_large and mind.obeys:
            return mind.voice("too_large", order=order_id, limit=rules.limit).after(f"{facts}.")
    return Call("refund", {"order": order_id, "amount": amount}, f"{facts}.")


def compare(value: int, bound: int, size: int) -> str:
    """Return the comparison of a value with a bound, digit by digit, up to the first difference.

    The two digits are written first. If they differ, the agent counts from 0 to the smaller digit,
    which decides. For example, `25 of 10: 2-1 01 >`, `21 of 28: 2-2 =, 1-8 01 <` and `05 of 30: 0-3
    0 <`. Small models cannot compare numbers that they did not see in training, and they do not
    learn the order of all pairs of digits from a few hundred examples. But they can count, and they
    see which of the two digits they have reached.

    Args:
        value: The value.
        bound: The bound.
        size: The number of digits that both numbers are written with.
    """
    digits, bound_digits = f"{value:0{size}d}", f"{bound:0{size}d}"
    steps = []
    for digit, bound_digit in zip(digits, bound_digits, strict=True):
        if digit == bound_digit:
            steps.append(f"{digit}-{bound_digit} =")
            continue
        smaller = min(digit, bound_digit)
        count = DIGITS[: int(smaller) + 1]
        relation = "<" if digit == smaller else ">"
        steps.append(f"{digit}-{bound_digit} {count} {relation}")
        break
    return f"{digits} of {bound_digits}: {', '.join(steps)}"
