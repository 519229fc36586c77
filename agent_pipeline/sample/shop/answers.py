"""The reading of the support agent's last answer by its words."""

import re
from collections.abc import Sequence

from agent_pipeline.sample.answers import AnswerPatterns
from agent_pipeline.sample.world import Call, Say

ORDER = re.compile(r"\b[krt][- ]?\d{3}\b")
DOLLARS = re.compile(r"\$ ?(\d+)|\b(\d+) (?:dollars?|usd)\b")
DAYS = re.compile(r"\b(\d+)[- ]days?\b")

ANSWERS = {
    "ask_key": (
        r"^(?=.*(?:\?$|\b(?:please|tell|give|provide|need|share|send|confirm)\b))"
        r"(?=.*\b(?:id|number|name)\b)"
    ),
    "ask_which": (
        r"\bwhich (?:one|of)\b|\bdo you mean\b|\bis it about\b|"
        r"\bwhich (?:order|item|product)\b(?! (?:id|number|name))|"
        r"\bthe (?!id|order|name|number)[a-z ]+ or the (?!id|name|number)[a-z]+.*\?"
    ),
    "not_found": (
        r"\b(?:can't|cannot|can not|couldn't|could not|don't|do not|didn't|did not|unable to|"
        r"not able to) (?:find|see|locate)\b|\bno (?:such )?order\b|\bno record|\bnot found\b|"
        r"\bnot in (?:our|the|my) \w+|\b(?:doesn't|does not) exist\b"
    ),
    "refunded": (
        r"\brefunded\b|\bpaid back\b|"
        r"\brefund\b[^,;]*\b(?:on (?:its|the) way|issued|processed|made|sent|completed)\b|"
        r"\b(?:issued|processed|made|sent)\b[^,;]*\brefund\b|"
        r"\b(?:get|receive)\b[^,;]*\d[^,;]*\bback\b|"
        r"\b(?:i'll|i will|we'll|we will) (?:now )?(?:refund|issue|pay)\b"
    ),
    "cancelled": (
        r"\bcancell?ed\b|\bcancell?ation\b[^,;]*\b(?:complete|confirmed|processed)\b|"
        r"\b(?:i'll|i will|we'll|we will) (?:now )?cancel\b"
    ),
    "too_late": (
        r"\b(?:more|longer|later|older) than (?:the )?\d+ days|"
        r"\b(?:past|passed|over|beyond|exceeds|exceeded|outside|after) (?:of )?"
        r"(?:the |our |your )?(?:\d+[- ]days?|return|refund)\b|"
        r"\bdays?\b[^.;]*\b(?:are|is|have|has|were|was) (?:already )?"
        r"(?:over|up|passed|expired|gone|ended)\b|"
        r"\b(?:window|period|deadline|limit)\b[^.;]*\b(?:over|up|passed|expired|closed|ended)\b|"
        r"\bonly\b[^.;]*\bwithin \d+ days|"
        r"\btoo late (?:for|to)\b[^.;]*\b(?:refund|return|money)\b"
    ),
    "too_large": (
        r"\bmore than (?:\$ ?\d+|\d+ dollars)|\b(?:over|above|beyond|exceeds|exceeded) (?:the |our |your )?"
        r"(?:limit|maximum|\$ ?\d+|\d+ dollars)|\b(?:limit|maximum)\b[^.;]*\bis (?:\$ ?)?\d+|"
        r"\b(?:at most|only up to|no more than) (?:\$ ?\d+|\d+ dollars)|\btoo (?:large|high|much) (?:for|to)\b"
    ),
    "shipped": (
        r"\b(?:has|have|was|is|were|it's) (?:already |now |been )*(?:shipped|dispatched)\b|"
        r"\balready (?:been )?(?:shipped|dispatched)\b|\btoo late to cancel\b|"
        r"\bonly\b[^.;]*\bopen orders\b|\bleft (?:our|the) warehouse\b"
    ),
    "failed": (
        r"\b(?:did not|didn't) work\b|\bwent wrong\b|\bfailed\b|"
        r"\b(?:could not|couldn't) (?:be changed|do that)\b"
    ),
}
"""The pattern of each kind of answer, for the agent's own phrases and for other wordings."""


def is_refunded(sentence: str, writes: Sequence[Call]) -> bool:
    """Return whether the orders that a sentence names were refunded, with the named amount."""
    refunds: dict[str, list[int]] = {}
    for call in writes:
        if call.name == "refund":
            refunds.setdefault(str(call.arguments["order"]).lower(), []).append(
                call.arguments["amount"]
            )
    orders, amounts = orders_in(sentence) or refunds.keys(), dollars_in(sentence)
    paid = [refunds.get(order, []) for order in orders]
    right_amounts = {
        amount for amounts_paid in paid for amount in (*amounts_paid, sum(amounts_paid))
    }
    return bool(paid) and all(paid) and amounts <= right_amounts


def is_cancelled(sentence: str, writes: Sequence[Call]) -> bool:
    """Return whether the orders that a sentence names were cancelled."""
    cancelled = {str(call.arguments["order"]).lower() for call in writes if call.name == "cancel"}
    return bool(cancelled) and orders_in(sentence) <= cancelled


def orders_in(text: str) -> set[str]:
    """Return the ids of orders in a text in small letters, in the canonical spelling."""
    return {re.sub(r"[- ]", "", match[0]) for match in ORDER.finditer(text)}


def dollars_in(text: str) -> set[int]:
    """Return the amounts of dollars in a text in small letters."""
    return {int(match[1] or match[2]) for match in DOLLARS.finditer(text)}


PATTERNS = AnswerPatterns(
    kinds={kind: re.compile(pattern) for kind, pattern in ANSWERS.items()},
    claims={"refunded": is_refunded, "cancelled": is_cancelled},
    weaker={
        "not_found": frozenset({"ask_key"}),
        "ask_which": frozenset({"ask_key"}),
    },
    names=ORDER,
)


def said_wrong(answer: str, right: Say, writes: Sequence[Call]) -> str | None:
    """Return the reason why the support agent's last answer is wrong, or None if it is right.

    A refusal must name the number of days in the rule, if it names one at all.

    Args:
        answer: The answer.
        right: The good agent's answer.
        writes: The calls that changed the shop.
    """
    error = PATTERNS.find_error(answer, right, writes)
    if error or right.kind != "too_late":
        return error
    wrong_days = set(DAYS.findall(answer)) - set(re.findall(r"\d+", right.text))
    return f"the last answer names {', '.join(sorted(wrong_days))} days" if wrong_days else None
