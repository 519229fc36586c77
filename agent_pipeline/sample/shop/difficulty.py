"""The settings for the difficulty of the shop's tasks.

They control how many tasks need a decision or a multiplication (`refund part`, `unwanted ...`, the
refusals), how many need only copying (`by id`), and how much the users' writing differs from the
canonical form of the arguments.
"""

CASES = {
    "refund all": 16,
    "refund part": 18,
    "refund late": 18,
    "refund large": 10,
    "cancel open": 14,
    "cancel shipped": 14,
    "unwanted open": 5,
    "unwanted delivered": 5,
    "unwanted late": 5,
    "unwanted shipped": 5,
}
"""The users' wishes with the decisive state of the order, and their relative shares."""

PATHS = {
    "by id": 28,
    "by name": 10,
    "one of two": 16,
    "ask id": 12,
    "wrong id": 6,
    "ask which": 16,
    "instead": 12,
}
"""The ways in which a simulated user names the order. In `instead`, the user first makes a refused
request about one order, and then a request about another order.
"""

REQUESTS = {1: 70, 2: 22, 3: 8}
"""The number of requests per conversation, and their relative shares."""

NEXT_PATHS = {"by id": 55, "other order": 25, "wrong id": 8, "ask id": 12}
"""The ways in which a user names the order of a later request. `other order` needs a first request
that has shown two orders, and becomes `by id` otherwise.
"""

LIMITED = 0.3
"""The share of tasks whose rules have a limit for refunds."""

CANCELS_SHIPPED = 0.3
"""The share of tasks whose rules allow the cancellation of shipped orders."""

PRICES = (5, 10, 15, 20, 25, 30, 40, 50, 60, 80)
"""Prices of one unit in dollars. They are round numbers, because small models can multiply round
numbers but not primes.
"""

MULTIPLE = 0.5
"""The share of orders with 2 to 4 units among orders that do not need several units. Orders of
`refund part` always have several units.
"""

NEAR_WINDOW = 0.25
"""The share of deliveries within 3 days before or after the end of the refund window."""

LAST_DAY = 0.08
"""The share of deliveries on the last day of the refund window."""

UNTIDY_IDS = 0.12
"""The share of order ids that users do not write in the canonical form."""

CHATTER = 0.25
"""The probability of a greeting, and of thanks, in a first message."""

PERSONAL = {"": 90, "email": 3, "phone": 2, "card": 3, "address": 2}
"""The shares of first messages with a personal detail that redaction must find."""
