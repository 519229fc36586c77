"""The knobs on the difficulty of the shop's tasks.

What needs a decision or a product (`refund part`, `unwanted ...`, the refusals), what is copying
(`by id`), and how far a user's writing is from the canonical form of the arguments.
"""

CASES = {
    "refund all": 16,
    "refund part": 18,
    "refund late": 18,
    "cancel open": 14,
    "cancel shipped": 14,
    "unwanted open": 5,
    "unwanted delivered": 5,
    "unwanted late": 5,
    "unwanted shipped": 5,
}
"""What is wanted, and the state of the order that decides it (relative shares)."""

PATHS = {
    "by id": 28,
    "by name": 10,
    "one of two": 16,
    "ask id": 12,
    "wrong id": 6,
    "ask which": 16,
    "instead": 12,
}
"""How the user leads the agent to the order; `instead`: a refused request about one order, then the
case about another.
"""

PRICES = (5, 10, 15, 20, 25, 30, 40, 50, 60, 80)
"""Prices of one unit in dollars: round numbers keep price x units within a small model's reach;
primes would not.
"""

MULTIPLE = 0.4
"""Share of orders with 2 to 4 units where the case does not need them (`refund part` always
does).
"""

NEAR_WINDOW = 0.25
"""Share of deliveries within 3 days of the end of the refund window, on either side."""

UNTIDY_IDS = 0.12
"""Share of order ids that users do not write in the canonical form."""

CHATTER = 0.25
"""Probability of a greeting, and of thanks, in a first message."""

PERSONAL = {"": 94, "email": 2, "phone": 2, "card": 2}
"""Shares of first messages with a personal detail, for redaction to find."""
